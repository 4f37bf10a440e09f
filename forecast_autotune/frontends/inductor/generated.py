"""Kernels that Inductor generates, pointwise ones and reductions: their outcomes, and the table that answers for them.

Inductor times the configs of such a kernel when it first runs; with max-autotune it goes on from the best, knob after knob.
Before it compiles one it asks a table in its settings, by a hash of the kernel's source, without its name, and of the hints
of its sizes. What the table tells is the one config that is compiled, and nothing is timed.
"""

from __future__ import annotations

import ast
import copy
import functools
import logging
import math
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ...core.config import Config
from ...core.digest import digest
from ...core.fork_safe_lock import fork_safe_lock
from ...core.job import Job
from ...core.outcome import Failure, Measurement
from ...core.space import Space
from ...core.workload import Program, Workload
from ...measure.probe import detect_hardware
from ...remote.fleet_store import open_store
from ...settings import Settings
from ..deciding import decide_by_times
from .request import GENERATED, is_active, stand_aside_on_error

log = logging.getLogger(__name__)

PROGRAM = Program(name=GENERATED, language="triton", source="kernels that torch._inductor generates")
KINDS = ("POINTWISE", "REDUCTION", "PERSISTENT_REDUCTION")
NUMBERS = ("num_warps", "num_stages")
BLOCK = "BLOCK"  # in the names of the other knobs that the table can tell
NAMED = "_fused_"  # in the names of kernels that Inductor looks up

SIGNATURE = re.compile(r"'signature': (\{[^{}]*\})")
DEVICE = re.compile(r"DeviceProperties\(type='cuda', index=(\d+)")

_UNKNOWN = Config({"unknown": True})  # stands for one that is none of ours
_thread = threading.local()  # `signature`: of the kernel that Inductor has compiled in this thread


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """The types of a kernel's parameters, by name, and the device: what tells apart kernels of one hash."""

    types: Mapping[str, str]
    device: str

    @classmethod
    def of(cls, source: str) -> KernelSignature | None:
        """What Inductor's text of a kernel says; None where it says nothing of the kind, as of other devices than CUDA's."""
        signature, device = SIGNATURE.search(source), DEVICE.search(source)
        if signature is None or device is None:
            return None
        try:
            types = ast.literal_eval(signature[1])
        except (ValueError, SyntaxError):
            return None
        return cls(types, f"cuda:{device[1]}")


class TimedConfigs(Space):
    """The configs of a kernel that Inductor times; which ones varies from run to run, so to stores all are one space."""

    def __init__(self, configs: Iterable[Config]) -> None:
        super().__init__(configs)
        self.digest = digest(GENERATED)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config)


class LookupTable(dict[str, dict[str, Any]]):
    """Inductor's table of configs by a kernel's hash, answered by what is stored where it holds nothing itself.

    What is pickled of it is what it holds itself: so the keys of Inductor's caches, which take in its settings, are the same
    whatever is stored.

    Args:
        theirs: the table that it takes the place of.
        stored_config: from a kernel's hash to its stored config; None where nothing is stored.
    """

    def __init__(
        self, theirs: Mapping[str, dict[str, Any]], stored_config: Callable[[str], Mapping[str, Any] | None]
    ) -> None:
        super().__init__(theirs)
        self._stored_config = stored_config

    def __len__(self) -> int:
        """At least one while it answers: Inductor asks no table that is empty."""
        return max(int(_is_answered()), super().__len__())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and self._stored_config(name) is not None)

    def __missing__(self, name: str) -> dict[str, Any]:
        if (config := self._stored_config(name)) is None:
            raise KeyError(name)
        return dict(config)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)

    def __copy__(self) -> LookupTable:
        return LookupTable(dict(self.items()), self._stored_config)

    def __deepcopy__(self, memo: dict[int, Any]) -> LookupTable:
        return LookupTable(copy.deepcopy(dict(self.items()), memo), self._stored_config)


