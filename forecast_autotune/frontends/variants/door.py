"""How the dispatcher decides for `variants`: their front door, and one call to tune."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...compilers.no_compile import NoCompiler
from ...core.budget import Budget
from ...core.cached_property import cached_property
from ...core.config import Config
from ...core.decision import Decision
from ...core.hardware import Hardware
from ...core.job import Job
from ...core.outcome import Failure
from ...core.space import Space
from ...core.workload import Workload
from ...errors import AutotuneError
from ...features.launch_features import work_of
from ...features.lazy_static_features import LONGEST_S, LazyStaticFeatures
from ...measure.checks import check_name
from ...measure.clocks import Clock, CpuClock, EventClock, Launch, cuda_clock
from ...measure.copies import BorrowedArguments, CopiedArguments, Values
from ...measure.in_process import InProcess
from ...measure.probe import detect_hardware
from ...protocols import Compiler, Store
from ...tuning.loop import decision_without_run
from ..call_tensors import hold_no_data, reached_by_call, why_untuned
from ..keys import NoKeyError, features_of
from ..learnable_callable import LearnableCallable
from ..request import Request
from ..triton.simulated_driver import Rehearsal, current_rehearsal
from ..tuned_callable import Call, CallableDoor, work_of_call
from ..tuning_lock import tuning_lock
from .arguments import KNOB
from .launches import LONGEST_SHARE, VariantLaunches, form_of

if TYPE_CHECKING:
    from .joint_space import Choice
    from .tuned_variants import TunedVariants

log = logging.getLogger(__name__)

COMPILED = frozenset(("triton", "c++", "cuda"))  # languages whose kernels are compiled at their first launch
COMPILING = "torch.compile"  # why a traced call is not measured


class VariantsDoor(CallableDoor["TunedVariants"]):
    """The front door of `variants`; see `FrontDoor`. A launcher is a `Choice`."""

    def default(self, call: Call) -> Choice:  # noqa: ARG002
        """See `FrontDoor`: the first variant, with the tuners in it at their defaults."""
        return self._tuned.default(defaults_only=True)

    def tuning(self, call: Call, request: Request) -> _VariantsTuning:
        """See `FrontDoor`."""
        return _VariantsTuning(self._tuned, call, request)


class _VariantsTuning:
    """One call of variants to decide for; see `Tuning`."""

    device = ""

    def __init__(self, tuned: TunedVariants, call: Call, request: Request) -> None:
        self._tuned, self._call, self._request = tuned, call, request
        self._unmeasured = call.why_unmeasured
        self._is_compared = False  # with the default, in this process
        self.default = tuned.default(defaults_only=request.settings.mode == "first")

    @cached_property
    def _choices(self) -> Mapping[Config, Choice]:
        return self._tuned.choices(self._call, may_run=not self._unmeasured)

    @cached_property
    def _launched(self) -> VariantLaunches | None:
        if self._unmeasured not in ("", COMPILING):
            return None
        return launched_by(self._tuned, self._choices, self._call)

    @cached_property
    def job(self) -> Job | None:
        """See `Tuning`."""
        if odd := why_untuned(self._call.values, self._tuned.names):
            self._tuned.note_untuned(odd)
            return None
        if len(self._choices) == 1:
            return None
        longest_s = math.inf  # in mode forecast every rank must come to the same answer
        if self._request.settings.mode != "forecast":
            longest_s = min(LONGEST_S, LONGEST_SHARE * (self._request.budget.seconds or math.inf))
        try:
            job = job_of(self._tuned, self._choices, self._call, launched=self._launched, longest_s=longest_s)
        except NoKeyError as err:
            self._tuned.note_untuned(f"an argument is {err}")
            return None
        store = self._tuned.dispatcher.store(job.hardware, self._request.settings)
        if decision_without_run(job, store, Budget(self._request.budget)):
            return job  # nothing is to be forecast
        return with_work(self._tuned, job)

    @property
    def compiler(self) -> Compiler:
        """Compiles ahead the Triton kernels that variants launch; all else is compiled by its first launch."""
        return NoCompiler() if self._launched is None else _ahead(self._launched)

    def measurer(self) -> InProcess:
        """See `Tuning`."""
        return _measurer(self._tuned, self._choices, self._call)

    def launcher(self, config: Config) -> Choice:
        """See `Tuning`."""
        return self._choices[config]

    def refused(self, config: Config, measurer: InProcess) -> Failure | None:
        """See `Tuning`. The functions that a variant calls may have changed though its source has not."""
        if measurer.measured:
            return None  # in this process
        try:
            with tuning_lock.slow(True):  # both may have other threads call tuned functions, for which they wait
                failure = measurer.verify(config)
        except AutotuneError as err:  # such as memory that is short for copies
            log.debug("%s: %s is not compared with the default: %s", self._tuned.full_name, config, err)
            return None
        self._is_compared = self._tuned.check is not None  # else nothing has run
        return failure

    def fallback(self, decision: Decision, *, measured_here: bool) -> tuple[Choice, Config] | None:
        default = next(iter(self._choices.values()))
        runs = measured_here or self._is_compared or decision.config == default.config
        return None if runs else (default, default.config)

    def learnable(self) -> LearnableCallable | None:
        """See `Tuning`. None where the first call of a variant would wait for a compiler."""
        tuned, choices, launched, state = self._tuned, self._choices, self._launched, self._call.state
        if any(hasattr(function, "_torchdynamo_orig_callable") for function in tuned.callables):
            return None  # torch.compile
        ahead: dict[str, Any] = {"compiler": NoCompiler()}
        if compiled := frozenset[str]().union(*tuned.languages.values()) & COMPILED:
            if launched is None or compiled != {"triton"}:
                return None
            try:
                launched.outlive(state)
            except Exception as err:
                log.debug("%s is not learned from calls: %r", tuned.full_name, err)
                return None
            ahead = _compiled_in_background(launched, state.device_name, form_of(self._call.values))
        simulated = _rehearsal(tuned)
        if simulated is not None:
            ahead["new_event"] = _simulated_event
        is_checked = tuned.check is not None and simulated is None
        return LearnableCallable(
            device=state.device_name,
            launcher=choices.__getitem__,
            measurer=(lambda call: _measurer(tuned, choices, call)) if is_checked else None,
            **ahead,
        )

    def tell_listeners(self, decision: Decision, store: Store, *, measured: int, seconds: float) -> None:
        """Nobody listens to variants."""


def _measurer(tuned: TunedVariants, choices: Mapping[Config, Choice], call: Call) -> InProcess:
    """Times variants on copies of a call's arguments. Nothing is checked on the simulated driver."""
    simulated = _rehearsal(tuned)

    def launch(config: Config, values: Values) -> Launch:
        args, kwargs = values
        return Launch(call=functools.partial(replace(choices[config], defaults_only=True).call, *args, **kwargs))

    def arguments() -> CopiedArguments | BorrowedArguments:
        if simulated is not None:
            return BorrowedArguments(call.args, call.kwargs, restored={}, zeroed={})
        names = [name for name, _ in zip(tuned.arguments.names, call.args, strict=False)]
        return CopiedArguments(call.args, call.kwargs, names=names, **reached_by_call(tuned.callables, call.values))

    return InProcess(
        name=tuned.full_name,
        default=next(iter(choices)),
        check=tuned.check if simulated is None else None,
        launch=launch,
        clock=_one_clock(call.state.device_name, simulated),
        arguments=arguments,
    )


