"""What is known of kernels at large: a fitted model, kept as text, of what launches and knobs do to a kernel's time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.file_format import FileFormat
from ..core.hardware import WARP_SIZE
from ..core.job import Job
from ..core.model_names import is_model_version, model_version
from ..errors import InvalidInputError
from .static_features import LAUNCH_FEATURES, launch_features, role_features

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SHIPPED = Path(__file__).with_name("prior.json")
FORMAT = FileFormat(schema="forecast_autotune.prior", version=1)
REMEDY = "run 'make fit', or install the package again"
LEAST_DESCRIBED = 0.5  # share of a space's configs whose launches must be described for the trees to be used

MOSTLY_DESCRIBED = 0.7  # beyond this share, a config is not described because its variant refuses it
REFUSED_FAILS = 0.97  # such configs fail: all 400 of them did on the suite's Triton kernels
DESCRIBED_FAILS = 0.005  # and of 16,500 that were described, 4

FULL_WARPS = 3  # octaves above a warp, 256 threads: enough in flight to hide most latency
LARGE_BLOCK = 9  # 512 threads: beyond, few blocks fit a unit side by side
LITTLE_WORK, MUCH_WORK = 2, 4  # log2 of elements for each thread
WIDE_LOAD = 2  # log2 of elements in one load

BLOCK = 256  # configs that walk the trees together: 10,000 take 0.22 s, all at once 0.37 (one core of an EPYC)


@dataclass(frozen=True, slots=True)
class Factor:
    """How many octaves slower a config gets for each unit of a rule, and how far off that may be."""

    mean: float
    sigma: float


@dataclass(frozen=True, slots=True)
class LaunchForecast:
    """What a model expects of a space's configs, from what their launches do.

    Attributes:
        mean, sigma: of log2 speed-up, up to a constant; shape `(configs,)`.
        fail: chance of failing, shape `(configs,)`.
        members: what each member of the model expects: log2 of time, up to a constant; shape `(members, configs)`.
        features: what it was told; shape `(configs, len(LAUNCH_FEATURES))`.
        known: which configs are described; shape `(configs,)`.
    """

    mean: Array
    sigma: Array
    fail: Array
    members: Array
    features: Array
    known: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Prior:
    """A fitted model: trees over what launches do, factors for the rules of thumb over knobs' roles.

    The trees' mean is the expected log2 of time within a space, up to a constant; `sigma`, per config, follows from how far
    the trees disagree, each of which saw other kernels.

    Attributes:
        fitted_on: the kernels whose measurements it was fitted on.
        feature, threshold, left, right, value: a row for each tree, a column for each node: where the feature numbered
            `feature` is at most the threshold, go to `left`, else to `right`; a leaf has a feature of -1.
        spread: sigma is `spread[0]` x the trees' standard deviation, and `spread[1]` apart from that.
        factors: by the name of a rule.
        version: what tells it from every other model that was written: how many kernels it was fitted on, and the digest of
            its file; empty for one that was not read from a file.
    """

    fitted_on: tuple[str, ...]
    feature: NDArray[np.intp] = field(repr=False)
    threshold: Array = field(repr=False)
    left: NDArray[np.intp] = field(repr=False)
    right: NDArray[np.intp] = field(repr=False)
    value: Array = field(repr=False)
    spread: tuple[float, float]
    factors: Mapping[str, Factor]
    version: str = ""

    def of_launches(self, described: Sequence[Mapping[str, float]], job: Job) -> LaunchForecast | None:
        """What the trees expect of each config, from what its launch does.

        Args:
            described: of each config, as `Job.static_features`. Where it has `asked`, a config that nobody asked about is
                taken to fail as often as the others do.
            job: whose hardware counts.
        Returns:
            None where too few launches are described.
        """
        import numpy as np

        known = np.array([bool(d) for d in described])
        if not self.feature.size or known.sum() < max(1.0, LEAST_DESCRIBED * len(described)):
            return None
        features = launch_features(described, job.hardware)
        expected = self.members(features)
        mean, spread = expected.mean(axis=0), expected.std(axis=0)
        asked = np.array(getattr(described, "asked", True)) | known
        share = float(known.sum() / asked.sum())
        refused = REFUSED_FAILS if share >= MOSTLY_DESCRIBED else DESCRIBED_FAILS
        fail = np.where(
            known, DESCRIBED_FAILS, np.where(asked, refused, share * DESCRIBED_FAILS + (1.0 - share) * refused)
        )
        sigma = np.hypot(self.spread[0] * spread, self.spread[1])
        return LaunchForecast(-mean, sigma, fail, expected, features, known)

    def members(self, features: Array) -> Array:
        """What each member of the model expects: log2 of time, up to a constant; the model's mean is that over members.

        Args:
            features: shape `(configs, len(LAUNCH_FEATURES))`.
        Returns:
            shape `(members, configs)`.
        """
        expected: Array = self.each_tree(features).T
        return expected

    def each_tree(self, features: Array) -> Array:
        """What each tree expects: log2 of time, up to a constant.

        Args:
            features: shape `(configs, len(LAUNCH_FEATURES))`.
        Returns:
            shape `(configs, trees)`.
        """
        import numpy as np

        trees, most = self.feature.shape
        feature, threshold, value = self.feature.ravel(), self.threshold.ravel(), self.value.ravel()
        first = np.arange(trees) * most  # of each tree's nodes, when all stand in one row
        children = np.stack([self.right + first[:, None], self.left + first[:, None]], axis=-1).ravel()
        expected = np.empty((len(features), trees))
        for start in range(0, len(features), BLOCK):
            rows = features[start : start + BLOCK]
            node = np.tile(first, len(rows))
            of_row = np.repeat(np.arange(len(rows)) * rows.shape[1], trees)
            walking = np.flatnonzero(feature[node] >= 0)
            while walking.size:
                at = node[walking]
                goes_left = rows.ravel()[of_row[walking] + feature[at]] <= threshold[at]
                at = children[2 * at + goes_left]
                node[walking] = at
                walking = walking[feature[at] >= 0]
            expected[start : start + BLOCK] = value[node].reshape(len(rows), trees)
        return expected


RULES = ("idle_lanes", "few_threads", "large_block", "ragged", "scattered", "little_work", "much_work", "narrow_load")
"""Rules of thumb over knobs' roles; see `rules`."""


