"""The arguments of a call: copied once, described in JSON, laid out again where a candidate is run.

Every tensor storage is laid out between two guard zones of known bytes, so that a candidate which writes past an argument
is found out. Tensors that share a storage share it again; offsets, strides and alignment are kept.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import AutotuneError
from ..workers import memory_file, usable_memory_bytes
from .cells import Cell, differ, takes_nan

if TYPE_CHECKING:
    import torch

GUARD_BYTES = 4096
_GUARD = 0xA5
_DESCRIPTORS = "triton.tools.tensor_descriptor"
_ALIGNMENT = 64  # of torch's CPU allocator; offsets within it are kept, for vector loads depend on them


class UnportableError(AutotuneError):
    """An argument cannot be copied for a trial; the message names it and says what can be."""


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
        {"bytes": size, "device": str(s.device), "misalignment": s.data_ptr() % _ALIGNMENT if size else 0}
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


class Arguments:
    """The values of a snapshot, laid out afresh in this process, restorable, between guard zones."""

    def __init__(self, layout: dict[str, Any], file: int, size: int, names: Sequence[str] = ()) -> None:
        import torch

        self._names = dict(enumerate(names))  # of the storages, for messages

        self._memory = mmap.mmap(file, max(1, size), access=mmap.ACCESS_COPY)  # private: the file is never written
        self._pristine: list[torch.Tensor] = []
        self._buffers: list[torch.Tensor] = []
        self._inner: list[torch.Tensor] = []
        self._written: list[int] | None = None
        self._noted: set[int] = set()  # outputs, whether or not a difference shows
        self._dtypes: dict[int, Any] = {}  # of the first tensor that lies in a storage
        self._tensors: Counter[int] = Counter()  # how many lie in it
        offset = 0
        for storage in layout["storages"]:
            count = storage["bytes"]
            device = torch.device(storage["device"])
            start = GUARD_BYTES + storage["misalignment"]
            buffer = torch.full((start + count + GUARD_BYTES,), _GUARD, dtype=torch.uint8, device=device)
            inner = buffer[start : start + count]
            if count:
                pristine = torch.frombuffer(self._memory, dtype=torch.uint8, count=count, offset=offset).to(device)
                inner.copy_(pristine)
            else:
                pristine = inner
            self._pristine.append(pristine)
            self._buffers.append(buffer)
            self._inner.append(inner)
            offset += count
        self.values = self.build(layout["values"])
        self._alone = {storage for storage, count in self._tensors.items() if count == 1}

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
        self._dtypes.setdefault(described["storage"], dtype)
        self._tensors[described["storage"]] += 1
        inner = self._inner[described["storage"]]
        # The guard's size and the misalignment are whole elements: a tensor's own data pointer always is aligned to its
        # element size, so the offset in elements is exact.
        base = inner.storage_offset()
        typed = torch.empty(0, dtype=dtype, device=inner.device)
        return typed.set_(
            inner.untyped_storage(),
            base // dtype.itemsize + described["offset"],
            described["shape"],
            described["stride"],
        )

    def overrun(self) -> str | None:
        """What was written outside the arguments, in words; None if nothing was."""
        for i, (buffer, inner) in enumerate(zip(self._buffers, self._inner, strict=True)):
            start, end = inner.storage_offset(), inner.storage_offset() + inner.numel()
            for zone, where in ((buffer[:start], "before"), (buffer[end:], "past the end of")):
                wrong = int((zone != _GUARD).sum())
                if wrong:
                    return f"wrote {wrong} bytes {where} {self._name(i)}"
        return None

    def _name(self, storage: int) -> str:
        return self._names.get(storage, f"tensor argument {storage}")

    @property
    def changed(self) -> bool:
        """Whether the last look, by `written` or `outputs`, found a storage that a run had written to."""
        return bool(self._written)

    def written(self) -> list[int]:
        """Indices of the storages whose bytes differ from the snapshot now; remembered for `restore`."""
        pairs = enumerate(zip(self._inner, self._pristine, strict=True))
        self._written = [i for i, (inner, pristine) in pairs if differ(inner, pristine)]
        return self._written

    def restore(self) -> None:
        """Put back what a run has written (everything, until `written` has found out what that is)."""
        for i in range(len(self._inner)) if self._written is None else self._written:
            self._inner[i].copy_(self._pristine[i])

    def look_anew(self) -> None:
        """Put everything back before the next run, which may write elsewhere than the last, and let none hide a guard."""
        self._written = None
        self._noted.clear()
        for buffer, inner in zip(self._buffers, self._inner, strict=True):
            start, end = inner.storage_offset(), inner.storage_offset() + inner.numel()
            buffer[:start].fill_(_GUARD)
            buffer[end:].fill_(_GUARD)

    def cells(self) -> list[Cell]:
        """The storages that the last run wrote to, and those known to be outputs."""
        found = []
        for i in sorted({*(self._written or ()), *self._noted}):
            if i in self._dtypes:
                now, pristine = self._typed(self._inner, i), self._typed(self._pristine, i)
                found.append(Cell(index=i, name=self._name(i), memory=now, before=pristine, alone=i in self._alone))
        return found

    def _typed(self, storages: Sequence[torch.Tensor], i: int) -> torch.Tensor:
        """A storage as elements of the first tensor that lies there."""
        dtype = self._dtypes[i]
        size = storages[i].numel() // dtype.itemsize * dtype.itemsize
        return storages[i][:size].view(dtype)

    def blank(self, which: Sequence[int]) -> None:
        """Fill these storages with NaN, so that what a candidate leaves unwritten shows."""
        self.note_written(which)
        for i in which:
            self._typed(self._inner, i).fill_(float("nan"))

    def could_be_blank(self) -> list[int]:
        return [i for i in sorted(self._alone) if takes_nan(self._dtypes[i])]

    def was_filled(self, index: int) -> bool:
        return not bool(self._typed(self._inner, index).isnan().all())

    def note_written(self, which: Sequence[int]) -> None:
        self._noted.update(which)

    def pristine(self) -> None:
        """Put back what was found written."""
        self.restore()

    def put_back(self) -> None:
        self._noted.clear()
        for inner, pristine in zip(self._inner, self._pristine, strict=True):
            inner.copy_(pristine)

    def keep(self, which: Sequence[int]) -> None:
        """What a run has written is put back in any case."""

    def outputs(self, returned: Any) -> list[torch.Tensor]:
        """What a run produced: what it returned, then each storage it wrote to, whole, as elements of its tensor."""
        found = list(tensors_in(returned))
        self.written()
        return [*found, *(cell.now for cell in self.cells())]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nested value, numbers as tensors of one element."""
    import torch

    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (bool, int, float)):
        yield torch.tensor(value)


def _dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UnportableError(f"{name!r} is no torch dtype")
    return dtype
