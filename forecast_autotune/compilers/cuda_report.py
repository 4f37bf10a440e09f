"""What nvcc says of a CUDA source's kernels without building the extension: half a second instead of a minute.

torch's headers are what takes the minute, and they are only needed by the code that launches kernels. So the source is
taken apart into its top-level declarations, those that speak of torch are left out, and what remains is compiled to a
cubin. Template instances that only left-out code asked for are asked for again. Where that does not compile, nothing is
reported, and the build itself decides.
"""

from __future__ import annotations

import logging
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.hardware import REGISTERS_PER_BLOCK, Hardware
from ..core.outcome import Evidence, Failure
from ..processes.tools import run_tool

log = logging.getLogger(__name__)

REPORT_TIMEOUT_S = 60.0

_TORCH = re.compile(r"\b(torch|at|c10|py|pybind11)\s*::|\b(TORCH_|PYBIND11_|AT_DISPATCH|C10_|AT_)\w*")
_TORCH_INCLUDE = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|pybind11|Python\.h)")
_LAUNCH = re.compile(r"([A-Za-z_][\w:]*)\s*(<[^;{}]*?>)\s*<<<")
_TOKEN = re.compile(
    # What has no end ends with the text or line: else each would be looked for to the end, in square time.
    r"""(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"""
    r"""|(?P<raw>R"(?P<fence>[^(\s]{0,16})\(.*?(?:\)(?P=fence)"|\Z))"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*(?:"|(?=\n)|\\?\Z)|'(?:\\.|[^'\\\n]){0,16}')"""
    r"""|(?P<directive>(?m:^)[ \t]*\#(?:\\\n|[^\n])*)"""
    r"""|(?P<open>[({\[])|(?P<close>[)}\]])|(?P<end>;)""",
    re.DOTALL,
)
_BLOCK = re.compile(r"\s*(?:inline\s+)?(?:namespace\b[^{;()]*|extern\s+\"C\"\s*)\{")
_USED = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_SHARED = re.compile(r"(\d+) bytes smem")
_REFUSED = re.compile(r"uses too much shared data|too many resources requested", re.IGNORECASE)


def uses_torch(source: str) -> bool:
    """Whether a CUDA source speaks of torch, and so wants its headers."""
    return bool(_TORCH_INCLUDE.search(source) or _TORCH.search(_without_comments(source)))


def kernel_part(source: str) -> str:
    """The part of a CUDA source that compiles without torch: kernels, what they call, and plain host code."""
    kept, dropped = [], []
    for declaration in _declarations(source):
        if _BLOCK.match(declaration):
            head = _BLOCK.match(declaration)[0]  # type: ignore[index]
            inner = declaration[len(head) : declaration.rindex("}")]
            kept.append(f"{head}\n{kernel_part(inner)}\n}}")
        elif uses_torch(declaration):
            dropped.append(declaration)
        else:
            kept.append(declaration)
    instances = dict.fromkeys(f"{m[1]}{m[2]}" for text in dropped for m in _LAUNCH.finditer(text))
    asked = (
        f"void* forecast_autotune_keep_{i}() {{ return reinterpret_cast<void*>(&{instance}); }}"
        for i, instance in enumerate(instances)
    )
    return "\n".join([*kept, *asked])


def _declarations(source: str) -> Iterator[str]:
    """The top-level declarations and preprocessor lines of a C++ text, in order."""
    start = depth = 0
    for token in _TOKEN.finditer(source):
        if token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
            closes_body = token[0] == "}" and depth == 0
            if closes_body and not re.match(r"\s*[;,=]|\s*[A-Za-z_]\w*\s*[;,=\[]", source[token.end() :]):
                yield source[start : token.end()]
                start = token.end()
        elif depth == 0 and token["end"]:
            yield source[start : token.end()]
            start = token.end()
        elif depth == 0 and token["directive"]:
            if source[start : token.start()].strip():
                continue  # a directive inside a declaration stays with it
            yield source[start : token.end()]
            start = token.end()
    if source[start:].strip():
        yield source[start:]


def code_alone(text: str) -> str:
    """A C++ text without comments, literals and lines of the preprocessor."""
    return _without(text, "comment", "raw", "text", "directive")


def without_comments_and_literals(text: str) -> str:
    """A C++ text without comments and literals; those in lines of the preprocessor stay."""
    return _without(text, "comment", "raw", "text")


