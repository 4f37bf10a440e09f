"""Budget: how much may still be spent on one key, and by the whole process."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import InvalidInputError
from .forks import after_fork_in_child

ACCEPTED = (
    "a count (16), a share (10%), a time (2s, 500ms, 1min), 0, all, or several with commas (16,30s); and a time for all "
    "keys of the process (total=120s), alone or with the others (16,30s,total=120s)"
)

_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0}

_IN_WORDS = {
    "configs": "the limit on configs",
    "share": "the share of configs",
    "seconds": "the time of a key",
    "total_seconds": "the time of the process",
    "all": "all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """What a budget's text says: limits for each key, and one for all keys of a process; None where it sets none."""

    text: str
    configs: int | None = None
    share: float | None = None
    seconds: float | None = None
    all: bool = False
    total_seconds: float | None = None

    @classmethod
    def parse(cls, text: str | int) -> BudgetLimits:
        """Read a text as in `FORECAST_AUTOTUNE_BUDGET`; see `ACCEPTED`.

        Raises:
            InvalidInputError: it does not parse, or names a limit twice.
        """
        limits: dict[str, int | float | bool] = {}
        plain = str(text).strip().lower()
        for part in plain.split(","):
            name, value = _read(part.strip())
            if not name:
                raise InvalidInputError(f"budget {text!r} does not parse: accepted are {ACCEPTED}")
            if name in limits:
                raise InvalidInputError(
                    f"budget {text!r} names {_IN_WORDS[name]} twice: give it once; accepted are {ACCEPTED}"
                )
            limits[name] = value
        return cls(text=plain, **limits)  # type: ignore[arg-type]

    @property
    def measures(self) -> bool:
        """Whether anything may be measured at all."""
        return self.configs != 0 and self.share != 0 and self.seconds != 0 and self.total_seconds != 0

    def with_key_limits_of(self, other: BudgetLimits) -> BudgetLimits:
        """These limits; where they are for the whole process alone, with the other's for each key."""
        if self.total_seconds is None or "," in self.text:
            return self
        return BudgetLimits.parse(",".join([*other._parts_for_a_key(), self.text]))

    def without_total(self) -> BudgetLimits:
        """The limits for each key alone; no limit, where there is none but the one for the whole process."""
        return (
            BudgetLimits.parse(",".join(self._parts_for_a_key()) or "all") if self.total_seconds is not None else self
        )

    def of_configs(self, otherwise: int) -> BudgetLimits:
        """What limits how many configs of a key are tried, without limits of time; so many where there is no such limit."""
        parts = [p for p in self.text.split(",") if not {"seconds", "total_seconds"} & {_read(p.strip())[0]}]
        return BudgetLimits.parse(",".join(parts) or otherwise)

    def _parts_for_a_key(self) -> list[str]:
        return [part for part in self.text.split(",") if not part.strip().startswith("total")]

    def __str__(self) -> str:
        return self.text


NOTHING = BudgetLimits(text="0", configs=0)
"""Nothing may be measured."""


def _read(part: str) -> tuple[str, int | float | bool]:
    """Which limit a part of a budget's text sets, and to what; an empty name where it is none."""
    if part == "all":
        return "all", True
    # No more digits: of nothing is there so much to be spent.
    match = re.fullmatch(r"(total\s*=\s*)?(\d{1,15}(?:\.\d{1,15})?)\s*(%|ms|s|min)?", part)
    if match is None:
        return "", 0
    total, number, unit = match[1], float(match[2]), match[3]
    if unit in _UNITS_S:
        return "total_seconds" if total else "seconds", number * _UNITS_S[unit]
    if not total and unit == "%" and number <= 100:
        return "share", number / 100
    if not total and unit is None and number == int(number):
        return "configs", int(number)
    return "", 0


class TotalSpent:
    """The wall time in which any tuning run was under way, of all threads that share this account.

    Runs at the same time, or one inside another, count once.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Start at nothing: in a new account, and in the child of a fork, whose parent's runs are not its own."""
        self._lock = threading.Lock()
        self._under_way = 0
        self._since = self._before_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """A tuning run is under way while this is held."""
        lock = self._lock  # in the child of a fork that leaves this block too, another one
        with lock:
            if self._under_way == 0:
                self._since = self._clock()
            self._under_way += 1
        try:
            yield
        finally:
            with lock:
                if lock is self._lock:
                    self._under_way -= 1
                    if self._under_way == 0:
                        self._before_s += self._clock() - self._since

    @property
    def seconds(self) -> float:
        """The account so far, in seconds, a run under way included."""
        with self._lock:
            return self._before_s + (self._clock() - self._since if self._under_way else 0.0)


PROCESS_TOTAL = TotalSpent()
"""What this process has spent on tuning."""
after_fork_in_child(PROCESS_TOTAL.reset)


class Budget:
    """What one tuning run may spend: distinct configs tried, a share of the space, wall time; whichever ends first.

    A config that fails to compile or to run counts like one that was timed. Repeats of finalists count in time alone.

    Args:
        limits: or a text that says them; see `BudgetLimits.parse`.
        clock: seconds since any moment; a recorded run brings its own.
        total: what the limit for the whole process is compared with; without it, what this run spends.
    Raises:
        InvalidInputError: the text does not parse.
    """

    def __init__(
        self,
        limits: BudgetLimits | str | int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        total: TotalSpent | None = None,
    ) -> None:
        self.limits = limits if isinstance(limits, BudgetLimits) else BudgetLimits.parse(limits)
        self.clock = clock
        self.total = TotalSpent(clock) if total is None else total
        self.tried = 0
        self.limit: int | None = self.limits.configs
        self._began: float | None = None

    def start(self, space_size: int) -> None:
        """Begin the run: the clock starts, and a share becomes a count (at least one config unless it is 0 %)."""
        self._began = self.clock()
        configs, share = self.limits.configs, self.limits.share
        if share is not None:
            by_share = max(1, round(share * space_size)) if share > 0 else 0
            self.limit = by_share if configs is None else min(configs, by_share)

    @property
    def measures(self) -> bool:
        """Whether anything may be measured at all."""
        return self.limits.measures

    @property
    def all(self) -> bool:
        """Whether every config is to be tried."""
        return self.limits.all

    @property
    def configs_left(self) -> float:
        """How many configs may still be tried; infinite where no count was set."""
        return math.inf if self.limit is None else max(0, self.limit - self.tried)

    @property
    def spent_s(self) -> float:
        """Wall time since `start`, in seconds; 0 before it."""
        return 0.0 if self._began is None else self.clock() - self._began

    @property
    def total_left_s(self) -> float:
        """What the whole process may still spend; infinite where that has no limit."""
        limit = self.limits.total_seconds
        return math.inf if limit is None else max(0.0, limit - self.total.seconds)

    @property
    def seconds_left(self) -> float:
        """Of the key's seconds and the process's, whichever end first."""
        seconds = self.limits.seconds
        return min(self.total_left_s, math.inf if seconds is None else max(0.0, seconds - self.spent_s))

    @property
    def exhausted(self) -> bool:
        """Whether nothing more may be tried."""
        return not self.measures or self.configs_left <= 0 or self.seconds_left <= 0

    def __str__(self) -> str:
        return self.limits.text
