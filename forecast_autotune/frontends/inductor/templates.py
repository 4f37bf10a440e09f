"""What torch.compile gets of a kernel: the one config decided for the call it traces, in the place of all to time.

Torch captures a call of a Triton kernel with its "hopifier", under Dynamo and under `wrap_triton`. Before it does, we put
an autotuner with the decided config in the place of ours. That one is then in torch's table of kernels, so its config is
part of what Inductor caches by, and whoever traces again decides again. Nothing is measured: what is stored counts, else
the forecast at the size hints, and the key is noted as pending. Ops of `torch.library.triton_op` are looked up in
AOTAutograd's cache before they are traced, so for them the decisions known of their kernels go into the key; where the
ranks of a job decide together, which no key can know ahead, they stay out of that cache.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from triton.runtime.autotuner import Autotuner

from ...compilers.triton_source import apply_heuristics, jit_function
from ...core.config import Config
from ...core.digest import digest
from ...core.job import Job
from ...core.outcome import Failure, Measurement, Outcome
from ...errors import CacheMissError, TuningWarning
from ...protocols import Store
from ...store.queries import StoreFile
from ...store.rows import Place
from ..engine import Request, decide, ranks_decide, recall
from ..pending import after_tuning, is_unmeasured
from ..triton.call import TritonCall
from ..triton.program import program_of
from ..triton.spec import KernelSpec

if TYPE_CHECKING:
    from ..triton.autotuner import ForecastAutotuner

log = logging.getLogger(__name__)

CAPTURE = "torch._higher_order_ops.triton_kernel_wrap"
RULES = "torch._dynamo.trace_rules"
CACHE_KEY = "torch._functorch._aot_autograd.autograd_cache"
UNBACKED = 8192
"""What a size counts as that torch knows nothing of before the graph runs: Inductor's own guess."""
AT_THE_CALL = ("num_warps", "num_stages", "num_consumer_groups", "num_buffers_warp_spec", "num_cpu_threads")
"""Options that torch takes out of a call and puts into every config."""

_lock = threading.RLock()
_joined: set[str] = set()  # modules of torch that were looked at
_thread = threading.local()  # `outermost`: the kernel whose call torch captures by itself
_captured: weakref.WeakKeyDictionary[Any, dict[str, Autotuner]] = weakref.WeakKeyDictionary()
_unmeasured: weakref.WeakKeyDictionary[Any, dict[tuple[str, Config | None], tuple[Job, Request]]]
_unmeasured = weakref.WeakKeyDictionary()  # by tuner, epoch and captured config: jobs that measuring had no say in
_told: set[str] = set()


def take_part() -> None:
    """See to it that torch captures our kernels under their decided config, as soon as it can capture any.

    Asked whenever a kernel of ours is hashed, with which torch begins to capture one.
    """
    _stay_out_of_graphs()
    module = sys.modules.get(CAPTURE)
    if CAPTURE in _joined or module is None or _being_imported(module):
        return
    with _lock:
        if CAPTURE in _joined:
            return
        _joined.add(CAPTURE)
        found = getattr(module, "TritonHOPifier", None)
        asked = ("init_variable", "is_callable", "call_grid", "check_grid")
        if _takes(found, "call_triton_kernel", "self", "variable", "args", "kwargs", "tx") and all(
            hasattr(found, name) for name in asked
        ):
            found.call_triton_kernel = _deciding(found.call_triton_kernel)  # type: ignore[union-attr]
        else:
            log.warning(
                "torch %s captures kernels in a way unknown here: Inductor times all configs", torch.__version__
            )


def _stay_out_of_graphs() -> None:
    """Keep Dynamo from compiling our own frames, which it meets where a call of a kernel breaks the graph."""
    rules = sys.modules.get(RULES)
    if RULES in _joined or rules is None or _being_imported(rules):
        return
    with _lock:
        if RULES not in _joined:
            _joined.add(RULES)
            if _takes(rules, "add", "import_name"):
                rules.add(__package__.partition(".")[0])


def recompile(tuner: ForecastAutotuner, epoch: str = "epoch") -> None:
    """Have Dynamo compile what it has compiled of a kernel, or of one key of it, once more before it runs again."""
    setattr(tuner, epoch, str(int(getattr(tuner, epoch)) + 1))


