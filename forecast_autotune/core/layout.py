"""Facts and tables for a person: as text of any width, in which nothing is cut off, and as HTML."""

from __future__ import annotations

import contextlib
import html
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from .text import plain

WIDE = 20  # characters: a column with a longer cell gives way first where a table does not fit
MAX_LINES = 2  # of a cell beside others; what needs more stands below its row
GAP = "  "


@dataclass(frozen=True, slots=True)
class Facts:
    """Lines of a name and a value; a line without a name goes on with the one above it."""

    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; the columns named in `right` are set flush right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()


Block = Facts | Table
Emphasis = Callable[[str], str]


def bold(text: str) -> str:
    """Text as a terminal prints it bold."""
    return f"\x1b[1m{text}\x1b[22m" if text.strip() else text


def as_is(text: str) -> str:
    """The text itself: no emphasis."""
    return text


def terminal_width(stream: TextIO | None) -> int | None:
    """How many characters a line has where the stream is a terminal; None elsewhere: a pipe has no width."""
    with contextlib.suppress(AttributeError, ValueError):  # a program's own stream, which has none, or a closed one
        if stream is not None and stream.isatty():
            return shutil.get_terminal_size().columns
    return None


def as_text(blocks: Sequence[Block], *, width: int | None = None, emphasize: Emphasis = as_is) -> str:
    """Blocks as text, an empty line between two.

    Args:
        width: characters of a line; None for lines as long as they come, one for each fact and each row.
        emphasize: what headings and names pass through.
    """
    return "\n\n".join("\n".join(_lines(block, width, emphasize)) for block in blocks)


def as_html(blocks: Sequence[Block]) -> str:
    """Blocks as HTML tables, which a notebook shows."""
    return "\n".join(f"<table>\n{chr(10).join(_html_rows(block))}\n</table>" for block in blocks)


def _html_rows(block: Block) -> Iterator[str]:
    def cells(tag: str, texts: Sequence[str], sides: Sequence[str]) -> str:
        made = (
            f'<{tag} style="text-align: {side}">{html.escape(plain(text))}</{tag}>'
            for text, side in zip(texts, sides, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    if isinstance(block, Facts):
        for name, value in block.lines:
            named = f'<th style="text-align: left">{html.escape(plain(name))}</th>'
            yield f'<tr>{named}<td style="text-align: left">{html.escape(plain(value))}</td></tr>'
        return
    sides = ["right" if column in block.right else "left" for column in block.columns]
    yield cells("th", block.columns, sides)
    for row in block.rows:
        yield cells("td", row, sides)


def _lines(block: Block, width: int | None, emphasize: Emphasis) -> Iterator[str]:
    if isinstance(block, Facts):
        return _labelled(block.lines, width, emphasize)
    return _table_lines(block, width, emphasize)


def _labelled(
    lines: Sequence[tuple[str, str]], width: int | None, emphasize: Emphasis, indent: str = ""
) -> Iterator[str]:
    """Names in one column, and their values beside them, wrapped there."""
    most = max((len(plain(name)) for name, _ in lines), default=0)
    lead = indent + (GAP + " " * most if most else "")
    stacked = width is not None and len(lead) > max(WIDE, width // 2)  # names too long to have values beside them
    for name, value in lines:
        label = plain(name)
        if stacked:
            yield indent + emphasize(label)
            yield from (f"{indent}{GAP}{part}" for part in _wrapped(value, width, len(indent + GAP)))
            continue
        for part in _wrapped(value, width, len(lead)):
            yield f"{indent}{emphasize(f'{label:<{most}}')}{GAP if most else ''}{part}".rstrip()
            label = ""


def _wrapped(text: str, width: int | None, lead: int = 0) -> list[str]:
    """The text in lines of what a lead leaves of a width, broken at spaces, and within words longer than a line."""
    text = plain(text)
    if width is None or len(text) <= width - lead:
        return [text]
    return textwrap.wrap(text, max(width - lead, 1), break_on_hyphens=False) or [""]


# Tables -----------------------------------------------------------------------------------------------------------------


def _table_lines(table: Table, width: int | None, emphasize: Emphasis) -> Iterator[str]:
    """Rows on a line each where they fit; else long cells wrapped in their columns; else below their row, labelled."""
    columns = [plain(column) for column in table.columns]
    rows = [[plain(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    beside = list(range(len(columns)))
    if width is not None and _total(widths) > width:
        wide = [i for i in beside if widths[i] > WIDE and columns[i] not in table.right]
        narrowed = _narrowed(columns, rows, widths, wide, width)
        if narrowed is not None:
            widths = narrowed
        else:
            beside = [i for i in beside if i not in wide] or beside[:1]
            while len(beside) > 1 and _total([widths[i] for i in beside]) > width:
                del beside[-1]
    below = [i for i in range(len(columns)) if i not in beside]
    flush = [table.columns[i] in table.right for i in beside]
    shown = [widths[i] for i in beside]
    yield from (emphasize(line) for line in _side_by_side([columns[i] for i in beside], shown, flush))
    alone = len(below) == 1  # then its heading stands with the others, and not in each row
    if alone:
        yield GAP + emphasize(columns[below[0]])
    for row in rows:
        yield from _side_by_side([row[i] for i in beside], shown, flush)
        under = [("" if alone else columns[i], row[i]) for i in below if row[i]]
        yield from _labelled(under, width, emphasize, indent=GAP)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _narrowed(
    columns: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], wide: Sequence[int], width: int
) -> list[int] | None:
    """Widths at which a table fits with no cell on more than `MAX_LINES` lines; None where there are none."""
    narrowed = list(widths)
    for i in wide:
        cells = [row[i] for row in rows]
        words = (len(word) for cell in cells for word in cell.split())
        least = max(WIDE, len(columns[i]), *words, *(-(-len(cell) // MAX_LINES) for cell in cells))
        fitting = (w for w in range(least, widths[i]) if all(len(_wrapped(c, w)) <= MAX_LINES for c in cells))
        narrowed[i] = next(fitting, widths[i])
    spare = width - _total(narrowed)
    if spare < 0:
        return None
    for i in wide:
        more = min(spare, widths[i] - narrowed[i])
        narrowed[i] += more
        spare -= more
    return narrowed


def _side_by_side(cells: Sequence[str], widths: Sequence[int], flush_right: Sequence[bool]) -> Iterator[str]:
    parts = [_wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for number in range(max(map(len, parts))):
        texts = [part[number] if number < len(part) else "" for part in parts]
        yield GAP.join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, flush_right, strict=True)
        ).rstrip()
