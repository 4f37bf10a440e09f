"""The Triton front door: a drop-in for `triton.autotune` that forecasts every config and compiles few."""

from __future__ import annotations

import inspect
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.autotuner import Config as TritonConfig
from triton.runtime.driver import driver
from triton.runtime.errors import TritonError
from triton.runtime.jit import JITFunction

from ..core.budget import Budget
from ..core.config import Config
from ..core.decision import Decision
from ..core.hardware import Hardware
from ..core.space import Space
from ..errors import AutotuneError, CacheMissError, InvalidInputError, NoWorkingConfigError, TuningWarning
from ..measure.checks import Check, validate
from ..measure.measuring import is_of_the_config
from ..probe import device_identity
from ..protocols import Store, Surrogate
from ..rehearsal_driver import current_rehearsal
from ..store.sqlite import SqliteStore
from . import inductor
from .deciding import deciding
from .engine import Request, decide, make_store, request, takes_time, untraced
from .joint import here, in_use
from .pending import holds_unmeasured, is_unmeasured
from .triton_call import TritonCall, knobs_of
from .triton_dispatch import DecisionCache, Form, call_form, make_form, power_of_two

log = logging.getLogger(__name__)

DEFAULT_BUDGET = "16,30s"
TIMINGS = ("eager", "graph")
BUCKETS: dict[str, Callable[[Any], Any]] = {"pow2": power_of_two}


def _tell_overrides_apart() -> None:
    """Let a config's text show its `ir_override`, as since Triton 3.9; before, two configs that differ there read alike."""
    if "ir_override" in inspect.getsource(TritonConfig.__str__):
        return
    plain = TritonConfig.__str__

    def text(config: Any) -> str:
        override = getattr(config, "ir_override", None)
        return f"{plain(config)}, ir_override: {override}" if override else str(plain(config))

    TritonConfig.__str__ = text


_tell_overrides_apart()


