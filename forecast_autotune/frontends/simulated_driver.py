# ruff: noqa: ARG002, ARG004  # a driver takes what Triton passes to every driver
"""A Triton driver without a GPU: real compiling, real resource limits, launches that take the time somebody recorded.

For tests and demonstrations. What it times says something about the recording and about the tuner, never about a kernel;
its hardware is of kind `stub`, which no real key matches.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..core.config import Config
from ..core.hardware import Hardware
from ..core.job import Recording
from ..core.outcome import Failure, Measurement, Outcome
from ..errors import InvalidInputError
from ..features.hardware_sheets import device_properties, sheet_for, target_of

Times = float | Mapping[Config, float] | Recording | Sequence[Recording] | Mapping[str, Any]
"""Microseconds: one for every launch; by config; a recording, or one for each key; or any of these by kernel name."""

_EVENT_MS = 1e-3  # what two events around nothing are apart, about; a benchmark divides by it

# Triton keeps kernels per device index. An index of its own keeps a rehearsal's apart from a real device's and from those
# of another rehearsal, which has other limits.
_indices = itertools.count(1000)


class RehearsedFailureError(RuntimeError):
    """A launch of a config whose recording says that it failed; the message is the recorded one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Recorded outcomes of one kernel at one key."""

    key: Mapping[str, object]  # arguments it holds for; empty where it holds for all
    outcomes: Mapping[Config, Outcome]
    knobs: tuple[str, ...]


class Rehearsal:
    """What a rehearsal plays on and keeps count of.

    `clock_us` is the device's time so far. `launches` counts launches by kernel and config; `compiles` the compiles and
    `cache_hits` the disk-cache hits of this process by kernel (compile workers count for themselves, through the hit that
    follows); `loads` the kernels that were made ready to launch.
    """

    def __init__(self, hardware: Hardware, target: Any, times: Times | None, *, realtime: bool) -> None:
        self.sheet = hardware
        self.hardware = replace(hardware, kind="stub", name=f"rehearsed {hardware.name}")
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
        self._known: dict[tuple[str, tuple[object, ...]], tuple[Config, Outcome]] = {}
        self._constant_us: dict[str, float] = {}
        self._tables: dict[str, list[_Table]] = {}
        self._add("", times)

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do: at once, unless it plays in real time."""
        if self.realtime and (left := self._busy_until_s - time.perf_counter()) > 0:
            time.sleep(left)

    def launch(self, kernel: str, values: Mapping[str, object], shown: Sequence[str] = ()) -> None:
        """Let a launch's recorded time pass.

        Args:
            values: arguments and options of the launch by name.
            shown: those that name its config where no recording says which do.
        Raises:
            InvalidInputError: nothing is recorded for it.
            RehearsedFailureError: a failure is.
        """
        config, outcome = self.outcome(kernel, values, shown)
        if isinstance(outcome, Failure):
            raise RehearsedFailureError(f"{outcome.stage}: {outcome.message}")
        samples = outcome.samples_us
        lasts_us = samples[self.launches[kernel, config] % len(samples)]
        self.launches[kernel, config] += 1
        self.clock_us += lasts_us
        if self.realtime:
            self._busy_until_s = max(self._busy_until_s, time.perf_counter()) + lasts_us * 1e-6

    def outcome(self, kernel: str, values: Mapping[str, object], shown: Sequence[str] = ()) -> tuple[Config, Outcome]:
        """The config that a launch runs, and what is recorded of it; as for `launch`.

        Raises:
            InvalidInputError: nothing is.
        """
        tables = [*self._tables.get(kernel, ()), *self._tables.get("", ())]
        names = dict.fromkeys(name for table in tables for name in (*table.knobs, *table.key)) or shown
        call = (kernel, tuple(value if _scalar(value := values.get(name)) else None for name in names))
        found = self._known.get(call)  # a benchmark launches the same thousands of times: 1 us instead of 15
        if found is None:
            found = self._known[call] = self._recorded(kernel, values, tables, shown)
        return found

    def _recorded(
        self, kernel: str, values: Mapping[str, object], tables: Sequence[_Table], shown: Sequence[str]
    ) -> tuple[Config, Outcome]:
        for table in tables:
            if any(name in values and values[name] != held for name, held in table.key.items() if _scalar(held)):
                continue
            if any(knob not in values for knob in table.knobs):
                continue
            config = Config({knob: values[knob] for knob in table.knobs})  # type: ignore[misc]
            if (outcome := table.outcomes.get(config)) is not None:
                return config, outcome
        knobs = dict.fromkeys(knob for table in tables for knob in table.knobs)
        config = Config({name: values[name] for name in knobs or shown if _scalar(values.get(name))})  # type: ignore[misc]
        constant = self._constant_us.get(kernel, self._constant_us.get(""))
        if constant is not None:
            return config, Measurement(samples_us=(constant,))
        count = sum(len(table.outcomes) for table in tables)
        raise InvalidInputError(
            f"rehearsal: no time is recorded for kernel {kernel!r} with {config} ({count} configs are recorded for it): "
            "give times= this config, or take it out of the space"
        )

    def _add(self, kernel: str, times: Times | None) -> None:
        if times is None:
            return
        if isinstance(times, (int, float)):
            if not times > 0:
                raise InvalidInputError(f"rehearsal: a launch lasts {times!r} us: times are positive microseconds")
            self._constant_us[kernel] = float(times)
        elif isinstance(times, Recording):
            knobs = tuple(times.default.knobs)
            table = _Table(key=times.workload.key, outcomes=times.outcomes, knobs=knobs)
            self._tables.setdefault(kernel or times.workload.program.name, []).append(table)
        elif isinstance(times, Mapping):
            named = {name: value for name, value in times.items() if isinstance(name, str)}
            for name, value in named.items():
                self._add(name, value)
            configs = {config: value for config, value in times.items() if isinstance(config, Config)}
            if len(named) + len(configs) != len(times):
                odd = next(key for key in times if not isinstance(key, (str, Config)))
                raise InvalidInputError(f"rehearsal: times by {odd!r}: its keys are Configs, or names of kernels")
            by_knobs: dict[tuple[str, ...], dict[Config, Outcome]] = {}
            for config, value in configs.items():
                outcome = (
                    value if isinstance(value, (Measurement, Failure)) else Measurement(samples_us=(float(value),))
                )
                by_knobs.setdefault(tuple(config.knobs), {})[config] = outcome
            for knobs, outcomes in by_knobs.items():
                self._tables.setdefault(kernel, []).append(_Table(key={}, outcomes=outcomes, knobs=knobs))
        else:
            for recording in times:
                self._add(kernel, recording)


