"""How the configs of one call of a Triton kernel are timed: in which process, by which clock, with which hooks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from triton import knobs
from triton.runtime.driver import driver

from ...compilers.triton_compile import TritonCompiler
from ...core.config import Config
from ...core.user_warnings import warn_user
from ...errors import TuningWarning
from ...measure.arguments import Snapshot
from ...measure.base import BaseMeasurer
from ...measure.clocks import TIMED_S, BenchmarkClock, Clock, CpuClock, EventClock, Launch, cuda_clock
from ...measure.copies import BorrowedArguments, CopiedArguments, UnportableError, Values, names_of_storages, tensors_of
from ...measure.in_process import InProcess
from ...measure.isolated import Isolated
from ...processes.channel import Message
from ...settings import Settings
from .isolated_trials import describe_trial, trials_request, triton_trials
from .simulated_driver import current_rehearsal

if TYPE_CHECKING:
    from .call import TritonCall


def make_measurer(call: TritonCall) -> BaseMeasurer:
    """The measurer of a call: in a child process where that is asked for and the kernel is compiled, else in this one."""
    spec, timing = call.spec, _Timing(call)
    rehearsed = current_rehearsal() is not None  # where nothing is computed there is nothing to see or to compare
    common: dict[str, Any] = {
        "name": f"kernel {spec.name}",
        "default": call.job.space.default,
        "check": None if rehearsed else spec.check,
        "tell_reads": None if rehearsed else timing.tell_reads,
        "tell_error": timing.tell_error,
    }
    settings = Settings.from_environment()
    if spec.isolates(settings) and isinstance(call.compiler, TritonCompiler):
        tensors = tensors_of(call.named)
        return Isolated(
            job=triton_trials,
            describe=timing.describe,
            arguments=tuple(tensors.values()),
            request={
                **trials_request(driver.active.get_current_device(), timing=spec.timing, **timing.durations),
                "names": names_of_storages(tensors),
            },
            log=settings.dir / "triton_trials.log",
            one_each=False,
            **common,
        )
    return InProcess(
        launch=timing.launch,
        clock=timing.clock,
        arguments=timing.arguments,
        draws=timing.hooks,
        untried=timing.is_left_to_the_user,
        repeatable=spec.own_do_bench is None,
        **common,
    )


class _Timing:
    """A call for its measurer: arguments, launches, clocks, messages."""

    def __init__(self, call: TritonCall) -> None:
        self.call = call
        self.spec = call.spec
        self._device_clock: Clock | None = None
        self._printed: set[Config] = set()

    # In this process ------------------------------------------------------------------------------------------------

    @property
    def is_left_to_the_user(self) -> bool:
        """Whether only the user's own benchmark runs a config; it may count the runs."""
        return self.spec.own_do_bench is not None and self.spec.check is None

    @property
    def hooks(self) -> bool:
        """Whether the user's code runs around a launch; only that may draw the process's random numbers."""
        spec, call = self.spec, self.call
        own = spec.own_do_bench or spec.user_defined_pre_hook or spec.user_defined_post_hook
        return bool(own) or any(call.theirs(c).pre_hook is not None for c in call.job.space)

    def arguments(self) -> CopiedArguments | BorrowedArguments:
        """Copies of the call's; its own tensors where there is nothing to copy, or no memory for it.

        Raises:
            UnportableError: there is no memory for copies, and nobody says what is written; or a name is no tensor's.
        """
        spec, call = self.spec, self.call
        tensors = tensors_of(call.named)
        for parameter, names in (("restore_value", spec.restore_value), ("reset_to_zero", spec.reset_to_zero)):
            for name in names:
                if call.named.get(name) is not None and name not in tensors:
                    raise UnportableError(
                        f"{parameter} names {name}, which is {call.named[name]!r} in this call: name tensors only"
                    )
        restored = {n: tensors[n] for n in spec.restore_value if n in tensors}
        zeroed = {n: tensors[n] for n in spec.reset_to_zero if n in tensors}
        if self.is_left_to_the_user:  # to Triton's own hooks, too
            return BorrowedArguments(call.args, call.kwargs, restored={}, zeroed={})
        borrowed = functools.partial(BorrowedArguments, call.args, call.kwargs, restored=restored, zeroed=zeroed)
        if current_rehearsal() is not None:
            return borrowed()
        try:
            return CopiedArguments(call.args, call.kwargs, names=spec.arg_names, restored=restored, zeroed=zeroed)
        except UnportableError as err:
            if spec.check is None and (restored or zeroed):
                return borrowed()
            raise UnportableError(
                f"{err}. Nothing is measured, unless restore_value or reset_to_zero name what the kernel writes and check= "
                "is left out: then configs run on the tensors themselves"
            ) from None

    def launch(self, config: Config, values: Values) -> Launch:
        """A launch under a config, with the config's hook and the user's own around it."""
        spec = self.spec
        if knobs.autotuning.print and config not in self._printed:
            self._printed.add(config)
            print(f"Autotuning kernel {spec.name} with config {self.call.theirs(config)}")
        return self._hooked(config, values, pre=spec.user_defined_pre_hook, post=spec.user_defined_post_hook)

    def _hooked(self, config: Config, values: Values, *, pre: bool, post: bool) -> Launch:
        """A launch under a config with its hook, and the tuner's where they are wanted."""
        spec, theirs = self.spec, self.call.theirs(config)
        args, kwargs = values
        keywords = {**kwargs, **theirs.all_kwargs()}
        named = {**spec.by_name(args), **keywords}
        hooks = [hook for hook, wanted in ((theirs.pre_hook, theirs.pre_hook), (spec.pre_hook, pre)) if wanted]

        def before() -> None:
            for hook in hooks:
                hook(named)

        def launched() -> None:
            try:
                spec.fn.run(*args, **keywords)
            except Exception as err:
                if post:
                    spec.post_hook(named, exception=err)
                raise

        def after() -> None:
            spec.post_hook(named, exception=None)

        return Launch(call=launched, before=before if hooks else None, after=after if post else None)

    def clock(self, config: Config) -> Clock:
        if self.spec.own_do_bench is not None:
            values = self.call.args, self.call.kwargs
            launch = self._hooked(config, values, pre=True, post=True)
            benchmark = BenchmarkClock(_printing_failures(self.spec.own_do_bench), launch.once)
            self.call.benchmarks[config] = benchmark
            return benchmark
        if self._device_clock is None:
            self._device_clock = self._make_clock()
        return self._device_clock

    def _make_clock(self) -> Clock:
        if knobs.runtime.interpret:
            return CpuClock(self.durations["timed_s"])
        device = driver.active.get_current_device()
        if current_rehearsal() is None and torch.cuda.is_available():
            return cuda_clock(torch.device("cuda", device), timing=self.spec.timing, **self.durations)
        cache = driver.active.get_empty_cache_for_benchmark()
        flush = None if cache is None else functools.partial(driver.active.clear_cache, cache)
        return EventClock(driver.active.get_device_interface(), flush=flush, **self.durations)

    # In a child -----------------------------------------------------------------------------------------------------

    def describe(self, config: Config, copy: Snapshot) -> Message:
        """What a child needs to run a config.

        Raises:
            UnportableError: something that only this process has takes part in a launch.
        """
        spec, call = self.spec, self.call
        for what, is_set in (
            ("a pre_hook", spec.user_defined_pre_hook),
            ("a post_hook", spec.user_defined_post_hook),
            ("a do_bench", spec.own_do_bench is not None),
        ):
            if is_set:
                raise UnportableError(
                    f"configs were to be timed in a child process, which cannot run {what} of the user's: leave isolate= "
                    "and FORECAST_AUTOTUNE_ISOLATE out"
                )
        if not isinstance(call.compiler, TritonCompiler):
            raise UnportableError("nothing is compiled here that a child process could run")
        made = call.compiler.source(config)
        if config in call.arguments_of.hooked:
            raise UnportableError(
                f"configs were to be timed in a child process, which cannot run the pre_hook of {call.theirs(config)}: it "
                "changes tensors; leave isolate= and FORECAST_AUTOTUNE_ISOLATE out"
            )
        zeroed = [v for n in spec.reset_to_zero if (v := call.named.get(n)) is not None]
        return describe_trial(made, call.kwargs["grid"], copy, zeroed)

    # Both -----------------------------------------------------------------------------------------------------------

    @property
    def durations(self) -> dict[str, Any]:
        """How long to time and to warm up, in seconds, by Triton's older arguments."""
        warmups, reps = self.spec.warmup_ms, self.spec.rep_ms
        return {
            "timed_s": TIMED_S if reps is None else reps / 1e3,
            "warmup_s": 0.0 if warmups is None else warmups / 1e3,
        }

    def tell_error(self, config: Config, message: str) -> None:
        """Warn of a config that raised what Triton's own tuner would not have caught."""
        warn_user(
            f"kernel {self.spec.name}: {self.call.theirs(config)} raised {message}. Tuning goes on without it; "
            "Triton's own tuner would have raised this",
            TuningWarning,
        )

    def tell_reads(self, names: Sequence[str]) -> None:
        """Warn that the kernel reads what it writes, unless the user has said so."""
        known = {*self.spec.restore_value, *self.spec.reset_to_zero}
        unknown = [group for group in names if not known.intersection(group.split(", "))]  # of one memory
        if not unknown or self.spec.user_defined_pre_hook:
            return
        warn_user(
            f"kernel {self.spec.name} reads what it writes to {', '.join(unknown)}: name that in restore_value, or in "
            "reset_to_zero if it is to start from zeros. It was put back before every run of this tuning, which Triton's "
            "own tuner would not do",
            TuningWarning,
        )


def _printing_failures(do_bench: Callable[..., Any]) -> Callable[..., Any]:
    """The benchmark; it prints why it fails where Triton's setting asks for that."""

    @functools.wraps(do_bench)
    def benchmark(*args: Any, **kwargs: Any) -> Any:
        try:
            return do_bench(*args, **kwargs)
        except Exception as err:
            if knobs.autotuning.print:
                print(f"Autotuning failed with {err}")
            raise

    return benchmark