def _recompile_measured() -> None:
    """Have what was compiled under another config than has been measured best since compiled again.

    And nothing else: Dynamo compiles a frame eight times in all, those it has thrown away included, then runs it eagerly.
    """
    with _lock:
        held = [(tuner, dict(jobs)) for tuner, jobs in _unmeasured.items()]
    for tuner, jobs in held:
        outdated: set[str] = set()
        for (epoch, config), (job, how) in jobs.items():
            decision = recall(job, how, tuner.dispatcher.store(job.hardware, how.settings))
            if decision is None or is_unmeasured(decision):
                continue
            with _lock:
                taken = _unmeasured[tuner].pop((epoch, config), None)
            if taken is not None and decision.config != config:
                outdated.add(epoch)
        for epoch in outdated:
            recompile(tuner, epoch)


after_tuning(_recompile_measured)


def _take_part_in_the_cache_key() -> None:
    """Let AOTAutograd's cache tell graphs apart whose triton ops would be decided otherwise."""
    if CACHE_KEY in _joined or "torch._dynamo" not in sys.modules:
        return
    with _lock:
        if CACHE_KEY in _joined:
            return
        _joined.add(CACHE_KEY)
        try:
            import torch._functorch._aot_autograd.autograd_cache as module

            found = getattr(module, "AOTAutogradCacheDetails", None)
        except ImportError:
            found = None
        if _takes(found, "get_triton_source_codes_from_gm", "self", "gm"):
            found.get_triton_source_codes_from_gm = _with_decisions(found.get_triton_source_codes_from_gm)  # type: ignore[union-attr]
        else:
            log.warning(
                "torch %s caches graphs in a way unknown here: triton ops keep old decisions", torch.__version__
            )


def _takes(owner: Any, name: str, *parameters: str) -> bool:
    function = getattr(owner, name, None)
    return callable(function) and tuple(inspect.signature(function).parameters) == parameters


