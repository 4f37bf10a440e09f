"""Real kernels to tune, copy from and test with; one folder each."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

from .suite import Case, Kernel
from .triton_kernel import Call, Output, SuiteKernel, TritonKernel, Variant

__all__ = [
    "Call",
    "Case",
    "Kernel",
    "Output",
    "SuiteKernel",
    "TritonKernel",
    "Variant",
    "cpp_kernels",
    "cuda_kernels",
    "small_kernels",
    "suite_kernels",
    "triton_kernels",
    "tuning_calls",
]

VARIANT_MODULES: tuple[str, ...] = (
    "trimul",
    "cross_entropy",
    "fp8_quant",
    "gdn_chunk_fwd_h",
    "gdn_chunk_fwd_o",
    "gdn_recompute_w_u",
    "matmul.variants",
    "softmax.variants",
    "layer_norm.variants",
    "rms_norm",
    "attention.variants",
    "paged_attention",
    "swiglu",
    "fused_moe",
    "fp8_matmul",
)
"""Modules whose `VARIANTS` is a `SuiteKernel`; a new kernel is one more name here."""


def cpp_kernels() -> Iterator[Kernel]:
    """Every C++ kernel of the suite, always in this order."""
    from . import conv2d, gemm

    yield gemm.KERNEL
    yield conv2d.KERNEL


def cuda_kernels() -> Iterator[Kernel]:
    """Every CUDA kernel of the suite, always in this order."""
    from . import cuda_conv2d, cuda_gemm, cuda_reduction, cuda_softmax, cuda_transpose

    for folder in (cuda_reduction, cuda_transpose, cuda_softmax, cuda_gemm, cuda_conv2d):
        yield folder.KERNEL


def triton_kernels() -> Iterator[TritonKernel]:
    """Every Triton kernel of the suite that is one function, always in this order.

    Where `suite_kernels` has one of the same name, this is a single kernel of it, for `fa.autotune`.
    """
    from . import add_inplace, attention, layer_norm, matmul, softmax, swiglu

    for folder in (matmul, softmax, layer_norm, attention, add_inplace, swiglu):
        yield folder.KERNEL


def small_kernels() -> Iterator[TritonKernel]:
    """Every kernel of `small`, a page each with a space such as people write, always in this order."""
    from .small import KINDS

    for names in KINDS.values():
        for name in names:
            yield importlib.import_module(f".small.{name}", __name__).KERNEL


def suite_kernels() -> Iterator[SuiteKernel]:
    """Every kernel of the suite that has several variants, always in this order."""
    for name in VARIANT_MODULES:
        yield importlib.import_module(f".{name}", __name__).VARIANTS


def tuning_calls() -> dict[str, Callable[[], None]]:
    """Every call of the suite that can be made on this machine, by name; see `calls`."""
    from . import calls

    return calls.tuning_calls()
