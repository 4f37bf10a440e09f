"""What callables and arguments reach of modules and weights, as far as a call's decision depends on it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from ..measure.state import weights_reached, with_modes

Flags = tuple[bool, ...]
_References = list[Callable[[], Any]]

registered: list[object] = [None]
"""Holds another object after each registration of a parameter or a module with a module of torch, anywhere."""

_training, _requires_grad = attrgetter("training"), attrgetter("requires_grad")


def _note_registration(*_: Any) -> None:
    registered[0] = object()


def _watch_registrations() -> None:
    from torch.nn.modules import module

    if registered[0] is None:
        module.register_module_module_registration_hook(_note_registration)
        module.register_module_parameter_registration_hook(_note_registration)
        _note_registration()


class Reached:
    """The modules that some objects reach, their parameters, and other tensors that autograd may follow.

    Objects are walked through at the first call, and again where something found is gone, or anything was registered with a
    module since. All are held weakly.

    Attributes:
        nothing_since: what `registered` held when a walk found nothing; None if it found something.
    """

    __slots__ = ("_found", "_names", "nothing_since")

    def __init__(self) -> None:
        self.nothing_since: object = None
        self._found: tuple[object, _References, _References, _References] = (None, [], [], [])
        self._names: tuple[list[str], list[str]] = ([], [])

    def flags(self, roots: Iterable[Any], grad_enabled: bool) -> tuple[Flags, Flags]:
        """Whether each module is in training mode, and whether autograd follows each tensor: none unless it is enabled.

        Args:
            roots: the objects; the same at each call.
        """
        if self._found[0] is registered[0]:
            try:  # contextlib.suppress takes 0.3 us
                return self._flags(grad_enabled)
            except AttributeError:  # of None, for what is gone
                pass
        held = self._walk(roots)
        flags = self._flags(grad_enabled)
        del held
        return flags

    def names(self, roots: Iterable[Any]) -> tuple[list[str], list[str]]:
        """Of the modules and of the tensors that `flags` tells of."""
        self.flags(roots, grad_enabled=True)  # which walks through them where that is needed
        return self._names

    def _flags(self, grad_enabled: bool) -> tuple[Flags, Flags]:
        _, with_modes, holders, tensors = self._found
        training = tuple(map(_training, [m() for m in with_modes]))
        if not grad_enabled:
            return training, ()
        # Parameters are read from their modules: torch.func.functional_call puts others there, and nothing else tells of it.
        followed = [p.requires_grad for m in holders for p in m()._parameters.values() if p is not None]
        if tensors:
            followed += map(_requires_grad, [t() for t in tensors])
        return training, tuple(followed)

    def _walk(self, roots: Iterable[Any]) -> object:
        """Find what the roots hold now. Returns it, to be kept alive until it is read."""
        from torch.utils.weak import TensorWeakRef

        since = registered[0]
        modules, tensors = weights_reached(roots)
        modes = with_modes(modules)
        holders = {name: module for name, module in modules.items() if len(module._parameters)}
        parameters = (f"{n}.{p}" for n, m in holders.items() for p, held in m._parameters.items() if held is not None)
        self._names = list(modes), [*parameters, *tensors]
        self._found = (
            since,
            [weakref.ref(module) for module in modes.values()],
            [weakref.ref(module) for module in holders.values()],
            [TensorWeakRef(tensor) for tensor in tensors.values()],
        )
        self.nothing_since = None if modules or tensors else since
        return modules, tensors


class ReachedByCalls:
    """What the calls of a tuned function reach: by its callables, and by arguments that are neither tensors nor plain.

    Args:
        callables: what it chooses among.
    """

    def __init__(self, callables: Sequence[Any] = ()) -> None:
        _watch_registrations()
        self._callables = callables
        self.by_callables = Reached()
        self._by_argument: dict[int, tuple[Callable[[], Any], Reached]] = {}  # by identity

    def flags(self, arguments: Sequence[Any], grad_enabled: bool) -> tuple[Flags, Flags]:
        """See `Reached.flags`; one flag where all agree, and of tensors none where autograd follows none."""
        training, followed = self.by_callables.flags(self._callables, grad_enabled)
        for argument in arguments:
            further = self._of_argument(argument).flags((argument,), grad_enabled)
            training, followed = training + further[0], followed + further[1]
        return _agreed(training), _agreed(followed) if True in followed else ()

    def names(self, arguments: Sequence[Any]) -> tuple[list[str], list[str]]:
        """See `Reached.names`."""
        names = [self.by_callables.names(self._callables), *(self._of_argument(a).names((a,)) for a in arguments)]
        return [n for modules, _ in names for n in modules], [n for _, tensors in names for n in tensors]

    def _of_argument(self, argument: Any) -> Reached:
        known, key = self._by_argument, id(argument)
        if (entry := known.get(key)) is not None and entry[0]() is argument:
            return entry[1]
        reached = Reached()
        with contextlib.suppress(TypeError):  # one without weak references is walked through at each call
            known[key] = weakref.ref(argument, lambda _: known.pop(key, None)), reached
        return reached


def _agreed(flags: Flags) -> Flags:
    return flags if False in flags and True in flags else flags[:1]
