"""Rewrites of a CUDA text, each at one place: its loops, how registers and blocks are given, which caches serve it.

They follow the text alone, so one may change what a kernel computes, or may not compile: a candidate is examined before it
counts. None asks for other arithmetic: what reorders floating-point sums is written out, and `--use_fast_math` is not among
the flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..nvcc_flags import FLAGS, with_flag
from .c_text import (
    CountedLoop,
    Loop,
    Rewrite,
    before,
    blanked,
    closing,
    counted,
    loop_rewrites,
    loops_of,
    may_be_copied,
)
from .cuda_staging import staged
from .cuda_text import Function, commas, functions_of, pointers_of, replaced

UNROLLS = ("1", "2", "4", "8", "16")
MIN_BLOCKS = ("1", "2", "3", "4", "6", "8")  # of one kernel on a multiprocessor
MAX_THREADS = ("128", "256", "512", "1024")
REGISTERS = ("32", "64", "96", "128", "168")
PER_UNIT = (1, 2, 4, 8)  # blocks of a kernel that stays, for each multiprocessor
CARVEOUTS = (0, 50, 100)  # percent of the first cache that is shared memory
GROUPS = (2, 4, 8)  # rows of a grid that are walked together
PADDINGS = (1, 4)  # elements after each line of a shared array
LOAD_HINTS = ("ldg", "ldca", "ldcg", "ldcs", "ldlu")
STORE_HINTS = ("stcg", "stcs", "stwt")
VECTORS = {"float": (4, 2), "int": (4, 2), "unsigned": (4, 2), "double": (2,)}
"""How many of a type are loaded and stored at once: `float4`, `float2`."""

_PRAGMA = re.compile(r"^[ \t]*#pragma unroll\b([^\n]*)\n", re.MULTILINE)
_BOUNDS = re.compile(r"\b(__launch_bounds__|__maxnreg__)\s*\(")
_INLINE = re.compile(r"\b__(?:forceinline|noinline)__\s*")
_LOCAL_POINTER = re.compile(
    r"(?<=[;{}(])\s*(?P<const>const\s+)?[\w:]+\s*\*\s*(?:const\s+)?(?P<name>\w+)\s*=\s*(?P<first>[^;]*)"
)
_SHARED = re.compile(r"\b__shared__\s+(?:__align__\s*\([^)]*\)\s*|alignas\s*\([^)]*\)\s*)?([\w:]+)\s+([^;]*);")
_STRUCT = re.compile(r"\bstruct\s+(?:alignas\s*\([^)]*\)\s*)?(\w+)\s*\{")
_LINES = re.compile(r"\b\w+\s*\[[^\]]*\]\s*\[([^\]]*)\](?!\s*\[)")  # an array of two dimensions
_CAST = re.compile(r"(?<![\w)\]])\*\s*reinterpret_cast\s*<\s*(const\s+)?[\w:]+\s*\*\s*>\s*\(")
_CALL = re.compile(r"(?:[=(,?:]|\breturn)\s*(\*)\s*(\w+)\s*\(")
_ELEMENT = re.compile(r"(?<![\w.>\]])(\w+)\s*\[")
_STARTS = re.compile(r"[;{})]\s*\Z")  # what stands before a statement


def rewrites(source: str) -> Iterator[Rewrite]:
    """Every rewrite of a text by one step."""
    code = blanked(source)
    functions = list(functions_of(code))
    loops = list(loops_of(code))
    yield from _unrolled(source, code)
    for i, loop in enumerate(loops):
        around = next((f for f in functions if f.body[0] < loop.start < f.body[1]), None)
        if around is not None:
            yield from _of_loop(source, code, loop, i, loops, around)
    for function in functions:
        yield from _of_function(source, code, function)
        if function.is_kernel:
            yield from _bounded(source, code, function)
            yield from _laid_out(source, code, function, functions)
            yield from staged(source, code, function, functions)
    yield from _padded(source, code)
    for about, values in FLAGS.items():
        for how, flag in {**values, "off": ""}.items():
            if (text := with_flag(source, about, flag)) != source:
                yield f"{about}@nvcc={how}", text


# Loops ---------------------------------------------------------------------------------------------------------------


def _unrolled(source: str, code: str) -> Iterator[Rewrite]:
    """Loops that a pragma says how to unroll: otherwise, as nvcc likes, or wholly."""
    for i, match in enumerate(_PRAGMA.finditer(code)):
        count = match[1].strip("() ")
        for other in UNROLLS:
            if other != count:
                yield f"unroll@pragma{i}={other}", _line(source, match, f"#pragma unroll {other}\n")
        if count:
            yield f"unroll@pragma{i}=all", _line(source, match, "#pragma unroll\n")
        yield f"unroll@pragma{i}=off", _line(source, match, "")


def _line(source: str, match: re.Match[str], line: str) -> str:
    return source[: match.start()] + line + source[match.end() :]


def _of_loop(
    source: str, code: str, loop: Loop, i: int, loops: Sequence[Loop], function: Function
) -> Iterator[Rewrite]:
    if not re.search(r"#pragma[^\n]*\n\s*\Z", code[: loop.start]):
        for count in UNROLLS:
            yield f"unroll@loop{i}={count}", before(source, loop, f"#pragma unroll {count}")
        yield f"unroll@loop{i}=all", before(source, loop, "#pragma unroll")
    yield from loop_rewrites(source, code, loop, i, loops)
    if function.is_kernel:
        yield from _vectored(source, code, loop, i, function)


def _vectored(source: str, code: str, loop: Loop, i: int, function: Function) -> Iterator[Rewrite]:
    """A loop over elements as one over vectors of them, where all that it reaches through pointers is its own element.

    Vectors are moved where every pointer allows it, else elements are, as before. Threads share the vectors as they
    shared the elements.
    """
    count, body = counted(source[slice(*loop.header)]), source[slice(*loop.body)]
    pointers = {m[5]: m for m in pointers_of(code, function) if re.search(rf"\b{m[5]}\b", body)}
    if count is None or not pointers or not may_be_copied(code, loop) or re.search(r"\b__sync|\basm\b", body):
        return
    if any(re.search(rf"\b{name}\b(?!{_own(count.name)})", code[slice(*loop.body)]) for name in pointers):
        return
    for width in (4, 2):
        if any(width not in VECTORS.get(m[2], ()) for m in pointers.values()):
            continue
        yield (
            f"vector@loop{i}={width}",
            source[: loop.start] + _of_vectors(count, body, pointers, width) + source[loop.body[1] :],
        )


def _of_vectors(count: CountedLoop, body: str, pointers: Mapping[str, re.Match[str]], width: int) -> str:
    """The loop of `_vectored`, then what is left of it element by element."""
    at, whole = f"{count.name}_vector", f"{count.name}_whole"
    plain = not re.search(r"\b(?:if|for|while|switch)\b", body)  # so that each assignment is made
    loads, stores = [], []
    for name, match in pointers.items():
        kind = f"{match[2].replace('unsigned', 'uint')}{width}"
        own = rf"\b{name}\b{_own(count.name)}"
        read = not plain or re.search(rf"{own}(?!\s*=(?!=))", body)
        loads.append(f"{kind} {name}_vector" + (f" = reinterpret_cast<const {kind}*>({name})[{at}];" if read else ";"))
        if not (match[1] or match[3]):
            stores.append(f"reinterpret_cast<{kind}*>({name})[{at}] = {name}_vector;")
    steps = []
    for part in range(width):
        text = body
        for name in pointers:
            text = re.sub(rf"\b{name}\b{_own(count.name)}", f"{name}_vector.{'xyzw'[part]}", text)
        steps.append(f"{{ const {count.kind} {count.name} = {width} * {at} + {part}; {text} }}")
    places = " | ".join(f"reinterpret_cast<unsigned long long>({name})" for name in pointers)
    rest = (
        f"for ({count.kind} {count.name} = {width} * {whole} + {count.first}; {count.name} < {count.end}; {count.next})"
    )
    return (
        f"{{ const {count.kind} {whole} = ({places}) % 16 ? 0 : ({count.end}) / {width}; "
        f"for ({count.kind} {at} = {count.first}; {at} < {whole}; {at} += {count.stride}) "
        f"{{ {' '.join([*loads, *steps, *stores])} }} {rest} {body} }}"
    )


def _own(name: str) -> str:
    return rf"\s*\[\s*{name}\s*\]"


# Functions -----------------------------------------------------------------------------------------------------------


def _of_function(source: str, code: str, function: Function) -> Iterator[Rewrite]:
    """Whether it is inlined, which pointers nobody else writes through, which caches its loads and stores want."""
    head, name = code[function.start : function.arguments[0]], function.name
    if not function.is_kernel:
        cleaned = _INLINE.sub("", source[function.start : function.arguments[0]])
        for how in ("forceinline", "noinline"):
            if f"__{how}__" not in head:
                text = f" __{how}__{cleaned}"
                yield f"inline@{name}={how}", source[: function.start] + text + source[function.arguments[0] :]
        if _INLINE.search(head):
            yield f"inline@{name}=off", source[: function.start] + cleaned + source[function.arguments[0] :]
    free = [m for m in pointers_of(code, function) if not m[4]]
    if free:
        yield f"restrict@{name}=arguments", replaced(source, [(m.start(5), m.start(5), "__restrict__ ") for m in free])
    inside = slice(*function.body)
    free_locals = [m for m in _LOCAL_POINTER.finditer(code, *function.body) if "__restrict__" not in m[0]]
    if free_locals:
        told = [(m.start("name"), m.start("name"), "__restrict__ ") for m in free_locals]
        yield f"restrict@{name}=locals", replaced(source, told)
    if "blockIdx.x" in code[inside]:
        text = source[inside].replace("blockIdx.x", "(gridDim.x - 1 - blockIdx.x)")
        yield f"backward@{name}=on", source[: function.body[0]] + text + source[function.body[1] :]
    loads, stores = _loads(code, function), _stores(code, function)
    for hint in LOAD_HINTS if loads else ():
        changes = [(start, end, f"hinted_{hint}({_address(source, start, end, mark)})") for start, end, mark in loads]
        yield f"load_hint@{name}={hint}", _with_helper(replaced(source, changes), _LOAD.replace("HINT", hint))
    for hint in STORE_HINTS if stores else ():
        changes = [
            (start, end, f"hinted_{hint}({_address(source, start, at, mark)}, {source[at:end].lstrip(' =')})")
            for start, at, end, mark in stores
        ]
        yield f"store_hint@{name}={hint}", _with_helper(replaced(source, changes), _STORE.replace("HINT", hint))


_SIZES = (("16", "int4"), ("8", "int2"), ("4", "int"), ("2", "short"))
_LOAD = "\n".join(
    [
        "template <class T> __device__ __forceinline__ T hinted_HINT(const T* from) {",
        *(
            f"    if constexpr (sizeof(T) == {size} && alignof(T) == {size}) {{ const {kind} bits = "
            f"__HINT(reinterpret_cast<const {kind}*>(from)); return reinterpret_cast<const T&>(bits); }}"
            for size, kind in _SIZES
        ),
        "    return *from;",
        "}",
        "",
    ]
)
_STORE = "\n".join(
    [
        "template <class T, class V> __device__ __forceinline__ void hinted_HINT(T* to, const V& given) {",
        "    const T value = given;",
        *(
            f"    if constexpr (sizeof(T) == {size} && alignof(T) == {size}) {{ __HINT(reinterpret_cast<{kind}*>(to), "
            f"reinterpret_cast<const {kind}&>(value)); return; }}"
            for size, kind in _SIZES
        ),
        "    *to = value;",
        "}",
        "",
    ]
)


def _with_helper(source: str, helper: str) -> str:
    return source if helper in source else helper + source


def _address(source: str, start: int, end: int, mark: str) -> str:
    """Where an element lies: what follows its star, or what it is called by."""
    text = source[start:end].strip()
    return text.lstrip("* ") if mark == "*" else f"&{text}"


def _loads(code: str, function: Function) -> list[tuple[int, int, str]]:
    """Where a function reads global memory that it only reads, and whether by a star or an index."""
    start, end = function.body
    const, shared = _reachable(code, function)
    found: list[tuple[int, int, str]] = []
    for match in _CAST.finditer(code, start, end):
        last = closing(code, match.end() - 1)
        root = re.compile(r"\s*&?\s*(\w*)").match(code, match.end())
        if match[1] and last > 0 and root is not None and root[1] not in shared:
            found.append((match.start(), last + 1, "*"))
    for match in _CALL.finditer(code, start, end):
        last = closing(code, match.end() - 1)
        if match[2] != "reinterpret_cast" and last > 0 and not re.match(r"\s*=(?!=)", code[last + 1 : end]):
            found.append((match.start(1), last + 1, "*"))
    for match in _ELEMENT.finditer(code, start, end):
        last = closing(code, match.end() - 1)
        if match[1] in const and last > 0:
            found.append((match.start(1), last + 1, "[]"))
    found.sort()
    return [one for i, one in enumerate(found) if all(one[0] >= other[1] for other in found[:i])]


def _reachable(code: str, function: Function) -> tuple[set[str], set[str]]:
    """Names of pointers to what a function only reads, and of those that lead to shared memory."""
    shared = {
        name
        for match in _SHARED.finditer(code, *function.body)
        for name in re.findall(r"\b([A-Za-z_]\w*)\s*(?:\[|,|\Z)", match[2])
    }
    const = {m[5] for m in pointers_of(code, function) if m[1] or m[3]}
    for match in _LOCAL_POINTER.finditer(code, *function.body):
        if any(re.search(rf"\b{name}\b", match["first"]) for name in shared):
            shared.add(match["name"])
        elif match["const"]:
            const.add(match["name"])
    return const - shared, shared


def _stores(code: str, function: Function) -> list[tuple[int, int, int, str]]:
    """Where a function writes an element of global memory: from where, to where its value stands, to the semicolon."""
    start, end = function.body
    written = {m[5] for m in pointers_of(code, function) if not (m[1] or m[3])}
    found = []
    for match, mark in [(m, "*") for m in _CAST.finditer(code, start, end)] + [
        (m, "[]") for m in _ELEMENT.finditer(code, start, end)
    ]:
        last = closing(code, match.end() - 1)
        root = re.compile(r"\s*&?\s*(\w*)").match(code, match.end())
        name = match[1] if mark == "[]" else "" if match[1] or root is None else root[1]
        if last < 0 or name not in written or not _STARTS.search(code[start : match.start()]):
            continue
        if assigned := re.compile(r"\s*=(?!=)").match(code, last + 1):
            stop = code.find(";", assigned.end(), end)
            if stop > 0:
                found.append((match.start(), last + 1, stop, mark))
    return found


# Kernels -------------------------------------------------------------------------------------------------------------


def _bounded(source: str, code: str, kernel: Function) -> Iterator[Rewrite]:
    """How many threads, blocks and registers a kernel is compiled for."""
    name = kernel.name
    match = _BOUNDS.search(code, kernel.start, kernel.arguments[0])
    last = closing(code, match.end() - 1) if match is not None else -1

    def with_bounds(text: str) -> str:
        if match is None:
            return f"{source[: kernel.start]} {text}{source[kernel.start :]}"
        return source[: match.start()] + text + source[last + 1 :].removeprefix("" if text else " ")

    if match is None:
        for threads in MAX_THREADS:
            yield f"max_threads@{name}={threads}", with_bounds(f"__launch_bounds__({threads})")
    else:
        yield f"max_threads@{name}=off", with_bounds("")
    if match is not None and match[1] == "__launch_bounds__":
        comma = next(commas(code, match.end(), last), last)
        given = code[comma + 1 : last].strip()
        for blocks in MIN_BLOCKS:
            if blocks != given:
                text = f"__launch_bounds__({source[match.end() : comma].strip()}, {blocks})"
                yield f"min_blocks@{name}={blocks}", with_bounds(text)
        if given:
            yield f"min_blocks@{name}=off", with_bounds(f"__launch_bounds__({source[match.end() : comma].strip()})")
    for registers in REGISTERS:
        if match is None or code[match.end() : last].strip() != registers:
            yield f"registers@{name}={registers}", with_bounds(f"__maxnreg__({registers})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """A launch of a kernel: places of its name, of the number of blocks, and of what is handed over."""

    start: int
    named: str
    grid: tuple[int, int]
    arguments: tuple[int, int]
    end: int  # past its semicolon


def _launches(code: str, name: str) -> Iterator[_Launch]:
    for match in re.finditer(rf"\b({name}\s*(?:<[^;{{}}]*?>)?)\s*<<<", code):
        configured = code.find(">>>", match.end())
        given = code.find("(", configured)
        last = closing(code, given) if configured > 0 and given > 0 else -1
        if last > 0 and code[last + 1 :].lstrip().startswith(";"):
            comma = next(commas(code, match.end(), configured), configured)
            yield _Launch(
                start=match.start(),
                named=match[1].strip(),
                grid=(match.end(), comma),
                arguments=(given + 1, last),
                end=code.index(";", last) + 1,
            )


def _laid_out(source: str, code: str, kernel: Function, functions: Sequence[Function]) -> Iterator[Rewrite]:
    """How blocks of a kernel are laid over the grid, how many stay, and how the first cache is shared out."""
    name, body = kernel.name, source[slice(*kernel.body)]
    launches = list(_launches(code, name))
    for percent in CARVEOUTS if launches else ():
        about = "cudaFuncAttributePreferredSharedMemoryCarveout"
        changes = [
            (one.start, one.start, f"{{ cudaFuncSetAttribute({one.named}, {about}, {percent}); ") for one in launches
        ] + [(one.end, one.end, " }") for one in launches]
        yield f"carveout@{name}={percent}", replaced(source, changes)
    called = "".join(code[slice(*f.body)] for f in functions if not f.is_kernel)
    if re.search("blockIdx|gridDim", called) or re.search(r"gridDim|blockIdx\.z", body) or "blockIdx.x" not in body:
        return  # where a block stands is asked for elsewhere too
    if "blockIdx.y" in body:
        walked = body.replace("blockIdx.x", "walked_x").replace("blockIdx.y", "walked_y")
        for rows in GROUPS:
            group = f"({rows} * gridDim.x)"
            order = (
                f"const unsigned walked = blockIdx.y * gridDim.x + blockIdx.x, walked_first = walked / {group} * {rows}, "
                f"walked_rows = min({rows}u, gridDim.y - walked_first), walked_in = walked % {group}, "
                "walked_x = walked_in / walked_rows, walked_y = walked_first + walked_in % walked_rows;"
            )
            yield f"swizzle@{name}={rows}", replaced(source, [(*kernel.body, f"{{ {order} {walked} }}")])
        return
    for blocks in PER_UNIT if launches else ():
        every = "const auto one_block = [&](unsigned walked_x) " + body.replace("blockIdx.x", "walked_x") + "; "
        loop = "for (unsigned walked_x = blockIdx.x; walked_x < walked_blocks; walked_x += gridDim.x) "
        comma = ", " if source[slice(*kernel.arguments)].strip() else ""
        changes = [
            (*kernel.body, f"{{ {every}{loop}{{ one_block(walked_x); __syncthreads(); }} }}"),
            (kernel.arguments[1], kernel.arguments[1], f"{comma}unsigned walked_blocks"),
        ]
        most = (
            "[](unsigned blocks) { int device = 0, units = 1; cudaGetDevice(&device); "
            "cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device); "
            f"const unsigned most = {blocks} * units; return blocks < most ? blocks : most; }}"
        )
        for one in launches:
            grid = source[slice(*one.grid)].strip()
            comma = ", " if source[slice(*one.arguments)].strip() else ""
            changes += [(*one.grid, f"{most}({grid})"), (one.arguments[1], one.arguments[1], f"{comma}{grid}")]
        yield f"persistent@{name}={blocks}", replaced(source, changes)


# Shared memory -------------------------------------------------------------------------------------------------------


def _padded(source: str, code: str) -> Iterator[Rewrite]:
    """Longer lines of shared arrays, so that elements of a column lie in different banks."""
    declared = list(_SHARED.finditer(code))
    spans = [match.span(2) for match in declared]
    spans += [
        (match.end(), closing(code, match.end() - 1))
        for match in _STRUCT.finditer(code)
        if any(match[1] == one[1] for one in declared)
    ]
    for start, end in spans:
        for line in _LINES.finditer(code, start, end):
            name = re.match(r"\w+", line[0])
            for more in PADDINGS:
                text = source[: line.end(1)] + f" + {more}" + source[line.end(1) :]
                yield f"pad@{name[0] if name else ''}={more}", text
