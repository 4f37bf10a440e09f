"""Budget: how much may still be spent on one key."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from ..errors import InvalidInputError

ACCEPTED = "a count (16), a share (10%), a time (2s, 500ms), 0, all, or two with a comma (16,30s)"


class Budget:
    """What one tuning run may spend: distinct configs tried, a share of the space, wall time; whichever ends first.

    A config that fails to compile or to run counts like one that was timed. Repeats of finalists count in time alone.

    Args:
        text: as in `FORECAST_AUTOTUNE_BUDGET`; see `ACCEPTED`.
        clock: seconds since any moment; a recorded run brings its own.
    Raises:
        InvalidInputError: the text does not parse.
    """

    def __init__(self, text: str | int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.text = str(text).strip().lower()
        self.clock = clock
        self.configs: int | None = None
        self.share: float | None = None
        self.seconds: float | None = None
        self.all = False
        self.tried = 0
        self._began: float | None = None
        for part in self.text.split(","):
            self._read(part.strip(), text)
        self.limit: int | None = self.configs

    def _read(self, part: str, whole: object) -> None:
        match = re.fullmatch(
            r"(\d{1,15}(?:\.\d{1,15})?)\s*(%|ms|s|min)?", part
        )  # no more of anything is there to be spent
        number = float(match[1]) if match else math.nan
        unit = match[2] if match else None
        if part == "all" and not self.all:
            self.all = True
        elif match and unit is None and number == int(number) and self.configs is None:
            self.configs = int(number)
        elif unit == "%" and 0 <= number <= 100 and self.share is None:
            self.share = number / 100
        elif unit in ("ms", "s", "min") and self.seconds is None:
            self.seconds = number * {"ms": 0.001, "s": 1.0, "min": 60.0}[unit]
        else:
            raise InvalidInputError(f"budget {whole!r} does not parse: accepted are {ACCEPTED}")

    def start(self, space_size: int) -> None:
        """Begin the run: the clock starts, and a share becomes a count (at least one config unless it is 0 %)."""
        self._began = self.clock()
        if self.share is not None:
            by_share = max(1, round(self.share * space_size)) if self.share > 0 else 0
            self.limit = by_share if self.configs is None else min(self.configs, by_share)

    @property
    def measures(self) -> bool:
        """Whether anything may be measured at all."""
        return self.configs != 0 and self.share != 0 and self.seconds != 0

    @property
    def configs_left(self) -> float:
        """How many configs may still be tried; infinite where no count was set."""
        return math.inf if self.limit is None else max(0, self.limit - self.tried)

    @property
    def spent_s(self) -> float:
        return 0.0 if self._began is None else self.clock() - self._began

    @property
    def seconds_left(self) -> float:
        return math.inf if self.seconds is None else max(0.0, self.seconds - self.spent_s)

    @property
    def exhausted(self) -> bool:
        return not self.measures or self.configs_left <= 0 or self.seconds_left <= 0

    def __str__(self) -> str:
        return self.text
