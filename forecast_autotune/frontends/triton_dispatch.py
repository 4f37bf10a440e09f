"""The cached call: what stands between `kernel[grid](…)` and the launch once a key is decided.

A call of a given form (so many positional arguments, these keywords) gets a function of its own, written out once: it
makes the key from the arguments themselves, looks the decision up and launches with the config's keywords. No text is
made, no dictionary merged, nothing but `best_config` is kept between calls, so that threads cannot mix.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from triton.runtime.driver import driver

_FILE = f"{__file__}:dispatch"  # a file of this package, as far as Dynamo can tell, which leaves those alone
Entry = tuple[Any, dict[str, Any], Callable[[dict[str, Any]], Any] | None]
"""The config that calls of one key run, the keywords that it adds to the launch, and its hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Calls of one form: so many positional arguments, and these keywords in this order."""

    launch: Callable[..., Any]
    key: Callable[..., Hashable]
    table: dict[Hashable, Entry]  # its own: the same values under other names are another key
    tensors: frozenset[str]  # arguments that had a dtype when it was made
    mixed: frozenset[str]  # and those that have one in some calls only


class DecisionCache(dict[Any, Any]):
    """The autotuner's `cache`, from tuning key to config; who changes it from outside makes the next calls look again."""

    def __init__(
        self,
        forget: Callable[[], None],
        entries: Mapping[Any, Any] | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__(entries or {})
        self._forget = forget
        self._lock = lock or nullcontext()  # held over forgetting and changing, so that no call falls in between

    def add(self, key: Any, config: Any) -> None:
        """Add a decision for a key that no call has been sent past this cache with."""
        super().__setitem__(key, config)

    def __setitem__(self, key: Any, config: Any) -> None:
        with self._lock:
            self._forget()
            super().__setitem__(key, config)

    def __delitem__(self, key: Any) -> None:
        with self._lock:
            self._forget()
            super().__delitem__(key)

    def clear(self) -> None:
        with self._lock:
            self._forget()
            super().clear()

    def pop(self, *args: Any) -> Any:
        with self._lock:
            self._forget()
            return super().pop(*args)

    def popitem(self) -> Any:
        with self._lock:
            self._forget()
            return super().popitem()

    def update(self, *args: Any, **kwargs: Any) -> None:
        with self._lock:
            self._forget()
            super().update(*args, **kwargs)

    def __ior__(self, entries: Any) -> DecisionCache:  # type: ignore[misc]
        self.update(entries)
        return self


def call_form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells one form of call from another."""
    return (len(args), *kwargs)


def make_form(
    tuner: Any,
    form: tuple[Any, ...],
    *,
    arg_names: Sequence[str],
    tensors: frozenset[str],
    mixed: frozenset[str] = frozenset(),
    key_names: frozenset[str],
    buckets: Mapping[str, Callable[[Any], Any]],
    on_device: bool,
) -> Form | None:
    """Write out the function for calls of one form; None if a name in it cannot be written.

    An argument in `tensors` counts by its dtype, one in `key_names` by its value (by its bucket where it has one), every
    other by its class: that decides whether it has a dtype, so a call with a tensor where there was none has another key.
    A tuner with one config has nothing to look up, and its calls no key.

    Args:
        tuner: read for `fn`, `_configs` and `_miss`, written to at `best_config`.
        on_device: whether the current device is part of the key.
    """
    count, keywords = form[0], form[1:]
    positional = arg_names[:count]
    names = (*positional, *keywords)
    if (
        count > len(arg_names)
        or not all(n.isidentifier() and not keyword.iskeyword(n) and n[:2] != "__" for n in names)
        or len(set(names)) < len(names)
    ):
        return None
    parts = ["__driver.active.get_current_device()"] if on_device else []
    for name in names:
        if name in arg_names:
            value = f"__bucket_{name}({name})" if name in buckets else name
            if name in key_names:
                parts.append(value)
            if name in mixed:
                parts.append(f"getattr({name}, 'dtype', {name}.__class__)")
            elif name in tensors:
                parts.append(f"{name}.dtype")
            elif name not in key_names or name in buckets:
                parts.append(f"{name}.__class__")
    single = len(tuner._configs) == 1
    key = f"({''.join(f'{part}, ' for part in parts if not single)})"
    # Positional parameters may also be given by name, which is another form; keywords are taken as such.
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    passed = ", ".join([*positional, *(f"{n}={n}" for n in keywords)])
    named = ", ".join([*(f"{n!r}: {n}" for n in names), "**__found[1]"])
    text = f"""
def key({parameters}):
    return {key}

def launch({parameters}):
    try:
        __found = __get({key})
    except (AttributeError, TypeError):
        __found = None
    if __found is None{" or len(__tuner._configs) != 1" if single else ""}:
        return __tuner._miss({passed})
    __tuner.best_config = __found[0]
    if __found[2] is not None:
        __found[2]({{{named}}})
    return __tuner.fn.run({", ".join([*filter(None, [passed]), "**__found[1]"])})
"""
    table: dict[Hashable, Entry] = {}
    scope: dict[str, Any] = {f"__bucket_{name}": bucket for name, bucket in buckets.items()}
    scope.update(__tuner=tuner, __get=table.get, __driver=driver)
    # The text above holds nothing but identifiers checked here.
    exec(compile(text, _FILE, "exec"), scope)  # noqa: S102
    return Form(launch=scope["launch"], key=scope["key"], table=table, tensors=tensors, mixed=mixed)


def power_of_two(value: Any) -> Any:
    """The bucket `pow2`: the next power of two, at least 1; a value that is no finite number is a bucket of its own."""
    try:
        return 1 if value <= 1 else 1 << (math.ceil(value) - 1).bit_length()
    except (TypeError, ValueError, OverflowError):
        return value
