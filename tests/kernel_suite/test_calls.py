"""The suite's calls as `tune` has them, by name."""

from __future__ import annotations

import pytest
from kernel_suite import cpp_kernels, tuning_calls


def test_every_case_of_a_kernel_that_runs_here_has_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert list(tuning_calls()) == [f"{kernel.name}/{case.name}" for kernel in cpp_kernels() for case in kernel.cases]
