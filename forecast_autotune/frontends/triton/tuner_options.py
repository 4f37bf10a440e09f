"""The options of `ForecastAutotuner`: checks, buckets of key values, and Triton's default hooks."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from triton.runtime.autotuner import Autotuner
from triton.runtime.autotuner import Config as TritonConfig
from triton.runtime.jit import JITFunction

from ...core.config import Config
from ...core.space import Space
from ...core.syntax import parsed
from ...core.text import shown
from ...core.user_warnings import warn_user
from ...errors import InvalidInputError, TuningWarning
from ...features.knob_roles import TRITON_OPTIONS
from ...measure.clocks import TIMINGS


def power_of_two(value: Any) -> Any:
    """The bucket `pow2`: the next power of two, at least 1; a value that is no finite number is a bucket of its own."""
    try:
        return 1 if value <= 1 else 1 << (math.ceil(value) - 1).bit_length()
    except (TypeError, ValueError, OverflowError):
        return value


BUCKETS: dict[str, Callable[[Any], Any]] = {"pow2": power_of_two}


def bucket_functions(
    kernel: str, buckets: Mapping[str, str | Callable[[Any], Any]] | None, key: Sequence[str]
) -> dict[str, Callable[[Any], Any]]:
    """From a name in `key` to the function from its value to a bucket.

    Raises:
        InvalidInputError: a name is not in `key`, or a bucket is neither known nor callable.
    """
    if buckets and not isinstance(buckets, Mapping):
        raise InvalidInputError(f"key_buckets={shown(buckets)} of {kernel}: give a mapping, such as {{'n': 'pow2'}}")
    functions: dict[str, Callable[[Any], Any]] = {}
    for name, bucket in (buckets or {}).items():
        if name not in key:
            raise InvalidInputError(f"key_buckets of {kernel} names {name!r}: key is {', '.join(key) or 'empty'}")
        function = BUCKETS.get(bucket) if isinstance(bucket, str) else bucket
        if not callable(function):
            raise InvalidInputError(
                f"key_buckets of {kernel}: {name}={bucket!r}; accepted are {', '.join(BUCKETS)}, or a function of the value"
            )
        functions[name] = function
    return functions


def check_buckets(kernel: str, functions: Mapping[str, Callable[[Any], Any]], call: Mapping[str, Any]) -> None:
    """Check that the buckets of a call can be part of a key.

    Raises:
        InvalidInputError: one cannot be hashed.
    """
    for name, function in functions.items():
        if name not in call:
            continue
        bucket = function(call[name])
        try:
            hash(bucket)
        except TypeError:
            raise InvalidInputError(
                f"key_buckets of {kernel}: the function for {name}={shown(call[name])} returned {shown(bucket)}, which "
                "cannot be hashed: return a number, a text, or a tuple of them"
            ) from None


def check_flags(kernel: str, **flags: object) -> None:
    """Check options that are True or False.

    Raises:
        InvalidInputError: one is something else, such as the text of a setting.
    """
    for name, value in flags.items():
        if type(value).__name__ not in ("bool", "bool_") and value not in (0, 1):
            raise InvalidInputError(f"{name}={shown(value)} of {kernel}: accepted are True and False")


def timing_of(kernel: str, timing: str, use_cuda_graph: bool) -> str:
    """How to time: `eager` or `graph`; Triton's `use_cuda_graph` stands for the latter.

    Raises:
        InvalidInputError: `timing` is neither.
    """
    if timing not in TIMINGS:
        raise InvalidInputError(f"timing={timing!r} of {kernel}: accepted are {', '.join(TIMINGS)}")
    return "graph" if use_cuda_graph else timing


def pruning_options(prune_configs_by: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The user's pruning with Triton's names; torch, where it decorates a kernel again, writes `configs_top_k`.

    Raises:
        InvalidInputError: it is no mapping.
    """
    if prune_configs_by and not hasattr(prune_configs_by, "get"):
        example = "{'perf_model': …, 'top_k': 8}"
        raise InvalidInputError(f"prune_configs_by={shown(prune_configs_by)}: give a mapping, such as {example}")
    if prune_configs_by and "configs_top_k" in prune_configs_by:
        return {"top_k": prune_configs_by["configs_top_k"], **prune_configs_by}
    return prune_configs_by