class GeneratedKernels:
    """What configs of generated kernels took in this process, and what is stored of them; safe for threads.

    Attributes:
        timed_count, recalled_count: how many kernels were timed, and how many took a stored config.
    """

    def __init__(self) -> None:
        self.timed_count = self.recalled_count = 0
        self._lock = fork_safe_lock()
        self._times: WeakKeyDictionary[Any, dict[Config, float | None]] = WeakKeyDictionary()
        self._answers: dict[tuple[str, str, str], Mapping[str, Any] | None] = {}
        self._answered: set[tuple[str, str]] = set()  # kernels that took a stored config

    @property
    def text(self) -> str:
        """What was done, in words; empty where nothing was."""
        timed, recalled = self.timed_count, self.recalled_count
        if not timed + recalled:
            return ""
        return f"of the kernels that Inductor generated {timed} were timed, {recalled} took a stored config"

    def note_time(self, kernel: Any, launcher: Any, ms: float | None) -> None:
        """Note what a config took by our clock, in milliseconds, infinite if it cannot run; None: by another clock."""
        try:
            if not (_is_answered() and _is_looked_up(kernel)):
                return
            config = config_of(launcher.config)
        except Exception:
            log.debug("a config of a generated kernel is no config of ours", exc_info=True)
            config, ms = _UNKNOWN, None
        with self._lock:
            self._times.setdefault(kernel, {})[config] = ms

    def record_and_decide(self, kernel: Any) -> None:
        """Store the outcomes of a kernel whose configs Inductor has timed, and the decision by them."""
        with stand_aside_on_error():
            self._record_and_decide(kernel)

    def _record_and_decide(self, kernel: Any) -> None:
        with self._lock:
            times = self._times.pop(kernel, {})
        if len(times) < 2 or not _is_looked_up(kernel) or not _is_varied(kernel):
            return
        names = dict.fromkeys(name for config in times for name in config.knobs)
        times_ms = {
            Config({name: config.knobs.get(name) for name in names}): ms
            for config, ms in times.items()
            if ms is not None
        }
        if len(times_ms) < len(times):
            return
        run = uuid.uuid4().hex
        job = _job(hash_of(kernel), _signature_of(kernel), TimedConfigs(times_ms))
        store = open_store(Settings.from_environment())
        outcomes = {
            config: Measurement(samples_us=(ms * 1e3,))
            if math.isfinite(ms)
            else Failure(stage="launch", message="Inductor does not run it: it spills registers")
            for config, ms in times_ms.items()
        }
        for config, outcome in outcomes.items():
            store.record_outcome(job, run, config, outcome, None)
        decide_by_times(
            job,
            store,
            outcomes=outcomes,
            reason=f"Inductor timed all {len(outcomes)} configs that it lists",
            compiled=len(outcomes),
            budget="all",
            spent_s=getattr(kernel, "autotune_time_taken_ns", 0) * 1e-9,
            run=run,
        )
        with self._lock:
            self.timed_count += 1

    def stored_for_compiling(self, name: str) -> Mapping[str, Any] | None:
        """The stored config of the kernel that Inductor compiles now, in this thread; the same while the process lives."""
        signature: KernelSignature | None = getattr(_thread, "signature", None)
        config = None if signature is None else self.stored_config(name, signature)
        if config is not None:
            with self._lock:
                self._answered.add((name, str(signature)))
                self.recalled_count = len(self._answered)
        return config

    def stored_config(self, name: str, signature: KernelSignature) -> Mapping[str, Any] | None:
        """The stored config of a kernel; None where nothing is to be answered."""
        if not _is_answered() or _is_compile_worker():
            return None
        with stand_aside_on_error():
            return self._stored_config(name, signature)
        return None

    def _stored_config(self, name: str, signature: KernelSignature) -> Mapping[str, Any] | None:
        settings = Settings.from_environment()
        key = (name, str(signature), str(settings.dir))
        with self._lock:
            if key in self._answers:
                return self._answers[key]
        config = None if settings.mode == "first" else _config_in_store(name, signature, settings)
        with self._lock:
            return self._answers.setdefault(key, config)

    def is_stored(self, kernel: Any, launcher: Any) -> bool:
        """Whether a kernel runs the config that is stored: Inductor need not look for a better one."""
        with stand_aside_on_error():
            return _is_looked_up(kernel) and self._is_stored(kernel, config_of(launcher.config))
        return False

    def _is_stored(self, kernel: Any, config: Config) -> bool:
        return self.stored_config(hash_of(kernel), _signature_of(kernel)) == dict(config.knobs)


kernels = GeneratedKernels()
"""Those of this process."""


def with_signature_noted(triton: Callable[..., Any]) -> Any:
    """Inductor's method that has a kernel compiled, given its name and text; the table then answers for this kernel alone.

    What tells kernels apart that have one hash, the types of what they are given and the device, is in that text.
    """

    @functools.wraps(triton)
    def compiling(pool: Any, kernel_name: str, source_code: str, *others: Any, **named: Any) -> Any:
        before = getattr(_thread, "signature", None)
        _thread.signature = KernelSignature.of(source_code) if _is_answered() else None
        try:
            return triton(pool, kernel_name, source_code, *others, **named)
        finally:
            _thread.signature = before

    return compiling


def with_times_kept(autotune_to_one_config: Callable[..., None]) -> Any:
    """Inductor's method that times all configs of a kernel and takes the best; what they took is kept."""

    @functools.wraps(autotune_to_one_config)
    def autotuned(kernel: Any, *args: Any, **named: Any) -> None:
        autotune_to_one_config(kernel, *args, **named)
        if _is_answered() and not kernel.inductor_meta.get("coordinate_descent_tuning", False):  # else more are timed
            kernels.record_and_decide(kernel)

    return autotuned