class ForecastAutotuner(Autotuner):  # type: ignore[misc]
    """Triton's Autotuner with forecasts: same arguments, same attributes, same results, fewer compiles.

    What Triton 3.9 does, older versions do here too: None in `reset_to_zero` and `restore_value`, a fractional `top_k` of
    the pruned list, no benchmark for a single config, the listener. What only a newer Triton refuses is warned about.

    Args:
        budget: as FORECAST_AUTOTUNE_BUDGET, which overrides it; by default at most 16 configs and 30 s for each key.
        mode: as FORECAST_AUTOTUNE_MODE, which overrides it.
        surrogate: a name as in FORECAST_AUTOTUNE_SURROGATE, which overrides it, or a Surrogate.
        space: a `Space`, such as `Space.grid(...)`, instead of `configs`; `num_warps`, `num_stages`, `num_ctas` and
            `maxnreg` are knobs like others.
        check: `"allclose"`, `"bitexact"` or a callable: configs whose outputs differ from the first config's are never
            chosen.
        key_buckets: names in `key` to `"pow2"` or a function: calls whose values fall in one bucket share a decision.
        timing: `"eager"`, or `"graph"` to time replays of a CUDA graph; part of the key.
        isolate: time configs in a child process, which an illegal access or a hang costs its life and nothing else.
            FORECAST_AUTOTUNE_ISOLATE overrides it.
        shard: processes on different devices of equal hardware that miss one key share its measurements.
    Raises:
        InvalidInputError: one of these does not say what it must.
        ValueError: as Triton does, for names that are no arguments of the kernel.
    """

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Any] | None,
        key: Sequence[str],
        reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None,
        pre_hook: Callable[..., Any] | None = None,
        post_hook: Callable[..., Any] | None = None,
        prune_configs_by: Mapping[str, Any] | None = None,
        warmup: int | None = None,
        rep: int | None = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool = False,
        *,
        budget: str | int | None = None,
        mode: str | None = None,
        surrogate: str | Surrogate | None = None,
        space: Space | None = None,
        check: Check = None,
        key_buckets: Mapping[str, str | Callable[[Any], Any]] | None = None,
        timing: str = "eager",
        isolate: bool = False,
        shard: bool = False,
    ) -> None:
        self._local = threading.local()
        self._forms_lock = threading.RLock()
        self._generation = 0
        self.epoch = "0"  # compiled code holds as long as this stays
        self._forms: dict[tuple[Any, ...], Form | None] = {}
        self._launches: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._configs: list[Any] = []
        self.decisions: dict[Any, Decision] = {}
        self._unmeasured: set[Any] = set()
        self._defaults: dict[Any, tuple[Config, Any]] = {}  # where a forecast chose: the default, ours and theirs
        name = getattr(getattr(fn, "fn", fn), "__name__", repr(fn))
        if space is not None:
            if configs:
                raise InvalidInputError(f"{name} has both configs= and space=: give one of them")
            configs = [_triton_config(c) for c in space]
        if prune_configs_by and "configs_top_k" in prune_configs_by:  # torch's word for it, where it decorates again
            prune_configs_by = {"top_k": prune_configs_by["configs_top_k"], **prune_configs_by}
        _check_names(name, arg_names, key=key, reset_to_zero=reset_to_zero, restore_value=restore_value)
        super().__init__(
            fn, arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook, prune_configs_by, warmup,
            rep, use_cuda_graph, do_bench, cache_results,
        )  # fmt: skip
        if knobs.runtime.interpret:
            self.cache_results = False
        self._install_hooks()
        if budget is not None:
            Budget(budget)
        validate(check)
        if timing not in TIMINGS:
            raise InvalidInputError(f"timing={timing!r} of {name}: accepted are {', '.join(TIMINGS)}")
        self._budget, self._mode, self._surrogate = budget, mode, surrogate
        # As in Triton, each of its three older arguments comes before do_bench.
        replaced = warmup is not None or rep is not None or use_cuda_graph
        self.user_do_bench = None if replaced else do_bench
        self.timing = "graph" if use_cuda_graph else timing
        self.check, self.space = check, space
        self.isolate, self._shard = isolate, shard
        self._memory: Store | None = None
        self.buckets = {n: _bucket(name, n, b, key) for n, b in (key_buckets or {}).items()}
        request(budget, default_budget=DEFAULT_BUDGET, environment={}, mode=mode, surrogate=surrogate)  # does it parse?

    # What others read and assign ------------------------------------------------------------------------------------

    @property
    def configs(self) -> list[Any]:
        """The configs to choose among; assigning a list forgets what was decided about the old one."""
        return self._configs

    @configs.setter
    def configs(self, configs: Sequence[Any]) -> None:
        self._configs = list(configs)
        inductor.recompile(self)
        if "cache" in self.__dict__ or hasattr(self, "_cache"):
            self.cache.clear()

    @property
    def cache(self) -> DecisionCache:
        """From tuning key to the config decided for it in this process."""
        return self._cache

    @cache.setter
    def cache(self, entries: Mapping[Any, Any]) -> None:
        with self._forms_lock:
            self._forget_calls()
            self._cache = DecisionCache(self._forget_calls, entries, self._forms_lock)

    def _forget_calls(self) -> None:
        """Let each next call look its decision up in `cache`, the one that is being decided now included.

        Under the lock: else a call that has compared generations and is about to be remembered would outlive this.
        """
        with self._forms_lock:
            self._generation += 1
            self._launches.clear()
            self._forms.clear()

    @property
    def do_bench(self) -> Any:
        """The benchmark, as Triton's own tuner has it; one that is assigned times the configs from then on."""
        return driver.active.get_benchmarker() if self._do_bench is None else self._do_bench

    @do_bench.setter
    def do_bench(self, benchmark: Callable[..., Any]) -> None:
        self._do_bench = self.user_do_bench = benchmark

    @property
    def nargs(self) -> dict[str, Any] | None:
        """The positional arguments of the call that this thread decides for, which a user's pruning may read."""
        return getattr(self._local, "nargs", None)

    @nargs.setter
    def nargs(self, named: dict[str, Any] | None) -> None:
        self._local.nargs = named

    def forget_unmeasured(self) -> None:
        """Decide again, when they are next met, keys whose decision measuring had no say in."""
        with deciding:
            for key in self._unmeasured:
                self.decisions.pop(key, None)
                self._cache.pop(key, None)
            self._unmeasured.clear()

    def __hash__(self) -> int:
        """As any object's; and torch looks a kernel up in its table of kernels before it captures a call of it."""
        inductor.take_part()
        return object.__hash__(self)

    @property
    def name(self) -> str:
        return str(self.base_fn.__name__)

    def _install_hooks(self) -> None:
        """Triton's default hooks as of 3.8, which leave out arguments that are None; nor is a number set to zero."""

        self.restore_copies: dict[str, Any] = {}

        def pre_hook(kwargs: dict[str, Any], reset_only: bool = False) -> None:
            for name in self.reset_to_zero:
                if hasattr(kwargs[name], "zero_"):
                    kwargs[name].zero_()
            if not reset_only:
                wanted = ((name, kwargs[name]) for name in self.restore_value)
                self.restore_copies = {name: value.clone() for name, value in wanted if value is not None}

        def post_hook(kwargs: dict[str, Any], exception: Exception | None) -> None:  # noqa: ARG001  # Triton's signature
            for name, value in self.restore_copies.items():
                kwargs[name].copy_(value)
            self.restore_copies = {}

        if not self.user_defined_pre_hook and (self.reset_to_zero or self.restore_value):
            self.pre_hook = pre_hook
        if not self.user_defined_post_hook and self.restore_value:
            self.post_hook = post_hook

    # The call -------------------------------------------------------------------------------------------------------

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch the kernel under the config decided for this call's key, deciding now if it is the first of its key."""
        if in_use and (joint := here.joint) is not None and joint.takes(self):
            return joint.run(self, args, kwargs)
        form = (len(args), *kwargs)
        try:
            launch = self._launches[form]
        except KeyError:
            launch = self._miss
        return launch(*args, **kwargs)

    def _miss(self, *args: Any, **kwargs: Any) -> Any:
        """A call whose key, or whose form, is met for the first time in this process."""
        given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        call = {n: v for n, v in given.items() if n in self.arg_names}
        generation = self._generation
        if len(self._configs) > 1:
            key = self._tuning_key(call)
            config = self.cache.get(key)
            if config is None:
                with deciding.unless_measuring() as our_turn:
                    config = self.cache.get(key)
                    if config is None and not our_turn:
                        config = untraced(self._default)(args, kwargs)
                    elif config is None:
                        config = untraced(self._decide)(key, args, kwargs)
                        if is_unmeasured(self.decisions.get(key)):
                            self._unmeasured.add(key)
                            holds_unmeasured(self)
                        # Else it was chosen among configs assigned away meanwhile, or unmeasured, to be decided again.
                        capturing = _capturing()
                        with self._forms_lock:
                            if generation == self._generation and not capturing:
                                self._cache.add(key, config)
        else:
            config, key = self._configs[0], None
        self.best_config = config
        with self._forms_lock:  # another one than deciding holds: a call whose key is decided waits for no tuning
            if generation == self._generation and (key is None or key in self._cache):
                self._remember(config, call, args, kwargs)
        try:
            return self._launch(config, given, args, kwargs)
        except Exception as err:
            if key not in self._defaults or not is_of_the_config(err):
                raise
            ours, default = self._defaults[key]
            if default is config:
                raise
            self._fall_back(key, config, ours, default, err)
        return self._launch(default, given, args, kwargs)

    def _launch(self, config: Any, given: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if config.pre_hook is not None:
            config.pre_hook({**given, **config.all_kwargs()})
        return self.fn.run(*args, **kwargs, **config.all_kwargs())

    def _fall_back(self, key: Any, config: Any, ours: Config, default: Any, err: Exception) -> None:
        """Put the default in the place of a config that a forecast chose and that does not run; say so once for a key."""
        with self._forms_lock:  # not one's turn to decide: another thread may be busy measuring
            self.best_config = default
            if self._cache.get(key) is config:
                self._cache[key] = default
            decision = self.decisions.get(key)
            if decision is None or decision.basis != "forecast":
                return
            why = f"the config forecast does not run: {type(err).__name__}: {err}"
            self.decisions[key] = replace(
                decision, config=ours, config_us=decision.default_us, basis="default", reason=why
            )
        warnings.warn(
            f"kernel {self.name} runs its first config, not {config}, which a forecast chose and which does not run: "
            f"{type(err).__name__}: {err}",
            TuningWarning,
            stacklevel=4,
        )

    def _tuning_key(self, call: Mapping[str, Any]) -> tuple[Any, ...]:
        """Triton's own rule, values of `key` and then the dtype of each argument that has one; and the device."""
        key = [self.buckets[n](call[n]) if n in self.buckets else call[n] for n in self.keys if n in call]
        key += [str(value.dtype) for value in call.values() if hasattr(value, "dtype")]
        device = _current_device()
        return tuple(key) if device is None else (*key, device)

    def _remember(self, config: Any, call: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let the next call of this form and key go straight to the launch."""
        name = call_form(args, kwargs)
        tensors = frozenset(n for n, value in call.items() if hasattr(value, "dtype"))
        form = self._forms.get(name)
        strange = form is not None and (tensors ^ form.tensors) - form.mixed
        if name not in self._forms or (form and strange):
            form = self._forms[name] = make_form(
                self,
                name,
                arg_names=self.arg_names,
                tensors=tensors,
                mixed=form.mixed | strange if form and strange else frozenset(),
                key_names=frozenset(self.keys),
                buckets=self.buckets,
                on_device=_current_device() is not None,
            )
        if form is not None:
            form.table[form.key(*args, **kwargs)] = (config, config.all_kwargs(), config.pre_hook)
            self._launches[name] = form.launch

    # Within a variant -----------------------------------------------------------------------------------------------

    def candidates(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Config, Any]:
        """See `Nested`; of configs that differ in their hooks alone, the first."""
        pruned = [(knobs_of(config), config) for config in self._pruned(args, kwargs)]
        names = dict.fromkeys(name for values, _ in pruned for name in values)
        found: dict[Config, Any] = {}
        for values, config in pruned:
            found.setdefault(Config({name: values.get(name) for name in names}), config)
        return found

    def run_under(self, chosen: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `Nested`."""
        self.best_config = chosen
        given = {} if chosen.pre_hook is None else {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        return self._launch(chosen, given, tuple(args), dict(kwargs))

    # A decision -----------------------------------------------------------------------------------------------------

    def _default(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call runs whose key cannot be decided now: the first config that the user's pruning leaves."""
        return self._pruned(args, kwargs)[0]

    def _pruned(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The configs that the user's pruning leaves for a call."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        try:
            return self.prune_configs(dict(kwargs))
        finally:
            self.nargs = None

    def _decide(self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The config for a key that is met for the first time in this process."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        try:
            candidates = self.prune_configs(kwargs)
            if len(candidates) == 1:
                return candidates[0]
            began = time.perf_counter()
            how = request(
                self._budget,
                default_budget=DEFAULT_BUDGET,
                mode=self._mode,
                surrogate=self._surrogate,
                shard=self._shard,
            )
            if how.settings.mode == "first":
                return candidates[0]
            if _capturing():
                how = replace(how, budget="0", unmeasured="a CUDA graph was being captured")
            try:
                tuning = TritonCall(self, candidates, args, kwargs)
            except InvalidInputError:  # configs that conflict with the call or with each other: the caller's mistake
                raise
            except Exception as err:
                return self._untuned(candidates[0], err)
            config = self._tune(tuning, key, how)
            self.bench_time = time.perf_counter() - began
            self._tell(key, config, tuning)
            return config
        finally:
            self.nargs = None

    def _tune(self, tuning: TritonCall, key: tuple[Any, ...], how: Request) -> Any:
        try:
            store = self._store(tuning.hardware, how)
            with tuning.measurer as measurer, deciding.measuring(takes_time(how)):
                decision = decide(
                    tuning.job,
                    how,
                    compiler=tuning.compiler,
                    measurer=measurer,
                    store=store,
                    device=_device_identity() if how.shard else "",
                )
            config, default = tuning.theirs(decision.config), tuning.job.space.default
            self.configs_timings = tuning.timings_ms(store.outcomes(tuning.job))
        except (CacheMissError, InvalidInputError, NoWorkingConfigError):
            raise
        except Exception as err:
            return self._untuned(tuning.theirs(tuning.job.space.default), err)
        self.decisions[key] = decision
        if decision.basis == "forecast":
            self._defaults[key] = default, tuning.theirs(default)
        else:
            self._defaults.pop(key, None)
        return config

    def _untuned(self, config: Any, err: Exception) -> Any:
        """Say that tuning failed, and go on with the first config: a launch does not depend on tuning."""
        log.debug("tuning failed", exc_info=True)
        warnings.warn(
            f"kernel {self.name} is not tuned, its first config is run: {type(err).__name__}: {err}",
            TuningWarning,
            stacklevel=6,
        )
        return config

    def _store(self, hardware: Hardware, how: Request) -> Store:
        """The user's store; one of this kernel's own in memory where times mean nothing to anybody later."""
        if hardware.kind not in ("interpreter", "stub") or current_rehearsal() is not None:
            return make_store(how.settings)
        if self._memory is None:
            self._memory = SqliteStore.in_memory()
        return self._memory

    def _tell(self, key: tuple[Any, ...], config: Any, tuning: TritonCall) -> None:
        """What Triton does after tuning: timings kept, arguments reset, the listener told, the user shown."""
        fresh = tuning.measured > 0
        if fresh:  # where the default ran, or by hooks of the user's: what is to start from zeros starts from them
            self.pre_hook({**tuning.named, **config.all_kwargs()}, reset_only=True)
        listener = getattr(knobs.autotuning, "listener", None)
        kernel = self.fn
        while kernel is not None and not isinstance(kernel, JITFunction):
            kernel = getattr(kernel, "fn", None)
        if listener is not None and kernel is not None:
            listener(
                fn=kernel,
                key=key,
                best_config=config,
                configs_timings=getattr(self, "configs_timings", {}),
                duration=self.bench_time if fresh else None,
                cache_hit=not fresh,
            )
        if knobs.autotuning.print and fresh:
            print(
                f"Triton autotuning for function {self.name},\nwith key as {key},\n"
                f"finished after {self.bench_time:.2f}s,\nbest config selected: {config};"
            )

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Any]:
        """The user's pruning, as the newest Triton does it: early pruning first, then the model's best `top_k` of those."""
        pruned = list(self._configs)
        if self.early_config_prune:
            pruned = self.early_config_prune(self._configs, self.nargs, **kwargs)
            if not pruned:
                raise _autotuner_error(
                    "No valid autotuner configs after pruning. `early_config_prune` should return at least one config."
                )
        if self.perf_model:
            top_k = self.configs_top_k
            if isinstance(top_k, float) and top_k <= 1.0:
                top_k = max(1, int(len(pruned) * top_k))
            elif not isinstance(top_k, int):
                raise TypeError(
                    f"top_k={top_k!r} in prune_configs_by of {self.name}: give a share up to 1.0, or a whole number"
                )
            if len(pruned) > top_k:
                named = self.nargs or {}
                expected = {c: self.perf_model(**named, **kwargs, **c.all_kwargs()) for c in pruned}
                pruned = sorted(expected, key=expected.__getitem__)[:top_k]
        pruned = list(pruned)
        for config in pruned:
            if not isinstance(config, TritonConfig):
                raise InvalidInputError(
                    f"prune_configs_by of kernel {self.name} left {config!r}, which is no triton.Config: hand on configs "
                    "out of the list it is given"
                )
        return pruned


def autotune(
    configs: Sequence[Any] | None = None,
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    **extras: Any,
) -> Callable[[Any], ForecastAutotuner]:
    """Decorate a `triton.jit` function: `triton.autotune` with forecasts.

    All arguments of `triton.autotune` in its order; `extras` are the keyword-only arguments of `ForecastAutotuner`.

    Raises:
        InvalidInputError: it is given the kernel itself, as in `@autotune` without a call.
    """
    if callable(configs) or hasattr(configs, "arg_names"):
        kernel = getattr(configs, "__name__", configs)
        raise InvalidInputError(
            f"autotune was given the kernel {kernel} itself: write @autotune(configs=[…], key=[…]) above it, or space="
        )

    def decorate(fn: Any) -> ForecastAutotuner:
        return ForecastAutotuner(
            fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook=pre_hook, post_hook=post_hook,
            prune_configs_by=prune_configs_by, warmup=warmup, rep=rep, use_cuda_graph=use_cuda_graph,
            do_bench=do_bench, cache_results=cache_results, **extras,
        )  # fmt: skip

    return decorate


def _check_names(kernel: str, arg_names: Sequence[str], **named: Sequence[str] | None) -> None:
    """Names that are no arguments are an error where the installed Triton makes them one, else a warning."""
    for parameter, names in named.items():
        unknown = [n for n in names or () if n not in arg_names]
        if not unknown:
            continue
        told = (
            f"{parameter} of kernel {kernel} contains names that are not kernel arguments: {', '.join(unknown)}. "
            f"Valid argument names are: {', '.join(arg_names)}."
        )
        if "not kernel arguments" in inspect.getsource(Autotuner.__init__):  # since 3.9
            raise ValueError(told)
        warnings.warn(told, TuningWarning, stacklevel=5)


def _bucket(kernel: str, name: str, bucket: str | Callable[[Any], Any], key: Sequence[str]) -> Callable[[Any], Any]:
    if name not in key:
        raise InvalidInputError(f"key_buckets of {kernel} names {name!r}: key is {', '.join(key) or 'empty'}")
    found = BUCKETS.get(bucket) if isinstance(bucket, str) else bucket
    if not callable(found):
        raise InvalidInputError(
            f"key_buckets of {kernel}: {name}={bucket!r}; accepted are {', '.join(BUCKETS)}, or a function of the value"
        )
    return found


def _triton_config(config: Config) -> Any:
    """A config of ours as Triton's own."""
    options = {
        n: v for n, v in config.knobs.items() if n in ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
    }
    return TritonConfig({n: v for n, v in config.knobs.items() if n not in options}, **options)


def _current_device() -> Any:
    """The device a launch would run on; None in the interpreter and where no driver is active."""
    if knobs.runtime.interpret:
        return None
    try:
        return driver.active.get_current_device()
    except Exception:  # no driver: Triton says so itself when something is launched
        return None


def _device_identity() -> str:
    """The physical device a launch would run on, told apart from every other of the machine."""
    return device_identity(f"cuda:{_current_device()}")


def _capturing() -> bool:
    """Whether launches go into a CUDA graph now: timing would wait for the device, which ends the capture in an error."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


class _OlderAutotunerError(TritonError, AutotuneError):  # type: ignore[misc]
    """What Triton raises since 3.6, with the words it uses."""


def _autotuner_error(message: str) -> Exception:
    try:
        from triton.runtime.errors import AutotunerError
    except ImportError:
        return _OlderAutotunerError(f"Autotuner error: {message}")
    return AutotunerError(message)  # type: ignore[no-any-return]
