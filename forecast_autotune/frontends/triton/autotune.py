"""The decorator in place of `triton.autotune`: every argument with its meaning. It imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import InvalidInputError

if TYPE_CHECKING:
    import triton

    from ...core.space import Space
    from ...measure.checks import Check
    from ...protocols import Surrogate
    from ...settings import Mode
    from .autotuner import ForecastAutotuner


class Autotune:
    """Decorates kernels as `triton.autotune` does."""

    __name__ = "autotune"

    def __init__(self) -> None:
        self.__qualname__ = self.__name__

    def __reduce__(self) -> str:
        return self.__name__  # by its name in its module, as a function: there is but one

    def __call__(
        self,
        configs: Sequence[triton.Config] | None = None,
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
    ) -> Callable[[Any], ForecastAutotuner]:
        """Decorate a `triton.jit` function; what is returned is launched like it, `kernel[grid](…)`.

        The first call of a key measures those of its configs that may be the best and remembers which one was; later calls
        of the key, also of other processes, launch that one. Up to `cache_results` these are the arguments of
        `triton.autotune`, in its order; the others are ours.

        Args:
            configs: the `triton.Config`s to choose among, the default first. Needed unless `space` is given.
            key: names of arguments whose values, with the dtypes of all, tell calls apart: each key has its own decision.
            prune_configs_by: a mapping that may hold `perf_model`, `top_k` and `early_config_prune`, as Triton has them.
            reset_to_zero: names of tensors that are set to zero before each config is timed.
            restore_value: names of tensors that are put back after each config is timed.
            pre_hook: called with the arguments, by name, before a config is timed; in place of `reset_to_zero`'s.
            post_hook: called with the arguments, by name, and an exception or None after a config is timed; in place of
                `restore_value`'s.
            warmup: deprecated by Triton: milliseconds of warming up before a config is timed.
            rep: deprecated by Triton: milliseconds for which a config is timed.
            use_cuda_graph: deprecated by Triton: as `timing="graph"`.
            do_bench: a benchmark of your own, called with a function to time and `quantiles`.
            cache_results: changes nothing: results are kept in any case.
            budget: as FORECAST_AUTOTUNE_BUDGET, which overrides it: `16`, `"10%"`, `"2s"`, `0`, `"all"`, `"16,30s"`; by
                default at most 16 configs and 30 s for each key.
            mode: as FORECAST_AUTOTUNE_MODE, which overrides it: `"tune"`, `"online"`, `"cached"`, `"forecast"`, `"first"`,
                `"strict"`.
            surrogate: who forecasts: a name as in FORECAST_AUTOTUNE_SURROGATE, which overrides it, or a Surrogate.
            space: a `Space`, such as `Space.grid(…)`, instead of `configs`; `num_warps`, `num_stages`, `num_ctas` and
                `maxnreg` are knobs like others.
            check: `"allclose"`, `"bitexact"` or a callable: configs whose outputs differ from the first config's are never
                chosen.
            key_buckets: names in `key` to `"pow2"` or a function: calls whose values fall in one bucket share a decision.
            timing: `"eager"`, or `"graph"` to time replays of a CUDA graph; part of the key.
            isolate: time configs in a child process, so that an illegal access or a hang ends that process alone.
                FORECAST_AUTOTUNE_ISOLATE overrides it.
            shard: processes on different devices of equal hardware that miss one key share its measurements.
        Returns:
            The decorator; it returns the `ForecastAutotuner` that stands for the kernel.
        Raises:
            InvalidInputError: it is given the kernel itself, as in `@autotune` without a call; when it decorates, an
                argument does not parse or does not fit the kernel.
            ValueError: when it decorates, as Triton does, for names that are no arguments of the kernel.
        """
        if callable(configs) or hasattr(configs, "arg_names"):
            kernel = getattr(configs, "__name__", configs)
            raise InvalidInputError(
                f"autotune was given the kernel {kernel} itself: write @autotune(configs=[…], key=[…]) above it, or space="
            )

        def decorate(fn: Any) -> ForecastAutotuner:
            if not hasattr(fn, "arg_names"):
                what = f"{getattr(fn, '__name__', fn)} is no Triton kernel, but a {type(fn).__name__}"
                raise InvalidInputError(f"{what}: write @autotune(…) above @triton.jit, not below it")
            if key is None or (isinstance(key, str) and not set(key) <= set(fn.arg_names)):
                raise InvalidInputError(f"key={key!r}: give a list of names, such as key=['n'], or [] for one key")
            from ...compilers.triton_hash import begin_hashing
            from .autotuner import ForecastAutotuner
            from .config_checks import misspelt_refused

            begin_hashing(mode)
            with misspelt_refused():
                return ForecastAutotuner(
                    fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook,
                    prune_configs_by, warmup, rep, use_cuda_graph, do_bench, cache_results,
                    budget=budget, mode=mode, surrogate=surrogate, space=space, check=check, key_buckets=key_buckets,
                    timing=timing, isolate=isolate, shard=shard,
                )  # fmt: skip

        return decorate
