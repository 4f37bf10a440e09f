"""Rewrites of a C++ kernel's text, each at one place: how loops are unrolled, nested, tiled and split, what the compiler
is told.

They follow the text alone, so one may change what the kernel computes, or may not compile: a candidate is examined before it
counts. None asks for other arithmetic: what reorders floating-point sums is written out, and `-ffast-math` is not
among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

UNROLLS = (1, 2, 4, 8, 16, 32)
TILES = (16, 64, 256)  # rounds of an inner loop
WIDTHS = (128, 256, 512)  # bits of a vector
AHEAD = (16, 64, 256)  # elements to prefetch ahead of what is loaded
OPTIONS = (
    *(
        "unroll-loops",
        "no-tree-vectorize",
        "no-tree-slp-vectorize",
        "prefetch-loop-arrays",
        "no-ivopts",
        "modulo-sched",
    ),
    *("tree-loop-distribution", "no-schedule-insns", "sched-pressure", "no-gcse", "peel-loops", "split-loops"),
)
"""Of GCC's optimizer, for the whole text; none of them changes arithmetic."""

_FOR = re.compile(r"\bfor\s*\(")
_PRAGMA = re.compile(r"^[ \t]*#pragma GCC (unroll (\d+)|ivdep)[ \t]*$", re.MULTILINE)
_COUNTED = re.compile(
    r"\s*([\w:]+(?:\s+[\w:]+)*)\s+(\w+)\s*=\s*([^;]+);\s*(\w+)\s*<\s*([^;]+);\s*(?:\+\+(\w+)|(\w+)\+\+)\s*"
)
_FUNCTION = re.compile(
    r"^((?:extern \"C\" |static |inline )*)"
    r"((?:void|float|double|int|bool|auto|[A-Z]\w*)[\w:<>*& ]*?\b(\w+)\(([^;{}]*)\)\s*\{)",
    re.MULTILINE,
)
_WIDTH = r'#pragma GCC target\("prefer-vector-width=\d+"\)\n'
_POINTER = re.compile(r"\b((?:const\s+)?(?:float|double|int|std::\w+|u?int\d+_t)\s*\*)\s*(\w+)(?=\s*[,)])")
_SUM = re.compile(r"\s*(\w+)\s*\+=\s*([^;=]+);\s*\Z")

Rewrite = tuple[str, str]
"""What was done, as `what@where=how`; and the text that comes of it."""


def rewrites(source: str) -> Iterator[Rewrite]:
    """Every rewrite of a text by one step."""
    code = _blanked(source)
    loops = list(_loops(code))
    for i, match in enumerate(_PRAGMA.finditer(source)):
        if match[2]:
            for count in UNROLLS:
                if str(count) != match[2]:
                    yield (
                        f"unroll@pragma{i}={count}",
                        source[: match.start(1)] + f"unroll {count}" + source[match.end(1) :],
                    )
        else:
            yield f"ivdep@pragma{i}=off", source[: match.start()] + source[match.end() :]
    for i, loop in enumerate(loops):
        if not re.search(r"#pragma GCC \w+[^\n]*\n\s*\Z", code[: loop.start]):
            for count in (2, 4, 8):
                yield f"unroll@loop{i}={count}", _before(source, loop, f"#pragma GCC unroll {count}")
            yield f"ivdep@loop{i}=on", _before(source, loop, "#pragma GCC ivdep")
        yield from _of_loop(source, code, loop, i, loops)
    yield from _of_functions(source)
    for i, (start, end) in enumerate(_calls(code, "load")):
        for ahead in AHEAD:
            inner = source[start:end]
            argument = inner[inner.index("(") + 1 : -1]
            text = f"(__builtin_prefetch(({argument}) + {ahead}), {inner})"
            yield f"prefetch@load{i}={ahead}", source[:start] + text + source[end:]
    for width in WIDTHS:
        line = f'#pragma GCC target("prefer-vector-width={width}")\n'
        if line not in source:
            yield f"vector_width@text={width}", line + re.sub(_WIDTH, "", source)
    for option in OPTIONS:
        line = f'#pragma GCC optimize("{option}")\n'
        if line in source:
            yield f"option@{option}=off", source.replace(line, "")
        else:
            yield f"option@{option}=on", line + source


@dataclass(frozen=True, slots=True)
class _Loop:
    start: int  # of `for`
    header: tuple[int, int]  # inside the parentheses
    body: tuple[int, int]  # a block with its braces, or a statement with its semicolon


