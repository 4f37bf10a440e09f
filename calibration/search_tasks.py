"""Kernels of the suite to search, at sizes whose inputs a search can hand over: half a GiB at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_suite import Kernel, SuiteKernel, cpp_kernels, cuda_kernels, suite_kernels

from forecast_autotune.errors import InvalidInputError
from forecast_autotune.program_search.task import SearchTask, named, task_of

SIZES = {
    "softmax": (("odd", "few_rows"), ("experts",)),
    "layer_norm": (("odd", "few_rows"), ("narrow",)),
    "cross_entropy": (("classes", "few_rows"), ("odd",)),
    "swiglu": (("expert", "odd"), ("small_layer",)),
    "matmul": (("square", "deep"), ("odd",)),
    "attention": (("chunk_of_prompt", "odd"), ("full",)),
}
"""Of each of six Triton kernels the sizes that programs are timed at, and those that are held out."""

CUDA_SIZES = {
    "cuda_reduction": (("gradient", "odd"), ("vector",)),
    "cuda_transpose": (("odd",), ("small",)),
    "cuda_softmax": (("square",), ("odd",)),
    "cuda_gemm": (("projection", "long_sum"), ("odd",)),
    "cuda_conv2d": (("middle_layer", "odd"), ("last_layer",)),
}
"""The same of the CUDA kernels, which are searched by name."""


def search_tasks(names: Sequence[str]) -> list[SearchTask]:
    """The tasks of these kernels of the suite; without names, of the six on a GPU, and of the C++ kernels without one.

    Raises:
        InvalidInputError: there is no such kernel; one in CUDA is named without a GPU or nvcc.
    """
    import torch

    listed: list[Kernel | SuiteKernel] = [*cpp_kernels(), *cuda_kernels(), *suite_kernels()]
    known = {kernel.name: kernel for kernel in listed}
    usual = list(SIZES) if torch.cuda.is_available() else [kernel.name for kernel in cpp_kernels()]
    if unknown := [name for name in names if name not in known]:
        raise InvalidInputError(f"the suite has no kernel {unknown[0]!r} to rewrite: it has {', '.join(known)}")
    return [_at_its_sizes(task_of(known[name])) for name in names or usual]


def _at_its_sizes(task: SearchTask) -> SearchTask:
    sizes = {**SIZES, **CUDA_SIZES}
    if task.name not in sizes:
        return task
    searched, held_out = sizes[task.name]
    every = {**task.sizes, **task.held_out}
    return replace(named(searched, task), held_out={name: every[name] for name in held_out})
