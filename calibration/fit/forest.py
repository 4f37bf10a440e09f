"""Fit the shipped model on all recorded spaces: `make fit`, or `python -m calibration fit [TRACE …] [--to FILE]`.

Three things are fitted, all explained in `forecast_autotune/surrogates/prior.py`: a forest over features of launches, of
randomised trees that each see a part of the kernels; a few small networks beside it; and the factors of the rules of thumb
over knobs' roles. Forest and networks are fitted twice: on Triton's kernels for Triton, and on all for CUDA. The file's card
says on which traces, and how well the model does on kernels and on sizes that were left out: in 10 rounds each kernel once
with all its sizes; then, in at most 3, each size once. Only forecasts are scored: no outcome of the space and no recording
of the kernel is known to the model.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.digest import digest
from forecast_autotune.core.forecast import BIN_EDGES_LOG2
from forecast_autotune.core.job import Job
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.evaluation.scores import (
    against_median,
    bin_probabilities,
    rank_correlation,
    score_forecasts,
    score_probabilities,
)
from forecast_autotune.evaluation.traces import read_trace
from forecast_autotune.features import knob_roles
from forecast_autotune.features.forecast_columns import columns_of
from forecast_autotune.features.kernel_kinds import KINDS, kernel_kind
from forecast_autotune.processes.machine import usable_cores
from forecast_autotune.processes.side_by_side import side_by_side
from forecast_autotune.surrogates import feature_columns
from forecast_autotune.surrogates import networks as networks_module
from forecast_autotune.surrogates import prior as prior_module
from forecast_autotune.surrogates.feature_columns import launch_columns
from forecast_autotune.surrogates.learned import Learned
from forecast_autotune.surrogates.prior import (
    LEAST_WIDTH,
    MOST_WIDTH,
    RULES,
    SHIPPED,
    WIDTHS,
    Factor,
    Prior,
    Width,
    prior_text,
    read_prior,
    rules,
    width_columns,
)

from ..command import positive, verb_parser
from ..paths import CORPORA, REPOSITORY, TRACES, traces
from . import networks as fitting_networks
from .networks import POWER, fit_networks, kernel_weights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LEFT_OUT = REPOSITORY / "build" / "priors"
TREES, LEAVES, MIN_IN_A_LEAF = 120, 600, 5
CUDA_TREES = 1 / 3  # of those for Triton
TREES_FOR_A_NETWORK = 20  # 6 networks beside 120 trees, which take about as long to fit
MAX_ROWS = 8_000  # configs that a tree is grown on, drawn at random: more cost time and gain nothing
FEATURES_TRIED = 0.3  # share of them at each split
KERNELS_SEEN = 0.7  # of all, by each tree: how far trees then disagree says how sure they are of a kernel none has seen
CLIP = (-3.0, 1.5)  # octaves around a space's median: what is slower is slow, and how slow matters to nobody
WIDTH = Width(constant=0.2, disagreement=1.05, space=0.0, distance=0.7)  # as `fit_width` finds it on the corpus
JUDGED = 30  # configs of a trace that the width is fitted on, evenly spaced: most are alike
KERNEL_ROUNDS, SIZE_ROUNDS = 10, 3  # fits in which all kernels are left out once, and all sizes
MIN_KERNELS = 3  # of fewer, hardly any are left to fit on when one is left out
MAX_BYTES = 3_000_000

# What is expected of the rules before the suite is looked at, in octaves of time for each unit. A warp with half its lanes
# idle takes as long for half the work, nearly; the others are of the size that guides and practice report.
BELIEFS = {
    "idle_lanes": Factor(0.8, 0.3),
    "few_threads": Factor(0.15, 0.15),
    "large_block": Factor(0.2, 0.2),
    "ragged": Factor(0.15, 0.15),
    "scattered": Factor(0.25, 0.2),
    "little_work": Factor(0.12, 0.12),
    "much_work": Factor(0.15, 0.15),
    "narrow_load": Factor(0.1, 0.1),
}
TELLING = 20.0  # configs of a space that tell as much of a rule as if they were independent: most are alike
UNEXPLAINED = 0.7  # octaves by which a config is off what rules say


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A recorded space as the model sees it: log2 of time around the space's median, NaN for what failed."""

    name: str
    kernel: str  # of a package's with the package before it
    package: str  # empty for kernels of this repository
    job: Job = field(repr=False)
    features: Array | None
    broken: Mapping[str, Array]
    log2_time: Array

    @property
    def is_cuda(self) -> bool:
        return self.job.workload.program.language == "cuda"


