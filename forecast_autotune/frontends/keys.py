"""What a decision depends on: from the arguments of a call to a key, in Python for looking up, in JSON for keeping."""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
import numbers
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.digest import Value
from ..errors import AutotuneError, InvalidInputError
from ..processes.machine import usable_cores
from .call_tensors import labels_of, tensors_of_call

KeyFunction = Callable[..., Hashable]

ALIGNED = 64  # bytes: the widest vector load there is, AVX-512's; a GPU's are 16 or 32
_ALIGNMENTS = tuple((i & -i) or ALIGNED for i in range(ALIGNED))
_SCALARS = frozenset({int, float, bool, str, type(None)})


class NoKeyError(AutotuneError):
    """An argument has no form that a key could hold: its call is not tuned."""


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
    among the arguments that the signature names; a callable says it all itself. The function raises `NoKeyError` where an
    argument is neither a tensor nor a plain value.

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
        return (kind, *(_part(v) for v in value))
    if isinstance(value, dict):
        return (kind, *((_part(k), _part(v)) for k, v in value.items()))
    if isinstance(value, (numbers.Number, str, enum.Enum)) or kind.__module__ == "torch":  # dtype, device, layout
        return (kind, value) if value == value else "nan"
    raise NoKeyError(_no_form(value))


# What every key holds beside it -------------------------------------------------------------------------------------


class CallState(NamedTuple):
    """What a call's decision depends on whatever its key says.

    A variant that loads vectors needs aligned pointers; one that writes its output early is wrong where arguments overlap.

    Attributes:
        device: index of the CUDA device of its first CUDA tensor; -1 is the CPU.
        tracked: whether autograd follows the call: a variant without a backward must not be chosen for it.
        alignment: of each tensor, the largest power of two up to 64 that divides its address; empty where all are 64.
        overlaps: pairs of tensors that share memory, by place, the one that begins first before the other; a third entry
            is true where both begin together.
        autocast: the dtype that autocast computes in, if it is on.
        threads: of torch, for a call on the CPU; 0 elsewhere.
        training: of the modules that the callables reach, whether each is in training mode.
    """

    device: int
    tracked: bool
    alignment: tuple[int, ...]
    overlaps: tuple[tuple[int, int, bool], ...]
    autocast: Any
    threads: int
    training: tuple[bool, ...] = ()

    @property
    def device_name(self) -> str:
        return "cpu" if self.device < 0 else f"cuda:{self.device}"

    def as_json(self, labels: Sequence[str]) -> dict[str, object]:
        """What is not as usual, by the labels of the call's tensors; under names that no argument can have."""
        kept: dict[str, object] = {"autograd": True} if self.tracked else {}
        if self.alignment:
            kept["data alignment"] = {n: a for n, a in zip(labels, self.alignment, strict=True) if a < ALIGNED}
        if self.overlaps:
            pairs = (f"{labels[i]}{'=' if same else '<'}{labels[j]}" for i, j, same in self.overlaps)
            kept["overlapping tensors"] = list(pairs)
        if self.autocast is not None:
            kept["autocast dtype"] = str(self.autocast).removeprefix("torch.")
        if self.threads not in (0, usable_cores()):
            kept["torch threads"] = self.threads
        if not all(self.training):
            kept["training"] = list(self.training)
        return kept


class Surroundings(NamedTuple):
    """What callables reach beside a call's arguments that a decision depends on.

    Attributes:
        modules: weak references to the outermost modules: what drops numbers out in training must not replace them in it.
        followed: whether autograd may follow a tensor among them, such as a weight.
    """

    modules: tuple[Callable[[], Any], ...] = ()
    followed: bool = False

    def training(self) -> tuple[bool, ...]:
        return tuple([m.training for module in self.modules if (m := module()) is not None])


NOTHING_BESIDE = Surroundings()


