"""The keys of a tuner's table, by Triton's rule, and the tuner's `cache`: from such a key to the config decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from sys import intern
from typing import Any

from ..key_table import Entry, KeyTable
from .target import current_device


def table_key(tuner: Any, call: Mapping[str, Any]) -> tuple[Any, ...]:
    """A call's key by Triton's rule, values of `key` and then dtypes of arguments; with the device, or None, at its end.

    Args:
        tuner: read for `keys` and `buckets`.
        call: the kernel's arguments by name, in the order they were given.
    """
    key = [tuner.buckets[n](call[n]) if n in tuner.buckets else call[n] for n in tuner.keys or () if n in call]
    key += [intern(str(value.dtype)) for value in call.values() if hasattr(value, "dtype")]
    return (*key, current_device())


class DecisionCache(MutableMapping[Any, Any]):
    """A view of the tuner's table: key to decided config. An entry that a program puts in never leaves.

    Its keys are Triton's where all is decided for one device; else the device stands at their end. A key may lack it in
    any case: the current one is meant, or the only one. A copy, a pickle or a merge of it is a plain dictionary.
    """

    def __init__(self, table: KeyTable) -> None:
        self._table = table

    def __getitem__(self, key: Any) -> Any:
        entry = self._table.peek(self.key_in_table(key))
        if entry is None or entry.provisional is not None:
            raise KeyError(key)
        return entry.launcher

    def __setitem__(self, key: Any, config: Any) -> None:
        with self._table.lock:
            if isinstance(key, tuple):
                self._table.pop((*key, current_device()))
            self._table.pin(key, Entry(launcher=config, awaits_measuring=False))

    def __delitem__(self, key: Any) -> None:
        if self._table.pop(self.key_in_table(key)) is None:
            raise KeyError(key)

    def key_in_table(self, key: Any) -> Any:
        """A key as the table and `decisions` have it, with the device at its end."""
        if not isinstance(key, tuple) or self._table.peek(key) is not None:
            return key
        on_current = (*key, current_device())
        if self._table.peek(on_current) is None and len(devices := self._devices(self._decided())) == 1:
            return (*key, *devices)
        return on_current

    def _decided(self) -> list[tuple[Any, Entry]]:
        return [(key, entry) for key, entry in self._table.items() if entry.provisional is None]

    def _devices(self, decided: Sequence[tuple[Any, Entry]]) -> set[Any]:
        """Those that something is decided for, beside what the program put in."""
        return {key[-1] for key, _ in decided if not self._table.is_pinned(key)}

    def __iter__(self) -> Iterator[Any]:
        decided = self._decided()
        if len(self._devices(decided)) == 1:
            return iter(self._by_tritons_key(decided))
        return iter([key for key, _ in decided])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Forget every decision, and what the program put in."""
        self._table.clear()

    def by_tritons_key(self) -> dict[Any, Any]:
        """A plain dictionary under the keys that Triton's own tuner makes, which have no device."""
        return self._by_tritons_key(self._decided())

    def _by_tritons_key(self, decided: Sequence[tuple[Any, Entry]]) -> dict[Any, Any]:
        configs: dict[Any, Any] = {}
        for key, entry in decided:  # first what the program put in
            configs.setdefault(key if self._table.is_pinned(key) else key[:-1], entry.launcher)
        return configs

    def copy(self) -> dict[Any, Any]:
        """A plain dictionary of the configs decided so far."""
        return dict(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    def __or__(self, entries: Any) -> dict[Any, Any]:
        return self.copy() | dict(entries)

    def __ror__(self, entries: Any) -> dict[Any, Any]:
        return dict(entries) | self.copy()

    def __ior__(self, entries: Any) -> DecisionCache:
        self.update(entries)
        return self

    def __repr__(self) -> str:
        return repr(dict(self))
