"""AOTAutograd's cache keys with our decisions in them.

Ops of `torch.library.triton_op` are looked up in that cache before they are traced, so the decisions known of their kernels
go into its key. Where the ranks of a job decide together, no key can know the decision, and the graph is not cached.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ....core.digest import digest
from ...deciding import ranks_decide
from ...torch_cache_keys import pack_version, stored_decisions
from ..install import tuner_of
from ..kernel_program import program_of
from .capture_patches import CACHE_KEY

if TYPE_CHECKING:
    from ..autotuner import ForecastAutotuner

log = logging.getLogger(__name__)


def with_decisions(sources: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """AOTAutograd's sources of the kernels in triton ops, for its cache key, with the decisions on ours."""

    @functools.wraps(sources)
    def get_triton_source_codes_from_gm(self: Any, gm: Any) -> list[str]:
        texts: list[str] = list(sources(self, gm))
        tuners = {id(tuner): tuner for k in _kernels_of_ops(gm) if (tuner := tuner_of(k)) is not None}
        return texts + [_state(tuner) for tuner in tuners.values()]

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
    """A text that changes with all that may change a decision for any call of a kernel, as far as is known before tracing.

    Raises:
        BypassAOTAutogradCache: the ranks of the job decide together, and a cache hit would not ask them.
    """
    request = tuner.dispatcher.request(default_budget="0")
    if len(tuner.configs) > 1 and ranks_decide(request):
        raise sys.modules[CACHE_KEY].BypassAOTAutogradCache(f"the ranks of the job decide on kernel {tuner.name}")
    settings = request.settings
    parts = [
        settings.mode,
        request.surrogate.name,
        request.surrogate.model_version,
        settings.toolchain,
        *(str(c) for c in tuner.configs),
    ]
    try:
        if settings.mode not in ("first", "forecast"):
            program = program_of(tuner.spec)
            parts += sorted(
                f"{d.digest} {d.decision.config.digest} {d.decision.decided_at}"
                for d in stored_decisions(settings, program.name)
                if d.tuning_key.workload.program.digest == program.digest
            )
            parts += map(pack_version, settings.packs)
    except Exception:
        log.debug("kernel %s: what is decided is not part of the cache key", tuner.name, exc_info=True)
    return f"forecast_autotune {digest(*parts)}"
