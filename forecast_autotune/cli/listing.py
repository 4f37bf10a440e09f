"""`list`: what is decided here."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, count, new_parser
from ._store import hardware_meant, is_missing, store_of, summary_of, warn_unreadable
from ._words import as_date, as_time, short
from .output import print_json_list, print_table, say

if TYPE_CHECKING:
    from ..store.rows import StoredDecision

PAGE = 50  # decisions shown to a person who asks for no number


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(subparsers, "list", "What is decided here, the newest first.")
    parser.add_argument("--kernel", metavar="K", help="only kernels with this in their name")
    parser.add_argument("--hardware", metavar="H", help="only hardware with this in its name")
    parser.add_argument(
        "--limit", type=count, metavar="N", help=f"at most so many (default: {PAGE} on a terminal, else all)"
    )
    parser.add_argument("--superseded", action="store_true", help="also decisions that do not hold any more")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the decisions, the newest first."""
    store = store_of(arguments)
    if is_missing(store):
        if arguments.json:
            print_json_list([])
        return NOTHING
    which = {"kernel": arguments.kernel, "hardware": arguments.hardware, "superseded": arguments.superseded}
    limit = arguments.limit
    if limit is None and sys.stdout.isatty() and not arguments.json:
        limit = PAGE
    with closing(store.each_decision(**which)) as decisions:
        shown = islice(decisions, limit)
        if arguments.json:
            some = print_json_list({**summary_of(s), "superseded_at": s.superseded_at} for s in shown)
        else:
            some = _print([_row(s) for s in shown])
    warn_unreadable(store)
    if arguments.limit is None and limit is not None and (total := store.count(**which)) > limit:
        say(f"the newest {limit} of {total:,}; --limit N shows more, --kernel K those of one kernel, a pipe gets all")
    if not some and not arguments.json:
        say(f"no decision matches{hardware_meant(store, arguments.hardware)}")
    return OK if some else NOTHING


def _print(table: list[tuple[str, ...]]) -> bool:
    if table:
        print_table(
            ("decision", "kernel and key", "hardware", "config", "basis", "speed", "time", "tried", "decided"),
            table,
            right=("speed", "time", "tried"),
        )
    return bool(table)


def _row(stored: StoredDecision) -> tuple[str, ...]:
    decision = stored.decision
    return (
        short(stored.digest) + ("" if stored.superseded_at is None else " (superseded)"),
        str(stored.place.workload),
        stored.place.hardware.name,
        str(decision.config),
        decision.basis,
        "" if decision.speedup is None else f"{decision.speedup:.2f}x",
        as_time(decision.config_us),
        f"{decision.measured} of {decision.space_size}",
        as_date(decision.decided_at),
    )
