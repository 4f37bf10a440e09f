"""What objects hold in their slots: noted before candidates run, and put back where a run has rebound it."""

from __future__ import annotations

import itertools
import operator
import types
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None)})  # what holds nothing else
_MOST = (
    100_000  # entries of a container that may change: a larger one is a table, and each look at it takes milliseconds
)
_DEPTH = 4  # of containers in a slot in which tensors are looked for
_NOTHING = object()  # in a slot that is empty


class _Holder(ABC):
    """One object with slots, which keys tell apart."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it held nothing."""

    @abstractmethod
    def rebound(self) -> Sequence[Hashable]:
        """The slots that hold something else now than they did."""

    @abstractmethod
    def value(self, key: Hashable) -> Any:
        """What a slot holds now; of a list, all of it."""

    @abstractmethod
    def put_back(self, keys: Sequence[Hashable]) -> None:
        """Have slots hold what they did."""

    def left(self, key: Hashable) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors in what a slot holds now, by name."""
        return _tensors(f"{self.name}.{label(key)}", self.value(key), _DEPTH)


class _Entries(_Holder):
    """A dict: of an object's attributes, or any other."""

    def __init__(self, name: str, held: dict[Any, Any]) -> None:
        super().__init__(name)
        self._held = held
        self._kind: Any = (
            OrderedDict if isinstance(held, OrderedDict) else dict
        )  # whose order is kept beside the entries
        self._before = dict.copy(held)

    @property
    def is_empty(self) -> bool:
        return not self._before

    def rebound(self) -> Sequence[Hashable]:
        held, before = self._held, self._before
        try:
            if len(held) == len(before) and _identical(dict.values(held), before.values()) and _identical(held, before):
                return ()
        except RuntimeError:  # another thread changes it
            pass
        now = dict.copy(held)
        return [k for k in {**before, **now} if not _same(now.get(k, _NOTHING), before.get(k, _NOTHING))]

    def value(self, key: Hashable) -> Any:
        return dict.get(self._held, key, _NOTHING)

    def put_back(self, keys: Sequence[Hashable]) -> None:
        for key in keys:
            if key in self._before:
                self._kind.__setitem__(self._held, key, self._before[key])
            else:
                self._kind.pop(self._held, key, None)
        if not _in_order(self._held, self._before):
            for key in self._before:
                if key in self._held:
                    self._kind.__setitem__(self._held, key, self._kind.pop(self._held, key))


class _Items(_Holder):
    """A list, a deque or a set, which is one slot."""

    def __init__(self, name: str, held: Any) -> None:
        super().__init__(name)
        self._held = held
        self._kind: Any = next(kind for kind in (list, deque, set) if isinstance(held, kind))
        self._before = self._items()

    @property
    def is_empty(self) -> bool:
        return not self._before

    def _items(self) -> tuple[Any, ...]:
        return tuple(self._kind.__iter__(self._held))

    def rebound(self) -> Sequence[Hashable]:
        before = self._before
        if len(self._held) == len(before):
            if self._kind is set and all(v in self._held for v in before):
                return ()
            if self._kind is not set and all(map(_same, self._items(), before)):
                return ()
        return (None,)

    def value(self, key: Hashable) -> Any:  # noqa: ARG002
        return self._items()

    def put_back(self, keys: Sequence[Hashable]) -> None:
        if keys:
            self._kind.clear(self._held)
            (self._kind.update if self._kind is set else self._kind.extend)(self._held, self._before)

    def left(self, key: Hashable) -> Iterator[tuple[str, torch.Tensor]]:
        pairs = itertools.zip_longest(self._before, self.value(key), fillvalue=_NOTHING)
        for i, (before, now) in enumerate(pairs):
            if before is not now:
                yield from _tensors(f"{self.name}[{i}]", now, _DEPTH)


class _Variables(_Holder):
    """Some of what a scope or an object holds by name."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        super().__init__(name)
        self._before = {name: self.value(name) for name in names}

    @property
    def is_empty(self) -> bool:
        return False

    def rebound(self) -> Sequence[Hashable]:
        return [name for name, before in self._before.items() if not _same(self.value(name), before)]

    def put_back(self, keys: Sequence[Any]) -> None:
        for name in keys:
            if self._before[name] is not _NOTHING:
                self._set(name, self._before[name])
            elif self.value(name) is not _NOTHING:
                self._delete(name)

    @abstractmethod
    def _set(self, name: str, value: Any) -> None: ...

    @abstractmethod
    def _delete(self, name: str) -> None: ...


class _Globals(_Variables):
    def __init__(self, names: Sequence[str], held: dict[str, Any]) -> None:
        self._held = held
        super().__init__("globals", names)

    def value(self, key: Any) -> Any:
        return self._held.get(key, _NOTHING)

    def _set(self, name: str, value: Any) -> None:
        self._held[name] = value

    def _delete(self, name: str) -> None:
        del self._held[name]


class _Cells(_Variables):
    """Of a closure."""

    def __init__(self, name: str, cells: Mapping[str, types.CellType]) -> None:
        self._cells = cells
        super().__init__(name, list(cells))

    def value(self, key: Any) -> Any:
        try:
            return self._cells[key].cell_contents
        except ValueError:
            return _NOTHING

    def _set(self, name: str, value: Any) -> None:
        self._cells[name].cell_contents = value

    def _delete(self, name: str) -> None:
        del self._cells[name].cell_contents


class _Members(_Variables):
    """What a class's `__slots__` name."""

    def __init__(self, name: str, held: object, members: Mapping[str, types.MemberDescriptorType]) -> None:
        self._held, self._members = held, members
        super().__init__(name, list(members))

    def value(self, key: Any) -> Any:
        try:
            return self._members[key].__get__(self._held)
        except AttributeError:
            return _NOTHING

    def _set(self, name: str, value: Any) -> None:
        self._members[name].__set__(self._held, value)

    def _delete(self, name: str) -> None:
        self._members[name].__delete__(self._held)


