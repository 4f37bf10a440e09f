"""Timing through a benchmark function of Triton's making, or of the user's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..core.config import Config
from ..core.outcome import Failure, Measurement, Outcome

QUANTILES = (0.5, 0.2, 0.8)


class Benchmarker:
    """Times launches with `do_bench(call, quantiles=…)`, in this process, as Triton's own autotuner does.

    Args:
        launch: a config to the function that launches the kernel once under it, hooks included.
        do_bench: takes such a function, returns milliseconds: one number, or one for each quantile.
        inspect: looks at a config's outputs before it is timed and says what is wrong with them, or None.
        repeatable: whether timing again tells something new; a benchmark of the user's own is taken at its word.
    """

    def __init__(
        self,
        launch: Callable[[Config], Callable[[], None]],
        do_bench: Callable[..., Any],
        *,
        inspect: Callable[[Config], str | None] | None = None,
        repeatable: bool = True,
    ) -> None:
        self._launch = launch
        self._do_bench = do_bench
        self._inspect = inspect
        self.repeatable = repeatable
        self.measured = 0

    def measure(self, config: Config) -> Outcome:
        began = time.perf_counter()
        self.measured += 1

        def failure(stage: str, message: str) -> Failure:
            return Failure(stage=stage, message=message, cost_s=time.perf_counter() - began)

        try:
            if self._inspect is not None and (wrong := self._inspect(config)):
                return failure("check", wrong)
            told = self._do_bench(self._launch(config), quantiles=QUANTILES)
            times_ms = [float(t) for t in told] if isinstance(told, (list, tuple)) else [float(told)]
            measurement = Measurement(samples_us=tuple(t * 1e3 for t in times_ms), run_s=time.perf_counter() - began)
        except Exception as err:  # a compiler, a driver, a hook: whatever it is, another config may run
            stage = "resources" if type(err).__name__ == "OutOfResources" else "launch"
            return failure(stage, f"{type(err).__name__}: {err}")
        return measurement
