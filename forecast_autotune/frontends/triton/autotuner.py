"""The Triton front door: a drop-in for `triton.autotune` that forecasts every config and compiles few."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from sys import intern
from typing import Any

from triton import knobs
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.autotuner import Config as TritonConfig
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources, PTXASError

from ...compilers.triton_source import OPTIONS, jit_function
from ...core.config import Config
from ...core.decision import Decision
from ...core.job import Job
from ...core.outcome import Failure
from ...core.space import Space
from ...errors import InvalidInputError, TuningWarning
from ...measure.base import is_of_the_config
from ...measure.checks import Check, validate
from ...measure.clocks import TIMINGS
from ...measure.probe import device_identity
from ...protocols import Compiler, Store, Surrogate
from ..dispatch import Dispatcher
from ..engine import Request
from ..inductor import templates as inductor
from ..key_table import Entry
from ..nested_tuning import here, in_use
from ..turn import turn
from .call import TritonCall, knobs_of
from .launch_code import DecisionCache, Form, Launch, call_form, current_device, make_form, power_of_two
from .spec import KernelSpec

DEFAULT_BUDGET = "16,30s"
_REFUSALS = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""Errors of a config for which Triton's own tuner takes another."""
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
        self.epoch = "0"  # compiled code holds as long as this stays
        self._forms: dict[tuple[Any, ...], Form | None] = {}
        self._launches: dict[tuple[Any, ...], Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {}
        self._made: dict[int, Launch] = {}  # of the configs, by identity, as their calls last ran them
        self._configs: list[Any] = []
        self.dispatcher = Dispatcher(
            _TritonDoor(self),
            default_budget=DEFAULT_BUDGET,
            budget=budget,
            mode=mode,
            surrogate=surrogate,
            shard=shard,
        )
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
        validate(check)
        if timing not in TIMINGS:
            raise InvalidInputError(f"timing={timing!r} of {name}: accepted are {', '.join(TIMINGS)}")
        # As in Triton, each of its three older arguments comes before do_bench.
        replaced = warmup is not None or rep is not None or use_cuda_graph
        self.user_do_bench = None if replaced else do_bench
        self.timing = "graph" if use_cuda_graph else timing
        self.check, self.space = check, space
        self.isolate = isolate
        self.buckets = {n: _bucket(name, n, b, key) for n, b in (key_buckets or {}).items()}

    # What others read and assign ------------------------------------------------------------------------------------

    @property
    def configs(self) -> list[Any]:
        """The configs to choose among; assigning a list forgets what was decided about the old one."""
        return self._configs

    @configs.setter
    def configs(self, configs: Sequence[Any]) -> None:
        self._configs = list(configs)
        inductor.recompile(self)
        self.dispatcher.table.clear()

    @property
    def cache(self) -> DecisionCache:
        """From tuning key to the config decided for it in this process."""
        return DecisionCache(self.dispatcher.table)

    @cache.setter
    def cache(self, entries: Mapping[Any, Any]) -> None:
        self.dispatcher.table.clear()
        self.cache.update(entries)

    @property
    def decisions(self) -> dict[Any, Decision]:
        """From tuning key to its decision: the last 64 that this process made or recalled."""
        return self.dispatcher.decisions

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

    @property
    def spec(self) -> KernelSpec:
        """The kernel with its configs, hooks and options as they are now."""
        return KernelSpec(
            fn=self.fn,
            base_fn=self.base_fn,
            arg_names=tuple(self.arg_names),
            configs=tuple(self._configs),
            key=tuple(self.keys),
            key_buckets=self.buckets,
            reset_to_zero=tuple(self.reset_to_zero),
            restore_value=tuple(self.restore_value),
            pre_hook=self.pre_hook,
            post_hook=self.post_hook,
            user_defined_pre_hook=self.user_defined_pre_hook,
            user_defined_post_hook=self.user_defined_post_hook,
            early_config_prune=self.early_config_prune,
            perf_model=self.perf_model,
            top_k=self.configs_top_k,
            own_do_bench=self.user_do_bench,
            warmup_ms=self.num_warmups,
            rep_ms=self.num_reps,
            timing=self.timing,
            check=self.check,
            isolate=self.isolate,
            roles=self.space.roles if self.space is not None else {},
        )

    def __copy__(self) -> ForecastAutotuner:
        """A tuner that decides for itself, with the entries of this one."""
        made = type(self).__new__(type(self))
        made.__dict__.update(
            self.__dict__, _local=threading.local(), _configs=[*self._configs], _forms={}, _launches={}, _made={}
        )
        made.dispatcher = self.dispatcher.copy(_TritonDoor(made))
        return made

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
        return launch(args, kwargs)

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that no launch was written out for: its key or its form is new, or its decision not the last word."""
        given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        call = {n: v for n, v in given.items() if n in self.arg_names}
        table = self.dispatcher.table
        version = table.version
        entry, key, config = None, None, self._configs[0]
        if len(self._configs) > 1:
            key = self._tuning_key(call)
            if table.is_pinned(key[:-1]):  # put in by the program under Triton's own key, which knows no device
                key = key[:-1]
            entry = self.dispatcher.entry(key, (args, kwargs))
            config = entry.launcher
        self.best_config = config
        if entry is None or entry.provisional is None:
            with table.lock:
                current = entry is None or (table.get(key) is entry and entry.launcher is config)
                if version == table.version and current:
                    self._remember(config, call, args, kwargs)
        try:
            result = self._launch(config, args, kwargs)
        except Exception as err:
            if entry is None or entry.measured or not is_of_the_config(err):
                raise
            return self._launch_another(key, entry, config, err, args, kwargs)
        if entry is not None:
            entry.fallback = None
        return result

    def _launch_another(
        self, key: Any, entry: Entry, refused: Any, err: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Launch what comes first of the default and the configs after it that the device takes.

        For a choice that nothing was measured for: a forecast one, or the default while another thread or process tunes.
        """
        if entry.launcher is refused and entry.fallback is not None:
            self.dispatcher.fall_back(key, entry, err)
        tried = [refused]
        for config in (entry.launcher, *self._pruned(args, kwargs)):
            if any(config is each for each in tried):
                continue
            tried.append(config)
            self.best_config = config
            try:
                result = self._launch(config, args, kwargs)
            except _REFUSALS:
                continue
            if entry.launcher is not config:
                with self.dispatcher.table.lock:
                    entry.launcher = config
                    self.forget_shortcuts()
                warnings.warn(
                    f"kernel {self.name} runs {config}, for its first config does not run: {type(err).__name__}: {err}",
                    TuningWarning,
                    stacklevel=4,
                )
            return result
        raise err

    def _launch(self, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch under a config, its hook before; the hook may read `nargs`, as with Triton's own tuner."""
        if config.pre_hook is None:
            return self.fn.run(*args, **kwargs, **config.all_kwargs())
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        try:
            config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
            return self.fn.run(*args, **kwargs, **config.all_kwargs())
        finally:
            self.nargs = None

    def _tuning_key(self, call: Mapping[str, Any]) -> tuple[Any, ...]:
        """Triton's own rule, values of `key` and then the dtype of each argument that has one; and the device."""
        key = [self.buckets[n](call[n]) if n in self.buckets else call[n] for n in self.keys if n in call]
        key += [intern(str(value.dtype)) for value in call.values() if hasattr(value, "dtype")]
        device = current_device()
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
                on_device=current_device() is not None,
            )
        if form is not None:
            form.table[form.key(args, kwargs)] = self._as_launched(config)
            self._launches[name] = form.launch

    def _as_launched(self, config: Any) -> Launch:
        """A config as calls run it, one for all the keys that it was decided for."""
        made = self._made.get(id(config))
        if made is None or vars(config) != made.state:
            made = Launch.of(config)
            if any(config is each for each in self._configs):
                self._made[id(config)] = made
        return made

    def forget_shortcuts(self) -> None:
        """Let each next call look its decision up in the table; called under its lock."""
        self._launches.clear()
        for form in filter(None, self._forms.values()):
            form.table.clear()  # its functions refer to each other: their entries would stay until a full collection
        self._forms.clear()
        self._made.clear()

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
        return self._launch(chosen, tuple(args), dict(kwargs))

    def _pruned(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The configs that the user's pruning leaves for a call."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        try:
            return self.prune_configs(dict(kwargs))
        finally:
            self.nargs = None

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Any]:
        """The user's pruning of the configs for the call that `nargs` tells of."""
        return self.spec.prune(self.nargs or {}, kwargs)


class _TritonDoor:
    """The front door of Triton kernels: how a tuner's calls are decided. A call is its arguments and keywords."""

    def __init__(self, tuner: ForecastAutotuner) -> None:
        self._tuner = tuner

    @property
    def name(self) -> str:
        return f"kernel {self._tuner.name}"

    def why_unmeasured(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
        if call[1].get("warmup"):
            return "the call only compiles"
        return "a CUDA graph was being captured" if _capturing() else ""

    def default(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        return self._tuner._pruned(*call)[0]

    def tuning(self, call: tuple[tuple[Any, ...], dict[str, Any]], how: Request) -> _KernelTuning:
        tuner = self._tuner
        # The user's pruning may take its time, and have other threads launch kernels, for which it waits.
        with turn.taking_time(tuner.early_config_prune is not None or tuner.perf_model is not None):
            candidates = tuner._pruned(*call)
        return _KernelTuning(tuner, candidates, *call, shard=how.shard)

    def forget_shortcuts(self) -> None:
        self._tuner.forget_shortcuts()


class _KernelTuning:
    """What there is to decide for a call of a kernel; see `Tuning`. A launcher is a `triton.Config`."""

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
        return self._call.job if len(self._candidates) > 1 else None

    @property
    def compiler(self) -> Compiler:
        return self._call.compiler

    @contextmanager
    def measurer(self) -> Iterator[Any]:
        self._tuner.nargs = dict(zip(self._tuner.arg_names, self._args, strict=False))  # for a benchmark of the user's
        try:
            with self._call.measurer() as measurer:
                yield measurer
        finally:
            self._tuner.nargs = None

    def launcher(self, config: Config) -> Any:
        return self._call.theirs(config)

    def refused(self, config: Config, measurer: Any) -> Failure | None:  # noqa: ARG002
        """Nothing is compared: what a config of a kernel computes is in its digest."""
        return None

    def fallback(self, decision: Decision, *, measured_here: bool) -> tuple[Any, Config] | None:  # noqa: ARG002
        default = self._call.job.space.default
        return (self.default, default) if decision.basis == "forecast" and decision.config != default else None

    def decided(self, decision: Decision, store: Store, *, measured: int, seconds: float) -> None:
        """Do what Triton does after tuning: keep timings, reset arguments, tell the listener, show the user."""
        tuner, call, config = self._tuner, self._call, self._call.theirs(decision.config)
        tuner.configs_timings = call.timings_ms(store.outcomes(call.job))
        tuner.bench_time = seconds
        if measured:  # where the default ran, or by hooks of the user's: what is to start from zeros starts from them
            tuner.pre_hook({**call.named, **config.all_kwargs()}, reset_only=True)
        key = tuner._tuning_key({n: v for n, v in call.named.items() if n in tuner.arg_names})
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
                warnings.warn(
                    f"the listener of autotuning failed on kernel {tuner.name}: {type(err).__name__}: {err}",
                    TuningWarning,
                    stacklevel=7,
                )
        if knobs.autotuning.print and measured:
            print(
                f"Triton autotuning for function {tuner.name},\nwith key as {key},\n"
                f"finished after {seconds:.2f}s,\nbest config selected: {config};"
            )


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
    options = {n: v for n, v in config.knobs.items() if n in OPTIONS}
    return TritonConfig({n: v for n, v in config.knobs.items() if n not in options}, **options)


def _capturing() -> bool:
    """Whether launches go into a CUDA graph now: timing would wait for the device, which ends the capture in an error."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
