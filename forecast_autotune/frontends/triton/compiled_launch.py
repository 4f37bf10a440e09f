"""A compiled Triton kernel as a value that another process can load and launch without the kernel's source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonBinary:
    """One compiled config of a kernel: its entry in Triton's cache, and how to launch it.

    Attributes:
        files: paths in the cache entry, by name.
        signature: types of the parameters, in their order.
        constants: indices of the parameters that were compiled in, with their values where these are plain.
    """

    name: str
    hash: str
    files: Mapping[str, str]
    signature: Mapping[str, Any]
    constants: Sequence[tuple[Sequence[int], Any]]
    grid: Sequence[int]

    def as_json(self) -> dict[str, Any]:
        """Its fields, for a message to another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TritonBinary:
        """What `as_json` returned, read back."""
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
            constants={tuple(path): value for path, value in self.constants},
            fn=SimpleNamespace(arg_names=list(self.signature), launch_metadata=None),
        )
        kernel = CompiledKernel(source, dict(self.files), self.hash)
        return kernel[tuple(self.grid)]  # type: ignore[no-any-return]


def _as_tuples(kind: Any) -> Any:
    """A type as Triton writes it: JSON has made a list of the type of a tuple."""
    return tuple(_as_tuples(k) for k in kind) if isinstance(kind, list) else kind