def _ahead(launched: VariantLaunches, **options: Any) -> Compiler:
    """Compiles what variants launch; nothing where there is no compiler."""
    from ...compilers.triton_launches import LaunchesCompiler
    from ..triton.target import compiled_for

    if (aim := compiled_for()) is None:
        return NoCompiler()
    target, limits = aim
    return LaunchesCompiler(launched, target=target, properties=limits, **options)


def _compiled_in_background(launched: VariantLaunches, device: str, form: Hashable) -> dict[str, Any]:
    """How a `LearnableCallable` compiles and loads what variants launch.

    Args:
        form: of the values of the call that is compiled for.
    """
    from ...compilers.triton_pool import background_pool

    def load(config: Config) -> bool:
        import torch

        with torch.cuda.device(device) if device != "cpu" else contextlib.nullcontext():
            return launched.load(config)

    return {
        "compiler": _ahead(launched, pool=background_pool()),
        "load": load,
        "is_built_for": lambda call: form_of(call.values) == form,
    }


def _simulated_event() -> Any:
    from triton.runtime.driver import driver

    return driver.active.get_device_interface().Event(enable_timing=True)


def job_of(
    tuned: TunedVariants,
    choices: Mapping[Config, Choice],
    call: Call,
    *,
    launched: VariantLaunches | None,
    longest_s: float = LONGEST_S,
) -> Job:
    """The job of a call.

    Raises:
        NoKeyError: an argument has no form that the key could hold.
    """
    values = call.values
    roles = {KNOB: "algorithm"} if len(tuned.variants) > 1 else {}
    for variant in tuned.variants:
        roles.update(variant.space.roles if variant.space else {})
    space, hardware = Space(choices, roles=roles), _hardware(tuned, call.state.device_name)
    static_features: Sequence[Mapping[str, float]] = ()
    if launched is not None:
        describe = functools.partial(launched.static_features, hardware=hardware)
        static_features = LazyStaticFeatures(space, describe, longest_s=longest_s)
    key = {**tuned.key_as_json(values), **tuned.state_as_json(call)}
    return Job(
        workload=Workload(
            program=tuned.program,
            key=key,
            features={} if hold_no_data(values) else features_of(values),
            check="" if _rehearsal(tuned) is not None else check_name(tuned.check),
        ),
        space=space,
        hardware=hardware,
        toolchain=tuned.toolchain,
        work=work_of_call(tuned.work, values, tuned.name),
        static_features=static_features,
    )


