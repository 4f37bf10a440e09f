"""The arguments of a call in the caller's own process: copied, or borrowed where the user says what is written."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ..core.config_errors import of_memory, raised
from ..core.signal_handlers import raised_by_signal_handler
from ..errors import AutotuneError
from ..processes.machine import usable_memory_bytes
from .buffers import ALIGNMENT, Buffer, Buffers, guarded_copy, memory_of, view_of
from .operator_writes import operator_writes
from .outputs import Gradients, gradients_of
from .process_state import RandomState, is_only_thread
from .slots import Contents, Slots

if TYPE_CHECKING:
    import torch

COPIES = 4  # of each argument: what candidates run on, what it held, what a run left there, and what is compared
TEMPORARY_BYTES = 512 << 20  # at most, beside the copies
_SUB_BYTE = re.compile(r"torch\.u?int[1-7]")  # torch has these dtypes for compilers, and no operators for them
Values = tuple[tuple[Any, ...], dict[str, Any]]
"""What a candidate is called with, by position and by name."""


def _ignore(name: str, container: Any) -> None:
    """What is made anew is not noted."""


class UnportableError(AutotuneError):
    """An argument cannot be copied for a trial; the message names it and says what can be."""


@contextmanager
def _failed_copies_are_refused() -> Iterator[None]:
    """Raise `UnportableError` for whatever copying raises, which is no config's failure; a lack of memory may pass."""
    try:
        yield
    except AutotuneError:
        raise
    except Exception as err:
        if of_memory(err) or raised_by_signal_handler(err):
            raise
        raise UnportableError(
            f"configs are tried on copies of the arguments, and copying these fails: {raised(err)}"
        ) from err


