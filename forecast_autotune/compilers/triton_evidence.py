"""What a compiled Triton kernel says of itself: read from the files the compiler leaves, without running a tool."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Mapping

from ..core.hardware import WARP_SIZE
from ..core.outcome import Evidence, Failure

REGISTERS_PER_ALLOCATION = 8  # NVIDIA hands out registers to a warp in steps of 256, 8 for each of its 32 threads

_EIATTR_REGCOUNT = 0x2F
_EIATTR_FRAME_SIZE = 0x11

_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")

# One pass over the text: 1 ms for a 5,000-line kernel, where a pass per instruction took 6 (2 cores, 2026-11).
_PTX = re.compile(
    r"\b(?:"
    r"(?P<access>(?:ld|st)\.(?:global|shared|local))(?:::cta|::cluster)?"
    r"(?:\.(?!v[248]\b|[bfsu]\d)[\w:]+)*(?:\.v(?P<vector>[248]))?\.[bfsu](?P<bits>\d+)"
    r"|cp\.async\.c[ag]\.shared\S*\.global\S*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(?P<copied>0x[0-9a-f]+|\d+)"
    r"|cp\.async\.bulk\.tensor\.\dd\.(?P<bulk>shared|global)"
    r"|(?P<plain>wgmma\.mma_async|tcgen05\.mma|tcgen05\.ld|tcgen05\.st|mma\.sync|ldmatrix|stmatrix|bar\.sync|"
    r"barrier\.sync|mbarrier\.try_wait|shfl\.sync|atom\.global|red\.global)"
    r")"
)
_PTX_NAMES = {
    "wgmma.mma_async": "wgmma",
    "tcgen05.mma": "tcgen05_mma",
    "tcgen05.ld": "tensor_memory_load",
    "tcgen05.st": "tensor_memory_store",
    "mma.sync": "mma",
    "bar.sync": "barrier",
    "barrier.sync": "barrier",
    "mbarrier.try_wait": "mbarrier_wait",
    "shfl.sync": "shuffle",
    "atom.global": "atomic",
    "red.global": "atomic",
}

_TTGIR = re.compile(
    r"(?:\btt\.dot\b|\bttng\.warp_group_dot\b|\bttng\.tc_gen5_mma\w*|\bttg\.async_copy_global_to_local\b"
    r"|\bttng\.async_tma_copy_global_to_local\b|\bttg\.convert_layout\b|\btt\.reduce\b|\bttg\.warp_specialize\b"
    r"|\bscf\.for\b)"
)
_TTGIR_NAMES = {
    "tt.dot": "ir_dot",
    "ttng.warp_group_dot": "ir_dot",
    "ttg.async_copy_global_to_local": "ir_async_copy",
    "ttng.async_tma_copy_global_to_local": "ir_tma_load",
    "ttg.convert_layout": "ir_convert_layout",
    "tt.reduce": "ir_reduce",
    "ttg.warp_specialize": "ir_warp_specialize",
    "scf.for": "ir_loop",
}

_AMDGCN = re.compile(
    r"^\s+(?:(?P<matrix>v_s?w?mfmac?|v_s?wmmac?)_|(?P<space>global|buffer|flat|scratch|ds)_(?P<way>load|store|read|write)"
    r"(?P<lds>_lds)?_(?:(?:dword|b32)(?:x(?P<words>\d))?|b(?P<bits>\d+)|[usi]?(?P<small>byte|short|8|16))"
    r"|(?P<barrier>s_barrier)|(?P<atomic>(?:global|buffer|flat)_atomic))",
    re.MULTILINE,
)
_AMDGCN_FACT = re.compile(r"(?:^\s+\.(\w+):\s+|^; (\w+)(?: =|:) )(\d+)", re.MULTILINE)


def evidence(
    metadata: Mapping[str, object], asm: Mapping[str, str | bytes], *, compile_s: float, log: str = ""
) -> Evidence:
    """Read the evidence of one compiled kernel from its metadata and what each stage produced.

    `spill_bytes` are the bytes one thread stores and loads for want of registers, as the text counts them, not how often
    they run. ptxas alone knows them: without its log (a kernel found in the cache) they are 0 where there is no stack
    frame, and None otherwise.

    Args:
        metadata: as Triton keeps it beside the kernel.
        asm: stage to text or binary, as in `CompiledKernel.asm`.
        compile_s: what getting it took.
        log: what the compiler printed (`ptxas -v`).
    """
    shared = metadata.get("shared")
    known: dict[str, int | None] = {}
    instructions: Counter[str] = Counter()
    if isinstance(cubin := asm.get("cubin"), bytes):
        known = cubin_facts(cubin)
        if spills := _SPILLS.search(log):
            known["spill_bytes"] = int(spills[2]) + int(spills[3])
        elif known.get("stack_bytes") == 0:
            known["spill_bytes"] = 0
        instructions.update(ptx_instructions(_text(asm.get("ptx"))))
    elif "amdgcn" in asm:
        text = _text(asm["amdgcn"])
        known, counted = amdgcn_facts(text)
        instructions.update(counted)
    instructions.update(ttgir_operations(_text(asm.get("ttgir"))))
    return Evidence(
        compile_s=compile_s,
        shared_bytes=shared if isinstance(shared, int) else None,
        instructions=dict(instructions),
        **known,
    )


def cubin_facts(cubin: bytes) -> dict[str, int | None]:
    """Registers, stack frame and code size out of the ELF file itself: 0.05 ms, where cuobjdump takes 1 to 8.

    The frame is the largest of the functions in it. The section header's own register field is 0 on sm_90, so the
    kernel's attributes are read. Nothing is claimed of bytes that are no cubin.
    """
    facts: dict[str, int | None] = {}
    if cubin[:4] != b"\x7fELF" or len(cubin) < 64:
        return facts
    try:
        (start,) = struct.unpack_from("<Q", cubin, 0x28)
        size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
        sections = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
        strings = sections[names][4]
        registers, frames, code = [], [], 0
        for name_at, _, _, _, offset, length in sections:
            begin = strings + name_at
            name = cubin[begin : cubin.index(b"\0", begin)]
            if name.startswith(b".text."):
                code += length
            elif name.startswith(b".nv.info"):
                at, end = offset, offset + length
                while at + 4 <= end:
                    form, attribute, extent = struct.unpack_from("<BBH", cubin, at)
                    at += 4
                    if form != 4:  # only this form has a payload; in the others the extent is the value
                        continue
                    if extent == 8 and attribute == _EIATTR_REGCOUNT:
                        registers.append(struct.unpack_from("<II", cubin, at)[1])
                    elif extent == 8 and attribute == _EIATTR_FRAME_SIZE:
                        frames.append(struct.unpack_from("<II", cubin, at)[1])
                    at += extent
    except (struct.error, ValueError, IndexError, OverflowError):
        return {}
    facts["code_bytes"] = code
    if registers:
        facts["registers"] = max(registers)
    if frames:
        facts["stack_bytes"] = max(frames)
    return facts


def ptx_instructions(ptx: str) -> Counter[str]:
    """How often each instruction that matters stands in the PTX; accesses by bits per thread, as `ld_global_128`."""
    counts: Counter[str] = Counter()
    for match in _PTX.finditer(ptx):
        kind = match.lastgroup
        if access := match["access"]:
            bits = int(match["vector"] or 1) * int(match["bits"])
            counts[f"{access.replace('.', '_')}_{bits}"] += 1
        elif kind == "copied":
            counts["cp_async"] += 1
            counts[f"cp_async_{8 * int(match['copied'], 0)}"] += 1
        elif bulk := match["bulk"]:
            counts["tma_load" if bulk == "shared" else "tma_store"] += 1
        else:
            plain = match["plain"]
            counts[_PTX_NAMES.get(plain, plain)] += 1
    return counts


def ttgir_operations(ttgir: str) -> Counter[str]:
    """Dots, copies, layout changes and loops of the GPU dialect, which no later stage shows as plainly."""
    counts: Counter[str] = Counter()
    for operation in _TTGIR.findall(ttgir):
        counts[_TTGIR_NAMES.get(operation, "ir_dot")] += 1
    return counts


def amdgcn_facts(text: str) -> tuple[dict[str, int | None], Counter[str]]:
    """Registers, spills and instruction counts from AMD assembly, whose closing notes hold what other tools would print."""
    notes: dict[str, int] = {}
    for field, comment, value in _AMDGCN_FACT.findall(text):
        notes.setdefault(field or comment, int(value))
    spilled = notes.get("vgpr_spill_count")
    facts: dict[str, int | None] = {
        "registers": notes.get("vgpr_count"),
        "stack_bytes": notes.get("private_segment_fixed_size"),
        "spill_bytes": None if spilled is None else 4 * spilled,
        "code_bytes": notes.get("codeLenInByte"),
    }
    counts: Counter[str] = Counter()
    for match in _AMDGCN.finditer(text):
        if matrix := match["matrix"]:
            counts["wmma" if "wmma" in matrix else "mfma"] += 1
        elif space := match["space"]:
            way = {"read": "ld", "load": "ld"}.get(match["way"], "st")
            where = {"ds": "shared", "scratch": "local"}.get(space, "global")
            if small := match["small"]:
                bits = 8 if small in ("byte", "8") else 16
            else:
                bits = int(match["bits"] or 32 * int(match["words"] or 1))
            counts["async_copy" if match["lds"] else f"{way}_{where}_{bits}"] += 1
        else:
            counts["barrier" if match["barrier"] else "atomic"] += 1
    for name in ("agpr_count", "sgpr_count", "Occupancy"):
        if name in notes:
            counts[name.lower()] = notes[name]
    return facts, counts


def out_of_resources(
    metadata: Mapping[str, object], facts: Evidence, properties: Mapping[str, int], *, cost_s: float = 0.0
) -> Failure | None:
    """The failure a launch would end in for want of a resource, in Triton's own words; None if it fits.

    Args:
        metadata: as Triton keeps it beside the kernel.
        facts: the kernel's evidence, for its registers.
        properties: what the device offers, under the names of Triton's drivers: `max_shared_mem`, `max_num_regs`,
            `warpSize`, and `max_threads` a block (1024 if not given). A limit that is missing is not checked.
    """
    from triton.runtime.errors import OutOfResources

    def lacking(required: int, limit: int, name: str) -> Failure:
        return Failure(stage="resources", message=str(OutOfResources(required, limit, name)), cost_s=cost_s)

    def number(name: str, otherwise: int = 0) -> int:
        value = metadata.get(name)
        return value if isinstance(value, int) else otherwise

    shared, warps = number("shared"), number("num_warps")
    warp_size = number("warp_size", properties.get("warpSize", WARP_SIZE))
    if (limit := properties.get("max_shared_mem")) and shared > limit:
        return lacking(shared, limit, "shared memory")
    columns, held = number("tmem_size"), properties.get("max_tensor_memory", 512)
    if columns > held:
        return lacking(columns, held, "tensor memory")
    nvidia = getattr(metadata.get("target"), "backend", None) == "cuda"
    most = most_threads((facts.registers or 0) if nvidia else 0, properties)
    if warps * warp_size > most:
        return lacking(warps * warp_size, most, "threads")
    return None


def most_threads(registers: int, properties: Mapping[str, int]) -> int:
    """How many threads a block may have if each takes so many registers (0: unknown), as the driver would say it."""
    most = properties.get("max_threads", 1024)
    held, warp_size = properties.get("max_num_regs"), properties.get("warpSize", WARP_SIZE)
    if registers and held:
        each = -(-registers // REGISTERS_PER_ALLOCATION) * REGISTERS_PER_ALLOCATION
        most = min(most, held // (each * warp_size) * warp_size)
    return most


def _text(value: str | bytes | None) -> str:
    return value if isinstance(value, str) else ""
