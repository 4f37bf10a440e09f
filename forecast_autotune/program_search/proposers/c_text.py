"""Texts in C++ and in CUDA: where their loops, calls and brackets are, and rewrites of a loop that both share.

They follow the text alone; see `cpp_rewrites`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TILES = (16, 64, 256)  # rounds of an inner loop

# A comment or string without end ends with the text or line: else each would be looked for to the end, in square time.
_BLANK = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*(?:\"|$|\\?\Z)|'(?:\\.|[^'\\\n]){1,16}'", re.DOTALL | re.MULTILINE
)
_FOR = re.compile(r"\bfor\s*\(")
_COUNTED = re.compile(
    r"\s*([\w:]+(?:\s+[\w:]+)*)\s+(\w+)\s*=\s*([^;]+);\s*(\w+)\s*<\s*([^;]+);\s*"
    r"(?:\+\+(\w+)|(\w+)\+\+|(\w+)\s*\+=\s*([^;,]+?))\s*"
)
_SUM = re.compile(r"\s*(\w+)\s*\+=\s*([^;=]+);\s*\Z")

Rewrite = tuple[str, str]
"""What was done, as `what@where=how`; and the text that comes of it."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Where a loop stands in a text."""

    start: int  # of `for`
    header: tuple[int, int]  # inside the parentheses
    body: tuple[int, int]  # a block with its braces, or a statement with its semicolon


@dataclass(frozen=True, slots=True)
class CountedLoop:
    """What the header of a loop counts: `for (KIND NAME = FIRST; NAME < END; NAME += STRIDE)`."""

    kind: str
    name: str
    first: str
    end: str
    stride: str

    def strides(self, count: int) -> str:
        """So many rounds of it, as an expression to add."""
        return str(count) if self.stride == "1" else f"{count} * ({self.stride})"

    @property
    def next(self) -> str:
        """The expression that ends a round."""
        return f"++{self.name}" if self.stride == "1" else f"{self.name} += {self.stride}"


def counted(header: str) -> CountedLoop | None:
    """What a loop counts; None where it does not simply count up to something."""
    match = _COUNTED.fullmatch(header)
    if match is None:
        return None
    kind, name, first, compared, end, before_it, after_it, added, stride = match.groups()
    if {name} != {compared, before_it or after_it or added}:
        return None
    return CountedLoop(kind, name, first, end, stride or "1")


def loop_rewrites(source: str, code: str, loop: Loop, i: int, loops: Sequence[Loop]) -> Iterator[Rewrite]:
    """A loop exchanged with the one in it, tiled, split into several sums, or several rounds of it at once."""
    inner = next((other for other in loops if other.start == loop.body[0]), None)
    headers = [source[slice(*one.header)] for one in (loop, inner) if one is not None]
    if inner is not None:
        names = [match[1] for h in headers if (match := re.match(r"\s*(?:[\w:]+\s+)+(\w+)\s*=", h))]
        if (
            len(names) == 2
            and not re.search(rf"\b{names[0]}\b", headers[1])
            and not re.search(rf"\b{names[1]}\b", headers[0])
        ):
            swapped = f"for ({headers[1]}) for ({headers[0]}) {source[slice(*inner.body)]}"
            yield f"interchange@loop{i}=on", source[: loop.start] + swapped + source[inner.body[1] :]
            if within := counted(headers[1]):
                for size in TILES:
                    tiled = _tiled(headers[0], within, size, source[slice(*inner.body)])
                    yield f"tile@loop{i}={size}", source[: loop.start] + tiled + source[inner.body[1] :]
    count = counted(headers[0])
    if count is None or not may_be_copied(code, loop):
        return
    body = source[slice(*loop.body)]

    def at(round_: int) -> str:
        return re.sub(rf"\b{count.name}\b", f"({count.name} + {count.strides(round_)})", body) if round_ else body

    total = _SUM.match(body)
    for times in (2, 4):
        head = f"{{ {count.kind} {count.name} = {count.first}; "
        several = (
            f"for (; {count.name} + {count.strides(times - 1)} < {count.end}; {count.name} += {count.strides(times)})"
        )
        rest = f"for (; {count.name} < {count.end}; {count.next}) {body}"
        if total:  # as many sums beside each other, which need not wait for one another
            others = [f"{count.name}_sum{s}" for s in range(1, times)]
            sums = "".join(f"auto {other} = {total[1]} - {total[1]}; " for other in others)
            steps = body + "".join(at(s).replace(total[1], other, 1) for s, other in enumerate(others, 1))
            joined = "".join(f"{total[1]} += {other}; " for other in others)
            text = f"{head}{sums}{several} {{ {steps} }} {rest} {joined}}}"
            yield f"split@loop{i}={times}", source[: loop.start] + text + source[loop.body[1] :]
        elif len(body) < 1500:
            steps = " ".join(f"{{ {at(s)} }}" for s in range(times))
            text = f"{head}{several} {{ {steps} }} {rest} }}"
            yield f"steps@loop{i}={times}", source[: loop.start] + text + source[loop.body[1] :]


