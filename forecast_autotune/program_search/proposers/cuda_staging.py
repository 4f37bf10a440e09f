"""A rewrite of a CUDA text: what all threads of a block read alike, they copy into shared memory together.

`for (int k = 0; k < n; ++k) sum += w[k] * x[k * n + me];` reads `w` in tiles: threads copy one, wait for each other, and
read it there. Where the loop has others within, such as over the taps of a filter, a tile holds what several of its rounds
read; where not even one round fits, the loop reads global memory as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .block_alike import BlockAlike, Control, Write, count_of
from .c_text import CountedLoop, Loop, Rewrite, closing, may_be_copied
from .cuda_text import Function, pointers_of, replaced

STAGED = (64, 256, 1024)  # elements of a tile

_may_be_copied = lru_cache(maxsize=64)(may_be_copied)  # asked for each element that a loop reads

_NAME = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")
_LOCAL = re.compile(
    r"(?<=[;{}(])\s*const\s+([\w:]+)\s*\*\s*(?:const\s+)?(?:__restrict__\s+)?(\w+)\s*(\[[^;=]*\])?\s*[=;]"
)
_WHOLLY = re.compile(r"#pragma unroll[ \t]*\n\s*\Z")
_PARTLY = re.compile(r"[ \t]*#pragma unroll[ \t(]+\w+\)?[ \t]*\n\s*\Z")
_CONDITION = re.compile(r"\?|&&|\|\|")
# Types that count no further than a tile, or count no places.
_NARROW = re.compile(r"\b(?:char|short|float|double|half|u?int(?:8|16)_t)\b")
_CHANGED = re.compile(r"\s*(?:(?:<<|>>|[-+*/%&|^])?=(?!=)|\+\+|--)")
_DECLARED = re.compile(r"\s*((?:const\s+)?[\w:]+(?:<[^;={}]*?>)?(?:\s+(?:int|long|const))*)[\s*&]+\w+\s*(?:[=,\[{]|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dimension:
    """A loop that what is read depends on, and what it counts."""

    loop: Control
    count: CountedLoop
    is_unrolled: bool  # wholly: its counter is a number to the compiler, and stays one

    @property
    def rounds(self) -> str:
        """How many rounds it makes, as an expression."""
        first, end, stride = (_bracketed(text) for text in (self.count.first, self.count.end, self.count.stride))
        whole = end if first == "0" else f"({end} - {first})"
        return whole if stride == "1" else f"(({whole} + {stride} - 1) / {stride})"

    def at(self, round_: str, first: str = "") -> str:
        """The value of its counter in a round."""
        first, stride = first or _bracketed(self.count.first), _bracketed(self.count.stride)
        text = round_ if stride == "1" else f"{round_} * {stride}"
        return text if first == "0" else f"{first} + {text}"

    def round(self, first: str = "") -> str:
        """The round that its counter stands at."""
        first, stride = first or _bracketed(self.count.first), _bracketed(self.count.stride)
        text = self.count.name if first == "0" else f"({self.count.name} - {first})"
        return text if stride == "1" else f"({text} / {stride})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ElementRead:
    """An element that is read: its place, the loops that it depends on from the outside in, and what they declare for it."""

    start: int
    end: int
    dimensions: tuple[_Dimension, ...]
    declared: Mapping[int, str]


def staged(source: str, code: str, kernel: Function, functions: Sequence[Function]) -> Iterator[Rewrite]:
    """Arrays that all threads of a block read alike, each through a tile in shared memory."""
    try:
        alike = BlockAlike(code, kernel, functions)
    except (ValueError, RecursionError):  # of what nests too deeply nothing is known either
        return
    inside = code[slice(*kernel.body)]
    for name, (kind, depth) in _arrays(code, kernel, alike).items():
        if re.search(rf"\b{name}_(?:tile|first|last|at|rounds|of_\w+)\b", inside):
            continue  # staged already, or names that are taken
        reads = [
            read
            for match in re.compile(rf"(?<![\w.>&\]]){name}\s*\[").finditer(code, *kernel.body)
            if (read := _read(code, match.start(), match.end() - 1, depth, alike)) is not None
        ]
        together = [read for read in reads if read.dimensions == reads[0].dimensions]
        for size in STAGED if together else ():
            texts = list(dict.fromkeys(source[read.start : read.end] for read in together))
            tile = _Tile(source=source, name=name, kind=kind, reads=together, texts=texts, size=size)
            if len(texts) <= size:
                yield f"stage@{kernel.name}.{name}={size}", tile.text(_start_of(code, together[0].dimensions[0].loop))


def _arrays(code: str, kernel: Function, alike: BlockAlike) -> dict[str, tuple[str, int]]:
    """Pointers to global memory that a kernel only reads, by name: of which type, and how many indices make an element."""
    body = code[slice(*kernel.body)]
    arguments = pointers_of(code, kernel)
    const = {m[5]: m[2] for m in arguments if m[1] or m[3]}
    found = {name: (kind, 1) for name, kind in const.items()}
    for match in arguments:
        # Others may be written through, unless each time they are mentioned an element is read
        mentions = [m.end() for m in re.finditer(rf"\b{match[5]}\b", body)]
        if match[5] not in const and all(_is_read(body, at, 1) for at in mentions):
            found[match[5]] = (match[2], 1)
    for match in _LOCAL.finditer(code, *kernel.body):
        given = " ".join(write.given for write in alike.writes if write.name == match[2])
        roots = {*_NAME.findall(given)} & ({m[5] for m in arguments} | found.keys())
        if roots and roots <= found.keys() and match[1] != "auto":
            found[match[2]] = (match[1], 2 if match[3] else 1)
    return found


def _is_read(code: str, at: int, depth: int) -> bool:
    """Whether so many indices follow a place, and no assignment."""
    for _ in range(depth):
        at += len(code[at:]) - len(code[at:].lstrip())
        if not code.startswith("[", at):
            return False
        at = closing(code, at) + 1
    return at > 0 and not _CHANGED.match(code, at)


def _read(code: str, start: int, opened: int, depth: int, alike: BlockAlike) -> _ElementRead | None:
    """What is read at a place, if all threads of a block read it alike in a loop that they come to together."""
    end = opened
    if not _is_read(code, opened, depth):
        return None
    for _ in range(depth):
        end = closing(code, code.index("[", end)) + 1
    text = code[start:end]
    if (
        not alike.is_alike(text)
        or re.search(r"(?:&|\+\+|--)\s*\Z", code[max(0, start - 10) : start])
        or re.search(r"(?<![=!<>])=(?!=)|\+\+|--", text)
        or alike.is_in_a_header(start)
        or _CONDITION.search(_statement_around(code, start))
    ):
        return None
    around = alike.around(start)
    for i, outer in enumerate(around):
        read = _read_in(code, (start, end), outer, around[i:], alike)
        if read is not None:
            return read
    return None


def _statement_around(code: str, at: int) -> str:
    first = max(code.rfind(mark, 0, at) for mark in ";{}") + 1
    return code[first : code.index(";", at)]


def _read_in(
    code: str, place: tuple[int, int], outer: Control, within: Sequence[Control], alike: BlockAlike
) -> _ElementRead | None:
    """What is read, where an outer loop may be walked in tiles of it."""
    if any(control.kind != "for" for control in within) or not alike.is_reached_together(outer.start):
        return None
    if not _may_be_copied(code, Loop(_start_of(code, outer), outer.header, outer.body)):
        return None
    counts = {count.name: (loop, count) for loop in within if (count := count_of(code, loop)) is not None}
    written = alike.written(*outer.body)
    names, declared, wanted = set[str](), dict[int, str](), [*_NAME.findall(code[slice(*place)])]
    while wanted:
        name = wanted.pop()
        if name in names:
            continue
        names.add(name)
        writes = [write for write in written if write.name == name]
        if name in counts or not writes:
            continue
        line = _declaration(code, writes[0], place[0], alike) if len(writes) == 1 else None
        if line is None:
            return None
        declared[writes[0].at] = line
        wanted += _NAME.findall(writes[0].given)
    dimensions = [
        _Dimension(loop=loop, count=count, is_unrolled=bool(_WHOLLY.search(code[: loop.start])))
        for name, (loop, count) in counts.items()
        if name in names
    ]
    if not dimensions or dimensions[0].loop != outer or dimensions[0].is_unrolled:
        return None
    for one in dimensions:
        parts = [one.count.end, one.count.stride, *([] if one.loop == outer else [one.count.first])]
        bounds = {name for part in parts for name in _NAME.findall(part)}
        counted_up = [w for w in alike.written(one.loop.start, one.loop.body[1]) if w.name == one.count.name]
        if (
            not alike.is_alike(code[slice(*one.loop.header)])
            or _NARROW.search(one.count.kind)
            or bounds & ({write.name for write in written} | counts.keys())
            or len(counted_up) != 2  # in its header, and nowhere else
        ):
            return None
    return _ElementRead(start=place[0], end=place[1], dimensions=tuple(dimensions), declared=declared)


def _start_of(code: str, loop: Control) -> int:
    """Where a loop begins, with the line before that says how often to unroll it."""
    match = _PARTLY.search(code, max(0, loop.start - 200), loop.start)
    return loop.start if match is None else match.start()


def _declaration(code: str, write: Write, before: int, alike: BlockAlike) -> str | None:
    """The declaration of a name that holds where it is read, on its own; None where it is given its value otherwise."""
    statement = max(code.rfind(mark, 0, write.at) for mark in ";{}") + 1
    kind = _DECLARED.match(code, statement)
    around = alike.around(write.at)
    if write.value is None or kind is None or write.at > before or any(before not in control for control in around):
        return None
    mark = re.search(r"[*&\s]*\Z", code[statement : write.at])
    marks = "" if mark is None else mark[0].replace(" ", "").strip()
    return f"{kind[1]}{marks} {write.name} = {code[slice(*write.value)].strip()};"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """What a loop reads of an array, so many elements at a time, in shared memory.

    One round of the loop reads an element for each of its texts in each round of the loops within; these follow each other.
    Loops within that are unrolled stay loops where the tile is filled, for their counters may stand for registers.
    """

    source: str
    name: str
    kind: str
    reads: Sequence[_ElementRead]
    texts: Sequence[str]  # what is read of the array in a round, by different indices
    size: int

    def text(self, start: int) -> str:
        """The source with the loop, which begins at a place, walked in tiles."""
        outer, *others = self.reads[0].dimensions
        name, kind, first, last = self.name, outer.count.kind, f"{self.name}_first", f"{self.name}_last"
        pragma, end = self.source[start : outer.loop.start].split("\n")[:-1], _bracketed(outer.count.end)
        of_round = " * ".join([*map(self._of, others), *([str(len(self.texts))] if len(self.texts) > 1 else [])])
        forth = outer.at(f"{name}_rounds", "0")
        lines = [
            *(f"const int {self._of(one)} = {one.rounds};" for one in others),
            f"const int {name}_rounds = {self.size}{f' / ({of_round})' if of_round else ''};",
            f"for ({kind} {first} = {outer.count.first}; {first} < {end}; {first} += {forth}) {{",
            f"const {kind} {last} = {first} + {forth} < {end} ? {first} + {forth} : {end};",
            *self._filled(),
            "__syncthreads();",
            *pragma,
            f"for ({kind} {outer.count.name} = {first}; {outer.count.name} < {last}; {outer.count.next}){self._body()}",
            "__syncthreads(); // before the tile is overwritten",
            "}",
        ]
        if others:  # else a round is of one element, or of as many as there are texts
            sizes = [one.rounds for one in others]
            product = f"1LL * {' * '.join(sizes)} <= {self.size // len(self.texts)}"
            fits = " && ".join([*(f"{size} > 0" for size in sizes), product])
            whole = self.source[outer.loop.start : outer.loop.body[1]]
            lines = [f"if ({fits}) {{", *lines, "} else {", *pragma, whole, "}"]
        # Elements that one thread reads one after the other come four at once only where it is known that they may
        aligned = "alignas(16) " if self.kind in ("float", "int", "unsigned", "double") else ""
        lines = ["{", f"{aligned}__shared__ {self.kind} {name}_tile[{self.size}];", *lines, "}"]
        before, _, margin = self.source[:start].rpartition("\n")
        return f"{before}\n{margin}{_indented(lines, re.sub('[^ ].*', '', margin))}{self.source[outer.loop.body[1] :]}"

    def _of(self, one: _Dimension) -> str:
        """The name of how many rounds a loop makes."""
        return f"{self.name}_of_{one.count.name}"

    def _element(self, round_: str, text: str) -> str:
        """What the tile holds of one of the texts, from a round of the loops that are not unrolled."""
        for one in self.reads[0].dimensions:
            if one.is_unrolled:
                round_ = f"{_bracketed(round_)} * {self._of(one)} + {one.round()}"
        if len(self.texts) > 1:
            round_ = f"{_bracketed(round_)} * {len(self.texts)} + {self.texts.index(text)}"
        return f"{self.name}_tile[{round_}]"

    def _body(self) -> str:
        """The body of the loop, which reads the tile."""
        outer, *others = self.reads[0].dimensions
        round_, start = outer.round(f"{self.name}_first"), outer.loop.body[0]
        for one in others:
            if not one.is_unrolled:
                round_ = f"{_bracketed(round_)} * {self._of(one)} + {one.round()}"
        changes = [
            (read.start - start, read.end - start, self._element(round_, self.source[read.start : read.end]))
            for read in self.reads
        ]
        return replaced(self.source[slice(*outer.loop.body)], changes)

    def _filled(self) -> list[str]:
        """The loop in which the threads of a block fill the tile together."""
        outer, *others = self.reads[0].dimensions
        at, within, left = f"{self.name}_at", [one for one in others if not one.is_unrolled], f"{self.name}_at"
        counters = []
        for one in reversed(within):
            value = one.at(f"{left} % {self._of(one)}")
            counters.append(f"const {one.count.kind} {one.count.name} = {value};")
            left = f"{left} / {self._of(one)}"
        me, threads = "threadIdx.x", "blockDim.x"
        if re.search(r"threadIdx\s*\.\s*[yz]", self.source):
            me = "threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)"
            threads = "blockDim.x * blockDim.y * blockDim.z"
        unrolled = [f"for ({self.source[slice(*one.loop.header)]}) {{" for one in others if one.is_unrolled]
        loops = [line for loop in unrolled for line in ("#pragma unroll", loop)]
        declared = {place: line for read in self.reads for place, line in read.declared.items()}
        bound = " * ".join([f"{self.name}_rounds", *map(self._of, within)])
        return [
            f"for (int {at} = {me}; {at} < {bound}; {at} += {threads}) {{",
            f"const {outer.count.kind} {outer.count.name} = {outer.at(left, f'{self.name}_first')};",
            *counters,
            f"if ({outer.count.name} < {self.name}_last) {{",
            *loops,
            *(declared[place] for place in sorted(declared)),
            *(f"{self._element(at, text)} = {text};" for text in self.texts),
            *["}"] * (2 + len(loops) // 2),
        ]


def _bracketed(text: str) -> str:
    """An expression that may stand beside any operator."""
    is_whole = re.fullmatch(r"[\w.]+", text) or (text.startswith("(") and closing(text, 0) == len(text) - 1)
    return text if is_whole else f"({text})"


def _indented(lines: Sequence[str], margin: str) -> str:
    """Lines as a text whose first line stands where it should; those that go on over several keep their own margins."""
    found, depth = "", 0
    for line in lines:
        depth -= line.startswith("}")
        found += "" if not found else "\n" if line.startswith("#") else f"\n{margin}{'    ' * depth}"
        found += line
        depth += line.endswith("{")
    return found
