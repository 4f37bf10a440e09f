"""The state that a call's decision depends on beside its key: device, alignment, overlaps, autograd, autocast, training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..processes.machine import usable_cores
from .call_tensors import tensors_of_call

ALIGNED = 64  # bytes: the widest vector load there is, AVX-512's; a GPU's are 16 or 32
_ALIGNMENTS = tuple((i & -i) or ALIGNED for i in range(ALIGNED))


class CallState(NamedTuple):
    """What a call's decision depends on beside its key.

    A variant that loads vectors needs aligned pointers. One that writes its output early is wrong where arguments overlap.

    Attributes:
        device: index of the CUDA device of its first CUDA tensor; -1 is the CPU.
        followed: indices of the tensors that autograd follows, which rule out a variant without a backward for each of them.
        alignment: of each tensor, the largest power of two up to 64 that divides its address; empty where all are 64.
        overlaps: pairs of tensors that share memory, by index, the one that begins first in front; the third entry says
            whether both begin at one address.
        autocast: the dtype that autocast computes in, if it is on.
        threads: of torch, for a call on the CPU; 0 elsewhere.
        training: whether each module that the callables reach is in training mode.
        followed_weights: whether autograd follows each tensor that the callables reach; empty where it follows none.
    """

    device: int
    followed: tuple[int, ...]
    alignment: tuple[int, ...]
    overlaps: tuple[tuple[int, int, bool], ...]
    autocast: Any
    threads: int
    training: tuple[bool, ...] = ()
    followed_weights: tuple[bool, ...] = ()

    @property
    def tracked(self) -> bool:
        """Whether autograd records the call."""
        return bool(self.followed or self.followed_weights)

    @property
    def device_name(self) -> str:
        """`cpu`, or the CUDA device with its index: `cuda:0`."""
        return "cpu" if self.device < 0 else f"cuda:{self.device}"

    def as_json(self, labels: Sequence[str], weights: Sequence[str] = ()) -> dict[str, object]:
        """All that differs from the usual, for the store's key; under names that no argument can have.

        Args:
            labels: of the call's tensors, in their order.
            weights: names of the tensors that the callables reach, in their order.
        """
        kept: dict[str, object] = {}
        if self.followed:
            kept["autograd"] = [labels[i] for i in self.followed]
        if self.followed_weights:
            frozen = [n for n, is_followed in zip(weights, self.followed_weights, strict=False) if not is_followed]
            kept["autograd of weights"] = {"all but": frozen} if frozen else "all"
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


class ReachedModules(NamedTuple):
    """The modules that callables reach beside a call's arguments.

    Attributes:
        modules: weak references to the outermost ones. A decision for evaluation must not serve training: dropout.
        holders: weak references to all of them, by name; their parameters may be frozen, or replaced, at any time.
        tensors: weak references to other tensors that autograd may follow, by name.
    """

    modules: tuple[Callable[[], Any], ...] = ()
    holders: Mapping[str, Callable[[], Any]] = {}
    tensors: Mapping[str, Callable[[], Any]] = {}

    def followed(self) -> tuple[bool, ...]:
        """See `CallState.followed_weights`; where gradients are enabled."""
        parameters = [
            parameter is not None and parameter.requires_grad
            for holder in self.holders.values()
            if (module := holder()) is not None
            for parameter in module._parameters.values()
        ]
        others = [(tensor := reference()) is not None and tensor.requires_grad for reference in self.tensors.values()]
        return (*parameters, *others) if True in parameters or True in others else ()

    def names(self) -> list[str]:
        """Names of the tensors that `followed` tells of."""
        held = [(name, module) for name, holder in self.holders.items() if (module := holder()) is not None]
        return [*(f"{name}.{parameter}" for name, module in held for parameter in module._parameters), *self.tensors]

    def training(self) -> tuple[bool, ...]:
        """Whether each module that is still alive is in training mode."""
        return tuple([m.training for module in self.modules if (m := module()) is not None])


NO_MODULES = ReachedModules()


def make_state_function(
    reached: ReachedModules = NO_MODULES,
) -> Callable[[Sequence[Any]], tuple[Any, ...] | None]:
    """A function from a call's arguments to the fields of its `CallState`, as a plain tuple, which takes less to make.

    It returns None under a transform of torch.func and in forward-mode autograd: a tensor stands for several there, or
    carries a derivative, and a variant may lose either. It raises what torch raises where a tensor has no address, as of a
    fake or a sparse one.
    """
    import torch
    from torch._C import _is_any_autocast_enabled as any_autocast
    from torch._C._functorch import maybe_current_level as transforms
    from torch.autograd import forward_ad

    tensor, grad_enabled, threads = torch.Tensor, torch.is_grad_enabled, torch.get_num_threads
    containers = (list, tuple, dict)
    modules, training, followed_weights = reached.modules, reached.training, reached.followed
    weights = bool(reached.holders or reached.tensors)

    def state(values: Sequence[Any]) -> tuple[Any, ...] | None:  # one loop: each comprehension takes 0.1 us
        if transforms() is not None or forward_ad._current_level >= 0:
            return None
        tensors: list[Any] = []
        addresses: list[int] = []
        followed: tuple[int, ...] = ()
        any_bits, device = 0, -1
        for value in values:
            if isinstance(value, tensor):
                if value.requires_grad:
                    followed += (len(tensors),)
                tensors.append(value)
                address = value.data_ptr()
                addresses.append(address)
                any_bits |= address
                if device < 0 and value.is_cuda:
                    device = value.get_device()
            elif isinstance(value, containers):
                return state(tensors_of_call(values))
        return (
            device,
            followed if followed and grad_enabled() else (),
            tuple([_ALIGNMENTS[a % ALIGNED] for a in addresses]) if any_bits % ALIGNED else (),
            _overlaps(tensors) if len(tensors) > 1 and _share_storage(tensors) else (),
            _autocast_dtype("cpu" if device < 0 else "cuda") if any_autocast() else None,
            threads() if device < 0 else 0,
            training() if modules else (),
            followed_weights() if weights and grad_enabled() else (),
        )

    return state


def _share_storage(tensors: Sequence[Any]) -> bool:
    storages = set()
    for t in tensors:
        storages.add(t.untyped_storage()._cdata)
    return len(storages) < len(tensors)


def state_without_data(values: Sequence[Any], reached: ReachedModules = NO_MODULES) -> CallState:
    """The state of a call whose tensors have no addresses: as though each were new and none overlapped another."""
    import torch

    tensors = tensors_of_call(values)
    device = next((t.get_device() for t in tensors if t.is_cuda), -1)
    return CallState(
        device=device,
        followed=tuple(i for i, t in enumerate(tensors) if t.requires_grad) if torch.is_grad_enabled() else (),
        alignment=(),
        overlaps=(),
        autocast=_autocast_dtype("cpu" if device < 0 else "cuda"),
        threads=torch.get_num_threads() if device < 0 else 0,
        training=reached.training(),
        followed_weights=reached.followed() if torch.is_grad_enabled() else (),
    )


def _autocast_dtype(device: str) -> Any:
    import torch

    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _overlaps(tensors: Sequence[Any]) -> tuple[tuple[int, int, bool], ...]:
    """See `CallState.overlaps`."""
    pairs = []
    extents = enumerate(map(_extent, tensors))
    for (i, (a_start, a_end)), (j, (b_start, b_end)) in itertools.combinations(extents, 2):
        if a_start < b_end and b_start < a_end:
            pairs.append((i, j, a_start == b_start) if a_start <= b_start else (j, i, False))
    return tuple(pairs)


def _extent(tensor: Any) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the byte behind its last."""
    start: int = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + span * tensor.itemsize