def may_be_copied(code: str, loop: Loop) -> bool:
    """Whether a loop's body may stand in a text several times, and the loop give way to other statements."""
    wanted = re.search(r"#pragma[^\n]*\n\s*\Z", code[: loop.start])  # a line that wants a loop to follow
    leaves = r"\b(?:break|continue|return|goto)\b|^\s*#(?!pragma (?:GCC )?unroll)"
    return not wanted and not re.search(leaves, code[slice(*loop.body)], re.MULTILINE)


def _tiled(outer: str, inner: CountedLoop, size: int, body: str) -> str:
    """Two loops as three: tiles of the inner one, the outer one within a tile, and the tile's part of the inner one."""
    name, tile, width = inner.name, f"{inner.name}_tile", inner.strides(size)
    return (
        f"for ({inner.kind} {tile} = {inner.first}; {tile} < {inner.end}; {tile} += {width}) for ({outer}) "
        f"for ({inner.kind} {name} = {tile}; {name} < {inner.end} && {name} < {tile} + {width}; {inner.next}) {body}"
    )


def before(source: str, loop: Loop, line: str) -> str:
    """The text with a line of its own before a loop."""
    return f"{source[: loop.start].rstrip(' ')}\n{line}\n{source[loop.start :]}"


def loops_of(code: str) -> Iterator[Loop]:
    """The loops of a text whose comments are blanked, those within others after them."""
    for match in _FOR.finditer(code):
        header_end = closing(code, match.end() - 1)
        if header_end < 0:
            continue
        body = _statement(code, header_end + 1)
        if body is not None:
            yield Loop(match.start(), (match.end(), header_end), body)


def _statement(code: str, at: int) -> tuple[int, int] | None:
    """Where the statement that begins at or after a place begins and ends; None where that is not clear."""
    while at < len(code) and (code[at].isspace() or code[at] == "#"):
        if code[at] == "#":
            return None  # a pragma between a loop and its body belongs to the body
        at += 1
    if at >= len(code):
        return None
    if code[at] == "{":
        end = closing(code, at)
        return None if end < 0 else (at, end + 1)
    if re.match(r"(?:if|else|while|do|switch|try)\b", code[at:]):
        return None
    if match := _FOR.match(code, at):
        header_end = closing(code, match.end() - 1)
        inner = _statement(code, header_end + 1) if header_end >= 0 else None
        return None if inner is None else (at, inner[1])
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth < 0:
            return None
        if code[i] == ";" and depth == 0:
            return at, i + 1
    return None


def calls(code: str, name: str) -> Iterator[tuple[int, int]]:
    """Where a function is called with one argument."""
    for match in re.finditer(rf"(?<![\w.:>] )(?<![\w.:>])\b{name}\(", code):
        end = closing(code, match.end() - 1)
        inside = code[match.end() : end]
        declared = re.search(r"[\w>]\s+\Z", code[: match.start()]) and not re.search(
            r"\breturn\s+\Z", code[: match.start()]
        )
        if end > 0 and inside and "," not in inside and not declared:
            yield match.start(), end + 1


def closing(code: str, at: int) -> int:
    """Where the bracket that opens at a place is closed; -1 where it is not."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0:
            return i
    return -1


def blanked(source: str) -> str:
    """The text with comments and literals blanked, as long as it was: brackets within them open nothing."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return _BLANK.sub(blank, source)
