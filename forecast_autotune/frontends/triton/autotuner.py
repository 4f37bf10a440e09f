"""The Triton front door: a drop-in for `triton.autotune` that forecasts every config and compiles few."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver

from ...core.config import Config
from ...core.config_errors import is_of_the_config, raised
from ...core.decision import Decision
from ...core.space import Space
from ...measure.checks import Check, validate
from ...protocols import Surrogate
from ...settings import Mode
from ...store.explanation.explanation import Explanation
from ..dispatch import Dispatcher
from ..key_table import Entry
from ..nested_tuning import ever_nested, of_thread
from ..online.learning import Learning
from .call import by_knobs
from .config_arguments import is_without_data
from .config_checks import as_list, checked_configs
from .decision_cache import DecisionCache, table_key
from .door import TritonDoor, launch_another
from .kernel_spec import KernelSpec
from .launch_codegen import Shortcuts
from .recompilation import EPOCH, recompile
from .simulated_driver import times_mean_nothing
from .target import require_driver
from .torch_capture.capture_patches import patch_capture
from .tuner_options import (
    bucket_functions,
    check_buckets,
    check_flags,
    check_names,
    install_default_hooks,
    listed_configs,
    pruning_options,
    repeat_mixed_parses,
    show_overrides_in_configs,
    timing_of,
)

if TYPE_CHECKING:
    import triton

DEFAULT_BUDGET = "16,30s"

Grid: TypeAlias = "Sequence[int] | Callable[[dict[str, Any]], Sequence[int]]"
"""Numbers of programs, or a function from the call's arguments, by name, to them."""

show_overrides_in_configs()
repeat_mixed_parses()


