"""`clear`: forget everything, or one kernel."""

from __future__ import annotations

import argparse
import sys

from ..errors import InvalidInputError
from ._exit_codes import NOTHING, OK
from ._parsing import Subparsers, add_store_argument, new_parser
from ._store import is_missing, nearest_kernels, store_of
from .output import say


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "clear",
        "Remove everything from the store, builds, imported config files, the archive of searches\n"
        "and the mark of `freeze` included, or decisions, outcomes and pending keys of one kernel.",
        nothing="nothing was removed: there is nothing, or no kernel of that name, or the answer was no",
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
    from ..store.frozen import is_frozen, thaw
    from ..store.searches import SearchFile
    from .prune import remove_builds, say_removed

    store = store_of(arguments)
    searches = SearchFile(store.path.parent)
    everything = arguments.kernel is None
    imported = count_imported(store.path.parent) if everything else 0
    others = everything and (searches.path.exists() or is_frozen(store.path.parent))
    if not imported and not others and is_missing(store):
        return NOTHING
    if not everything and arguments.kernel not in (kernels := store.kernels()):
        say(f"there is no kernel {arguments.kernel!r} in {store.path}; {nearest_kernels(arguments.kernel, kernels)}")
        return NOTHING
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise InvalidInputError(
                "clear asks before it removes anything, and there is no terminal to ask at: add --yes"
            )
        what = "everything" if everything else f"everything of {arguments.kernel}"
        print(f"Remove {what} from {store.path}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            say("nothing removed")
            return NOTHING
    removed = None
    if store.exists():  # first: where it cannot be used, all stays
        removed = store.clear(kernel=arguments.kernel)
        say_removed(removed)
    if everything and searches.path.exists():
        count = searches.remove()
        say(f"removed the archive of {count} {'search' if count == 1 else 'searches'}")
    if imported:
        remove_imported(store.path.parent)
        say(f"removed {imported} imported config {'file' if imported == 1 else 'files'}")
    if everything and thaw(store.path.parent):
        say(f"programs with the store in {store.path.parent} may explore again")
    if everything:
        remove_builds(store.path.parent / "builds", 0.0)
    return OK if everything or (removed and removed.decisions + removed.outcomes + removed.pending) else NOTHING
