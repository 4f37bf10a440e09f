"""What objects hold in their slots: noted before candidates run, and put back where each run rebinds a tensor."""

from __future__ import annotations

import itertools
import operator
import types
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

_NUMBERS = (int, float)  # and no flags
PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None)})  # what holds nothing else
_MOST = 100_000  # entries of a container that may change: to look at a larger one, a table, takes milliseconds
# Entries of a container that is an argument, and such containers: they are looked at before each timed run.
_MOST_GIVEN = 10_000
_DEPTH = 4  # of containers in a slot in which tensors are looked for
_MIN_ADDRESS = 1 << 32  # of objects on a 64-bit machine, which dicts by `id` have for keys
_NOTHING = object()  # in a slot that is empty

Whole = bool | Literal["numbers"]
"""How much of an object is state: nothing but what holds tensors, all, or numbers and what holds tensors."""


class _Holder(ABC):
    """One object with slots, which keys tell apart.

    Args:
        owner: the object whose slots these are, where there are more of its; itself if not given.
        whole: whether all that candidates rebind in it is state, whatever it is; or numbers alone, where it is "numbers".
        compared: whether what candidates leave in it is a part of their outputs.
    """

    is_state_once = True  # what one call alone rebinds may be state: results depend on it

    def __init__(self, name: str, *, owner: object = None, whole: Whole = False, compared: bool = False) -> None:
        self.name = name
        self._owner = owner
        self.whole, self.compared = whole, compared

    @property
    def owner(self) -> object:
        """Of which object these are slots."""
        return self if self._owner is None else self._owner

    @abstractmethod
    def rebound(self) -> Sequence[Hashable]:
        """The slots that hold something else now than they did."""

    @abstractmethod
    def before(self, key: Hashable) -> Any:
        """What a slot held."""

    @abstractmethod
    def value(self, key: Hashable) -> Any:
        """What a slot holds now; of a list, all of it."""

    @abstractmethod
    def put_back(self, keys: Sequence[Hashable]) -> None:
        """Have slots hold what they did."""

    def note_own(self, key: Hashable, is_own: Callable[[torch.Tensor], bool]) -> bool:
        """Whether a slot holds a tensor that a candidate has made."""
        return any(is_own(tensor) for _, tensor in self.left(key))

    def is_state(self, key: Hashable) -> bool:
        """Whether a slot that each call rebinds is state."""
        if self.whole == "numbers" and not (_is_numeric(self.value(key)) and _is_numeric(self.before(key))):
            return self.holds_tensors(key)
        return bool(self.whole) or self.holds_tensors(key)

    def holds_tensors(self, key: Hashable) -> bool:
        """Whether a slot holds tensors, or did."""
        return any(True for value in (self.value(key), self.before(key)) for _ in _tensors_in(value))

    def is_number(self, key: Hashable) -> bool:
        """Whether a slot held a number, and holds one: a position, say."""
        return type(self.value(key)) in _NUMBERS and type(self.before(key)) in _NUMBERS

    def note_made(self, key: Hashable) -> None:  # noqa: B027
        """What candidates make and put in a slot is state."""

    def left(self, key: Hashable) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors in what a slot holds now, by name."""
        return _tensors(f"{self.name}.{label(key)}", self.value(key), _DEPTH)


class _Entries(_Holder):
    """A dict: of an object's attributes, or any other."""

    def __init__(self, name: str, held: dict[Any, Any], *, owner: object, whole: Whole, compared: bool) -> None:
        super().__init__(name, owner=owner, whole=whole, compared=compared)
        self._held = held
        # An ordered one keeps its order beside its entries.
        self._kind: Any = OrderedDict if isinstance(held, OrderedDict) else dict
        self._before = dict.copy(held)

    def rebound(self) -> Sequence[Hashable]:
        held, before = self._held, self._before
        try:
            unchanged = len(held) == len(before) and _identical(dict.values(held), before.values())
            if unchanged and _identical(dict.keys(held), before):
                return ()
        except RuntimeError:  # another thread changes it
            pass
        now = dict.copy(held)
        return [k for k in {**before, **now} if not _same(now.get(k, _NOTHING), before.get(k, _NOTHING))]

    def before(self, key: Hashable) -> Any:
        return self._before.get(key, _NOTHING)

    def value(self, key: Hashable) -> Any:
        return dict.get(self._held, key, _NOTHING)

    def put_back(self, keys: Sequence[Hashable]) -> None:
        for key in keys:
            if key in self._before:
                self._kind.__setitem__(self._held, key, self._before[key])
            else:
                self._kind.pop(self._held, key, None)
        if not _in_order(dict.copy(self._held), self._before):
            for key in self._before:
                if dict.__contains__(self._held, key):
                    self._kind.__setitem__(self._held, key, self._kind.pop(self._held, key))


