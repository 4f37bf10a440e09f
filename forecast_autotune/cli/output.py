"""How results are printed: the tables, facts and JSON of every verb, and words to the person on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO, TypeVar

from ..core.layout import Block, Emphasis, Facts, Table, as_is, as_text, bold, terminal_width
from ..core.text import plain

QUIET_S = 2.0  # no progress is shown for less

Row = TypeVar("Row")


def say(text: str) -> None:
    """A line to the person, on stderr, beside the result; where nobody reads that any more, it goes nowhere."""
    try:
        print(f"forecast-autotune: {plain(text)}", file=sys.stderr)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


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


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print rows under headings: in a pipe a line per row, however long, and on a terminal a table of its width.

    Args:
        right: the columns that are set flush right.
    """
    print_blocks([Table(columns, rows, right)])


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under headings as text, each column as wide as its widest cell, and flush right where that are numbers."""
    by_column = zip(columns, *([plain(cell) for cell in row] for row in rows), strict=True)
    right = [column for column, *cells in by_column if cells and all(map(_is_number, cells))]
    return as_text([Table(columns, rows, right)])


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell in ("", "-")


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print lines of a name and a value."""
    print_blocks([Facts(facts)])


def print_blocks(blocks: Sequence[Block]) -> None:
    """Print facts and tables."""
    print(text_for(blocks, sys.stdout))


def print_text(text: Callable[[int | None, Emphasis], str]) -> None:
    """Print a text that fits itself to a width, with emphasis where stdout is a terminal."""
    print(text(*_form(sys.stdout)))


def text_for(blocks: Sequence[Block], stream: TextIO) -> str:
    """Facts and tables as they are to be written to a stream: in a terminal's width, or with a line a row."""
    width, emphasize = _form(stream)
    return as_text(blocks, width=width, emphasize=emphasize)


def _form(stream: TextIO) -> tuple[int | None, Emphasis]:
    width = terminal_width(stream)
    return width, as_is if width is None or os.environ.get("TERM") == "dumb" else bold


def with_progress(rows: Iterable[Row], total: int, doing: str) -> Iterator[Row]:
    """The rows; after two seconds with a bar on a terminal's stderr."""
    if not sys.stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import Progress

    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        bar = None
        for count, row in enumerate(rows, start=1):
            if bar is None and time.monotonic() - began > QUIET_S:
                bar = stack.enter_context(Progress(console=Console(stderr=True)))
                bar.add_task(doing, total=total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=count, total=max(total, count))
            yield row
