"""One traced call of a kernel, and the autotuner with the decided config that torch captures for it.

Nothing is measured: a stored decision counts, else the forecast at the size hints, and the key is noted as pending.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from triton.runtime.autotuner import Autotuner

from ....compilers.triton_source import apply_heuristics, jit_function
from ....core.budget import NOTHING
from ....core.config import Config
from ....core.digest import digest
from ....core.fork_safe_lock import fork_safe_lock
from ....core.outcome import Failure, Measurement
from ....core.user_warnings import warn_once
from ....errors import CacheMissError, TuningWarning
from ....measure.no_measurer import NO_MEASURER
from ....protocols import Store
from ....store.rows import TuningKey
from ...deciding import decide
from ...request import Request
from ..call import TritonCall
from ..kernel_spec import KernelSpec
from ..recompilation import EPOCH, hold_until_measured
from .traced_arguments import fake_tensor, hinted, meta_tensor, without_modes

if TYPE_CHECKING:
    from ..autotuner import ForecastAutotuner

log = logging.getLogger(__name__)

AT_THE_CALL = ("num_warps", "num_stages", "num_consumer_groups", "num_buffers_warp_spec", "num_cpu_threads")
"""Options that torch takes out of a call and puts into every config."""

_lock = fork_safe_lock()
captured_tuners: weakref.WeakKeyDictionary[Any, dict[str, Autotuner]] = weakref.WeakKeyDictionary()
"""By tuner: those that torch has captured in its place, by the text of their configs."""


class TracedCall:
    """A call of our kernel under a compiler: its arguments are fake, symbolic or Dynamo's stand-ins.

    Attributes:
        epoch: the kernel's attribute that guards code compiled for this call's key; empty where none is needed.
    """

    def __init__(
        self,
        hopifier: Any,
        variable: Any,
        tuner: ForecastAutotuner,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tx: Any,
    ) -> None:
        self.hopifier, self.variable, self.tuner, self.tx = hopifier, variable, tuner, tx
        self.spec = self.tuner.spec
        self.given = args, {name: value for name, value in kwargs.items() if name not in AT_THE_CALL}
        self.options = {name: kwargs[name] for name in AT_THE_CALL if name in kwargs}
        self.epoch = ""

    def captured(self) -> Autotuner | None:
        """The autotuner for torch to capture in our tuner's place, with the decided config; None to capture ours.

        Raises:
            CacheMissError: mode is `strict` and there is no decision.
            InvalidInputError: a setting does not parse.
        """
        request = self.tuner.dispatcher.request(default_budget="0")
        request = replace(request, budget=NOTHING, unmeasured="torch.compile")
        try:
            with without_modes():
                self.args, self.kwargs = self._arguments(meta_tensor)
                candidates = self._candidates()
        except Exception as err:
            self._complain("is left to torch, which times all its configs", err)
            return None
        chosen = candidates[:1]
        if len(candidates) > 1 and request.settings.mode != "first":
            try:
                grids = self._grids(candidates)
                with without_modes():
                    chosen = self._decided(candidates, grids, request)
            except CacheMissError as err:
                raise _as_torch_lets_it_through(err) from None
            except Exception as err:
                self._complain("is compiled under its first config", err)
        return self._autotuner(chosen)

    def _autotuner(self, configs: list[Any]) -> Autotuner:
        """The same object for the same config: torch's table of kernels only grows, and its index is in the graph."""
        spec = self.spec
        with _lock:
            made = captured_tuners.setdefault(self.tuner, {})
            text = "\n".join(str(c) for c in configs)
            if text not in made or made[text].fn is not spec.fn:
                made[text] = Autotuner(
                    spec.fn, list(spec.arg_names), configs, [], list(spec.reset_to_zero), list(spec.restore_value)
                )
            return made[text]

    # The candidates -------------------------------------------------------------------------------------------------

    def _candidates(self) -> list[Any]:
        """The configs that the user's pruning leaves, called with tensors of the hinted shapes without data."""
        configs = list(self.spec.configs)
        if self.options:
            configs = [copy.copy(c) for c in configs]
            for config in configs:
                vars(config).update({name: hinted(value, fake_tensor) for name, value in self.options.items()})
        if len(configs) == 1 or not (self.spec.early_config_prune or self.spec.perf_model):
            return configs
        args, kwargs = self._arguments(fake_tensor)
        spec: KernelSpec = replace(self.spec, configs=tuple(configs))
        return spec.prune(spec.by_name(args), kwargs)

    def _arguments(self, build: Callable[..., Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = self.given
        return tuple(hinted(v, build) for v in args), {n: hinted(v, build) for n, v in kwargs.items()}

    def _grids(self, candidates: Sequence[Any]) -> list[tuple[int, ...]] | None:
        """The grid under each config, as torch would ask for it to time each; None where one cannot be had."""
        grid, (args, kwargs) = self.variable.grid, self.given
        named = {**self.spec.by_name(args), **kwargs}
        grids: list[tuple[int, ...]] = []
        try:
            for config in candidates:
                sizes = grid
                if self.hopifier.is_callable(grid):
                    meta = {**named, **self._computed(config), **config.kwargs}
                    sizes = self.hopifier.call_grid(grid, meta, self.tx)
                grids.append(tuple(int(hinted(n, meta_tensor)) for n in self.hopifier.check_grid(sizes)))
        except Exception as err:  # torch meets it again under the config that it captures
            log.debug("kernel %s: no grid: %s", self.spec.name, err)
            return None
        return grids

    def _computed(self, config: Any) -> dict[str, Any]:
        """What `@triton.heuristics` below the tuner sets, which the grid may read."""
        if jit_function(self.spec.fn) is self.spec.fn:
            return {}
        with without_modes():
            given = {**self.kwargs, **config.kwargs}
            return {n: v for n, v in apply_heuristics(self.spec.fn, self.args, given).items() if n not in given}

    # The decision ---------------------------------------------------------------------------------------------------

    def _decided(self, candidates: list[Any], grids: Sequence[tuple[int, ...]] | None, request: Request) -> list[Any]:
        """The decided config; the first where that one does not compile; all where that does not either."""
        kwargs = self.kwargs
        if grids is not None:
            pairs = list(zip(candidates, grids, strict=True))

            def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
                return next(g for c, g in pairs if all(meta.get(n) == v for n, v in c.kwargs.items()))

            kwargs = {**kwargs, "grid": grid}
        tuning = TritonCall(self.spec, candidates, self.args, kwargs)
        store = self.tuner.dispatcher.store(tuning.hardware, request.settings)
        decision = decide(tuning.job, request, compiler=tuning.compiler, measurer=NO_MEASURER, store=store).decision
        config = self._compiled(dict.fromkeys((decision.config, tuning.job.space.default)), tuning, store)
        if decision.awaits_measuring and self.tx is not None:
            self.epoch = f"{EPOCH}_{digest(*TuningKey.of(tuning.job).digests, tuning.job.space.digest)}"
            hold_until_measured(self.tuner, self.epoch, config, tuning.job, request)
        return candidates if config is None else [tuning.theirs(config)]

    def _compiled(self, configs: Iterable[Config], tuning: TritonCall, store: Store) -> Config | None:
        """The first of these that compiles."""
        for config in configs:
            failure = _failure(tuning, config, store)
            if failure is None:
                return config
            self._complain(f"is not compiled under {tuning.theirs(config)}", failure.message)
        return None

    def _complain(self, what: str, why: Exception | str) -> None:
        """Warn, once for each text, that this kernel is compiled otherwise; torch traces a call several times over."""
        reason = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        text = f"kernel {self.spec.name} {what}: {reason}"
        log.debug("%s", text, exc_info=isinstance(why, Exception))
        warn_once(text, TuningWarning)


def _failure(tuning: TritonCall, config: Config, store: Store) -> Failure | None:
    """Why a config does not compile; Inductor drops such configs, and would be left with none.

    A measured config runs. Any other is compiled: 0.2 to 2 s for a new kernel.
    """
    if isinstance(store.outcomes(tuning.job).get(config), Measurement):
        return None
    result = next(iter(tuning.compiler.compile([config])))[1]
    return result if isinstance(result, Failure) else None


def _as_torch_lets_it_through(err: CacheMissError) -> Exception:
    """The error as one that Dynamo lets through; any other it would wrap as an internal error of its own."""
    try:
        from torch._dynamo.exc import ShortenTraceback
    except ImportError:
        return err

    class CacheMissWhileCompilingError(ShortenTraceback, CacheMissError):  # type: ignore[misc]
        def __reduce__(self) -> tuple[type[CacheMissError], tuple[Any, ...]]:
            return CacheMissError, self.args

    return CacheMissWhileCompilingError(*err.args, first_useful_frame=None)  # type: ignore[call-arg]
