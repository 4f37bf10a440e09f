"""Torch's capture of kernels is patched, once, and only where torch has the shape that is known here.

Every decorated kernel loads this module, so what it patches with is imported only when torch is patched.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from ....core.fork_safe_lock import fork_safe_lock
from ...torch_modules import is_imported, takes

log = logging.getLogger(__name__)

CAPTURE = "torch._higher_order_ops.triton_kernel_wrap"
RULES = "torch._dynamo.trace_rules"
CACHE_KEY = "torch._functorch._aot_autograd.autograd_cache"

_lock = fork_safe_lock()
_patched: set[str] = set()  # modules of torch that were looked at


def patch_capture() -> None:
    """Patch torch, once it has loaded what captures kernels, so that it captures ours under their decided config.

    Called whenever a kernel of ours is hashed, with which torch begins each capture.
    """
    _stay_out_of_graphs()
    if CAPTURE in _patched or not is_imported(CAPTURE):
        return
    from .capture import decide_before

    with _lock:
        if CAPTURE in _patched:
            return
        _patched.add(CAPTURE)
        hopifier = getattr(sys.modules[CAPTURE], "TritonHOPifier", None)
        methods = ("init_variable", "is_callable", "call_grid", "check_grid")
        if takes(hopifier, "call_triton_kernel", "self", "variable", "args", "kwargs", "tx") and all(
            hasattr(hopifier, name) for name in methods
        ):
            hopifier.call_triton_kernel = decide_before(hopifier.call_triton_kernel, patch_graph_cache)  # type: ignore[union-attr]
        else:
            _warn_of_unknown("captures kernels", "Inductor times all configs")


def _stay_out_of_graphs() -> None:
    """Keep Dynamo from compiling our own frames, which it meets where a kernel's call breaks the graph."""
    if RULES in _patched or not is_imported(RULES):
        return
    with _lock:
        if RULES not in _patched:
            _patched.add(RULES)
            rules: Any = sys.modules[RULES]
            if takes(rules, "add", "import_name"):
                rules.add(__package__.partition(".")[0])


def patch_graph_cache() -> None:
    """Put the decisions on our kernels into the keys of AOTAutograd's graph cache, once Dynamo is loaded."""
    if CACHE_KEY in _patched or "torch._dynamo" not in sys.modules:
        return
    from .cache_key import with_decisions

    with _lock:
        if CACHE_KEY in _patched:
            return
        _patched.add(CACHE_KEY)
        try:
            import torch._functorch._aot_autograd.autograd_cache as module

            details = getattr(module, "AOTAutogradCacheDetails", None)
        except ImportError:
            details = None
        if takes(details, "get_triton_source_codes_from_gm", "self", "gm"):
            details.get_triton_source_codes_from_gm = with_decisions(details.get_triton_source_codes_from_gm)  # type: ignore[union-attr]
        else:
            _warn_of_unknown("caches graphs", "triton ops keep old decisions")


def _warn_of_unknown(does: str, so: str) -> None:
    import torch

    log.warning("torch %s %s in a way unknown here: %s", torch.__version__, does, so)
