"""Fit the shipped model on the suite's recorded spaces: `make fit`, or `python -m calibration.fit`.

Two things are fitted, both told in `forecast_autotune/surrogates/prior.py`: a forest over what launches do, of randomised
trees each of which sees a part of the kernels, and factors of the rules of thumb over knobs' roles. The file's card says on
what, and how well the model does on kernels, and on sizes, that were left out of the fit.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from forecast_autotune.core.job import Job, Recording
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.measure.replay import Replay
from forecast_autotune.store.trace import read_trace
from forecast_autotune.surrogates.prior import RULES, SHIPPED, Factor, Prior, rules, write_prior
from forecast_autotune.surrogates.traits import launch_traits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TRACES = Path(__file__).with_name("traces")
TREES, LEAVES, LEAST_IN_A_LEAF = 120, 250, 5
TRAITS_TRIED = 0.3  # share of them at each split
KERNELS_SEEN = 0.7  # of all, by each tree: how far trees then disagree says how sure they are of a kernel none has seen
CLIP = (-3.0, 1.5)  # octaves around a space's median: what is slower is slow, and how slow matters to nobody
SPREAD = (0.75, 0.5)  # see `fit_spread`, which the card holds beside it
MOST_BYTES = 5_000_000

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
    kernel: str
    traits: Array | None
    broken: Mapping[str, Array]
    log2_time: Array


def read_example(path: Path) -> Example:
    """Read a trace.

    Raises:
        OSError: it cannot be read.
        InvalidInputError: it is no trace.
    """
    import numpy as np

    recording = read_trace(path)
    job = job_of(recording)
    times = np.array(
        [o.median_us if isinstance(o, Measurement) else np.nan for o in (recording.outcomes[c] for c in job.space)]
    )
    log2_time = np.log2(times)
    return Example(
        name=path.name,
        kernel=recording.workload.program.name.rpartition(".")[2],  # an extension has a module before its name
        traits=launch_traits(job.described, job.hardware) if job.described else None,
        broken=rules(job),
        log2_time=log2_time - np.nanmedian(log2_time),
    )


def job_of(recording: Recording) -> Job:
    """The job that a recording is of."""
    space = Replay(recording).space
    return Job(
        workload=recording.workload,
        space=space,
        hardware=recording.hardware,
        toolchain=recording.toolchain,
        described=[recording.described.get(c, {}) for c in space] if recording.described else (),
    )


def fit(examples: Sequence[Example], *, trees: int = TREES) -> Prior:
    """The model of these examples: the same examples give the same model.

    Raises:
        InvalidInputError: there are none.
    """
    if not examples:
        raise InvalidInputError("no traces to fit on: record some with 'make record', or name some")
    grown = fit_trees([e for e in examples if e.traits is not None], trees=trees)
    return replace(grown, fitted_on=tuple(sorted({e.kernel for e in examples})), factors=fit_factors(examples))


@cache
def suite() -> tuple[Example, ...]:
    """The suite's recorded spaces, read once."""
    return tuple(read_example(path) for path in sorted(TRACES.glob("*.jsonl.gz")))


@cache
def prior_without(kernel: str) -> Prior | None:
    """The model as fitted without a kernel of the suite; None, for the shipped one, if the suite has none of that name."""
    left = [e for e in suite() if e.kernel != kernel]
    return fit(left) if len(left) < len(suite()) else None


