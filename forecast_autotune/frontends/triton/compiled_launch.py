"""A compiled Triton kernel with the arguments of a launch as a value, and launching it without its source.

Where it is compiled and where it is run share this and nothing else: the process that runs it needs neither the module
nor the notebook or closure that the kernel was written in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonBinary:
    """What Triton's cache holds of one config of a kernel, and how that is launched.

    `files` are the paths of that cache entry by name, `signature` the types of the parameters in their order, `constants`
    the places of those that were compiled in, with their values where they are plain.
    """

    name: str
    hash: str
    files: Mapping[str, str]
    signature: Mapping[str, Any]
    constants: Sequence[tuple[Sequence[int], Any]]
    grid: Sequence[int]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TritonBinary:
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})

    def launcher(self) -> Callable[..., Any]:
        """Load it onto the current device and return what launches it, given the values of all its parameters.

        Raises:
            OutOfResources: the device cannot run it.
        """
        from triton.compiler.compiler import CompiledKernel

        source = SimpleNamespace(
            name=self.name,
            signature={name: _as_tuples(kind) for name, kind in self.signature.items()},
            constants={tuple(place): value for place, value in self.constants},
            fn=SimpleNamespace(arg_names=list(self.signature), launch_metadata=None),
        )
        kernel = CompiledKernel(source, dict(self.files), self.hash)
        return kernel[tuple(self.grid)]  # type: ignore[no-any-return]


def _as_tuples(kind: Any) -> Any:
    """A type as Triton writes it: that of a tuple is a tuple, which JSON has made a list."""
    return tuple(_as_tuples(k) for k in kind) if isinstance(kind, list) else kind
