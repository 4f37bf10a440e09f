"""A tuned Triton kernel as its tuner describes it, for timing, forecasts and Inductor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton.runtime.autotuner import Autotuner
from triton.runtime.autotuner import Config as TritonConfig
from triton.runtime.errors import TritonError

from ...errors import AutotuneError, InvalidInputError
from ...measure.checks import Check
from ...settings import Settings
from ..dispatch import Dispatcher
from .tuner_options import is_default_hook


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """A kernel with its configs, key rule, hooks and options at one moment; a tuner's attributes may be assigned later.

    `pre_hook` and `post_hook` are those of the user where `user_defined_pre_hook` and `user_defined_post_hook` say so, else
    Triton's for `reset_to_zero` and `restore_value`.
    """

    fn: Any  # what a launch calls: a JIT function, heuristics above it
    base_fn: Callable[..., Any]
    arg_names: tuple[str, ...]
    configs: tuple[Any, ...]
    key: tuple[str, ...]
    key_buckets: Mapping[str, Callable[[Any], Any]]
    reset_to_zero: tuple[str, ...]  # empty where a pre_hook of the user's takes its place
    restore_value: tuple[str, ...]
    pre_hook: Callable[..., Any]
    post_hook: Callable[..., Any]
    user_defined_pre_hook: bool
    user_defined_post_hook: bool
    early_config_prune: Callable[..., Any] | None
    perf_model: Callable[..., float] | None
    top_k: float | int
    own_do_bench: Callable[..., Any] | None  # the user's benchmark
    warmup_ms: float | None
    rep_ms: float | None
    timing: str
    check: Check
    isolate: bool
    roles: Mapping[str, str]  # of knobs, as the user's space says

    @classmethod
    def of(cls, tuner: Any) -> KernelSpec:
        """The spec of a `ForecastAutotuner`, from its attributes as they are now."""
        user_defined_pre_hook = tuner.user_defined_pre_hook or not is_default_hook(tuner.pre_hook)
        return cls(
            fn=tuner.fn,
            base_fn=tuner.base_fn,
            arg_names=tuple(tuner.arg_names),
            configs=tuple(tuner.configs),
            key=tuple(tuner.keys or ()),
            key_buckets=tuner.buckets,
            reset_to_zero=() if user_defined_pre_hook else tuple(tuner.reset_to_zero),
            restore_value=tuple(tuner.restore_value),
            pre_hook=tuner.pre_hook,
            post_hook=tuner.post_hook,
            user_defined_pre_hook=user_defined_pre_hook,
            user_defined_post_hook=tuner.user_defined_post_hook or not is_default_hook(tuner.post_hook),
            early_config_prune=tuner.early_config_prune,
            perf_model=tuner.perf_model,
            top_k=tuner.configs_top_k,
            own_do_bench=tuner.user_do_bench,
            warmup_ms=tuner.num_warmups,
            rep_ms=tuner.num_reps,
            timing=tuner.timing,
            check=tuner.check,
            isolate=tuner.isolate,
            roles=tuner.space.roles if tuner.space is not None else {},
        )

    @property
    def name(self) -> str:
        """The kernel's function name."""
        return str(self.base_fn.__name__)

    def isolates(self, settings: Settings) -> bool:
        """Whether configs are to be timed in a child process: as the environment says, else the code."""
        return self.isolate if settings.isolate == "auto" else settings.isolate == "1"

    def by_name(self, args: Sequence[Any]) -> dict[str, Any]:
        """Positional arguments by name."""
        return dict(zip(self.arg_names, args, strict=False))

    def prune(self, positional: Mapping[str, Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The user's pruning, as the newest Triton does it: early pruning first, then the model's best `top_k` of those.

        Args:
            positional: the call's positional arguments by name.
        Raises:
            AutotunerError: nothing is left; Triton's own error.
            InvalidInputError: what is left is no list of `triton.Config`.
            TypeError: `top_k` is neither a share up to 1.0 nor a whole number, or leaves nothing.
        """
        pruned: list[Any] = list(self.configs)
        if self.early_config_prune:
            pruned = self.early_config_prune(pruned, positional, **kwargs)
            if not pruned:
                raise _autotuner_error(
                    "No valid autotuner configs after pruning. `early_config_prune` should return at least one config."
                )
        if self.perf_model:
            top_k = self.top_k
            if isinstance(top_k, float) and top_k <= 1.0:
                top_k = max(1, int(len(pruned) * top_k))
            elif not isinstance(top_k, int) or not list(pruned)[:top_k]:
                raise TypeError(
                    f"top_k={top_k!r} in prune_configs_by of {self.name}: give a share up to 1.0, or a whole number from 1"
                )
            if len(pruned) > top_k:
                expected = {c: self.perf_model(**positional, **kwargs, **c.all_kwargs()) for c in pruned}
                pruned = sorted(expected, key=expected.__getitem__)[:top_k]
        pruned = list(pruned)
        for config in pruned:
            if not isinstance(config, TritonConfig):
                raise InvalidInputError(
                    f"prune_configs_by of kernel {self.name} left {config!r}, which is no triton.Config: hand on configs "
                    "out of the list it is given"
                )
        return pruned


def is_forecast_tuner(kernel: Any) -> bool:
    """Whether a kernel has an autotuner of ours."""
    return isinstance(kernel, Autotuner) and isinstance(getattr(kernel, "dispatcher", None), Dispatcher)


class _OlderAutotunerError(TritonError, AutotuneError):  # type: ignore[misc]
    """What Triton raises since 3.6, with the words it uses."""


def _autotuner_error(message: str) -> Exception:
    try:
        from triton.runtime.errors import AutotunerError
    except ImportError:
        return _OlderAutotunerError(f"Autotuner error: {message}")
    return AutotunerError(message)  # type: ignore[no-any-return]
