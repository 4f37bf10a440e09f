"""`prune`: remove what does not hold and what nothing uses."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from ..store.queries import UNSEEN_DAYS
from ..store.removal import Removed
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, days, new_parser
from ._store import is_missing, store_of
from .output import print_json, say


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "prune",
        "Remove superseded decisions, everything of programs and toolchains that nothing has recorded, decided or\n"
        "recalled for so many days, and builds that nothing has used for as long. Removing costs time when it is needed\n"
        "again, nothing else. Answers of language models go so many days after they were kept.",
        nothing="there is no store yet; --json prints {}",
    )
    parser.add_argument(
        "--days", type=days, default=UNSEEN_DAYS, metavar="N", help="unseen for so long (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Remove what is unused."""
    store = store_of(arguments)
    if is_missing(store, {} if arguments.json else None):
        return NOTHING
    removed = store.prune(unseen_days=arguments.days)
    say_removed(removed)
    builds, size = remove_builds(store.path.parent / "builds", arguments.days)
    if arguments.json:
        print_json({**asdict(removed), "builds": builds, "build_bytes": size})
    return OK


def remove_builds(root: Path, days: float) -> tuple[int, int]:
    """Remove builds that nothing has used for so many days, and say how many; returns that, and their bytes."""
    from ..compilers.builds import remove_unused

    count, size = remove_unused(root, days=days)
    if count:
        say(f"removed {count} builds, {size / 2**20:.0f} MiB")
    return count, size


def say_removed(removed: Removed) -> None:
    """Say on stderr what was removed."""
    say(
        f"removed {removed.decisions} decisions, {removed.outcomes} outcomes, {removed.pending} pending keys, "
        f"{removed.programs} programs, {removed.answers} answers of language models"
    )