def read_example(path: Path) -> Example:
    """Read a trace.

    Raises:
        OSError: it cannot be read.
        InvalidInputError: it is no trace.
    """
    import numpy as np

    space, package = RecordedSpace(name=path.name, recording=read_trace(path)), package_of(path)
    job = space.job
    log2_time = np.where(np.isfinite(space.log2_us), space.log2_us, np.nan)
    return Example(
        name=path.name,
        kernel="/".join(filter(None, (package, space.kernel))),
        package=package,
        job=job,
        features=launch_columns(job.static_features, job.hardware) if job.static_features else None,
        broken=rules(job),
        log2_time=log2_time - np.nanmedian(log2_time),
    )


def fit(examples: Sequence[Example], *, trees: int = TREES, seed: int = 0) -> Prior:
    """The model of these examples: the same examples and seed give the same model.

    One that says nothing of launches teaches the rules alone.

    Raises:
        InvalidInputError: there are none.
    """
    if not examples:
        raise InvalidInputError("no traces to fit on: record some with 'make record', or name some")
    described = [e for e in examples if e.features is not None]
    grown = fit_launches([e for e in described if not e.is_cuda], trees=trees, seed=seed)
    if any(e.is_cuda for e in described):
        grown = replace(grown, cuda=fit_launches(described, trees=max(1, round(CUDA_TREES * trees)), seed=seed))
    return replace(grown, fitted_on=tuple(sorted({e.kernel for e in examples})), factors=fit_factors(examples))


@cache
def read_examples(paths: tuple[Path, ...]) -> tuple[Example, ...]:
    """Traces, read once; errors as of `read_example`."""
    return tuple(read_example(path) for path in paths)


def suite_paths() -> tuple[Path, ...]:
    return tuple(traces("suite"))


def corpus_paths() -> tuple[Path, ...]:
    """All recorded spaces of this repository, which the shipped model is fitted on."""
    return tuple(traces(*CORPORA))


def package_of(path: Path) -> str:
    """The package that a trace's kernel comes from; empty for kernels of this repository."""
    folder = path.resolve().parent
    return folder.name if folder.parent == CORPORA["packages"] else ""


def _kernel_of(path: Path) -> str:
    """As `Example.kernel`, by the name of the trace."""
    return "/".join(filter(None, (package_of(path), path.name.partition(".")[0])))


def corpus() -> tuple[Example, ...]:
    """All recorded spaces, read once."""
    return read_examples(corpus_paths())


@cache
def prior_without(left_out: str, seed: int = 0) -> Prior | None:
    """The model as fitted without a kernel, or without a whole package; None, for the shipped one, if none is so called.

    With a kernel the others of its round are left out, a tenth of all: ten fits then serve every kernel. Another seed draws
    another model on the same traces: what differs between them is no merit of either.

    Kept in `build/priors` for the next process that asks, under a name that changes with the traces and with what fits.
    """
    paths = corpus_paths()
    kernels = sorted({_kernel_of(path) for path in paths})
    if left_out in kernels:
        number = kernels.index(left_out) % KERNEL_ROUNDS
        name, without = f"round-{number}", set(kernels[number::KERNEL_ROUNDS])
    elif left_out and any(left_out == package_of(path) for path in paths):
        name, without = left_out, {_kernel_of(path) for path in paths if left_out == package_of(path)}
    else:
        return None
    kept = LEFT_OUT / f"{name}.{seed}.{_fit_digest()}.json"
    try:
        return read_prior(kept)
    except (OSError, InvalidInputError):
        prior = fit([e for e in corpus() if e.kernel not in without], seed=seed)
    kept.parent.mkdir(parents=True, exist_ok=True)
    _write(kept, prior_text(prior, card={"left out": sorted(without)}))
    # As read, not as fitted: the same in every process.
    return read_prior(kept)


