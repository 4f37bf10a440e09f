"""What callables and arguments reach of modules and weights, as far as a call's decision depends on it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from ..measure.state import weights_reached, with_modes

Flags = tuple[bool, ...]

MAX_IDLE_WALKS = 8  # that found nothing else followed than before: what comes and goes is a cache, then

_training = attrgetter("training")


class _WalkResult(NamedTuple):
    """What a walk found, held weakly: modules by what is asked of them, and tensors that are no parameters.

    `empty` are dictionaries of modules that held no child, or no parameter. `any` tells of all in 4 ns each (one core of a
    server, 2026-11) whether one holds something now.
    """

    with_modes: list[Callable[[], Any]]
    with_parameters: list[Callable[[], Any]]
    with_children: list[tuple[Callable[[], Any], list[int]]]  # and the identities of these
    empty: list[dict[str, Any]]
    tensors: list[Callable[[], Any]]
    followed: list[bool]  # of the tensors, when they were last there


class ReachedModules:
    """The modules that some objects reach, their parameters, and other tensors that autograd may follow.

    Objects are walked through at the first call, and again where a module or a tensor is gone, or a module holds others than
    it did, or its first parameter. After some walks for nothing, only tensors that were followed are missed.
    """

    __slots__ = ("_found", "_idle_walks", "_names", "is_empty")

    def __init__(self) -> None:
        self.is_empty = False  # known to be
        self._found: _WalkResult | None = None
        self._idle_walks = 0
        self._names: tuple[list[str], list[str]] = ([], [])

    def flags(self, roots: Iterable[Any], grad_enabled: bool) -> tuple[Flags, Flags]:
        """Whether each module is in training mode, and whether autograd follows each tensor: none unless it is enabled.

        Args:
            roots: the objects; the same at each call.
        """
        before = self._found
        if before is not None:
            try:  # contextlib.suppress takes 0.3 us
                return _flags(before, grad_enabled, misses_all=self._idle_walks < MAX_IDLE_WALKS)
            except (AttributeError, _ChangedError):  # the former of None, for what is gone
                pass
        self._found, held = self._walk(roots)
        flags = _flags(self._found, grad_enabled)
        del held
        if before is not None and _without_caches(before.followed) == _without_caches(self._found.followed):
            self._idle_walks += 1
        return flags

    @property
    def is_initialized(self) -> bool:
        """Whether all weights that `flags` found have their shapes: those of a lazy module not before its first call."""
        from torch.nn.parameter import is_lazy

        modules = [module() for module in self._found.with_parameters] if self._found is not None else []
        held = (t for m in modules if m is not None for t in (*m._parameters.values(), *m._buffers.values()))
        return not any(map(is_lazy, held))

    def names(self, roots: Iterable[Any]) -> tuple[list[str], list[str]]:
        """Of the modules and of the tensors that `flags` tells of."""
        self.flags(roots, grad_enabled=True)  # which walks through them where that is needed
        return self._names

    def _walk(self, roots: Iterable[Any]) -> tuple[_WalkResult, object]:
        """Find what the roots hold now. Returns it, and what to keep alive until it is read."""
        from torch.utils.weak import TensorWeakRef

        modules, tensors = weights_reached(roots)
        modes = with_modes(modules)
        holders = {name: module for name, module in modules.items() if len(module._parameters)}
        parameters = (f"{n}.{p}" for n, m in holders.items() for p, held in m._parameters.items() if held is not None)
        self._names = list(modes), [*parameters, *tensors]
        found = _WalkResult(
            [weakref.ref(module) for module in modes.values()],
            [weakref.ref(module) for module in holders.values()],
            [
                (weakref.ref(m), [*map(id, m._modules.values())])
                for m in modules.values()
                if _is_dict(m._modules, empty=False)
            ],
            [held for m in modules.values() for held in (m._modules, m._parameters) if _is_dict(held, empty=True)],
            [TensorWeakRef(tensor) for tensor in tensors.values()],
            [True] * len(tensors),
        )
        self.is_empty = not modules and not tensors
        return found, (modules, tensors)


class _ChangedError(Exception):
    """What was found is no longer what is reached."""


def _is_dict(held: Any, *, empty: bool) -> bool:
    """Whether a module keeps its children or parameters in a dictionary; TorchScript makes them anew at each look."""
    return type(held) is dict and (not held) == empty


def _flags(found: _WalkResult, grad_enabled: bool, *, misses_all: bool = True) -> tuple[Flags, Flags]:
    if any(found.empty):
        raise _ChangedError
    for module, children in found.with_children:
        if [*map(id, module()._modules.values())] != children:
            raise _ChangedError
    training = tuple(map(_training, [m() for m in found.with_modes]))
    if not grad_enabled:
        return training, ()
    # Parameters are read from their modules: torch.func.functional_call puts others there, and nothing else tells of it.
    followed = [p.requires_grad for m in found.with_parameters for p in m()._parameters.values() if p is not None]
    for i, reference in enumerate(found.tensors):
        if (tensor := reference()) is not None:
            found.followed[i] = tensor.requires_grad
        elif misses_all or found.followed[i]:
            raise _ChangedError
    return training, (*followed, *_without_caches(found.followed))


def _without_caches(followed: list[bool]) -> list[bool]:
    """One flag for all tensors where none is followed: a program keeps any number of results."""
    return followed if True in followed else followed[:1]


class ReachedByCalls:
    """What the calls of a tuned function reach: by its callables, and by arguments that are modules.

    Args:
        callables: what it chooses among.
    """

    def __init__(self, callables: Sequence[Any] = ()) -> None:
        self._callables = callables
        self.by_callables = ReachedModules()
        self._by_argument: dict[int, tuple[Callable[[], Any], ReachedModules]] = {}  # by identity

    def flags(self, arguments: Sequence[Any], grad_enabled: bool) -> tuple[Flags, Flags]:
        """See `ReachedModules.flags`; one flag where all agree, and of tensors none where autograd follows none."""
        training, followed = self.by_callables.flags(self._callables, grad_enabled)
        for argument in arguments:
            further = self._of_argument(argument).flags((argument,), grad_enabled)
            training, followed = training + further[0], followed + further[1]
        return _agreed(training), _agreed(followed) if True in followed else ()

    def is_initialized(self, arguments: Sequence[Any]) -> bool:
        """See `ReachedModules.is_initialized`."""
        return self.by_callables.is_initialized and all(self._of_argument(a).is_initialized for a in arguments)

    def names(self, arguments: Sequence[Any]) -> tuple[list[str], list[str]]:
        """See `ReachedModules.names`."""
        names = [self.by_callables.names(self._callables), *(self._of_argument(a).names((a,)) for a in arguments)]
        return [n for modules, _ in names for n in modules], [n for _, tensors in names for n in tensors]

    def _of_argument(self, argument: Any) -> ReachedModules:
        known, key = self._by_argument, id(argument)
        if (entry := known.get(key)) is not None and entry[0]() is argument:
            return entry[1]
        reached = ReachedModules()
        known[key] = weakref.ref(argument, lambda _: known.pop(key, None)), reached
        return reached


def _agreed(flags: Flags) -> Flags:
    return flags if False in flags and True in flags else flags[:1]
