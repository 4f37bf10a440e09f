"""What a decision depends on: from the arguments of a call to a key, in Python for looking up, in JSON for keeping."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ..core.digest import Value
from ..errors import InvalidInputError

KeyFunction = Callable[..., Hashable]


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

    Without `key`, the key is dtype, shape and strides of each tensor and the value of each other argument. Names pick
    among the arguments that the signature names; a callable says it all itself.

    Raises:
        InvalidInputError: names without a signature, or a name that is not in it.
    """
    if key is None:
        return _whole_key
    if callable(key):
        return key
    wanted = as_names(key)
    if names is None:
        raise InvalidInputError(
            f"key={list(wanted)} of {function} names arguments, but bound C++ functions carry no names: add "
            'signature="a, b, …", or give key= as a callable'
        )
    missing = [n for n in wanted if n not in names]
    if missing or not wanted:
        raise InvalidInputError(f"key={list(wanted)} of {function}: its arguments are {', '.join(names)}")
    places = tuple(names.index(n) for n in wanted)
    return lambda *args: tuple([_part(args[i]) for i in places])


def as_names(key: Sequence[str] | str | None) -> tuple[str, ...]:
    """Names out of `"a, b"` or a list; none where every argument is meant."""
    return tuple(n for n in re.split(r"[\s,]+", key) if n) if isinstance(key, str) else tuple(key or ())


def _whole_key(*args: Any) -> Hashable:
    return tuple([_part(a) for a in args])


def _part(value: Any) -> Hashable:
    """One argument as part of a key; a number keeps its type, since 1, 1.0 and True are equal in Python."""
    try:
        return (value.dtype, value.shape, value.stride(), value.is_cuda)
    except AttributeError:
        if value != value:
            return "nan"  # which no look-up would find, being unequal to itself
        if isinstance(value, (list, tuple)):
            return (type(value), *(_part(v) for v in value))
        return (value.__class__, value)


def key_as_json(
    key: Hashable, args: Sequence[Any], names: Sequence[str] | None, wanted: Sequence[str] | None
) -> dict[str, object]:
    """The key as it is kept: argument by argument where it is made of arguments, as one value where a callable made it.

    Raises:
        InvalidInputError: it holds something that has no JSON form.
    """
    if wanted is None:
        return {"key": _as_json(key)}
    labels = names if names is not None and len(names) >= len(args) else [str(i) for i in range(len(args))]
    return {label: _as_json(value) for label, value in zip(labels, args, strict=False) if not wanted or label in wanted}


def _as_json(value: Any) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _as_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(v) for v in value]
    if hasattr(value, "stride") and hasattr(value, "dtype"):
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "stride": list(value.stride()),
        }
    if type(value).__module__ == "torch":  # dtype, device, layout
        return str(value).removeprefix("torch.")
    raise InvalidInputError(
        f"the key holds {value!r} of type {type(value).__name__}: a key is made of numbers, text, None, dtypes, shapes, "
        "tensors (by dtype, shape and strides), and lists of these"
    )


def features_of(args: Sequence[Any]) -> dict[str, Value]:
    """What describes a call beside its key: sizes and alignment of its tensors."""
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
    """The device a call runs on: that of its first CUDA tensor, without one the CPU."""
    for value in args:
        if getattr(value, "is_cuda", False):
            return f"cuda:{value.get_device()}"
    return "cpu"
