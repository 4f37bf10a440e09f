"""What the machine is."""

from __future__ import annotations

import os

import pytest

from forecast_autotune.probe import compiler_version, detect_cpp_toolchain, detect_hardware, nvcc_path


def test_the_cpu_has_a_name_cores_and_a_peak() -> None:
    hardware = detect_hardware("cpu")
    assert hardware.kind == "cpu"
    assert hardware.name
    assert 1 <= hardware.units <= (os.cpu_count() or 1)
    assert hardware.memory_gib > 0
    assert hardware.digest == detect_hardware("cpu").digest


def test_the_toolchain_changes_with_compiler_and_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = detect_cpp_toolchain()
    assert "torch" in plain.versions
    assert detect_cpp_toolchain(("-O3",)).digest != plain.digest
    monkeypatch.setenv("CXX", "no_such_compiler")
    assert detect_cpp_toolchain().versions["compiler"] == "not found"


def test_versions_are_one_line() -> None:
    assert "\n" not in compiler_version("c++")
    if (nvcc := nvcc_path()) is not None:
        assert "release" in compiler_version(nvcc)


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    import torch

    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            detect_hardware("cuda:0")
