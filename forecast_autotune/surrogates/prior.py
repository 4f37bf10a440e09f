"""What is known of kernels at large: a fitted model, kept as text, of what launches and knobs do to a kernel's time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.file_format import FileFormat
from ..core.hardware import WARP_SIZE
from ..core.job import Job
from ..core.model_names import is_model_version, model_version
from ..core.text import error_text, shown
from ..errors import InvalidInputError
from ..features.forecast_columns import median
from ..settings import PREFIX
from .feature_columns import LAUNCH_FEATURES, launch_columns, role_features
from .networks import Networks, packed_networks, read_networks
from .packed_numbers import packed, unpacked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SHIPPED = Path(__file__).with_name("prior.json")
PRODUCTS = Path(__file__).with_name("products.json")  # of Inductor's candidates for matrix products
FP8_PRODUCTS = Path(__file__).with_name("products_fp8.json")  # and for those of fp8
# Version 2 holds trees alone, 3 knows no CUDA.
FORMAT = FileFormat(schema="forecast_autotune.prior", version=4, reads_too=(2, 3))
REMEDY = "run 'make fit', or install the package again"
MIN_DESCRIBED = 0.5  # share of a space's configs whose launches must be described for the trees to be used

MOSTLY_DESCRIBED = 0.7  # beyond this share, a config is not described because its variant refuses it
REFUSED_FAILS = 0.97  # such configs fail: all 400 of them did on the suite's Triton kernels
DESCRIBED_FAILS = 0.005  # and of 16,500 that were described, 4
OVERFULL_FAILS = 0.5  # and of those whose description asks for more shared memory than there is, 45 of 94

FULL_WARPS = 3  # octaves above a warp, 256 threads: enough in flight to hide most latency
LARGE_BLOCK = 9  # 512 threads: beyond, few blocks fit a unit side by side
LITTLE_WORK, MUCH_WORK = 2, 4  # log2 of elements for each thread
WIDE_LOAD = 2  # log2 of elements in one load

WIDTHS = (-3.0, 2.0)  # log of sigma: 0.05 to 7.4 octaves

BLOCK = 256  # configs that walk the trees together: 10,000 take 0.22 s, all at once 0.37 (one core of an EPYC)


@dataclass(frozen=True, slots=True)
class Factor:
    """How many octaves slower a config gets for each unit of a rule, and how far off that may be."""

    mean: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Width:
    """How wide forecasts are, as leaving kernels out has shown: sigma in octaves as a product of powers.

    Forecasts are less certain in a space whose configs are expected to differ much, for a config that trees disagree about,
    and for one far from the middle of its space.

    Attributes:
        constant: log of sigma where all below is 1.
        disagreement: power of the standard deviation among members, for a config.
        space: power of the standard deviation of what is expected, over a space.
        distance: power of how far a config's expected time is from the space's median.
    """

    constant: float
    disagreement: float = 0.0
    space: float = 0.0
    distance: float = 0.0

    def sigma(self, expected: Array, disagreement: Array) -> Array:
        """Of each config, in octaves.

        Args:
            expected: log2 of time, shape `(configs,)`.
            disagreement: the members' standard deviation, shape `(configs,)`.
        """
        import numpy as np

        sigma: Array = np.exp(np.clip(width_columns(expected, disagreement) @ np.array(astuple(self)), *WIDTHS))
        return sigma


# Beyond these, an interval says nothing of its config. Fits found constants from -1.2 to 0.3 and powers from -0.4 to 2.8.
LEAST_WIDTH = Width(constant=-6.0, disagreement=-0.9, space=-0.9, distance=-0.9)
MOST_WIDTH = Width(constant=6.0, disagreement=6.0, space=6.0, distance=6.0)


def width_columns(expected: Array, disagreement: Array) -> Array:
    """What `Width` weights, in its order: shape `(configs, 4)`. Arguments as of `Width.sigma`."""
    import numpy as np

    columns = [
        np.ones_like(expected),
        np.log(disagreement + 0.1),
        np.full_like(expected, math.log(max(float(expected.std()), 0.03))),
        np.log(abs(expected - median(expected)) + 0.2),
    ]
    return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True)
class LaunchForecast:
    """What a model expects of a space's configs, from what their launches do.

    Attributes:
        mean, sigma: of log2 speed-up, up to a constant; shape `(configs,)`.
        fail: chance of failing, shape `(configs,)`.
        apart: how far the members of the model are from its mean, as of `ExpectedTimes`; shape `(members, configs)`.
        features: what it was told; shape `(configs, len(LAUNCH_FEATURES))`.
        known: which configs are described; shape `(configs,)`.
    """

    mean: Array
    sigma: Array
    fail: Array
    apart: Array
    features: Array
    known: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ExpectedTimes:
    """What a model expects of configs: log2 of time, up to a constant.

    Attributes:
        mean: over members, each with its weight; shape `(configs,)`.
        apart: each member's expectation less the mean, times the root of its weight; shape `(members, configs)`.
    """

    mean: Array
    apart: Array

    @property
    def disagreement(self) -> Array:
        """The members' standard deviation, shape `(configs,)`."""
        import numpy as np

        deviation: Array = np.sqrt((self.apart**2).sum(axis=0))
        return deviation


