"""What the machine is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from forecast_autotune.measure.probe import compiler_version, detect_cpp_toolchain, detect_hardware, nvcc_path


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


SET_OUTSIDE = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CXX", *SET_OUTSIDE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nothing_set")
def test_options_in_cxx_are_of_the_toolchain_and_how_it_is_named_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = detect_cpp_toolchain()
    assert plain.versions.keys() == {"compiler", "torch", "flags"}, "decisions that are stored still serve"
    for same in ("c++", shutil.which("c++"), "env c++"):
        monkeypatch.setenv("CXX", str(same))
        assert detect_cpp_toolchain().digest == plain.digest, same
    monkeypatch.setenv("CXX", "env c++ -m64  -DDEBUG=1")
    assert detect_cpp_toolchain().versions == {**plain.versions, "CXX options": "-m64 -DDEBUG=1"}


@pytest.mark.usefixtures("nothing_set")
@pytest.mark.parametrize("name", SET_OUTSIDE)
def test_what_compilers_read_from_the_environment_is_of_the_toolchain(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plain = detect_cpp_toolchain(cuda=True)
    assert plain.versions.keys() == {"compiler", "torch", "nvcc", "arch", "flags"}
    monkeypatch.setenv(name, "")
    assert detect_cpp_toolchain(cuda=True).digest == plain.digest
    monkeypatch.setenv(name, "-I/opt/v1")
    assert detect_cpp_toolchain(cuda=True).versions == {**plain.versions, name: "-I/opt/v1"}
    assert (name in detect_cpp_toolchain().versions) == ("NVCC" not in name)


def test_versions_are_one_line() -> None:
    assert "\n" not in compiler_version("c++")
    if (nvcc := nvcc_path()) is not None:
        assert "release" in compiler_version(nvcc)


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    import torch

    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            detect_hardware("cuda:0")


class Board:
    """A GPU as torch tells of it, wherever it is."""

    name, major, minor, multi_processor_count, total_memory = "NVIDIA H200", 9, 0, 132, 141 * 2**30
    pci_domain_id, pci_bus_id, pci_device_id = 0, 0x5D, 0


def nvml(limit_mw: Callable[[], int]) -> ModuleType:
    """NVML, if all it can tell is a power limit."""
    module = ModuleType("pynvml")
    module.nvmlInit = lambda: None  # type: ignore[attr-defined]
    module.nvmlDeviceGetHandleByPciBusId = {b"00000000:5d:00.0": "board"}.__getitem__  # type: ignore[attr-defined]
    module.nvmlDeviceGetPowerManagementLimit = lambda board: limit_mw() if board == "board" else 0  # type: ignore[attr-defined]
    return module


def refuses() -> int:
    raise RuntimeError("Not Supported")


def test_whatever_is_known_of_the_power_limit_the_hardware_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Board)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    answers = [nvml(lambda: 700_000), nvml(lambda: 699_600), nvml(lambda: 450_000), nvml(refuses), None]
    found = []
    for answer in answers:
        monkeypatch.setitem(sys.modules, "pynvml", answer)
        found.append(detect_hardware.__wrapped__("cuda:0"))
    assert [hardware.power_limit_w for hardware in found] == [700, 700, 450, 0, 0]
    assert len({hardware.digest for hardware in found}) == len(set(found)) == 1