def _being_imported(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


# The capture --------------------------------------------------------------------------------------------------------


def _deciding(capture: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's capture of one call, deciding first where the kernel is ours; it calls itself with kernels it rebuilds."""

    @functools.wraps(capture)
    def call_triton_kernel(self: Any, variable: Any, args: Sequence[Any], kwargs: dict[str, Any], tx: Any) -> Any:
        from ..triton.autotuner import ForecastAutotuner

        kernel, place = variable.kernel, variable.kernel_idx
        if (outermost := getattr(_thread, "outermost", None)) is not None:
            _rebuilt(self, variable, outermost)
            return capture(self, variable, args, kwargs, tx)
        captured = None
        if isinstance(kernel, ForecastAutotuner) and variable.grid is not None and "num_ctas" not in kwargs:
            if tx is None and not _is_traced(args, kwargs):
                return kernel[variable.grid](*args, **kwargs)
            if len(kernel.configs) > 1 or kernel.early_config_prune or kernel.perf_model:
                _take_part_in_the_cache_key()
                _guard(self, variable, tx, "epoch")
                call = _Call(self, variable, args, kwargs, tx)
                captured = call.captured()
                if call.epoch:
                    _guard(self, variable, tx, call.epoch)
        try:
            if captured is not None:
                self.init_variable(variable, captured, None, variable.grid)
            _thread.outermost = kernel
            return capture(self, variable, args, kwargs, tx)
        finally:
            _thread.outermost = None
            if captured is not None:  # it may be called again, with other arguments
                variable.kernel, variable.kernel_idx = kernel, place

    return call_triton_kernel


def _guard(hopifier: Any, variable: Any, tx: Any, epoch: str) -> None:
    """Have Dynamo compile again when our kernel says so; under `wrap_triton` nothing is guarded."""
    if tx is None or getattr(variable, "kernel_source", None) is None:
        return
    try:
        value = getattr(variable.kernel, epoch)
        hopifier.wrap_user_defined_obj(value, tx, variable, epoch).guard_as_python_constant()
    except Exception as err:
        log.debug("kernel %s: compiled code holds for good: %s", variable.kernel.name, err)


def _rebuilt(hopifier: Any, variable: Any, outermost: Any) -> None:
    """See to what torch has rebuilt of a kernel after pruning, heuristics or options at the call.

    It does so with `triton.autotune`, which after `install()` is ours: a kernel that is not becomes Triton's own again.
    And it leaves out how many configs pruning keeps, and what arguments must be before a run: ours keeps both.
    """
    from ..triton.autotuner import ForecastAutotuner

    made = variable.kernel
    if isinstance(outermost, ForecastAutotuner):
        made.configs_top_k = outermost.configs_top_k
        made.reset_to_zero = made.reset_to_zero or list(outermost.reset_to_zero)
        made.restore_value = made.restore_value or list(outermost.restore_value)
    elif isinstance(made, ForecastAutotuner):
        by = {"early_config_prune": made.early_config_prune, "perf_model": made.perf_model}
        own = Autotuner(made.fn, made.arg_names, list(made.configs), [], None, None, prune_configs_by=by)
        hopifier.init_variable(variable, own, None, variable.grid)


def _is_traced(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of `wrap_triton` is traced. If not it is a launch, and decided and tuned like any other."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    stand_ins = (FakeTensor, FunctionalTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    if any(isinstance(v, stand_ins) for v in (*args, *kwargs.values())):
        return True
    return any(getattr(mode, "_mode_key", None) is not None for mode in _get_current_dispatch_mode_stack())


class _Call:
    """One call of our kernel that a compiler traces, its arguments fake, symbolic or Dynamo's stand-ins."""

    def __init__(self, hopifier: Any, variable: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tx: Any) -> None:
        self.hopifier, self.variable, self.tx = hopifier, variable, tx
        self.tuner: ForecastAutotuner = variable.kernel  # whose attributes Dynamo guards
        self.spec = self.tuner.spec
        self.given = args, {name: value for name, value in kwargs.items() if name not in AT_THE_CALL}
        self.options = {name: kwargs[name] for name in AT_THE_CALL if name in kwargs}
        self.epoch = ""  # an attribute of the tuner: while it stays, what is compiled of this call's key holds

    def captured(self) -> Autotuner | None:
        """What torch is to capture in our tuner's place: an autotuner with the decided config. None: ours, all configs.

        Raises:
            CacheMissError: mode is `strict` and there is no decision.
            InvalidInputError: a setting does not parse.
        """
        how = self.tuner.dispatcher.request(default_budget="0")
        how = replace(how, budget="0", unmeasured="torch.compile")
        try:
            with _no_modes():
                self.args, self.kwargs = self._arguments(_meta)
                candidates = self._candidates()
        except Exception as err:
            self._complain("is left to torch, which times all its configs", err)
            return None
        chosen = candidates[:1]
        if len(candidates) > 1 and how.settings.mode != "first":
            try:
                grids = self._grids(candidates)
                with _no_modes():
                    chosen = self._decided(candidates, grids, how)
            except CacheMissError as err:
                raise _as_torch_lets_it_through(err) from None
            except Exception as err:
                self._complain("is compiled under its first config", err)
        return self._autotuner(chosen)

    def _autotuner(self, configs: list[Any]) -> Autotuner:
        """The same object for the same config: torch's table of kernels only grows, and its index is in the graph."""
        spec = self.spec
        with _lock:
            made = _captured.setdefault(self.tuner, {})
            text = "\n".join(str(c) for c in configs)
            if text not in made or made[text].fn is not spec.fn:
                made[text] = Autotuner(
                    spec.fn, list(spec.arg_names), configs, [], list(spec.reset_to_zero), list(spec.restore_value)
                )
            return made[text]

    # What torch would choose among ----------------------------------------------------------------------------------

    def _candidates(self) -> list[Any]:
        """The configs that the user's pruning leaves, asked with tensors of the hinted shapes that hold no data."""
        configs = list(self.spec.configs)
        if self.options:
            configs = [copy.copy(c) for c in configs]
            for config in configs:
                vars(config).update({name: _hinted(value, _fake) for name, value in self.options.items()})
        if len(configs) == 1 or not (self.spec.early_config_prune or self.spec.perf_model):
            return configs
        args, kwargs = self._arguments(_fake)
        spec: KernelSpec = replace(self.spec, configs=tuple(configs))
        return spec.prune(spec.by_name(args), kwargs)

    def _arguments(self, build: Callable[..., Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = self.given
        return tuple(_hinted(v, build) for v in args), {n: _hinted(v, build) for n, v in kwargs.items()}

    def _grids(self, candidates: Sequence[Any]) -> list[tuple[int, ...]] | None:
        """The grid under each config, which torch would ask for too, for it launches each to time it."""
        grid, (args, kwargs) = self.variable.grid, self.given
        named = {**self.spec.by_name(args), **kwargs}
        found: list[tuple[int, ...]] = []
        try:
            for config in candidates:
                sizes = grid
                if self.hopifier.is_callable(grid):
                    meta = {**named, **self._computed(config), **config.kwargs}
                    sizes = self.hopifier.call_grid(grid, meta, self.tx)
                found.append(tuple(int(_hinted(n, _meta)) for n in self.hopifier.check_grid(sizes)))
        except Exception as err:  # torch meets it again under the config it captures, and says so
            log.debug("kernel %s: no grid: %s", self.spec.name, err)
            return None
        return found

    def _computed(self, config: Any) -> dict[str, Any]:
        """What `@triton.heuristics` below the tuner sets, which the grid may read."""
        if jit_function(self.spec.fn) is self.spec.fn:
            return {}
        with _no_modes():
            given = {**self.kwargs, **config.kwargs}
            return {n: v for n, v in apply_heuristics(self.spec.fn, self.args, given).items() if n not in given}

    # The decision ---------------------------------------------------------------------------------------------------

    def _decided(self, candidates: list[Any], grids: Sequence[tuple[int, ...]] | None, how: Request) -> list[Any]:
        """The decided config; the first where that one does not compile; all where that does not either."""
        kwargs = self.kwargs
        if grids is not None:
            of = list(zip(candidates, grids, strict=True))

            def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
                return next(g for c, g in of if all(meta.get(n) == v for n, v in c.kwargs.items()))

            kwargs = {**kwargs, "grid": grid}
        tuning = TritonCall(self.spec, candidates, self.args, kwargs)
        store = self.tuner.dispatcher.store(tuning.hardware, how.settings)
        decision = decide(tuning.job, how, compiler=tuning.compiler, measurer=_NoMeasurer(), store=store).decision
        config = self._compiled(dict.fromkeys((decision.config, tuning.job.space.default)), tuning, store)
        if is_unmeasured(decision) and self.tx is not None:
            self._hold_until_measured(config, tuning.job, how)
        return candidates if config is None else [tuning.theirs(config)]

    def _compiled(self, configs: Iterable[Config], tuning: TritonCall, store: Store) -> Config | None:
        """The first of these that compiles."""
        for config in configs:
            failure = _failure(tuning, config, store)
            if failure is None:
                return config
            self._complain(f"is not compiled under {tuning.theirs(config)}", failure.message)
        return None

    def _hold_until_measured(self, config: Config | None, job: Job, how: Request) -> None:
        """Give this key an epoch of its own, lest measuring it have graphs compiled again that hold other keys."""
        self.epoch = f"epoch_{digest(*Place.of(job).digests, job.space.digest)}"
        with _lock:
            self.tuner.__dict__.setdefault(self.epoch, "0")
            _unmeasured.setdefault(self.tuner, {})[self.epoch, config] = job, how

    def _complain(self, what: str, why: Exception | str) -> None:
        """Warn once of what tuning could not do for this kernel; torch traces a call several times over."""
        reason = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        text = f"kernel {self.spec.name} {what}: {reason}"
        log.debug("%s", text, exc_info=isinstance(why, Exception))
        if text not in _told:
            _told.add(text)
            warnings.warn(text, TuningWarning, stacklevel=4)


class _NoMeasurer:
    """In the place of one where nothing is to be measured."""

    repeatable = False

    def skip_default(self) -> None:
        pass

    def measure(self, config: Config, **_: object) -> Outcome:
        raise AssertionError(f"{config} was to be measured under a compiler")


def _failure(tuning: TritonCall, config: Config, store: Store) -> Failure | None:
    """Why a config cannot be run; Inductor, which drops those that do not compile, is left with none if it gets only that.

    What was measured runs. Of the others the compiler is asked: 0.2 to 2 s for a kernel not met before.
    """
    if isinstance(store.outcomes(tuning.job).get(config), Measurement):
        return None
    found = next(iter(tuning.compiler.compile([config])))[1]
    return found if isinstance(found, Failure) else None


def _as_torch_lets_it_through(err: CacheMissError) -> Exception:
    """The error as one that Dynamo hands on as it is, where it would wrap any other as an internal error of its own."""
    try:
        from torch._dynamo.exc import ShortenTraceback
    except ImportError:
        return err

    class CacheMissWhileCompilingError(ShortenTraceback, CacheMissError):  # type: ignore[misc]
        def __reduce__(self) -> tuple[type[CacheMissError], tuple[Any, ...]]:
            return CacheMissError, self.args

    return CacheMissWhileCompilingError(*err.args, first_useful_frame=None)  # type: ignore[call-arg]


# Arguments ----------------------------------------------------------------------------------------------------------


def _no_modes() -> Any:
    """A context in which what we do with tensors is neither traced nor faked."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _hinted(value: Any, build: Callable[..., Any]) -> Any:
    """A traced argument as a launch would be given it, hints in the place of symbols, tensors without their data.

    Asking for a hint puts no guard on the graph.
    """
    if _is_of_dynamo(value):
        value = value.realize()
        if hasattr(value, "block_shape"):
            from triton.tools.tensor_descriptor import TensorDescriptor

            return TensorDescriptor.from_tensor(_hinted(value.get_tensor(), build), _hinted(value.block_shape, build))
        value = value.as_python_constant() if value.is_python_constant() else value.as_proxy()
    if isinstance(value, torch.fx.Proxy):
        value = value.node.meta["example_value"]
    if isinstance(value, torch.Tensor):
        size, stride = ([_hinted(n, build) for n in sizes] for sizes in (value.size(), value.stride()))
        return build(size, stride, dtype=value.dtype, device=value.device)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        node = value.node
        return node.hint if node.has_hint() else UNBACKED if isinstance(value, torch.SymInt) else 1
    if isinstance(value, (list, tuple)):
        found = [_hinted(v, build) for v in value]
        return value._make(found) if hasattr(value, "_make") else type(value)(found)
    return value


def _is_of_dynamo(value: Any) -> bool:
    """Whether a value is Dynamo's stand-in for one."""
    base = sys.modules.get("torch._dynamo.variables.base")
    return base is not None and isinstance(value, base.VariableTracker)


def _meta(size: Sequence[int], stride: Sequence[int], *, dtype: Any, device: Any) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def _fake(size: Sequence[int], stride: Sequence[int], *, dtype: Any, device: Any) -> torch.Tensor:
    """A tensor that says of itself what the real one does, its device included: what a user's pruning may ask."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty_strided(size, stride, dtype=dtype, device=device)


# The cache key ------------------------------------------------------------------------------------------------------


def _with_decisions(sources: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """What AOTAutograd's cache key holds of the kernels in triton ops, with what is decided about those of ours."""

    @functools.wraps(sources)
    def get_triton_source_codes_from_gm(self: Any, gm: Any) -> list[str]:
        from ..triton.autotuner import ForecastAutotuner

        found: list[str] = list(sources(self, gm))
        kernels = {id(k): k for k in _kernels_of_ops(gm) if isinstance(k, ForecastAutotuner)}
        return found + [_state(kernel) for kernel in kernels.values()]

    return get_triton_source_codes_from_gm


def _kernels_of_ops(gm: Any) -> list[Any]:
    from torch._library.triton import get_triton_kernels_for_op

    names: dict[str, None] = {}
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            target = node.target
            if isinstance(target, torch._ops.OpOverloadPacket):
                names.update(dict.fromkeys(getattr(target, overload)._name for overload in target.overloads()))
            elif isinstance(target, torch._ops.OpOverload):
                names[target._name] = None
    return [kernel for name in names for kernel in get_triton_kernels_for_op(name)]


def _state(tuner: ForecastAutotuner) -> str:
    """Changes with whatever may change a decision for any call of a kernel, as far as that can be told before tracing.

    Raises:
        BypassAOTAutogradCache: the ranks of the job decide together. A hit would ask them nothing.
    """
    how = tuner.dispatcher.request(default_budget="0")
    if len(tuner.configs) > 1 and ranks_decide(how):
        raise sys.modules[CACHE_KEY].BypassAOTAutogradCache(f"the ranks of the job decide on kernel {tuner.name}")
    settings = how.settings
    parts = [settings.mode, how.surrogate.name, settings.toolchain, *(str(c) for c in tuner.configs)]
    try:
        if settings.mode not in ("first", "forecast"):
            program = program_of(tuner.spec)
            known = StoreFile(settings.dir)
            parts += sorted(
                f"{d.digest} {d.decision.config.digest} {d.decision.decided_at}"
                for d in (known.decisions(kernel=program.name) if known.exists() else ())
                if d.place.workload.program.digest == program.digest
            )
            parts += [f"{pack} {pack.stat().st_mtime_ns}" for pack in settings.packs if pack.exists()]
    except Exception:
        log.debug("kernel %s: what is decided is not part of the cache key", tuner.name, exc_info=True)
    return f"forecast_autotune {digest(*parts)}"
