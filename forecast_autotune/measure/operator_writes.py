"""What operators of torch write to and make while one thread runs a candidate: other threads' are not seen."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Batch norms update them, of which their schemas say nothing.
_STATISTICS = ("running_mean", "running_var")


def operator_writes(
    note: Callable[[torch.Tensor], None], note_made: Callable[[torch.Tensor], None]
) -> AbstractContextManager[object]:
    """Have every tensor noted that an operator of this thread, or of its backward passes, is about to write to.

    What kernels write that no operator launches (Triton's, C++ extensions', those of compiled code) is not seen.

    Args:
        note_made: is called with the tensors that operators return.
    """
    mode: AbstractContextManager[object] = _mode("torch._dynamo" in sys.modules)(note, note_made)
    return mode


@functools.cache
def _mode(disables_dynamo: bool) -> Any:
    """The mode's class.

    Args:
        disables_dynamo: have Dynamo leave the mode's own code alone, which imports Dynamo (seconds).
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class OperatorWrites(TorchDispatchMode):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __init__(self, note: Callable[[torch.Tensor], None], note_made: Callable[[torch.Tensor], None]) -> None:
            super().__init__()
            self.note, self.note_made = note, note_made

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return disables_dynamo

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # else Dynamo would leave what it meets uncompiled, for good

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for tensor in _written(func, args, kwargs or {}):
                self.note(tensor)
            returned = func(*args, **(kwargs or {}))
            for tensor in _among(returned):
                self.note_made(tensor)
            return returned

    return OperatorWrites


def _written(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The arguments that an operator's schema says it writes to; a higher-order operator has no schema."""
    for i, argument in enumerate(getattr(getattr(operator, "_schema", None), "arguments", ())):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written or argument.name in _STATISTICS:
            yield from _among(args[i] if i < len(args) else kwargs.get(argument.name))


def _among(value: Any) -> Iterator[torch.Tensor]:
    """A tensor, or those in a list."""
    import torch

    for tensor in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(tensor, torch.Tensor):
            yield tensor
