"""Tuning keys by Triton's rule, and the tuner's `cache`: from such a key to the config decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from sys import intern
from typing import Any

from ..key_table import Entry, KeyTable
from .target import current_device


def tuning_key(tuner: Any, call: Mapping[str, Any]) -> tuple[Any, ...]:
    """A call's key by Triton's rule, values of `key` and then dtypes of arguments; with the device at its end.

    Args:
        tuner: read for `keys` and `buckets`.
        call: the kernel's arguments by name, in the order they were given.
    """
    key = [tuner.buckets[n](call[n]) if n in tuner.buckets else call[n] for n in tuner.keys if n in call]
    key += [intern(str(value.dtype)) for value in call.values() if hasattr(value, "dtype")]
    device = current_device()
    return tuple(key) if device is None else (*key, device)


class DecisionCache(MutableMapping[Any, Any]):
    """A view of the tuner's table: tuning key to decided config. An entry that a program puts in never leaves.

    A key may lack the device, as Triton's do: the current one is meant. A copy, a pickle or a merge of it is a plain
    dictionary.
    """

    def __init__(self, table: KeyTable) -> None:
        self._table = table

    def __getitem__(self, key: Any) -> Any:
        entry = self._table.peek(self._with_device(key))
        if entry is None or entry.provisional is not None:
            raise KeyError(key)
        return entry.launcher

    def __setitem__(self, key: Any, config: Any) -> None:
        self._table.pin(key, Entry(launcher=config, measured=True))

    def __delitem__(self, key: Any) -> None:
        if self._table.pop(self._with_device(key)) is None:
            raise KeyError(key)

    def _with_device(self, key: Any) -> Any:
        if isinstance(key, tuple) and self._table.peek(key) is None:
            return (*key, current_device())
        return key

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, entry in self._table.items() if entry.provisional is None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Forget every decision, and what the program put in."""
        self._table.clear()

    def by_tritons_key(self) -> dict[Any, Any]:
        """A plain dictionary under the keys that Triton's own tuner makes, which have no device."""
        table, on_device = self._table, current_device() is not None
        return {
            key if table.is_pinned(key) or not on_device or not isinstance(key, tuple) else key[:-1]: entry.launcher
            for key, entry in table.items()
            if entry.provisional is None
        }

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
