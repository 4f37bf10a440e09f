"""What a store's rows stand for: records that its statements write and read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..core.config import Config
from ..core.decision import Decision
from ..core.digest import digest
from ..core.forecast import Abstention, Forecast
from ..core.hardware import Hardware, Toolchain
from ..core.job import Job, Recording
from ..core.outcome import Outcome
from ..core.workload import Workload
from ..errors import InvalidInputError
from .encoding import from_text

FAR_FUTURE = 32_503_680_000.0
"""The year 3000: a time after it is a damaged one, not that of a clock set wrong."""

Ids = tuple[int | None, int | None, int | None]
"""A workload's, a hardware's and a toolchain's row; None: the store has none, and no row of another table refers to it."""

Complain = Callable[[str], None]
"""Gets what is wrong with each row that does not decode; the row is skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningKey:
    """A workload on one hardware under one toolchain: what outcomes and decisions belong to."""

    workload: Workload
    hardware: Hardware
    toolchain: Toolchain

    @classmethod
    def of(cls, known: Job | Recording) -> TuningKey:
        """That of a job, or of a recording."""
        return cls(workload=known.workload, hardware=known.hardware, toolchain=known.toolchain)

    @property
    def digests(self) -> tuple[str, str, str]:
        """Digests of the workload, the hardware and the toolchain."""
        return self.workload.digest, self.hardware.digest, self.toolchain.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOutcome:
    """An outcome with its config, the run it belongs to, the forecast that preceded it, and the config's static features."""

    config: Config
    outcome: Outcome
    forecast: Forecast | Abstention | None
    default: Config
    run: str
    recorded_at: float  # seconds since the epoch
    static_features: Mapping[str, float] = field(default_factory=dict)  # see `Job.static_features`


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision with where it holds, and since when it does not any more."""

    id: int
    tuning_key: TuningKey
    decision: Decision
    superseded_at: float | None = None
    hits: int = 0
    hit_at: float | None = None

    @property
    def digest(self) -> str:
        """The same for a decision and those it superseded."""
        return decision_digest(self.tuning_key, self.decision.space_digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """A stored decision for a job, with what counting the recall needs."""

    id: int
    decision: Decision
    noted_at: float  # when the store last heard that this decision is in use


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A key met where measuring was not allowed."""

    tuning_key: TuningKey
    space: str  # its digest
    space_size: int
    why: str
    noted_at: float  # seconds since the epoch
    met_at: float
    met: int = 1  # by so many processes

    @property
    def digest(self) -> str:
        """That of the decision which is missing."""
        return decision_digest(self.tuning_key, self.space)


def decision_digest(tuning_key: TuningKey, space_digest: str) -> str:
    """What identifies a decision: where it holds, and the space it chose from."""
    return digest(*tuning_key.digests, space_digest)


def now() -> float:
    """Seconds since the epoch."""
    return time.time()


def is_stored(text: object, decode: Callable[[object], object], noun: object) -> bool:
    """Whether a row's text decodes to a noun: earlier versions wrote fields that are left out now."""
    try:
        return decode(from_text(text, "it")) == noun
    except InvalidInputError:
        return False
