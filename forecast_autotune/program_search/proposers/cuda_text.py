"""Texts in CUDA: where the functions of the device are, and what is handed to them.

They follow the text alone; see `cuda_rewrites`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .c_text import closing

_FUNCTION = re.compile(r"\b__(global|device)__\b")
_WORD = re.compile(r"(operator\s*\(\s*\)|\w+)\s*\Z")
_PASSED_OVER = re.compile(r"__\w+__|alignas|decltype|operator")  # what has brackets of its own ahead of the arguments
_POINTER = re.compile(r"\s*(const\s+)?([\w:]+)\s*(const\s*)?\*\s*(?:const\s+)?(__restrict__\s+)?(\w+)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the device: places in the text of what follows `__global__` or `__device__`, arguments and body."""

    name: str
    is_kernel: bool
    start: int
    arguments: tuple[int, int]
    body: tuple[int, int]


def functions_of(code: str) -> Iterator[Function]:
    """The functions of the device that have a body, each by its name."""
    for match in _FUNCTION.finditer(code):
        at = match.end()
        while stop := re.compile(r"[({;=\[]").search(code, at):
            if stop[0] != "(":
                break
            word = _WORD.search(code, match.end(), stop.start())
            end = closing(code, stop.start())
            if word is None or end < 0:
                break
            if _PASSED_OVER.fullmatch(word[1]):
                at = end + 1
                continue
            body = re.compile(r"\s*(?:const\b\s*|noexcept\b\s*)*\{").match(code, end + 1)
            last = -1 if body is None else closing(code, body.end() - 1)
            if body is not None and last >= 0:
                yield Function(
                    name=word[1] if word[1].isidentifier() else "call",
                    is_kernel=match[1] == "global",
                    start=match.end(),
                    arguments=(stop.start() + 1, end),
                    body=(body.end() - 1, last + 1),
                )
            break


def pointers_of(code: str, function: Function) -> list[re.Match[str]]:
    """The arguments of a function that are pointers, as matches of `_POINTER`."""
    found, at = [], function.arguments[0]
    for end in [*commas(code, *function.arguments), function.arguments[1]]:
        if match := _POINTER.fullmatch(code, at, end):
            found.append(match)
        at = end + 1
    return found


def commas(code: str, start: int, end: int) -> Iterator[int]:
    """Where commas part what stands between two places, those within brackets left out."""
    depth = 0
    for i in range(start, end):
        depth += (code[i] in "([{<") - (code[i] in ")]}>" and code[i - 1] != "-")
        if code[i] == "," and depth == 0:
            yield i


def replaced(source: str, changes: Sequence[tuple[int, int, str]]) -> str:
    """The text with parts of it, from a place to before another, in other words."""
    for start, end, text in sorted(changes, reverse=True):
        source = source[:start] + text + source[end:]
    return source