class CopiedArguments(Buffers):
    """Copies of a call's tensors, storage by storage: what shares memory shares it again, and strides are kept.

    Tensors are looked for in containers, dataclasses and tensor descriptors. Other objects are handed on as they are.

    Args:
        args, kwargs: of the call.
        names: of what is given by position.
        restored, zeroed: names of tensors to put back, and to fill with zeros, before every run.
        state: tensors that candidates reach by another way: the caller's own, put back where a run has changed them. While
            the program has other threads, which may change them too, that is where operators of the run wrote.
        generators: of random numbers, reached so, too; each run draws from them what the first does.
        also_reached: those of the state that may be arguments as well: candidates may write to them in either way.
        slots: of what candidates reach; put back where a candidate has rebound them. While the program has other threads,
            that is where a run put tensors that operators of it made.
    Raises:
        UnportableError: a tensor cannot be copied, or memory is short.
    """

    @_failed_copies_are_refused()
    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        names: Sequence[str] = (),
        restored: Collection[str] = (),
        zeroed: Collection[str] = (),
        state: Mapping[str, torch.Tensor] | None = None,
        also_reached: Iterable[torch.Tensor] = (),
        generators: Sequence[Any] = (),
        slots: Slots | None = None,
    ) -> None:
        self._given: Values = tuple(args), dict(kwargs or {})
        self._random_state = RandomState(generators)
        self._names = names
        self._accumulates = False
        self._contents = Contents()
        self._refills = False  # the containers: a run has changed some
        self._empty: list[tuple[str, torch.Tensor]] = []
        self._leaves: list[tuple[str, torch.Tensor, torch.Tensor | None]] = []
        self._followed: list[tuple[torch.Tensor, Any]] = []
        tensors: dict[str, torch.Tensor] = {}

        def note(name: str, tensor: torch.Tensor) -> torch.Tensor:
            refuse_what_has_no_copy(name, tensor)
            tensors[name] = tensor
            if tensor.is_leaf and tensor.grad is not None:
                tensors[f"{name}.grad"] = tensor.grad
            return tensor

        self._mapped(note)
        groups: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            groups.setdefault(_key(tensor), {})[name] = tensor
        copied = {id(t) for t in tensors.values()} - set(map(id, also_reached))
        own = {n: t for n, t in (state or {}).items() if id(t) not in copied}
        self._state_leaves = [(n, t, t.grad) for n, t in own.items() if t.requires_grad and t.is_leaf]
        for name, tensor in own.items():
            refuse_what_has_no_copy(name, tensor)
        refuse_shortage(tensors.values(), own.values())
        self._buffer_of: dict[int, Buffer] = {}
        for key, group in groups.items():
            self._buffer_of[key] = _copied(group)
        kept = {(t.data_ptr(), t.shape, t.stride()): (n, t) for n, t in own.items()}
        # The only thread is not joined by another that it does not start itself, in a candidate.
        self._shares_state = not is_only_thread()
        self._state_in: dict[int, list[Buffer]] = {}
        for name, tensor in kept.values():
            self._state_in.setdefault(_key(tensor), []).append(buffer := _borrowed(name, tensor))
            buffer.regions = set() if self._shares_state else None
        buffers = [*self._buffer_of.values(), *(b for group in self._state_in.values() for b in group)]
        super().__init__(buffers, slots)
        self.slots.note_storages(own)
        if self._shares_state:
            self.slots.share()
        for name in zeroed:
            self._copy_of(tensors[name], pristine=True).zero_()
        for name in (*restored, *zeroed):
            buffer = self._buffer_of[_key(tensors[name])]
            buffer.restored = True
            buffer.restore()
        self.values()  # what cannot be made now could not be made for any config

    @property
    def changed(self) -> bool:
        """Whether a run leaves buffers, gradients or slots that the next must not start from."""
        return self._accumulates or self._refills or self.slots.have_state or super().changed

    def values(self) -> Values:
        """The call's arguments over the copies, as no candidate has seen them yet: tensors, lists and objects made anew."""
        self._refills = self._refills or self._contents.changed
        self._leaves, self._followed, self._empty, self._contents = [], [], [], Contents()
        made: dict[int, torch.Tensor] = {}

        def substitute(name: str, tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = self._followable(name, tensor, self._copy_of(tensor))
                if not tensor.untyped_storage().nbytes():
                    self._empty.append((name, made[id(tensor)]))
            return made[id(tensor)]

        return self._mapped(substitute, self._contents.note)

    def restore(self) -> None:
        """Put back what a run must not find changed, gradients and what containers hold included."""
        super().restore()
        self._contents.put_back()
        self.slots.restore()
        if self._accumulates:
            self._drop_gradients()

    def left(self) -> list[tuple[str, torch.Tensor]]:
        """See `Buffers.left`: also tensors that were empty, and that a run has given memory."""
        return [*super().left(), *((name, tensor) for name, tensor in self._empty if tensor.numel())]

    def seeing_writes(self) -> AbstractContextManager[object]:
        """See `Buffers.seeing_writes`: of what candidates reach beside their arguments."""
        return self._seeing_writes() if self._sees_writes else nullcontext()

    @property
    def _sees_writes(self) -> bool:
        return self._shares_state and bool(self._state_in or self.slots)

    @contextmanager
    def _seeing_writes(self) -> Iterator[None]:
        own = {_key(buffer.memory) for buffer in self._buffer_of.values()}

        def note_own(tensor: torch.Tensor) -> None:
            if kind_without_copy(tensor) is None:
                own.add(_key(tensor))

        def note_write(tensor: torch.Tensor) -> None:
            self._note_write(tensor)
            note_own(tensor)

        try:
            with operator_writes(note_write, note_own):
                yield
        finally:
            self.slots.note_own(lambda tensor: kind_without_copy(tensor) is None and _key(tensor) in own)

    def learn_compiled_writes(self, run: Callable[[], object]) -> None:
        """See `Buffers.learn_compiled_writes`: the code is run as plain Python."""
        if self._sees_writes and "torch._dynamo" in sys.modules:
            import torch

            try:
                with torch.compiler.set_stance("force_eager"):
                    run()
            finally:
                self.put_back()

    def _note_write(self, tensor: torch.Tensor) -> None:
        if kind_without_copy(tensor) is None and (buffers := self._state_in.get(_key(tensor))):
            memory = memory_of(tensor)
            for buffer in buffers:
                buffer.note_write(memory)

    def put_back(self) -> None:
        """Leave everything as it was before any run: memory, random number generators, gradients, slots that are state."""
        super().put_back()
        self.slots.restore()
        self.rewind()
        self._drop_gradients()

    def rewind(self) -> None:
        """See `Buffers.rewind`."""
        self._random_state.put_back()

    def gradients(self, returned: Sequence[torch.Tensor]) -> Gradients:
        """Of what a run returned or wrote, and those that it has left in `.grad` itself."""
        written = [t for t, made_by in self._followed if t.grad_fn is not made_by]
        leaves = [*self._leaves, *self._state_leaves]
        with self.seeing_writes():
            reached = gradients_of([*returned, *written], {id(leaf): name for name, leaf, _ in leaves})
        left = {f"{n}.grad": t.grad.detach().clone() for n, t, g in leaves if t.grad is not None and t.grad is not g}
        self._accumulates |= bool(left)
        return reached if isinstance(reached, str) else {**reached, **left}

    def release(self) -> None:
        """Leave the caller's own memory as it was, and hold on to nothing."""
        self.put_back()
        self.slots = Slots()
        self._given = (), {}
        self.buffers, self._buffer_of, self._state_in = [], {}, {}
        self._leaves, self._followed, self._state_leaves, self._empty = [], [], [], []
        self._contents = Contents()

    def _drop_gradients(self) -> None:
        for _, leaf, gradient in (*self._leaves, *self._state_leaves):
            if leaf.grad is not gradient:
                leaf.grad = gradient

    def _mapped(
        self, f: Callable[[str, torch.Tensor], torch.Tensor], note: Callable[[str, Any], None] = _ignore
    ) -> Values:
        args, kwargs = self._given
        names = [*self._names[: len(args)], *(f"argument {i}" for i in range(len(self._names), len(args)))]
        return (
            tuple(_mapped(n, v, f, note) for n, v in zip(names, args, strict=True)),
            {n: _mapped(n, v, f, note) for n, v in kwargs.items()},
        )

    def _copy_of(self, tensor: torch.Tensor, *, pristine: bool = False) -> torch.Tensor:
        import torch

        buffer = self._buffer_of[_key(tensor)]
        offset = tensor.storage_offset()
        if not buffer.memory.numel():  # what torch resizes in place would lie in the guard zones
            return torch.empty(0, dtype=tensor.dtype, device=tensor.device).as_strided(tensor.shape, tensor.stride())
        if not pristine:
            return view_of(buffer, tensor.dtype, tensor.shape, tensor.stride(), offset)
        typed = buffer.pristine.view(tensor.dtype)
        return typed.as_strided(tensor.shape, tensor.stride(), typed.storage_offset() + offset)

    def _followable(self, name: str, given: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        """A copy that is of the given one's class, and that autograd follows if it follows that one."""
        import torch

        if given.is_conj():
            copied = copied.conj()
        if given.is_neg():
            copied = copied._neg_view()
        if type(given) is not torch.Tensor:
            copied = copied.as_subclass(type(given))
            copied.__dict__.update(given.__dict__)
        if not given.requires_grad or torch.is_inference_mode_enabled():
            return copied
        if given.is_leaf:
            copied.requires_grad_()
            if given.grad is not None and _key(given.grad) in self._buffer_of:  # else another thread has made it since
                copied.grad = self._copy_of(given.grad)
            self._leaves.append((name, copied, copied.grad))
            return copied
        with torch.enable_grad():
            leaf = torch.empty(1, dtype=given.dtype, device=given.device).expand(given.shape).requires_grad_()
            copied = _source().apply(leaf, [copied])
        self._leaves.append((name, leaf, None))
        self._followed.append((copied, copied.grad_fn))
        return copied


class BorrowedArguments(Buffers):
    """The caller's own tensors, for candidates that are run there as the user's launches are.

    Nothing is looked at; what the user names is put back before every run, or filled with zeros.

    Raises:
        UnportableError: what is to be restored cannot be copied, or memory is short for it.
    """

    @_failed_copies_are_refused()
    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        restored: Mapping[str, torch.Tensor],
        zeroed: Mapping[str, torch.Tensor],
    ) -> None:
        self._given: Values = tuple(args), dict(kwargs)
        needed = _bytes(memory_of(t) for t in restored.values())
        if short := _shortage(needed):
            raise UnportableError(f"a copy of {', '.join(restored)} to restore takes {short}")
        self._restored = [_borrowed(n, t) for n, t in restored.items()]
        empty = [_borrowed(n, t, to_zero=True) for n, t in zeroed.items()]
        super().__init__([*self._restored, *empty])
        for buffer in self.buffers:
            buffer.restored = True

    def values(self) -> Values:
        """The caller's own arguments."""
        return self._given

    def detect_writes(self) -> list[Buffer]:
        """Nothing: only what the user names is put back."""
        return []

    def put_back(self) -> None:
        """Put back, or fill with zeros, what the user names."""
        self.restore()

    def release(self) -> None:
        """Leave what is to be restored as it was, and hold on to nothing."""
        for buffer in self._restored:
            buffer.restore()
        self._given = (), {}
        self.buffers = self._restored = []


def run_on_copies(run: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any], **others: Any) -> None:
    """Make a call on copies of its arguments; what state of its callee changes is put back.

    Where it rebinds slots it is made twice: state are those that the second call rebinds again.
    """
    arguments = CopiedArguments(args, kwargs, **others)
    slots, first, grown = arguments.slots, {}, []

    def run_once() -> None:
        args, kwargs = arguments.values()
        with arguments.seeing_writes():
            run(*args, **kwargs)

    try:
        run_once()
        if rebound := slots.rebound():
            made = slots.sizes(rebound)
            arguments.reset()
            run_once()
            first, grown = rebound, slots.grown(made)
    finally:
        slots.note_state(first, grown)
        arguments.release()