def make_state_function(
    around: Surroundings = NOTHING_BESIDE,
) -> Callable[[Sequence[Any]], tuple[Any, ...] | None]:
    """A function from a call's arguments to the fields of its `CallState`, as a plain tuple, which takes less to make.

    It returns None under a transform of torch.func and in forward-mode autograd, where a tensor stands for several or
    carries a derivative along, and a variant may lose either. It raises what torch does where a tensor has no address: a
    fake or a sparse one.
    """
    import torch
    from torch._C import _is_any_autocast_enabled as any_autocast
    from torch._C._functorch import maybe_current_level as transforms
    from torch.autograd import forward_ad

    tensor, follows, threads = torch.Tensor, torch.is_grad_enabled, torch.get_num_threads
    many = (list, tuple, dict)
    modules, training, followed = around.modules, around.training, around.followed

    def share_memory(tensors: Sequence[Any]) -> bool:
        storages = set()
        for t in tensors:
            storages.add(t.untyped_storage()._cdata)
        return len(storages) < len(tensors)

    def state(values: Sequence[Any]) -> tuple[Any, ...] | None:  # one loop: each comprehension takes 0.1 us
        if transforms() is not None or forward_ad._current_level >= 0:
            return None
        tensors, addresses, any_bits, device, tracked = [], [], 0, -1, followed
        for value in values:
            if isinstance(value, tensor):
                tensors.append(value)
                address = value.data_ptr()
                addresses.append(address)
                any_bits |= address
                if device < 0 and value.is_cuda:
                    device = value.get_device()
                if value.requires_grad:
                    tracked = True
            elif isinstance(value, many):
                return state(tensors_of_call(values))
        return (
            device,
            tracked and follows(),
            tuple([_ALIGNMENTS[a % ALIGNED] for a in addresses]) if any_bits % ALIGNED else (),
            _overlaps(tensors) if len(tensors) > 1 and share_memory(tensors) else (),
            _autocast_dtype("cpu" if device < 0 else "cuda") if any_autocast() else None,
            threads() if device < 0 else 0,
            training() if modules else (),
        )

    return state


def state_without_data(values: Sequence[Any], around: Surroundings = NOTHING_BESIDE) -> CallState:
    """The state of a call whose tensors have no addresses yet: as where they are new, and none overlaps another."""
    import torch

    tensors = tensors_of_call(values)
    device = next((t.get_device() for t in tensors if t.is_cuda), -1)
    return CallState(
        device=device,
        tracked=torch.is_grad_enabled() and (around.followed or any(t.requires_grad for t in tensors)),
        alignment=(),
        overlaps=(),
        autocast=_autocast_dtype("cpu" if device < 0 else "cuda"),
        threads=torch.get_num_threads() if device < 0 else 0,
        training=around.training(),
    )


def _autocast_dtype(device: str) -> Any:
    import torch

    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _overlaps(tensors: Sequence[Any]) -> tuple[tuple[int, int, bool], ...]:
    """See `CallState.overlaps`."""
    found = []
    extents = enumerate(map(_extent, tensors))
    for (i, (a_start, a_end)), (j, (b_start, b_end)) in itertools.combinations(extents, 2):
        if a_start < b_end and b_start < a_end:
            found.append((i, j, a_start == b_start) if a_start <= b_start else (j, i, False))
    return tuple(found)


def _extent(tensor: Any) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the one behind its last."""
    start: int = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + span * tensor.itemsize


# As it is kept ------------------------------------------------------------------------------------------------------


def key_as_json(
    key: Hashable, args: Sequence[Any], names: Sequence[str] | None, wanted: Sequence[str] | None
) -> dict[str, object]:
    """The key as it is kept: argument by argument where it is made of arguments, as one value where a callable made it.

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
    shown = repr(value)
    return f"{shown if len(shown) <= 80 else shown[:77] + '…'} of type {type(value).__name__}"


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
    """The device a call runs on: that of its first CUDA tensor, those in lists and dicts included, without one the CPU."""
    for value in args:
        if isinstance(value, (list, tuple, dict)):
            inner = device_of(tuple(value.values()) if isinstance(value, dict) else value)
            if inner != "cpu":
                return inner
        elif getattr(value, "is_cuda", False):
            return f"cuda:{value.get_device()}"
    return "cpu"
