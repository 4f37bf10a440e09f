# ruff: noqa: ARG002, ARG004  # a driver takes what Triton passes to every driver
"""A simulated Triton driver: kernels compile for a named GPU and meet its limits; launches take recorded times.

For tests and demonstrations. Its times say something about the tuner, never about a kernel. Its hardware is of kind
`stub`, which no real key matches.
"""

from __future__ import annotations

import functools
import itertools
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...core.config import Config
from ...core.hardware import Hardware
from ...core.outcome import Failure
from ...features.hardware_sheets import device_properties, sheet_for, target_of, tensor_peak_gflops
from .recorded_times import RecordedTimes, Times, is_scalar

_EVENT_MS = 1e-3  # about the time between two events around nothing; a benchmark divides by it

# Triton keeps kernels by device index. Each rehearsal has an index of its own, for each has limits of its own.
_indices = itertools.count(1000)


class RehearsedFailureError(RuntimeError):
    """A launch of a config whose recording says that it failed; the message is the recorded one."""


class Rehearsal:
    """The simulated device: its hardware, its clock, and counts of what was done on it.

    Attributes:
        clock_us: the device's time so far, microseconds.
        launches: by kernel and config.
        compiles, cache_hits: compiles and disk-cache hits in this process, by kernel. A compile in a worker shows as the
            hit that follows.
        loads: kernels made ready to launch, by name.
        recorded: the outcomes that launches play.
    """

    def __init__(self, hardware: Hardware, target: Any, times: Times | None, *, realtime: bool) -> None:
        self.sheet = hardware
        self.hardware = replace(
            hardware,
            kind="stub",
            name=f"rehearsed {hardware.name}",
            peak_tensor_gflops=tensor_peak_gflops(hardware),  # which the name would no longer tell
        )
        self.target = target
        self.properties = device_properties(hardware)
        self.realtime = realtime
        self.device = next(_indices)
        self.clock_us = 0.0
        self.launches: Counter[tuple[str, Config]] = Counter()
        self.compiles: Counter[str] = Counter()
        self.cache_hits: Counter[str] = Counter()
        self.loads: Counter[str] = Counter()
        self._busy_until_s = 0.0
        self.recorded = RecordedTimes(times)

    def synchronize(self) -> None:
        """Wait until the device is idle: at once, unless launches last in real time."""
        if self.realtime and (left := self._busy_until_s - time.perf_counter()) > 0:
            time.sleep(left)

    def launch(self, kernel: str, values: Mapping[str, object], shown: Sequence[str] = ()) -> None:
        """Let a launch's recorded time pass.

        Args:
            values: arguments and options of the launch by name.
            shown: names that make up its config where no recording names its knobs.
        Raises:
            InvalidInputError: nothing is recorded for it.
            RehearsedFailureError: a failure is.
        """
        config, outcome = self.recorded.outcome(kernel, values, shown)
        if isinstance(outcome, Failure):
            raise RehearsedFailureError(f"{outcome.stage}: {outcome.message}")
        samples = outcome.samples_us
        lasts_us = samples[self.launches[kernel, config] % len(samples)]
        self.launches[kernel, config] += 1
        self.clock_us += lasts_us
        if self.realtime:
            self._busy_until_s = max(self._busy_until_s, time.perf_counter()) + lasts_us * 1e-6


@contextmanager
def rehearsal(
    target: str = "cuda:90",
    times: Times | None = None,
    *,
    hardware: Hardware | None = None,
    realtime: bool = False,
) -> Iterator[Rehearsal]:
    """Run Triton kernels on a GPU that is only named: they compile for it, meet its limits, and take recorded times.

        with rehearsal("cuda:90", times={Config({"BLOCK": 128, "num_warps": 4}): 12.5}) as on:
            kernel[grid](x, y, n)
        assert on.clock_us == 12.5

    Nothing is computed: arguments keep their values. The driver that was active before is active again afterwards.

    Args:
        target: `cuda:90`, `hip:gfx942`, or a product with a sheet, such as `H100`.
        times: microseconds: one number for every launch, by config, a recording (or one for each key), or any of these by
            kernel name. Without it, kernels can be compiled and warmed up but not launched.
        hardware: another sheet than the target's usual one.
        realtime: make a launch last for real as long as it was recorded, so that wall times can be compared.
    Yields:
        The device, with its clock and its counts.
    Raises:
        InvalidInputError: an unknown target; times that are none.
    """
    from triton import knobs
    from triton.runtime.driver import driver

    from ...compilers.triton_source import gpu_target

    sheet = hardware or sheet_for(target)
    device = Rehearsal(sheet, gpu_target(target_of(sheet)), times, realtime=realtime)
    before, listened = dict(vars(driver)), knobs.compilation.listener

    def listener(**event: Any) -> None:
        counter = device.cache_hits if event.get("cache_hit") else device.compiles
        counter[event["src"].name] += 1
        if listened is not None:
            listened(**event)

    driver.set_active(_driver_class()(device))
    knobs.compilation.listener = listener
    try:
        with _unloaded_afterwards():
            yield device
    finally:
        knobs.compilation.listener = listened
        vars(driver).clear()
        vars(driver).update(before)


