"""fa.variants: callables that compute the same thing, each with a space of its own or none, and one decision per key."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..compilers.no_compile import NoCompiler
from ..core.budget import Budget
from ..core.config import Config
from ..core.decision import Decision
from ..core.digest import Value
from ..core.hardware import Hardware, Toolchain
from ..core.job import Job
from ..core.outcome import Outcome
from ..core.space import MAX_CONFIGS, Space
from ..core.workload import Program, Work, Workload
from ..errors import CacheMissError, InvalidInputError, NoWorkingConfigError, TuningWarning
from ..kernel_features import work_of
from ..measure.arguments import tensors_in
from ..measure.checks import Check, check_name, validate
from ..measure.clocks import Clock, CpuClock, EventClock, Launch, cuda_clock
from ..measure.lent import Lent, LentArguments, tensors_of
from ..probe import detect_cpp_toolchain, detect_hardware
from ..protocols import Compiler, Store, Surrogate
from ..rehearsal_driver import Rehearsal, current_rehearsal
from ..settings import Settings
from ..store.sqlite import SqliteStore
from ..tuner import stored
from .callable_program import Reading
from .deciding import deciding
from .engine import decide, make_store, request, takes_time, untraced
from .joint import Found, Joint, here, in_use, under
from .keys import as_names, device_of, features_of, key_as_json, make_key_function
from .pending import holds_unmeasured, is_unmeasured
from .variant_arguments import KNOB, Arguments, Variant, as_variants
from .variant_launches import LONGEST_S, LONGEST_SHARE, Described, VariantLaunches
from .variant_tracing import imagined, told, traced

log = logging.getLogger(__name__)

DEFAULT_BUDGET = "16,30s"
COMPILING = "torch.compile"  # why a call that is traced is not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to make a call: a variant, its knobs, and what the tuners in it run, by identity.

    `frozen` where tuners that nothing is imposed on run their defaults and do not tune themselves.
    """

    config: Config
    variant: Variant
    knobs: Mapping[str, Value]
    imposed: Mapping[int, Any]
    frozen: bool = False

    def launcher(self) -> Callable[..., Any]:
        """What makes a call this way."""
        function = functools.partial(self.variant.call, **self.knobs) if self.knobs else self.variant.call
        if not self.imposed and not self.frozen:
            return function
        return under(Joint(imposed=self.imposed, frozen=self.frozen), function)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call to decide for: what is handed to a variant, and all of it in one row, defaults included."""

    values: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What came of deciding, and what stands in if that does not run; no decision where there was none to make."""

    choice: Choice
    default: Choice
    decision: Decision | None = None
    ran: bool = True  # in this process


def variants(
    callables: Sequence[Any],
    key: Sequence[str] | str | Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    check: Check = "allclose",
    work: Callable[..., Any] | None = None,
    budget: str | int | None = None,
    mode: str | None = None,
    surrogate: str | Surrogate | None = None,
    compile_ahead: bool = False,
) -> Any:
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
        as_variants(callables), key=key, name=name, check=check, work=work, budget=budget, mode=mode,
        surrogate=surrogate, compile_ahead=compile_ahead,
    ).dispatcher()  # fmt: skip


