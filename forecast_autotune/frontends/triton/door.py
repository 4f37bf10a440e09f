"""How the dispatcher decides for a Triton kernel: its front door, one call to tune, and a launch that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from triton import knobs
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError

from ...compilers.triton_source import jit_function
from ...core.config import Config
from ...core.decision import Decision
from ...core.job import Job
from ...core.outcome import Failure
from ...core.user_warnings import warn_user
from ...errors import TuningWarning
from ...measure.probe import device_identity
from ...protocols import Compiler, Store
from ..engine import Request
from ..key_table import Entry
from ..tuning_lock import tuning_lock
from .call import TritonCall
from .decision_cache import tuning_key
from .target import current_device

if TYPE_CHECKING:
    from .autotuner import ForecastAutotuner

_REFUSALS = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""Errors of a config for which Triton's own tuner takes another."""


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
        return "a CUDA graph was being captured" if is_capturing() else ""

    def default(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """See `FrontDoor`: the first config that the user's pruning leaves."""
        return self._tuner.pruned_configs(*call)[0]

    def tuning(self, call: tuple[tuple[Any, ...], dict[str, Any]], how: Request) -> KernelTuning:
        """See `FrontDoor`."""
        tuner = self._tuner
        # The user's pruning may take its time, and have other threads launch kernels, for which it waits.
        with tuning_lock.slow(tuner.early_config_prune is not None or tuner.perf_model is not None):
            candidates = tuner.pruned_configs(*call)
        return KernelTuning(tuner, candidates, *call, shard=how.shard)

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
        self._tuner.nargs = dict(zip(self._tuner.arg_names, self._args, strict=False))  # for a benchmark of the user's
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

    def fallback(self, decision: Decision, *, measured_here: bool) -> tuple[Any, Config] | None:  # noqa: ARG002
        """See `Tuning`. A measured config needs none: it ran on this hardware before."""
        default = self._call.job.space.default
        return (self.default, default) if decision.basis == "forecast" and decision.config != default else None

    def decided(self, decision: Decision, store: Store, *, measured: int, seconds: float) -> None:
        """See `Tuning`. Does what Triton does after tuning: keep timings, reset arguments, call the listener, print."""
        tuner, call, config = self._tuner, self._call, self._call.theirs(decision.config)
        tuner.configs_timings = call.timings_ms(store.outcomes(call.job))
        tuner.bench_time = seconds
        if measured:  # configs may have run on the call's own tensors
            tuner.pre_hook({**call.named, **config.all_kwargs()}, reset_only=True)
        key = tuning_key(tuner, {n: v for n, v in call.named.items() if n in tuner.arg_names})
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

    For a config without a measurement: a forecast one, or the default while another thread or process tunes.

    Args:
        refused: the config whose launch raised `err`.
    Raises:
        Exception: `err`, where every config is refused.
    """
    if entry.launcher is refused and entry.fallback is not None:
        tuner.dispatcher.fall_back(key, entry, err)
    tried = [refused]
    for config in (entry.launcher, *tuner.pruned_configs(args, kwargs)):
        if any(config is each for each in tried):
            continue
        tried.append(config)
        tuner.best_config = config
        try:
            result = tuner._launch(config, args, kwargs)
        except _REFUSALS:
            continue
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


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: timing would wait for the device, which breaks the capture."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
