"""One entry for each key that a front door has met: bounded, and safe for threads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ..core.config import Config
from ..core.fork_safe_lock import fork_safe_lock

if TYPE_CHECKING:
    from .online.learning import Learning

MAX_KEYS = 8192
"""Keys that a table holds, about 400 bytes each. A key that left is recalled from the store at its next call."""

MAX_DECISIONS = 64
"""Decisions that `.decisions` shows, about 600 bytes each; the store has them all."""


@dataclass(slots=True, kw_only=True)
class Provisional:
    """Why an entry is not final for its key.

    Attributes:
        why: why its call was not measured; the entry then serves unmeasured calls alone.
        look_at: from when on a call decides the key anew, by time.monotonic(); never, where nothing else says so.
        awaits: what there may be by then.
        pause_s: how long before `look_at` it was last decided.
    """

    why: str = ""
    look_at: float = float("inf")
    awaits: Literal["nothing", "another process", "a config that runs"] = "nothing"
    pause_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Entry:
    """What calls of one key run.

    Attributes:
        launcher: makes the call; its type is the front door's.
        awaits_measuring: whether a run that may measure is to decide anew; see `Decision.awaits_measuring`.
        provisional: None where it is final.
        fallback: the default's launcher and config, in case this one does not run; None once it has run.
        learning: what its calls teach, in mode `online`, until it is decided.
    """

    launcher: Any
    awaits_measuring: bool
    provisional: Provisional | None = None
    fallback: tuple[Any, Config] | None = None
    learning: Learning | None = None

    @property
    def is_final(self) -> bool:
        """Whether all calls of the key run its launcher, from now on."""
        return self.provisional is None and self.fallback is None

    def end_learning(self) -> None:
        """Learn no more from its calls: it leaves the table."""
        if self.learning is not None:
            self.learning.calls.end()


class KeyTable:
    """Entries by key, at most `max_keys`; those unused for longest leave.

    Two generations keep track of use. New entries, and old ones that are looked up, go to the recent generation. When that
    is half the table, it becomes the older generation, whose former entries leave. So a hit is one look-up.

    Args:
        forget_shortcuts: called, under the lock, whenever copies of entries that callers hold may be outdated.
    """

    def __init__(self, forget_shortcuts: Callable[[], None] = lambda: None, *, max_keys: int = MAX_KEYS) -> None:
        self.lock = fork_safe_lock()
        self.version = 0  # rises with every change from outside
        self._half = max(1, max_keys // 2)
        self._forget_shortcuts = forget_shortcuts
        self._recent: dict[Hashable, Entry] = {}
        self._older: dict[Hashable, Entry] = {}
        self._pinned: dict[Hashable, Entry] = {}

    def get(self, key: Hashable) -> Entry | None:
        """An entry by its key, which counts as a use; None where there is none."""
        entry = self._recent.get(key)
        if entry is None and self._pinned:
            entry = self._pinned.get(key)
        if entry is None and key in self._older:
            with self.lock:
                entry = self._older.pop(key, None) or self._recent.get(key)
                if entry is not None:
                    self._insert(key, entry)
        return entry

    def peek(self, key: Hashable) -> Entry | None:
        """An entry by its key, which counts as no use."""
        return self._pinned.get(key) or self._recent.get(key) or self._older.get(key)

    def is_pinned(self, key: Hashable) -> bool:
        """Whether the program itself put in an entry under this key."""
        return key in self._pinned

    def __contains__(self, key: object) -> bool:
        return key in self._recent or key in self._pinned or key in self._older

    def add(self, key: Hashable, entry: Entry, *, version: int) -> bool:
        """Add a decided entry; False, and nothing is added, where the program changed the table since `version`."""
        with self.lock:
            if version != self.version:
                return False
            self._insert(key, entry)
            return True

    def _insert(self, key: Hashable, entry: Entry) -> None:
        if len(self._recent) >= self._half and key not in self._recent:
            for left in self._older.values():
                left.end_learning()
            self._older, self._recent = self._recent, {}
            self._forget_shortcuts()
        self._recent[key] = entry
        self._older.pop(key, None)

    def pin(self, key: Hashable, entry: Entry) -> None:
        """Put in an entry of the program's own, which never leaves."""
        with self.lock:
            self.change()
            self._drop(key)
            self._pinned[key] = entry

    def update(self, other: KeyTable) -> None:
        """Take over another's entries, as they are now; not those that are learned from its calls."""
        with other.lock:
            self._recent, self._older, self._pinned = (
                {key: replace(entry) for key, entry in entries.items() if entry.learning is None}
                for entries in (other._recent, other._older, other._pinned)
            )

    def pop(self, key: Hashable) -> Entry | None:
        """Remove a key's entry and return it; None where there is none."""
        with self.lock:
            self.change()
            return self._drop(key)

    def _drop(self, key: Hashable) -> Entry | None:
        popped = [table.pop(key, None) for table in (self._pinned, self._recent, self._older)]
        entry = next((entry for entry in popped if entry is not None), None)
        if entry is not None:
            entry.end_learning()
        return entry

    def clear(self) -> None:
        """Remove all entries, those of the program too."""
        with self.lock:
            self.change()
            self.end_learning()
            for table in (self._pinned, self._recent, self._older):
                table.clear()

    def end_learning(self) -> None:
        """Learn no more from the calls of any key."""
        with self.lock:
            for table in (self._pinned, self._recent, self._older):
                for entry in table.values():
                    entry.end_learning()

    def change(self) -> None:
        """Have every next call look its key up, also one that is being decided now."""
        with self.lock:
            self.version += 1
            self._forget_shortcuts()

    def items(self) -> list[tuple[Hashable, Entry]]:
        """All keys with their entries, as they are now."""
        with self.lock:
            return [item for table in (self._pinned, self._older, self._recent) for item in table.items()]

    def __iter__(self) -> Iterator[Hashable]:
        return iter([key for key, _ in self.items()])

    def __len__(self) -> int:
        return len(self._pinned) + len(self._older) + len(self._recent)


class Recent(dict[Any, Any]):
    """A dictionary that keeps the keys put in last."""

    def __init__(self, size: int = MAX_DECISIONS) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        while len(self) > self._size:
            del self[next(iter(self))]
