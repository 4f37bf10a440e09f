"""Python's parser, where several threads parse at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def parsed(parse: Callable[[], T], tries: int = 10) -> T:
    """What `parse` returns, which makes a syntax tree; tried again where another thread parsed in the middle of it.

    CPython 3.11 counts the depth of the tree in one place for all threads. A garbage collection within the parser can let
    another thread run; if that one parses too, the first fails though its text is well. Other versions have no such fault.

    Raises:
        SyntaxError, ValueError: as `ast.parse`.
        SystemError: every try was refused.
    """
    try:
        return parse()
    except SystemError as err:
        if tries <= 1 or "recursion depth mismatch" not in str(err):
            raise
    return parsed(parse, tries - 1)
