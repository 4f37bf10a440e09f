"""What the commands share: an argument that must be positive, tables, numbers and JSON on stdout."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from forecast_autotune.core.text import plain


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


def print_json(value: object) -> None:
    """Print one JSON value: on one line into a pipe, indented on a terminal."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print rows under a head; columns named in `right` are set flush right. A pipe gets one line for each row."""
    if not sys.stdout.isatty():
        lines = [[plain(cell) for cell in row] for row in (head, *rows)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        for line in lines:
            cells = (
                cell.rjust(width) if name in right else cell.ljust(width)
                for cell, width, name in zip(line, widths, head, strict=True)
            )
            print("  ".join(cells).rstrip())
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in head:
        drawn.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        drawn.add_row(*(Text(plain(cell)) for cell in row))
    _console().print(drawn)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print lines of a name and a value."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in facts:
        drawn.add_row(name, Text(plain(value)))
    _console().print(drawn)


def _console() -> Any:
    """A pipe gets no colour and one line for each row, however long."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False)
    return Console(file=sys.stdout, highlight=False, no_color=True, width=10_000, soft_wrap=False)
