"""What is this device, and what is this toolchain?"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence

from ..core.hardware import Hardware, Toolchain
from ..processes.machine import usable_cores
from ..processes.tools import run_tool
from .board import power_limit_w

log = logging.getLogger(__name__)

_READ_BY_COMPILERS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_READ_BY_NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""Variables of the environment that change what is compiled."""


@functools.cache
def detect_hardware(device: str = "cpu") -> Hardware:
    """The hardware behind a torch device name, such as `cpu` or `cuda:1`; per device, not per process.

    Raises:
        RuntimeError: torch has no such device.
    """
    if device.partition(":")[0] != "cpu":
        return _detect_gpu(device)
    info = _cpu_info()
    flags = set(info.get("flags", info.get("Features", "")).split())
    vectors = [f for f in ("avx512f", "avx2", "avx", "sse4_2", "sve", "asimd") if f in flags][:1]
    mhz = float(info.get("cpu MHz", 0) or 0)
    lanes = {"avx512f": 16, "avx2": 8, "avx": 8, "sse4_2": 4, "sve": 8, "asimd": 4}.get(
        vectors[0] if vectors else "", 1
    )
    return Hardware(
        kind="cpu",
        name=info.get("model name") or info.get("Model") or platform.processor() or platform.machine(),
        capability=" ".join([platform.machine(), *vectors]),
        units=usable_cores(),
        memory_gib=_memory_gib(),
        max_threads=usable_cores(),
        l2_bytes=_cache_bytes(2),
        shared_bytes=_cache_bytes(1),
        # Two fused multiply-adds a cycle, two operations each, on every core, at the clock the kernel reports.
        peak_gflops=usable_cores() * mhz / 1e3 * lanes * 4,
    )


def _detect_gpu(device: str) -> Hardware:
    import torch

    props = torch.cuda.get_device_properties(device)
    hip = torch.version.hip is not None
    clock_ghz = getattr(props, "clock_rate", 0) / 1e6
    memory_ghz = getattr(props, "memory_clock_rate", 0) / 1e6
    width = getattr(props, "memory_bus_width", 0)
    return Hardware(
        kind="hip" if hip else "cuda",
        name=props.name,
        capability=getattr(props, "gcnArchName", "").partition(":")[0] if hip else f"{props.major}.{props.minor}",
        units=props.multi_processor_count,
        memory_gib=round(props.total_memory / 2**30),
        power_limit_w=power_limit_w(props),
        partition=props.name[props.name.index("MIG") :] if "MIG" in props.name else "",
        warp_size=getattr(props, "warp_size", 64 if hip else 32),
        max_threads=1024,
        shared_bytes=getattr(props, "shared_memory_per_block_optin", 0),
        l2_bytes=getattr(props, "L2_cache_size", 0),
        bandwidth_gb_per_s=memory_ghz * 2 * width / 8,  # two transfers a clock
        peak_gflops=props.multi_processor_count * 128 * 2 * clock_ghz,
    )


@functools.cache
def device_identity(device: str) -> str:
    """What tells a physical device from every other one, of its kind too; empty where that is unknown."""
    if device.partition(":")[0] == "cpu":
        return f"cpu of {platform.node()}"
    with contextlib.suppress(ImportError, RuntimeError, AssertionError):
        import torch

        return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return ""


def _cpu_info() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo."""
    info: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            info.setdefault(name.strip(), value.strip())
    return info


def _memory_gib() -> int:
    with contextlib.suppress(OSError, ValueError):
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return 0


def _cache_bytes(level: int) -> int:
    """Size of the first core's data cache of this level, from sysfs; 0 where it does not say."""
    for index in range(5):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        with contextlib.suppress(OSError, ValueError):
            with open(f"{folder}/level") as file:
                cache_level = int(file.read())
            with open(f"{folder}/type") as file:
                kind = file.read().strip()
            if cache_level == level and kind != "Instruction":
                with open(f"{folder}/size") as file:
                    return int(file.read().strip().rstrip("K")) * 1024
    return 0


def detect_cpp_toolchain(flags: Sequence[str] = (), *, cuda: bool = False) -> Toolchain:
    """What builds a C++ or CUDA extension here: compilers, torch, and the flags and search paths that change code.

    The compiler's version stands for the words of `CXX` that name it, a launcher such as ccache included.
    """
    import torch

    compiler = os.environ.get("CXX", "c++")
    versions = {"compiler": compiler_version(compiler), "torch": str(torch.__version__)}
    if cuda:
        versions["nvcc"] = compiler_version(nvcc_path() or "nvcc")
        versions["arch"] = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    versions["flags"] = " ".join(flags)
    options = itertools.dropwhile(lambda word: not word.startswith("-"), compiler.split())
    given = {"CXX options": " ".join(options)}
    given |= {name: os.environ.get(name, "") for name in (*_READ_BY_COMPILERS, *(_READ_BY_NVCC if cuda else ()))}
    versions |= {name: text for name, text in given.items() if text}
    return Toolchain(versions=versions)


@functools.cache
def compiler_version(compiler: str) -> str:
    """The version line a compiler prints of itself; "not found" where it cannot be run."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        code, written, _ = run_tool([*compiler.split(), "--version"], 30)
        if code != 0:
            return "not found"
        lines = [line for line in written.splitlines() if line.strip()]
        release = next((line for line in lines if re.search(r"release \d", line)), None)  # nvcc prints it fourth
        return release or (lines[0] if lines else "unknown")
    return "not found"


def nvcc_path() -> str | None:
    """nvcc from CUDA_HOME or PATH; None where there is none."""
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=f"{home}/bin") if home else shutil.which("nvcc")