def fit_trees(examples: Sequence[Example], *, trees: int = TREES) -> Prior:
    """The forest alone. Every kernel counts alike, whatever the number of its sizes and configs."""
    import numpy as np
    from sklearn.tree import ExtraTreeRegressor

    random = np.random.default_rng(0)
    kernels = sorted({e.kernel for e in examples})
    known = [~np.isnan(e.log2_time) for e in examples]
    x = np.vstack([_told(e)[k] for e, k in zip(examples, known, strict=True)]) if examples else np.zeros((0, 1))
    y = np.concatenate([np.clip(e.log2_time[k], *CLIP) for e, k in zip(examples, known, strict=True)] or [np.zeros(0)])
    of_kernel = np.concatenate(
        [np.full(k.sum(), kernels.index(e.kernel)) for e, k in zip(examples, known, strict=True)] or [np.zeros(0)]
    ).astype(int)
    weight = 1.0 / np.maximum(np.bincount(of_kernel, minlength=len(kernels)), 1)[of_kernel] if len(kernels) else y
    grown = []
    for number in range(trees if kernels else 0):
        seen = random.permutation(len(kernels))[: max(1, round(KERNELS_SEEN * len(kernels)))]
        rows = np.flatnonzero(np.isin(of_kernel, seen))
        tree = ExtraTreeRegressor(
            max_features=TRAITS_TRIED, min_samples_leaf=LEAST_IN_A_LEAF, max_leaf_nodes=LEAVES, random_state=number
        )
        grown.append(tree.fit(x[rows], y[rows], sample_weight=weight[rows] * len(rows)).tree_)
    most = max((t.node_count for t in grown), default=0)

    def table(name: str, fill: float, kind: type) -> NDArray[np.generic]:
        rows = np.full((len(grown), most), fill, dtype=kind)
        for row, tree in zip(rows, grown, strict=True):
            values = np.asarray(getattr(tree, name)).reshape(-1)
            row[: len(values)] = np.maximum(values, -1) if kind is int else values
        return rows

    feature = table("feature", -1, int)
    return Prior(
        fitted_on=tuple(kernels),
        feature=feature,
        threshold=np.round(table("threshold", 0.0, float), 4),
        left=np.where(feature >= 0, table("children_left", 0, int), 0),
        right=np.where(feature >= 0, table("children_right", 0, int), 0),
        value=np.round(table("value", 0.0, float), 4),
        spread=SPREAD,
        factors={},
    )


def fit_spread(left_out: Sequence[tuple[Example, Prior]]) -> tuple[float, float]:
    """The most likely `Prior.spread`, by what trees missed on kernels that none of them had seen."""
    import numpy as np

    misses, spreads, weights = [], [], []
    for example, prior in left_out:
        of_trees = prior.each_tree(_told(example))
        known = ~np.isnan(example.log2_time)
        missed = np.clip(example.log2_time, *CLIP) - of_trees.mean(axis=1)
        misses.append((missed - np.nanmedian(missed))[known])
        spreads.append(of_trees.std(axis=1)[known])
        weights.append(np.full(known.sum(), 1.0 / known.sum()))
    missed, spread, weight = np.concatenate(misses), np.concatenate(spreads), np.concatenate(weights)
    best, found = math.inf, (1.0, 0.5)
    for times in (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0):
        for apart in (0.2, 0.3, 0.4, 0.5, 0.6, 0.8):
            sigma = np.hypot(times * spread, apart)
            cost = float((weight * (np.log(sigma) + 0.5 * (missed / sigma) ** 2)).sum())
            if cost < best:
                best, found = cost, (times, apart)
    return found


def fit_factors(examples: Sequence[Example]) -> dict[str, Factor]:
    """What the suite makes of the beliefs: each kernel is one witness, and how far witnesses differ is the new doubt."""
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
        told = covariance @ pulled
        for place, name in enumerate(names):
            if covariance[place, place] < 0.8 / alone[place, place]:  # it has said something of this rule
                witnesses.setdefault(name, []).append((float(told[place]), float(covariance[place, place])))
    factors = {}
    for name, belief in BELIEFS.items():
        said = witnesses.get(name, [])
        # The belief counts like three witnesses.
        values = [belief.mean] * 3 + [value for value, _ in said]
        variances = [belief.sigma**2] * 3 + [variance for _, variance in said]
        mean = statistics.fmean(values)
        sigma = math.sqrt(statistics.fmean(v + (m - mean) ** 2 for m, v in zip(values, variances, strict=True)))
        factors[name] = Factor(round(max(0.0, mean), 4), round(sigma, 4))
    return factors


def _told(example: Example) -> Array:
    assert example.traits is not None  # noqa: S101  # for mypy: callers have sorted these out
    return example.traits
