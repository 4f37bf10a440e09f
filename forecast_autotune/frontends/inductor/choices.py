"""What Inductor asks when it lists candidates: its own list, narrowed before any of it is rendered.

Whatever is not as it is known here makes us stand aside, for good and with one warning: Inductor then does as ever.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.ir import MultiTemplateBuffer

from .inductor_patches import (
    patch_benchmarking,
    patch_finalizing,
    patch_fusion,
    patch_generated,
    patch_graph_saving,
    patch_workers,
)
from .narrowing import Narrowing
from .request import is_active, stand_aside, stand_aside_on_error, stood_aside, uuid
from .stragglers import note_begun

log = logging.getLogger(__name__)

HOOK = "_finalize_template_configs"
PARAMETERS = ("self", "template_choices", "kernel_inputs", "templates", "op_name", "kwarg_overrides")
PIPELINED = "pipeline_max_autotune_gemm"  # a setting of Inductor's: it times in another process while others compile
POOLED = "forecast_autotune pooled"  # in a choice's annotations: whether another process compiles it, or a thread
EXHAUSTIVE = {"max_autotune_gemm_search_space": "EXHAUSTIVE"}

narrowing = Narrowing()
"""What was narrowed in this process."""


class NamedChoices:
    """Derived together with the class of whatever chooses in Inductor, where that is left as it is but for its name."""

    theirs: type[Any]

    def uuid(self) -> str:
        """What the keys of Inductor's caches call these choices; it stays the same while the process lives."""
        theirs = getattr(super(), "uuid", None)
        return " ".join(filter(None, [str(theirs()) if theirs is not None else "", uuid()]))


class NarrowedChoices(NamedChoices):
    """Derived together with the class of whatever chooses in Inductor; see `with_ours`."""

    def _finalize_template_configs(
        self,
        template_choices: Any,
        kernel_inputs: Any,
        templates: Any,
        op_name: str,
        kwarg_overrides: Any = None,
    ) -> list[Any]:
        listed: list[Any] = super()._finalize_template_configs(  # type: ignore[misc]
            template_choices, kernel_inputs, templates, op_name, kwarg_overrides
        )
        if stood_aside() or getattr(inductor_config, "deterministic", False):
            return listed
        with stand_aside_on_error():
            return narrowing.narrow_listed(
                listed,
                lambda: _exhaustive(self, kernel_inputs, templates, op_name, kwarg_overrides),
                kernel_inputs,
                op_name,
            )
        return listed

    def can_fuse_vertical(self, *args: Any, **kwargs: Any) -> bool:
        """As ever, but nothing is compiled to be fused with a product that the library is decided for."""
        allowed = bool(super().can_fuse_vertical(*args, **kwargs))  # type: ignore[misc]
        if not allowed or stood_aside() or not getattr(inductor_config, "benchmark_epilogue_fusion", False):
            return allowed
        buffers = [node.get_template_node() for node in args if hasattr(node, "get_template_node")]
        return not any(isinstance(each, MultiTemplateBuffer) and narrowing.library_is_decided(each) for each in buffers)

    def get_flex_attention_fwd_configs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Configs of flex attention, the one first that Inductor takes without max-autotune."""
        return _own_first(super().get_flex_attention_fwd_configs, *args, **kwargs)  # type: ignore[misc]

    def get_flex_attention_bwd_configs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """As `get_flex_attention_fwd_configs`."""
        return _own_first(super().get_flex_attention_bwd_configs, *args, **kwargs)  # type: ignore[misc]

    def get_flex_decode_configs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """As `get_flex_attention_fwd_configs`."""
        return _own_first(super().get_flex_decode_configs, *args, **kwargs)  # type: ignore[misc]


def with_ours(previous: Any) -> Any:
    """What chooses in Inductor, with our narrowing over it: an object of a class derived from its own, with its state.

    Args:
        previous: what chose until now.
    Raises:
        TypeError: its class cannot be derived from, or keeps state in `__slots__`.
    """
    if is_ours(previous):
        return previous
    kind: Any = type(previous)
    if any(vars(base).get("__slots__") for base in kind.__mro__):
        raise TypeError(f"{kind.__qualname__} keeps state in __slots__")
    why = why_unknown(kind)
    if why:
        stand_aside(why)
    elif not narrowing.listens:
        _listen()
    made: Any = object.__new__(_derived(NamedChoices if why else NarrowedChoices, kind))
    object.__setattr__(made, "__dict__", previous.__dict__)  # its class may allow none to be set
    return made


def without_ours(handler: Any) -> Any:
    """What chose before `with_ours`."""
    if not is_ours(handler):
        return handler
    made: Any = object.__new__(type(handler).theirs)
    object.__setattr__(made, "__dict__", handler.__dict__)
    return made


def is_ours(handler: Any) -> bool:
    """Whether `with_ours` has made it, or something derived from such a one."""
    return isinstance(handler, NamedChoices)


def listing_handler(handler: Any) -> Any:
    """Who lists candidates: one of several that torch 2.15 has made one of, or the one there is."""
    return getattr(getattr(handler, HOOK, None), "__self__", handler)


def lists_itself(handler: Any) -> bool:
    """Whether a handler has a list of its own, rather than Inductor's."""
    ours = [name for name in vars(NarrowedChoices) if not name.startswith("__")]
    return any(getattr(type(handler), name, None) is not getattr(InductorChoices, name, None) for name in ours)


