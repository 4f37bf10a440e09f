"""`freeze`: programs in mode online try nothing more in real calls."""

from __future__ import annotations

import argparse

from ._exit_codes import OK
from ._parsing import Subparsers, add_store_argument, new_parser
from ._store import refuse_file, store_of
from .output import say


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
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write or remove the file that says so."""
    from ..store.frozen import freeze, thaw

    store = store_of(arguments)
    refuse_file(store)
    folder = store.path.parent
    if arguments.undo:
        say(f"programs with the store in {folder} {'may explore again' if thaw(folder) else 'were not frozen'}")
    else:
        say(f"programs with the store in {folder} {'explore nothing from now on' if freeze(folder) else 'were frozen'}")
    return OK
