"""What more kernels would teach: `python -m calibration learning-curve`.

Models are fitted on so many kernels drawn at random, and asked about kernels of the suite that are not among them; then on
all but the near relatives of a kernel, on its relatives alone, and on both. Relatives are the kernels that do most nearly
the same, by what is told of their launches. Nothing is measured beforehand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from forecast_autotune.cli.output import print_json, print_table
from forecast_autotune.processes.machine import usable_cores
from forecast_autotune.processes.side_by_side import side_by_side
from forecast_autotune.surrogates.feature_columns import UNKNOWN

from ..command import positive, verb_parser
from ..fit.forest import Example, Scores, corpus_paths, fit, mean_of, read_examples, score, suite_paths

NUMBERS = (2, 4, 8, 16, 32, 64)
FOLDS = 5  # in which kernels of the suite are left out together where numbers are asked for
RELATIVES = 0.2  # of all kernels, the share that counts as near
SHOWN = ("rank_correlation", "first", "top_10_percent", "default", "ece", "brier_skill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A model to fit, and what to ask it."""

    row: str  # what it is called in the table
    fitted_on: frozenset[str]  # kernels
    asked: frozenset[str]  # kernels of the suite
    trees: int


def rounds(
    examples: Sequence[Example], asked: Sequence[str], numbers: Sequence[int], seeds: int, trees: int
) -> list[Round]:
    """All models of the curve, those of the fewest kernels first.

    Args:
        asked: kernels that models are asked about.
    """
    kernels = sorted({e.kernel for e in examples if e.features is not None})
    folds = [frozenset(asked[number::FOLDS]) for number in range(min(FOLDS, len(asked)))]
    made = []
    for number in sorted(numbers):
        for seed in range(seeds):
            for fold in folds:
                others = [kernel for kernel in kernels if kernel not in fold]
                if number > len(others):
                    continue
                drawn = np.random.default_rng(seed).permutation(len(others))[:number]
                chosen = frozenset(others[place] for place in drawn)
                made.append(Round(row=f"{number} kernels", fitted_on=chosen, asked=fold, trees=trees))
    for kernel in asked:
        nearest, everything = relatives(examples, kernel), frozenset(kernels) - {kernel}
        for row, known in (
            ("all but its relatives", everything - nearest),
            ("its relatives alone", nearest),
            ("all others", everything),
        ):
            made.append(Round(row=row, fitted_on=known, asked=frozenset([kernel]), trees=trees))
    return made


def relatives(examples: Sequence[Example], kernel: str) -> frozenset[str]:
    """The kernels whose launches do most nearly what this one's do, by the distance of the medians of their features."""
    known = [e for e in examples if e.features is not None]
    kernels = sorted({e.kernel for e in known})
    places = np.array([np.median(np.vstack([_rows(e) for e in known if e.kernel == k]), axis=0) for k in kernels])
    away = np.abs(places - places[kernels.index(kernel)]) / np.maximum(places.std(axis=0), 1e-9)
    order = [kernels[place] for place in np.argsort(away.mean(axis=1), kind="stable") if kernels[place] != kernel]
    return frozenset(order[: max(1, round(RELATIVES * len(order)))])


def _rows(example: Example) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The first half of the features, which are no comparisons with the default; what is unknown lies in the middle."""
    assert example.features is not None  # noqa: S101  # for mypy: callers have sorted these out
    half = example.features[:, : example.features.shape[1] // 2]
    return np.where(half == UNKNOWN, 0.0, half)


def scores_of(paths: tuple[Path, ...], made: Sequence[Round], number: int) -> dict[str, Scores]:
    """Of each kernel that a round asks about, the mean over its sizes."""
    examples, asked = read_examples(paths), made[number]
    prior = fit([e for e in examples if e.kernel in asked.fitted_on], trees=asked.trees)
    return {
        kernel: mean_of([score(e, prior) for e in examples if e.kernel == kernel and e.features is not None])
        for kernel in sorted(asked.asked)
    }


def curve(
    paths: tuple[Path, ...], made: Sequence[Round], *, jobs: int, tell: Callable[[str], None]
) -> Iterator[dict[str, object]]:
    """The rows of the table: of each kind of round the mean over kernels and seeds."""
    done: dict[int, dict[str, Scores]] = {}
    for number, scores in side_by_side(partial(scores_of, paths, made), range(len(made)), jobs):
        done[number] = scores
        tell(f"learning-curve: {len(done)} of {len(made)} models")
    for row in dict.fromkeys(each.row for each in made):
        some = [scores for n in sorted(done) if made[n].row == row for scores in done[n].values()]
        mean = mean_of(some)
        yield {"fitted on": row, "asked": len(some), **{name: getattr(mean, name) for name in SHOWN}}


def main(words: Sequence[str] | None = None) -> int:
    """Fit, ask, and print the table."""
    parser = verb_parser("learning-curve", __doc__)
    parser.add_argument("--numbers", type=positive, nargs="*", default=NUMBERS, help="of kernels; default: %(default)s")
    parser.add_argument("--seeds", type=positive, default=2, help="draws of each number; default: %(default)s")
    parser.add_argument("--trees", type=positive, default=60, help="default: %(default)s")
    parser.add_argument("--jobs", type=positive, default=usable_cores(), metavar="N", help="processes to use")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args(words)
    paths = corpus_paths()
    examples = read_examples(paths)
    of_suite = {path.name for path in suite_paths()}
    asked = sorted({e.kernel for e in examples if e.name in of_suite and e.features is not None})
    made = rounds(examples, asked, given.numbers, given.seeds, given.trees)
    rows = list(curve(paths, made, jobs=given.jobs, tell=lambda text: print(text, file=sys.stderr, flush=True)))
    if given.json:
        print_json(rows)
    else:
        names = ("fitted on", "asked", *SHOWN)
        cells = [[f"{row[n]:.3f}" if isinstance(row[n], float) else str(row[n]) for n in names] for row in rows]
        print_table([name.replace("_", " ") for name in names], cells, right=[n.replace("_", " ") for n in names[1:]])
    return 0
