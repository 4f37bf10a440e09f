"""Calls that a backward pass may make again, as `torch.utils.checkpoint` does: both must save the same tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from .key_table import Entry, KeyTable


@dataclass(slots=True)
class _HookedCalls:
    """What calls of a key ran under hooks, which the graphs of these calls hold: by identity, each with what tells of it."""

    entry: Entry
    hooks: dict[int, Any] = field(default_factory=dict)

    def add(self, hook: Callable[..., Any]) -> None:
        hooks, identity = self.hooks, id(hook)
        try:
            hooks[identity] = weakref.ref(hook, lambda _: hooks.pop(identity, None))
        except TypeError:  # a method of a class in C: it stays anyway
            hooks[identity] = hook


class RepeatedCalls:
    """The entries that calls under saved-tensor hooks run: all calls of a key the same, while a graph of one of them lives.

    Args:
        table: the entries of all calls. One that is final there stays what it is, so nothing needs to be kept of it.
    """

    def __init__(self, table: KeyTable) -> None:
        self.kept: dict[Hashable, _HookedCalls] = {}
        self._table = table

    def entry(self, key: Hashable, hook: Callable[..., Any], decided: Callable[[], Entry]) -> Entry:
        """The entry for a call under hooks, without learning.

        A hook that is a plain function knows no call: none is made again for it, and it lives as long as its module.

        Args:
            hook: gives back what the call saves; torch holds it for as long as that may be asked for.
            decided: gives the entry that the call would run without hooks.
        """
        if (entry := self._known(key, hook)) is not None:
            return entry
        if _is_plain(hook):
            return decided()
        entry = decided()
        with self._table.lock:  # under which entries change
            if (known := self._known(key, hook)) is not None:  # of another thread, which ran the default meanwhile
                return known
            if (final := self._table.peek(key)) is not None and final.is_final:
                return final
            kept = self.kept[key] = _HookedCalls(entry if entry.learning is None else replace(entry, learning=None))
            kept.add(hook)
            return kept.entry

    def _known(self, key: Hashable, hook: Callable[..., Any]) -> Entry | None:
        with self._table.lock:
            self.forget()
            if (kept := self.kept.get(key)) is None:
                return None
            if not _is_plain(hook):
                kept.add(hook)
            return kept.entry

    def forget(self) -> None:
        """Keep nothing of calls that cannot be made again any more."""
        with self._table.lock:
            for key in [key for key, kept in self.kept.items() if not kept.hooks]:
                del self.kept[key]


def _is_plain(hook: Callable[..., Any]) -> bool:
    return isinstance(hook, FunctionType) and hook.__closure__ is None
