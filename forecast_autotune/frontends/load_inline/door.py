"""How the dispatcher decides for a function of `load_inline`: its front door, and one call to tune."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...compilers.cpp_compile import CppCompiler
from ...core.cached_property import cached_property
from ...core.config import Config
from ...core.decision import Decision
from ...core.job import Job
from ...core.outcome import Failure
from ...errors import AutotuneError, NoWorkingConfigError
from ...measure.clocks import Launch
from ...measure.copies import CopiedArguments, Values
from ...measure.in_process import InProcess, clock_for
from ...measure.isolated import Isolated, extension_trials
from ...protocols import Store
from ..call_tensors import why_untuned
from ..keys import NoKeyError, device_of
from ..learnable_callable import LearnableCallable
from ..request import Request
from ..tuned_callable import Call, CallableDoor

if TYPE_CHECKING:
    from .tuned_function import Launcher, TunedFunction

log = logging.getLogger(__name__)

_APART = "Each variant has C++ variables of its own: pass what functions share in them as arguments instead"
_CLASS_OF_ONE = 'Variants are loaded side by side: make each class their own, py::class_<…>(m, "…", py::module_local())'


class FunctionDoor(CallableDoor["TunedFunction"]):
    """The front door of one function; see `FrontDoor`. A launcher is a `Launcher`."""

    def default(self, call: Call) -> Launcher:
        """See `FrontDoor`: the first variant, on the device of the call."""
        return self._tuned.launcher(self._tuned.space.default, device_of(call.values))

    def tuning(self, call: Call, request: Request) -> FunctionTuning:
        """See `FrontDoor`."""
        if self._tuned.recipe.is_cuda and call.state.device < 0:
            raise NoWorkingConfigError(_no_gpu(self._tuned.recipe.name))
        return FunctionTuning(self._tuned, call, request)


class FunctionTuning:
    """One call of a function to decide for; see `Tuning`."""

    device = ""

    def __init__(self, tuned: TunedFunction, call: Call, request: Request) -> None:
        self._tuned, self._call, self._request = tuned, call, request
        self._isolate = request.settings.isolate != "0"
        self._is_compared = False  # a variant with the default, in this process
        self.default = self.launcher(tuned.space.default)

    @cached_property
    def job(self) -> Job | None:
        """See `Tuning`."""
        if odd := why_untuned(self._call.values, self._tuned.names):
            self._tuned.note_untuned(odd)
            return None
        try:
            return self._tuned.job_of(self._call)
        except NoKeyError as err:
            self._tuned.note_untuned(f"an argument is {err}")
            return None

    @property
    def compiler(self) -> CppCompiler:
        """See `Tuning`."""
        return self._tuned.compiler(self._call.state.device_name)

    def measurer(self) -> Isolated | InProcess:
        """See `Tuning`."""
        return self._isolated() if self._isolate else self._in_process()

    def _isolated(self) -> Isolated:
        compiler, name = self.compiler, self._tuned.name

        def described(config: Config, _: object) -> dict[str, Any]:
            return {"extension": compiler.extension(config).as_json(), "function": name}

        return Isolated(
            job=extension_trials,
            describe=described,
            arguments=self._call.values,
            log=compiler.root / "trials.log",
            one_each=True,
            **self._compared,
        )

    def _in_process(self) -> InProcess:
        compiler, name, args = self.compiler, self._tuned.name, self._call.values
        clock, names = clock_for(args), self._tuned.names or ()

        def launch(config: Config, values: Values) -> Launch:
            return Launch(call=functools.partial(compiler.extension(config).function(name), *values[0]))

        return InProcess(
            launch=launch,
            clock=lambda _: clock,
            arguments=lambda: CopiedArguments(args, names=names),
            **self._compared,
        )

    @property
    def _compared(self) -> dict[str, Any]:
        tuned = self._tuned
        return {"name": tuned.full_name, "default": tuned.space.default, "check": tuned.check}

    def launcher(self, config: Config) -> Launcher:
        """See `Tuning`."""
        return self._tuned.launcher(config, self._call.state.device_name)

    def refused(self, config: Config, measurer: Isolated | InProcess) -> Failure | None:
        """See `Tuning`. Not compared where it or the default is still to be built, which takes long.

        Nor where the default does not run in a child process: it may end this one.
        """
        if measurer.measured and not (self._isolate and measurer.can_compare):
            return None  # all ran in this process, or the default did not run in its own
        if not all(map(self.compiler.is_built, (config, self._tuned.space.default))) or self._default_failed():
            return None
        try:
            with self._in_process() as in_process:
                failure = in_process.verify(config)
        except AutotuneError as err:  # such as memory that is short for copies
            log.debug("%s: %s is not compared with the default: %s", self._tuned.full_name, config, err)
            return None
        self._is_compared = self._tuned.check is not None  # else nothing has run
        if failure is not None and failure.stage == "check":
            return replace(failure, message=f"{failure.message}. {_APART}")
        if failure is not None and "is already registered!" in failure.message:  # pybind11's words
            return replace(failure, message=f"{failure.message} {_CLASS_OF_ONE}")
        return failure

    def _default_failed(self) -> bool:
        """Whether the default is known not to run."""
        if (job := self.job) is None:
            return False
        store = self._tuned.dispatcher.store(job.hardware, self._request.settings)
        outcome = store.outcomes(job).get(job.space.default)
        return isinstance(outcome, Failure) and not outcome.transient

    def fallback(self, decision: Decision, *, measured_here: bool) -> tuple[Launcher, Config] | None:  # noqa: ARG002
        """See `Tuning`. A variant was measured in a child process, and may fail to load in this one.

        None once it was compared: what raises then is the call, or the default would raise too.
        """
        default = self._tuned.space.default
        return None if self._is_compared or decision.config == default else (self.default, default)

    def learnable(self) -> LearnableCallable | None:
        """See `Tuning`. None where a variant may run in a child process only: it may end this one."""
        if self._isolate:
            return None
        tuned, request, device = self._tuned, self._request, self._call.state.device_name

        def launcher(config: Config) -> Launcher:
            return tuned.launcher(config, device)

        return LearnableCallable(
            device=device,
            compiler=self.compiler.in_background(),
            launcher=launcher,
            measurer=None if tuned.check is None else lambda call: FunctionTuning(tuned, call, request)._in_process(),
            load=lambda config: launcher(config).call,
        )

    def tell_listeners(self, decision: Decision, store: Store, *, measured: int, seconds: float) -> None:
        """Nobody listens to load_inline."""


def _no_gpu(name: str) -> str:
    import torch

    if torch.cuda.is_available():
        return f"{name} has cuda_sources, and no argument of this call is a CUDA tensor: move them with .cuda()"
    built = "built without CUDA" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
    return (
        f"{name} has cuda_sources, and torch {torch.__version__} ({built}) finds no GPU here: nothing can be launched. "
        "module.report(config) tells registers and shared memory without one; 'forecast-autotune doctor' tells more"
    )
