"""`ReachedTuner`: decides for a tuner of Triton's, or of a class derived from it, that keeps its class and its state."""

from __future__ import annotations

from typing import Any

from triton.runtime.autotuner import Autotuner

from ..dispatch import Dispatcher
from .autotuner import DEFAULT_BUDGET, ForecastAutotuner
from .config_checks import checked_configs
from .decision_cache import DecisionCache, table_key
from .door import TritonDoor
from .install import ATTRIBUTE, after_first_launch, lock
from .recompilation import recompile
from .simulated_driver import times_mean_nothing
from .tuner_options import install_default_hooks, is_default_hook, timing_of


def _of_kernel(name: str) -> Any:
    """An attribute that is read from the kernel and written to it."""

    def read(self: ReachedTuner) -> Any:
        return getattr(self.kernel, name)

    def write(self: ReachedTuner, value: Any) -> None:
        setattr(self.kernel, name, value)

    return property(read, write)


def _hook_of_kernel(name: str) -> Any:
    """The kernel's hook where the program set one; else ours, where there is one in the place of Triton's."""

    def read(self: ReachedTuner) -> Any:
        theirs = getattr(self.kernel, name)
        return self._default_hooks.get(name, theirs) if is_default_hook(theirs) else theirs

    def write(self: ReachedTuner, hook: Any) -> None:
        self._default_hooks[name] = hook

    return property(read, write)


class ReachedTuner(ForecastAutotuner):
    """The one behind a kernel that `install()` reaches: what is not our own state is read from the kernel at every use.

    The kernel's `cache`, where it is a plain dictionary, becomes a view of the decisions made here, so that entries the
    program puts in hold, and those it deletes are decided again. `give_back` undoes that.

    Args:
        kernel: an object of Triton's class, or of one derived from it.
    Raises:
        InvalidInputError: a setting does not parse, or the kernel's configs are none.
        Exception: the kernel lacks what Triton's class would have set.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._set_own_state(kernel.configs)
        self.dispatcher = Dispatcher(
            TritonDoor(self), default_budget=DEFAULT_BUDGET, times_mean_nothing=times_mean_nothing
        )
        checked_configs(kernel.fn, kernel.configs, pruned=bool(kernel.early_config_prune or kernel.perf_model))
        self.timing = timing_of(self.name, "eager", bool(kernel.use_cuda_graph))
        self.check, self.space, self.isolate, self.buckets = None, None, False, {}
        self._default_hooks: dict[str, Any] = {}
        install_default_hooks(self)
        self.configs_followed: Any = kernel.configs
        self.keys_followed: Any = kernel.keys
        self.cache_given_out: DecisionCache | None = None
        self._own_cache: dict[Any, Any] = {}
        self._launched = False

    fn, keys, best_config = _of_kernel("fn"), _of_kernel("keys"), _of_kernel("best_config")
    configs_timings, bench_time = _of_kernel("configs_timings"), _of_kernel("bench_time")
    pre_hook, post_hook = _hook_of_kernel("pre_hook"), _hook_of_kernel("post_hook")

    @property
    def guarded(self) -> Any:
        """The kernel, which alone torch knows."""
        return self.kernel

    def __getattr__(self, name: str) -> Any:
        if name == "kernel":  # not set yet: of an object that a copy or a pickle makes
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()  # a kernel that is copied or pickled gets its own at its first launch

    @property
    def user_do_bench(self) -> Any:  # type: ignore[override]  # a property alone
        """The program's own benchmark; None where it is one of Triton's."""
        own = vars(self.kernel).get("do_bench") or self.kernel._do_bench
        return None if str(getattr(own, "__module__", "")).partition(".")[0] == "triton" else own

    def follow(self) -> bool:
        """Take over what was assigned to the kernel since: configs, keys, a cache; False where that is of another class.

        Such a cache may hold what we do not know of: launches of that kernel are left to Triton.
        """
        kernel, table = self.kernel, self.dispatcher.table
        if kernel.configs is not self.configs_followed:
            self.configs_followed = kernel.configs
            self.configs = kernel.configs
        if kernel.keys is not self.keys_followed:
            self.keys_followed = kernel.keys
            recompile(self)
            table.change()
        with lock, table.lock:
            given = kernel.cache
            if vars(kernel).get(ATTRIBUTE) is not self:  # given back meanwhile: this call alone is launched here
                return True
            if given is self.cache_given_out and given is not None:
                return True
            if isinstance(given, DecisionCache):  # of the kernel that this one is a copy of
                given = given.by_tritons_key()
            if type(given) is not dict:
                return False
            if self.cache_given_out is not None:  # a new one: what was decided under the old one is forgotten
                table.clear()
            self._own_cache, self.cache_given_out = given, DecisionCache(table)
            self.cache_given_out.update(given)
            kernel.cache = self.cache_given_out
        return True

    def give_back(self) -> None:
        """Let the kernel have its cache again, with what was decided meanwhile, and learn no more from its calls."""
        self.dispatcher.table.end_learning()
        if self.cache_given_out is not None and self.kernel.cache is self.cache_given_out:
            known = self.cache_given_out.by_tritons_key()
            self._own_cache.clear()
            self._own_cache.update(known)
            self.kernel.cache = self._own_cache

    def config_for_own_run(self, kwargs: dict[str, Any]) -> Any:
        """The config for a call that a `run` of the kernel's own class is about to time configs for.

        None where another thread or process decides it just now: what such a class gets, it keeps for good.

        Args:
            kwargs: the call's keywords; its positional arguments are the kernel's `nargs`.
        """
        kernel = self.kernel
        positional = dict(kernel.nargs or {})
        args = tuple(positional.values())
        call = {n: v for n, v in {**positional, **kwargs}.items() if n in kernel.arg_names}
        try:
            entry = self.dispatcher.entry(table_key(self, call), (args, kwargs))
        finally:
            self.nargs = None
        if entry.learning is not None:  # what such a class gets it keeps: there are no later calls to learn from
            entry.learning.calls.end()
            self.dispatcher.settle(entry)
        self._tell()
        return None if entry.provisional is not None and not entry.provisional.why else entry.launcher

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super()._miss(args, kwargs)
        self._tell()
        return result

    def _tell(self) -> None:
        if not self._launched:
            self._launched = True
            for listener in after_first_launch:
                listener()

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Any]:
        """As the kernel's class prunes."""
        kernel = self.kernel
        if getattr(kernel.prune_configs, "__func__", None) is Autotuner.prune_configs:
            return super().prune_configs(kwargs)
        return list(kernel.prune_configs(kwargs))


def _nothing() -> None:
    return None
