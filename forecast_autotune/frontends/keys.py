"""The key of a call from its arguments: hashable for the look-up, JSON for the store."""

from __future__ import annotations

import contextlib
import enum
import math
import numbers
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ..core.digest import Value
from ..core.text import plain, shortened
from ..errors import AutotuneError, InvalidInputError
from .call_tensors import items_of, labels_of

KeyFunction = Callable[..., Hashable]

_SCALARS = frozenset({int, float, bool, str, type(None)})


class NoKeyError(AutotuneError):
    """An argument that no key can hold; its call is not tuned."""


class ProxyError(NoKeyError):
    """An argument stands for a value that torch.fx traces: whatever it were asked would become part of the graph."""


def parse_signature(signature: str | Sequence[str], function: str) -> tuple[str, ...]:
    """Argument names from `"a, b, out"` or a list of names.

    Raises:
        InvalidInputError: a name is no identifier or stands twice.
    """
    names = as_names(signature)
    for name in names:
        if not name.isidentifier() or names.count(name) > 1:
            raise InvalidInputError(f"signature of {function}: {name!r} must be an identifier that stands once")
    return names


def make_key_function(
    key: Sequence[str] | str | Callable[..., Any] | None, names: Sequence[str] | None, function: str
) -> KeyFunction:
    """A function from a call's arguments to a hashable key.

    Without `key`, the key is dtype, shape and strides of each tensor and the value of each other argument. Names restrict
    it to those arguments. A callable returns the whole key itself. The function raises `NoKeyError` for an argument that
    is neither a tensor nor a plain value.

    Raises:
        InvalidInputError: no names, names without a signature, or a name that is not in it.
    """
    if key is None:
        return _whole_key
    if callable(key):
        return key
    wanted = as_names(key)
    if not wanted:
        raise InvalidInputError(
            f"key={key!r} of {function} names no argument: name some, leave key= out, or give a callable, such as "
            "key=lambda *args: 0 to tune once for all calls"
        )
    if names is None:
        raise InvalidInputError(
            f"key={list(wanted)} of {function} names arguments, but those that it takes carry no names: give key= as a "
            'callable; arguments of a C++ function are named by signature="a, b, …"'
        )
    if any(n not in names for n in wanted):
        raise InvalidInputError(f"key={list(wanted)} of {function}: its arguments are {', '.join(names)}")
    indices = tuple(names.index(n) for n in wanted)
    return lambda *args: tuple([_part(args[i]) for i in indices])


def as_names(key: Sequence[str] | str | None) -> tuple[str, ...]:
    """Names from `"a, b"` or a list; empty where no key is given."""
    return tuple(n for n in re.split(r"[\s,]+", key) if n) if isinstance(key, str) else tuple(key or ())


def _whole_key(*args: Any) -> Hashable:
    return tuple([_part(a) for a in args])


def _part(value: Any) -> Hashable:
    """One argument as part of a key; a number keeps its type, since 1, 1.0 and True are equal in Python."""
    kind = type(value)
    if kind in _SCALARS:
        return (kind, value) if value == value else "nan"  # which no look-up would find, being unequal to itself
    try:
        return (value.dtype, value.shape, value.stride(), value.is_cuda)
    except AttributeError:
        pass
    except (RuntimeError, NotImplementedError) as err:  # a sparse or nested tensor
        raise NoKeyError(f"an argument has no strides ({err})") from err
    if isinstance(value, (list, tuple)):
        return (kind, *map(_part, value))
    if isinstance(value, dict):
        return (kind, *[(_part(k), _part(v)) for k, v in items_of(value)])
    if isinstance(value, (numbers.Number, str, enum.Enum)) or kind.__module__ == "torch":  # dtype, device, layout
        return (kind, value) if value == value else "nan"
    raise NoKeyError(
        f"an argument is {_no_form(value)}, which no key can hold: name other arguments in key=, or, where it is the object "
        "of a method, make variants of its bound methods, as in __init__: self.f = fa.variants([self.a, self.b])"
    )


def without_nan(key: Any) -> Any:
    """A callable's key with each NaN replaced by the one object `math.nan`: a look-up finds what is equal or the same."""
    if isinstance(key, tuple):
        return tuple([without_nan(part) for part in key])
    return math.nan if isinstance(key, numbers.Number) and key != key else key


# The key as JSON ----------------------------------------------------------------------------------------------------


def key_as_json(
    key: Hashable, args: Sequence[Any], names: Sequence[str] | None, wanted: Sequence[str] | None
) -> dict[str, object]:
    """The key for the store: by argument, or as one value where a callable made it.

    Args:
        key: as the key function returned it.
        args: the call's arguments.
        names: of the arguments, as far as they are known.
        wanted: names in `key=`, empty for all; None where `key=` is a callable.
    Raises:
        InvalidInputError: a callable's key holds a tensor, or something that has no JSON form.
    """
    if wanted is None:
        try:
            return {"key": _as_json(key, tensors=False)}
        except NoKeyError as err:
            raise InvalidInputError(
                f"the key holds {err}: a key is made of numbers, text, None, dtypes, shapes, and lists of these. Of a "
                "tensor return its dtype, shape or strides; of its contents a number, as by .item()"
            ) from None
    labels = labels_of(args, names if names is not None and len(names) >= len(args) else None)
    return {label: _as_json(value) for label, value in zip(labels, args, strict=True) if not wanted or label in wanted}


def _as_json(value: Any, *, tensors: bool = True) -> object:
    if isinstance(value, enum.Enum):
        return str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, numbers.Number):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _as_json(v, tensors=tensors) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(v, tensors=tensors) for v in value]
    if tensors and hasattr(value, "stride") and hasattr(value, "dtype"):
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "stride": list(value.stride()),
        }
    if type(value).__module__ == "torch" and not hasattr(value, "stride"):  # dtype, device, layout
        return str(value).removeprefix("torch.")
    raise NoKeyError(_no_form(value))


def _no_form(value: object) -> str:
    import torch

    if isinstance(value, torch.nn.Module):  # whose text takes milliseconds, and such a call comes here each time
        return f"a module of type {type(value).__name__}"
    return f"{plain(shortened(repr(value), 80))} of type {type(value).__name__}"


def features_of(args: Sequence[Any]) -> dict[str, Value]:
    """Features of a call beside its key: sizes and alignment of its tensors, values of its numbers, by position."""
    features: dict[str, Value] = {}
    for i, value in enumerate(args):
        if hasattr(value, "data_ptr") and hasattr(value, "shape"):
            features.update({f"shape_{i}_{d}": int(n) for d, n in enumerate(value.shape)})
            with contextlib.suppress(RuntimeError):  # a sparse tensor has no pointer
                features[f"alignment_{i}"] = min(64, value.data_ptr() & -value.data_ptr())
        elif isinstance(value, (bool, int, float)) and math.isfinite(value):
            features[f"value_{i}"] = value
    return features


def device_of(args: Sequence[Any]) -> str:
    """The device of the first CUDA tensor in a call, lists and dicts included: `cuda:0`; without one, `cpu`."""
    for value in args:
        if isinstance(value, (list, tuple, dict)):
            inner = device_of(tuple(held for _, held in items_of(value)) if isinstance(value, dict) else value)
            if inner != "cpu":
                return inner
        elif getattr(value, "is_cuda", False):
            return f"cuda:{value.get_device()}"
    return "cpu"
