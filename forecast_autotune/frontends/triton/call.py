"""One call of a Triton kernel as a job: what is tuned, among what, on what, and how a config of it is compiled and timed."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime.autotuner import Heuristics
from triton.runtime.driver import driver

from ...compilers.no_compile import NoCompiler
from ...compilers.triton_binding import bind_call, defaults_of
from ...compilers.triton_compile import TritonCompiler
from ...compilers.triton_source import OPTIONS, NotAheadError, apply_heuristics, gpu_target, jit_function
from ...core.config import Config
from ...core.digest import Value
from ...core.hardware import Hardware, Toolchain
from ...core.job import Job
from ...core.outcome import Measurement, Outcome
from ...core.space import Space
from ...core.workload import Workload
from ...errors import InvalidInputError
from ...features.hardware_sheets import device_properties, target_of
from ...features.launch_features import Call, describe_call, knob_roles, launch_features, work_of
from ...measure.base import BaseMeasurer
from ...measure.checks import check_name
from ...measure.probe import detect_hardware
from ...measure.process_state import ends_the_program
from ...protocols import Compiler
from ..simulated_driver import current_rehearsal
from .program import plain_value, program_of
from .spec import KernelSpec
from .timing import make_measurer

log = logging.getLogger(__name__)


class Binder:
    """The arguments of a call under each config, as its compiler takes them.

    A config's hook runs on copies of them, once. It may set up tensor descriptors, which the launch shares: were it run on
    them here, two configs compiled side by side would meet in one descriptor. Tensors are shown to it without their data,
    and given to the compiler as they are.

    Args:
        theirs: configs of ours to Triton's.
    """

    def __init__(
        self, spec: KernelSpec, theirs: Mapping[Config, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._spec, self._theirs = spec, theirs
        self._args, self._kwargs = args, kwargs
        self._bound: dict[Config, tuple[Sequence[Any], Mapping[str, Any]]] = {}
        self.hooked: set[Config] = set()  # those whose own hook was seen to change tensors

    def __call__(self, config: Config) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Positional and keyword arguments of the kernel.

        Raises:
            NotAheadError: the config's hook does not run on tensors without data: only a launch can tell.
        """
        if config not in self._bound:
            self._bound[config] = self._bind(config)
        return self._bound[config]

    def _bind(self, config: Config) -> tuple[Sequence[Any], Mapping[str, Any]]:
        theirs = self._theirs[config]
        args, kwargs = self._args, {**self._kwargs, **theirs.all_kwargs()}
        if theirs.pre_hook is not None:
            named = {**self._spec.by_name(args), **kwargs}
            with torch.inference_mode(False):  # else the copies would count no changes
                copies = {name: _own_copy(value) for name, value in named.items()}
                self._run_hook(theirs.pre_hook, dict(copies))  # what it puts in place of an argument, no launch sees
            if any(isinstance(v, torch.Tensor) and v._version for v in copies.values()):
                self.hooked.add(config)
            args = tuple(_after_hook(v, copies[n]) for n, v in zip(self._spec.arg_names, args, strict=False))
            kwargs = {n: _after_hook(v, copies[n]) for n, v in kwargs.items()}
        kwargs = apply_heuristics(self._spec.fn, args, kwargs)
        return args, {n: v for n, v in kwargs.items() if n not in ("grid", "warmup")}

    @staticmethod
    def _run_hook(hook: Callable[..., Any], copies: dict[str, Any]) -> None:
        try:
            hook(copies)
        except (Exception, SystemExit) as err:
            if ends_the_program(err):
                raise
            raise NotAheadError(
                f"its pre_hook does not run on tensors without data: {type(err).__name__}: {err}"
            ) from err


