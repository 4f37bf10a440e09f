"""A function of an extension of `load_inline`: how its calls are decided, and what calls a variant of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...compilers.cpp_compile import CppCompiler
from ...compilers.cpp_recipe import Recipe
from ...core.config import Config
from ...core.decision import Decision
from ...core.job import Job
from ...core.outcome import Failure, Outcome
from ...core.space import Space
from ...core.workload import Program, Workload
from ...errors import AutotuneError, InvalidInputError, NoWorkingConfigError
from ...measure.checks import Check, check_name, validate
from ...measure.clocks import Launch
from ...measure.copies import CopiedArguments, Values
from ...measure.in_process import InProcess, clock_for
from ...measure.isolated import Isolated, extension_trials
from ...protocols import Store
from ...settings import Settings
from ..call_tensors import labelled_tensors, why_untuned
from ..engine import Request, make_store
from ..keys import NoKeyError, device_of, features_of
from ..nested_tuning import ever_nested, of_thread
from ..tuned_callable import Call, TunedCallable, work_of_call

log = logging.getLogger(__name__)

DEFAULT_BUDGET = "16"


class TunedFunction(TunedCallable):
    """One function of a module: as a bound C++ function, no method where a class holds it, and its own copy."""

    def __init__(
        self,
        recipe: Recipe,
        space: Space,
        compiler: Callable[[str], CppCompiler],
        name: str,
        *,
        names: tuple[str, ...] | None,
        key: Any,
        work: Callable[..., Any] | None,
        check: Check,
        budget: str | int | None,
    ) -> None:
        validate(check)
        self.recipe, self.space, self.compiler = recipe, space, compiler
        full_name = f"{self.recipe.name}.{name}"
        super().__init__(
            _FunctionDoor(self),
            name=name,
            full_name=full_name,
            key=key,
            names=names,
            default_budget=DEFAULT_BUDGET,
            budget=budget,
        )
        self.__name__ = self.__qualname__ = name
        self.__module__ = self.recipe.name
        self.__doc__ = (self.recipe.functions or {}).get(name)
        self.work, self.check = work, check
        self._launchers: dict[tuple[str, Config], _Launcher] = {}
        self.program = Program(
            name=full_name, language="cuda" if self.recipe.is_cuda else "c++", source=self.recipe.text
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args = self._positional(args, kwargs)
        if ever_nested and (nested := of_thread.nested) is not None and nested.decides_for(self):
            return nested.run(self, args, {})
        return self._make_call(args, args, {})

    def launcher(self, config: Config, device: str) -> _Launcher:
        """What calls a variant; built and loaded by its first call."""
        return self._launchers.setdefault((device, config), _Launcher(self, config, device))

    # As an object ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<function {self.name} of {self.recipe.name}, in {len(self.space)} variants>"

    def __copy__(self) -> TunedFunction:
        return self

    def __deepcopy__(self, memo: object) -> TunedFunction:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled: its code is built where load_inline is called, so call it there too"
        )

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The call's arguments in the signature's order."""
        if self.names is None:
            raise InvalidInputError(
                f"{self.name} was called with {', '.join(kwargs)} by name: add signature= to load_inline, or give "
                "arguments by position"
            )
        rest = self.names[len(args) :]
        unknown = [n for n in kwargs if n not in rest]
        if unknown or any(n not in kwargs for n in rest[: len(kwargs)]):
            raise TypeError(
                f"{self.name}({', '.join(self.names)}) was called with {len(args)} by position and {kwargs}"
            )
        return (*args, *(kwargs[n] for n in rest[: len(kwargs)]))

    # Within a variant -----------------------------------------------------------------------------------------------

    def candidates(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Config, Any]:  # noqa: ARG002
        """See `Nested`."""
        return {config: config for config in self.space}

    def run_under(self, chosen: Config, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """See `Nested`; what is not built yet is built now, in this thread."""
        return self.launcher(chosen, device_of(args)).call(*args)

    # Questions ------------------------------------------------------------------------------------------------------

    def job(self, args: tuple[Any, ...]) -> Job:
        """What there is to decide for a call: its workload and space, on the device its arguments are on."""
        return self.job_of(self._call_of(args, {}, args))

    def job_of(self, call: Call) -> Job:
        args, compiler = call.values, self.compiler(call.state.device_name)
        state = call.state.as_json(list(labelled_tensors(args, self.names or ())))
        return Job(
            workload=Workload(
                program=self.program,
                key={**self.key_as_json(args), **state},
                features=features_of(args),
                check=check_name(self.check),
            ),
            space=self.space,
            hardware=compiler.hardware,
            toolchain=compiler.toolchain,
            work=work_of_call(self.work, args, self.name),
        )

    def outcomes(self, args: tuple[Any, ...]) -> Mapping[Config, Outcome]:
        """What is known of each config for a call's key, from the store."""
        return make_store(Settings.from_environment()).outcomes(self.job(args))


class _Launcher:
    """A variant's function, had at its first call, for a build may take half a minute."""

    def __init__(self, tuned: TunedFunction, config: Config, device: str) -> None:
        self._tuned, self._config, self._device = tuned, config, device

    @functools.cached_property
    def call(self) -> Callable[..., Any]:
        function: Callable[..., Any] = (
            self._tuned.compiler(self._device).extension(self._config).function(self._tuned.name)
        )
        return function


class _FunctionDoor:
    """The front door of a function of `load_inline`; see `FrontDoor`."""

    def __init__(self, tuned: TunedFunction) -> None:
        self._tuned = tuned

    @property
    def name(self) -> str:
        return self._tuned.full_name

    def why_unmeasured(self, call: Call) -> str:
        return call.why_unmeasured

    def default(self, call: Call) -> _Launcher:
        return self._tuned.launcher(self._tuned.space.default, device_of(call.values))

    def tuning(self, call: Call, how: Request) -> _FunctionTuning:
        if self._tuned.recipe.is_cuda and call.state.device < 0:
            raise NoWorkingConfigError(_no_gpu(self._tuned.recipe.name))
        return _FunctionTuning(self._tuned, call, how)

    def forget_shortcuts(self) -> None:
        """There are none."""


class _FunctionTuning:
    """What there is to decide for a call of a function; see `Tuning`."""

    device = ""

    def __init__(self, tuned: TunedFunction, call: Call, how: Request) -> None:
        self._tuned, self._call = tuned, call
        self._isolate = how.settings.isolate != "0"
        self.default = self.launcher(tuned.space.default)

    @functools.cached_property
    def job(self) -> Job | None:
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
        return self._tuned.compiler(self._call.state.device_name)

    def measurer(self) -> Isolated | InProcess:
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

    def launcher(self, config: Config) -> _Launcher:
        return self._tuned.launcher(config, self._call.state.device_name)

    def refused(self, config: Config, measurer: object) -> Failure | None:  # noqa: ARG002
        """Compared in this process, where it is to run; not if one of both is still to be built, which takes long."""
        if not all(map(self.compiler.is_built, (config, self._tuned.space.default))):
            return None
        try:
            with self._in_process() as here:
                return here.verify(config)
        except AutotuneError as err:  # such as memory that is short for copies
            log.debug("%s: %s is not compared with the default: %s", self._tuned.full_name, config, err)
            return None

    def fallback(self, decision: Decision, *, measured_here: bool) -> tuple[_Launcher, Config] | None:  # noqa: ARG002
        """The default: a variant was measured in a process of its own, and may not be had in this one."""
        default = self._tuned.space.default
        return None if decision.config == default else (self.default, default)

    def decided(self, decision: Decision, store: Store, *, measured: int, seconds: float) -> None:
        """Nobody listens."""


def _no_gpu(name: str) -> str:
    import torch

    if torch.cuda.is_available():
        return f"{name} has cuda_sources, and no argument of this call is a CUDA tensor: move them with .cuda()"
    built = "built without CUDA" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
    return (
        f"{name} has cuda_sources, and torch {torch.__version__} ({built}) finds no GPU here: nothing can be launched. "
        "module.report(config) tells registers and shared memory without one; 'forecast-autotune doctor' tells more"
    )
