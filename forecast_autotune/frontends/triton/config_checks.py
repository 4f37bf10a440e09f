"""Mistakes in a list of configs, found where the kernel is decorated."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from triton import knobs
from triton.backends import backends
from triton.runtime.autotuner import Config as TritonConfig

from ...compilers.triton_source import is_tritons_own
from ...core.config import Config
from ...core.space import Space
from ...core.text import shown
from ...core.user_warnings import warn_user
from ...errors import InvalidInputError, TuningWarning
from ...features.knob_roles import TRITON_OPTIONS

_refused: ContextVar[bool] = ContextVar("misspelt parameters are refused", default=False)


@contextmanager
def misspelt_refused() -> Iterator[None]:
    """Have a misspelt parameter be an error meanwhile, as where somebody decorates by our name; else it is a warning.

    Under `install()` it stands in a package of somebody else's, which may never launch that config.
    """
    token = _refused.set(True)
    try:
        yield
    finally:
        _refused.reset(token)


def checked_configs(fn: Any, configs: Iterable[Any] | None, *, pruned: bool) -> list[Any] | None:
    """The configs as a list, once nothing is wrong with them. What Triton itself can run is never refused.

    Args:
        fn: the kernel that they are for.
        pruned: the user's own pruning may turn the list into another one, so its configs are not looked at.
    Raises:
        InvalidInputError: there is no list, one of it is no `triton.Config`, or it sets a misspelt parameter.
    """
    if configs is None:
        return None
    name = f"kernel {getattr(getattr(fn, 'fn', fn), '__name__', repr(fn))}"
    if isinstance(configs, Space):
        raise InvalidInputError(f"configs={configs!r} of {name}: give it as space=")
    knobs_alone = isinstance(configs, Mapping) and all(isinstance(knob, str) for knob in configs)
    if (
        knobs_alone
        or hasattr(configs, "all_kwargs")
        or isinstance(configs, (Config, str))
        or not isinstance(configs, Iterable)
    ):
        raise InvalidInputError(f"configs={_text(configs)} of {name} is no list: write configs=[triton.Config(…), …]")
    listed = as_list(configs)
    if not listed:
        warn_user(
            f"configs of {name} is an empty list: there is nothing to choose from, and it runs under Triton's own "
            "default, without any parameter set. List configs, or give space=",
            TuningWarning,
        )
    if not pruned:
        for config in listed:
            _check_class(name, config)
        _check_names(name, fn, listed)
    return listed


def as_list(configs: Iterable[Any]) -> list[Any]:
    """The list that was given, which the program may change, as it may Triton's; of what is no list, a list."""
    return configs if isinstance(configs, list) else list(configs)


def _check_class(name: str, config: Any) -> None:
    if hasattr(config, "all_kwargs"):
        return
    values = dict(config) if isinstance(config, Mapping) else dict(config.knobs) if isinstance(config, Config) else None
    write = "triton.Config({…})" if values is None else _as_written(values)
    raise InvalidInputError(f"{_text(config)} in configs of {name} is no triton.Config: write {write}")


def _as_written(values: Mapping[str, Any]) -> str:
    options = "".join(f", {n}={v!r}" for n, v in values.items() if n in TRITON_OPTIONS)
    return f"triton.Config({ {n: v for n, v in values.items() if n not in TRITON_OPTIONS}!r}{options})"


def _check_names(name: str, fn: Any, configs: Sequence[Any]) -> None:
    """Refuse a name that is nearly a parameter's. Triton raises `KeyError` for it, but only at the launch.

    The interpreter drops names that it does not know, and a call may set the parameter itself: there it is a warning.
    A wrapper around the kernel, or a config of another class, may have names of its own.
    """
    parameters = list(getattr(fn, "arg_names", ()))
    as_given = (each for each in configs if type(each).all_kwargs is TritonConfig.all_kwargs)
    for config, knob in ((each, knob) for each in as_given for knob in each.kwargs):
        if knob in parameters or knob in TRITON_OPTIONS or knob in _backend_options():
            continue
        nearest = _nearest(knob, [p for p in parameters if p not in config.kwargs])
        if nearest is None:
            continue
        text = f"{knob!r} in {_text(config)} of {name} is no parameter of the kernel: did you mean {nearest!r}?"
        if _refused.get() and is_tritons_own(fn) and not knobs.runtime.interpret:
            raise InvalidInputError(f"{text} Its parameters are {', '.join(parameters)}")
        if is_tritons_own(fn) or knobs.runtime.interpret:
            warn_user(text, TuningWarning)
        return


def _nearest(knob: str, names: Sequence[str]) -> str | None:
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(knob).lower(), by_lower, 1)
    return by_lower[close[0]] if close else None


@functools.cache
def _backend_options() -> frozenset[str]:
    """What a launch may set for a compiler, by the backends that are installed, such as AMD's `waves_per_eu`."""

    def fields() -> Iterator[str]:
        for backend in backends.values():
            for value in vars(sys.modules[backend.compiler.__module__]).values():
                if isinstance(value, type) and dataclasses.is_dataclass(value):
                    yield from (field.name for field in dataclasses.fields(value))

    return frozenset(fields())


def _text(value: Any) -> str:
    return f"triton.Config({value.kwargs})" if hasattr(value, "all_kwargs") else shown(value)
