"""The cached call: what stands between `kernel[grid](…)` and the launch once a key is decided.

A call of a given form (so many positional arguments, these keywords) gets a function of its own, written out once: it
makes the key from the arguments themselves, looks the config up and launches with its keywords. No text is made, no
dictionary merged, nothing but `best_config` is kept between calls, so that threads cannot mix.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from triton import knobs
from triton.runtime.driver import driver

from ..key_table import Entry, KeyTable

_FILE = f"{__file__}:dispatch"  # a file of this package, as far as Dynamo can tell, which leaves those alone


class Launch(NamedTuple):
    """A config as calls run it: the keywords that it adds to a launch, and its attributes when these were made.

    Triton lets programs change a config that was decided; one whose attributes are no longer these is read once more.
    """

    config: Any
    keywords: dict[str, Any]
    state: dict[str, Any]
    hooked: bool

    @classmethod
    def of(cls, config: Any) -> Launch:
        return cls(
            config, config.all_kwargs(), {**vars(config), "kwargs": dict(config.kwargs)}, config.pre_hook is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Calls of one form: so many positional arguments, and these keywords in this order."""

    launch: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    key: Callable[[tuple[Any, ...], dict[str, Any]], Hashable]
    table: dict[Hashable, Launch]  # its own: the same values under other names are another key
    tensors: frozenset[str]  # arguments that had a dtype when it was made
    mixed: frozenset[str]  # and those that have one in some calls only


class DecisionCache(MutableMapping[Any, Any]):
    """The autotuner's `cache`, a view of its table: from tuning key to config. What a program puts in stays.

    A key may be given as Triton has it, without the device: that is the current one. Copied, pickled or merged with
    another it is a plain dictionary.
    """

    def __init__(self, table: KeyTable) -> None:
        self._table = table

    def __getitem__(self, key: Any) -> Any:
        entry = self._table.peek(self._as_filed(key))
        if entry is None or entry.provisional is not None:
            raise KeyError(key)
        return entry.launcher

    def __setitem__(self, key: Any, config: Any) -> None:
        self._table.pin(key, Entry(launcher=config, measured=True))

    def __delitem__(self, key: Any) -> None:
        if self._table.pop(self._as_filed(key)) is None:
            raise KeyError(key)

    def _as_filed(self, key: Any) -> Any:
        if isinstance(key, tuple) and self._table.peek(key) is None:
            return (*key, current_device())
        return key

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, entry in self._table.items() if entry.provisional is None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        self._table.clear()

    def copy(self) -> dict[Any, Any]:
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


def current_device() -> Any:
    """The device a launch would run on; None in the interpreter and where no driver is active."""
    if knobs.runtime.interpret:
        return None
    try:
        return driver.active.get_current_device()
    except Exception:  # no driver: Triton says so itself when something is launched
        return None


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
        tuner: read for `fn`, `_configs`, `_miss` and `_launch`, written to at `best_config`.
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
    # Of a call's arguments, those that its key is made of; all are handed on as they came.
    lines = [f"{''.join(f'{n}, ' for n in positional)}= __args"] if positional and not single else []
    lines += [f"{n} = __kwargs[{n!r}]" for n in keywords if n in arg_names and not single]
    unpacked = "\n    ".join(lines)
    more_configs = " or len(__tuner._configs) != 1" if single else ""
    text = f"""
def key(__args, __kwargs):
    {unpacked}
    return {key}

def launch(__args, __kwargs):
    {unpacked}
    try:
        __launch = __get({key})
    except (AttributeError, TypeError):
        __launch = None
    if __launch is None:
        return __tuner._miss(__args, __kwargs)
    __config, __keywords, __state, __hooked = __launch
    if __config.__dict__ != __state{more_configs}:
        return __tuner._miss(__args, __kwargs)
    __tuner.best_config = __config
    if __hooked:
        return __tuner._launch(__config, __args, __kwargs)
    return __tuner.fn.run(*__args, **__kwargs, **__keywords)
"""
    table: dict[Hashable, Launch] = {}
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
