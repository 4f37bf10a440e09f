"""The cached call: what stands between `kernel[grid](…)` and the launch once a key is decided.

A call of a given form (so many positional arguments, these keywords) gets a function of its own, written out once: it
makes the key from the arguments themselves, looks the decision up and launches with the config's keywords. No text is
made, no dictionary merged, nothing but `best_config` is kept between calls, so that threads cannot mix.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

Table = dict[Hashable, tuple[Any, dict[str, Any], Callable[[dict[str, Any]], Any] | None]]
"""From a call's key to the config it runs, the keywords that it adds to the launch, and its hook."""


class DecisionCache(dict[Any, Any]):
    """The autotuner's `cache`, from tuning key to config; whoever changes it from outside makes the next calls look again."""

    def __init__(self, forget: Callable[[], None], entries: Mapping[Any, Any] | None = None) -> None:
        super().__init__(entries or {})
        self._forget = forget

    def add(self, key: Any, config: Any) -> None:
        """Add a decision that the table below already follows."""
        super().__setitem__(key, config)

    def __setitem__(self, key: Any, config: Any) -> None:
        self._forget()
        super().__setitem__(key, config)

    def __delitem__(self, key: Any) -> None:
        self._forget()
        super().__delitem__(key)

    def clear(self) -> None:
        self._forget()
        super().clear()

    def pop(self, *args: Any) -> Any:
        self._forget()
        return super().pop(*args)

    def popitem(self) -> Any:
        self._forget()
        return super().popitem()

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super().update(*args, **kwargs)


def call_form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells one form of call from another."""
    return (len(args), *kwargs)


def make_dispatch(
    *,
    arg_names: Sequence[str],
    form: tuple[Any, ...],
    tensors: frozenset[str],
    key_names: frozenset[str],
    buckets: Mapping[str, Callable[[Any], Any]],
) -> tuple[Callable[..., Any], Callable[..., Hashable]] | None:
    """The function for calls of one form, and the one that makes their keys; None if a name cannot be written out.

    The first is called as `dispatch(tuner, table, device, miss, *args, **kwargs)`. An argument in `tensors` counts by its
    dtype, one in `key_names` by its value (by its bucket where it has one), every other kernel argument by its class: that
    decides whether it has a dtype, so a call with a tensor where there was none has another key.
    """
    count, keywords = form[0], form[1:]
    if count > len(arg_names) or not all(
        n.isidentifier() and not keyword.iskeyword(n) for n in (*arg_names, *keywords)
    ):
        return None
    positional = arg_names[:count]
    names = {"_tuner", "_table", "_device", "_miss", "_found", *(f"_bucket_{n}" for n in buckets)}
    if names & {*arg_names, *keywords} or set(positional) & set(keywords):
        return None
    parts = ["_device()"]
    for name in (*positional, *(n for n in keywords if n in arg_names)):
        if name in key_names:
            parts.append(f"_bucket_{name}({name})" if name in buckets else name)
        parts.append(f"{name}.dtype" if name in tensors else f"{name}.__class__")
    key = f"({', '.join(parts)},)"
    # Positional parameters may also be given by name, which is another form; keywords are taken as such.
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    given = [*positional, *(f"{n}={n}" for n in keywords)]
    passed, launched = ", ".join(given), ", ".join([*given, "**_found[1]"])
    named = ", ".join([*(f"{n}={n}" for n in (*positional, *keywords)), "**_found[1]"])
    text = f"""
def key(_device, {parameters}):
    return {key}

def dispatch(_tuner, _table, _device, _miss, {parameters}):
    try:
        _found = _table({key})
    except (AttributeError, TypeError):
        _found = None
    if _found is None:
        return _miss({passed})
    _tuner.best_config = _found[0]
    if _found[2] is not None:
        _found[2](dict({named}))
    return _tuner.fn.run({launched})
"""
    scope: dict[str, Any] = {f"_bucket_{name}": bucket for name, bucket in buckets.items()}
    # The text above holds nothing but identifiers checked here.
    exec(compile(text, "<forecast_autotune dispatch>", "exec"), scope)  # noqa: S102
    return scope["dispatch"], scope["key"]


def power_of_two(value: Any) -> Any:
    """The bucket `pow2`: the next power of two, at least 1."""
    return 1 if value <= 1 else 1 << (int(value) - 1).bit_length()
