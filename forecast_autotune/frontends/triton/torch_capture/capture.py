"""Torch's capture of a Triton kernel's call, under Dynamo and under `wrap_triton`, with a decision before it.

Before torch captures a call, an autotuner with the one decided config takes the place of ours. It enters torch's table of
kernels, so its config is part of the key of Inductor's caches, and a graph that is traced again is decided again.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..install import tuner_of
from ..recompilation import EPOCH
from .traced_call import TracedCall

log = logging.getLogger(__name__)

_thread = threading.local()  # `outermost`: the kernel whose call torch captures now


def decide_before(capture: Callable[..., Any], prepare: Callable[[], None]) -> Callable[..., Any]:
    """Torch's capture of one call, with a decision before it where the kernel is ours.

    Torch's capture calls itself with kernels that it rebuilds.

    Args:
        capture: `TritonHOPifier.call_triton_kernel`.
        prepare: called before each decision.
    """

    @functools.wraps(capture)
    def call_triton_kernel(self: Any, variable: Any, args: Sequence[Any], kwargs: dict[str, Any], tx: Any) -> Any:
        kernel, index = variable.kernel, variable.kernel_idx
        if (outermost := getattr(_thread, "outermost", None)) is not None:
            _mend_rebuilt(variable.kernel, outermost)
            return capture(self, variable, args, kwargs, tx)
        captured, tuner = None, tuner_of(kernel)
        if tuner is not None and variable.grid is not None and "num_ctas" not in kwargs:
            if tx is None and not _is_traced(args, kwargs):
                return kernel[variable.grid](*args, **kwargs)
            if len(kernel.configs) > 1 or kernel.early_config_prune or kernel.perf_model:
                prepare()
                _guard(self, variable, tx, EPOCH)
                call = TracedCall(self, variable, tuner, args, kwargs, tx)
                captured = call.captured()
                if call.epoch:
                    _guard(self, variable, tx, call.epoch)
        try:
            if captured is not None:
                self.init_variable(variable, captured, None, variable.grid)
            _thread.outermost = kernel
            return capture(self, variable, args, kwargs, tx)
        finally:
            _thread.outermost = None
            if captured is not None:  # it may be called again, with other arguments
                variable.kernel, variable.kernel_idx = kernel, index

    return call_triton_kernel


def _guard(hopifier: Any, variable: Any, tx: Any, epoch: str) -> None:
    """Guard compiled code by an epoch of our kernel; under `wrap_triton` nothing is guarded."""
    if tx is None or getattr(variable, "kernel_source", None) is None:
        return
    try:
        value = getattr(variable.kernel, epoch)
        hopifier.wrap_user_defined_obj(value, tx, variable, epoch).guard_as_python_constant()
    except Exception as err:
        log.debug("kernel %s: compiled code holds for good: %s", variable.kernel.base_fn.__name__, err)


def _mend_rebuilt(made: Any, outermost: Any) -> None:
    """Give a kernel that torch has rebuilt, after pruning, heuristics or options at the call, what torch drops of it."""
    if tuner_of(outermost) is not None:
        made.configs_top_k = outermost.configs_top_k
        made.reset_to_zero = made.reset_to_zero or list(outermost.reset_to_zero)
        made.restore_value = made.restore_value or list(outermost.restore_value)


def _is_traced(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of `wrap_triton` is traced. If not, it is a launch, and tuned like any other."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    stand_ins = (FakeTensor, FunctionalTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    if any(isinstance(v, stand_ins) for v in (*args, *kwargs.values())):
        return True
    return any(getattr(mode, "_mode_key", None) is not None for mode in _get_current_dispatch_mode_stack())