class TunedVariants:
    """Some variants: their decisions by key, and how a missing one is made."""

    def __init__(
        self,
        listed: Sequence[Variant],
        *,
        key: Any,
        name: str | None,
        check: Check,
        work: Callable[..., Any] | None,
        budget: str | int | None,
        mode: str | None,
        surrogate: str | Surrogate | None,
        compile_ahead: bool,
    ) -> None:
        validate(check)
        if budget is not None:
            Budget(budget)
        request(budget, default_budget=DEFAULT_BUDGET, environment={}, mode=mode, surrogate=surrogate)  # does it parse?
        first = listed[0]
        self.name = name or first.name
        self._full_name = name or f"{getattr(first.function, '__module__', None) or ''}.{first.name}".lstrip(".")
        self._arguments = Arguments(listed, self.name)
        self.variants = tuple(map(self._arguments.adapted, listed))
        self._key = make_key_function(key, self._arguments.names or None, self.name)
        self._key_names: tuple[str, ...] | None = None if callable(key) else as_names(key)
        self._check, self._work = check, work
        self._budget, self._mode, self._surrogate = budget, mode, surrogate
        self._ahead = compile_ahead
        self._table: dict[Hashable, Callable[..., Any]] = {}
        self._made: dict[Hashable, _Made] = {}
        self.decisions: dict[Hashable, Decision] = {}
        self._unmeasured: set[Hashable] = set()
        self._found: dict[int, tuple[Found, ...]] = {}  # tuners by variant, as last met
        self._memory: Store | None = None

    @functools.cached_property
    def reading(self) -> Reading:
        """All that the variants say, read at the first miss, when what they name is there."""
        return Reading(v.function for v in self.variants)

    @functools.cached_property
    def calling(self) -> frozenset[int]:
        """Variants that may call tuners, by place."""
        return frozenset(i for i, v in enumerate(self.variants) if Reading([v.function]).tuners)

    @functools.cached_property
    def of_triton(self) -> frozenset[str]:
        """Names of variants whose only kernels are Triton's: what they launch can be told without data."""
        return frozenset(v.name for v in self.variants if Reading([v.function]).languages == {"triton"})

    @functools.cached_property
    def program(self) -> Program:
        return self.reading.program(self._full_name)

    def dispatcher(self) -> Callable[..., Any]:
        """The function that stands for all variants. A hit makes the key, looks it up and calls."""
        from torch.compiler import is_dynamo_compiling

        found, key, miss, arguments, tuned = self._table.get, self._key, self._miss, self._arguments, self
        least = len(arguments.positional)

        @traced
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                index, knobs, order = choose(tuple([told(a) for a in args]), {n: told(v) for n, v in kwargs.items()})
                args = (*args, *[kwargs.pop(name, default) for name, default in order])
                return functions[index](*args, **kwargs, **dict(knobs))
            if in_use and (joint := here.joint) is not None and joint.takes(tuned):
                return joint.run(tuned, args, kwargs)
            if kwargs:
                args, kwargs = arguments.placed(args, kwargs)
            whole = len(args) >= least and not kwargs and not arguments.named
            values = args if whole else arguments.values(args, kwargs)
            wanted = (device_of(values), _is_tracked(values), key(*values))
            try:
                launch = found(wanted)
            except TypeError:
                launch = tuned.without_key(wanted, values)
            if launch is None:
                launch = miss(wanted, values, args, kwargs)
            return launch(*args, **kwargs)

        @traced
        def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return tuned.chosen_while_compiling(args, kwargs)

        choose._dynamo_marked_constant = True  # type: ignore[attr-defined]  # run for real while Dynamo traces
        functions = tuple(v.call for v in self.variants)
        functools.update_wrapper(call, self.variants[0].function, updated=())
        call.__name__ = self.name
        call.decisions = self.decisions  # type: ignore[attr-defined]
        call.tuned = self  # type: ignore[attr-defined]
        return call

    # Within a variant of others -------------------------------------------------------------------------------------

    def candidates(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Config, Any]:
        """See `Nested`."""
        return self._choices(self._placed(args, kwargs), may_run=True)

    def run_under(self, chosen: Choice, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `Nested`."""
        call = self._placed(args, kwargs)
        return replace(chosen, frozen=True).launcher()(*call.args, **call.kwargs)

    # A miss ---------------------------------------------------------------------------------------------------------

    def _miss(
        self, wanted: Hashable, values: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[..., Any]:
        """Decide for a key that is met for the first time, and return what makes its calls.

        While another thread is busy measuring, that is the default, and the key stays open; so it does where a graph is
        captured or tensors hold no data.
        """
        unmeasured = _why_unmeasured(values)
        with deciding.unless_measuring() as our_turn:
            if (found := self._table.get(wanted)) is not None:
                return found
            if not our_turn:
                return self._default().launcher()
            made = untraced(self._decide)(_Call(values=values, args=args, kwargs=kwargs), unmeasured)
            found = made.choice.launcher()
            if unmeasured:
                return found
            if made.decision is not None:
                self.decisions[wanted] = made.decision
                if not made.ran:
                    found = self._guarded(wanted, made, made.decision)
            if is_unmeasured(made.decision):
                self._unmeasured.add(wanted)
                holds_unmeasured(self)
            self._made[wanted], self._table[wanted] = made, found
            return found

    def without_key(self, wanted: Hashable, values: Sequence[Any]) -> Callable[..., Any]:
        """The default, where sizes are symbols.

        Raises:
            InvalidInputError: they are none, so the key is not one.
        """
        if _hold_no_data(values):
            return self._default().launcher()
        raise InvalidInputError(
            f"the key of {self.name} is {wanted!r}, which cannot be looked up: give key= as names of arguments, or as a "
            "callable that returns a tuple of numbers, text, dtypes and shapes"
        )

    def forget_unmeasured(self) -> None:
        """Decide again, when they are next met, keys whose decision measuring had no say in."""
        with deciding:
            for wanted in self._unmeasured:
                self.decisions.pop(wanted, None)
                self._made.pop(wanted, None)
                self._table.pop(wanted, None)
            self._unmeasured.clear()

    def job(self, args: Sequence[Any]) -> Job:
        """What there is to decide for a call: its workload and the joint space, tuners in variants as they were last met."""
        call = self._placed(args)
        choices = self._choices(call, may_run=False)
        rehearsed = self._rehearsal() is not None
        launched = self._launched(choices, call)
        return self._with_work(self._job(choices, call.values, rehearsed=rehearsed, launched=launched))

    def outcomes(self, args: Sequence[Any]) -> Mapping[Config, Outcome]:
        """What is known of each config for a call's key, from the store."""
        call = self._placed(args)
        choices, rehearsed = self._choices(call, may_run=False), self._rehearsal() is not None
        job = self._job(choices, call.values, rehearsed=rehearsed, launched=None)
        return self._store(job.hardware, Settings.from_environment()).outcomes(job)

    def _placed(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> _Call:
        placed, rest = self._arguments.placed(tuple(args), dict(kwargs or {}))
        return _Call(values=self._arguments.values(placed, rest), args=placed, kwargs=rest)

    def _default(self) -> Choice:
        """The first variant with its first config, tuners in it left to their own defaults."""
        first = self.variants[0]
        knobs = first.space.default.knobs if first.space else {}
        return Choice(config=Config({KNOB: first.name, **knobs}), variant=first, knobs=knobs, imposed={}, frozen=True)

    def _decide(self, call: _Call, unmeasured: str) -> _Made:
        how = request(self._budget, default_budget=DEFAULT_BUDGET, mode=self._mode, surrogate=self._surrogate)
        default = self._default()
        if how.settings.mode == "first":
            return _Made(choice=default, default=default)
        if unmeasured:
            how = replace(how, budget="0", unmeasured=unmeasured)
        try:
            choices = self._choices(call, may_run=not unmeasured)
            default = next(iter(choices.values()))
            if len(choices) == 1:
                return _Made(choice=default, default=default)
            playing = self._rehearsal()
            launched = self._launched(choices, call) if unmeasured in ("", COMPILING) else None
            longest_s = math.inf  # every rank is to say the same
            if how.settings.mode != "forecast":
                longest_s = min(LONGEST_S, LONGEST_SHARE * (Budget(how.budget).seconds or math.inf))
            job = self._job(choices, call.values, rehearsed=playing is not None, launched=launched, longest_s=longest_s)
            measurer = self._measurer(choices, call, playing)
            with measurer, deciding.measuring(takes_time(how)):
                store = self._store(job.hardware, how.settings)
                if not _answers(stored(job, store), how.budget):
                    job = self._with_work(job)
                compiler = self._compiler(launched)
                decision = decide(job, how, compiler=compiler, measurer=measurer, store=store)
        except (CacheMissError, InvalidInputError, NoWorkingConfigError):
            raise
        except Exception as err:
            log.debug("tuning failed", exc_info=True)
            warnings.warn(
                f"{self._full_name} is not tuned, its default is run: {type(err).__name__}: {err}",
                TuningWarning,
                stacklevel=4,
            )
            return _Made(choice=default, default=default)
        choice = choices[decision.config]
        ran = choice is default or measurer.measured > 0
        return _Made(choice=choice, default=default, decision=decision, ran=ran)

    def _guarded(self, wanted: Hashable, made: _Made, decision: Decision) -> Callable[..., Any]:
        """A choice that this process has not run yet: where it does not run and the default does, that one is kept."""
        launch, instead = made.choice.launcher(), made.default.launcher()

        def once(*args: Any, **kwargs: Any) -> Any:
            chosen = launch
            try:
                result = launch(*args, **kwargs)
            except Exception as err:
                result = instead(*args, **kwargs)  # where this raises too, it is the call, and the choice stays
                chosen = instead
                why = f"{decision.config} does not run: {type(err).__name__}: {err}"
                warnings.warn(f"{self._full_name} runs its default: {why}", TuningWarning, stacklevel=3)
                self._made[wanted] = _Made(choice=made.default, default=made.default)
                self.decisions[wanted] = replace(
                    decision,
                    config=made.default.config,
                    config_us=decision.default_us,
                    basis="default",
                    reason=why,
                )
            if self._table.get(wanted) is once:
                self._table[wanted] = chosen
            return result

        return once

    def chosen_while_compiling(self, told: tuple[Any, ...], named: dict[str, Any]) -> tuple[int, Any, Any]:
        """The variant to compile by its place, its knobs, and the order of the arguments that were given by name.

        What is decided counts, here or in the store, else a forecast. Tuners in the variant are captured by themselves.
        """
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes(), torch.set_grad_enabled(True), deciding:
            order = self._arguments.order(len(told), named)
            mode = FakeTensorMode()
            args, kwargs = self._arguments.placed(
                tuple(imagined(each, mode) for each in told), {n: imagined(each, mode) for n, each in named.items()}
            )
            call = _Call(values=self._arguments.values(args, kwargs), args=args, kwargs=kwargs)
            made = self._made.get((device_of(call.values), _is_tracked(call.values), self._key(*call.values)))
            choice = (made or self._decide(call, COMPILING)).choice
        return self.variants.index(choice.variant), tuple(choice.knobs.items()), order

    # What there is to choose among ----------------------------------------------------------------------------------

    def _choices(self, call: _Call, *, may_run: bool) -> dict[Config, Choice]:
        """Every joint config and what it stands for, the default first."""
        parts: list[Choice] = []
        for i, variant in enumerate(self.variants):
            if may_run and i in self.calling:
                self._found[i] = self._tuners_in(variant, call)
            for own in variant.space or (Config({}),):
                parts += self._combined(variant, own, self._found.get(i, ()))
        names = dict.fromkeys(name for choice in parts for name in choice.config.knobs)
        every = (replace(c, config=Config({name: c.config.knobs.get(name) for name in names})) for c in parts)
        return {choice.config: choice for choice in every}

    def _combined(self, variant: Variant, own: Config, tuners: Sequence[Found]) -> list[Choice]:
        """A variant's own config with every combination of the configs of the tuners in it."""
        room = MAX_CONFIGS / sum(len(v.space or "1") for v in self.variants)
        joined = [t for i, t in enumerate(tuners) if math.prod(len(u.candidates) for u in tuners[: i + 1]) <= room]
        found = []
        for chosen in itertools.product(*(t.candidates.items() for t in joined)):
            knobs: dict[str, Value] = {KNOB: variant.name, **own.knobs}
            for tuner, (config, _) in zip(joined, chosen, strict=True):
                knobs.update({f"{tuner.name}.{name}": value for name, value in config.knobs.items()})
            imposed = {id(t.tuner): theirs for t, (_, theirs) in zip(joined, chosen, strict=True)}
            found.append(Choice(config=Config(knobs), variant=variant, knobs=own.knobs, imposed=imposed))
        return found

    def _tuners_in(self, variant: Variant, call: _Call) -> tuple[Found, ...]:
        """The tuners that a call of a variant meets, found by making it once; what it writes is put back."""
        lent = LentArguments(_tensors(self._arguments.label(call.values)), guarded=True)
        if short := lent.look():
            log.info("%s of %s is not asked for tuners: %s", variant.name, self._full_name, short)
            return ()
        joint = Joint(frozen=True, collects=True)
        knobs = variant.space.default.knobs if variant.space else {}
        try:
            under(joint, variant.call)(*call.args, **call.kwargs, **knobs)
        except Exception as err:  # it is told of when the variant is timed
            log.debug("%s of %s: %r", variant.name, self._full_name, err)
        finally:
            lent.put_back()
        return tuple(joint.found.values())

    def _job(
        self,
        choices: Mapping[Config, Choice],
        values: tuple[Any, ...],
        *,
        rehearsed: bool,
        launched: VariantLaunches | None,
        longest_s: float = LONGEST_S,
    ) -> Job:
        key = key_as_json(self._key(*values), values, self._arguments.names or None, self._key_names)
        roles = {KNOB: "algorithm"} if len(self.variants) > 1 else {}
        for variant in self.variants:
            roles.update(variant.space.roles if variant.space else {})
        space, hardware = Space(choices, roles=roles), self._hardware(device_of(values))
        described: Sequence[Mapping[str, float]] = ()
        if launched is not None:
            describe = functools.partial(launched.described, hardware=hardware)
            described = Described(space, describe, longest_s=longest_s)
        return Job(
            workload=Workload(
                program=self.program,
                key={**key, "autograd": True} if _is_tracked(values) else key,
                features={} if _hold_no_data(values) else features_of(values),
                check="" if rehearsed else check_name(self._check),
            ),
            space=space,
            hardware=hardware,
            toolchain=self._toolchain(),
            work=self._work_of(values),
            described=described,
        )

    def _with_work(self, job: Job) -> Job:
        """The job with the work that its configs are seen to do, if nobody says what there is."""
        return replace(job, work=work_of(job.described)) if self._work is None and job.described else job

    def _hardware(self, device: str) -> Hardware:
        if "triton" in self.reading.languages:
            from .triton_call import current_hardware

            if (current := current_hardware()).kind == "interpreter" or self._rehearsal() is not None:
                return current
        return detect_hardware(device)

    def _rehearsal(self) -> Rehearsal | None:
        """The rehearsal that plays the variants' kernels, if one does."""
        return current_rehearsal() if "triton" in self.reading.languages else None

    def _toolchain(self) -> Toolchain:
        import torch

        versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
        if "triton" in self.reading.languages:
            from .triton_call import current_toolchain

            versions.update(current_toolchain().versions)
        if {"c++", "cuda"} & self.reading.languages:
            versions.update(detect_cpp_toolchain(cuda="cuda" in self.reading.languages).versions)
        return Toolchain(versions=versions)

    def _store(self, hardware: Hardware, settings: Settings) -> Store:
        """The user's store; one in memory where times mean nothing to anybody later."""
        if hardware.kind != "interpreter":
            return make_store(settings)
        if self._memory is None:
            self._memory = SqliteStore.in_memory()
        return self._memory

    def _launched(self, choices: Mapping[Config, Choice], call: _Call) -> VariantLaunches | None:
        """What a call launches under each config; None where that is not to be asked, or there is no compiler for it."""
        if not self._ahead or not self.of_triton:
            return None
        from .triton_call import compiled_for

        def made(config: Config) -> Callable[..., Any] | None:
            choice = replace(choices[config], frozen=True)
            return choice.launcher() if choice.variant.name in self.of_triton else None

        return None if compiled_for() is None else VariantLaunches(made, call.args, call.kwargs)

    def _compiler(self, launched: VariantLaunches | None) -> Compiler:
        """What compiles ahead the Triton kernels that variants launch; the rest is compiled by its first launch."""
        if launched is None:
            return NoCompiler()
        from ..compilers.triton_launches import LaunchesCompiler
        from .triton_call import compiled_for

        if (aim := compiled_for()) is None:
            return NoCompiler()
        target, limits = aim
        return LaunchesCompiler(launched, target=target, properties=limits)

    def _measurer(self, choices: Mapping[Config, Choice], call: _Call, playing: Rehearsal | None) -> Lent:
        """What times them, on the caller's own tensors. In a rehearsal nothing is computed that could be compared."""

        default = next(iter(choices))
        followed: list[bool] = []  # of the default's results, which autograd follows

        def launch(config: Config) -> Launch:
            variant = replace(choices[config], frozen=True).launcher()
            seen = not _is_tracked(call.values)

            def run() -> Any:
                nonlocal seen
                result = variant(*call.args, **call.kwargs)
                if not seen:
                    seen, now = True, [t.requires_grad for t in tensors_in(result)]
                    if config == default:
                        followed[:] = now
                    elif any(followed) and now != followed:
                        raise TypeError("what it returns, autograd does not follow as it does the default's")
                return result

            return Launch(call=run)

        made: list[Clock] = []

        def clock(_: Config) -> Clock:
            if not made:
                made.append(_make_clock(device_of(call.values), playing))
            return made[0]

        return Lent(
            name=self._full_name,
            default=default,
            check=self._check if playing is None else None,
            launch=launch,
            clock=clock,
            arguments=lambda: LentArguments(_tensors(self._arguments.label(call.values)), guarded=playing is None),
            looks=playing is None,
        )

    def _work_of(self, values: tuple[Any, ...]) -> Work | None:
        if self._work is None:
            return None
        try:
            told = self._work(*values)
            return told if isinstance(told, Work) else Work(flops=float(told[0]), bytes=float(told[1]))
        except Exception as err:
            warnings.warn(f"work= of {self.name} failed ({err!r}): forecast without it", TuningWarning, stacklevel=6)
            return None


def _tensors(named: Mapping[str, Any]) -> dict[str, Any]:
    """The dense tensors among a call's arguments, those in lists included."""
    import torch

    flat: dict[str, Any] = {}
    for name, value in named.items():
        many = value if isinstance(value, (list, tuple)) else list(value.values()) if isinstance(value, dict) else None
        flat.update({name: value} if many is None else {f"{name}[{i}]": v for i, v in enumerate(many)})
    return {n: t for n, t in tensors_of(flat).items() if t.layout == torch.strided}


def _answers(found: Decision | None, budget: str) -> bool:
    """Whether a stored decision will be all that is asked for, so that nothing is to be forecast."""
    return found is not None and (found.basis == "measured" or not Budget(budget).measures)


def _make_clock(device: str, playing: Rehearsal | None) -> Clock:
    if playing is not None:
        from triton.runtime.driver import driver

        return EventClock(driver.active.get_device_interface())
    return CpuClock() if device == "cpu" else cuda_clock(device)


def _why_unmeasured(values: Sequence[Any]) -> str:
    """Why a call must not be timed or run twice now; empty if it may."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph was being captured"
    return "its tensors held no data" if _hold_no_data(values) else ""


def _is_tracked(values: Sequence[Any]) -> bool:
    """Whether autograd follows a call: a variant without a backward must not be chosen for it."""
    import torch

    return torch.is_grad_enabled() and any(getattr(v, "requires_grad", False) for v in values)


def _hold_no_data(values: Sequence[Any]) -> bool:
    """Whether a tensor among these stands for one that is somewhere else: fake, or on the meta device."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    fake = () if fakes is None else fakes.FakeTensor
    return any(isinstance(v, fake) or getattr(v, "is_meta", False) for v in values)