def searched_unless_stored(coordinate_descent_tuning: Callable[..., Any]) -> Any:
    """Inductor's method that looks for a better config, one knob at a time, from a launcher; not from what is stored."""

    @functools.wraps(coordinate_descent_tuning)
    def tuned(kernel: Any, launcher: Any, *args: Any, **named: Any) -> Any:
        if not _is_looked_up(kernel):  # such as a template, for which this is asked at every launch
            return coordinate_descent_tuning(kernel, launcher, *args, **named)
        if _is_answered() and kernels.is_stored(kernel, launcher):
            launcher.config.found_by_coordesc = True  # else it is asked for at every launch
            return launcher
        best = coordinate_descent_tuning(kernel, launcher, *args, **named)
        if _is_answered():
            kernels.record_and_decide(kernel)
        return best

    return tuned


def varied_unless_stored(dynamic_scale_rblock: Callable[..., None]) -> Any:
    """Inductor's method that adds smaller blocks to a reduction which fills the device's registers; none to what is stored.

    What is stored was chosen among them.
    """

    @functools.wraps(dynamic_scale_rblock)
    def varied(kernel: Any, *args: Any, **named: Any) -> None:
        may_be_stored = len(kernel.compile_results) == 1 and _has_blocks_added(kernel) and _is_answered()
        if not (may_be_stored and kernels.is_stored(kernel, kernel.compile_results[0])):
            dynamic_scale_rblock(kernel, *args, **named)

    return varied


def _is_answered() -> bool:
    """Whether the table is to be answered: not where Inductor chooses so that results never vary."""
    if not is_active():
        return False
    import torch
    from torch._inductor import config

    rules = getattr(config, "test_configs", None)
    return not (
        torch.are_deterministic_algorithms_enabled()
        or getattr(config, "deterministic", False)
        or getattr(config, "batch_invariant", False)
        or getattr(rules, "force_filter_reduction_configs", False)
    )


def _is_compile_worker() -> bool:
    """Whether this process compiles for Inductor: it may ask neither the store nor the device."""
    from torch._inductor.compile_worker.utils import in_toplevel_process

    return not in_toplevel_process()


def config_of(theirs: Any) -> Config:
    """A config of Inductor's as one of ours."""
    return Config({**theirs.kwargs, **{name: getattr(theirs, name) for name in NUMBERS}})


def hash_of(kernel: Any) -> str:
    """What Inductor's table calls a kernel."""
    from torch._inductor.runtime.triton_heuristics import generate_lookup_hash_from_source_code

    return str(generate_lookup_hash_from_source_code(str(kernel.size_hints), kernel.fn.src))


def _signature_of(kernel: Any) -> KernelSignature:
    return KernelSignature(kernel.triton_meta["signature"], f"cuda:{kernel.device_props.index or 0}")


def _is_looked_up(kernel: Any) -> bool:
    kind = getattr(kernel.heuristic_type, "name", "")
    return kind in KINDS and not kernel.custom_kernel and NAMED in kernel.fn.src


def _has_blocks_added(kernel: Any) -> bool:
    """Whether Inductor adds configs of smaller blocks to a kernel on this kind of device."""
    return getattr(kernel.heuristic_type, "name", "") == "REDUCTION" and kernel.device_props.type == "cuda"


def _is_varied(kernel: Any) -> bool:
    """Whether what was timed of a kernel holds all that would be timed with Inductor's usual settings."""
    return not _has_blocks_added(kernel) or bool(kernel.inductor_meta.get("dynamic_scale_rblock", True))


def _config_in_store(name: str, signature: KernelSignature, settings: Settings) -> Mapping[str, Any] | None:
    """The config that is decided for a kernel, if the table can tell it."""
    decision = open_store(settings).decision(_job(name, signature, TimedConfigs([_UNKNOWN])))
    if decision is None or decision.basis != "measured":
        return None
    knobs = {name: value for name, value in decision.config.knobs.items() if value is not None}
    told = all(name in NUMBERS or BLOCK in name for name in knobs) and set(NUMBERS) <= knobs.keys()
    return knobs if told and all(type(value) is int for value in knobs.values()) else None


def _job(name: str, signature: KernelSignature, space: Space) -> Job:
    from .candidates import toolchain_of

    return Job(
        workload=Workload(program=PROGRAM, key={"kernel": name, "types": signature.types}, timing="inductor"),
        space=space,
        hardware=detect_hardware(signature.device),
        toolchain=toolchain_of("cuda"),
    )