class TritonCall:
    """A call whose key is met for the first time, with the configs that the user's pruning left.

    With `hardware`, it is forecast and compiled for that, which need not be here; tensors may be on the meta device.
    """

    def __init__(
        self,
        spec: KernelSpec,
        candidates: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        hardware: Hardware | None = None,
    ) -> None:
        self.spec = spec
        self.args, self.kwargs = args, kwargs
        self.named = {**spec.by_name(args), **kwargs}
        self.kernel = jit_function(spec.fn)
        self.hardware = hardware or current_hardware()
        self._named_only = hardware is not None  # then nothing is launched, and no driver asked
        self._theirs = self._own_configs(candidates)
        self.binder = Binder(spec, self._theirs, args, kwargs)
        self.compiler: Compiler = self._make_compiler()
        self.benchmarked_ms: dict[Config, list[float]] = {}  # what a benchmark of the user's own said of a config
        self.job = self._make_job()

    def measurer(self) -> BaseMeasurer:
        """What times its configs."""
        return make_measurer(self)

    def theirs(self, config: Config) -> Any:
        """A config of ours as the `triton.Config` it was made from."""
        return self._theirs[config]

    def timings_ms(self, outcomes: Mapping[Config, Outcome]) -> dict[Any, list[float]]:
        """What Triton calls `configs_timings`: median, 20 % and 80 % quantile in milliseconds; infinite for a failure."""
        own = self.benchmarked_ms
        return {self._theirs[c]: _quantiles_ms(o, own.get(c, ())) for c, o in outcomes.items() if c in self._theirs}

    # What it is -----------------------------------------------------------------------------------------------------

    def _make_job(self) -> Job:
        configs = list(self._theirs)
        roles = self.spec.roles
        described: list[dict[str, float]] = []
        if self.kernel is not None:
            roles = {**knob_roles(self.kernel, configs[0].knobs), **roles}
            described = launch_features(
                self.kernel,
                self._call(),
                [c.knobs for c in configs],
                grid=self.kwargs.get("grid"),
                hardware=self.hardware,
            )
        return Job(
            workload=Workload(
                program=program_of(self.spec),
                key=self._key(),
                timing=self._timing(),
                check=check_name(self.spec.check),
                features=self._call_features(),
            ),
            space=Space(configs, roles={k: r for k, r in roles.items() if k in configs[0].knobs}),
            hardware=self.hardware,
            toolchain=current_toolchain(gpu_target(target_of(self.hardware)) if self._named_only else None),
            work=work_of(described) if described else None,
            described=described,
        )

    def _own_configs(self, candidates: Sequence[Any]) -> dict[Config, Any]:
        """Triton's configs by ours, in their order, the first of equal ones kept.

        Every config names all five options, so that timings of a config stay with it whatever others are in the list.
        """
        names = dict.fromkeys(name for c in candidates for name in c.kwargs)
        own: dict[Config, Any] = {}
        for theirs in candidates:
            if conflicts := self.kwargs.keys() & theirs.kwargs.keys():
                raise InvalidInputError(
                    f"Conflicting meta-parameters: {', '.join(sorted(conflicts))}. Kernel {self.spec.name} was called "
                    "with them, and its configs set them."
                )
            kwargs = {name: theirs.kwargs[name] if name in theirs.kwargs else self._missing(name) for name in names}
            options = {name: getattr(theirs, name, None) for name in OPTIONS}
            values = {name: plain_value(value) for name, value in {**kwargs, **options}.items()}
            if theirs.pre_hook is not None and Config(values) in own and own[Config(values)] != theirs:
                values["ir_override"] = " ".join(
                    str(v) for v in (options["ir_override"], plain_value(theirs.pre_hook)) if v
                )
            own.setdefault(Config(values), theirs)
        return own

    def _missing(self, name: str) -> Any:
        """The default of a parameter that some configs set and others leave alone."""
        parameter = inspect.signature(self.spec.base_fn).parameters.get(name)
        if parameter is None:  # an option of the backend, such as AMD's waves_per_eu, which it sets itself
            return None
        default = parameter.default
        if name in self._computed():
            return "by a heuristic"
        if default is parameter.empty:
            raise InvalidInputError(
                f"configs of kernel {self.spec.name} set different knobs: {name} is missing in some, and the kernel has "
                "no default for it; set it in every config"
            )
        return default

    def _computed(self) -> set[str]:
        """Parameters that `@triton.heuristics` below the tuner sets."""
        names: set[str] = set()
        kernel = self.spec.fn
        while kernel is not None:
            names |= set(getattr(kernel, "values", ()) if isinstance(kernel, Heuristics) else ())
            kernel = getattr(kernel, "fn", None)
        return names

    def _key(self) -> dict[str, object]:
        key: dict[str, object] = {}
        for name in self.spec.key:
            if name in self.named:
                value = self.named[name]
                key[name] = plain_value(self.spec.key_buckets[name](value) if name in self.spec.key_buckets else value)
        dtypes = {n: str(v.dtype) for n, v in self.named.items() if n in self.spec.arg_names and hasattr(v, "dtype")}
        return {**key, **({"dtypes": dtypes} if dtypes else {})}

    def _timing(self) -> str:
        """How it is timed. What a benchmark of the user's own says is not to be compared with what Triton's does."""
        own = self.spec.own_do_bench
        if own is None:
            return self.spec.timing
        return f"do_bench={getattr(own, '__module__', '')}.{getattr(own, '__qualname__', type(own).__qualname__)}"

    def _call_features(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, value in self.named.items():
            if name in self.spec.arg_names:
                if isinstance(value, torch.Tensor):
                    found.update({f"{name}_{d}": int(n) for d, n in enumerate(value.shape)})
                elif isinstance(value, (bool, int, float, str)):
                    found[name] = plain_value(value)
        return found

    # Compiling ------------------------------------------------------------------------------------------------------

    def _make_compiler(self) -> Compiler:
        if self.kernel is None or self.hardware.kind == "interpreter":
            return NoCompiler()
        if self._named_only:
            target, limits = target_of(self.hardware), device_properties(self.hardware)
            return TritonCompiler(self.kernel, self.binder, target=target, properties=limits)
        if (aim := compiled_for()) is None:
            return NoCompiler()
        target, limits = aim
        if self.spec.user_defined_post_hook:
            limits = {}  # the hook is to hear of a config that is too large, so the launch has to refuse it
        return TritonCompiler(self.kernel, self.binder, target=target, properties=limits)

    def _call(self) -> Call | Callable[[Mapping[str, Any]], Call]:
        """The call as a description needs it; config by config where heuristics or hooks make arguments of a config."""
        hooked = any(theirs.pre_hook is not None for theirs in self._theirs.values())
        if self.spec.fn is self.kernel and not (hooked and any(map(_is_descriptor, self.named.values()))):
            return self._described_call(self.args, self.kwargs)

        binder = self.binder

        def under(knobs: Mapping[str, Any]) -> Call:
            config = Config(knobs)
            try:
                args, kwargs = binder(config)
            except Exception:  # the compiler or the launch will tell; what the call itself says is known all the same
                args, kwargs = self.args, {**self.kwargs, **self._theirs[config].kwargs}
            return self._described_call(args, kwargs)

        return under

    def _described_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        return describe_call(bind_call(self.kernel.arg_names, defaults_of(self.kernel), args, kwargs).arguments)


def current_hardware() -> Hardware:
    """The device a launch would run on now."""
    if knobs.runtime.interpret:
        return Hardware(kind="interpreter", name="Triton interpreter")
    if (playing := current_rehearsal()) is not None:
        return playing.hardware
    try:
        target, device = driver.active.get_current_target(), driver.active.get_current_device()
    except Exception:
        return Hardware(kind="stub", name="no driver")
    if torch.cuda.is_available():
        return detect_hardware(f"cuda:{device}")
    if target.backend in ("cuda", "hip"):
        return Hardware(kind="stub", name=f"a driver without a device, {target.backend} {target.arch}")
    return Hardware(kind=target.backend, name=str(target.arch), warp_size=target.warp_size)


def compiled_for() -> tuple[Any, dict[str, int]] | None:
    """What kernels are compiled for now, and the device's limits; None in the interpreter and without a driver."""
    if knobs.runtime.interpret:
        return None
    try:
        device = driver.active.get_current_device()
        return driver.active.get_current_target(), dict(driver.active.utils.get_device_properties(device))
    except Exception:
        return None


def current_toolchain(target: Any = None) -> Toolchain:
    """What compiles a Triton kernel now, for the current device or a target, with the settings that change its code."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    versions = {"triton": triton.__version__, "torch": str(torch.__version__)}
    try:
        versions["backend"] = _backend_hash(target or driver.active.get_current_target())
    except Exception:
        versions["backend"] = "none"
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    versions.update(get_cache_invalidating_env_vars())
    return Toolchain(versions=versions)


@functools.cache
def _backend_hash(target: Any) -> str:
    """What a target's backend says of itself and its assembler; Triton makes a new backend, and asks, each time."""
    from triton.compiler.compiler import make_backend

    return str(make_backend(target).hash())


def knobs_of(config: Any) -> dict[str, Value]:
    """The knobs that a `triton.Config` sets, as a config of ours holds them."""
    return {name: plain_value(value) for name, value in config.all_kwargs().items()}


def _own_copy(value: Any) -> Any:
    """A copy for a hook to change: a tensor without data, an object such as a tensor descriptor with lists of its own."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device="meta")
    if value is None or isinstance(value, (bool, int, float, str, tuple)) or callable(value):
        return value
    copied = copy.copy(value)
    for name, held in list(getattr(copied, "__dict__", {}).items()):
        if isinstance(held, (list, dict)):
            copied.__dict__[name] = copy.copy(held)
    return copied


def _is_descriptor(value: Any) -> bool:
    """Whether it is a tensor descriptor made by the caller, whose block a config's hook sets."""
    return hasattr(value, "block_shape")


def _after_hook(value: Any, copied: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else copied


def _quantiles_ms(outcome: Outcome, benchmarked_ms: Sequence[float] = ()) -> list[float]:
    if not isinstance(outcome, Measurement):
        return [float("inf")] * 3
    if len(benchmarked_ms) == 3:
        return list(benchmarked_ms)
    samples = sorted(outcome.samples_us)
    low, high = samples[len(samples) // 5], samples[-1 - len(samples) // 5]
    return [statistics.median(samples) / 1e3, low / 1e3, high / 1e3]
