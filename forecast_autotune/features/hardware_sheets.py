"""Sheets of common GPUs, so that a kernel can be forecast and compiled for one that is not here.

Figures are those of the vendors' public data sheets and architecture papers, named beside each group; peaks are dense, at
boost clock. Where a vendor gives none, the field is 0 and whoever reads it does without.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from ..core.hardware import REGISTERS_PER_BLOCK, WARP_SIZE, Hardware
from ..errors import InvalidInputError

_SHARED_BYTES = {  # a block's most, after opting in; CUDA C++ programming guide, technical specifications per capability
    "6.0": 48 * 1024,
    "7.0": 96 * 1024,
    "7.5": 64 * 1024,
    "8.0": 163 * 1024,
    "8.6": 99 * 1024,
    "8.9": 99 * 1024,
    "9.0": 227 * 1024,
    "10.0": 227 * 1024,
    "12.0": 99 * 1024,
    # Local data share of a workgroup; the instruction set manuals of Vega 7 nm, CDNA 1 to 4, RDNA 2 and 3
    "gfx906": 64 * 1024,
    "gfx908": 64 * 1024,
    "gfx90a": 64 * 1024,
    "gfx942": 64 * 1024,
    "gfx950": 160 * 1024,
    "gfx1030": 64 * 1024,
    "gfx1032": 64 * 1024,
    "gfx1100": 64 * 1024,
}


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
        warp_size=64 if capability.startswith("gfx9") else WARP_SIZE,
        max_threads=1024,
        shared_bytes=_SHARED_BYTES[capability],
        l2_bytes=int(l2_mib * 2**20),
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        peak_gflops=float32_tflops * 1e3,
        peak_tensor_gflops=tensor_tflops * 1e3,
    )


# Name as the driver tells it, capability, SMs or CUs, memory (GiB), power (W), L2 (MiB), memory (GB/s), float32 and
# float16 matrix peaks (TFLOP/s); the last is 0 where there are no matrix units. The first of a capability stands for it.
SHEETS: tuple[Hardware, ...] = (
    # NVIDIA Tesla P100 data sheet; Pascal architecture paper
    _sheet("Tesla P100-PCIE-16GB", "6.0", 56, 16, 250, 4, 732, 9.3, 0),
    _sheet("Tesla P100-SXM2-16GB", "6.0", 56, 16, 300, 4, 732, 10.6, 0),
    # NVIDIA V100 data sheet; Volta architecture paper
    _sheet("Tesla V100-SXM2-16GB", "7.0", 80, 16, 300, 6, 900, 15.7, 125),
    _sheet("Tesla V100-SXM2-32GB", "7.0", 80, 32, 300, 6, 900, 15.7, 125),
    _sheet("Tesla V100-PCIE-16GB", "7.0", 80, 16, 250, 6, 900, 14, 112),
    _sheet("Tesla V100-PCIE-32GB", "7.0", 80, 32, 250, 6, 900, 14, 112),
    # NVIDIA T4 data sheet; Turing architecture paper
    _sheet("Tesla T4", "7.5", 40, 16, 70, 4, 320, 8.1, 65),
    # Turing architecture paper (reference clocks)
    _sheet("Quadro RTX 6000", "7.5", 72, 24, 260, 6, 672, 16.3, 130.5),
    _sheet("NVIDIA GeForce RTX 2080 Ti", "7.5", 68, 11, 250, 5.5, 616, 13.4, 53.8),
    # NVIDIA A100 data sheet (80 GB edition, 2021); A100 architecture paper
    _sheet("NVIDIA A100-SXM4-80GB", "8.0", 108, 80, 400, 40, 2039, 19.5, 312),
    _sheet("NVIDIA A100-SXM4-40GB", "8.0", 108, 40, 400, 40, 1555, 19.5, 312),
    _sheet("NVIDIA A100 80GB PCIe", "8.0", 108, 80, 300, 40, 1935, 19.5, 312),
    _sheet("NVIDIA A100-PCIE-40GB", "8.0", 108, 40, 250, 40, 1555, 19.5, 312),
    # NVIDIA A30 data sheet
    _sheet("NVIDIA A30", "8.0", 56, 24, 165, 24, 933, 10.3, 165),
    # NVIDIA A10, A40, RTX A2000, A4000, A5000, A6000 data sheets; GA102 architecture paper
    _sheet("NVIDIA A10", "8.6", 72, 24, 150, 6, 600, 31.2, 125),
    _sheet("NVIDIA A40", "8.6", 84, 48, 300, 6, 696, 37.4, 149.7),
    _sheet("NVIDIA RTX A2000", "8.6", 26, 6, 70, 3, 288, 8, 31.9),
    _sheet("NVIDIA RTX A2000 12GB", "8.6", 26, 12, 70, 3, 288, 8, 31.9),
    _sheet("NVIDIA RTX A4000", "8.6", 48, 16, 140, 4, 448, 19.2, 76.7),
    _sheet("NVIDIA RTX A5000", "8.6", 64, 24, 230, 6, 768, 27.8, 111.1),
    _sheet("NVIDIA RTX A6000", "8.6", 84, 48, 300, 6, 768, 38.7, 154.8),
    _sheet("NVIDIA GeForce RTX 3090", "8.6", 82, 24, 350, 6, 936, 35.6, 71),
    _sheet("NVIDIA GeForce RTX 3080", "8.6", 68, 10, 320, 5, 760, 29.8, 59.5),
    _sheet("NVIDIA GeForce RTX 3070", "8.6", 46, 8, 220, 4, 448, 20.3, 40.6),
    # NVIDIA L4, L40, L40S, RTX 6000 Ada data sheets; Ada architecture paper
    _sheet("NVIDIA L40S", "8.9", 142, 48, 350, 96, 864, 91.6, 362),
    _sheet("NVIDIA L40", "8.9", 142, 48, 300, 96, 864, 90.5, 181),
    _sheet("NVIDIA L4", "8.9", 58, 24, 72, 48, 300, 30.3, 121),
    _sheet("NVIDIA RTX 6000 Ada Generation", "8.9", 142, 48, 300, 96, 960, 91.1, 364.2),
    _sheet("NVIDIA GeForce RTX 4090", "8.9", 128, 24, 450, 72, 1008, 82.6, 165.2),
    _sheet("NVIDIA GeForce RTX 4080", "8.9", 76, 16, 320, 64, 716.8, 48.7, 97.5),
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
    # AMD Radeon Instinct MI50 data sheet; Vega 7 nm instruction set manual
    _sheet("AMD Radeon Instinct MI50", "gfx906", 60, 16, 300, 4, 1024, 13.3, 0),
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
    # AMD Radeon PRO W6000 data sheets, Radeon RX 6900 XT product page; L2 as ROCm's hardware specifications give it:
    # 32 MiB (W6600) and 128 MiB of Infinity Cache lie behind it
    _sheet("AMD Radeon PRO W6800", "gfx1030", 60, 32, 250, 4, 512, 17.8, 0),
    _sheet("AMD Radeon RX 6900 XT", "gfx1030", 80, 16, 300, 4, 512, 23, 0),
    _sheet("AMD Radeon PRO W6600", "gfx1032", 28, 8, 100, 2, 224, 10.4, 0),
    # AMD Radeon RX 7900 XTX product page, Radeon PRO W7000 data sheets
    _sheet("AMD Radeon RX 7900 XTX", "gfx1100", 96, 24, 355, 6, 960, 61.4, 122.8),
    _sheet("AMD Radeon PRO W7900", "gfx1100", 96, 48, 295, 6, 864, 61.3, 122.6),
    _sheet("AMD Radeon PRO W7800", "gfx1100", 70, 32, 260, 6, 576, 45.2, 90.5),
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
    "p100": "Tesla P100-PCIE-16GB",
    "v100": "Tesla V100-SXM2-16GB",
    "v100sxm2": "Tesla V100-SXM2-16GB",
    "v100pcie": "Tesla V100-PCIE-16GB",
    "6000ada": "NVIDIA RTX 6000 Ada Generation",
}
_MAKERS = ("nvidia", "tesla", "geforce", "quadro", "rtx", "amd", "instinct", "radeon", "rx", "pro")

# How a device's name betrays its kind where there is no sheet of it. A maker of GPUs may make CPUs: those first.
_CPU = re.compile(
    r"\bCPU\b|Xeon|EPYC|Ryzen|Threadripper|\bCore\(TM\)|^(pthread|x86_64|i\d86|aarch64|arm)", re.IGNORECASE
)
_AMD = re.compile(r"^(MI|RX)[ _-]?\d|\bW[67]\d|^gfx\d|\bAMD\b|Radeon|Instinct|\bVega\b", re.IGNORECASE)


def sheet_for(target: str) -> Hardware:
    """The sheet of a product (`H100`, `NVIDIA A100-SXM4-80GB`, `rtx 4090`) or of a target's usual one (`cuda:90`).

    Raises:
        InvalidInputError: no sheet bears that name; tells the nearest ones.
    """
    text = target.strip().lower()
    if match := re.fullmatch(r"cuda:(?:sm_?)?(\d+)(\d)[af]?", text):
        capability = f"{match[1]}.{match[2]}"
    else:
        capability = text.removeprefix("hip:")
    for sheet in SHEETS:
        if sheet.capability == capability:
            return sheet
    if product := _product(target):
        return product
    if nearest := _nearest(target):
        raise InvalidInputError(f"no hardware sheet for {target!r}: did you mean {', '.join(nearest)}?")
    raise InvalidInputError(
        f"no hardware sheet for {target!r}: give a product, such as H100, RTX 4090 or MI300X, or one of the targets "
        f"{', '.join(targets(SHEETS))}"
    )


def hardware_named(name: str) -> Hardware:
    """The hardware of a recording that tells its name and nothing else: the sheet's figures, under that name.

    Of a name that is only an architecture's (`gfx90a:sramecc+:xnack-`, as OpenCL tells it), the figures that hold for all
    of it. Of any other the kind: AMD's are "hip", CPUs are "cpu", all else is "cuda".
    """
    if product := _product(name):
        return replace(product, name=name)
    if match := re.match(r"gfx\w+", name, re.IGNORECASE):
        capability = match[0].lower()
        limits = next((sheet for sheet in SHEETS if sheet.capability == capability), None)
        return Hardware(
            kind="hip",
            name=name,
            capability=capability,
            warp_size=limits.warp_size if limits else 1,
            max_threads=limits.max_threads if limits else 0,
            shared_bytes=limits.shared_bytes if limits else 0,
        )
    return Hardware(kind="cpu" if _CPU.search(name) else "hip" if _AMD.search(name) else "cuda", name=name)


def tensor_peak_gflops(hardware: Hardware, element_bytes: float = 2) -> float:
    """The dense matrix peak in GFLOP/s, which drivers do not tell; 0 where it is unknown or there are no matrix units.

    The product's sheet, else its architecture's usual one at this hardware's float32 peak, or its number of units.

    Args:
        element_bytes: of the operands. Four are multiplied as tf32 at half the rate of two; one at twice the rate.
    """
    peak = hardware.peak_tensor_gflops
    if peak <= 0:
        if product := _product(hardware.name):
            peak = product.peak_tensor_gflops
        elif usual := next((sheet for sheet in SHEETS if sheet.capability == hardware.capability), None):
            own, of_usual = hardware.peak_gflops, usual.peak_gflops
            if own <= 0:
                own, of_usual = hardware.units, usual.units
            peak = usual.peak_tensor_gflops * own / of_usual
    return peak * min(2.0, 2 / element_bytes) if element_bytes > 0 else peak


def same_product(a: str, b: str) -> bool:
    """Whether two names may be those of one product: the words of the shorter, without its maker's, are all in the other.

    `A100` may be the `NVIDIA A100-SXM4-80GB`, which is not the `NVIDIA A100-SXM4-40GB`.
    """
    words = [set(re.findall(r"\w+", name.lower().replace("_", " "))) - set(_MAKERS) for name in (a, b)]
    return words[0] <= words[1] or words[1] <= words[0]


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
        "max_num_regs": REGISTERS_PER_BLOCK,
        "max_threads": hardware.max_threads,
        "multiprocessor_count": hardware.units,
        "warpSize": hardware.warp_size,
    }


@cache
def _product(name: str) -> Hardware | None:
    wanted = _plain(name)
    wanted = _plain(_CALLED.get(wanted, wanted))
    return next((sheet for sheet in SHEETS if wanted and wanted == _plain(sheet.name)), None)


def _nearest(name: str) -> list[str]:
    """The products and targets that a misspelt name may mean, the likeliest first."""
    by_text = {_plain(sheet.name): sheet.name for sheet in SHEETS} | {target: target for target in targets(SHEETS)}
    by_text |= {called: by_text[_plain(full)] for called, full in _CALLED.items()}
    close = difflib.get_close_matches(_plain(name), by_text, 5)
    return list(dict.fromkeys(by_text[text] for text in close))[:3]


def _plain(name: str) -> str:
    """A product's name as people compare it: lower case, without maker, series, blanks and hyphens."""
    name = re.sub(r"[\s_-]+", "", name.strip().lower())
    return re.sub(rf"^(?:{'|'.join(_MAKERS)})+", "", name)
