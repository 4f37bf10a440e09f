"""One call of a Triton kernel as a job: its workload, space and hardware, its compiler and its measurer."""

from __future__ import annotations

import inspect
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import triton.language as tl

from ...compilers.no_compile import NoCompiler
from ...compilers.triton_binding import bind_call, defaults_of
from ...compilers.triton_compile import TritonCompiler
from ...compilers.triton_pool import WorkerPool
from ...compilers.triton_source import gpu_target, heuristic_names, is_tritons_own, jit_function
from ...core.config import Config
from ...core.digest import Value
from ...core.hardware import Hardware
from ...core.job import Job
from ...core.module_names import module_name
from ...core.outcome import Measurement, Outcome
from ...core.space import Space
from ...core.workload import Workload
from ...errors import InvalidInputError
from ...features.hardware_sheets import device_properties, target_of
from ...features.knob_roles import TRITON_OPTIONS
from ...features.launch_features import Call, describe_call, knob_roles, launch_features, work_of
from ...measure.base import BaseMeasurer
from ...measure.checks import check_name
from ...measure.clocks import BenchmarkClock
from ...protocols import Compiler
from ..call_tensors import is_fake
from .config_arguments import Arguments, ConfigArguments, is_descriptor
from .kernel_program import plain_value, program_of
from .kernel_spec import KernelSpec
from .target import Aim, compiled_for, current_hardware, current_toolchain
from .timing import make_measurer

log = logging.getLogger(__name__)

BY_LAUNCHER = "by the launcher"
"""The value of a knob that some configs leave to a class between the tuner and the kernel."""

TRITON_ALIGNMENT = 16  # bytes: Triton asks of an address whether so many divide it, and no more


