"""What watches the caller's operations, such as a flop counter or a checkpoint: a candidate that is tried is not for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def unpack_hook() -> Callable[..., Any] | None:
    """What gives back the tensors that this thread's operations save for the backward pass; None where torch keeps them.

    It lives as long as one of these may be asked for: graphs hold it.
    """
    import torch

    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else hooks[1]


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Have `torch.jit.trace` look away: it records nothing, and sizes are numbers, which are tensors to it."""
    import torch

    if (tracer := torch._C._get_tracing_state()) is None:
        yield
        return
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(tracer)


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Put aside this thread's tracer, dispatch modes and saved-tensor hooks; what is entered meanwhile counts."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    autograd = torch._C._autograd
    with unrecorded(), contextlib.ExitStack() as way_out:
        while (hooks := autograd._top_saved_tensors_default_hooks(True)) is not None:
            autograd._pop_saved_tensors_default_hooks()
            way_out.callback(autograd._push_saved_tensors_default_hooks, *hooks)
        if torch._C._len_torch_dispatch_stack() > 0:  # else the import of what it looks for would take half a second
            way_out.enter_context(_disable_current_modes())
        yield
