"""The kernels that Triton makes of one key's calls: it compiles for flags, numbers that 16 divides, aligned addresses."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ...compilers.triton_source import NotAheadError, gpu_target, jit_function, specialization
from ...core.config import Config
from ...core.fork_safe_lock import fork_safe_lock
from .call import TritonCall
from .config_arguments import ConfigArguments, is_descriptor

MAX_OTHERS = 8  # kernels of a key, beside the one in question, that are remembered
APART = 64  # calls of others in a row, after which the key is learned from these


class Specializations:
    """Which calls of a key run the kernel that is learned from, and which run another.

    Args:
        call: the key's first.
        default: the config by which two calls are told apart.
        target: what is compiled for.
    Raises:
        TypeError: an argument holds a tensor in a way that is not known.
    """

    def __init__(self, call: TritonCall, default: Config, target: Any) -> None:
        self._spec, self._theirs, self._default = call.spec, call.all_theirs, default
        self._kernel, self._target = jit_function(call.spec.fn), gpu_target(target)
        self._first: Mapping[Config, Any] = {default: _unhooked(call, self._theirs[default])}
        self._lock = fork_safe_lock()
        self._others: dict[str, ConfigArguments] = {}  # by specialization
        self._apart = 0
        self.arguments = ConfigArguments.without_tensors(self._spec, self._theirs, call.args, call.kwargs)
        """What configs are compiled and loaded with."""
        self.name = self._of(call.args, call.kwargs)
        """The specialization of these."""

    @property
    def others(self) -> list[ConfigArguments]:
        """The arguments of calls that run other kernels."""
        with self._lock:
            return list(self._others.values())

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call runs the kernel that is learned from.

        That is another one from now on where none of so many calls did: the first call of a key may be unlike all others.
        """
        name = self._of(args, kwargs)
        with self._lock:
            if name == self.name:
                self._apart = 0
                return True
            self._apart += 1
            if name not in self._others:
                if len(self._others) >= MAX_OTHERS:
                    return False
                self._others[name] = ConfigArguments.without_tensors(self._spec, self._theirs, args, kwargs)
            if self._apart < APART:
                return False
            self._others[self.name] = self.arguments
            self.name, self.arguments, self._apart = name, self._others.pop(name), 0
            return True

    def _of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """What Triton compiles a call for; empty where only a launch can tell."""
        try:
            args_, kwargs_ = ConfigArguments(self._spec, self._first, args, kwargs)(self._default)
        except NotAheadError:
            return ""
        return specialization(self._kernel, args_, kwargs_, self._target)


def _unhooked(call: TritonCall, config: Any) -> Any:
    """A config whose hook is not run where it can change nothing that Triton compiles for: only a tensor descriptor is."""
    if config.pre_hook is None or any(map(is_descriptor, call.named.values())):
        return config
    unhooked = copy.copy(config)
    unhooked.pre_hook = None
    return unhooked