def _write(path: Path, text: str) -> None:
    """All of it or, if this is interrupted, nothing: another process may be reading."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


@cache
def _fit_digest() -> str:
    """Of all that a fit depends on."""
    modules = (sys.modules[__name__], fitting_networks, networks_module, prior_module, feature_columns, knob_roles)
    sources = [Path(module.__file__ or "").read_text(encoding="utf-8") for module in modules]
    return digest(*sources, *(f"{path.relative_to(TRACES)} {path.stat().st_size}" for path in corpus_paths()))


def fit_launches(examples: Sequence[Example], *, trees: int = TREES, seed: int = 0, power: float = POWER) -> Prior:
    """Forest and networks alone. Kernels count by `kernel_weights`, to this power."""
    import numpy as np
    from sklearn.tree import ExtraTreeRegressor

    random = np.random.default_rng(seed)
    kernels = sorted({e.kernel for e in examples})
    known = [~np.isnan(e.log2_time) for e in examples]
    x = np.vstack([_features(e)[k] for e, k in zip(examples, known, strict=True)]) if examples else np.zeros((0, 1))
    x = x.astype(np.float32)  # as scikit-learn has it
    y = np.concatenate([np.clip(e.log2_time[k], *CLIP) for e, k in zip(examples, known, strict=True)] or [np.zeros(0)])
    of_kernel = np.concatenate(
        [np.full(k.sum(), kernels.index(e.kernel)) for e, k in zip(examples, known, strict=True)] or [np.zeros(0)]
    ).astype(int)
    weight = kernel_weights(of_kernel, power)
    grown = []
    for number in range(trees if kernels else 0):
        seen = random.permutation(len(kernels))[: max(1, round(KERNELS_SEEN * len(kernels)))]
        rows = np.flatnonzero(np.isin(of_kernel, seen))
        rows = np.sort(random.permutation(rows)[:MAX_ROWS])
        tree = ExtraTreeRegressor(
            max_features=FEATURES_TRIED,
            min_samples_leaf=MIN_IN_A_LEAF,
            max_leaf_nodes=LEAVES,
            random_state=trees * seed + number,
        )
        grown.append(tree.fit(x[rows], y[rows], sample_weight=weight[rows] * len(rows)).tree_)
    most = max((t.node_count for t in grown), default=0)
    tables: dict[str, Any] = {
        name: np.zeros((len(grown), most), dtype=kind)
        for name, kind in (("feature", int), ("threshold", float), ("left", int), ("right", int), ("value", float))
    }
    tables["feature"] -= 1  # rows are filled up with leaves
    for number, tree in enumerate(grown):
        for name, column in _in_preorder(tree).items():
            tables[name][number, : tree.node_count] = column
    networks = None
    if kernels:
        count = math.ceil(trees / TREES_FOR_A_NETWORK)
        networks = fit_networks(x.astype(float), y, of_kernel, count=count, seen=KERNELS_SEEN, seed=seed, power=power)
    return Prior(fitted_on=tuple(kernels), **tables, networks=networks, width=WIDTH, factors={})


def _in_preorder(tree: Any) -> dict[str, NDArray[Any]]:
    """The nodes of one of scikit-learn's trees as `Prior` has them, each left child right behind its parent."""
    import numpy as np

    order, stack = [], [0]
    while stack:
        order.append(node := stack.pop())
        if tree.children_left[node] >= 0:
            stack += [int(tree.children_right[node]), int(tree.children_left[node])]
    place = np.empty(tree.node_count, dtype=int)
    place[order] = np.arange(tree.node_count)
    inner = tree.children_left[order] >= 0

    def rounded(values: NDArray[Any]) -> NDArray[Any]:
        return np.round(values[order].reshape(-1), 4).astype(np.float32).astype(float)  # as the file has them

    return {
        "feature": np.where(inner, tree.feature[order], -1),
        "threshold": np.where(inner, rounded(tree.threshold), 0.0),
        "left": np.where(inner, place[tree.children_left[order]], 0),
        "right": np.where(inner, place[tree.children_right[order]], 0),
        "value": np.where(inner, 0.0, rounded(tree.value)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutErrors:
    """How a model that had not seen a space did there: of some configs that ran, evenly spaced.

    Attributes:
        columns: what the width weights, as `width_columns`.
        expected, measured: log2 speed-up over the median of what was expected, and of what was measured.
    """

    columns: Array
    expected: Array
    measured: Array


def _members(example: Example, prior: Prior) -> Prior:
    """The part of a model that forecasts a space."""
    return prior.cuda if example.is_cuda and prior.cuda is not None else prior


def _widened(example: Example, prior: Prior, width: Width) -> Prior:
    """A model with another width of what forecasts a space."""
    if example.is_cuda and prior.cuda is not None:
        return replace(prior, cuda=replace(prior.cuda, width=width))
    return replace(prior, width=width)


def misses(example: Example, prior: Prior) -> LeftOutErrors:
    """What trees and networks expected of a space beside what was measured."""
    import numpy as np

    described = np.array([bool(d) for d in example.job.static_features])
    of_launches = _members(example, prior).expected(_features(example)[described])
    expected = of_launches.mean
    ran = np.flatnonzero(~np.isnan(example.log2_time[described]))
    some = ran[np.linspace(0, ran.size - 1, min(JUDGED, ran.size)).round().astype(int)] if ran.size else ran
    return LeftOutErrors(
        columns=width_columns(expected, of_launches.disagreement)[some],
        expected=(np.median(expected) - expected)[some],
        measured=-example.log2_time[described][some],
    )


def fit_width(left_out: Sequence[tuple[str, LeftOutErrors]]) -> Width:
    """The width with the least Brier score in the eight bins by what was missed, each kernel counting alike.

    Args:
        left_out: kernels by name, each with what a model missed that had not seen it.
    """
    import numpy as np
    from scipy.optimize import minimize
    from scipy.special import ndtr

    some = [(kernel, missed) for kernel, missed in left_out if missed.measured.size]
    if not some:
        return WIDTH
    traces = Counter(kernel for kernel, _ in some)
    columns = np.vstack([m.columns for _, m in some])
    expected, measured = (np.concatenate([getattr(m, name) for _, m in some]) for name in ("expected", "measured"))
    weight = np.concatenate([np.full(m.measured.size, 1.0 / m.measured.size / traces[k]) for k, m in some])
    edges = np.asarray(BIN_EDGES_LOG2)
    fell = np.eye(edges.size + 1)[np.searchsorted(edges, measured, side="left")]
    above = edges - expected[:, None]

    def brier(powers: Array) -> float:
        sigma = np.exp(np.clip(columns @ powers, *WIDTHS))
        below = np.pad(ndtr(above / sigma[:, None]), ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
        return float(weight @ ((np.diff(below, axis=1) - fell) ** 2).sum(axis=1) / weight.sum())

    usual = np.array(astuple(WIDTH))
    # A power that is 1 away from the usual one must gain 0.002: what few traces say in passing is not to bend it.
    fitted = minimize(lambda powers: brier(powers) + 0.002 * float(((powers - usual) ** 2).sum()), usual)
    within = np.clip(fitted.x, astuple(LEAST_WIDTH), astuple(MOST_WIDTH))
    return Width(*(round(float(power), 2) for power in within))


def fit_factors(examples: Sequence[Example]) -> dict[str, Factor]:
    """The beliefs, updated by the suite: each kernel is one witness, and the spread of witnesses is the new uncertainty."""
    import numpy as np

    witnesses: dict[str, list[tuple[float, float]]] = {}
    for kernel in sorted({e.kernel for e in examples}):
        some = [e for e in examples if e.kernel == kernel]
        names = [n for n in RULES if any(n in e.broken for e in some)]
        if not names:
            continue
        precision = np.diag([BELIEFS[n].sigma ** -2.0 for n in names])
        pulled = precision @ np.array([BELIEFS[n].mean for n in names])
        alone = precision.copy()
        for example in some:
            known = ~np.isnan(example.log2_time)
            x = np.stack([example.broken.get(n, np.zeros(known.size)) for n in names], axis=1)[known]
            y = np.clip(example.log2_time[known], *CLIP)
            x, y = x - x.mean(axis=0), y - y.mean()
            share = TELLING / max(1, known.sum()) / len(some) / UNEXPLAINED**2
            precision = precision + share * x.T @ x
            pulled = pulled + share * x.T @ y
        covariance = np.linalg.inv(precision)
        estimate = covariance @ pulled
        for place, name in enumerate(names):
            if covariance[place, place] < 0.8 / alone[place, place]:  # the kernel says something of this rule
                witnesses.setdefault(name, []).append((float(estimate[place]), float(covariance[place, place])))
    factors = {}
    for name, belief in BELIEFS.items():
        estimates = witnesses.get(name, [])
        # The belief counts like three witnesses.
        values = [belief.mean] * 3 + [value for value, _ in estimates]
        variances = [belief.sigma**2] * 3 + [variance for _, variance in estimates]
        mean = statistics.fmean(values)
        sigma = math.sqrt(statistics.fmean(v + (m - mean) ** 2 for m, v in zip(values, variances, strict=True)))
        factors[name] = Factor(round(max(0.0, mean), 4), round(sigma, 4))
    return factors


def _features(example: Example) -> Array:
    assert example.features is not None  # noqa: S101  # for mypy: callers have sorted these out
    return example.features


# What is left out, and how the model does there -------------------------------------------------------------------------


def kernels_left_out(examples: Sequence[Example]) -> list[frozenset[int]]:
    """Rounds in which every kernel is left out once with all its sizes: places among the examples."""
    of_kernels = [_of_kernel(examples, kernel) for kernel in sorted({e.kernel for e in examples})]
    return [
        frozenset().union(*of_kernels[number::KERNEL_ROUNDS]) for number in range(min(KERNEL_ROUNDS, len(of_kernels)))
    ]


def sizes_left_out(examples: Sequence[Example]) -> list[frozenset[int]]:
    """Rounds in which each size of every kernel that has two or more is left out once, never all of a kernel."""
    sizes = [sorted(places) for k in sorted({e.kernel for e in examples}) if len(places := _of_kernel(examples, k)) > 1]
    rounds = min(SIZE_ROUNDS, max(map(len, sizes), default=0))
    return [frozenset(place for places in sizes for place in places[number::rounds]) for number in range(rounds)]


def _of_kernel(examples: Sequence[Example], kernel: str) -> frozenset[int]:
    return frozenset(i for i, e in enumerate(examples) if e.kernel == kernel)


def fits(
    paths: tuple[Path, ...], rounds: Sequence[frozenset[int]], trees: int, jobs: int
) -> Iterator[tuple[int, Prior]]:
    """The number of each round and the model without what it leaves out, as they are done."""
    if jobs == 1 or len(rounds) < 2:
        yield from ((number, _fit_round(paths, round_, trees)) for number, round_ in enumerate(rounds))
        return
    numbers = range(len(rounds))
    yield from side_by_side(partial(_fit_numbered, paths, rounds, trees), numbers, jobs)


def _fit_numbered(paths: tuple[Path, ...], rounds: Sequence[frozenset[int]], trees: int, number: int) -> Prior:
    return _fit_round(paths, rounds[number], trees)


def _fit_round(paths: tuple[Path, ...], left_out: frozenset[int], trees: int) -> Prior:
    return fit([e for i, e in enumerate(read_examples(paths)) if i not in left_out], trees=trees)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How a model does on a space that it has not seen, or, on average, on several.

    Attributes:
        rank_correlation: Spearman's, of configs that ran.
        top_1_percent: slowdown of the best config within the top 1 % of the ranking; likewise 10 % and 50 %.
        first: slowdown of the config ranked first.
        default: slowdown of the default, which also stands in where what was ranked on top does not run.
        ece, brier_skill: of the eight bins against the space's median config; see `ForecastScores`.
    """

    rank_correlation: float | None
    top_1_percent: float | None
    top_10_percent: float | None
    top_50_percent: float | None
    first: float | None
    default: float | None
    ece: float | None
    brier_skill: float | None


_FACTORS = ("top_1_percent", "top_10_percent", "top_50_percent", "first", "default")  # averaged as factors are


def score(example: Example, prior: Prior) -> Scores:
    """How a model does on one space, nothing of which is known to it."""
    import numpy as np

    forecasts = Learned(prior).start(ForecastContext(job=example.job)).predict({}, {})
    log2_us = np.where(np.isnan(example.log2_time), np.inf, example.log2_time)
    measured, median = against_median(forecasts, log2_us.tolist(), default_us=None)
    scores = score_forecasts(forecasts, measured, reference=median)
    columns = columns_of(forecasts)
    expected = np.nan_to_num(columns.mean + np.log2(np.maximum(1.0 - columns.fail, 1e-9)))
    slowdowns = [float(s) if math.isfinite(s) else None for s in 2.0 ** (log2_us - log2_us.min())]
    default = slowdowns[0]
    return Scores(
        rank_correlation=rank_correlation(forecasts, measured),
        top_1_percent=scores.top_1_percent or default,
        top_10_percent=scores.top_10_percent or default,
        top_50_percent=scores.top_50_percent or default,
        first=slowdowns[int(expected.argmax())] or default,
        default=default,
        ece=scores.ece,
        brier_skill=scores.brier_skill,
    )


def probabilities_and_speedups(example: Example, prior: Prior) -> tuple[Array, Array]:
    """Of at most `JUDGED` configs, evenly spaced: chances of the eight bins around the median, and what was measured there.

    Returns:
        shape `(configs, 8)`, and log2 speed-up over the space's median, shape `(configs,)`.
    """
    import numpy as np

    forecasts = Learned(prior).start(ForecastContext(job=example.job)).predict({}, {})
    log2_us = np.where(np.isnan(example.log2_time), np.inf, example.log2_time)
    measured, median = against_median(forecasts, log2_us.tolist(), default_us=None)
    some = np.linspace(0, len(measured) - 1, min(JUDGED, len(measured))).round().astype(int)
    return bin_probabilities(forecasts, reference=median)[some], np.array(measured)[some] - median


def mean_of(some: Sequence[Scores]) -> Scores:
    """Their mean, of factors the geometric one, to four digits; of what none of them has None."""

    def mean(name: str) -> float | None:
        values = [value for scores in some if (value := getattr(scores, name)) is not None]
        if not values:
            return None
        return round(statistics.geometric_mean(values) if name in _FACTORS else statistics.fmean(values), 4)

    return Scores(**{name: mean(name) for name in Scores.__slots__})


def kind_card(examples: Sequence[Example], judged: Mapping[int, tuple[Array, Array]]) -> dict[str, object]:
    """How honest forecasts of kernels left out were, by the kind of kernel: of all its configs together.

    Skill is against always answering how often each bin came in this kind.

    Args:
        judged: by place among the examples, as `probabilities_and_speedups`.
    """
    import numpy as np

    kinds: dict[str, list[int]] = {}
    for i in judged:
        kinds.setdefault(kernel_kind(examples[i].job.static_features), []).append(i)
    card: dict[str, object] = {}
    for kind in sorted(kinds, key=KINDS.index):
        chances, speedups = (np.concatenate([judged[i][part] for i in kinds[kind]]) for part in (0, 1))
        scores = score_probabilities(chances, np.zeros(speedups.size), speedups)
        card[kind] = {
            "kernels": len({examples[i].kernel for i in kinds[kind]}),
            "configs": int(speedups.size),
            "brier_skill": None if scores.brier_skill is None else round(scores.brier_skill, 4),
            "ece": round(scores.ece, 4),
        }
    return card


def split_card(examples: Sequence[Example], scored: Mapping[int, Scores]) -> dict[str, object] | None:
    """What the card says of one way to leave out: every kernel counts alike; None if nothing could be left out."""
    if not scored:
        return None
    by_kernel = {
        kernel: mean_of([scored[i] for i in sorted(places)])
        for kernel in sorted({e.kernel for e in examples})
        if (places := _of_kernel(examples, kernel) & scored.keys())
    }
    return {
        "traces": len(scored),
        **_as_row(mean_of(list(by_kernel.values()))),
        "by_kernel": {kernel: _as_row(scores) for kernel, scores in by_kernel.items()},
    }


def _as_row(scores: Scores) -> dict[str, float | None]:
    return {name: getattr(scores, name) for name in Scores.__slots__}


def _member_card(prior: Prior) -> dict[str, object]:
    return {
        "trees": {"count": len(prior.feature), "nodes": sum(2 * int((f >= 0).sum()) + 1 for f in prior.feature)},
        "networks": 0 if prior.networks is None else len(prior.networks.layers[0][0]),
        "width": asdict(prior.width),
    }


def data_card(examples: Sequence[Example]) -> dict[str, object]:
    import numpy as np

    failed = [int(np.isnan(e.log2_time).sum()) for e in examples]
    return {
        "traces": {
            kernel: [examples[i].name for i in sorted(_of_kernel(examples, kernel))]
            for kernel in sorted({e.kernel for e in examples})
        },
        "without_launches": [e.name for e in examples if e.features is None],
        "hardware": sorted({str(e.job.hardware) for e in examples}),
        "configs": sum(e.log2_time.size for e in examples),
        "failed": sum(failed),
    }


def fit_and_score(
    paths: Sequence[Path], *, trees: int = TREES, jobs: int = 1
) -> tuple[Prior, dict[str, object], dict[str, Prior]]:
    """The model of these traces, its card, and for each kernel a model that has not seen it.

    Raises:
        OSError: a trace cannot be read.
        InvalidInputError: one is no trace, or they are of too few kernels.
    """
    chosen = tuple(dict.fromkeys(paths))
    examples = read_examples(chosen)
    kernels = sorted({e.kernel for e in examples})
    if len(kernels) < MIN_KERNELS:
        raise InvalidInputError(
            f"{len(chosen)} traces are of {len(kernels)} kernels ({', '.join(kernels) or 'none'}): to leave each out once, "
            f"name traces of at least {MIN_KERNELS}"
        )
    by_kernel, by_size = kernels_left_out(examples), sizes_left_out(examples)
    rounds = [frozenset[int](), *by_kernel, *by_size]
    priors: dict[int, Prior] = {}
    for number, prior in fits(chosen, rounds, trees, jobs):
        priors[number] = prior
        print(f"fit: {len(priors)} of {len(rounds)} models", file=sys.stderr, flush=True)
    missed = {
        i: misses(examples[i], priors[number])
        for number, places in enumerate(by_kernel, start=1)
        for i in sorted(places)
        if examples[i].features is not None and _members(examples[i], priors[number]).feature.size
    }

    def width_of(cuda: bool, without: frozenset[int] = frozenset()) -> Width:
        some = [i for i in missed if examples[i].is_cuda == cuda and i not in without]
        return fit_width([(examples[i].kernel, missed[i]) for i in some])

    # The width, too, comes from other kernels where a kernel is scored.
    width_without = {
        i: width
        for places in by_kernel
        for cuda in (False, True)
        for width in [width_of(cuda, places)]
        for i in places
        if examples[i].is_cuda == cuda
    }

    def scored(first: int, rounds: Sequence[frozenset[int]]) -> dict[int, Scores]:
        return {
            i: score(examples[i], _widened(examples[i], priors[number], width_without[i]))
            for number, places in enumerate(rounds, start=first)
            for i in sorted(places)
        }

    without = {
        examples[i].kernel: _widened(examples[i], priors[number], width_without[i])
        for number, places in enumerate(by_kernel, start=1)
        for i in sorted(places)
    }
    bins = {i: probabilities_and_speedups(example, without[example.kernel]) for i, example in enumerate(examples)}
    prior = replace(priors[0], width=width_of(cuda=False))
    if prior.cuda is not None:
        prior = replace(prior, cuda=replace(prior.cuda, width=width_of(cuda=True)))
    card = {
        "data": data_card(examples),
        **_member_card(prior),
        "cuda": None if prior.cuda is None else _member_card(prior.cuda),
        "honesty_by_kind": kind_card(examples, bins),
        "kernels_left_out": split_card(examples, scored(1, by_kernel)),
        "sizes_left_out": split_card(examples, scored(1 + len(by_kernel), by_size)),
    }
    return prior, card, without


# The command ------------------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Fit, score, and write the model."""
    parser = verb_parser("fit", __doc__)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE", help="default: all that are recorded here")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="FILE",
        help="default: the shipped model, which is fitted on all traces of this repository",
    )
    parser.add_argument(
        "--left-out",
        type=Path,
        metavar="FOLDER",
        help="write a model that has not seen it for each kernel too: KERNEL.json",
    )
    parser.add_argument("--trees", type=positive, default=TREES, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--jobs", type=positive, default=usable_cores(), metavar="N", help="processes to use; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print the card as JSON")
    given = parser.parse_args(words)
    if given.traces and given.to is None:
        parser.error("name a file with --to: the shipped model is fitted on all traces of this repository")
    target = given.to or SHIPPED
    try:
        target.parent.mkdir(parents=True, exist_ok=True)  # before minutes are spent
        prior, card, without = fit_and_score(given.traces or corpus_paths(), trees=given.trees, jobs=given.jobs)
        text = prior_text(prior, card=card)
        if len(text) > MAX_BYTES:
            raise InvalidInputError(
                f"the model would take {len(text)} bytes, of {MAX_BYTES} it may: fit fewer than {given.trees} trees"
            )
        _write(target, text)
        if given.left_out:
            given.left_out.mkdir(parents=True, exist_ok=True)
            for kernel, unseen in without.items():
                _write(
                    given.left_out / f"{kernel.replace('/', '.')}.json", prior_text(unseen, card={"left_out": kernel})
                )
    except (OSError, InvalidInputError) as err:
        print(f"fit: {err}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fit: interrupted, nothing is written", file=sys.stderr)
        return 130
    print(f"fit: wrote {target}, {len(text)} bytes", file=sys.stderr)
    if given.json:
        print(json.dumps(card, allow_nan=False))
    else:
        _show(card)
    return 0


def _show(card: Mapping[str, Any]) -> None:
    print(f"{'left out':<24}" + "".join(f"{name:>17}" for name in Scores.__slots__))
    for what in ("kernels_left_out", "sizes_left_out"):
        if (split := card[what]) is None:
            continue
        for name, row in ((what.replace("_", " "), split), *((f"  {k}", r) for k, r in split["by_kernel"].items())):
            cells = ("-" if row[n] is None else f"{row[n]:.2f}" for n in Scores.__slots__)
            print(f"{name:<24}" + "".join(f"{cell:>17}" for cell in cells))
    print("kernels left out, by kind: skill and calibration error over all configs of the kind")
    for kind, row in card["honesty_by_kind"].items():
        skill = "-" if row["brier_skill"] is None else f"{row['brier_skill']:+.2f}"
        print(f"{kind:<24}{row['kernels']:>4} kernels   skill {skill}   calibration error {row['ece']:.3f}")
