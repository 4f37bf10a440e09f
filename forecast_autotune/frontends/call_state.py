"""The state that a call's decision depends on beside its key: device, alignment, overlaps, autograd, autocast, training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ..core.module_names import module_name
from ..processes.machine import usable_cores
from .call_tensors import FX_TRACES, holds_leaves, is_fake, leaves_of_call, tensors_of_call
from .keys import NoKeyError, ProxyError
from .reached import ReachedByCalls

ALIGNED = 64  # bytes: the widest vector load there is, AVX-512's; a GPU's are 16 or 32
_ALIGNMENTS = tuple((i & -i) or ALIGNED for i in range(ALIGNED))


class CallState(NamedTuple):
    """What a call's decision depends on beside its key.

    A variant that loads vectors needs aligned pointers. One that writes its output early is wrong where arguments overlap.

    Attributes:
        device: index of the CUDA device of its first CUDA tensor; -1 is the CPU.
        grad_enabled: whether autograd may record the call. Weights that are reached unseen are followed only where it may.
        followed: indices of the tensors that autograd follows, which rule out a variant without a backward for each of them.
        alignment: of each tensor, the largest power of two up to 64 that divides its address; empty where all are 64.
        overlaps: pairs of tensors that share memory, by index, the one that begins first in front; the third entry says
            whether both begin at one address.
        autocast: the dtype that autocast computes in, if it is on.
        threads: of torch, for a call on the CPU; 0 elsewhere.
        subclasses: index and class of each tensor of a subclass; parameters are none.
        training: whether each module reached, by callables or by modules among the arguments, is in training mode; one flag
            where all agree.
        followed_weights: whether autograd follows each tensor that they reach; one flag where all agree, empty where it
            follows none.
    """

    device: int
    grad_enabled: bool
    followed: tuple[int, ...]
    alignment: tuple[int, ...]
    overlaps: tuple[tuple[int, int, bool], ...]
    autocast: Any
    threads: int
    subclasses: tuple[tuple[int, str], ...] = ()
    training: tuple[bool, ...] = ()
    followed_weights: tuple[bool, ...] = ()

    @property
    def device_name(self) -> str:
        """`cpu`, or the CUDA device with its index: `cuda:0`."""
        return "cpu" if self.device < 0 else f"cuda:{self.device}"

    def as_json(
        self, labels: Sequence[str], modules: Sequence[str] = (), weights: Sequence[str] = ()
    ) -> dict[str, object]:
        """All that differs from the usual, for the store's key; under names that no argument can have.

        Args:
            labels: of the call's tensors, in their order.
            modules, weights: names of the modules and tensors that `training` and `followed_weights` tell of.
        """
        kept: dict[str, object] = {}
        if not self.grad_enabled:
            kept["gradients"] = "disabled"
        if self.followed:
            kept["autograd"] = [labels[i] for i in self.followed]
        if self.followed_weights:
            kept["autograd of weights"] = _all_but(self.followed_weights, weights)
        if self.alignment:
            kept["data alignment"] = {n: a for n, a in zip(labels, self.alignment, strict=True) if a < ALIGNED}
        if self.overlaps:
            pairs = (f"{labels[i]}{'=' if same else '<'}{labels[j]}" for i, j, same in self.overlaps)
            kept["overlapping tensors"] = list(pairs)
        if self.autocast is not None:
            kept["autocast dtype"] = str(self.autocast).removeprefix("torch.")
        if self.threads not in (0, usable_cores()):
            kept["torch threads"] = self.threads
        if self.subclasses:
            kept["tensor subclasses"] = {labels[i]: kind for i, kind in self.subclasses}
        if False in self.training:
            kept["training"] = _all_but(self.training, modules)
        return kept


def _all_but(flags: Sequence[bool], names: Sequence[str]) -> object:
    """What flags say, of which one stands for all where all agree."""
    if len(flags) == 1:
        return "all" if flags[0] else "none"
    return {"all but": [name for name, flag in zip(names, flags, strict=False) if not flag]}


def make_state_function(reached: ReachedByCalls) -> Callable[[Sequence[Any]], tuple[Any, ...] | None]:
    """A function from a call's arguments to the fields of its `CallState`, as a plain tuple, which takes less to make.

    It returns None under a transform of torch.func and in forward-mode autograd: a tensor stands for several there, or
    carries a derivative, and a variant may lose either. It raises what torch raises where a tensor has no address, as a
    sparse one has none, `NoKeyError` for a fake tensor and for a conjugate or negative view, and `ProxyError`.
    """
    import torch
    from torch._C import _is_any_autocast_enabled as any_autocast
    from torch._C._functorch import maybe_current_level as transforms
    from torch.autograd import forward_ad
    from torch.fx import Proxy

    tensor, grad_enabled, threads = torch.Tensor, torch.is_grad_enabled, torch.get_num_threads
    dense, plain, module = frozenset({tensor, torch.nn.Parameter}), _plain_kinds(), torch.nn.Module
    flags, by_callables = reached.flags, reached.by_callables

    def state(values: Sequence[Any]) -> tuple[Any, ...] | None:  # one loop: each comprehension takes 0.1 us
        if transforms() is not None or forward_ad._current_level >= 0:
            return None
        tensors: list[Any] = []
        addresses: list[int] = []
        modules: list[Any] = []
        followed: tuple[int, ...] = ()
        subclasses: tuple[tuple[int, str], ...] = ()
        any_bits, device = 0, -1
        for value in values:
            kind = type(value)
            if kind not in dense:
                if kind in plain:
                    continue
                if not isinstance(value, tensor):
                    if holds_leaves(value):
                        return state(leaves_of_call(values))
                    if isinstance(value, module):
                        modules.append(value)
                    elif issubclass(kind, Proxy):
                        raise ProxyError(FX_TRACES)
                    continue
                if is_fake(value):
                    raise NoKeyError("an argument is a fake tensor")
                subclasses += ((len(tensors), f"{module_name(kind)}.{kind.__qualname__}"),)
            if value.requires_grad:
                followed += (len(tensors),)
            if value.is_neg() or value.is_conj():
                raise NoKeyError("an argument is a conjugate or negative view")
            tensors.append(value)
            address = value.data_ptr()
            addresses.append(address)
            any_bits |= address
            if device < 0 and value.is_cuda:
                device = value.get_device()
        grad = grad_enabled()
        training, followed_weights = flags(modules, grad) if modules or not by_callables.is_empty else ((), ())
        return (
            device,
            grad,
            followed if grad else (),
            tuple([_ALIGNMENTS[a % ALIGNED] for a in addresses]) if any_bits % ALIGNED else (),
            _overlaps(tensors) if len(tensors) > 1 and _share_storage(tensors) else (),
            _autocast_dtype("cpu" if device < 0 else "cuda") if any_autocast() else None,
            threads() if device < 0 else 0,
            subclasses,
            training,
            followed_weights,
        )

    return state


def _plain_kinds() -> frozenset[type]:
    import torch

    of_torch = (torch.dtype, torch.device, torch.layout, torch.memory_format)
    return frozenset({int, float, complex, bool, str, bytes, type(None), *of_torch})


def modules_of_call(values: Sequence[Any]) -> list[Any]:
    """The modules among some values, those in containers included."""
    import torch

    return [leaf for leaf in leaves_of_call(values) if isinstance(leaf, torch.nn.Module)]


def _share_storage(tensors: Sequence[Any]) -> bool:
    storages = set()
    for t in tensors:
        storages.add(t.untyped_storage()._cdata)
    return len(storages) < len(tensors)


def state_without_data(values: Sequence[Any], reached: ReachedByCalls) -> CallState:
    """The state of a call whose tensors have no addresses: as though each were new and none overlapped another."""
    import torch

    tensors = tensors_of_call(values)
    device = next((t.get_device() for t in tensors if t.is_cuda), -1)
    grad_enabled = torch.is_grad_enabled()
    training, followed_weights = reached.flags(modules_of_call(values), grad_enabled)
    return CallState(
        device=device,
        grad_enabled=grad_enabled,
        followed=tuple(i for i, t in enumerate(tensors) if t.requires_grad) if grad_enabled else (),
        alignment=(),
        overlaps=(),
        autocast=_autocast_dtype("cpu" if device < 0 else "cuda"),
        threads=torch.get_num_threads() if device < 0 else 0,
        training=training,
        followed_weights=followed_weights,
    )


def _autocast_dtype(device: str) -> Any:
    import torch

    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _overlaps(tensors: Sequence[Any]) -> tuple[tuple[int, int, bool], ...]:
    """See `CallState.overlaps`. Pairs are compared within groups that overlap: a flat buffer may have thousands of views."""
    extents = [_extent(tensor) for tensor in tensors]
    groups: list[list[int]] = []
    furthest = -1
    for i in sorted(range(len(extents)), key=extents.__getitem__):
        start, end = extents[i]
        if start >= furthest:
            groups.append([i])
            furthest = end
        else:
            groups[-1].append(i)
            furthest = max(furthest, end)
    if len(groups) == len(extents):
        return ()
    pairs = []
    for group in groups:
        for (i, a_start, a_end), (j, b_start, b_end) in combinations([(i, *extents[i]) for i in sorted(group)], 2):
            if a_start < b_end and b_start < a_end:
                pairs.append((i, j, a_start == b_start) if a_start <= b_start else (j, i, False))
    return tuple(pairs if len(groups) == 1 else sorted(pairs, key=lambda pair: sorted(pair[:2])))


def _extent(tensor: Any) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the byte behind its last."""
    start: int = tensor.data_ptr()
    if tensor.is_contiguous():  # most are, and so is an empty one; this takes a quarter of the time
        return start, start + tensor.nbytes
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + span * tensor.itemsize
