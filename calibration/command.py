"""What the commands share: an argument that must be positive, a plain table, numbers with so many digits."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence


def positive(text: str) -> int:
    """A whole number of at least 1, as an argument's `type`.

    Raises:
        argparse.ArgumentTypeError: it is another text.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return int(text)


def number(value: float | None, digits: int = 1) -> str:
    """A number with so many digits behind the point; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as what is in them; numbers, which is all but the words on the left, to the right."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    numeric = [
        len(lines) > 1 and all(line[i][:1].isdigit() or line[i] in ("", "-") for line in lines[1:])
        for i in range(len(head))
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )
