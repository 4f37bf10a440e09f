"""What subcommands share: the store they look at, and how a result is printed."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.text import plain

if TYPE_CHECKING:
    from ..store.queries import StoreFile
    from ..store.rows import StoredDecision

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SHOWN_DIGITS = 10
"""Digits of a decision's digest that `list` prints: among a million decisions two agree in them once in two stores."""

JSON_HELP = "one JSON value on stdout, for programs"


def new_parser(subparsers: Subparsers, command: str, description: str) -> argparse.ArgumentParser:
    """A subcommand's parser, with its help line and the folder of the store."""
    from . import COMMANDS, EPILOG

    parser: argparse.ArgumentParser = subparsers.add_parser(
        command,
        help=COMMANDS[command][1],
        description=description,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_store_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="the store's folder (default: FORECAST_AUTOTUNE_DIR, else the user's cache)",
    )


def store_of(arguments: argparse.Namespace) -> StoreFile:
    from ..settings import Settings
    from ..store.queries import StoreFile

    return StoreFile(arguments.dir if arguments.dir is not None else Settings.from_environment().dir)


def is_missing(store: StoreFile) -> bool:
    """Whether there is no store yet, which is said on stderr."""
    if not store.exists():
        say(f"there is no store at {store.path}: nothing has been tuned here yet")
        return True
    return False


def tell_unreadable(store: StoreFile) -> None:
    if store.unreadable:
        say(
            f"{len(store.unreadable)} rows of {store.path} cannot be read and are left out, first: {store.unreadable[0]}"
        )


def say(text: str) -> None:
    """A word to the person, beside the result."""
    print(f"forecast-autotune: {plain(text)}", file=sys.stderr)


# Printing ---------------------------------------------------------------------------------------------------------------


def print_json_list(values: Iterable[object]) -> bool:
    """Print what `print_json` would of a list, one by one as they come; returns whether there was any."""
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
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def print_table(columns: Sequence[str], table: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Rows under headings; a column named in `right` is set flush right. A pipe gets a line per row, however long."""
    if not sys.stdout.isatty():  # rich takes a millisecond for a row
        lines = [[plain(cell) for cell in row] for row in (columns, *table)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        for line in lines:
            cells = (
                cell.rjust(width) if column in right else cell.ljust(width)
                for cell, width, column in zip(line, widths, columns, strict=True)
            )
            print("  ".join(cells).rstrip())
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, justify="right" if column in right else "left")
    for row in table:
        drawn.add_row(*(Text(plain(cell)) for cell in row))
    _console().print(drawn)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Lines of a name and what there is to say of it."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in facts:
        drawn.add_row(name, Text(plain(value)))
    _console().print(drawn)


def _console() -> Any:
    """A terminal has its width and colours; a pipe gets one line per row, however long, and no colour."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False)
    return Console(file=sys.stdout, highlight=False, no_color=True, width=10_000, soft_wrap=False)


# Words ------------------------------------------------------------------------------------------------------------------


def short(digest: str) -> str:
    return digest[:SHOWN_DIGITS]


def as_times(log2_speedup: float) -> str:
    return f"{2.0 ** min(log2_speedup, 1000.0):.2f}x"


def as_time(us: float | None) -> str:
    if us is None:
        return ""
    return f"{us:.4g} us" if us < 1e3 else f"{us / 1e3:.4g} ms" if us < 1e6 else f"{us / 1e6:.4g} s"


def as_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def as_date(seconds: float | None) -> str:
    import datetime

    if seconds is None:
        return ""
    try:
        return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s after 1970"


def summary_of(stored: StoredDecision) -> dict[str, object]:
    """A decision in a list, for programs."""
    decision = stored.decision
    return {
        "decision": stored.digest,
        "kernel": stored.place.workload.program.name,
        "key": dict(stored.place.workload.key),
        "hardware": stored.place.hardware.name,
        "power_limit_w": stored.place.hardware.power_limit_w,
        "config": dict(decision.config.knobs),
        "basis": decision.basis,
        "speedup": decision.speedup,
        "config_us": decision.config_us,
        "default_us": decision.default_us,
        "measured": decision.measured,
        "space_size": decision.space_size,
        "spent_s": decision.spent_s,
        "hits": stored.hits,
        "decided_at": decision.decided_at,
    }


def count(text: str) -> int:
    """A count of at least 1, as an option's `type`."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a count of at least 1")
    return number