def check_names(kernel: str, arg_names: Sequence[str], **named: Sequence[str] | None) -> None:
    """Check that options name arguments of the kernel.

    Raises:
        ValueError: one does not, and the installed Triton raises too; with an older Triton it is a warning.
    """
    for parameter, names in named.items():
        unknown = [n for n in (() if names is None else names) if n not in arg_names]
        if not unknown:
            continue
        message = (
            f"{parameter} of kernel {kernel} contains names that are not kernel arguments: {', '.join(unknown)}. "
            f"Valid argument names are: {', '.join(arg_names)}."
        )
        if "not kernel arguments" in inspect.getsource(Autotuner.__init__):  # since 3.9
            raise ValueError(message)
        warn_user(message, TuningWarning)


def listed_configs(kernel: str, configs: Sequence[Any] | None, space: Space | None) -> Sequence[Any] | None:
    """The configs to choose among as Triton's own: those listed, or those of the space.

    Raises:
        InvalidInputError: there are both, or the space is none.
    """
    if space is None:
        return configs
    if not isinstance(space, Space):
        raise InvalidInputError(
            f"space={shown(space)} of kernel {kernel} is no Space: give one, such as Space.grid({{'BLOCK': [64, 128]}})"
        )
    if configs:
        raise InvalidInputError(f"{kernel} has both configs= and space=: give one of them")
    return [_triton_config(c) for c in space]


def _triton_config(config: Config) -> Any:
    options = {n: v for n, v in config.knobs.items() if n in TRITON_OPTIONS}
    return TritonConfig({n: v for n, v in config.knobs.items() if n not in options}, **options)


def install_default_hooks(tuner: Any) -> None:
    """Give a tuner Triton's default hooks as of 3.8, where the user gave none and an option needs them.

    These leave out arguments that are None. A number is not set to zero.
    """
    tuner.restore_copies = {}

    def pre_hook(kwargs: dict[str, Any], reset_only: bool = False) -> None:
        for name in tuner.reset_to_zero:
            if hasattr(kwargs[name], "zero_"):
                kwargs[name].zero_()
        if not reset_only:
            wanted = ((name, kwargs[name]) for name in tuner.restore_value)
            tuner.restore_copies = {name: value.clone() for name, value in wanted if value is not None}

    def post_hook(kwargs: dict[str, Any], exception: Exception | None) -> None:  # noqa: ARG001  # Triton's signature
        for name, value in tuner.restore_copies.items():
            kwargs[name].copy_(value)
        tuner.restore_copies = {}

    if not tuner.user_defined_pre_hook and (tuner.reset_to_zero or tuner.restore_value):
        tuner.pre_hook = pre_hook
    if not tuner.user_defined_post_hook and tuner.restore_value:
        tuner.post_hook = post_hook


def is_default_hook(hook: Any) -> bool:
    """Whether a tuner's hook is one that Triton made, or `install_default_hooks`, and none of the program's."""
    return getattr(hook, "__globals__", {}).get("__name__") in (Autotuner.__module__, __name__)


def repeat_mixed_parses() -> None:
    """Let a kernel's text be parsed while our threads parse others: CPython 3.11 may refuse one; see `parsed`."""
    if sys.version_info[:2] != (3, 11):
        return
    owner = next(each for each in JITFunction.__mro__ if "parse" in vars(each))  # of constexpr functions, too
    plain = owner.parse

    @functools.wraps(plain)
    def parse(function: Any) -> Any:
        return parsed(lambda: plain(function))

    owner.parse = parse


def show_overrides_in_configs() -> None:
    """Let a config's text show its `ir_override`, as since Triton 3.9; before, two that differ in it read alike."""
    if "ir_override" in inspect.getsource(TritonConfig.__str__):
        return
    plain = TritonConfig.__str__

    def text(config: Any) -> str:
        override = getattr(config, "ir_override", None)
        return f"{plain(config)}, ir_override: {override}" if override else str(plain(config))

    TritonConfig.__str__ = text
