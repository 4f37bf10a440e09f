"""`clear`: forget everything, or one kernel."""

from __future__ import annotations

import argparse
import sys

from ..errors import InvalidInputError
from ._exit_codes import NOTHING, OK
from ._parsing import Subparsers, add_store_argument, new_parser
from ._store import is_missing, store_of
from .output import say


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "clear",
        "Remove everything from the store, builds and imported config files included, or\neverything of one kernel.",
        nothing="nothing was removed: there is nothing, or the answer was no",
    )
    parser.add_argument("--kernel", metavar="K", help="only the kernel of exactly this name")
    parser.add_argument("--yes", action="store_true", help="do not ask; required where there is no terminal to ask at")
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Remove it, after asking at a terminal.

    Raises:
        InvalidInputError: there is no terminal, and no `--yes`.
    """
    from ..store.config_files.imported import count_imported, remove_imported
    from .prune import remove_builds, say_removed

    store = store_of(arguments)
    imported = arguments.kernel is None and count_imported(store.path.parent)
    if not imported and is_missing(store):
        return NOTHING
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise InvalidInputError(
                "clear asks before it removes anything, and there is no terminal to ask at: add --yes"
            )
        what = "everything" if arguments.kernel is None else f"everything of {arguments.kernel}"
        print(f"Remove {what} from {store.path}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            say("nothing removed")
            return NOTHING
    if imported:
        remove_imported(store.path.parent)
        say(f"removed {imported} imported config {'file' if imported == 1 else 'files'}")
    if not store.exists():
        return OK
    removed = store.clear(kernel=arguments.kernel)
    say_removed(removed)
    if arguments.kernel is None:
        remove_builds(store.path.parent / "builds", 0.0)
    return OK if arguments.kernel is None or removed.decisions + removed.outcomes + removed.pending else NOTHING