class TritonCall:
    """A call to decide for, with the configs that the user's pruning left.

    Args:
        candidates: `triton.Config`s, the default first.
        args, kwargs: the launch's, `grid` among them; tensors may be on the meta device where nothing is launched.
        hardware: forecast and compile for this, which need not be present, and launch nothing; by default the current
            device.
    Raises:
        InvalidInputError: the call sets what its configs set, or configs set different knobs.
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
        self.arguments_of = ConfigArguments(spec, self._theirs, args, kwargs)
        self.compiler: Compiler = self._make_compiler(self.arguments_of)
        self.benchmarks: dict[Config, BenchmarkClock] = {}  # of the user's own, those that were made
        self.job = self._make_job()

    def measurer(self) -> BaseMeasurer:
        """Times its configs: in this process, or in a child where that is asked for."""
        return make_measurer(self)

    def theirs(self, config: Config) -> Any:
        """The `triton.Config` that one of our configs was made from."""
        return self._theirs[config]

    @property
    def all_theirs(self) -> Mapping[Config, Any]:
        """Our configs with the `triton.Config`s that they were made from."""
        return self._theirs

    def timings_ms(self, outcomes: Mapping[Config, Outcome]) -> dict[Any, Any]:
        """Triton's `configs_timings`; see the function of this name."""
        told_ms = {config: clock.told_ms for config, clock in self.benchmarks.items() if clock.told_ms is not None}
        return timings_ms(outcomes, self._theirs, told_ms)

    @property
    def times_on_device(self) -> bool:
        """Whether configs are compiled for a device that tells the time of a launch by events."""
        return isinstance(self.compiler, TritonCompiler)

    # The job --------------------------------------------------------------------------------------------------------

    def _make_job(self) -> Job:
        configs = list(self._theirs)
        roles = self.spec.roles
        static_features: list[dict[str, float]] = []
        if self.kernel is not None:
            roles = {**knob_roles(self.kernel, configs[0].knobs), **roles}
            static_features = launch_features(
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
            work=work_of(static_features) if static_features else None,
            static_features=static_features,
        )

    def _own_configs(self, candidates: Sequence[Any]) -> dict[Config, Any]:
        """Triton's configs by ours, in their order, the first of equal ones kept.

        Every config names all five options, so that timings of a config stay with it whatever others are in the list.
        """
        every = [c.all_kwargs() for c in candidates]  # a class derived from Triton's may add to `kwargs` there
        names = dict.fromkeys(name for values in every for name in values if name not in TRITON_OPTIONS)
        own: dict[Config, Any] = {}
        for theirs, given in zip(candidates, every, strict=True):
            if conflicts := self.kwargs.keys() & theirs.kwargs.keys():
                raise InvalidInputError(
                    f"Conflicting meta-parameters: {', '.join(sorted(conflicts))}. Kernel {self.spec.name} was called "
                    "with them, and its configs set them."
                )
            kwargs = {name: given[name] if name in given else self._missing(name) for name in names}
            options = {name: given.get(name) for name in TRITON_OPTIONS}
            values = {name: plain_value(value) for name, value in {**kwargs, **options}.items()}
            if theirs.pre_hook is not None and Config(values) in own and own[Config(values)] != theirs:
                values = _told_apart_by_hook(values, theirs.pre_hook)
            own.setdefault(Config(values), theirs)
        return own

    def _missing(self, name: str) -> Any:
        """The default of a parameter that some configs set and others leave alone."""
        parameter = inspect.signature(self.spec.base_fn).parameters.get(name)
        if parameter is None:  # an option of the backend, such as AMD's waves_per_eu, which it sets itself
            return None
        default = parameter.default
        if name in heuristic_names(self.spec.fn):
            return "by a heuristic"
        if default is parameter.empty and not is_tritons_own(self.spec.fn):
            return BY_LAUNCHER  # what stands between tuner and kernel may add to a call
        if default is parameter.empty:
            raise InvalidInputError(
                f"configs of kernel {self.spec.name} set different knobs: {name} is missing in some, and the kernel has "
                "no default for it; set it in every config"
            )
        return default

    def _key(self) -> dict[str, object]:
        key: dict[str, object] = {}
        for name in self.spec.key:
            if name in self.named:
                value = self.named[name]
                key[name] = plain_value(self.spec.key_buckets[name](value) if name in self.spec.key_buckets else value)
        dtypes = {n: str(v.dtype) for n, v in self.named.items() if n in self.spec.arg_names and hasattr(v, "dtype")}
        constexprs = {**self._constexprs(), **self._held_dtypes()}
        return {
            **key,
            **({"given constexprs": constexprs} if constexprs else {}),
            **({"dtypes": dtypes} if dtypes else {}),
        }

    def _constexprs(self) -> dict[str, Value]:
        """What the call compiles into the kernel and `key=` does not name: with another head size another config fits.

        Triton's key leaves them out, for its choice ends with the process. A stored one has to hold for other calls. One
        that is given as its default is the same as one left out.
        """
        parameters = () if self.kernel is None else self.kernel.params
        given = {
            p: plain_value(self.named[p.name])
            for p in parameters
            if p.is_constexpr and p.name in self.named and p.name not in self.spec.key
        }
        return {  # by their texts, for True is not 1
            p.name: value
            for p, value in given.items()
            if not (p.has_default and repr(value) == repr(plain_value(p.default)))
        }

    def _held_dtypes(self) -> dict[str, Value]:
        """The dtypes of tensors in tuples and below descriptors: Triton's key leaves them out, as it does constexprs."""
        given = [(name, value) for name, value in self.named.items() if name in self.spec.arg_names]
        return {label: dtype for name, value in given for label, dtype in _held_dtypes(name, value)}

    def _timing(self) -> str:
        """How it is timed; a benchmark of the user's own by its name, for its times do not compare with Triton's."""
        own = self.spec.own_do_bench
        if own is None:
            return self.spec.timing
        return f"do_bench={module_name(own)}.{getattr(own, '__qualname__', type(own).__qualname__)}"

    def _call_features(self) -> dict[str, Value]:
        """What the compiler specialises on, by argument; `stored_call` makes a call of it again."""
        values: dict[str, Value] = {}
        for name, value in self.named.items():
            if name in self.spec.arg_names:
                if isinstance(value, torch.Tensor):
                    values.update({f"{name}_{d}": int(n) for d, n in enumerate(value.shape)})
                    if address := _address(value) % TRITON_ALIGNMENT:
                        values[f"{name} alignment"] = address & -address
                elif value is None or isinstance(value, (bool, int, float, str)):
                    values[name] = plain_value(value)
                elif isinstance(value, tl.dtype):
                    values[name] = f"tl.{value}"
        return values

    # Compiling ------------------------------------------------------------------------------------------------------

    def _make_compiler(self, arguments_of: ConfigArguments) -> Compiler:
        by_launcher = any(BY_LAUNCHER in config.knobs.values() for config in self._theirs)
        if self.kernel is None or self.hardware.kind == "interpreter" or by_launcher:
            return NoCompiler()
        if self._named_only:
            target, limits = target_of(self.hardware), device_properties(self.hardware)
            return TritonCompiler(self.kernel, arguments_of, target=target, properties=limits)
        aim = compiled_for()
        return NoCompiler() if aim is None else device_compiler(self.kernel, self.spec, arguments_of, aim)

    def _call(self) -> Call | Callable[[Mapping[str, Any]], Call]:
        """The call for its static features; by config where heuristics or hooks change the arguments."""
        hooked = any(theirs.pre_hook is not None for theirs in self._theirs.values())
        if self.spec.fn is self.kernel and not (hooked and any(map(is_descriptor, self.named.values()))):
            return self._described_call(self.args, self.kwargs)

        arguments_of = self.arguments_of

        def under(knobs: Mapping[str, Any]) -> Call:
            config = Config(knobs)
            try:
                args, kwargs = arguments_of(config)
            except Exception:  # the compiler or the launch will report it
                log.debug("%s: the arguments of %s are not known", self.spec.name, config, exc_info=True)
                args, kwargs = self.args, {**self.kwargs, **self._theirs[config].kwargs}
            return self._described_call(args, kwargs)

        return under

    def _described_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        return describe_call(bind_call(self.kernel.arg_names, defaults_of(self.kernel), args, kwargs).arguments)