_Slot = tuple[_Holder, Hashable]


class Slots:
    """The slots that candidates reach, with what they held.

    Those that are state, which each call rebinds or on which what a call produces depends, are put back before every run.
    The others, such as a table that the first call makes, stay as a candidate has left them until the next is tried.
    """

    def __init__(self) -> None:
        self._holders: list[_Holder] = []
        self._own: set[_Slot] | None = (
            None  # in which candidates were seen to put something; None if all changes are theirs
        )
        self._state: dict[_Slot, None] = {}

    def __bool__(self) -> bool:
        return not all(holder.is_empty for holder in self._holders)

    @property
    def have_state(self) -> bool:
        """Whether a run leaves slots that the next must not start from."""
        return bool(self._state)

    def note_entries(self, name: str, held: Any) -> None:
        """Note a dict, unless it is a large table."""
        if isinstance(held, dict) and len(held) <= _MOST:
            self._holders.append(_Entries(name, held))

    def note_items(self, name: str, held: Any) -> None:
        """Note a list, a deque or a set, unless it is a large table."""
        if len(held) <= _MOST:
            self._holders.append(_Items(name, held))

    def note_globals(self, names: Sequence[str], held: dict[str, Any]) -> None:
        """Note variables of a module, there or not."""
        self._holders.append(_Globals(names, held))

    def note_cells(self, name: str, cells: Mapping[str, types.CellType]) -> None:
        """Note variables of a closure."""
        self._holders.append(_Cells(name, cells))

    def note_members(self, name: str, held: object, members: Mapping[str, types.MemberDescriptorType]) -> None:
        """Note what an object holds in what `__slots__` of its classes name."""
        self._holders.append(_Members(name, held, members))

    def share(self) -> None:
        """Have only slots count from now on that `note_own` tells of: other threads may rebind them, too."""
        self._own = set()

    def note_own(self, is_own: Callable[[torch.Tensor], bool]) -> None:
        """After a run: those slots are a candidate's that hold a tensor now which it has made."""
        if self._own is not None:
            self._own.update(slot for slot in self._changed() if any(is_own(t) for _, t in slot[0].left(slot[1])))

    def rebound(self) -> dict[_Slot, Any]:
        """The slots that candidates have rebound, with what they hold now."""
        return {(h, k): h.value(k) for h, k in self._changed() if self._own is None or (h, k) in self._own}

    def note_state(self, slots: Mapping[_Slot, Any]) -> None:
        """Those are state in which something else is by now."""
        for slot, value in self.rebound().items():
            if not _same(value, slots.get(slot, _NOTHING)):
                self._state[slot] = None

    def left(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors that a run has put in slots that are state, by name."""
        rebound = self.rebound() if self._state else {}
        return [pair for slot in self._state if slot in rebound for pair in slot[0].left(slot[1])]

    def restore(self) -> None:
        """Put back those that are state."""
        if self._state:
            _put_back(self._state)

    def put_back(self) -> None:
        """Put back all that candidates have rebound."""
        _put_back(self.rebound())

    def _changed(self) -> Iterator[_Slot]:
        return ((holder, key) for holder in self._holders for key in holder.rebound())


def _put_back(slots: Mapping[_Slot, Any]) -> None:
    keys: dict[_Holder, list[Hashable]] = {}
    for holder, key in slots:
        keys.setdefault(holder, []).append(key)
    for holder, of_it in keys.items():
        holder.put_back(of_it)


def _identical(a: Any, b: Any) -> bool:
    return all(map(operator.is_, a, b))


def _in_order(now: Mapping[Any, Any], before: Mapping[Any, Any]) -> bool:
    """Whether the keys that both have come in the same order."""
    return _identical([k for k in now if k in before], [k for k in before if k in now])


def _same(a: Any, b: Any) -> bool:
    """Whether two values are one object, equal ones that hold nothing, or tuples of such."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) in PLAIN and bool(a == b)


def _tensors(name: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, (list, tuple, deque)):
        for i, part in enumerate(value):
            yield from _tensors(f"{name}[{i}]", part, depth - 1)
    elif depth and isinstance(value, dict):
        for key, part in value.items():
            yield from _tensors(f"{name}.{label(key)}", part, depth - 1)


def label(key: Hashable) -> str:
    """A dict's key in words: a tensor by its address, for what it holds may be large, and on a device."""
    import torch

    return f"{type(key).__name__} at {id(key):#x}" if isinstance(key, torch.Tensor) else str(key)