@contextmanager
def rehearsal(
    target: str = "cuda:90",
    times: Times | None = None,
    *,
    hardware: Hardware | None = None,
    realtime: bool = False,
) -> Iterator[Rehearsal]:
    """Run Triton kernels on a GPU that is only named: they compile and are refused for real, and take recorded times.

        with rehearsal("cuda:90", times={Config({"BLOCK": 128, "num_warps": 4}): 12.5}) as on:
            kernel[grid](x, y, n)
        assert on.clock_us == 12.5

    Arguments keep their values: nothing is computed. The driver that was active before is active again afterwards.

    Args:
        target: `cuda:90`, `hip:gfx942`, or a product with a sheet, such as `H100`.
        times: see `Times`. Without it, kernels can be compiled and warmed up but not launched.
        hardware: another sheet than the target's usual one.
        realtime: make a launch last for real as long as it was recorded, so that wall times can be compared.
    Raises:
        InvalidInputError: an unknown target; times that are none.
    """
    from triton import knobs
    from triton.runtime.driver import driver

    from ..compilers.triton_source import gpu_target

    sheet = hardware or sheet_for(target)
    playing = Rehearsal(sheet, gpu_target(target_of(sheet)), times, realtime=realtime)
    before, listened = dict(vars(driver)), knobs.compilation.listener

    def listener(**told: Any) -> None:
        counted = playing.cache_hits if told.get("cache_hit") else playing.compiles
        counted[told["src"].name] += 1
        if listened is not None:
            listened(**told)

    driver.set_active(_driver_class()(playing))
    knobs.compilation.listener = listener
    try:
        yield playing
    finally:
        knobs.compilation.listener = listened
        vars(driver).clear()
        vars(driver).update(before)


def current_rehearsal() -> Rehearsal | None:
    """The rehearsal whose driver is active; None on a real one, or where there is none at all."""
    from triton.runtime.driver import driver

    active = vars(driver).get("_active") or vars(driver).get("active")
    return getattr(active, "rehearsal", None) if type(active).__name__ == "RehearsalDriver" else None


def _driver_class() -> Callable[[Rehearsal], Any]:
    """The driver; a class within a function since its base needs triton imported."""
    from triton.backends.driver import DriverBase

    class RehearsalDriver(DriverBase):  # type: ignore[misc]
        """What Triton asks of a driver, answered from a sheet and a recording."""

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

    return RehearsalDriver


class _Utilities:
    """Properties and loading: the registers are those of the real cubin, so that too many threads are refused."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self.rehearsal.properties

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[object, int, int, int, int]:
        from ..compilers.triton_evidence import cubin_facts, most_threads

        self.rehearsal.loads[name] += 1
        facts = cubin_facts(kernel)
        registers = facts.get("registers") or 0
        spilled = (facts.get("stack_bytes") or 0) // 4
        return object(), 1, registers, spilled, most_threads(registers, self.rehearsal.properties)

    def unload_module(self, module: object) -> None:
        pass


def _launcher(rehearsal: Rehearsal, source: Any, metadata: Any) -> Callable[..., None]:
    """What Triton calls to launch a kernel.

    With the grid's three sizes, stream, function, packed metadata, launch metadata, both hooks; then the kernel's own.
    """
    from ..compilers.triton_source import OPTIONS

    names = tuple(getattr(getattr(source, "fn", None), "arg_names", ()))
    options = {name: value for name, value in metadata._asdict().items() if _scalar(value)}
    constants = [names[path[0]] for path in source.constants if len(path) == 1 and path[0] < len(names)]
    shown = (*constants, *(name for name in OPTIONS if options.get(name) is not None))
    kernel = source.name

    def launch(*given: Any) -> None:
        grid, (told, enter, leave), args = given[:3], given[6:9], given[9:]
        if enter is not None:
            enter(told)
        if grid[0] * grid[1] * grid[2] > 0:
            values = {name: _unwrapped(value) for name, value in zip(names, args, strict=False)}
            rehearsal.launch(kernel, {**options, **values}, shown)
        if leave is not None:
            leave(told)

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


def _scalar(value: object) -> bool:
    return isinstance(value, (bool, int, str, type(None))) or (isinstance(value, float) and math.isfinite(value))
