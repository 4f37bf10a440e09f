"""What is known of kernels at large: a fitted model, kept as text, of what launches and knobs do to a kernel's time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.job import Job
from ..errors import InvalidInputError
from .traits import LAUNCH_TRAITS, WARP, launch_traits, role_traits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SHIPPED = Path(__file__).with_name("prior.json")
SCHEMA = "forecast_autotune.prior"
VERSION = 1
LEAST_DESCRIBED = 0.5  # share of a space's configs whose launches must be told for the trees to speak

MOSTLY_DESCRIBED = 0.7  # beyond this share, a config is not described because its variant refuses it
REFUSED_FAILS = 0.97  # such configs fail: all 400 of them did on the suite's Triton kernels
DESCRIBED_FAILS = 0.005  # and of 16,500 that were described, 4

FULL_WARPS = 3  # octaves above a warp, 256 threads: enough in flight to hide most latency
LARGE_BLOCK = 9  # 512 threads: beyond, few blocks fit a unit side by side
LITTLE_WORK, MUCH_WORK = 2, 4  # log2 of elements for each thread
WIDE_LOAD = 2  # log2 of elements in one load


@dataclass(frozen=True, slots=True)
class Factor:
    """How many octaves slower a config gets for each unit of a rule, and how far off that may be."""

    mean: float
    sigma: float


@dataclass(frozen=True)
class Prior:
    """A fitted model: trees over what launches do, factors for the rules of thumb over knobs' roles.

    The trees' mean is the expected log2 of time within a space, up to a constant; `sigma`, per config, follows from how far
    the trees disagree, each of which saw other kernels.

    Attributes:
        fitted_on: the kernels whose measurements it was fitted on.
        feature, threshold, left, right, value: a row for each tree, a column for each node: where the trait numbered
            `feature` is at most the threshold, go to `left`, else to `right`; a leaf has a feature of -1.
        spread: sigma is `spread[0]` x the trees' standard deviation, and `spread[1]` apart from that.
        factors: by the name of a rule.
    """

    fitted_on: tuple[str, ...]
    feature: NDArray[np.intp] = field(repr=False)
    threshold: Array = field(repr=False)
    left: NDArray[np.intp] = field(repr=False)
    right: NDArray[np.intp] = field(repr=False)
    value: Array = field(repr=False)
    spread: tuple[float, float]
    factors: Mapping[str, Factor]

    def of_launches(self, described: Sequence[Mapping[str, float]], job: Job) -> tuple[Array, Array, Array] | None:
        """Mean and sigma of log2 speed-up, up to a constant, and chance of failing, from what launches do.

        None where too few are told of.
        """
        import numpy as np

        told = np.array([bool(d) for d in described])
        if not self.feature.size or told.sum() < max(1.0, LEAST_DESCRIBED * len(described)):
            return None
        of_trees = self.each_tree(launch_traits(described, job.hardware))
        mean, spread = of_trees.mean(axis=1), of_trees.std(axis=1)
        refused = REFUSED_FAILS if told.mean() >= MOSTLY_DESCRIBED else DESCRIBED_FAILS
        fail = np.where(told, DESCRIBED_FAILS, refused)
        return -mean, np.hypot(self.spread[0] * spread, self.spread[1]), fail

    def each_tree(self, traits: Array) -> Array:
        """What each tree says: a row for each row of traits, a column for each tree."""
        import numpy as np

        tree = np.arange(self.feature.shape[0])[None, :]
        row = np.arange(traits.shape[0])[:, None]
        node = np.zeros((traits.shape[0], self.feature.shape[0]), dtype=np.intp)
        while True:
            feature = self.feature[tree, node]
            inner = feature >= 0
            if not inner.any():
                return np.asarray(self.value[tree, node], dtype=float)
            goes_left = traits[row, np.maximum(feature, 0)] <= self.threshold[tree, node]
            node = np.where(inner, np.where(goes_left, self.left[tree, node], self.right[tree, node]), node)


RULES = ("idle_lanes", "few_threads", "large_block", "ragged", "scattered", "little_work", "much_work", "narrow_load")
"""Rules of thumb over knobs' roles; see `rules`."""


