"""A property that is computed once, without a lock.

`functools.cached_property` of Python 3.10 and 3.11 holds one lock for all instances while it computes. A process that is
forked meanwhile by another thread would wait for it for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_Value = TypeVar("_Value")


class cached_property(Generic[_Value]):  # noqa: N801  # as the standard library's is called
    """Computed at the first use, and kept in the instance's `__dict__`. Threads that come together may each compute it."""

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[_Value]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> _Value: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> cached_property[_Value] | _Value:
        if instance is None:
            return self
        value: _Value = instance.__dict__.setdefault(self._name, self._compute(instance))
        return value
