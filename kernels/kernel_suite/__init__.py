"""Real kernels to tune, copy from and test with; one folder each."""

from __future__ import annotations

from collections.abc import Iterator

from .suite import Case, Kernel

__all__ = ["Case", "Kernel", "kernels"]


def kernels() -> Iterator[Kernel]:
    """Every kernel of the suite, always in this order."""
    from . import conv2d, gemm

    yield gemm.KERNEL
    yield conv2d.KERNEL
