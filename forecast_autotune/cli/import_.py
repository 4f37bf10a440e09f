"""`import`: take in what another machine exported."""

from __future__ import annotations

import argparse
from pathlib import Path

from ._exit_codes import OK
from ._parsing import Subparsers, add_store_argument, new_parser
from ._store import store_of
from .output import say


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "import",
        "Take in exported decisions and outcomes. Every line is checked first; if one is broken, nothing is taken.\n"
        "Of two decisions for the same thing the newer holds; nothing that is here already is lost.\n"
        "If it is killed in between, a part is taken in; running it again takes in the rest.",
    )
    parser.add_argument("file", type=Path, nargs="+", metavar="FILE", help="written by `export`")
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Take in the files."""
    outcomes, decisions = store_of(arguments).import_files(arguments.file)
    say(f"took in {outcomes} outcomes and {decisions} decisions that were not here")
    return OK
