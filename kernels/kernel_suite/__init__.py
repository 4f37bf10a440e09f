"""Real kernels to tune, copy from and test with; one folder each."""

from __future__ import annotations

from collections.abc import Iterator

from .suite import Case, Kernel
from .triton_kernel import Call, TritonKernel

__all__ = ["Call", "Case", "Kernel", "TritonKernel", "kernels", "triton_kernels"]


def kernels() -> Iterator[Kernel]:
    """Every C++ kernel of the suite, always in this order."""
    from . import conv2d, gemm

    yield gemm.KERNEL
    yield conv2d.KERNEL


def triton_kernels() -> Iterator[TritonKernel]:
    """Every Triton kernel of the suite, always in this order."""
    from . import add_inplace, attention, layer_norm, matmul, softmax

    for folder in (matmul, softmax, layer_norm, attention, add_inplace):
        yield folder.KERNEL
