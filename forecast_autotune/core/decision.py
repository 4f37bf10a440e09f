"""Decision: the config chosen for a key, and everything needed to say why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import InvalidInputError
from .budget import BudgetLimits
from .config import Config
from .workload import Workload, key_parts

Basis = Literal["measured", "forecast", "default"]
BASES: tuple[str, ...] = get_args(Basis)

FIRST_RETRY_S = 0.05
"""How soon to look again for a decision that another process is coming to; the pauses may grow from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The config chosen for a workload on one kind of hardware.

    `basis` says what carries it: its own measurement, a forecast, or nothing better than the default. `equivalents` are
    configs whose times cannot be told apart from the chosen one's. `tried` and `compiled` count configs of this run, `known`
    those whose outcomes earlier runs had stored.

    Of the run's `spent_s` seconds it waited for `waiting_s` for compilers or other processes and timed for `timing_s`; in
    the rest it forecast, chose and stored. Compilers worked for `compiling_s`, all workers together. Where real calls were
    timed, candidates cost them `explored_s`, and those that were timed took `saved_s` less than under the default.
    """

    config: Config
    basis: Basis
    reason: str
    equivalents: tuple[Config, ...] = ()
    space_digest: str
    space_size: int
    budget: str
    forecast: int = 0  # configs forecast
    compiled: int = 0
    tried: int = 0  # distinct configs that were measured or failed
    failed: int = 0
    known: int = 0  # configs of the space; none of them counts as tried
    spent_s: float = 0.0
    waiting_s: float = 0.0
    compiling_s: float = 0.0
    timing_s: float = 0.0
    explored_s: float = 0.0
    saved_s: float = 0.0
    config_us: float | None = None  # median; None unless measured
    default_us: float | None = None
    run: str = ""
    decided_at: float = 0.0  # seconds since the epoch
    model: str = ""  # the version of the fitted model that forecast; empty where none did

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise InvalidInputError(f"basis {self.basis!r}: accepted are {', '.join(BASES)}")

    @property
    def rests_on_outcomes(self) -> bool:
        """Whether measuring had a say in it, in this run or an earlier one."""
        return self.basis == "measured" or self.tried > 0

    @property
    def awaits_measuring(self) -> bool:
        """Whether its run could measure nothing, so that one that may comes to a decision of its own."""
        if not self.rests_on_outcomes:
            return True
        try:
            return not BudgetLimits.parse(self.budget).measures
        except InvalidInputError:  # brought from elsewhere
            return False

    @property
    def none_ran(self) -> bool:
        """Whether configs were tried, and none of them ran."""
        return self.basis == "default" and 0 < self.tried == self.failed

    @property
    def ours_s(self) -> float:
        """The seconds in which the run neither waited nor timed: its own work."""
        return max(0.0, self.spent_s - self.waiting_s - self.timing_s)

    @property
    def timed_real_calls(self) -> bool:
        """Whether real calls were timed, which cost or saved something."""
        return self.explored_s > 0 or self.saved_s > 0

    @property
    def speedup(self) -> float | None:
        """Measured time of the default over that of the chosen config."""
        if self.config_us is None or self.default_us is None:
            return None
        return self.default_us / self.config_us

    def carried_over(self, decided: Workload, asked: Workload) -> Decision:
        """This decision for a workload that differs in its constexprs alone: its config, and nothing that was measured.

        One that measuring had no say in, and one for the workload itself, stays as it is.
        """
        if not self.rests_on_outcomes or decided.digest == asked.digest:
            return self
        constexprs = ", ".join(f"{name}={value}" for name, value in key_parts(decided.constexprs).items())
        return Decision(
            config=self.config,
            basis="default" if self.basis == "default" else "forecast",
            reason=f"decided for {constexprs or 'no constexprs'}; nothing is measured for this key",
            space_digest=self.space_digest,
            space_size=self.space_size,
            budget="0",
            decided_at=self.decided_at,
        )


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a call runs now, and whether to ask again at a later call of its key.

    `retry_after_s` is None where the decision holds. Otherwise another process is tuning the key, and the decision is the
    best that is known meanwhile: run it, wait for nobody, and ask again so many seconds later at the earliest.
    """

    decision: Decision
    retry_after_s: float | None = None