def _without(text: str, *kinds: str) -> str:
    return _TOKEN.sub(lambda m: " " if any(m[kind] for kind in kinds) else m[0], text)


def _without_comments(text: str) -> str:
    return _without(text, "comment")


def kernel_report(
    *,
    nvcc: str,
    sources: tuple[str, ...],
    defines: tuple[str, ...],
    flags: tuple[str, ...],
    folder: Path,
    hardware: Hardware,
    threads: int | None,
) -> Evidence | Failure | None:
    """Registers, spills and shared memory of a variant's kernels, the worst of them where there are several.

    A variant whose kernels the hardware cannot run is a `Failure` at stage `resources`. None if nvcc has nothing to say:
    the kernels cannot be had without the rest, or nvcc itself fails.

    Args:
        threads: threads of a block where knobs tell; None where they do not.
        hardware: the GPU it is for, by `capability` ("9.0") and `shared_bytes`.
    """
    began = time.perf_counter()
    command = _command(nvcc, sources, defines, flags, folder, hardware)
    try:
        code, written, errors = run_tool(command, REPORT_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as err:
        log.info("no kernel report for %s: %s", folder.name, err)
        return None
    seconds = time.perf_counter() - began
    (folder / "kernel_report.log").write_text(f"{' '.join(command)}\n{written}{errors}")
    if refused := _REFUSED.search(errors):
        line = next(li for li in errors.splitlines() if refused[0] in li)
        return Failure(stage="resources", message=f"nvcc: {line.strip()}", cost_s=seconds)
    registers = [int(n) for n in _USED.findall(errors)]
    if code != 0 or not registers:
        log.info("no kernel report for %s: nvcc ended with %d; see kernel_report.log", folder.name, code)
        return None
    evidence = _evidence(errors, registers, seconds)
    # Of several kernels, knobs do not tell which runs with how many threads.
    wrong = _impossible(evidence, hardware, threads if len(registers) == 1 else None)
    return Failure(stage="resources", message=wrong, cost_s=seconds) if wrong else evidence


def _command(
    nvcc: str,
    sources: tuple[str, ...],
    defines: tuple[str, ...],
    flags: tuple[str, ...],
    folder: Path,
    hardware: Hardware,
) -> list[str]:
    """How nvcc is called for the kernels alone, whose source is written to the folder."""
    source = folder / "kernel_part.cu"
    source.write_text("#include <cuda_runtime.h>\n" + kernel_part("\n".join(sources)))
    arch = "sm_" + hardware.capability.replace(".", "")
    standard = [] if any(f.lstrip("-").startswith("std") for f in flags) else ["-std=c++17"]
    command = [nvcc, "-cubin", f"-arch={arch}", "-O3", *standard, "-Xptxas", "-v", *defines, *flags]
    return [*command, str(source), "-o", str(folder / "kernel_part.cubin")]


def _evidence(report: str, registers: Sequence[int], seconds: float) -> Evidence:
    """What ptxas reports of some kernels, the worst of each figure."""
    stacks = [(int(a), int(b)) for a, b in _STACK.findall(report)] or [(0, 0)]
    return Evidence(
        compile_s=seconds,
        registers=max(registers),
        stack_bytes=max(stack for stack, _ in stacks),
        spill_bytes=max(spill for _, spill in stacks),
        shared_bytes=max((int(n) for n in _SHARED.findall(report)), default=0),
        code_bytes=None,
    )


def _impossible(evidence: Evidence, hardware: Hardware, threads: int | None) -> str | None:
    """Why the hardware cannot launch this, in numbers; None if it can, as far as can be told."""
    if threads and hardware.max_threads and threads > hardware.max_threads:
        return f"{threads} threads in a block: {hardware.name} takes {hardware.max_threads}"
    if threads and evidence.registers:
        # Registers are given to a thread by eights.
        needed = -(-evidence.registers // 8) * 8 * threads
        if needed > REGISTERS_PER_BLOCK:
            return (
                f"{threads} threads of {evidence.registers} registers need {needed}: a block has {REGISTERS_PER_BLOCK}"
            )
    if evidence.shared_bytes and hardware.shared_bytes and evidence.shared_bytes > hardware.shared_bytes:
        return (
            f"{evidence.shared_bytes} bytes of shared memory: {hardware.name} has {hardware.shared_bytes} for a block"
        )
    return None