@contextmanager
def _unloaded_afterwards() -> Iterator[None]:
    """Let go of the kernels that are loaded meanwhile: Triton would unload them by the driver that is active later."""
    from triton.compiler import CompiledKernel

    loaded: weakref.WeakSet[Any] = weakref.WeakSet()
    load = CompiledKernel._init_handles

    def load_and_note(kernel: Any) -> None:
        load(kernel)
        loaded.add(kernel)

    CompiledKernel._init_handles = load_and_note
    try:
        yield
    finally:
        CompiledKernel._init_handles = load
        for kernel in loaded:
            kernel.module = kernel._run = None


def current_rehearsal() -> Rehearsal | None:
    """The rehearsal whose driver is active; None on a real driver, and where there is none."""
    from triton.runtime.driver import driver

    active = vars(driver).get("_active") or vars(driver).get("active")
    return active.rehearsal if isinstance(active, _SimulatedDriver) else None


def times_mean_nothing(hardware: Hardware) -> bool:
    """Whether times on it say nothing to a later process: interpreted kernels, and no GPU, unless it is rehearsed."""
    return hardware.kind in ("interpreter", "stub") and current_rehearsal() is None


class _SimulatedDriver:
    """Triton's questions to a driver, answered from a hardware sheet and a recording."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.utils = _Utilities(rehearsal)
        self.launcher_cls = lambda source, metadata: _launcher(rehearsal, source, metadata)
        self._interface = _device_interface(rehearsal)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> Any:
        return self.rehearsal.target

    def get_current_device(self) -> int:
        return self.rehearsal.device

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        major, _, minor = self.rehearsal.hardware.capability.partition(".")
        return (int(major), int(minor)) if minor.isdigit() else (9, 4)  # what torch says of an MI300

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return self._interface

    def get_empty_cache_for_benchmark(self) -> None:
        return None

    def clear_cache(self, cache: None) -> None:
        pass

    def get_benchmarker(self) -> Any:
        from triton.testing import do_bench

        return do_bench

    def allocate_default_profile_scratch(self, size: int, alignment: int, stream: Any) -> Any:
        import torch

        return torch.zeros(size, dtype=torch.int8)


@functools.cache
def _driver_class() -> Callable[[Rehearsal], Any]:
    """The class with Triton's base, which needs triton imported."""
    from triton.backends.driver import DriverBase

    return type("RehearsalDriver", (_SimulatedDriver, DriverBase), {})


class _Utilities:
    """Properties and loading. Registers come from the real cubin, so that too many threads are refused."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self.rehearsal.properties

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[object, int, int, int, int]:
        from ...compilers.triton_evidence import cubin_facts, most_threads

        self.rehearsal.loads[name] += 1
        facts = cubin_facts(kernel)
        registers = facts.get("registers") or 0
        spilled = (facts.get("stack_bytes") or 0) // 4
        return object(), 1, registers, spilled, most_threads(registers, self.rehearsal.properties)

    def unload_module(self, module: object) -> None:
        pass


def _launcher(rehearsal: Rehearsal, source: Any, metadata: Any) -> Callable[..., None]:
    """The function that Triton launches a kernel by.

    It takes the grid's three sizes, stream, function, packed metadata, launch metadata, both hooks, then the kernel's
    arguments.
    """
    from ...features.knob_roles import TRITON_OPTIONS

    names = tuple(getattr(getattr(source, "fn", None), "arg_names", ()))
    options = {name: value for name, value in metadata._asdict().items() if is_scalar(value)}
    constants = [names[path[0]] for path in source.constants if len(path) == 1 and path[0] < len(names)]
    shown = (*constants, *(name for name in TRITON_OPTIONS if options.get(name) is not None))
    kernel = source.name

    def launch(*given: Any) -> None:
        grid, (launch_metadata, enter, leave), args = given[:3], given[6:9], given[9:]
        if enter is not None:
            enter(launch_metadata)
        if grid[0] * grid[1] * grid[2] > 0:
            values = {name: _unwrapped(value) for name, value in zip(names, args, strict=False)}
            rehearsal.launch(kernel, {**options, **values}, shown)
        if leave is not None:
            leave(launch_metadata)

    return launch


def _device_interface(rehearsal: Rehearsal) -> Any:
    """The part of `torch.cuda` that a benchmark uses, on the rehearsal's clock."""

    class Event:
        def __init__(self, enable_timing: bool = True, **_: object) -> None:
            self.at_us = 0.0

        def record(self, stream: object = None) -> None:
            self.at_us = rehearsal.clock_us

        def query(self) -> bool:
            return True

        def wait(self, stream: object = None) -> None:
            pass

        def synchronize(self) -> None:
            rehearsal.synchronize()

        def elapsed_time(self, later: Event) -> float:
            return max((later.at_us - self.at_us) * 1e-3, _EVENT_MS)

    class Interface:
        @staticmethod
        def synchronize(device: object = None) -> None:
            rehearsal.synchronize()

        @staticmethod
        def current_device() -> int:
            return rehearsal.device

        @staticmethod
        def is_available() -> bool:
            return True

    Interface.Event = Event  # type: ignore[attr-defined]
    return Interface


def _unwrapped(value: object) -> object:
    """A constexpr's value; anything else as it is."""
    return value.value if type(value).__name__ == "constexpr" else value  # type: ignore[attr-defined]
