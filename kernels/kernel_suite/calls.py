"""Every call of the suite's kernels at the sizes people use, by name: for `forecast-autotune tune -m kernel_suite`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from . import Case, Kernel, SuiteKernel, TritonKernel, cpp_kernels, cuda_kernels, small_kernels, suite_kernels

SEED = 0

Subject = Kernel | SuiteKernel | TritonKernel


def tuning_calls() -> dict[str, Callable[[], None]]:
    """Calls that can be made on this machine, as `KERNEL/CASE`, those of the small kernels as `small/KERNEL/CASE`.

    A GPU gets the kernels in Triton and CUDA; a machine without one those in C++.
    """
    import torch

    from forecast_autotune.measure.probe import nvcc_path

    if not torch.cuda.is_available():
        return _named("", cpp_kernels(), "cpu")
    in_cuda = cuda_kernels() if nvcc_path() is not None else ()
    return {
        **_named("", suite_kernels(), "cuda"),
        **_named("", in_cuda, "cuda"),
        **_named("small/", small_kernels(), "cuda"),
    }


def _named(prefix: str, subjects: Iterable[Subject], device: str) -> dict[str, Callable[[], None]]:
    return {
        f"{prefix}{subject.name}/{case.name}": partial(_call, subject, case, device)
        for subject in subjects
        for case in subject.cases
    }


def _call(subject: Subject, case: Case, device: str) -> None:
    if isinstance(subject, TritonKernel):
        subject.make_call(case, SEED, device).launch(_tuned(subject))
        return
    where = () if device == "cpu" else (device,)
    _tuned(subject)(*subject.make_inputs(case, SEED, *where))


_tuned_ones: dict[tuple[type, str], Callable[..., None]] = {}


def _tuned(subject: Subject) -> Callable[..., None]:
    """A kernel behind its front door, the same one for all of its cases."""
    named = type(subject), subject.name
    if named not in _tuned_ones:
        _tuned_ones[named] = subject.tuned()
    return _tuned_ones[named]