@functools.cache
def _derived(ours: Any, theirs: Any) -> Any:
    return type(f"Narrowed{theirs.__name__}", (ours, theirs), {"theirs": theirs})


def why_unknown(kind: type[Any] = InductorChoices) -> str:
    """In what torch, or a class of somebody's derived from its own, is not as it is known here; empty where it is."""
    if (method := getattr(kind, HOOK, None)) is None:
        return f"torch {torch.__version__} has no InductorChoices.{HOOK}"
    if (named := tuple(inspect.signature(method).parameters)) != PARAMETERS:
        return f"{kind.__qualname__}.{HOOK} of torch {torch.__version__} takes ({', '.join(named)})"
    return ""


def _exhaustive(
    choices: Any, kernel_inputs: Any, templates: Sequence[Any], op_name: str, kwarg_overrides: Any
) -> list[Any]:
    """The same templates with the parameters that Inductor lists for an exhaustive search."""
    overrides = kwarg_overrides or {}
    with inductor_config.patch(EXHAUSTIVE):
        return [
            candidate
            for template in templates
            for candidate in choices.get_ktc(kernel_inputs, template, op_name, overrides.get(template.uid, {}))
        ]


def _own_first(ask: Callable[..., list[Any]], *args: Any, **kwargs: Any) -> list[Any]:
    listed = ask(*args, **kwargs)
    if stood_aside() or len(listed) < 2:
        return listed
    with stand_aside_on_error():
        with inductor_config.patch(max_autotune=False):
            own = ask(*args, **kwargs)
        return [*own, *(config for config in listed if config not in own)]
    return listed


# What Inductor calls, in this order for each operation ------------------------------------------------------------------


def _narrow_rendered(listed: list[Any]) -> list[Any]:
    """Of what Inductor has rendered, the candidates for it to compile; those that it need not wait for are noted."""
    if not is_active() or getattr(inductor_config, "deterministic", False):
        return listed
    from torch._inductor.async_compile import AsyncCompile

    with stand_aside_on_error():
        passed_on = narrowing.narrow_rendered(narrowing.without_dropped(listed))
        pooled = AsyncCompile.use_process_pool()  # as it is when they go to compilers, which is next
        for choice in filter(narrowing.may_leave_behind, passed_on):
            choice.annotations[POOLED] = pooled
            if pooled:
                note_begun(choice)
        return passed_on
    return listed


def _known_times_ms(listed: Sequence[Any]) -> dict[Any, float] | None:
    return narrowing.known_times_ms(listed) if is_active() else None


def _time_within_total(listed: Sequence[Any], time_them: Callable[[], Any]) -> Any:
    return narrowing.time_within_total(listed, time_them) if is_active() else time_them()


def _may_leave_behind(choice: Any) -> bool:
    if inductor_config.autotune_in_subproc or getattr(inductor_config, PIPELINED, False):
        return False
    pooled = getattr(choice, "annotations", {}).get(POOLED, False)  # Inductor waits for threads anyway
    return pooled and is_active() and narrowing.may_leave_behind(choice)


def _record(timings: Any, name: str, input_nodes: Any, choices: Any, profiled: Any, precompile_s: Any) -> None:  # noqa: ARG001
    if is_active():
        with stand_aside_on_error():
            narrowing.record_and_decide(timings, precompile_s)


def _decide_unfused(buffer: Any) -> None:
    if is_active() and isinstance(buffer, MultiTemplateBuffer):
        with stand_aside_on_error():
            narrowing.decide_unfused(buffer)


def _listen() -> None:
    """Have Inductor call these for as long as the process lives; each does nothing unless `is_active`."""
    from torch._inductor import select_algorithm

    patch_benchmarking(is_active, _may_leave_behind, _known_times_ms, _time_within_total)
    patch_fusion(is_active)
    patch_generated(is_active)
    patch_finalizing(_decide_unfused)
    patch_workers(is_active)
    patch_graph_saving(lambda: narrowing.may_save_graph())
    select_algorithm.add_preprocessing_fn(_narrow_rendered)
    select_algorithm.add_feedback_saver(_record)
    narrowing.listens = True
