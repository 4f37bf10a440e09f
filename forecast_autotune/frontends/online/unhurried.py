"""The policy and the compiler of the loop that learns a key: nobody waits for them, and they end with the process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager

from ...core.config import Config
from ...core.forecast import Abstention
from ...core.job import Compile, Measure, Stop, View
from ...core.outcome import Evidence, Failure
from ...measure.real_calls import LearningEndedError, RealCalls
from ...protocols import Compiler, Policy, without_limit
from ...tuning.policies import StoredOnly
from .at_work import at_work

SLOWDOWN_CAP = 16.0  # times the default's: an expected time beyond this counts as this


class RememberingPolicy:
    """A policy whose last view is remembered, so that what a candidate may cost is known before it is launched.

    Args:
        may_go_on: whether more configs may be tried; asked before each choice.
    """

    def __init__(self, may_go_on: Callable[[], bool] = lambda: True) -> None:
        self.policy: Policy = StoredOnly()
        self._may_go_on = may_go_on
        self._view: View | None = None

    def step(self, view: View) -> Compile | Measure | Stop:
        """What the policy says.

        Raises:
            LearningEndedError: nothing more is to be tried.
        """
        if not self._may_go_on():
            raise LearningEndedError
        self._view = view
        at_work.pause()
        return self.policy.step(view)

    def expected(self, config: Config) -> float | None:
        """A config's expected time as a multiple of the default's; None where it is not forecast."""
        view = self._view
        if view is None or config not in view.space:
            return None
        index = view.space.index(config)
        forecast = view.forecasts[index] if index < len(view.forecasts) else None
        return None if forecast is None or isinstance(forecast, Abstention) else forecast.expected_time(SLOWDOWN_CAP)


class InBackground:
    """A compiler for a thread that nobody waits for: other such threads work while it waits, and it ends with the process.

    A config that the compiler says will spill more registers than the default does is not tried on a real call.
    """

    overlaps_timing = True

    def __init__(self, compiler: Compiler, default: Config, calls: RealCalls) -> None:
        self._compiler = compiler
        self._default = default
        self._calls = calls
        self._spilled_by_default: int | None = None

    @property
    def workers(self) -> int:
        """See `Compiler`."""
        return self._compiler.workers

    def paused(self) -> AbstractContextManager[None]:
        """See `Compiler`: nothing is paused, for real calls take what the machine gives them."""
        return contextlib.nullcontext()

    def compile(
        self,
        configs: Iterable[Config],
        *,
        workers: int | None = None,
        on_wait: Callable[[float], float] = without_limit,
    ) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        """See `Compiler.compile`."""

        def waiting(waited_s: float) -> float:
            seconds = on_wait(waited_s)
            at_work.leave()
            return seconds

        building = self._compiler.compile(configs, workers=workers, on_wait=waiting)
        with contextlib.closing(building):
            while True:
                try:
                    built = next(building, None)
                finally:
                    at_work.enter()
                if self._calls.over:
                    raise LearningEndedError
                if built is None:
                    return
                yield built[0], self._worth(*built)

    def _worth(self, config: Config, built: Evidence | Failure) -> Evidence | Failure:
        if isinstance(built, Failure):
            return built
        if config == self._default:
            self._spilled_by_default = built.spill_bytes
        spilled, usual = built.spill_bytes or 0, self._spilled_by_default or 0
        if spilled <= usual:
            return built
        message = f"it spills {spilled} bytes of registers, the default {usual}: not tried in a real call"
        return Failure(stage="resources", message=message, cost_s=built.compile_s, transient=True)