def _of_loop(source: str, code: str, loop: _Loop, i: int, loops: list[_Loop]) -> Iterator[Rewrite]:
    inner = next((other for other in loops if other.start == loop.body[0]), None)
    headers = [source[slice(*one.header)] for one in (loop, inner) if one is not None]
    counted = _COUNTED.fullmatch(headers[0])
    if inner is not None:
        names = [match[1] for h in headers if (match := re.match(r"\s*(?:[\w:]+\s+)+(\w+)\s*=", h))]
        if (
            len(names) == 2
            and not re.search(rf"\b{names[0]}\b", headers[1])
            and not re.search(rf"\b{names[1]}\b", headers[0])
        ):
            swapped = f"for ({headers[1]}) for ({headers[0]}) {source[slice(*inner.body)]}"
            yield f"interchange@loop{i}=on", source[: loop.start] + swapped + source[inner.body[1] :]
            if within := _COUNTED.fullmatch(headers[1]):
                for size in TILES:
                    tiled = _tiled(headers[0], within, size, source[slice(*inner.body)])
                    yield f"tile@loop{i}={size}", source[: loop.start] + tiled + source[inner.body[1] :]
    if counted is None or len({counted[2], counted[4], counted[6] or counted[7]}) > 1:
        return
    kind, name, first, _, end, _, _ = counted.groups()
    body = source[slice(*loop.body)]
    told = re.search(r"#pragma[^\n]*\n\s*\Z", code[: loop.start])  # whose line wants a loop to follow
    if told or re.search(r"\b(?:break|continue|return|goto)\b|^\s*#", code[slice(*loop.body)], re.MULTILINE):
        return

    def at(step: int) -> str:
        return re.sub(rf"\b{name}\b", f"({name} + {step})", body) if step else body

    for times in (2, 4):
        if total := _SUM.match(body):  # as many sums beside each other, which need not wait for one another
            sums = "".join(f"auto {name}_sum{s} = {total[1]} - {total[1]}; " for s in range(1, times))
            steps = "".join(at(s).replace(total[1], f"{name}_sum{s}", 1) if s else body for s in range(times))
            joined = "".join(f"{total[1]} += {name}_sum{s}; " for s in range(1, times))
            text = (
                f"{{ {kind} {name} = {first}; {sums}for (; {name} + {times - 1} < {end}; {name} += {times}) {{ {steps} }} "
                f"for (; {name} < {end}; ++{name}) {body} {joined}}}"
            )
            yield f"split@loop{i}={times}", source[: loop.start] + text + source[loop.body[1] :]
        elif len(body) < 1500:
            steps = " ".join(f"{{ {at(s)} }}" for s in range(times))
            text = (
                f"{{ {kind} {name} = {first}; for (; {name} + {times - 1} < {end}; {name} += {times}) {{ {steps} }} "
                f"for (; {name} < {end}; ++{name}) {body} }}"
            )
            yield f"steps@loop{i}={times}", source[: loop.start] + text + source[loop.body[1] :]


def _tiled(outer: str, inner: re.Match[str], size: int, body: str) -> str:
    """Two loops as three: tiles of the inner one, the outer one within a tile, and the tile's part of the inner one."""
    kind, name, first, compared, end, *_ = inner.groups()
    if compared != name:
        return f"for ({outer}) for ({inner[0]}) {body}"
    tile = f"{name}_tile"
    return (
        f"for ({kind} {tile} = {first}; {tile} < {end}; {tile} += {size}) for ({outer}) "
        f"for ({kind} {name} = {tile}; {name} < {end} && {name} < {tile} + {size}; ++{name}) {body}"
    )


def _of_functions(source: str) -> Iterator[Rewrite]:
    for match in _FUNCTION.finditer(source):
        before = source[: match.start(2)]
        if "[[gnu::" not in match[2] and not before.rstrip(" ").endswith("]]"):
            for attribute in ("flatten", "noinline", "hot"):
                yield f"{attribute}@{match[3]}=on", f"{before}[[gnu::{attribute}]] {source[match.start(2) :]}"
            # What only others call must keep its symbol, which an inline function has not.
            if len(re.findall(rf"\b{match[3]}\s*\(", source)) > 1 and "extern" not in match[1]:
                inline = "" if "inline" in match[1] else "inline "
                yield (
                    f"always_inline@{match[3]}=on",
                    f"{before}[[gnu::always_inline]] {inline}{source[match.start(2) :]}",
                )
        narrowed = _POINTER.sub(r"\1 __restrict__ \2", match[4])
        if narrowed != match[4]:
            yield f"restrict@{match[3]}=on", source[: match.start(4)] + narrowed + source[match.end(4) :]


def _before(source: str, loop: _Loop, line: str) -> str:
    """The text with a line of its own before a loop."""
    return f"{source[: loop.start].rstrip(' ')}\n{line}\n{source[loop.start :]}"


def _loops(code: str) -> Iterator[_Loop]:
    for match in _FOR.finditer(code):
        header_end = _closing(code, match.end() - 1)
        if header_end < 0:
            continue
        body = _statement(code, header_end + 1)
        if body is not None:
            yield _Loop(match.start(), (match.end(), header_end), body)


def _statement(code: str, at: int) -> tuple[int, int] | None:
    """Where the statement that begins at or after a place begins and ends; None where that is not clear."""
    while at < len(code) and (code[at].isspace() or code[at] == "#"):
        if code[at] == "#":
            return None  # a pragma between a loop and its body belongs to the body
        at += 1
    if at >= len(code):
        return None
    if code[at] == "{":
        end = _closing(code, at)
        return None if end < 0 else (at, end + 1)
    if re.match(r"(?:if|else|while|do|switch|try)\b", code[at:]):
        return None
    if match := _FOR.match(code, at):
        header_end = _closing(code, match.end() - 1)
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


def _calls(code: str, name: str) -> Iterator[tuple[int, int]]:
    """Where a function is called with one argument."""
    for match in re.finditer(rf"(?<![\w.:>] )(?<![\w.:>])\b{name}\(", code):
        end = _closing(code, match.end() - 1)
        inside = code[match.end() : end]
        declared = re.search(r"[\w>]\s+\Z", code[: match.start()]) and not re.search(
            r"\breturn\s+\Z", code[: match.start()]
        )
        if end > 0 and inside and "," not in inside and not declared:
            yield match.start(), end + 1


def _closing(code: str, at: int) -> int:
    """Where the bracket that opens at a place is closed; -1 where it is not."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0:
            return i
    return -1


def _blanked(source: str) -> str:
    """The text with comments and literals blanked, as long as it was: brackets within them open nothing."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", blank, source, flags=re.DOTALL)