def tensors_of(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors among a call's arguments: a tensor descriptor's is its base, those of a tuple are numbered."""
    tensors: dict[str, torch.Tensor] = {}

    def note(name: str, tensor: torch.Tensor) -> torch.Tensor:
        tensors[name] = tensor
        return tensor

    for name, value in arguments.items():
        _mapped(name, value, note)
    return tensors


def names_of_storages(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """What the storages of some tensors are called, in the order in which they are met: by all that lie in one."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(_key(tensor), []).append(name)
    return [", ".join(group) for group in names.values()]


def kind_without_copy(tensor: torch.Tensor) -> str | None:
    """What a tensor is that has no memory of its own to copy, or one of another form; None for one that has."""
    import torch

    kinds = {
        "sparse": tensor.layout != torch.strided,
        "nested": tensor.is_nested,
        "quantized": tensor.is_quantized,
        "without data": tensor.is_meta,
        "made of other tensors": type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__,
    }
    return next((kind for kind, is_so in kinds.items() if is_so), None)


def kind_beyond_torch(tensor: torch.Tensor) -> str | None:
    """What a dense tensor is that torch itself cannot copy; None for any other.

    Freed is one whose storage has no bytes left, as FSDP leaves weights between their uses.
    """
    if _SUB_BYTE.fullmatch(str(tensor.dtype)):
        return f"of {str(tensor.dtype).removeprefix('torch.')}, which torch does not copy"
    return "freed" if tensor.numel() and not tensor.untyped_storage().nbytes() else None


def refuse_what_has_no_copy(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that cannot be copied.

    Raises:
        UnportableError: it cannot.
    """
    if kind := kind_without_copy(tensor) or kind_beyond_torch(tensor):
        raise UnportableError(f"{name} is a tensor that is {kind}: configs are tried on copies, of dense tensors")


def refuse_shortage(copied: Any, state: Any) -> None:
    """Refuse copies of tensors for which memory is short.

    Raises:
        UnportableError: it is.
    """
    storages = {_key(t): t for t in copied}.values()
    needed: Counter[torch.device] = Counter()
    for tensor in storages:
        needed[tensor.device] += COPIES * tensor.untyped_storage().nbytes()
    needed.update(_bytes(state))
    for device, size in needed.items():
        needed[device] = size + min(TEMPORARY_BYTES, 16 * size // COPIES)
    if short := _shortage(needed):
        raise UnportableError(f"configs are tried on copies of the arguments, which takes {short}")


def _bytes(tensors: Any) -> Counter[torch.device]:
    needed: Counter[torch.device] = Counter()
    for tensor in tensors:
        needed[tensor.device] += tensor.numel() * tensor.itemsize
    return needed


def _shortage(needed: Mapping[torch.device, int]) -> str:
    """By how much memory is short, in words; empty where it suffices."""
    for device, size in needed.items():
        if size > (free := _free_bytes(device)):
            return f"{size >> 20} MiB, and {free >> 20} MiB are free"
    return ""


def _free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device."""
    import torch

    if device.type != "cuda":
        return usable_memory_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + held)


def _key(tensor: torch.Tensor) -> int:
    """What tells storages apart: their address, or themselves where they are empty."""
    storage = tensor.untyped_storage()
    return int(storage.data_ptr() or -storage._cdata)


def _copied(group: Mapping[str, torch.Tensor]) -> Buffer:
    """A copy of the storage that some tensors lie in."""
    import torch

    first = next(iter(group.values()))
    storage = first.untyped_storage()
    content = torch.empty(0, dtype=torch.uint8, device=first.device).set_(storage).clone()
    if first.device.type == "cpu" and storage.is_pinned():
        content = content.pin_memory()
    return guarded_copy(
        content,
        name=", ".join(group),
        misalignment=storage.data_ptr() % ALIGNMENT,
        dtype=first.dtype,
        shape=tuple(first.shape) if first.is_contiguous() else None,
        alone=len(group) == 1,
    )


def _borrowed(name: str, tensor: torch.Tensor, *, to_zero: bool = False) -> Buffer:
    """The caller's own memory, to be put back, or to be filled with zeros."""
    memory = memory_of(tensor)
    return Buffer(
        name=name, memory=memory, pristine=memory.new_zeros(1).expand_as(memory) if to_zero else memory.clone()
    )


def _mapped(
    name: str,
    value: Any,
    f: Callable[[str, torch.Tensor], torch.Tensor],
    note: Callable[[str, Any], None] = _ignore,
) -> Any:
    """The same value with other tensors in it; containers are made anew, and so is what holds a tensor.

    Args:
        note: told each that can change, once it is filled.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return f(name, value)
    if isinstance(value, (list, deque, tuple, dict)):
        return _mapped_container(name, value, f, note)
    if isinstance(value, set):
        note(name, made := copy.copy(value))
        return made
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if isinstance(value, random.Random) or type(value).__module__.startswith("numpy.random"):
        return copy.deepcopy(value)
    if isinstance(value, Iterator):
        raise UnportableError(
            f"{name} is a {type(value).__name__}, which can be read once: give what it reads as a list"
        )
    if isinstance(getattr(value, "base", None), torch.Tensor) or _is_record(value):
        made = copy.copy(value)
        for attribute, held in _held(value).items():
            inner = name if attribute == "base" else f"{name}.{attribute}"
            object.__setattr__(made, attribute, _mapped(inner, held, f, note))
        note(name, made)
        return made
    if type(value).__module__ == "numpy" and hasattr(value, "__array_interface__") and value.ndim:
        raise UnportableError(f"{name} is a NumPy array: configs are tried on copies, of dense tensors")
    if callable(getattr(value, "data_ptr", None)):
        raise UnportableError(f"{name} is a {type(value).__name__}: configs are tried on copies, of dense tensors")
    return value


def _mapped_container(
    name: str, value: Any, f: Callable[[str, torch.Tensor], torch.Tensor], note: Callable[[str, Any], None]
) -> Any:
    """A container of the same class, made anew; a tuple in which nothing changes is kept."""
    if isinstance(value, dict):
        mapping = copy.copy(value)
        for key, v in value.items():
            mapping[key] = _mapped(f"{name}[{key!r}]", v, f, note)
        note(name, mapping)
        return mapping
    items = [_mapped(f"{name}[{i}]", v, f, note) for i, v in enumerate(value)]
    if isinstance(value, tuple):
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is list:
        note(name, items)
        return items
    container = copy.copy(value)
    container.clear()
    container.extend(items)
    note(name, container)
    return container


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _held(value: Any) -> dict[str, Any]:
    held = dict(getattr(value, "__dict__", {}))
    if _is_record(value):
        held.update({f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)})
    return held


_SOURCES: list[Any] = []


def _source() -> Any:
    """An autograd function whose result is a tensor of its own choosing: the end of a graph, and no leaf."""
    import torch

    if not _SOURCES:

        class Source(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, leaf: Any, held: list[Any]) -> Any:  # noqa: ARG004  # torch's signature
                return held[0]

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:  # noqa: ARG004
                return gradient, None

        _SOURCES.append(Source)
    return _SOURCES[0]
