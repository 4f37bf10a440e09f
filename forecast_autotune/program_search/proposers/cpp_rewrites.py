"""Rewrites of a C++ kernel's text, each at one place: how loops are unrolled, nested, tiled and split, what the compiler
is told.

They follow the text alone, so one may change what the kernel computes, or may not compile: a candidate is examined before it
counts. None asks for other arithmetic: what reorders floating-point sums is written out, and `-ffast-math` is not
among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .c_text import Rewrite, before, blanked, calls, loop_rewrites, loops_of

UNROLLS = (1, 2, 4, 8, 16, 32)
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

_PRAGMA = re.compile(r"^[ \t]*#pragma GCC (unroll (\d+)|ivdep)[ \t]*$", re.MULTILINE)
_FUNCTION = re.compile(
    r"^((?:extern \"C\" |static |inline )*)"
    r"((?:void|float|double|int|bool|auto|[A-Z]\w*)[\w:<>*& ]*?\b(\w+)\(([^;{}]*)\)\s*\{)",
    re.MULTILINE,
)
_WIDTH = r'#pragma GCC target\("prefer-vector-width=\d+"\)\n'
_POINTER = re.compile(r"\b((?:const\s+)?(?:float|double|int|std::\w+|u?int\d+_t)\s*\*)\s*(\w+)(?=\s*[,)])")


def rewrites(source: str) -> Iterator[Rewrite]:
    """Every rewrite of a text by one step."""
    code = blanked(source)
    loops = list(loops_of(code))
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
                yield f"unroll@loop{i}={count}", before(source, loop, f"#pragma GCC unroll {count}")
            yield f"ivdep@loop{i}=on", before(source, loop, "#pragma GCC ivdep")
        yield from loop_rewrites(source, code, loop, i, loops)
    yield from _of_functions(source)
    for i, (start, end) in enumerate(calls(code, "load")):
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