class ForecastAutotuner(Autotuner):  # type: ignore[misc]
    """Triton's Autotuner with forecasts: same arguments, same attributes, same results, fewer compiles.

    Under an older Triton it behaves as Triton 3.9 does: None in `reset_to_zero` and `restore_value`, a fractional `top_k`
    of the pruned list, no benchmark for a single config, the listener. What only 3.9 refuses is a warning there.

    Args:
        fn: the kernel, and `arg_names` those of its arguments; the others are those of `fa.autotune`, which explains each.
    Raises:
        InvalidInputError: an argument does not parse or does not fit the kernel; the message names what is accepted.
        ValueError: as Triton does, for names that are no arguments of the kernel.
    """

    if TYPE_CHECKING:  # as the base sets them, which has no types
        best_config: triton.Config

        def __getitem__(self, grid: Grid) -> Callable[..., Any]: ...

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[triton.Config] | None,
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
        mode: Mode | None = None,
        surrogate: str | Surrogate | None = None,
        space: Space | None = None,
        check: Check = None,
        key_buckets: Mapping[str, str | Callable[[Any], Any]] | None = None,
        timing: str = "eager",
        isolate: bool = False,
        shard: bool = False,
    ) -> None:
        setattr(self, EPOCH, "0")
        self._set_own_state([])
        self.dispatcher = Dispatcher(
            TritonDoor(self), default_budget=DEFAULT_BUDGET, budget=budget, mode=mode, surrogate=surrogate, shard=shard,
            times_mean_nothing=times_mean_nothing,
        )  # fmt: skip
        kernel = getattr(getattr(fn, "fn", fn), "__name__", repr(fn))
        configs = checked_configs(fn, listed_configs(kernel, configs, space), pruned=bool(prune_configs_by))
        check_names(kernel, arg_names, key=key, reset_to_zero=reset_to_zero, restore_value=restore_value)
        super().__init__(
            fn, arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook,
            pruning_options(prune_configs_by), warmup, rep, use_cuda_graph, do_bench, cache_results,
        )  # fmt: skip
        if knobs.runtime.interpret:
            self.cache_results = False
        install_default_hooks(self)
        validate(check)
        check_flags(kernel, isolate=isolate, shard=shard)
        self.timing = timing_of(kernel, timing, use_cuda_graph)
        # As in Triton, each of its three older arguments comes before do_bench.
        replaced = warmup is not None or rep is not None or use_cuda_graph
        self.user_do_bench: Callable[..., Any] | None = None if replaced else do_bench
        self.check, self.space, self.isolate = check, space, isolate
        self.buckets = bucket_functions(kernel, key_buckets, key)

    def _set_own_state(self, configs: Sequence[Any]) -> None:
        """Set what no copy shares, and the configs."""
        self._local = threading.local()
        self._configs = as_list(configs)
        self._shortcuts = Shortcuts(self)
        self._launches = self._shortcuts.launches

    @property
    def configs(self) -> list[triton.Config]:
        """The configs to choose among, as `triton.Config`s."""
        return self._configs

    @configs.setter
    def configs(self, configs: Sequence[Any]) -> None:
        """Choose among other configs from now on; all decisions are forgotten.

        A list that is changed in place holds for keys met after that, as in Triton.
        """
        self._configs = as_list(configs)
        recompile(self)
        self.dispatcher.table.clear()

    @property
    def keys(self) -> Sequence[str]:
        """The names of arguments whose values tell calls apart."""
        return self._keys

    @keys.setter
    def keys(self, names: Sequence[str]) -> None:
        """Tell calls apart by other arguments from now on; what is decided stays under its keys, as in Triton."""
        self._keys = names
        recompile(self)
        self.dispatcher.table.change()

    @property
    def cache(self) -> DecisionCache:
        """From tuning key to the config decided in this process; entries may be assigned and deleted.

        Keys are Triton's; once keys are decided for several devices, each has its device at its end.
        """
        return DecisionCache(self.dispatcher.table)

    @cache.setter
    def cache(self, entries: Mapping[Any, Any]) -> None:
        """Forget all decisions, and put these configs in for good."""
        self.dispatcher.table.clear()
        self.cache.update(entries)

    @property
    def decisions(self) -> dict[Any, Decision]:
        """From tuning key to `Decision`: the last 64 that this process made or recalled."""
        return self.dispatcher.decisions

    def explain(self, key: Any = None) -> Explanation:
        """Why a key runs what it runs: what `forecast-autotune show` prints, to print, for a notebook, or `.as_json()`.

        Args:
            key: one of `decisions` or of `cache`; None for the one decided last.
        Raises:
            InvalidInputError: nothing is decided for it in this process.
        """
        return self.dispatcher.explain(key if key is None or key in self.decisions else self.cache.key_in_table(key))

    @property
    def do_bench(self) -> Any:
        """The benchmark, as in Triton's own tuner."""
        return driver.active.get_benchmarker() if self._do_bench is None else self._do_bench

    @do_bench.setter
    def do_bench(self, benchmark: Callable[..., Any]) -> None:
        """Time configs by this benchmark from now on."""
        self._do_bench = self.user_do_bench = benchmark

    @property
    def nargs(self) -> dict[str, Any] | None:
        """Positional arguments, by name, of the call that this thread decides for or launches."""
        return getattr(self._local, "nargs", None)

    @nargs.setter
    def nargs(self, named: dict[str, Any] | None) -> None:
        """Set them for this thread; not on a kernel that `install()` reaches, which a thread may be launching by Triton."""
        self._local.nargs = named

    @property
    def guarded(self) -> Any:
        """The kernel as torch knows it, by whose attributes compiled code is guarded."""
        return self

    @property
    def spec(self) -> KernelSpec:
        """The kernel with its configs, hooks and options, as they are now."""
        return KernelSpec.of(self)

    def __copy__(self) -> ForecastAutotuner:
        """A tuner of its own, which begins with the decisions of this one."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._set_own_state(self._configs)
        made.dispatcher = self.dispatcher.copy(TritonDoor(made))
        return made

    def __hash__(self) -> int:
        """As any object's. Torch hashes a kernel before it captures a call of it, so torch is patched here."""
        patch_capture()
        return object.__hash__(self)

    @property
    def name(self) -> str:
        """The kernel's function name, unless the program gave it another, as it may with a tuner of Triton's."""
        return str(vars(self).get("name", self.base_fn.__name__))

    @name.setter
    def name(self, name: str) -> None:
        self.__dict__["name"] = name

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch the kernel under the config decided for this call's key; the first call of a key decides.

        Args:
            args, kwargs: as Triton's: the kernel's arguments, `grid`, and `warmup=True` to compile without a launch.
        Returns:
            What Triton's launch returns: the compiled kernel.
        Raises:
            CacheMissError: mode is `strict` and nothing is stored for this key.
            NoWorkingConfigError: no config runs.
            NoGpuError: there is no GPU that Triton can use.
            Exception: what the launch raises, such as an error in the call's arguments.
        """
        if ever_nested and (nested := of_thread.nested) is not None and nested.decides_for(self):
            return nested.run(self, args, kwargs)
        form = (len(args), *kwargs)
        try:
            launch = self._launches[form]
        except KeyError:
            launch = self._miss
        return launch(args, kwargs)

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call without generated launch code: its key or its form is new, or its decision is provisional."""
        require_driver(self.fn)
        given = {**self._by_name(args), **kwargs}
        if without_data := [name for name, value in given.items() if is_without_data(value)]:
            raise RuntimeError(
                f"kernel {self.name} is called with {', '.join(without_data)}, which has no data: a config's pre_hook got "
                "or made it while configs were compiled ahead; keep nothing of a pre_hook for later launches"
            )
        named = {n: v for n, v in given.items() if n in self.arg_names}
        table = self.dispatcher.table
        version = table.version
        entry, key, config = None, None, self._configs[0]
        if len(self._configs) > 1:
            key = table_key(self, named)
            try:
                if table.is_pinned(key[:-1]):  # the program used Triton's key, which has no device
                    key = key[:-1]
            except TypeError:
                check_buckets(self.name, self.buckets, named)
                raise
            entry = table.get(key)
            if entry is None or entry.learning is None:
                entry = self.dispatcher.entry(key, (args, kwargs))
            if (learning := entry.learning) is not None:
                result = self._launch_in_turn(key, entry, learning, args, kwargs)
                self._remember_best(key, entry, learning, named, args, kwargs)
                return result
            config = entry.launcher
        self.best_config = config
        try:
            result = self._launch(config, args, kwargs)
        except Exception as err:
            of_config = is_of_the_config(raised(err))
            if entry is None or not of_config or (not entry.awaits_measuring and entry.fallback is None):
                raise
            return launch_another(self, key, entry, config, err, args, kwargs)
        if entry is not None:
            entry.fallback = None
        if entry is None or entry.provisional is None:  # not before it has run: a shortcut has nothing to fall back to
            with table.lock:
                current = entry is None or (table.get(key) is entry and entry.launcher is config)
                if version == table.version and current:
                    self._shortcuts.remember(config, named, args, kwargs)
        return result

    def _remember_best(
        self, key: Any, entry: Entry, learning: Learning, named: Mapping[str, Any], args: Any, kwargs: dict[str, Any]
    ) -> None:
        """Have calls like one of a key that is being learned take generated launch code while nothing is tried."""
        with self.dispatcher.table.lock:
            is_current = entry.learning is learning and self.dispatcher.table.peek(key) is entry
            if not is_current or learning.calls.wanted:
                return
            best = learning.best()
            if best is entry.launcher or not learning.meets_others:  # those run what they ran at first
                self._shortcuts.remember(best, named, args, kwargs)

    def _launch_in_turn(
        self, key: Any, entry: Entry, learning: Learning, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Launch a call of a key that is being learned: under the best known config, or a candidate that is tried.

        A call that Triton compiles apart from the first one stays with what that one ran: nothing else is compiled for it.
        """
        call = (args, kwargs)

        def stream() -> Hashable:
            device = driver.active.get_current_device()
            return device, driver.active.get_current_stream(device)

        turn, config = learning.choose(
            call, entry.launcher, may_teach=lambda: not self.dispatcher.why_unmeasured(call), stream=stream
        )
        if learning.calls.over:
            self.dispatcher.settle(entry)

        def launch(chosen: Any) -> Any:
            self.best_config = chosen
            return self._launch(chosen, args, kwargs)

        try:
            result = learning.run(turn, config, launch)
        except Exception as err:
            of_candidate = turn is not None and turn.trial is not None
            if of_candidate or not is_of_the_config(raised(err)):
                raise
            result = launch_another(self, key, entry, config, err, args, kwargs)
            learning.calls.end()  # not where no other config runs either: then it is the call
            self.dispatcher.settle(entry)
            return result
        entry.fallback = None
        return result

    def _launch(self, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch under a config, after its hook; hook and grid may read `nargs`, as under Triton's own tuner."""
        self.nargs = self._by_name(args)
        try:
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
            return self.fn.run(*args, **kwargs, **config.all_kwargs())
        finally:
            self.nargs = None

    def _by_name(self, args: Sequence[Any]) -> dict[str, Any]:
        """Positional arguments by name; `spec`, which does so too, is made anew each time."""
        return dict(zip(self.arg_names, args, strict=False))

    def forget_shortcuts(self) -> None:
        """Have every next call look its decision up in the table; called under the table's lock."""
        self._shortcuts.forget()

    def candidates(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Config, Any]:
        """See `Nested`. Of configs that differ in their hooks alone, the first."""
        return by_knobs(self.pruned_configs(args, kwargs))

    def run_under(self, chosen: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `Nested`."""
        require_driver(self.fn)
        self.best_config = chosen
        return self._launch(chosen, tuple(args), dict(kwargs))

    def pruned_configs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The configs that the user's pruning leaves for a call, as `triton.Config`s.

        Raises:
            AutotunerError: Triton's own error: none is left.
            Exception: what the pruning raises.
        """
        self.nargs = self._by_name(args)
        try:
            return self.prune_configs(dict(kwargs))
        finally:
            self.nargs = None

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Any]:
        """As Triton's: the configs that the user's pruning leaves for the call whose arguments `nargs` holds."""
        return self.spec.prune(self.nargs or {}, kwargs)
