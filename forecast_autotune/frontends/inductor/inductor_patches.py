"""The places where Inductor is patched, each once, and only where it has the shape that is known here."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from typing import Any

import torch

from ...core.fork_safe_lock import fork_safe_lock
from ..torch_modules import takes
from .candidate_times import (
    by_our_clock,
    fused_by_our_clock,
    generated_by_our_clock,
    timed_in_this_process,
    timed_within_total,
)
from .generated import kernels, searched_unless_stored, varied_unless_stored, with_signature_noted, with_times_kept
from .stragglers import as_completed_but_stragglers
from .workers import woken_with_drivers

log = logging.getLogger(__name__)

TIMING = "torch._inductor.select_algorithm"
FUSION = "torch._inductor.codegen.triton"  # imported with it
GENERATED = "torch._inductor.runtime.triton_heuristics"  # likewise
SCHEDULER = "torch._inductor.scheduler"  # and so is this
WORKERS = "torch._inductor.async_compile"  # and this
GRAPHS = "torch._inductor.codecache"  # and this

OWN_CLOCK = "torch %s times %s in a way unknown here: by its own clock, the host's time among it"

_lock = fork_safe_lock()
_patched: set[str] = set()  # modules of torch that were looked at


def patch_benchmarking(
    is_wanted: Callable[[], bool],
    may_leave_behind: Callable[[Any], bool],
    known_times_ms: Callable[[Sequence[Any]], dict[Any, float] | None],
    time_within_total: Callable[[Sequence[Any], Callable[[], Any]], Any],
) -> None:
    """Have our clock time Inductor's candidates, once what times them is loaded, and no straggler waited for.

    Args:
        may_leave_behind: takes a candidate; whether it may be left behind where it compiles far longer than others.
        known_times_ms: see `timed_in_this_process`.
        time_within_total: see `timed_within_total`.
    """
    if (module := _first_look(TIMING)) is None:
        return
    cache: Any = getattr(module, "AlgorithmSelectorCache", None)
    if takes(cache, "lookup", "self", "choices", "op", "inputs", "benchmark", "hint_override"):
        cache.lookup = timed_in_this_process(cache.lookup, known_times_ms)
    else:
        log.warning("torch %s looks times up in a way unknown here: old ones count as new", torch.__version__)
    if "choices" in inspect.signature(getattr(cache, "do_autotuning", lambda: None)).parameters:
        cache.do_autotuning = timed_within_total(cache.do_autotuning, time_within_total)
    else:
        log.warning(
            "torch %s tunes products in a way unknown here: the process's total does not hold", torch.__version__
        )
    name, parameters = "benchmark_choices", ("choices", "autotune_args")
    if takes(cache, name, *parameters, "is_collective") or takes(cache, name, *parameters):
        cache.benchmark_choices = staticmethod(by_our_clock(cache.benchmark_choices, is_wanted))
        if getattr(module, "as_completed", None) is as_completed:
            vars(module)["as_completed"] = as_completed_but_stragglers(as_completed, may_leave_behind)
    else:
        log.warning(OWN_CLOCK, torch.__version__, "candidates")


def patch_fusion(is_wanted: Callable[[], bool]) -> None:
    """Have our clock time what Inductor may fuse, once what times that is loaded."""
    if (module := _first_look(FUSION)) is None:
        return
    scheduling: Any = getattr(module, "TritonScheduling", None)
    if takes(scheduling, "benchmark_codegened_module", "self", "mod", "n_spills_threshold", "node_names"):
        timed = fused_by_our_clock(scheduling.benchmark_codegened_module, is_wanted)
        scheduling.benchmark_codegened_module = timed
    else:
        log.warning(OWN_CLOCK, torch.__version__, "what it fuses")


def patch_generated(is_wanted: Callable[[], bool]) -> None:
    """Have our clock time the configs of kernels that Inductor generates, and what they took kept, once that is loaded."""
    if (module := _first_look(GENERATED)) is None:
        return
    from torch._inductor.async_compile import AsyncCompile

    kernel: Any = getattr(module, "CachingAutotuner", None)
    methods = ("maybe_clone_args", "restore_args_from_cpu", "copy_args_to_cpu_if_needed")
    if takes(kernel, "bench", "self", "launcher", "args", "with_profiler", "kwargs") and all(
        hasattr(kernel, name) for name in methods
    ):
        kernel.bench = generated_by_our_clock(kernel.bench, is_wanted, kernels.note_time)
    else:
        log.warning(OWN_CLOCK, torch.__version__, "configs of what it generates")
        return
    if (
        takes(kernel, "autotune_to_one_config", "self", "args", "kwargs")
        and takes(kernel, "coordinate_descent_tuning", "self", "launcher", "args", "kwargs")
        and takes(module, "generate_lookup_hash_from_source_code", "size_hints_str", "source_code")
        and takes(AsyncCompile, "triton", "self", "kernel_name", "source_code", "device_str")
    ):
        AsyncCompile.triton = with_signature_noted(AsyncCompile.triton)
        kernel.autotune_to_one_config = with_times_kept(kernel.autotune_to_one_config)
        kernel.coordinate_descent_tuning = searched_unless_stored(kernel.coordinate_descent_tuning)
        if takes(kernel, "_dynamic_scale_rblock", "self"):
            kernel._dynamic_scale_rblock = varied_unless_stored(kernel._dynamic_scale_rblock)
    else:
        log.warning("torch %s tunes what it generates in a way unknown here: nothing of it is kept", torch.__version__)


def patch_workers(is_wanted: Callable[[], bool]) -> None:
    """Have Inductor's compile workers load Triton's driver when a compile begins, once what starts them is loaded."""
    if (module := _first_look(WORKERS)) is None:
        return
    asynchronous: Any = getattr(module, "AsyncCompile", None)
    helpers = sys.modules.get("torch._inductor.runtime.triton_helpers")
    if (
        takes(asynchronous, "wakeup")
        and hasattr(asynchronous, "_ready_future")
        and hasattr(helpers, "set_driver_to_gpu")
    ):
        asynchronous.wakeup = classmethod(woken_with_drivers(asynchronous.wakeup.__func__, is_wanted))
    else:
        log.info("torch %s wakes compilers in a way unknown here: each loads Triton's driver itself", torch.__version__)


def patch_graph_saving(may_save: Callable[[], bool]) -> None:
    """Have graphs kept out of Inductor's cache that are not to be found there, once that is loaded.

    Args:
        may_save: called for each graph that was compiled, in its thread; raises nothing.
    """
    if (module := _first_look(GRAPHS)) is None:
        return
    cache: Any = getattr(module, "FxGraphCache", None)
    if takes(cache, "_save_graph", "key", "compiled_graph", "example_inputs", "local", "remote_cache"):
        save = cache._save_graph

        @functools.wraps(save)
        def saved(*args: Any, **kwargs: Any) -> None:
            if may_save():
                save(*args, **kwargs)

        cache._save_graph = staticmethod(saved)
    else:
        log.warning(
            "torch %s keeps graphs in a way unknown here: one is found again after its decisions were cleared",
            torch.__version__,
        )


def patch_finalizing(decide_unfused: Callable[[Any], None]) -> None:
    """Have a function called with each product that was fused with nothing, before Inductor takes the best of its choices.

    Args:
        decide_unfused: takes the buffer that holds the choices; raises nothing.
    """
    if (module := _first_look(SCHEDULER)) is None:
        return
    scheduler: Any = getattr(module, "Scheduler", None)
    node_class = getattr(module, "SchedulerNode", None)
    if takes(scheduler, "finalize_multi_template_buffers", "self") and node_class is not None:
        finalized = _with_each_unfused(scheduler.finalize_multi_template_buffers, node_class, decide_unfused)
        scheduler.finalize_multi_template_buffers = finalized
    else:
        log.warning("torch %s ends fusing in a way unknown here: what it fuses is not learned", torch.__version__)


def _first_look(name: str) -> Any:
    """A module of torch, where it is loaded and nobody has looked at it yet; else None."""
    with _lock:
        module = sys.modules.get(name)
        if name in _patched or module is None:
            return None
        _patched.add(name)
        return module


def _with_each_unfused(finalize: Callable[[Any], None], node_class: Any, decide_unfused: Callable[[Any], None]) -> Any:
    @functools.wraps(finalize)
    def finalized(scheduler: Any) -> None:
        for node in scheduler.nodes:
            if isinstance(node, node_class):  # one of several that were fused is none of these
                decide_unfused(node.node)
        finalize(scheduler)

    return finalized
