"""`export`: decisions and outcomes as readable JSON lines."""

from __future__ import annotations

import argparse
from pathlib import Path

from ._exit_codes import NOTHING, OK
from ._parsing import Subparsers, add_store_argument, new_parser
from ._store import is_missing, store_of, warn_unreadable
from .output import say


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "export",
        "Write all decisions and outcomes as JSON lines, for `import` elsewhere or for FORECAST_AUTOTUNE_PACKS. They\n"
        "hold the source text of the kernels. The file is written whole or not at all. Answers of language models stay:\n"
        "they belong to a model that runs here.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="where to; in gzip when the name ends in .gz")
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the file."""
    store = store_of(arguments)
    if is_missing(store):
        return NOTHING
    lines = store.export(arguments.file)
    warn_unreadable(store)
    say(f"wrote {lines} lines to {arguments.file}")
    return OK
