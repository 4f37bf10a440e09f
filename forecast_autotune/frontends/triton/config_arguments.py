"""The arguments of a kernel under each config: after the config's hook, with heuristics applied."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ...compilers.triton_source import NotAheadError, apply_heuristics
from ...core.config import Config
from ...core.signal_handlers import raised_by_signal_handler
from .kernel_spec import KernelSpec
from .stand_ins import stand_in

Arguments = Callable[[Config], tuple[Sequence[Any], Mapping[str, Any]]]
"""A call's positional and keyword arguments under a config."""


class ConfigArguments:
    """The arguments of one call under each config, for the compiler.

    A config's hook runs once, on copies: it may change a tensor descriptor, and two configs that compile side by side must
    not share one. The hook sees tensors without data; the compiler gets the call's own.

    Args:
        theirs: our configs to Triton's.
    """

    def __init__(
        self, spec: KernelSpec, theirs: Mapping[Config, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._spec, self._theirs = spec, theirs
        self._args, self._kwargs = args, kwargs
        self._arguments: dict[Config, tuple[Sequence[Any], Mapping[str, Any]]] = {}
        self.hooked: set[Config] = set()  # those whose own hook changed tensors

    @classmethod
    def without_tensors(
        cls, spec: KernelSpec, theirs: Mapping[Config, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ConfigArguments:
        """The same as they may be kept while the call is over: stand-ins.

        Raises:
            TypeError: an argument holds a tensor in a way that is not known.
        """
        kept = {name: stand_in(value) for name, value in kwargs.items() if name not in ("grid", "warmup")}
        return cls(spec, theirs, tuple(stand_in(value) for value in args), kept)

    def __call__(self, config: Config) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Positional and keyword arguments of the kernel.

        Raises:
            NotAheadError: the config's hook does not run on tensors without data, and may change a descriptor: only a
                launch can tell.
        """
        if config not in self._arguments:
            self._arguments[config] = self._make(config)
        return self._arguments[config]

    def _make(self, config: Config) -> tuple[Sequence[Any], Mapping[str, Any]]:
        theirs = self._theirs[config]
        args, kwargs = self._args, {**self._kwargs, **theirs.all_kwargs()}
        if theirs.pre_hook is not None:
            named = {**self._spec.by_name(args), **kwargs}
            with torch.inference_mode(False):  # else the copies would count no changes
                copies = {name: _own_copy(value) for name, value in named.items()}
                try:
                    self._run_hook(theirs.pre_hook, dict(copies))  # a launch ignores arguments that it replaces
                except NotAheadError:
                    if any(map(is_descriptor, named.values())):
                        raise
                    copies = named  # nothing else that a hook changes is compiled for
                    self.hooked.add(config)
            if any(t._version for v in copies.values() for t in _without_data_in(v)):
                self.hooked.add(config)
            args = tuple(_after_hook(v, copies[n]) for n, v in zip(self._spec.arg_names, args, strict=False))
            kwargs = {n: _after_hook(v, copies[n]) for n, v in kwargs.items()}
        kwargs = apply_heuristics(self._spec.fn, args, kwargs)
        return args, {n: v for n, v in kwargs.items() if n not in ("grid", "warmup")}

    @staticmethod
    def _run_hook(hook: Callable[..., Any], copies: dict[str, Any]) -> None:
        try:
            with _MakesWithoutData():
                hook(copies)
        except (Exception, SystemExit) as err:
            if raised_by_signal_handler(err):
                raise
            raise NotAheadError(
                f"its pre_hook does not run on tensors without data: {type(err).__name__}: {err}"
            ) from err


class WithoutData(torch.Tensor):  # type: ignore[misc]
    """A tensor without data, that no kernel is launched on: its address would be that of the first byte there is."""

    def data_ptr(self) -> int:
        """There is none: raises RuntimeError."""
        raise RuntimeError("this tensor has no data")


class _MakesWithoutData(TorchFunctionMode):  # type: ignore[misc]
    """Makes what has no data `WithoutData`: a hook may make a workspace on the device of an argument."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return tree_map(lambda v: v.as_subclass(WithoutData) if type(v) is torch.Tensor and v.is_meta else v, made)


def is_without_data(value: Any) -> bool:
    """Whether an argument is, holds or describes a tensor that no kernel is launched on."""
    return any(True for _ in _without_data_in(value))


def _without_data_in(value: Any) -> Iterator[WithoutData]:
    if isinstance(value, WithoutData):
        yield value
    elif isinstance(value, tuple):
        for held in value:
            yield from _without_data_in(held)
    elif isinstance(base := getattr(value, "base", None), WithoutData):  # of a descriptor, or under another dtype
        yield base


def is_descriptor(value: Any) -> bool:
    """Whether it is a tensor descriptor of the caller's, whose block a config's hook sets."""
    return hasattr(value, "block_shape")


def _own_copy(value: Any) -> Any:
    """A copy for a hook to change: a tensor without data; an object, such as a tensor descriptor, with its own lists."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device="meta").as_subclass(WithoutData)
    if isinstance(value, tuple):
        return _tuple_like(value, map(_own_copy, value))
    if value is None or isinstance(value, (bool, int, float, str)) or callable(value):
        return value
    copied = copy.copy(value)
    for name, held in list(getattr(copied, "__dict__", {}).items()):
        if isinstance(held, (list, dict)):
            copied.__dict__[name] = copy.copy(held)
    return copied


def _tuple_like(value: tuple[Any, ...], held: Iterable[Any]) -> Any:
    return type(value)(*held) if hasattr(value, "_fields") else type(value)(held)


def _after_hook(value: Any, copied: Any) -> Any:
    if isinstance(value, tuple):
        return _tuple_like(value, map(_after_hook, value, copied))
    return value if isinstance(value, torch.Tensor) else copied
