"""Crossing two programs that come of one: what was changed in either, in one text."""

from __future__ import annotations

import difflib
import itertools


def crossed(base: str, one: str, other: str) -> str | None:
    """The base with both texts' changes; None where they touch the same lines, or either changes nothing."""
    lines = base.splitlines(keepends=True)
    changes: list[tuple[int, int, list[str]]] = []
    for text in (one, other):
        theirs = text.splitlines(keepends=True)
        found = [
            (first, last, theirs[start:end])
            for kind, first, last, start, end in difflib.SequenceMatcher(
                None, lines, theirs, autojunk=False
            ).get_opcodes()
            if kind != "equal"
        ]
        if not found:
            return None
        changes += found
    changes.sort(key=lambda change: change[:2])
    for (first, end, _), (start, last, _) in itertools.pairwise(changes):
        if start < end or (start == end and first == end and last == start):  # two insertions have no order
            return None
    merged, at = [], 0
    for first, last, new in changes:
        merged += [*lines[at:first], *new]
        at = last
    return "".join([*merged, *lines[at:]])
