"""Timing through a benchmark function of Triton's making, or of the user's."""

from __future__ import annotations

import inspect as inspection
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..core.config import Config
from ..core.outcome import Failure, Measurement, Outcome

QUANTILES = (0.5, 0.2, 0.8)
MOST_SAMPLES = 50

_OF_THE_CONFIG = ("OutOfResources", "CompilationError", "PTXASError")
"""Triton's classes by name, so that nothing is imported; `CompileTimeAssertionFailure` is a `CompilationError`."""


def is_of_the_config(err: BaseException) -> bool:
    """Whether an error is the config's own doing, and would come again wherever it is compiled or launched alike."""
    return any(base.__name__ in _OF_THE_CONFIG for base in type(err).__mro__)


class Benchmarker:
    """Times launches with a benchmark function, in this process, as Triton's own autotuner does.

    One that takes `return_mode`, as Triton's own do, is asked for the time of every launch; any other, and each of a
    user's, for `QUANTILES`, of which the median is kept as the one sample: `quantiles_ms` holds all that it said.

    Args:
        launch: a config to the function that launches the kernel once under it, hooks included.
        do_bench: gives the benchmark function. That takes such a launch and returns milliseconds. Asked for it when a
            config is timed, since Triton's depends on the driver.
        inspect: looks at a config's outputs before it is timed and says what is wrong with them, or None.
        repeatable: whether timing again tells something new; a benchmark of the user's own is taken at its word.
    """

    def __init__(
        self,
        launch: Callable[[Config], Callable[[], None]],
        do_bench: Callable[[], Callable[..., Any]],
        *,
        inspect: Callable[[Config], str | None] | None = None,
        repeatable: bool = True,
    ) -> None:
        self._launch = launch
        self._do_bench = do_bench
        self._inspect = inspect
        self.repeatable = repeatable
        self.measured = 0
        self.quantiles_ms: dict[Config, list[float]] = {}

    def measure(self, config: Config) -> Outcome:
        """Time one config. A failure that is not the config's own, such as one in the caller's `grid`, is transient."""
        began = time.perf_counter()
        self.measured += 1

        def failure(stage: str, message: str, *, transient: bool = False) -> Failure:
            return Failure(stage=stage, message=message, cost_s=time.perf_counter() - began, transient=transient)

        try:
            if self._inspect is not None and (wrong := self._inspect(config)):
                return failure("check", wrong)
            times_ms = self._times_ms(config)
            measurement = Measurement(samples_us=tuple(t * 1e3 for t in times_ms), run_s=time.perf_counter() - began)
        except Exception as err:  # a compiler, a driver, a hook: whatever it is, another config may run
            stage = "resources" if type(err).__name__ == "OutOfResources" else "launch"
            return failure(stage, f"{type(err).__name__}: {err}", transient=not is_of_the_config(err))
        return measurement

    def _times_ms(self, config: Config) -> list[float]:
        call, do_bench = self._launch(config), self._do_bench()
        if self.repeatable and _takes_return_mode(do_bench):
            return thinned([float(t) for t in do_bench(call, return_mode="all")])
        told = do_bench(call, quantiles=QUANTILES)
        quantiles = [float(t) for t in told] if isinstance(told, (list, tuple)) else [float(told)]
        self.quantiles_ms[config] = quantiles
        return quantiles[:1]


def _takes_return_mode(do_bench: Callable[..., Any]) -> bool:
    """Whether a benchmark can say every time it took, as Triton's own: those of backends and of users may not."""
    try:
        return "return_mode" in inspection.signature(do_bench).parameters
    except (TypeError, ValueError):  # it has no signature that can be read
        return False


def thinned(times: Sequence[float], most: int = MOST_SAMPLES) -> list[float]:
    """At most so many of the times, evenly from the least to the greatest, in the order in which they came."""
    n = len(times)
    if n <= most:
        return list(times)
    ranked = sorted(range(n), key=times.__getitem__)
    return [times[i] for i in sorted(ranked[(2 * k + 1) * n // (2 * most)] for k in range(most))]
