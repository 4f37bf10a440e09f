"""How the configs of one call of a Triton kernel are timed: where, by which clock, and with what around each launch."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from triton import knobs
from triton.runtime.driver import driver

from ..compilers.triton_compile import TritonCompiler
from ..core.config import Config
from ..errors import TuningWarning
from ..measure.arguments import Snapshot, UnportableError
from ..measure.clocks import TIMED_S, BenchmarkClock, Clock, CpuClock, EventClock, Launch, cuda_clock
from ..measure.isolated import Isolated, Message
from ..measure.lent import Lent, LentArguments, names_of_storages, tensors_of
from ..measure.measuring import Measuring
from ..rehearsal_driver import current_rehearsal
from ..settings import Settings
from .triton_trials import describe_trial, trials_request, triton_trials

if TYPE_CHECKING:
    from .triton_call import TritonCall


def make_measurer(call: TritonCall) -> Measuring:
    """In a child process where that is asked for and something is compiled that can be handed there, else in this one."""
    tuner, timing = call.tuner, _Timing(call)
    rehearsed = current_rehearsal() is not None  # where nothing is computed there is nothing to see or to compare
    common: dict[str, Any] = {
        "name": f"kernel {tuner.name}",
        "default": call.job.space.default,
        "check": None if rehearsed else tuner.check,
        "tell_reads": None if rehearsed else timing.tell_reads,
    }
    settings = Settings.from_environment()
    isolate = tuner.isolate if settings.isolate == "auto" else settings.isolate == "1"
    if isolate and isinstance(call.compiler, TritonCompiler):
        tensors = tensors_of(call.named)
        return Isolated(
            job=triton_trials,
            describe=timing.describe,
            arguments=tuple(tensors.values()),
            request={
                **trials_request(driver.active.get_current_device(), timing=tuner.timing, **timing.durations),
                "names": names_of_storages(tensors),
            },
            log=settings.dir / "triton_trials.log",
            one_each=False,
            **common,
        )
    own_benchmark = tuner.user_do_bench is not None
    return Lent(
        launch=timing.launch,
        clock=timing.clock,
        arguments=timing.lend,
        looks=not rehearsed,
        untried=own_benchmark,
        repeatable=not own_benchmark,
        **common,
    )


class _Timing:
    """What a measurer asks of a call."""

    def __init__(self, call: TritonCall) -> None:
        self.call = call
        self.tuner = call.tuner
        self._device_clock: Clock | None = None

    # In this process ------------------------------------------------------------------------------------------------

    def lend(self) -> LentArguments:
        """The call's tensors, with those to restore and to zero before each launch."""
        tuner, tensors = self.tuner, tensors_of(self.call.named)
        for parameter, names in (("restore_value", tuner.restore_value), ("reset_to_zero", tuner.reset_to_zero)):
            for name in names:
                if self.call.named.get(name) is not None and name not in tensors:
                    raise UnportableError(
                        f"{parameter} names {name}, which is {self.call.named[name]!r} in this call: name tensors only"
                    )
        hooked = tuner.user_do_bench is not None and tuner.check is None  # then Triton's own hooks do it
        return LentArguments(
            tensors,
            restored=[] if hooked else [n for n in tuner.restore_value if n in tensors],
            zeroed=[] if hooked else [n for n in tuner.reset_to_zero if n in tensors],
        )

    def launch(self, config: Config) -> Launch:
        """A launch under a config, with the config's hook and the user's own around it."""
        if knobs.autotuning.print:
            print(f"Autotuning kernel {self.tuner.name} with config {self.call.theirs(config)}")
        tuner = self.tuner
        return self._hooked(config, pre=tuner.user_defined_pre_hook, post=tuner.user_defined_post_hook)

    def _hooked(self, config: Config, *, pre: bool, post: bool) -> Launch:
        """A launch under a config with its hook, and the tuner's where they are wanted."""
        call, tuner, theirs = self.call, self.tuner, self.call.theirs(config)
        keywords = {**call.kwargs, **theirs.all_kwargs()}
        named = {**call.named, **theirs.all_kwargs()}
        hooks = [hook for hook, wanted in ((theirs.pre_hook, theirs.pre_hook), (tuner.pre_hook, pre)) if wanted]

        def before() -> None:
            for hook in hooks:
                hook(named)

        def launched() -> None:
            try:
                tuner.fn.run(*call.args, **keywords)
            except Exception as err:
                if post:
                    tuner.post_hook(named, exception=err)
                raise

        after = functools.partial(tuner.post_hook, named, exception=None) if post else None
        return Launch(call=launched, before=before if hooks else None, after=after)

    def clock(self, config: Config) -> Clock:
        if self.tuner.user_do_bench is not None:
            benchmark = BenchmarkClock(_telling(self.tuner.do_bench), self._hooked(config, pre=True, post=True).once)
            self.call.told_ms[config] = benchmark.quantiles_ms
            return benchmark
        if self._device_clock is None:
            self._device_clock = self._make_clock()
        return self._device_clock

    def _make_clock(self) -> Clock:
        if knobs.runtime.interpret:
            return CpuClock(self.durations["timed_s"])
        device = driver.active.get_current_device()
        if current_rehearsal() is None and torch.cuda.is_available():
            return cuda_clock(torch.device("cuda", device), graph=self.tuner.timing == "graph", **self.durations)
        cache = driver.active.get_empty_cache_for_benchmark()
        flush = None if cache is None else functools.partial(driver.active.clear_cache, cache)
        return EventClock(driver.active.get_device_interface(), flush=flush, **self.durations)

    # In a child -----------------------------------------------------------------------------------------------------

    def describe(self, config: Config, copy: Snapshot) -> Message:
        """What a child needs to run a config.

        Raises:
            UnportableError: something that only this process has takes part in a launch.
        """
        tuner, call = self.tuner, self.call
        for what, there in (
            ("a pre_hook", tuner.user_defined_pre_hook),
            ("a post_hook", tuner.user_defined_post_hook),
            ("a do_bench", tuner.user_do_bench is not None),
        ):
            if there:
                raise UnportableError(
                    f"configs were to be timed in a child process, which cannot run {what} of the user's: leave isolate= "
                    "and FORECAST_AUTOTUNE_ISOLATE out"
                )
        if not isinstance(call.compiler, TritonCompiler):
            raise UnportableError("nothing is compiled here that a child process could run")
        made = call.compiler.source(config)
        if config in call.hooked:
            raise UnportableError(
                f"configs were to be timed in a child process, which cannot run the pre_hook of {call.theirs(config)}: it "
                "changes tensors; leave isolate= and FORECAST_AUTOTUNE_ISOLATE out"
            )
        zeroed = [v for n in tuner.reset_to_zero if (v := call.named.get(n)) is not None]
        return describe_trial(made, call.kwargs["grid"], copy, zeroed)

    # Both -----------------------------------------------------------------------------------------------------------

    @property
    def durations(self) -> dict[str, Any]:
        """How long to time and to warm up, in seconds, where Triton's older arguments say so."""
        warmups, reps = self.tuner.num_warmups, self.tuner.num_reps
        return {
            "timed_s": TIMED_S if reps is None else reps / 1e3,
            "warmup_s": 0.0 if warmups is None else warmups / 1e3,
        }

    def tell_reads(self, names: Sequence[str]) -> None:
        """Say that what the kernel computes depends on how often it is run, unless the user has said so already."""
        known = {*self.tuner.restore_value, *self.tuner.reset_to_zero}
        unknown = [group for group in names if not known.intersection(group.split(", "))]  # of one memory
        if not unknown or self.tuner.user_defined_pre_hook:
            return
        warnings.warn(
            f"kernel {self.tuner.name} reads what it writes to {', '.join(unknown)}: name that in restore_value, or in "
            "reset_to_zero if it is to start from zeros. It was put back before every run of this tuning, which Triton's "
            "own tuner would not do",
            TuningWarning,
            stacklevel=2,
        )


def _telling(do_bench: Callable[..., Any]) -> Callable[..., Any]:
    """A benchmark that says why it fails where Triton is asked to."""

    @functools.wraps(do_bench)
    def benchmark(*args: Any, **kwargs: Any) -> Any:
        try:
            return do_bench(*args, **kwargs)
        except Exception as err:
            if knobs.autotuning.print:
                print(f"Autotuning failed with {err}")
            raise

    return benchmark
