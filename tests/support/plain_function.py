"""The smallest front door: a Python function of one tensor, with one knob. A pattern for a new one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from forecast_autotune.compilers.no_compile import NoCompiler
from forecast_autotune.core.cached_property import cached_property
from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.core.outcome import Failure
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Workload
from forecast_autotune.frontends.learnable_callable import LearnableCallable
from forecast_autotune.frontends.program_text.code_text import CodeText
from forecast_autotune.frontends.request import Request
from forecast_autotune.frontends.tuned_callable import Call, CallableDoor, TunedCallable
from forecast_autotune.measure.clocks import CpuClock, Launch
from forecast_autotune.measure.copies import CopiedArguments, Values
from forecast_autotune.measure.in_process import InProcess
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.protocols import Store


class Launcher:
    """Makes a call under a config."""

    def __init__(self, function: Callable[..., Any], config: Config) -> None:
        self.call = partial(function, **config.knobs)


class PlainTuning:
    """One call to decide for; see `Tuning`."""

    device = ""
    compiler = NoCompiler()

    def __init__(self, tuned: TunedFunction, call: Call) -> None:
        self._tuned, self._call = tuned, call
        self.default = tuned.launchers[tuned.space.default]

    @cached_property
    def job(self) -> Job:
        tuned, call = self._tuned, self._call
        return Job(
            workload=Workload(program=tuned.program, key={"size": call.values[0].numel()}),
            space=tuned.space,
            hardware=detect_hardware("cpu"),
            toolchain=Toolchain(versions={"plain": "1"}),
        )

    def measurer(self) -> InProcess:
        clock, args, launchers = CpuClock(), self._call.args, self._tuned.launchers

        def launch(config: Config, values: Values) -> Launch:
            return Launch(call=partial(launchers[config].call, *values[0]))

        return InProcess(
            name=self._tuned.full_name,
            default=self._tuned.space.default,
            check=None,
            launch=launch,
            clock=lambda config: clock,
            arguments=lambda: CopiedArguments(args),
        )

    def launcher(self, config: Config) -> Launcher:
        return self._tuned.launchers[config]

    def refused(self, config: Config, measurer: Any) -> Failure | None:
        return None

    def fallback(self, decision: Decision, *, measured_here: bool) -> tuple[Any, Config] | None:
        return None if measured_here else (self.default, self._tuned.space.default)

    def learnable(self) -> LearnableCallable:
        launchers = self._tuned.launchers
        return LearnableCallable(device="cpu", compiler=self.compiler, launcher=launchers.__getitem__, measurer=None)

    def tell_listeners(self, decision: Decision, store: Store, *, measured: int, seconds: float) -> None:
        pass


class PlainDoor(CallableDoor["TunedFunction"]):
    """The front door; see `FrontDoor`."""

    def default(self, call: Call) -> Launcher:
        return self._tuned.launchers[self._tuned.space.default]

    def tuning(self, call: Call, request: Request) -> PlainTuning:
        return PlainTuning(self._tuned, call)


class TunedFunction(TunedCallable):
    """A function of one tensor and the knobs of a space; its key is the tensor's size."""

    def __init__(self, function: Callable[..., Any], space: Space) -> None:
        self.space = space
        self.launchers = {config: Launcher(function, config) for config in space}
        self.program = CodeText([function]).program(function.__name__)
        super().__init__(
            PlainDoor(self),
            name=function.__name__,
            full_name=function.__name__,
            key=lambda x: x.numel(),
            names=["x"],
            default_budget="16",
        )

    def __call__(self, x: Any) -> Any:
        return self._make_call((x,), (x,), {})
