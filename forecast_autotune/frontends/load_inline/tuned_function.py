"""One function of a `load_inline` module, and the launcher of each of its variants."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...compilers.cpp_compile import CppCompiler
from ...compilers.cpp_recipe import Recipe
from ...core.cached_property import cached_property
from ...core.config import Config
from ...core.hardware import Hardware
from ...core.job import Job
from ...core.outcome import Outcome
from ...core.space import Space
from ...core.workload import Program, Workload
from ...errors import InvalidInputError
from ...features.lazy_static_features import LazyStaticFeatures
from ...measure.checks import Check, check_name, validate
from ...protocols import Surrogate
from ...remote.fleet_store import open_store
from ...settings import Mode, Settings
from ..keys import device_of, features_of
from ..nested_tuning import ever_nested, of_thread
from ..tuned_callable import Call, TunedCallable, work_of_call
from .cuda_static_features import CudaSourceTexts
from .door import FunctionDoor

DEFAULT_BUDGET = "16"
# To describe the configs of a call, in 4 ms each: enough for 2,000, where a first build takes half a minute.
LONGEST_S = 10.0

living: weakref.WeakSet[TunedFunction] = weakref.WeakSet()
"""All functions of this process, for what compiles ahead."""


class TunedFunction(TunedCallable):
    """One function of a module. Like a bound C++ function it is no method in a class, and a copy of it is itself.

    Args:
        recipe: the extension's sources and flags.
        space: its variants.
        compiler: from a device's name to the compiler for it.
        name: the function's.
        names: of its arguments, where the user gave a signature.
        key, work, check, budget, mode, surrogate: as in `load_inline`.
    Raises:
        InvalidInputError: one of these does not parse, or `key` names unknown arguments.
    """

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
        mode: Mode | None,
        surrogate: str | Surrogate | None,
    ) -> None:
        validate(check)
        self.recipe, self.space, self.compiler = recipe, space, compiler
        full_name = f"{self.recipe.name}.{name}"
        super().__init__(
            FunctionDoor(self),
            name=name,
            full_name=full_name,
            key=key,
            names=names,
            default_budget=DEFAULT_BUDGET,
            budget=budget,
            mode=mode,
            surrogate=surrogate,
        )
        self.__name__ = self.__qualname__ = name
        self.__module__ = self.recipe.name
        self.__doc__ = (self.recipe.functions or {}).get(name)
        self.work, self.check = work, check
        self._launchers: dict[tuple[str, Config], Launcher] = {}
        self._sources = CudaSourceTexts(recipe)
        self.program = Program(
            name=full_name, language="cuda" if self.recipe.is_cuda else "c++", source=self.recipe.text
        )
        living.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args = self._positional(args, kwargs)
        if ever_nested and (nested := of_thread.nested) is not None and nested.decides_for(self):
            return nested.run(self, args, {})
        return self._make_call(args, args, {})

    def launcher(self, config: Config, device: str) -> Launcher:
        """The launcher of a variant; its first call builds and loads it."""
        return self._launchers.setdefault((device, config), Launcher(self, config, device))

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
        """See `Nested`. A variant that is not built yet is built now, in this thread."""
        return self.launcher(chosen, device_of(args)).call(*args)

    # Questions without a call ---------------------------------------------------------------------------------------

    def job(self, args: tuple[Any, ...]) -> Job:
        """The job of a call: its workload and space, on the device of its arguments."""
        return self.job_of(self._call_of(args, {}, args))

    def job_of(self, call: Call) -> Job:
        """The job of a call.

        Raises:
            NoKeyError: an argument has no form that a key could hold.
        """
        args, compiler = call.values, self.compiler(call.state.device_name)
        return Job(
            workload=Workload(
                program=self.program,
                key={**self.key_as_json(args), **self.state_as_json(call)},
                features=features_of(args),
                check=check_name(self.check),
            ),
            space=self.space,
            hardware=compiler.hardware,
            toolchain=compiler.toolchain,
            work=work_of_call(self.work, args, self.name),
            static_features=self.static_features(args, self.space, compiler.hardware),
        )

    def static_features(
        self, args: Sequence[Any], configs: Sequence[Config], hardware: Hardware
    ) -> Sequence[Mapping[str, float]]:
        """See `Job.static_features`; empty for plain C++. Tensors may hold no data."""
        if not self.recipe.is_cuda:
            return ()
        return LazyStaticFeatures(configs, self._sources.of_call(self.name, args, hardware), longest_s=LONGEST_S)

    def outcomes(self, args: tuple[Any, ...]) -> Mapping[Config, Outcome]:
        """The stored outcome of each config for a call's key."""
        return open_store(Settings.from_environment()).outcomes(self.job(args))


class Launcher:
    """Calls one variant on one device; built at the first call, which may take half a minute."""

    def __init__(self, tuned: TunedFunction, config: Config, device: str) -> None:
        self._tuned, self._config, self._device = tuned, config, device

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The variant's bound function."""
        function: Callable[..., Any] = (
            self._tuned.compiler(self._device).extension(self._config).function(self._tuned.name)
        )
        return function
