"""Sheets of common GPUs, so that a kernel can be forecast and compiled for one that is not here.

Figures are those of the vendors' public data sheets and architecture papers, named beside each group; peaks are dense, at
boost clock. Where a vendor gives none, the field is 0 and whoever reads it does without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .core.hardware import Hardware
from .errors import InvalidInputError

_SHARED_BYTES = {  # a block's most, after opting in; CUDA C++ programming guide, technical specifications per capability
    "7.5": 64 * 1024,
    "8.0": 163 * 1024,
    "8.6": 99 * 1024,
    "8.9": 99 * 1024,
    "9.0": 227 * 1024,
    "10.0": 227 * 1024,
    "12.0": 99 * 1024,
    # Local data share of a workgroup; the instruction set manuals of CDNA 1 to 4 and RDNA 3
    "gfx908": 64 * 1024,
    "gfx90a": 64 * 1024,
    "gfx942": 64 * 1024,
    "gfx950": 160 * 1024,
    "gfx1100": 64 * 1024,
}
_REGISTERS = 65536  # 32-bit registers of a block: every NVIDIA GPU since capability 5.0 (same table)


def _sheet(
    name: str,
    capability: str,
    units: int,
    memory_gib: int,
    power_w: int,
    l2_mib: float,
    bandwidth_gb_per_s: float,
    float32_tflops: float,
    tensor_tflops: float,
) -> Hardware:
    amd = capability.startswith("gfx")
    return Hardware(
        kind="hip" if amd else "cuda",
        name=name,
        capability=capability,
        units=units,
        memory_gib=memory_gib,
        power_limit_w=power_w,
        warp_size=64 if capability.startswith("gfx9") else 32,
        max_threads=1024,
        shared_bytes=_SHARED_BYTES[capability],
        l2_bytes=int(l2_mib * 2**20),
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        peak_gflops=float32_tflops * 1e3,
        peak_tensor_gflops=tensor_tflops * 1e3,
    )


# Name as the driver tells it, capability, SMs or CUs, memory (GiB), power (W), L2 (MiB), memory (GB/s), float32 and
# float16 matrix peaks (TFLOP/s). The first of a capability stands for it.
SHEETS: tuple[Hardware, ...] = (
    # NVIDIA T4 data sheet; Turing architecture paper
    _sheet("Tesla T4", "7.5", 40, 16, 70, 4, 320, 8.1, 65),
    # NVIDIA A100 data sheet (80 GB edition, 2021); A100 architecture paper
    _sheet("NVIDIA A100-SXM4-80GB", "8.0", 108, 80, 400, 40, 2039, 19.5, 312),
    _sheet("NVIDIA A100-SXM4-40GB", "8.0", 108, 40, 400, 40, 1555, 19.5, 312),
    _sheet("NVIDIA A100 80GB PCIe", "8.0", 108, 80, 300, 40, 1935, 19.5, 312),
    _sheet("NVIDIA A100-PCIE-40GB", "8.0", 108, 40, 250, 40, 1555, 19.5, 312),
    # NVIDIA A30 data sheet
    _sheet("NVIDIA A30", "8.0", 56, 24, 165, 24, 933, 10.3, 165),
    # NVIDIA A10, A40, RTX A4000, RTX A6000 data sheets; GA102 architecture paper
    _sheet("NVIDIA A10", "8.6", 72, 24, 150, 6, 600, 31.2, 125),
    _sheet("NVIDIA A40", "8.6", 84, 48, 300, 6, 696, 37.4, 149.7),
    _sheet("NVIDIA RTX A4000", "8.6", 48, 16, 140, 4, 448, 19.2, 76.7),
    _sheet("NVIDIA RTX A6000", "8.6", 84, 48, 300, 6, 768, 38.7, 154.8),
    _sheet("NVIDIA GeForce RTX 3090", "8.6", 82, 24, 350, 6, 936, 35.6, 71),
    # NVIDIA L4, L40, L40S data sheets; Ada architecture paper
    _sheet("NVIDIA L40S", "8.9", 142, 48, 350, 96, 864, 91.6, 362),
    _sheet("NVIDIA L40", "8.9", 142, 48, 300, 96, 864, 90.5, 181),
    _sheet("NVIDIA L4", "8.9", 58, 24, 72, 48, 300, 30.3, 121),
    _sheet("NVIDIA GeForce RTX 4090", "8.9", 128, 24, 450, 72, 1008, 82.6, 165.2),
    # NVIDIA H100, H200 data sheets; H100 architecture paper
    _sheet("NVIDIA H100 80GB HBM3", "9.0", 132, 80, 700, 50, 3350, 66.9, 989.4),
    _sheet("NVIDIA H100 PCIe", "9.0", 114, 80, 350, 50, 2000, 51.2, 756),
    _sheet("NVIDIA H200", "9.0", 132, 141, 700, 50, 4800, 66.9, 989.4),
    # NVIDIA publishes no sheet of the H20: figures of system vendors, and no word on its L2
    _sheet("NVIDIA H20", "9.0", 78, 96, 400, 0, 4000, 44, 148),
    # NVIDIA Blackwell data sheet (HGX B200, GB200 NVL72: per GPU); SM counts and L2 as the driver tells them
    _sheet("NVIDIA B200", "10.0", 148, 180, 1000, 126, 8000, 80, 2250),
    _sheet("NVIDIA GB200", "10.0", 152, 186, 1200, 126, 8000, 80, 2500),
    # RTX Blackwell architecture paper
    _sheet("NVIDIA GeForce RTX 5090", "12.0", 170, 32, 575, 96, 1792, 104.8, 209.5),
    # AMD Instinct data sheets and CDNA architecture papers. The MI250s are two devices to the driver: per device.
    _sheet("AMD Instinct MI100", "gfx908", 120, 32, 300, 8, 1228.8, 23.1, 184.6),
    _sheet("AMD Instinct MI250X", "gfx90a", 110, 64, 560, 8, 1638.4, 23.9, 191.5),
    _sheet("AMD Instinct MI250", "gfx90a", 104, 64, 560, 8, 1638.4, 22.6, 181),
    _sheet("AMD Instinct MI210", "gfx90a", 104, 64, 300, 8, 1638.4, 22.6, 181),
    # L2 of one of the chip's dies, as the driver tells it; 256 MiB of Infinity Cache lie behind them
    _sheet("AMD Instinct MI300X", "gfx942", 304, 192, 750, 4, 5300, 163.4, 1307.4),
    _sheet("AMD Instinct MI325X", "gfx942", 304, 256, 1000, 4, 6000, 163.4, 1307.4),
    _sheet("AMD Instinct MI355X", "gfx950", 256, 288, 1400, 4, 8000, 157.3, 2516.6),
    _sheet("AMD Instinct MI350X", "gfx950", 256, 288, 1000, 4, 8000, 144.2, 2309.6),
    # AMD Radeon RX 7900 XTX product page
    _sheet("AMD Radeon RX 7900 XTX", "gfx1100", 96, 24, 355, 6, 960, 61.4, 122.8),
)

_CALLED = {  # what people say, where it is not simply the end of the product's name
    "a100": "NVIDIA A100-SXM4-80GB",
    "a100sxm": "NVIDIA A100-SXM4-80GB",
    "a100pcie": "NVIDIA A100 80GB PCIe",
    "a10080gb": "NVIDIA A100-SXM4-80GB",
    "a10040gb": "NVIDIA A100-SXM4-40GB",
    "a4000": "NVIDIA RTX A4000",
    "a6000": "NVIDIA RTX A6000",
    "h100": "NVIDIA H100 80GB HBM3",
    "h100sxm": "NVIDIA H100 80GB HBM3",
    "h100sxm5": "NVIDIA H100 80GB HBM3",
    "h200sxm": "NVIDIA H200",
    "7900xtx": "AMD Radeon RX 7900 XTX",
}
_MAKERS = ("nvidia", "tesla", "geforce", "rtx", "amd", "instinct", "radeon", "rx")


def sheet_for(target: str) -> Hardware:
    """The sheet of a product (`H100`, `NVIDIA A100-SXM4-80GB`, `rtx 4090`) or of a target's usual one (`cuda:90`).

    Raises:
        InvalidInputError: no sheet bears that name; lists those there are.
    """
    text = target.strip().lower()
    if match := re.fullmatch(r"cuda:(?:sm_?)?(\d+)(\d)[af]?", text):
        capability = f"{match[1]}.{match[2]}"
    else:
        capability = text.removeprefix("hip:")
    for sheet in SHEETS:
        if sheet.capability == capability:
            return sheet
    wanted = _plain(target)
    wanted = _plain(_CALLED.get(wanted, wanted))
    for sheet in SHEETS:
        if wanted and wanted == _plain(sheet.name):
            return sheet
    raise InvalidInputError(
        f"no hardware sheet for {target!r}: there are {', '.join(sheet.name for sheet in SHEETS)}; or a target, one of "
        f"{', '.join(targets(SHEETS))}"
    )


def target_of(hardware: Hardware) -> str:
    """The compiler's target for a piece of hardware, such as `cuda:90`; rehearsals and sheets included.

    Raises:
        InvalidInputError: it has no capability a GPU has.
    """
    if re.fullmatch(r"gfx\w+", hardware.capability):
        return f"hip:{hardware.capability}"
    if re.fullmatch(r"\d+\.\d", hardware.capability):
        return f"cuda:{hardware.capability.replace('.', '')}"
    raise InvalidInputError(
        f"{hardware.name} has the capability {hardware.capability!r}, which no GPU has: give a target such as cuda:90"
    )


def targets(sheets: Iterable[Hardware]) -> tuple[str, ...]:
    """The compiler targets of some hardware, without duplicates."""
    return tuple(dict.fromkeys(target_of(sheet) for sheet in sheets))


def device_properties(hardware: Hardware) -> dict[str, int]:
    """A sheet's limits under the names Triton's drivers use, as `out_of_resources` and a driver's users read them."""
    return {
        "max_shared_mem": hardware.shared_bytes,
        "max_num_regs": _REGISTERS,
        "max_threads": hardware.max_threads,
        "multiprocessor_count": hardware.units,
        "warpSize": hardware.warp_size,
    }


def _plain(name: str) -> str:
    """A product's name as people compare it: lower case, without maker, series, blanks and hyphens."""
    name = re.sub(r"[\s_-]+", "", name.strip().lower())
    return re.sub(rf"^(?:{'|'.join(_MAKERS)})+", "", name)