@dataclass(frozen=True, eq=False)
class Prior:
    """A fitted model: trees and networks over what launches do, factors for the rules of thumb over knobs' roles.

    The mean of the trees and that of the networks, half and half, is the expected log2 of time within a space, up to a
    constant. Each tree and each network saw other kernels: how far they disagree says, among other things, how far off they
    may be.

    Attributes:
        fitted_on: the kernels whose measurements it was fitted on.
        feature, threshold, left, right, value: a row for each tree, a column for each node: where the feature numbered
            `feature` is at most the threshold, go to `left`, else to `right`; a leaf has a feature of -1.
        networks: small neural networks over the same features; None for a model of trees alone.
        width: how wide forecasts are.
        factors: by the name of a rule.
        cuda: what forecasts launches of CUDA sources: a model of its own, fitted on Triton's kernels and on CUDA's. The
            trees above are fitted on Triton's alone: with CUDA's among them they forecast some of Triton's worse. None where
            it knows of no CUDA.
        version: what tells it from every other model that was written: how many kernels it was fitted on, and the digest of
            its file; empty for one that was not read from a file.
        card: what its file says for people: data, splits, scores.
    """

    fitted_on: tuple[str, ...]
    feature: NDArray[np.intp] = field(repr=False)
    threshold: Array = field(repr=False)
    left: NDArray[np.intp] = field(repr=False)
    right: NDArray[np.intp] = field(repr=False)
    value: Array = field(repr=False)
    width: Width
    factors: Mapping[str, Factor]
    networks: Networks | None = field(default=None, repr=False)
    cuda: Prior | None = field(default=None, repr=False)
    version: str = ""
    card: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def of_launches(self, static_features: Sequence[Mapping[str, float]], job: Job) -> LaunchForecast | None:
        """What trees and networks expect of each config, from what its launch does.

        Args:
            static_features: of each config, as `Job.static_features`. Where it has `asked`, a config that nobody asked
                about is taken to fail as often as the others do.
            job: whose hardware counts.
        Returns:
            None where too few launches are described.
        """
        import numpy as np

        if self.cuda is not None and job.workload.program.language == "cuda":
            return self.cuda.of_launches(static_features, job)
        known = np.array([bool(d) for d in static_features])
        if not self.feature.size or known.sum() < max(1.0, MIN_DESCRIBED * len(static_features)):
            return None
        features = launch_columns(static_features, job.hardware)
        expected = self.expected(features)
        mean, disagreement = expected.mean, expected.disagreement
        asked = np.array(getattr(static_features, "asked", True)) | known
        share = float(known.sum() / asked.sum())
        refused = REFUSED_FAILS if share >= MOSTLY_DESCRIBED else DESCRIBED_FAILS
        fail = np.where(
            known, DESCRIBED_FAILS, np.where(asked, refused, share * DESCRIBED_FAILS + (1.0 - share) * refused)
        )
        overfull = np.array(
            [max(d.get("shared_share", 0.0), d.get("register_share", 0.0)) > 1.0 for d in static_features]
        )
        fail[overfull] = np.maximum(fail[overfull], OVERFULL_FAILS)
        sigma = np.empty(len(static_features))
        sigma[known] = self.width.sigma(mean[known], disagreement[known])
        sigma[~known] = sigma[known].max()
        return LaunchForecast(-mean, sigma, fail, expected.apart, features, known)

    def expected(self, features: Array) -> ExpectedTimes:
        """What the model expects of configs, from their launches' features, shape `(configs, len(LAUNCH_FEATURES))`."""
        import numpy as np

        kinds = [self.each_tree(features).T]
        if self.networks is not None:
            kinds.append(self.networks.expected(features))
        mean = np.mean([of_kind.mean(axis=0) for of_kind in kinds], axis=0)
        apart = [(of_kind - mean) / math.sqrt(len(kinds) * len(of_kind)) for of_kind in kinds]
        return ExpectedTimes(mean, np.vstack(apart))

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
    """A model as JSON text, its numbers in base64, with a card for people: data, splits, scores.

    Raises:
        ValueError: of an inner node of a tree the left child does not stand right behind it.
    """
    document = {
        **FORMAT.header,
        "card": dict(card),
        "fitted_on": list(prior.fitted_on),
        "features": list(LAUNCH_FEATURES),
        "width": asdict(prior.width),
        "factors": {name: [f.mean, f.sigma] for name, f in prior.factors.items()},
        **_packed_members(prior),
        "cuda": None if prior.cuda is None else {"width": asdict(prior.cuda.width), **_packed_members(prior.cuda)},
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _packed_members(prior: Prior) -> dict[str, object]:
    return {
        "trees": _packed_trees(prior),
        "networks": None if prior.networks is None else packed_networks(prior.networks),
    }


_LEAF = 255  # stands for the feature of a leaf


def _packed_trees(prior: Prior) -> dict[str, object]:
    """The nodes of all trees one after the other; a number is an inner node's threshold or a leaf's value."""
    import numpy as np

    trees = range(prior.feature.shape[0])
    sizes = [1 + max(0, int(prior.left[t].max()), int(prior.right[t].max())) for t in trees]  # rows are filled up

    def row(table: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([table[t, : sizes[t]] for t in trees] or [np.zeros(0)])

    feature = row(prior.feature)
    inner = feature >= 0
    places = np.concatenate([np.arange(size) for size in sizes] or [np.arange(0)])
    if (row(prior.left)[inner] != places[inner] + 1).any():
        raise ValueError("of each inner node the left child stands right behind it")
    return {
        "nodes": sizes,
        "feature": packed(np.where(inner, feature, _LEAF), "u1"),
        "number": packed(np.where(inner, row(prior.threshold), row(prior.value)), "<f4"),
        "right": packed(np.where(inner, row(prior.right), 0), "<u2"),
    }


def read_prior(path: Path) -> Prior:
    """Read a model. One of fewer features than this version knows is read too, and one of trees alone.

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
    try:
        names, factors, kernels = document["features"], document["factors"], document["fitted_on"]
        if strange := set(names) - set(LAUNCH_FEATURES):
            raise InvalidInputError(
                f"{path} is a model of a feature that this forecast_autotune has not, {shown(min(strange))}: {REMEDY}"
            )
        if not isinstance(kernels, list) or not all(isinstance(name, str) for name in kernels):
            raise ValueError("fitted_on holds names of kernels")
        columns = [LAUNCH_FEATURES.index(name) for name in names]
        if document["version"] != FORMAT.version:
            document = {"networks": None, "cuda": None, **document}
        cuda = document["cuda"]
        prior = Prior(
            tuple(kernels),
            **_read_members(document, columns),
            factors={str(name): Factor(float(mean), float(sigma)) for name, (mean, sigma) in factors.items()},
            cuda=None if cuda is None else Prior(tuple(kernels), **_read_members(cuda, columns), factors={}),
            version=model_version(len(kernels), text),
            card=document["card"],
        )
        if not isinstance(prior.card, dict):
            raise ValueError("the card is no object")
        if not all(math.isfinite(f.mean) and 0 <= f.sigma < math.inf for f in prior.factors.values()):
            raise ValueError("a factor is no bell")
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as err:
        if isinstance(err, InvalidInputError):
            raise
        raise InvalidInputError(f"{path} is damaged ({err!r}): {REMEDY}") from None
    return prior


def _read_members(found: Mapping[str, Any], columns: Sequence[int]) -> dict[str, Any]:
    """Trees, networks and width.

    Args:
        columns: places among `LAUNCH_FEATURES` of the features that they ask for.
    Raises:
        ValueError, KeyError, TypeError: one is not what it should be.
    """
    networks = found["networks"]
    width = Width(**{name: float(value) for name, value in found["width"].items()})
    for name, value in asdict(width).items():
        least, most = getattr(LEAST_WIDTH, name), getattr(MOST_WIDTH, name)
        if not least <= value <= most:
            raise ValueError(f"the width's {name} is {value}: it lies from {least} to {most}")
    return {
        **_read_trees(found["trees"], columns),
        "networks": None if networks is None else read_networks(networks, columns),
        "width": width,
    }


def _read_trees(found: Mapping[str, Any], features: Sequence[int]) -> dict[str, NDArray[Any]]:
    """The trees as tables, a row each, filled up with leaves to the longest.

    Args:
        features: places among `LAUNCH_FEATURES` of those that the trees ask for.
    Raises:
        ValueError, KeyError, TypeError: one is no tree.
    """
    import numpy as np

    sizes = np.array(found["nodes"], dtype=int).reshape(-1)
    if (sizes < 1).any() or sizes.tolist() != found["nodes"]:
        raise ValueError("the trees' sizes are no counts")
    total, most = int(sizes.sum()), int(sizes.max(initial=0))
    feature = unpacked(found["feature"], "u1", total).astype(int)
    number = unpacked(found["number"], "<f4", total).astype(float)
    right = unpacked(found["right"], "<u2", total).astype(int)
    inner = feature != _LEAF
    if (feature[inner] >= len(features)).any():
        raise ValueError("a tree asks for a feature that is not there")
    filled = np.arange(most) < sizes[:, None]
    place = np.broadcast_to(np.arange(most), filled.shape)[filled]
    # A child stands behind its parent, so that every walk ends: the left one right behind it.
    if (inner & ((right <= place + 1) | (right >= np.repeat(sizes, sizes)))).any():
        raise ValueError("a tree points out of itself or back")

    def table(values: NDArray[Any], fill: float) -> NDArray[Any]:
        rows = np.full(filled.shape, fill, dtype=values.dtype)
        rows[filled] = values
        return rows

    return {
        "feature": table(np.where(inner, np.array([*features, -1])[np.minimum(feature, len(features))], -1), -1),
        "threshold": table(np.where(inner, number, 0.0), 0.0),
        "left": table(np.where(inner, place + 1, 0), 0),
        "right": table(np.where(inner, right, 0), 0),
        "value": table(np.where(inner, 0.0, number), 0.0),
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


@cache
def products_prior(*, fp8: bool = False) -> Prior:
    """The model of Inductor's candidates for matrix products, which knows what the vendor's library takes beside them.

    Args:
        fp8: the model of products of fp8: one of both is worse at either.
    Raises:
        OSError, InvalidInputError: as `read_prior`.
    """
    return read_prior(FP8_PRODUCTS if fp8 else PRODUCTS)


def held_prior(held: str) -> Prior:
    """The model that setting `MODEL` holds, read once.

    Args:
        held: a version, which must be that of the shipped model, or the path of a model's file.
    Raises:
        InvalidInputError: as `read_prior`, or the file cannot be read, or the version is not the shipped one's; names the
            setting.
    """
    result = _held(held)
    if isinstance(result, Exception):
        raise result.with_traceback(None)
    return result


@cache
def _held(held: str) -> Prior | InvalidInputError:
    try:
        return _read_held(held)
    except (OSError, InvalidInputError) as err:
        why = f"{PREFIX}MODEL={held}: {error_text(err)}"
        return InvalidInputError(f"{why}; name a model's file, or a version that is here, or unset it")


def _read_held(held: str) -> Prior:
    version = held if is_model_version(held) else Path(held).stem
    if is_model_version(version) and shipped_prior().version == version:
        return shipped_prior()
    if version == held:
        shipped = shipped_prior().version
        raise InvalidInputError(
            f"the model {held} is not here, this forecast_autotune has {shipped}: give the path of a file that holds "
            f"{held} (the {SHIPPED.name} of the version that had it), or name {shipped}"
        )
    prior = read_prior(Path(held))
    if is_model_version(version) and prior.version != version:
        raise InvalidInputError(f"{held} holds {prior.version}, which is not what its name says: remove it")
    return prior


@cache
def _shipped() -> Prior | OSError | InvalidInputError:
    try:
        return read_prior(SHIPPED)
    except (OSError, InvalidInputError) as err:
        return err