class _Items(_Holder):
    """A list, a deque or a set, which is one slot; what is added to it and holds no tensor stays, unless all is state."""

    def __init__(self, name: str, held: Any, *, whole: Whole) -> None:
        super().__init__(name, whole=whole)
        self._held = held
        self._kind: Any = next(kind for kind in (list, deque, set) if isinstance(held, kind))
        self._before = self._items()

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

    def before(self, key: Hashable) -> Any:  # noqa: ARG002
        return self._before

    def value(self, key: Hashable) -> Any:  # noqa: ARG002
        return self._items()

    def put_back(self, keys: Sequence[Hashable]) -> None:
        if not keys:
            return
        known = {id(value) for value in self._before}
        added = [] if self.whole else [v for v in self._items() if id(v) not in known]
        others = [v for v in added if not any(True for _ in _tensors_in(v))]
        if self._kind is list:
            list.__setitem__(self._held, slice(None), [*self._before, *others])
        else:
            self._kind.clear(self._held)
            (self._kind.update if self._kind is set else self._kind.extend)(self._held, [*self._before, *others])

    def note_made(self, key: Hashable) -> None:  # noqa: ARG002
        self.whole = True

    def left(self, key: Hashable) -> Iterator[tuple[str, torch.Tensor]]:
        pairs = itertools.zip_longest(self._before, self.value(key), fillvalue=_NOTHING)
        for i, (before, now) in enumerate(pairs):
            if before is not now:
                yield from _tensors(f"{self.name}[{i}]", now, _DEPTH)


class _Variables(_Holder):
    """Some of what a scope or an object holds by name."""

    def __init__(self, name: str, names: Sequence[str], *, owner: object = None) -> None:
        super().__init__(name, owner=owner)
        self._before = {name: self.value(name) for name in names}

    def rebound(self) -> Sequence[Hashable]:
        return [name for name, before in self._before.items() if not _same(self.value(name), before)]

    def before(self, key: Any) -> Any:
        return self._before[key]

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
        super().__init__(name, list(members), owner=held)

    def value(self, key: Any) -> Any:
        try:
            return self._members[key].__get__(self._held)
        except AttributeError:
            return _NOTHING

    def _set(self, name: str, value: Any) -> None:
        self._members[name].__set__(self._held, value)

    def _delete(self, name: str) -> None:
        self._members[name].__delete__(self._held)


class _Storages(_Holder):
    """Of tensors: what assignments to their `data` exchange."""

    is_state_once = False  # a weight is packed by the first call, and a flag says so

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__("storage", compared=True)
        self._tensors = tensors
        self._data = {name: tensor.data for name, tensor in tensors.items()}
        self._before = {name: _place(tensor) for name, tensor in tensors.items()}

    def rebound(self) -> Sequence[Hashable]:
        return [name for name in self._tensors if not _same(self.value(name), self._before[name])]

    def before(self, key: Any) -> Any:
        return self._before[key]

    def value(self, key: Any) -> Any:
        return _place(self._tensors[key])

    def put_back(self, keys: Sequence[Any]) -> None:
        for name in keys:
            self._tensors[name].data = self._data[name]

    def note_own(self, key: Any, is_own: Callable[[torch.Tensor], bool]) -> bool:
        return is_own(self._tensors[key])

    def holds_tensors(self, key: Hashable) -> bool:  # noqa: ARG002
        return True

    def left(self, key: Any) -> Iterator[tuple[str, torch.Tensor]]:
        yield key, self._tensors[key].data.contiguous().view(-1)  # as of a buffer that is written in place


Slot = tuple[_Holder, Hashable]
"""A holder, and which of its slots."""


