"""`list`: what is decided here."""

from __future__ import annotations

import argparse

from . import NOTHING, OK
from ._shared import (
    JSON_HELP,
    Subparsers,
    add_store_argument,
    as_date,
    as_time,
    count,
    is_missing,
    new_parser,
    print_json,
    print_table,
    say,
    short,
    store_of,
    summary_of,
    tell_unreadable,
)


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "list", "What is decided here, the newest first.")
    parser.add_argument("--kernel", metavar="K", help="only kernels with this in their name")
    parser.add_argument("--hardware", metavar="H", help="only hardware with this in its name")
    parser.add_argument("--limit", type=count, metavar="N", help="at most so many")
    parser.add_argument("--superseded", action="store_true", help="also decisions that do not hold any more")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    found = (
        []
        if is_missing(store)
        else store.decisions(
            kernel=arguments.kernel,
            hardware=arguments.hardware,
            limit=arguments.limit,
            superseded=arguments.superseded,
        )
    )
    tell_unreadable(store)
    if arguments.json:
        print_json([{**summary_of(s), "superseded_at": s.superseded_at} for s in found])
    elif found:
        print_table(
            ("decision", "kernel and key", "hardware", "config", "basis", "speed", "time", "tried", "decided"),
            [
                (
                    short(s.digest) + ("" if s.superseded_at is None else " (superseded)"),
                    str(s.place.workload),
                    s.place.hardware.name,
                    str(s.decision.config),
                    s.decision.basis,
                    "" if s.decision.speedup is None else f"{s.decision.speedup:.2f}x",
                    as_time(s.decision.config_us),
                    f"{s.decision.measured} of {s.decision.space_size}",
                    as_date(s.decision.decided_at),
                )
                for s in found
            ],
            right=("speed", "time", "tried"),
        )
    elif store.exists():
        say("no decision matches")
    return OK if found else NOTHING