def rules(job: Job) -> dict[str, Array]:
    """How far each config breaks each rule of thumb that its knobs' roles bear on, mostly in octaves; 0 where it keeps it.

    Lanes of a warp without a thread; fewer threads than hide latency; blocks so large that few fit; threads that are no
    whole number of warps; neighbouring threads that do not lie along the first axis, so that their loads are scattered;
    too little or too much work for each thread; loads narrower than the hardware's (CUDA C++ Best Practices Guide, chapters
    on memory and execution configuration optimisations).
    """
    import numpy as np

    traits = role_traits(job)
    warp = math.log2(job.hardware.warp_size if job.hardware.warp_size > 1 else WARP)
    found: dict[str, Array] = {}
    if traits.threads is not None:
        found["idle_lanes"] = np.maximum(0.0, warp - traits.threads)
        found["few_threads"] = np.maximum(0.0, warp + FULL_WARPS - np.maximum(warp, traits.threads))
        found["large_block"] = np.maximum(0.0, traits.threads - LARGE_BLOCK)
    if traits.ragged is not None:
        found["ragged"] = traits.ragged
    if traits.across is not None:
        found["scattered"] = np.maximum(0.0, warp - 1 - traits.across)
    if traits.work is not None:
        found["little_work"] = np.maximum(0.0, LITTLE_WORK - traits.work)
        found["much_work"] = np.maximum(0.0, traits.work - MUCH_WORK)
    if traits.vector is not None:
        found["narrow_load"] = np.maximum(0.0, WIDE_LOAD - traits.vector)
    return {name: column for name, column in found.items() if np.ptp(column) > 0}


def write_prior(prior: Prior, path: Path, *, card: Mapping[str, object]) -> None:
    """Write a model as JSON text, with a card for people: data, splits, scores."""
    trees = []
    for t in range(prior.feature.shape[0]):
        used = _reached(prior, t)
        trees.append(
            {
                "feature": prior.feature[t, used].tolist(),
                "threshold": [round(x, 4) for x in prior.threshold[t, used].tolist()],
                "left": prior.left[t, used].tolist(),
                "right": prior.right[t, used].tolist(),
                "value": [round(x, 4) for x in prior.value[t, used].tolist()],
            }
        )
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "card": dict(card),
        "fitted_on": list(prior.fitted_on),
        "traits": list(LAUNCH_TRAITS),
        "spread": list(prior.spread),
        "factors": {name: [f.mean, f.sigma] for name, f in prior.factors.items()},
        "trees": trees,
    }
    path.write_text(json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")


def _reached(prior: Prior, tree: int) -> slice:
    """The nodes of a tree; rows are filled up to the longest."""
    return slice(0, 1 + max(0, int(prior.left[tree].max()), int(prior.right[tree].max())))


def read_prior(path: Path) -> Prior:
    """Read a model.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no model, of another version, or damaged.
    """
    import numpy as np

    try:
        document = json.loads(path.read_text())
    except ValueError as err:
        raise InvalidInputError(f"{path} is no model ({err}): run 'make fit', or install the package again") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InvalidInputError(f"{path} is no model: run 'make fit', or install the package again")
    if document.get("version") != VERSION or document.get("traits") != list(LAUNCH_TRAITS):
        raise InvalidInputError(
            f"{path} is a model of version {document.get('version')!r} over {len(document.get('traits') or ())} traits, this "
            f"version of forecast_autotune reads {VERSION} over {len(LAUNCH_TRAITS)}: run 'make fit'"
        )
    try:
        trees = document["trees"]
        most = max((len(t["feature"]) for t in trees), default=0)
        arrays = {}
        for name, kind, fill in (
            ("feature", np.intp, -1),
            ("threshold", float, 0.0),
            ("left", np.intp, 0),
            ("right", np.intp, 0),
            ("value", float, 0.0),
        ):
            table = np.full((len(trees), most), fill, dtype=kind)
            for row, tree in zip(table, trees, strict=True):
                row[: len(tree[name])] = tree[name]
            arrays[name] = table
        # A child stands behind its parent, so that every walk ends.
        places = np.arange(most)[None, :]
        inner = arrays["feature"] >= 0
        bad = inner & ((arrays["left"] <= places) | (arrays["right"] <= places))
        if bad.any() or (arrays["feature"] >= len(LAUNCH_TRAITS)).any() or arrays["left"].max(initial=0) >= max(most, 1):
            raise InvalidInputError(f"{path} is damaged (a tree points out of itself): run 'make fit'")
        if arrays["right"].max(initial=0) >= max(most, 1) or not np.isfinite(arrays["value"]).all():
            raise InvalidInputError(f"{path} is damaged (a tree points out of itself): run 'make fit'")
        factors = {str(name): Factor(float(f[0]), float(f[1])) for name, f in document["factors"].items()}
        spread = (float(document["spread"][0]), float(document["spread"][1]))
        return Prior(tuple(map(str, document["fitted_on"])), **arrays, spread=spread, factors=factors)
    except (KeyError, TypeError, ValueError, IndexError) as err:
        raise InvalidInputError(f"{path} is damaged ({err!r}): run 'make fit', or install the package again") from None


@cache
def shipped_prior() -> Prior:
    """The model that comes with the package, read once."""
    return read_prior(SHIPPED)
