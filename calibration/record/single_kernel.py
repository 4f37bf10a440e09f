"""A Triton kernel of one function as it is recorded: called as users call it, its whole list measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernel_suite import Call, Case, TritonKernel
from kernel_suite.triton_kernel import triton_configs

from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.job import Job
from forecast_autotune.core.outcome import Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Program, Work
from forecast_autotune.errors import InvalidInputError

from .measuring import TIMED_MS, Silent


class SingleKernel:
    """A `TritonKernel` in the form that recording takes: the arguments of a call are the `Call` alone."""

    def __init__(self, kernel: TritonKernel) -> None:
        self.kernel = kernel
        self.name = kernel.name
        self.space: Space = kernel.space
        self.cases: tuple[Case, ...] = kernel.cases
        self.rtol, self.atol = kernel.rtol, kernel.atol

    def make_inputs(self, case: Case, seed: int, device: str) -> tuple[Call]:
        """The call of a case."""
        return (self.kernel.make_call(case, seed, device),)

    def reference(self, call: Call) -> tuple[Any, ...]:
        """What each output should hold after the call; asked before it."""
        return self.kernel.reference(call)

    def work(self, call: Call) -> Work:
        """What the call has to do."""
        return self.kernel.work(call)

    def outs(self, call: Call) -> tuple[Any, ...]:
        """What a call writes."""
        return call.outs

    def case(self, name: str) -> Case:
        """A case by its name.

        Raises:
            InvalidInputError: there is none of that name.
        """
        for case in self.cases:
            if case.name == name:
                return case
        raise InvalidInputError(
            f"{self.name} has no case {name!r}: it has {', '.join(case.name for case in self.cases)}"
        )

    def tuner(self, configs: Sequence[Config], *, budget: str) -> TunedKernel:
        """The kernel under its tuner, to choose among these configs."""
        tuner = self.kernel.tuned(configs=triton_configs(configs), budget=budget, surrogate=Silent())
        tuner.num_reps = TIMED_MS
        return TunedKernel(tuner)

    def front_door(self, configs: Sequence[Config], *, budget: str) -> Callable[[Call], None]:
        """What makes a call tuned among these configs; its attribute `tuned` tells what was found.

        Outputs are not compared config by config, as they are not where users tune: what was chosen is, afterwards.
        """
        tuner = self.tuner(configs, budget=budget)

        def tuned(call: Call) -> None:
            call.launch(tuner.kernel)

        tuned.tuned = tuner  # type: ignore[attr-defined]
        return tuned


class TunedKernel:
    """A kernel under its tuner, and what that knows of a call."""

    def __init__(self, tuner: Any) -> None:
        self.kernel = tuner

    @property
    def program(self) -> Program:
        """The kernel with all that it reaches."""
        from forecast_autotune.frontends.triton.kernel_program import program_of

        return program_of(self.kernel.spec)

    def job(self, args: tuple[Call], *, hardware: Hardware | None = None) -> Job:
        """The job of a call, with what is known of each config without compiling; by default on the current device."""
        from forecast_autotune.frontends.triton.call import TritonCall

        (call,) = args
        candidates = self.kernel.pruned_configs(call.args, {"grid": call.grid})
        return TritonCall(self.kernel.spec, candidates, call.args, {"grid": call.grid}, hardware=hardware).job

    def outcomes(self, args: tuple[Call]) -> Mapping[Config, Outcome]:
        """The stored outcome of each config for a call's key."""
        from forecast_autotune.remote.fleet_store import open_store
        from forecast_autotune.settings import Settings

        return open_store(Settings.from_environment()).outcomes(self.job(args))
