"""fa.variants: callables that compute the same thing, each with a space of its own or none, and one decision per key."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import logging
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.cached_property import cached_property
from ...core.config import Config
from ...core.hardware import Toolchain
from ...core.job import Job
from ...core.module_names import module_name
from ...core.outcome import Outcome
from ...core.space import MAX_CONFIGS
from ...core.workload import Program
from ...errors import InvalidInputError
from ...measure.checks import Check, validate
from ...measure.probe import detect_cpp_toolchain
from ...protocols import Surrogate
from ...settings import Mode, Settings
from ..call_state import state_without_data
from ..keys import without_nan
from ..nested_tuning import NestedTuner, ever_nested, of_thread
from ..program_text.code_text import CodeText
from ..triton.simulated_driver import times_mean_nothing
from ..tuned_callable import Call, TunedCallable
from .arguments import KNOB, Arguments, Variant, as_variants
from .door import COMPILING, VariantsDoor, job_of, launched_by, with_work
from .dynamo_constants import as_constant, from_constant, traced
from .joint_space import Choice, combined, tuners_called

log = logging.getLogger(__name__)

DEFAULT_BUDGET = "16,30s"

living: weakref.WeakSet[TunedVariants] = weakref.WeakSet()
"""All of this process, for what compiles ahead."""


def variants(
    callables: Sequence[Any],
    key: Sequence[str] | str | Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    check: Check = "allclose",
    work: Callable[..., Any] | None = None,
    budget: str | int | None = None,
    mode: Mode | None = None,
    surrogate: str | Surrogate | None = None,
    compile_ahead: bool = False,
) -> TunedVariants:
    """One function out of several that compute the same thing: each key's first call finds out which is the fastest.

        softmax = fa.variants([one_pass, (online, fa.Space.grid({"BLOCK": [512, 1024]})), torch.softmax], key="x, dim")

    Tuners that a variant calls (`fa.autotune` kernels, `fa.load_inline` functions, other variants) do not tune themselves
    in these calls: their configs are part of the joint space, as knobs called `kernel.KNOB`.

    Args:
        callables: the variants, the first of them, with the first config of its space, the default. A pair of a callable
            and a space hands the space's knobs to the callable by name.
        key: names of arguments, or a callable of the arguments that returns a hashable value; by default dtype, shape
            and strides of tensors and the values of all else. Names are those of the first callable that has any.
        name: what the decisions are kept under; by default the first callable's name, with its module.
        check: how what a variant returns and writes must agree with the default's: `"allclose"`, `"bitexact"`, a callable
            of (outputs, the default's), or None.
        work: callable of the arguments that returns `Work(flops=…, bytes=…)`.
        budget: as FORECAST_AUTOTUNE_BUDGET, which overrides it; by default at most 16 configs and 30 s for each key.
        mode: as FORECAST_AUTOTUNE_MODE, which overrides it.
        surrogate: a name as in FORECAST_AUTOTUNE_SURROGATE, which overrides it, or a Surrogate.
        compile_ahead: whether the variants' Triton kernels are compiled side by side, in other processes, before they are
            timed. To learn what a variant launches under a config, it is then called once with fake tensors, and nothing is
            launched or computed. Only for variants that keep nothing of such a call: a workspace or a table filled in it
            would hold fake tensors later, too. A kernel that does not compile then rules its config out. What is launched
            also tells a forecast much of each config, in modes that measure nothing, too.
    Raises:
        InvalidInputError: one of these does not say what it must, or a variant cannot be called as the first one.
    """
    if callable(callables) or isinstance(callables, (str, Mapping)):
        raise InvalidInputError(f"variants was given {callables!r}: give a list of callables, variants([f, g, …])")
    return TunedVariants(
        as_variants(callables), module=sys._getframe(1).f_globals.get("__name__", ""), key=key, name=name, check=check,
        work=work, budget=budget, mode=mode, surrogate=surrogate, compile_ahead=compile_ahead,
    )  # fmt: skip


class TunedVariants(TunedCallable):
    """The function that stands for some variants.

    It binds as a method does, is pickled by its name where it has one in a module, and a copy of what its variants are
    bound to gets a tuner of the copy's own.
    """

    __wrapped__: Any

    def __init__(
        self,
        listed: Sequence[Variant],
        *,
        module: str,
        key: Any,
        name: str | None,
        check: Check,
        work: Callable[..., Any] | None,
        budget: str | int | None,
        mode: Mode | None,
        surrogate: str | Surrogate | None,
        compile_ahead: bool,
    ) -> None:
        from torch.compiler import is_dynamo_compiling

        validate(check)
        first = listed[0]
        own_name = name or first.name
        self._made_in = module
        self._options = {
            "key": key, "name": name, "check": check, "work": work, "budget": budget, "mode": mode,
            "surrogate": surrogate, "compile_ahead": compile_ahead,
        }  # fmt: skip
        self.check, self.work, self.compile_ahead = check, work, compile_ahead
        self.arguments = Arguments(listed, own_name)
        self.callables = tuple(v.function for v in listed)
        self.variants = tuple(map(self.arguments.adapted, listed))
        self._least = len(self.arguments.positional)
        self._nested_tuners: dict[int, tuple[NestedTuner, ...]] = {}  # by variant, from the last call
        super().__init__(
            VariantsDoor(self),
            name=own_name,
            full_name=name or f"{module_name(first.function)}.{first.name}".lstrip("."),
            key=key,
            names=self.arguments.names or None,
            default_budget=DEFAULT_BUDGET,
            budget=budget,
            mode=mode,
            surrogate=surrogate,
            times_mean_nothing=times_mean_nothing,
        )
        functools.update_wrapper(self, first.function, updated=())
        self.__name__ = own_name
        # What Dynamo traces of a call of this: functions and constants, no method of ours.
        self._compiling = is_dynamo_compiling
        self._functions = tuple(v.call for v in self.variants)
        self._choose = _run_while_traced(self)
        living.add(self)

    @traced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiling():
            import torch

            constants = tuple([as_constant(a) for a in args]), {n: as_constant(v) for n, v in kwargs.items()}
            index, knobs, order = self._choose(*constants, torch.is_grad_enabled())
            args = (*args, *[kwargs.pop(name, default) for name, default in order])
            return self._functions[index](*args, **kwargs, **dict(knobs))
        if ever_nested and (nested := of_thread.nested) is not None and nested.decides_for(self):
            return nested.run(self, args, kwargs)
        if kwargs:
            args, kwargs = self.arguments.placed(args, kwargs)
        whole = len(args) >= self._least and not kwargs and not self.arguments.named
        return self._make_call(args if whole else self.arguments.values(args, kwargs), args, kwargs)

    # As an object ---------------------------------------------------------------------------------------------------

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<variants {self.name} of {', '.join(v.name for v in self.variants)}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> TunedVariants:
        """Variants of copied callables, such as the methods of a module that is copied; itself where all stay the same."""
        copied = [copy.deepcopy(function, memo) for function in self.callables]
        if id(self) in memo:  # copied with what a callable is bound to
            copied_before: TunedVariants = memo[id(self)]
            return copied_before
        if all(_is_same(a, b) for a, b in zip(copied, self.callables, strict=True)):
            return self
        return _remade(*self._parts(copied))

    def __reduce__(self) -> tuple[Any, ...]:
        for module in (self._made_in, self.__module__):
            for name, value in vars(sys.modules.get(module, types)).items():
                if value is self:
                    return _named, (module, name)
        return _remade, self._parts(self.callables)

    def _parts(self, callables: Sequence[Any]) -> tuple[Any, ...]:
        spaces = (v.space for v in self.variants)
        return list(zip(callables, spaces, strict=True)), self._made_in, self._options

    # What the variants are made of ----------------------------------------------------------------------------------

    @cached_property
    def reading(self) -> CodeText:
        """The text of all variants, read at the first miss, when all that they name exists."""
        return CodeText(self.callables)

    @cached_property
    def calling(self) -> frozenset[int]:
        """Indices of the variants that may call tuners."""
        read = (CodeText([function]).tuners for function in self.callables)
        return frozenset(i for i, tuners in enumerate(read) if any(t is not self for t in tuners))

    @cached_property
    def languages(self) -> Mapping[str, frozenset[str]]:
        """By the name of a variant, what its kernels are written in."""
        return {v.name: frozenset(CodeText([v.function]).languages) for v in self.variants}

    @cached_property
    def of_triton(self) -> frozenset[str]:
        """Names of the variants whose only kernels are Triton's: their launches can be listed without data."""
        return frozenset(name for name, languages in self.languages.items() if languages == {"triton"})

    @cached_property
    def program(self) -> Program:
        """All variants as one program."""
        return self.reading.program(self.full_name)

    @property
    def toolchain(self) -> Toolchain:
        """Versions of torch and of the compilers that the variants' kernels need."""
        import torch

        versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
        if "triton" in self.reading.languages:
            from ..triton.target import current_toolchain

            versions.update(current_toolchain().versions)
        if {"c++", "cuda"} & self.reading.languages:
            versions.update(detect_cpp_toolchain(cuda="cuda" in self.reading.languages).versions)
        return Toolchain(versions=versions)

    # Within a variant of others -------------------------------------------------------------------------------------

    def candidates(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Config, Any]:
        """See `Nested`."""
        return self.choices(self.placed(args, kwargs), may_run=True)

    def run_under(self, chosen: Choice, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `Nested`."""
        call = self.placed(args, kwargs)
        return replace(chosen, defaults_only=True).call(*call.args, **call.kwargs)

    # Questions without a call ---------------------------------------------------------------------------------------

    def job(self, args: Sequence[Any]) -> Job:
        """The job of a call: its workload and the joint space, with the nested tuners of the last call."""
        call = self.placed(args)
        choices = self.choices(call, may_run=False)
        return with_work(self, job_of(self, choices, call, launched=launched_by(self, choices, call)))

    def outcomes(self, args: Sequence[Any]) -> Mapping[Config, Outcome]:
        """The stored outcome of each config for a call's key."""
        call = self.placed(args)
        job = job_of(self, self.choices(call, may_run=False), call, launched=None)
        return self.dispatcher.store(job.hardware, Settings.from_environment()).outcomes(job)

    def placed(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Call:
        """A call as the variants take it."""
        placed, rest = self.arguments.placed(tuple(args), dict(kwargs or {}))
        return self._call_of(placed, rest, self.arguments.values(placed, rest))

    def chosen_while_compiling(
        self, positional: tuple[Any, ...], named: dict[str, Any], grad_enabled: bool
    ) -> tuple[int, Any, Any]:
        """The variant that Dynamo is to trace: its index, its knobs, and the order of arguments given by name.

        A decision of this process or the store counts, else a forecast; while another thread measures, what the key ran
        before, else the default. Waiting for that thread would be for ever where it waits for Dynamo's lock, which this one
        holds. Tuners in the variant are captured by themselves.

        Args:
            positional, named: the arguments as `as_constant` describes them.
            grad_enabled: whether autograd may record the traced call.
        """
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils._python_dispatch import _disable_current_modes

        order = self.arguments.order(len(positional), named)
        if self._state(()) is None:  # under a transform
            return 0, tuple(self.default(defaults_only=True).knobs.items()), order
        with _disable_current_modes(), torch.set_grad_enabled(grad_enabled):
            mode = FakeTensorMode()
            args, kwargs = self.arguments.placed(
                tuple(from_constant(each, mode) for each in positional),
                {n: from_constant(each, mode) for n, each in named.items()},
            )
            values = self.arguments.values(args, kwargs)
            state = state_without_data(values, self._reached)
            call = Call(state=state, values=values, args=args, kwargs=kwargs, unmeasured=COMPILING)
            choice = self.dispatcher.entry(without_nan((state, self._key(*values))), call).launcher
        return self.variants.index(choice.variant), tuple(choice.knobs.items()), order

    # The joint space ------------------------------------------------------------------------------------------------

    def choices(self, call: Call, *, may_run: bool) -> dict[Config, Choice]:
        """Every joint config with its choice, the default first.

        Args:
            may_run: whether a variant may run on copies of the arguments, to meet the tuners that it calls.
        """
        parts: list[Choice] = []
        most = MAX_CONFIGS / sum(len(v.space or "1") for v in self.variants)
        for i, variant in enumerate(self.variants):
            if may_run and i in self.calling:
                self._nested_tuners[i] = tuners_called(variant, call, self.full_name)
            for own in variant.space or (Config({}),):
                parts += combined(variant, own, self._nested_tuners.get(i, ()), most=most)
        names = dict.fromkeys(name for choice in parts for name in choice.config.knobs)
        every = (replace(c, config=Config({name: c.config.knobs.get(name) for name in names})) for c in parts)
        return {choice.config: choice for choice in every}

    def default(self, *, defaults_only: bool) -> Choice:
        """The first variant with its first config.

        Args:
            defaults_only: its tuners run their defaults; otherwise they tune themselves.
        """
        first = self.variants[0]
        knobs = first.space.default.knobs if first.space else {}
        config = Config({KNOB: first.name, **knobs})
        return Choice(config=config, variant=first, knobs=knobs, fixed_configs={}, defaults_only=defaults_only)


def _run_while_traced(tuned: TunedVariants) -> Callable[..., Any]:
    """A function that chooses a variant; Dynamo, which traces the call, runs it and takes its result for a constant."""

    @traced
    def choose(args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool) -> Any:
        return tuned.chosen_while_compiling(args, kwargs, grad_enabled)

    choose._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return choose


def _is_same(a: Any, b: Any) -> bool:
    return a is b or (inspect.ismethod(a) and inspect.ismethod(b) and a == b)


def _named(module: str, name: str) -> Any:
    """Unpickle what was pickled by its name in a module."""
    return getattr(importlib.import_module(module), name)


def _remade(listed: Sequence[tuple[Any, Any]], module: str, options: Mapping[str, Any]) -> TunedVariants:
    """Tuned variants from what makes them up."""
    return TunedVariants(as_variants([pair if pair[1] else pair[0] for pair in listed]), module=module, **options)
