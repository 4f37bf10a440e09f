"""Inductor's candidates timed by our clock, whose times are the device's alone.

Inductor makes launch after launch. Where the host takes longer to launch than the device to run, as while compilers work
beside it, it reports the host's time: up to 4 times the device's for the library (H200, torch 2.11: 38.9 us for 9.1).

Before it fuses it times once more: the template with the epilogue in it, against the library and the epilogue on its own.
All are timed alike, for a template on warm caches looks quick beside a library on cold ones (H200, a product before a GELU:
chosen so, it took 68 us on cold ones, the library and the GELU 56).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...core.fork_safe_lock import fork_safe_lock
from ...core.outcome import SWITCH_MARGIN
from ...measure.clocks import EventClock, Launch
from ...measure.gpu import Flush, spin
from .stragglers import is_left_behind, wait_after_all

log = logging.getLogger(__name__)

TIMED_S = 0.025  # of each candidate: as long as Inductor would at most
MIN_US = 0.1  # that a call adds, whatever the noise of two times says
_CLOCK_LOCK = fork_safe_lock()  # whoever holds it has Inductor's benchmarker timing by our clock


def by_our_clock(benchmark_choices: Callable[..., dict[Any, float]], is_wanted: Callable[[], bool]) -> Any:
    """Inductor's `benchmark_choices`, which has our clock time what it runs; what was left behind it does not run.

    Where nothing else runs, that is waited for and timed after all, for Inductor raises where it has no time at all.

    Args:
        benchmark_choices: takes candidates, their arguments, and whether all ranks time them together; returns milliseconds
            by candidate, infinite for one that does not run.
        is_wanted: whether it is to be done; asked each time.
    """

    @functools.wraps(benchmark_choices)
    def benchmarked(choices: Sequence[Any], *others: Any, **named: Any) -> dict[Any, float]:
        device = choices[0].layout.device if choices else None
        ours = device is not None and device.type == "cuda" and is_wanted()
        with _clock_on(device) if ours else contextlib.nullcontext():
            timings = benchmark_choices([choice for choice in choices if not is_left_behind(choice)], *others, **named)
            if (left := list(filter(is_left_behind, choices))) and not any(map(math.isfinite, timings.values())):
                wait_after_all(left)
                timings |= benchmark_choices(left, *others, **named)
        return {choice: timings.get(choice, math.inf) for choice in choices}

    return benchmarked


def timed_within_total(
    do_autotuning: Callable[..., Any], time_within_total: Callable[[Sequence[Any], Callable[[], Any]], Any]
) -> Any:
    """Inductor's method that waits for compilers of an operation's candidates and times them, within the process's total.

    Args:
        do_autotuning: takes candidates by the name `choices`, among others; returns milliseconds by candidate.
        time_within_total: takes candidates and what times them; returns the like.
    """
    signature = inspect.signature(do_autotuning)

    @functools.wraps(do_autotuning)
    def autotuned(*args: Any, **named: Any) -> Any:
        choices = signature.bind(*args, **named).arguments["choices"]
        return time_within_total(choices, lambda: do_autotuning(*args, **named))

    return autotuned


def timed_in_this_process(
    lookup: Callable[..., dict[Any, float]], known_times_ms: Callable[[Sequence[Any]], dict[Any, float] | None]
) -> Any:
    """Inductor's `lookup` of times, which answers for candidates of ours with those of this process alone.

    Inductor keeps all times on disk, whichever clock told them, and infinite ones of what was left behind.

    Args:
        lookup: takes candidates, the operation, its inputs, and what times candidates, or None to time nothing; returns
            milliseconds by candidate.
        known_times_ms: takes candidates; returns the milliseconds of those that were timed, or None where none is ours.
    """

    @functools.wraps(lookup)
    def looked_up(
        cache: Any, choices: Sequence[Any], op: str, inputs: str, benchmark: Any, *others: Any, **named: Any
    ) -> Any:
        known = known_times_ms(choices)
        if known is None:
            return lookup(cache, choices, op, inputs, benchmark, *others, **named)
        if benchmark is None or len(known) == len(choices):
            return known
        return benchmark(choices)

    return looked_up


def fused_by_our_clock(
    benchmark_codegened_module: Callable[..., tuple[float, str]], is_wanted: Callable[[], bool]
) -> Any:
    """Inductor's method that times a kernel which it may fuse, or an epilogue on its own, by our clock.

    A template is told at `SWITCH_MARGIN` more than it takes: it must be better than what it takes the place of by more than
    the noise. An epilogue is told at what it adds to what ran before it: it reads what was just written, and no events are
    between.

    Args:
        benchmark_codegened_module: takes a module that was written for this, and the names of its nodes where it is an
            epilogue, or a prologue, on its own; returns milliseconds and the module's path.
        is_wanted: whether it is to be done; asked each time.
    """
    timed: set[str] = set()

    @functools.wraps(benchmark_codegened_module)
    def benchmarked(scheduling: Any, mod: Any, *others: Any, **named: Any) -> tuple[float, str]:
        from torch._inductor.runtime.hints import HeuristicType
        from torch._inductor.virtualized import V

        device = V.graph.get_current_device_or_throw()
        if device.type != "cuda" or not is_wanted():
            return benchmark_codegened_module(scheduling, mod, *others, **named)
        if mod.__file__ not in timed:  # what is kept there may be by Inductor's clock, of another process
            Path(mod.__file__).with_suffix(".kernel_perf").unlink(missing_ok=True)
            timed.add(mod.__file__)
        with _clock_on(device, added=named.get("node_names") is not None):
            ms, path = benchmark_codegened_module(scheduling, mod, *others, **named)
        is_template = mod.triton_.heuristic_type is HeuristicType.TEMPLATE
        return ms * (1.0 + SWITCH_MARGIN) if is_template else ms, path

    return benchmarked


def generated_by_our_clock(
    bench: Callable[..., float],
    is_wanted: Callable[[], bool],
    note: Callable[[Any, Any, float | None], None] = lambda *_: None,
) -> Any:
    """Inductor's method that times a config of a kernel it has generated, by our clock, and the kernel alone.

    Inductor has what a kernel changes copied before each launch, or brought back from the host after it, and counts that:
    1.9 ms for a GELU in place of 74 us, 973 us for a kernel of 56 (H100, torch 2.11). Here each config has one copy, and
    what lies on the host is brought back once. Inductor goes on timing kernels that users wrote, and kernels that change
    tensors of integers: an integer may be an index, which repeated runs could push out of bounds. And whatever our clock
    does not come to an end with, for want of memory say.

    Args:
        bench: takes a launcher and its arguments; returns milliseconds.
        is_wanted: whether it is to be done; asked each time.
        note: told the kernel, the launcher, and the milliseconds; None where they are not our clock's.
    """

    @functools.wraps(bench)
    def benchmarked(kernel: Any, launcher: Any, *args: Any, **named: Any) -> float:
        is_generated = not kernel.custom_kernel and not kernel.reset_to_zero_arg_names
        of_kernel = {name: value for name, value in named.items() if name != "with_profiler"}
        if (
            kernel.device_props.type != "cuda"
            or not is_generated
            or not is_wanted()
            or not _changes_only_floats(kernel, args, of_kernel)
        ):
            note(kernel, launcher, None)
            return bench(kernel, launcher, *args, **named)
        on_host: dict[str, Any] = {}

        def kept_on_host(*given: Any, **also: Any) -> dict[str, Any]:
            on_host.update(kernel.copy_args_to_cpu_if_needed(*given, **also))
            return on_host

        @functools.cache
        def cloned() -> Any:
            return kernel.maybe_clone_args(on_host, *args, **of_kernel)

        its_class: Any = type(kernel)
        stands_in = its_class.__new__(its_class)  # for other threads may time the same kernel
        vars(stands_in).update(vars(kernel))
        stands_in.copy_args_to_cpu_if_needed = kept_on_host
        stands_in.maybe_clone_args = lambda *_, **__: cloned()
        stands_in.restore_args_from_cpu = lambda _: None
        try:
            with _clock_on(torch.device("cuda", kernel.device_props.index or 0)):
                ms = bench(stands_in, launcher, *args, **named)
            note(kernel, launcher, ms)
            return ms
        except Exception as err:
            log.info("a generated kernel is timed by Inductor's clock: %s", err)
        finally:
            kernel.restore_args_from_cpu(on_host)
        note(kernel, launcher, None)
        return bench(kernel, launcher, *args, **named)

    return benchmarked


def _changes_only_floats(kernel: Any, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    by_name = {**dict(zip(kernel.fn.arg_names, args, strict=False)), **named}
    changed = [by_name[name] for name in kernel.mutated_arg_names if name in by_name]
    return all(isinstance(each, torch.Tensor) and each.is_floating_point() for each in changed)


def clock_of(device: Any) -> EventClock:
    """What the events add is not taken off: Inductor goes on to compare these times with some of its own clock."""
    return EventClock(torch.cuda, flush=Flush(device), spin=spin, timed_s=TIMED_S, on=lambda: torch.cuda.device(device))


@contextlib.contextmanager
def _clock_on(device: Any, *, added: bool = False) -> Iterator[None]:
    """Have whatever Inductor times on a device meanwhile be timed by our clock; it holds the device's memory so long.

    They nest: what a kernel is fused to has its config chosen while it is timed. Other threads wait.

    Args:
        added: whether what is told of a call is what it adds to an equal one before it.
    """
    from torch._inductor.runtime.benchmarking import benchmarker

    with _CLOCK_LOCK, _clock_in(benchmarker, device, added=added):
        yield


@contextlib.contextmanager
def _clock_in(benchmarker: Any, device: Any, *, added: bool) -> Iterator[None]:
    outer = vars(benchmarker).get("benchmark_gpu")
    clock, theirs = clock_of(device), benchmarker.benchmark_gpu

    def timed_us(call: Callable[[], Any]) -> float:
        return clock.measure(Launch(call=call), first_us=0.0).median_us

    def benchmark_gpu(call: Callable[[], Any], *others: Any, **named: Any) -> Any:
        if named.get("return_mode", "min") != "min" or named.get("grad_to_none") is not None:
            return theirs(call, *others, **named)
        call()  # it is compiled and loaded, and raises here if it does not run
        clock.synchronize()
        once_us = timed_us(call)
        us = max(timed_us(lambda: (call(), call())) - once_us, MIN_US) if added else once_us
        return us / 1e3

    benchmarker.benchmark_gpu = benchmark_gpu
    try:
        yield
    finally:
        if outer is None:
            vars(benchmarker).pop("benchmark_gpu", None)
        else:
            benchmarker.benchmark_gpu = outer
