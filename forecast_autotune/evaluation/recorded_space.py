"""A recorded space: what tuning runs are replayed on, forecasts scored on and models trained on."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..core.cached_property import cached_property
from ..core.config import Config
from ..core.forecast import bin_of
from ..core.job import Job, Recording
from ..core.outcome import Measurement, Outcome
from ..core.space import Space
from .traces import read_trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedSpace:
    """A space with the outcome of each of its configs.

    Configs go by their position in the space. The default is at 0, unless the recording has no outcome for it.

    Args:
        recording: outcomes of every config of the space.
        name: what reports call it; that of the trace's file, where there is one.
    """

    recording: Recording = field(repr=False)
    name: str = ""

    @property
    def kernel(self) -> str:
        """The program's name, without the module that an extension of the kernel suite has before it."""
        return self.recording.workload.program.name.rpartition(".")[2]

    @property
    def hardware(self) -> str:
        """The name of the hardware it was recorded on."""
        return self.recording.hardware.name

    @cached_property
    def space(self) -> Space:
        """The recorded configs, with the recording's default first."""
        outcomes, default = self.recording.outcomes, self.recording.default
        return Space(outcomes, default=default if default in outcomes else None)

    @cached_property
    def job(self) -> Job:
        """The tuning job that the recording is of."""
        of, space = self.recording, self.space
        return Job(
            workload=of.workload,
            space=space,
            hardware=of.hardware,
            toolchain=of.toolchain,
            static_features=[of.static_features.get(c, {}) for c in space] if of.static_features else (),
        )

    @cached_property
    def times_us(self) -> tuple[float, ...]:
        """The median time of each config, microseconds; infinite where it fails."""
        outcomes = (self.recording.outcomes[c] for c in self.space)
        return tuple(o.median_us if isinstance(o, Measurement) else math.inf for o in outcomes)

    @cached_property
    def best_us(self) -> float:
        """The least time of all configs, microseconds."""
        return min(self.times_us)

    @cached_property
    def log2_us(self) -> Array:
        """Log2 of the time of each config; infinite where it fails."""
        return log2_times(self.recording, self.space)

    @cached_property
    def median(self) -> int:
        """Position of the config with the median time, of those that ran."""
        import numpy as np

        ran = np.flatnonzero(np.isfinite(self.log2_us))
        return int(ran[np.argsort(self.log2_us[ran], kind="stable")[len(ran) // 2]])

    @property
    def default_slowdown(self) -> float:
        """The slowdown of the default config."""
        return self.slowdown(0)

    def slowdown(self, config: int) -> float:
        """Time of the config at a position over that of the best; infinite where it fails."""
        return self.times_us[config] / self.best_us

    def bins(self, reference: int) -> list[int]:
        """The bin of each config's speed-up over the config at a position, which ran; of a failure, the slowest bin."""
        return [bin_of(float(s)) for s in self.log2_us[reference] - self.log2_us]

    def sample(self, known: int, draw: int) -> dict[Config, Outcome]:
        """Outcomes to forecast the others from: the default's, since forecasts relate to it, and others at random.

        Args:
            known: how many outcomes, at most all.
            draw: number of the sample; the same number gives the same configs.
        """
        others = random.Random(f"{draw} {known}").sample(self.space[1:], min(max(0, known - 1), len(self.space) - 1))
        return {c: self.recording.outcomes[c] for c in [self.space.default, *others][:known]}


@lru_cache(maxsize=128)
def read_space(path: Path) -> RecordedSpace:
    """The recorded space in a trace, read once for each path.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no trace.
    """
    space = RecordedSpace(recording=read_trace(path), name=path.name)
    # Traces stay for good: visiting them at each full collection made building forecasts 1.5 times slower (eight traces).
    gc.freeze()
    return space


def log2_times(recording: Recording, space: Space) -> Array:
    """Log2 of the time of each config of a space: infinite where it fails, NaN where it was not recorded."""
    import numpy as np

    outcomes: Mapping[Config, Outcome] = recording.outcomes

    def one(outcome: Outcome | None) -> float:
        if outcome is None:
            return math.nan
        return math.log2(outcome.median_us) if isinstance(outcome, Measurement) else math.inf

    return np.array([one(outcomes.get(c)) for c in space])
