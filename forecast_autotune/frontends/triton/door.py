"""How the dispatcher decides for a Triton kernel: its front door, one call to tune, and a launch that is refused."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from triton import knobs
from triton.runtime.driver import driver

from ...compilers.triton_compile import TritonCompiler
from ...compilers.triton_launcher import launcher_builds
from ...compilers.triton_pool import background_pool, current_setup, shared_pool
from ...compilers.triton_source import gpu_target, jit_function
from ...core.cached_property import cached_property
from ...core.config import Config
from ...core.config_errors import is_refusal, raised
from ...core.decision import Decision
from ...core.job import Job
from ...core.outcome import Failure
from ...core.user_warnings import warn_user
from ...errors import TuningWarning
from ...measure.gpu import spin
from ...measure.probe import device_identity
from ...protocols import Compiler, Store
from ...settings import Settings
from ..call_tensors import CAPTURING, EMPTY, is_capturing
from ..key_table import Entry
from ..online.learning import compare_on_copies
from ..request import Request
from ..tuning_lock import tuning_lock
from .call import TritonCall, device_compiler, timings_ms
from .config_arguments import Arguments
from .decision_cache import table_key
from .recompilation import recompile_measured
from .specializations import Specializations
from .target import Aim, compiled_for, current_device

if TYPE_CHECKING:
    from .autotuner import ForecastAutotuner

log = logging.getLogger(__name__)


class TritonDoor:
    """The front door of one kernel; see `FrontDoor`. A call is its arguments and keywords, a launcher a `triton.Config`."""

    def __init__(self, tuner: ForecastAutotuner) -> None:
        self._tuner = tuner

    @property
    def name(self) -> str:
        """The kernel in warnings."""
        return f"kernel {self._tuner.name}"

    def why_unmeasured(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
        """See `FrontDoor`."""
        if call[1].get("warmup"):
            return "the call only compiles"
        if is_capturing():
            return CAPTURING
        return EMPTY if self._launches_nothing(*call) else ""

    def _launches_nothing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the grid is empty under the first config, so that there is nothing to time."""
        tuner, grid = self._tuner, kwargs.get("grid", ())
        try:
            if callable(grid):
                grid = grid({**tuner._by_name(args), **kwargs, **tuner.configs[0].all_kwargs()})
            return any(type(n) is int and n == 0 for n in grid)
        except Exception:  # it needs what the launch alone tells, or is none: the launch will say
            return False

    def default(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """See `FrontDoor`: the first config that the user's pruning leaves."""
        return self._tuner.pruned_configs(*call)[0]

    def tuning(self, call: tuple[tuple[Any, ...], dict[str, Any]], request: Request) -> KernelTuning:
        """See `FrontDoor`."""
        tuner = self._tuner
        # The user's pruning may take its time, and have other threads launch kernels, for which it waits.
        with tuning_lock.slow(tuner.early_config_prune is not None or tuner.perf_model is not None):
            candidates = tuner.pruned_configs(*call)
        return KernelTuning(tuner, candidates, *call, shard=request.shard)

    def forget_shortcuts(self) -> None:
        """See `FrontDoor`."""
        self._tuner.forget_shortcuts()


class KernelTuning:
    """One call of a kernel to decide for; see `Tuning`."""

    def __init__(
        self,
        tuner: ForecastAutotuner,
        candidates: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        shard: bool,
    ) -> None:
        self._tuner, self._candidates = tuner, candidates
        self._args, self._kwargs = args, kwargs
        self.default = candidates[0]
        self.device = device_identity(f"cuda:{current_device()}") if shard else ""

    @cached_property
    def _call(self) -> TritonCall:
        return TritonCall(self._tuner.spec, self._candidates, self._args, self._kwargs)

    @property
    def job(self) -> Job | None:
        """See `Tuning`."""
        return self._call.job if len(self._candidates) > 1 else None

    @property
    def compiler(self) -> Compiler:
        """See `Tuning`."""
        return self._call.compiler

    @contextmanager
    def measurer(self) -> Iterator[Any]:
        """See `Tuning`."""
        self._tuner.nargs = self._call.spec.by_name(self._args)  # for a benchmark of the user's
        try:
            with self._call.measurer() as measurer:
                yield measurer
        finally:
            self._tuner.nargs = None

    def launcher(self, config: Config) -> Any:
        """See `Tuning`."""
        return self._call.theirs(config)

    def refused(self, config: Config, measurer: Any) -> Failure | None:  # noqa: ARG002
        """See `Tuning`. Nothing is compared: the source and the config determine what a kernel computes."""
        return None

    def fallback(self, decision: Decision, *, measured_here: bool) -> tuple[Any, Config] | None:
        """See `Tuning`. What was measured elsewhere may not run here: another driver, another call of the same key."""
        default = self._call.job.space.default
        return (self.default, default) if not measured_here and decision.config != default else None

    def learnable(self) -> LearnableKernel | None:
        """See `Tuning`. None where a candidate is to be run in a child first, or is not timed by events."""
        spec, call = self._tuner.spec, self._call
        # A child takes seconds to start, and would need copies of a call that is over: safe is not to try.
        isolates = spec.isolates(Settings.from_environment())
        aim = compiled_for()
        if isolates or spec.own_do_bench is not None or not call.times_on_device or aim is None:
            return None
        try:
            return LearnableKernel(self._tuner, call, self._key(), aim)
        except TypeError as err:
            log.debug("%s is not learned from calls: %s", self._tuner.name, err)
            return None

    def _key(self) -> tuple[Any, ...]:
        return table_key(self._tuner, {n: v for n, v in self._call.named.items() if n in self._tuner.arg_names})

    def tell_listeners(self, decision: Decision, store: Store, *, measured: int, seconds: float) -> None:
        """See `Tuning`. Does what Triton does after tuning: keep timings, reset arguments, call the listener, print."""
        tuner, call, config = self._tuner, self._call, self._call.theirs(decision.config)
        tuner.configs_timings = call.timings_ms(store.outcomes(call.job))
        tuner.bench_time = seconds
        if measured:  # configs may have run on the call's own tensors
            tuner.pre_hook({**call.named, **config.all_kwargs()}, reset_only=True)
        _tell(tuner, self._key(), config, measured=bool(measured), seconds=seconds)


class LearnableKernel:
    """See `Learnable`: a call of a kernel without its tensors.

    Args:
        aim: what `compiled_for` says of the device.
    Raises:
        TypeError: an argument holds a tensor in a way that is not known.
    """

    on_host = False  # a launch returns before it is done

    def __init__(self, tuner: ForecastAutotuner, call: TritonCall, key: tuple[Any, ...], aim: Aim) -> None:
        self._tuner, self._key, self._job = tuner, key, call.job
        self._theirs = call.all_theirs
        self._kernel, self._device, self._aim = call.kernel, driver.active.get_current_device(), aim
        self._specializations = Specializations(call, call.job.space.default, aim[0])
        self._loaded: set[tuple[str, Config]] = set()  # by specialization
        self.compares = call.spec.check is not None
        self.compiler = self._compiler_for(lambda config: self._specializations.arguments(config))
        self._begin_launcher(call.job.space.default)
        interface = driver.active.get_device_interface()
        self.new_event = functools.partial(interface.Event, enable_timing=True)
        self.keep_busy: Callable[[float], object] | None = spin if hasattr(interface, "_sleep") else None

    def _begin_launcher(self, default: Config) -> None:
        """What the first launch needs beside its binary is built while the default compiles in the caller's thread."""
        if launcher_builds.builds(gpu_target(self._aim[0]).backend) and (setup := current_setup()) is not None:
            try:
                launcher_builds.begin(self.compiler.source(default), shared_pool(), setup)
            except Exception:  # it is the launch that says what is wrong
                log.debug("%s: no launcher is built ahead", self._tuner.name, exc_info=True)

    def launcher(self, config: Config) -> Any:
        """See `Learnable`."""
        return self._theirs[config]

    def load(self, config: Config) -> bool:
        """See `Learnable`."""
        arguments, which = self._specializations.arguments, (self._specializations.name, config)
        if which not in self._loaded:
            self._load(arguments, config)
            self._loaded.add(which)
        return True

    def _load(self, arguments: Arguments, config: Config) -> None:
        """As a launch would, up to the launch itself."""
        import torch

        args, kwargs = arguments(config)
        with torch.cuda.device(self._device) if torch.cuda.is_available() else contextlib.nullcontext():
            kernel = self._kernel.run(*args, grid=(1,), warmup=True, **kwargs)
            getattr(kernel, "run", None)  # by which Triton loads it

    def is_built_for(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
        """See `Learnable`."""
        return self._specializations.takes(*call)

    def for_other_calls(self) -> Iterator[tuple[Compiler, Callable[[Config], None]]]:
        """See `Learnable`."""
        for arguments in self._specializations.others:
            yield self._compiler_for(arguments), functools.partial(self._load, arguments)

    def _compiler_for(self, arguments: Arguments) -> TritonCompiler:
        return device_compiler(self._kernel, self._tuner.spec, arguments, self._aim, background_pool())

    def may_compare(self) -> bool:
        """See `Learnable`."""
        import torch

        return not torch.cuda.is_available() or bool(torch.cuda.current_stream(self._device).query())

    def compared(self, config: Config, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Failure | None:
        """See `Learnable`."""
        theirs = [self._theirs[self._job.space.default], self._theirs[config]]
        of_call = TritonCall(self._tuner.spec, theirs, *call)
        return compare_on_copies(of_call.measurer(), of_call.job.space[-1])

    def tell_listeners(self, decision: Decision, store: Store, *, seconds: float) -> None:
        """See `Learnable`. As after tuning, but that no call's tensors were written to."""
        tuner = self._tuner
        tuner.configs_timings = timings_ms(store.outcomes(self._job), self._theirs)
        tuner.bench_time = seconds
        _tell(tuner, self._key, self._theirs[decision.config], measured=True, seconds=seconds)
        recompile_measured()  # code that torch has compiled picks it up, as after `tune_pending()`


def _tell(tuner: ForecastAutotuner, key: tuple[Any, ...], config: Any, *, measured: bool, seconds: float) -> None:
    """Call Triton's listener and print, as Triton does after tuning: by a key without the device."""
    key = key[:-1]
    kernel = jit_function(tuner.fn)
    if (listener := getattr(knobs.autotuning, "listener", None)) is not None and kernel is not None:
        try:
            listener(
                fn=kernel,
                key=key,
                best_config=config,
                configs_timings=tuner.configs_timings,
                duration=seconds if measured else None,
                cache_hit=not measured,
            )
        except Exception as err:  # the decision stands: else each call of the key would make it again
            warn_user(
                f"the listener of autotuning failed on kernel {tuner.name}: {type(err).__name__}: {err}",
                TuningWarning,
            )
    if knobs.autotuning.print and measured:
        print(
            f"Triton autotuning for function {tuner.name},\nwith key as {key},\n"
            f"finished after {seconds:.2f}s,\nbest config selected: {config};"
        )


def launch_another(
    tuner: ForecastAutotuner,
    key: Any,
    entry: Entry,
    refused: Any,
    err: Exception,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Launch under the default or the first config after it that the device takes, and keep that one for the key.

    For a config that was not measured in this process: a forecast or recalled one, or the default while another thread or
    process tunes. Where no other config runs either, it is the call, and the choice stays; where another one does not
    compile either, it is the kernel, and no more are compiled.

    Args:
        refused: the config whose launch raised `err`.
    Raises:
        Exception: `err`, where every config is refused; what the launch of another one raises.
    """
    fallback = entry.fallback if entry.launcher is refused else None
    tried = [refused]
    for config in (entry.launcher if fallback is None else fallback[0], *tuner.pruned_configs(args, kwargs)):
        if any(config is each for each in tried):
            continue
        tried.append(config)
        tuner.best_config = config
        try:
            result = tuner._launch(config, args, kwargs)
        except Exception as another:
            if not is_refusal(raised(another)):
                raise
            continue
        if fallback is not None:
            tuner.dispatcher.fall_back(key, entry, err)
        if entry.launcher is not config:
            with tuner.dispatcher.table.lock:
                entry.launcher = config
                tuner.forget_shortcuts()
            warn_user(
                f"kernel {tuner.name} runs {config}, for its first config does not run: {type(err).__name__}: {err}",
                TuningWarning,
            )
        return result
    raise err
