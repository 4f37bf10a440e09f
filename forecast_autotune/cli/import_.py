"""`import`: take in what another machine exported, or other programs' config files as configs to try first."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.figures import counted
from ._exit_codes import NOTHING, OK
from ._parsing import FORMATS, JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import store_of
from .output import print_json, say


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "import",
        "Take in exported decisions and outcomes. Every line is checked first; if one is broken, nothing is taken.\n"
        "Of two decisions for the same thing the newer holds; nothing that is here already is lost.\n"
        "If it is killed in between, a part is taken in; running it again takes in the rest.\n\n"
        "With --format, take in config files of another program, by name or in folders such as the one it ships. Such a\n"
        "file names a winner and no time: where a key is tuned that it speaks of, its config is the first to be timed\n"
        "after the default.",
        nothing="with --format: no file in the folders has a name that the format looks for",
    )
    parser.add_argument(
        "file", type=Path, nargs="+", metavar="FILE", help="written by `export`; with --format also folders"
    )
    parser.add_argument("--format", choices=FORMATS, help="whose config files these are")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Take in the files."""
    store = store_of(arguments)
    if arguments.format is not None:
        from ..store.config_files import FORMATS as BY_NAME
        from ..store.config_files.imported import import_files

        kept, others = import_files(store.path.parent, BY_NAME[arguments.format], arguments.file)
        if arguments.json:
            print_json({"files": kept, "passed_by": others})
        passed_by = f", and passed by {others} that are named otherwise" if others else ""
        say(f"imported {counted(kept, 'config file')} of {arguments.format}{passed_by}")
        return OK if kept else NOTHING
    outcomes, decisions = store.import_files(arguments.file)
    if arguments.json:
        print_json({"outcomes": outcomes, "decisions": decisions})
    say(f"imported {counted(outcomes, 'new outcome')} and {counted(decisions, 'new decision')}")
    return OK