def rules(job: Job) -> dict[str, Array]:
    """How far each config breaks each rule of thumb that its knobs' roles bear on, mostly in octaves; 0 where it keeps it.

    Lanes of a warp without a thread; fewer threads than hide latency; blocks so large that few fit; threads that are no
    whole number of warps; neighbouring threads that do not lie along the first axis, so that their loads are scattered;
    too little or too much work for each thread; loads narrower than the hardware's (CUDA C++ Best Practices Guide, chapters
    on memory and execution configuration optimisations). None bears on a CPU, whose threads make no warps.

    Returns:
        arrays of shape `(configs,)` by a name of `RULES`; those that do not tell the job's configs apart are left out.
    """
    import numpy as np

    if job.hardware.kind == "cpu":
        return {}

    features = role_features(job)
    warp = math.log2(job.hardware.warp_size if job.hardware.warp_size > 1 else WARP_SIZE)
    broken: dict[str, Array] = {}
    if features.threads is not None:
        broken["idle_lanes"] = np.maximum(0.0, warp - features.threads)
        broken["few_threads"] = np.maximum(0.0, warp + FULL_WARPS - np.maximum(warp, features.threads))
        broken["large_block"] = np.maximum(0.0, features.threads - LARGE_BLOCK)
    if features.ragged is not None:
        broken["ragged"] = features.ragged
    if features.across is not None:
        broken["scattered"] = np.maximum(0.0, warp - 1 - features.across)
    if features.work is not None:
        broken["little_work"] = np.maximum(0.0, LITTLE_WORK - features.work)
        broken["much_work"] = np.maximum(0.0, features.work - MUCH_WORK)
    if features.vector is not None:
        broken["narrow_load"] = np.maximum(0.0, WIDE_LOAD - features.vector)
    return {name: column for name, column in broken.items() if np.ptp(column) > 0}


def prior_text(prior: Prior, *, card: Mapping[str, object]) -> str:
    """A model as JSON text, with a card for people: data, splits, scores."""
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
        **FORMAT.header,
        "card": dict(card),
        "fitted_on": list(prior.fitted_on),
        "traits": list(LAUNCH_FEATURES),
        "spread": list(prior.spread),
        "factors": {name: [f.mean, f.sigma] for name, f in prior.factors.items()},
        "trees": trees,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _reached(prior: Prior, tree: int) -> slice:
    """The nodes of a tree; rows are filled up to the longest."""
    return slice(0, 1 + max(0, int(prior.left[tree].max()), int(prior.right[tree].max())))


