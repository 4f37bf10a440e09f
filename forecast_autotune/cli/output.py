"""How results are printed: the tables, facts and JSON of every verb, and words to the person on stderr."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from ..core.text import plain


def say(text: str) -> None:
    """A line to the person, on stderr, beside the result."""
    print(f"forecast-autotune: {plain(text)}", file=sys.stderr)


def print_json_list(values: Iterable[object]) -> bool:
    """Print a list as `print_json` does, value by value as they come; returns whether there was any."""
    indented = sys.stdout.isatty()
    between = "["
    for value in values:
        text = json.dumps(value, indent=2 if indented else None)
        print(between, textwrap.indent(f"\n{text}", "  ") if indented else text, sep="", end="")
        between = "," if indented else ", "
    some = between != "["
    print("\n]" if indented and some else "]" if some else "[]")
    return some


def print_json(value: object) -> None:
    """Print a value as JSON, indented on a terminal."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), title: str = ""
) -> None:
    """Print rows under headings.

    Without a title, a pipe gets a line per row, however long, and a terminal a table of its width. With a title, the table
    stands in a box under it, in a pipe 160 characters wide.

    Args:
        right: the columns that are set flush right.
    """
    if not title and not sys.stdout.isatty():  # rich takes a millisecond for a row
        print(table_text(columns, rows, right=right))
        return
    from rich.box import HEAVY_HEAD, SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if title:
        table = Table(box=HEAVY_HEAD, title=title, title_justify="left")
    else:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    (_page() if title else _console()).print(table)


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] | None = None) -> str:
    """Rows under headings as text, each column as wide as its widest cell.

    Args:
        right: the columns that are set flush right; None for those whose cells are numbers, empty or a dash.
    """
    lines = [[plain(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    if right is None:
        right = [column for column, *cells in zip(*lines, strict=True) if cells and all(map(_is_number, cells))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell in ("", "-")


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print lines of a name and a value."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(plain(value)))
    _console().print(table)


def print_paragraph(text: str) -> None:
    """Print a sentence under titled tables, wrapped to their width."""
    _page().print(text, markup=False, highlight=False)


def _page() -> Any:
    """Where titled tables and paragraphs go: as wide as the terminal, in a pipe 160 characters."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def _console() -> Any:
    """A terminal has its width and colours; a pipe gets one line per row, however long, and no colour."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False)
    return Console(file=sys.stdout, highlight=False, no_color=True, width=10_000, soft_wrap=False)