def with_work(tuned: TunedVariants, job: Job) -> Job:
    """The job with its work from its static features, unless the user's `work=` gives it."""
    return replace(job, work=work_of(job.static_features)) if tuned.work is None and job.static_features else job


def launched_by(tuned: TunedVariants, choices: Mapping[Config, Choice], call: Call) -> VariantLaunches | None:
    """The kernels that a call launches under each config; None without `compile_ahead` or a compiler."""
    if not tuned.compile_ahead or not tuned.of_triton:
        return None
    from ..triton.target import compiled_for

    def made(config: Config) -> Callable[..., Any] | None:
        choice = replace(choices[config], defaults_only=True)
        return choice.call if choice.variant.name in tuned.of_triton else None

    return None if compiled_for() is None else VariantLaunches(made, call.args, call.kwargs)


def _one_clock(device: str, simulated: Rehearsal | None) -> Callable[[Config], Clock]:
    """A function from a config to the one clock for all, made at the first."""

    @functools.cache
    def made() -> Clock:
        if simulated is not None:
            from triton.runtime.driver import driver

            return EventClock(driver.active.get_device_interface())
        return CpuClock() if device == "cpu" else cuda_clock(device)

    return lambda _: made()


def _hardware(tuned: TunedVariants, device: str) -> Hardware:
    if "triton" in tuned.reading.languages:
        from ..triton.target import current_hardware

        if (current := current_hardware()).kind == "interpreter" or _rehearsal(tuned) is not None:
            return current
    return detect_hardware(device)


def _rehearsal(tuned: TunedVariants) -> Rehearsal | None:
    """The rehearsal that the variants' kernels run in; None without kernels or without one."""
    return current_rehearsal() if "triton" in tuned.reading.languages else None
