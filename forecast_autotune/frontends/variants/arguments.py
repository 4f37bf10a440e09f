"""One way to call variants whose arguments have different names and defaults."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...core.space import Space
from ...errors import InvalidInputError
from .dynamo_constants import traced

KNOB = "variant"  # the knob of a joint config that says which callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of several callables that compute the same thing.

    Attributes:
        function: as the user gave it.
        call: takes the arguments of the first variant.
        space: its knobs, which are handed to it by name.
    """

    name: str
    function: Callable[..., Any]
    call: Callable[..., Any]
    space: Space | None = None


class FurtherKeyword(NamedTuple):
    """A keyword argument that no parameter names. Its type is in the key: arguments by position make no such key."""

    label: str
    value: Any


class Arguments:
    """The arguments of the first variant with a signature. Others are called by position, for their names may differ.

    Args:
        listed: the variants, as the user gave them.
        name: of all of them, for messages.
    """

    def __init__(self, listed: Sequence[Variant], name: str) -> None:
        signatures = [_signature(v) for v in listed]
        of, known = next(((v, s) for v, s in zip(listed, signatures, strict=True) if s is not None), (None, None))
        parameters = () if known is None else tuple(known.parameters.values())
        places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.known = known
        self.positional = tuple(p for p in parameters if p.kind in places)
        self.named = tuple(p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
        self.names = tuple(p.name for p in (*self.positional, *self.named))
        self._call = f"{name}({', '.join(self.names)})"
        self._first = f"{of.name if of else ''}{known}"

    def adapted(self, variant: Variant) -> Variant:
        """The variant, which takes the defaults of the first where it has none.

        Raises:
            InvalidInputError: it cannot be called as the first is.
        """
        needed = [p.name for p in self.positional if p.default is p.empty]
        least = max(len(needed), min(_least(variant), len(self.positional)))
        signature = _signature(variant)
        if signature is not None and self.known is not None:
            try:
                signature.bind(*range(least), **{p.name: None for p in self.named if p.default is p.empty})
            except TypeError as err:
                raise InvalidInputError(
                    f"variant {variant.name}{signature} cannot be called as {self._first} is: {err}. Wrap it in a function "
                    "that takes the same arguments"
                ) from None
        if least == len(needed):
            return variant
        function, defaults = variant.function, tuple(p.default for p in self.positional[:least])

        @traced
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, *defaults[len(args) :], **kwargs)

        return replace(variant, call=call)

    def placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with named arguments moved to their positions, and defaults in the gaps."""
        order = self.order(len(args), kwargs)
        taken = {name for name, _ in order}
        positional = (*args, *(kwargs.get(name, default) for name, default in order))
        return positional, {name: value for name, value in kwargs.items() if name not in taken}

    def order(self, count: int, given: Collection[str]) -> tuple[tuple[str, Any], ...]:
        """Names, with their defaults, of the arguments that follow the first `count` by position, as far as any is given.

        Raises:
            TypeError: one before the last of them is neither given nor has a default.
        """
        rest = self.positional[count:]
        count = next((i for i in range(len(rest), 0, -1) if rest[i - 1].name in given), 0)
        for parameter in rest[:count]:
            if parameter.name not in given and parameter.default is parameter.empty:
                raise TypeError(f"{self._call} is called without {parameter.name!r}")
        return tuple((p.name, p.default) for p in rest[:count])

    def values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments of a call in the order of `names`, those left out by their defaults; what has no name follows."""
        omitted = tuple(None if p.default is p.empty else p.default for p in self.positional[len(args) :])
        named = tuple(kwargs.get(p.name, None if p.default is p.empty else p.default) for p in self.named)
        known = {p.name for p in self.named}
        more = tuple(FurtherKeyword(f"{name}=", kwargs[name]) for name in sorted(kwargs) if name not in known)
        count = len(self.positional)
        return (*args[:count], *omitted, *named, *args[count:], *more)

    def label(self, values: Sequence[Any]) -> dict[str, Any]:
        """The values of a call by name, by number where they have none."""
        return {self.names[i] if i < len(self.names) else str(i): value for i, value in enumerate(values)}


def as_variants(listed: Sequence[Any]) -> list[Variant]:
    """The variants that the user listed, with distinct names.

    Raises:
        InvalidInputError: there is none, one cannot be called, or its space cannot be handed to it.
    """
    listed_variants: list[Variant] = []
    taken: set[str] = set()
    for each in listed:
        function, space = each if isinstance(each, tuple) and len(each) == 2 else (each, None)
        if not callable(function) or hasattr(function, "arg_names"):
            raise InvalidInputError(
                f"variants holds {function!r}, which cannot be called as it is: give callables, or pairs (callable, Space); "
                "a Triton kernel wants a function that launches it"
            )
        space = None if space is None else space if isinstance(space, Space) else Space(space)
        name = given = str(getattr(function, "__name__", None) or type(function).__name__)
        for count in itertools.count(2):
            if name not in taken:
                break
            name = f"{given}{count}"
        taken.add(name)
        listed_variants.append(Variant(name=name, function=function, call=function, space=space))
        if space is not None:
            _check_knobs(listed_variants[-1], space)
    if not listed_variants:
        raise InvalidInputError("variants was given no callables: give at least one, variants([f, g, …])")
    return listed_variants


def _check_knobs(variant: Variant, space: Space) -> None:
    try:
        parameters = inspect.signature(_called(variant.function)).parameters
    except (TypeError, ValueError):
        return
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if wrong := [k for k in space.knobs if k == KNOB or (k not in parameters and not takes_all)]:
        raise InvalidInputError(
            f"the space of variant {variant.name} has the knobs {', '.join(wrong)}, which it does not take: its parameters "
            f"are {', '.join(parameters)}; {KNOB!r} itself is taken"
        )


def _signature(variant: Variant) -> inspect.Signature | None:
    """A variant's signature without its knobs; None where it has none, as for many torch functions."""
    try:
        signature = inspect.signature(_called(variant.function))
    except (TypeError, ValueError):
        return None
    knobs = variant.space.knobs if variant.space else ()
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in knobs])


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a call runs: of a module its `forward`, which names the arguments."""
    import torch

    return function.forward if isinstance(function, torch.nn.Module) else function


def _least(variant: Variant) -> int:
    """How many positional arguments a variant needs."""
    from torch.fx.operator_schemas import get_signature_for_torch_op

    signature = _signature(variant)
    signatures = [signature] if signature is not None else get_signature_for_torch_op(variant.function) or []
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return min(
        (sum(p.kind in places and p.default is p.empty for p in s.parameters.values()) for s in signatures), default=0
    )
