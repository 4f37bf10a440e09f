"""One of the candidates that Inductor lists for a product: a template with parameters, or a function of a library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DEPENDENT = ("EVEN_K", "ACC_TYPE", "USE_FAST_ACCUM", "hint_override")
"""Parameters that the operation, its dtypes and the tiles decide, or that are none here."""


def is_extern(candidate: Any) -> bool:
    """Whether a candidate is a function of a library."""
    from torch._inductor.select_algorithm import ExternKernelChoice

    return isinstance(candidate.template, ExternKernelChoice)


def knobs_of(candidate: Any) -> dict[str, Any]:
    """The parameters of a candidate that make it differ from others, and the template that they are of."""
    kwargs = {name: value for name, value in candidate.params.to_kwargs().items() if name not in DEPENDENT}
    simple = (bool, int, float, str, type(None))
    return {
        "template": candidate.template.uid.rpartition("::")[2] if not is_extern(candidate) else candidate.template.uid,
        **{name: value if isinstance(value, simple) else str(value) for name, value in kwargs.items()},
    }


def as_listed(parameters: tuple[str, Any], listed: Sequence[Any]) -> Any:
    """A candidate of given parameters for the product that Inductor lowers now.

    It is the library's own, or one like those that Inductor lists of the same template.
    """
    uid, params = parameters
    mate = next(candidate for candidate in listed if candidate.template.uid == uid)
    if is_extern(mate):
        return mate
    return type(mate)(mate.template, params, mate.extra_kwargs, mate.layout, mate.inputs)
