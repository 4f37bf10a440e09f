"""`freeze`: programs in mode online try nothing more in real calls."""

from __future__ import annotations

import argparse

from ._exit_codes import OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import refuse_file, store_of
from .output import print_json, say


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "freeze",
        "End exploring for all programs with this store: in mode online they run what is decided, the best forecast or\n"
        "the default, and every call of a key runs the same config. Programs that run now end it before the next config\n"
        "they would try; fa.freeze() does it for one process.",
    )
    parser.add_argument("--undo", action="store_true", help="let them explore again")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write or remove the file that says so."""
    from ..store.frozen import freeze, thaw

    store = store_of(arguments)
    refuse_file(store)
    folder = store.path.parent
    changed = thaw(folder) if arguments.undo else freeze(folder)
    if arguments.json:
        print_json({"frozen": not arguments.undo, "changed": changed})
    if arguments.undo:
        said = "may explore again" if changed else "were not frozen"
    else:
        said = "explore nothing from now on" if changed else "were frozen"
    # It may be frozen before the first program runs.
    missing = "" if store.exists() else "; there is no store there yet"
    say(f"programs with the store in {folder} {said}{missing}")
    return OK