class Slots:
    """The slots that candidates reach, with what they held.

    A slot is state if it holds a tensor, and every call rebinds it or results depend on it. Numbers beside such a slot
    that every call changes, such as a position, are state too, and so are caches that the first call makes and later ones
    add to. State is put back before every run. All else stays as candidates leave it: tables that the first call makes,
    flags that say that it did, files and handles.

    Args:
        look_below: the tensors that a value holds and that were not reached before.
    """

    def __init__(self, look_below: Callable[[Any], Iterable[torch.Tensor]] = lambda _: ()) -> None:
        self._look_below = look_below
        self._holders: list[_Holder] = []
        self._own: set[Slot] | None = None  # that candidates were seen to rebind; None if all changes are theirs
        self._state: dict[Slot, None] = {}

    def __bool__(self) -> bool:
        return bool(self._holders)

    @property
    def have_state(self) -> bool:
        """Whether a run leaves slots that the next must not start from."""
        return bool(self._state)

    def note_entries(
        self, name: str, held: Any, *, owner: object = None, whole: Whole = False, compared: bool = False
    ) -> None:
        """Note a dict, an object's or another, unless it is a large table."""
        if isinstance(held, dict) and len(held) <= _MOST:
            self._holders.append(_Entries(name, held, owner=owner, whole=whole, compared=compared))

    def note_items(self, name: str, held: Any, *, whole: Whole = False) -> None:
        """Note a list, a deque or a set, unless it is a large table."""
        if len(held) <= _MOST:
            self._holders.append(_Items(name, held, whole=whole))

    def note_globals(self, names: Sequence[str], held: dict[str, Any]) -> None:
        """Note variables of a module, there or not."""
        self._holders.append(_Globals(names, held))

    def note_cells(self, name: str, cells: Mapping[str, types.CellType]) -> None:
        """Note variables of a closure."""
        self._holders.append(_Cells(name, cells))

    def note_members(self, name: str, held: object, members: Mapping[str, types.MemberDescriptorType]) -> None:
        """Note what an object holds in what `__slots__` of its classes name."""
        self._holders.append(_Members(name, held, members))

    def note_storages(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Note where tensors lie."""
        if tensors:
            self._holders.append(_Storages(tensors))

    def share(self) -> None:
        """Have only slots count from now on that `note_own` tells of: other threads may rebind them, too."""
        self._own = set()

    def note_own(self, is_own: Callable[[torch.Tensor], bool]) -> None:
        """After a run: those slots are a candidate's that hold a tensor now which it was given, or has made or written.

        So are numbers beside them, and slots of the same object that hold what such a slot held before: two were swapped.
        """
        if self._own is None:
            return
        changed = list(self._changed())
        self._own.update(
            (holder, key)
            for holder, key in changed
            if holder.whole or holder.note_own(key, is_own) or any(map(is_own, self._look_below(holder.value(key))))
        )
        holders = {holder for holder, _ in self._own}
        before: dict[int, set[int]] = {}
        for holder, key in self._own:
            before.setdefault(id(holder.owner), set()).update(map(id, _tensors_in(holder.before(key))))
        for holder, key in changed:
            were = before.get(id(holder.owner), set())
            is_swapped = any(id(tensor) in were for tensor in _tensors_in(holder.value(key)))
            if is_swapped or (holder in holders and holder.is_number(key)):
                self._own.add((holder, key))

    def rebound(self) -> dict[Slot, Any]:
        """The slots that candidates have rebound, with what they hold now."""
        return {(h, k): h.value(k) for h, k in self._changed() if self._own is None or (h, k) in self._own}

    def sizes(self, slots: Iterable[Slot]) -> dict[Slot, int]:
        """How many elements the tensors have that lie below slots now, of those that were not reached at first."""
        return {slot: sum(tensor.numel() for tensor in self._look_below(slot[0].value(slot[1]))) for slot in slots}

    def grown(self, sizes: Mapping[Slot, int]) -> list[Slot]:
        """The slots below which there are more elements now."""
        return [slot for slot, size in self.sizes(sizes).items() if size > sizes[slot]]

    def note_state(self, first: Mapping[Slot, Any], grown: Sequence[Slot] = ()) -> None:
        """After a second run: those are state that it has rebound, too, after the first left this in them.

        Args:
            grown: slots for which the first run has made something that the second has added tensors to: state, too.
        """
        slots = {**first, **self.rebound()}
        again = [(h, k) for h, k in slots if h.whole or not _same(h.value(k), first.get((h, k), h.before(k)))]
        if not first:
            again = [(h, k) for h, k in again if h.is_state_once]
        state = [(holder, key) for holder, key in again if holder.is_state(key)]
        for holder, key in grown:
            holder.note_made(key)
        holders = {holder for holder, _ in state}
        state += [(holder, key) for holder, key in again if holder in holders and holder.is_number(key)]
        self._state.update(dict.fromkeys([*state, *grown]))

    def left(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors that a run has put in modules' buffers that are state, by name."""
        rebound = self.rebound() if self._state else {}
        return [pair for slot in self._state if slot[0].compared and slot in rebound for pair in slot[0].left(slot[1])]

    def restore(self) -> None:
        """Put back those that are state."""
        if self._state:
            keys: dict[_Holder, list[Hashable]] = {}
            for holder, key in self._state:
                keys.setdefault(holder, []).append(key)
            for holder, of_it in keys.items():
                holder.put_back(of_it)

    def _changed(self) -> Iterator[Slot]:
        return ((holder, key) for holder in self._holders for key in holder.rebound())


class Contents:
    """What containers hold that a candidate is given: entries and items that it replaces or takes away are put back.

    What it adds to a dict or an object, or puts where nothing was, stays: it may be a cache.
    """

    def __init__(self) -> None:
        self._holders: list[_Holder] = []

    def note(self, name: str, held: Any) -> None:
        """Note a list, a deque, a set, a dict, or an object's attributes, unless there are very many of them."""
        if len(self._holders) == _MOST_GIVEN:
            return
        if isinstance(held, (list, deque, set)):
            if len(held) <= _MOST_GIVEN:
                self._holders.append(_Items(name, held, whole=True))
            return
        for entries in (held, getattr(held, "__dict__", None)):
            if isinstance(entries, dict) and len(entries) <= _MOST_GIVEN:
                self._holders.append(_Entries(name, entries, owner=held, whole=True, compared=False))

    @property
    def changed(self) -> bool:
        """Whether a run has left something else in them that is put back."""
        return any(_to_put_back(holder) for holder in self._holders)

    def put_back(self) -> None:
        """Have them hold what they did, and what was added to a dict or an object."""
        for holder in self._holders:
            if keys := _to_put_back(holder):
                holder.put_back(keys)


def _to_put_back(holder: _Holder) -> list[Hashable]:
    before = {key: holder.before(key) for key in holder.rebound()}
    return [key for key, value in before.items() if value is not None and value is not _NOTHING]


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor lies and how; the storage is held, so that its address is not given away."""
    layout = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return tensor.untyped_storage(), tensor.dtype, layout


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


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    return (tensor for _, tensor in _tensors("", value, _DEPTH))


def _tensors(name: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in containers, and in dataclasses of tensors, to some depth, by name."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, (list, tuple, deque)):
        for i, part in enumerate(value):
            yield from _tensors(f"{name}[{i}]", part, depth - 1)
    elif depth and isinstance(value, dict):
        for i, (key, part) in enumerate(value.items()):
            yield from _tensors(f"{name}.{label(key, i)}", part, depth - 1)
    elif depth and is_dataclass(type(value)) and _is_data(parts := _fields(value)):
        for key, part in parts.items():
            yield from _tensors(f"{name}.{key}", part, depth - 1)


def _is_numeric(value: Any) -> bool:
    return type(value) in _NUMBERS or (type(value) in (list, tuple) and all(map(_is_numeric, value)))


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name, None) for field in fields(value)}


def _is_data(parts: Mapping[str, Any]) -> bool:
    """Whether an object holds tensors and nothing else: no handle, and no number that stands for one."""
    import torch

    return all(part is None or isinstance(part, (torch.Tensor, list, tuple)) for part in parts.values())


def label(key: Hashable, position: int = 0) -> str:
    """A dict's key in words, the same in every process: by its position where its own words may hold an address."""
    import torch

    parts = key if type(key) is tuple else (key,)
    told = (*PLAIN, torch.dtype, torch.device, Enum)
    if all(isinstance(part, told) and not (isinstance(part, int) and part >= _MIN_ADDRESS) for part in parts):
        return str(key)
    return f"{type(key).__name__} {position}"