def device_compiler(
    kernel: Any,
    spec: KernelSpec,
    arguments_of: Arguments,
    aim: Aim,
    pool: WorkerPool | None = None,
) -> TritonCompiler:
    """A compiler for configs of a call, for a device that is present: it holds nothing of the call but its arguments.

    Args:
        arguments_of: asked once for each config.
        aim: what `compiled_for` says of the device.
        pool: the workers; see `SourceCompiler`.
    """
    target, limits = aim
    if spec.user_defined_post_hook:
        limits = {}  # the launch refuses a config that is too large, so that the hook hears of it
    return TritonCompiler(kernel, arguments_of, target=target, properties=limits, pool=pool)


def _address(tensor: torch.Tensor) -> int:
    """Where a tensor begins; 0 for one without data."""
    if is_fake(tensor):
        return 0
    try:
        return int(tensor.data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def _told_apart_by_hook(values: Mapping[str, Value], hook: Callable[..., Any]) -> dict[str, Value]:
    """The knobs of a config that differs from another in its hook alone: only a knob tells two configs apart in a store.

    The hook's text joins `ir_override`, a text that every config names already: a knob more would change the digests of all.
    It is for telling apart alone: launches and compilers take what Triton's own config sets.
    """
    return {**values, "ir_override": " ".join(str(v) for v in (values["ir_override"], plain_value(hook)) if v)}


def by_knobs(theirs: Sequence[Any]) -> dict[Config, Any]:
    """Triton's configs by ours, each with the knobs of all; of equal ones the first.

    A job's own space is made otherwise, by `TritonCall`: these knobs join the space of the variant that calls the tuner,
    where a hook tells no configs apart and an option that no config sets is no knob.
    """
    knobs = [knobs_of(config) for config in theirs]
    names = dict.fromkeys(name for values in knobs for name in values)
    ours: dict[Config, Any] = {}
    for values, config in zip(knobs, theirs, strict=True):
        ours.setdefault(Config({name: values.get(name) for name in names}), config)
    return ours


def knobs_of(config: Any) -> dict[str, Value]:
    """All that a `triton.Config` sets, by name, as values of a `Config`."""
    return {name: plain_value(value) for name, value in config.all_kwargs().items()}


def _held_dtypes(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The dtypes of tensors in a tuple, and below a descriptor, by where they are: `xs[0]`, `a.base`."""
    if isinstance(value, tuple):
        for place, held in enumerate(value):
            label = f"{name}[{place}]"
            is_tensor = not isinstance(held, tuple) and hasattr(held, "dtype")
            yield from [(label, str(held.dtype))] if is_tensor else _held_dtypes(label, held)
    elif is_descriptor(value) and (dtype := getattr(getattr(value, "base", None), "dtype", None)) is not None:
        yield f"{name}.base", str(dtype)


def timings_ms(
    outcomes: Mapping[Config, Outcome],
    theirs: Mapping[Config, Any],
    told_ms: Mapping[Config, Any] | None = None,
) -> dict[Any, Any]:
    """Triton's `configs_timings`: median, 20 % and 80 % quantiles in milliseconds; infinite for a failure.

    Args:
        theirs: our configs with Triton's.
        told_ms: what a benchmark of the user's own returned. It stands as it is; where it is a number, all are numbers.
    """
    told = {config: ms for config, ms in (told_ms or {}).items() if isinstance(outcomes.get(config), Measurement)}
    are_numbers = any(not isinstance(ms, (list, tuple)) for ms in told.values())
    others = {c: _quantiles_ms(o)[0] if are_numbers else _quantiles_ms(o) for c, o in outcomes.items() if c not in told}
    return {theirs[c]: told[c] if c in told else others[c] for c in outcomes if c in theirs}


def _quantiles_ms(outcome: Outcome) -> list[float]:
    if not isinstance(outcome, Measurement):
        return [float("inf")] * 3
    samples = sorted(outcome.samples_us)
    low, high = samples[len(samples) // 5], samples[-1 - len(samples) // 5]
    return [statistics.median(samples) / 1e3, low / 1e3, high / 1e3]
