"""The arguments of a call for another process: copied once, described in JSON, laid out again where a candidate is run.

Tensors that share a storage share it again; offsets, strides and alignment are kept.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..processes.channel import memory_file
from ..processes.machine import usable_memory_bytes
from .buffers import ALIGNMENT, Buffers, guarded_copy, view_of
from .copies import UnportableError

_DESCRIPTORS = "triton.tools.tensor_descriptor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A copy of a call's arguments: `layout` describes them in JSON, `file` holds the bytes of their storages."""

    layout: dict[str, Any]
    file: int
    size: int
    _index: dict[int, int] = field(repr=False)

    def describe(self, values: Sequence[Any]) -> list[Any]:
        """Other values over the same storages, such as another config's, in JSON: see `Arguments.build`.

        Raises:
            UnportableError: a value has no such form, or is a tensor that was not there when the copy was made.
        """
        return [_describe(value, f"argument {i}", None, self._index) for i, value in enumerate(values)]

    def close(self) -> None:
        """Close the file; workers that have it keep it."""
        os.close(self.file)


def snapshot(values: Sequence[Any]) -> Snapshot:
    """Copy the values of a call, tensors by their storages, into an anonymous file.

    Raises:
        UnportableError: a value is no dense tensor, tensor descriptor, number, text, None, or list or tuple of these; or
            memory is short.
    """
    import torch

    storages: list[Any] = []
    index: dict[int, int] = {}
    layout: dict[str, Any] = {
        "values": [_describe(value, f"argument {i}", storages, index) for i, value in enumerate(values)]
    }
    sizes = [s.nbytes() for s in storages]
    total = sum(sizes)
    # The file, its layout in one candidate at a time, and that candidate's copy for restoring.
    if 3 * total > usable_memory_bytes():
        raise UnportableError(
            f"the arguments take {total >> 20} MiB, and trying candidates needs three times that: "
            f"{usable_memory_bytes() >> 20} MiB are free"
        )
    file = memory_file(max(1, total), "forecast_autotune_arguments")
    with mmap.mmap(file, max(1, total)) as memory:
        offset = 0
        for storage, size in zip(storages, sizes, strict=True):
            if size:
                source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                target = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=offset)
                target.copy_(source)
                del target
            offset += size
    layout["storages"] = [
        {"bytes": size, "device": str(s.device), "misalignment": s.data_ptr() % ALIGNMENT if size else 0}
        for s, size in zip(storages, sizes, strict=True)
    ]
    return Snapshot(layout=layout, file=file, size=total, _index=index)


def _describe(value: Any, where: str, storages: list[Any] | None, index: dict[int, int]) -> Any:
    import torch

    if value is None or isinstance(value, (bool, int, str)):
        return {"value": value}
    if isinstance(value, float):
        return {"float": value.hex()}  # exact, infinities and NaN included
    if isinstance(value, (list, tuple)):
        items = [_describe(v, f"{where}[{i}]", storages, index) for i, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type in ("cpu", "cuda"):
        storage = value.untyped_storage()
        key = storage.data_ptr() or id(storage)
        if key not in index:
            if storages is None:
                raise UnportableError(
                    f"{where} is a tensor that a hook of the config made: no copy of it can be handed on"
                )
            index[key] = len(storages)
            storages.append(storage)
        return {
            "storage": index[key],
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "stride": list(value.stride()),
            "offset": value.storage_offset(),
        }
    kind = type(value).__name__
    if type(value).__module__ == _DESCRIPTORS and dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"descriptor": {n: _describe(v, f"{where}.{n}", storages, index) for n, v in fields.items()}}
    raise UnportableError(
        f"{where} is a {kind}: candidates can be tried on dense CPU or CUDA tensors, tensor descriptors, numbers, text, "
        "None, and lists and tuples of these"
    )


class Arguments(Buffers):
    """The values of a snapshot, laid out afresh in this process.

    A worker knows only what its own candidate wrote, so all of that is put back before every run.
    """

    restores_all = True

    def __init__(self, layout: dict[str, Any], file: int, size: int, names: Sequence[str] = ()) -> None:
        import torch

        self._layout = layout
        self._memory = mmap.mmap(file, max(1, size), access=mmap.ACCESS_COPY)  # private: the file is never written
        tensors: list[dict[str, Any]] = []
        _note_tensors(layout["values"], tensors)
        alone = Counter(t["storage"] for t in tensors)
        first = {t["storage"]: t for t in reversed(tensors)}
        buffers, offset = [], 0
        for i, storage in enumerate(layout["storages"]):
            count, device = storage["bytes"], torch.device(storage["device"])
            content = torch.empty(0, dtype=torch.uint8)
            if count:
                content = torch.frombuffer(self._memory, dtype=torch.uint8, count=count, offset=offset)
            tensor = first.get(i, {"dtype": "uint8", "shape": None, "stride": None})
            buffers.append(
                guarded_copy(
                    content.to(device),
                    name=dict(enumerate(names)).get(i, f"tensor argument {i}"),
                    misalignment=storage["misalignment"],
                    dtype=_dtype(tensor["dtype"]),
                    shape=_contiguous(tensor["shape"], tensor["stride"]),
                    alone=alone[i] == 1,
                )
            )
            offset += count
        super().__init__(buffers)

    def values(self) -> tuple[Any, ...]:
        """The values of the call that was copied, over these storages."""
        return self.build(self._layout["values"])

    def build(self, described: Sequence[Any]) -> tuple[Any, ...]:
        """Values that a snapshot has described, over these storages."""
        return tuple(self._build(v) for v in described)

    def _build(self, described: dict[str, Any]) -> Any:
        import torch

        if "value" in described:
            return described["value"]
        if "float" in described:
            return float.fromhex(described["float"])
        if "list" in described:
            return [self._build(v) for v in described["list"]]
        if "tuple" in described:
            return tuple(self._build(v) for v in described["tuple"])
        if "device" in described:
            return torch.device(described["device"])
        if "descriptor" in described:
            from triton.tools.tensor_descriptor import TensorDescriptor

            return TensorDescriptor(**{name: self._build(v) for name, v in described["descriptor"].items()})
        dtype = _dtype(described["dtype"])
        if "storage" not in described:
            return dtype
        buffer = self.buffers[described["storage"]]
        return view_of(buffer, dtype, described["shape"], described["stride"], described["offset"])


def _note_tensors(described: Any, tensors: list[dict[str, Any]]) -> None:
    """The tensors in what a snapshot has described, in their order."""
    if isinstance(described, dict) and "storage" in described:
        tensors.append(described)
    elif isinstance(described, (dict, list)):
        for part in described.values() if isinstance(described, dict) else described:
            _note_tensors(part, tensors)


def _contiguous(shape: Sequence[int] | None, stride: Sequence[int] | None) -> tuple[int, ...] | None:
    """A shape, if the strides are those of a contiguous tensor."""
    if shape is None or stride is None:
        return None
    wanted = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != wanted:
            return None
        wanted *= size
    return tuple(shape)


def _dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UnportableError(f"{name!r} is no torch dtype")
    return dtype