def read_prior(path: Path) -> Prior:
    """Read a model.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no model, of another version, or damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise InvalidInputError(f"{path} is no model ({err}): {REMEDY}") from None
    if not isinstance(document, dict):
        raise InvalidInputError(f"{path} is no model: {REMEDY}")
    FORMAT.check(document, path, accepted=REMEDY, remedy=REMEDY)
    if document.get("traits") != list(LAUNCH_FEATURES):
        raise InvalidInputError(
            f"{path} is a model of other features than the {len(LAUNCH_FEATURES)} of this forecast_autotune: {REMEDY}"
        )
    try:
        spread, factors, kernels = document["spread"], document["factors"], document["fitted_on"]
        if not isinstance(kernels, list) or not all(isinstance(name, str) for name in kernels):
            raise ValueError("fitted_on holds names of kernels")
        prior = Prior(
            tuple(kernels),
            **_read_trees(document["trees"]),
            spread=(float(spread[0]), float(spread[1])),
            factors={str(name): Factor(float(mean), float(sigma)) for name, (mean, sigma) in factors.items()},
            version=model_version(len(kernels), text),
        )
        if not (0 <= prior.spread[0] < math.inf and 0 < prior.spread[1] < math.inf):
            raise ValueError(f"spread is {spread}")
        if not all(math.isfinite(f.mean) and 0 <= f.sigma < math.inf for f in prior.factors.values()):
            raise ValueError("a factor is no bell")
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as err:
        raise InvalidInputError(f"{path} is damaged ({err!r}): {REMEDY}") from None
    return prior


def _read_trees(trees: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, NDArray[Any]]:
    """The trees as tables, a row each, filled up with leaves to the longest.

    Raises:
        ValueError, KeyError, TypeError: one is no tree.
    """
    import numpy as np

    most = max((len(tree["feature"]) for tree in trees), default=0)
    tables: dict[str, NDArray[Any]] = {
        name: np.full((len(trees), most), fill, dtype=kind) for name, (kind, fill) in _COLUMNS.items()
    }
    for number, tree in enumerate(trees):
        size = len(tree["feature"])
        for name, table in tables.items():
            column = np.asarray(tree[name])
            if column.shape != (size,) or not size:
                raise ValueError(f"tree {number} has {size} nodes, and a {name} of shape {column.shape}")
            if column.dtype.kind not in ("i" if table.dtype.kind == "i" else "if") or not np.isfinite(column).all():
                raise ValueError(f"tree {number} has a {name} that is no number")
            table[number, :size] = column
        places, inner = np.arange(size), tables["feature"][number, :size] >= 0
        for name in ("left", "right"):
            child = tables[name][number, :size]
            # A child stands behind its parent, so that every walk ends.
            if (inner & ((child <= places) | (child >= size))).any():
                raise ValueError(f"tree {number} points out of itself or back")
    if (tables["feature"] >= len(LAUNCH_FEATURES)).any():
        raise ValueError("a tree asks for a feature that is not there")
    return tables


_COLUMNS: dict[str, tuple[type, float]] = {
    "feature": (int, -1),
    "threshold": (float, 0.0),
    "left": (int, 0),
    "right": (int, 0),
    "value": (float, 0.0),
}


def shipped_prior() -> Prior:
    """The model that comes with the package, read once.

    Raises:
        OSError, InvalidInputError: as `read_prior`, each time it is asked for.
    """
    result = _shipped()
    if isinstance(result, Exception):
        raise result.with_traceback(None)
    return result


def held_prior(held: str) -> Prior:
    """The model that setting `MODEL` holds, read once.

    Args:
        held: a version, which must be that of the shipped model, or the path of a model's file.
    Raises:
        OSError, InvalidInputError: as `read_prior`; or the version is not the shipped one's.
    """
    result = _held(held)
    if isinstance(result, Exception):
        raise result.with_traceback(None)
    return result


@cache
def _held(held: str) -> Prior | OSError | InvalidInputError:
    try:
        if not is_model_version(held):
            return read_prior(Path(held))
        if (shipped := shipped_prior()).version == held:
            return shipped
    except (OSError, InvalidInputError) as err:
        return err
    return InvalidInputError(
        f"the model {held} is not here, this forecast_autotune has {shipped.version}: give the path of a file that holds "
        f"{held} (the {SHIPPED.name} of the version that had it), or name {shipped.version}"
    )


@cache
def _shipped() -> Prior | OSError | InvalidInputError:
    try:
        return read_prior(SHIPPED)
    except (OSError, InvalidInputError) as err:
        return err
