"""A call of a Triton kernel by the names of its parameters, in whatever way its arguments were given."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCall:
    """A call's arguments apart from the options of its launch; equal for equal calls by position and by keyword."""

    arguments: dict[str, Any]  # in the order of the kernel's parameters, with defaults; those nobody set are missing
    options: dict[str, Any]  # keywords that are no parameters: grid, warmup, num_warps, …


def bind_call(
    arg_names: Sequence[str], defaults: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> BoundCall:
    """Bind positional and keyword arguments to a kernel's parameters.

    A call that the kernel would refuse is bound as far as it goes: the launch says what is wrong with it. Some parameters
    may be missing, as those that a config will set are.

    Args:
        arg_names: the kernel's parameters in their order.
        defaults: see `defaults_of`.
    """
    given = {**defaults, **dict(zip(arg_names, args, strict=False)), **kwargs}
    return BoundCall(
        arguments={name: given[name] for name in arg_names if name in given},
        options={name: value for name, value in kwargs.items() if name not in arg_names},
    )


def defaults_of(kernel: Any) -> dict[str, Any]:
    """The defaults of a kernel's parameters by name; of a JITFunction or a plain function."""
    signature = getattr(kernel, "signature", None) or inspect.signature(kernel)
    return {name: p.default for name, p in signature.parameters.items() if p.default is not p.empty}
