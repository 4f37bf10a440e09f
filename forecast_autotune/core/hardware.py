"""Where it runs and what it was built with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .cached_property import cached_property
from .digest import canonical_json, digest

REHEARSAL_KINDS = ("stub", "interpreter", "replay")
"""Kinds of hardware that no real key ever matches."""

# Limits of NVIDIA GPUs, for where a sheet or a compiler does not say (CUDA programming guide, technical specifications).
WARP_SIZE = 32  # threads
THREADS_PER_UNIT = 2048  # that one SM or CU holds at once, on most; 1536 on capability 8.6 and 8.9
BLOCKS_PER_UNIT = 32
REGISTERS_PER_BLOCK = 65536  # of 32 bits, on every GPU since capability 5.0
REGISTERS_PER_THREAD = 255  # what is beyond spills


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One product, as a decision depends on it; beside it its power limit and its roofline sheet, no part of its identity.

    `units` are streaming multiprocessors, compute units or CPU cores. The sheet's rates are peaks; 0 where unknown.
    """

    kind: str  # "cuda", "hip", "cpu", or one of REHEARSAL_KINDS
    name: str
    capability: str = ""  # "9.0", "gfx942", or the vector extensions of a CPU
    units: int = 0
    memory_gib: int = 0
    partition: str = ""  # MIG profile
    power_limit_w: int = field(default=0, compare=False)  # 0: unknown; an administrator may change it
    warp_size: int = field(default=1, compare=False)
    max_threads: int = field(default=0, compare=False)
    shared_bytes: int = field(default=0, compare=False)
    l2_bytes: int = field(default=0, compare=False)
    bandwidth_gb_per_s: float = field(default=0.0, compare=False)
    peak_gflops: float = field(default=0.0, compare=False)  # float32, fused multiply-add counted as two
    peak_tensor_gflops: float = field(default=0.0, compare=False)  # float16 with float32 sums on matrix units, dense

    @property
    def identity(self) -> dict[str, object]:
        """What makes two devices the same product: all that decisions are kept by."""
        return {
            "kind": self.kind,
            "name": self.name,
            "capability": self.capability,
            "units": self.units,
            "memory_gib": self.memory_gib,
            "partition": self.partition,
        }

    @cached_property
    def digest(self) -> str:
        """Names the product by its identity; 32 hex digits."""
        return digest(canonical_json(self.identity))

    def __str__(self) -> str:
        unit = {"cpu": "cores", "hip": "CUs"}.get(self.kind, "SMs")
        return f"{self.name} ({self.units} {unit})" if self.units else self.name


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """Everything that turns source into code: component to version, flags that change code included."""

    versions: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """Names the toolchain by its versions; 32 hex digits."""
        return digest(canonical_json(dict(self.versions)))

    def __str__(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())
