"""`list`: what is decided here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, TextIO

from ..core.config import Config, split_common
from ..core.figures import as_date, as_time, short
from ..core.layout import Block, Facts, Table, terminal_width
from ..core.workload import key_parts
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, count, new_parser
from ._store import hardware_meant, is_missing, say_not_found, store_of, warn_unreadable
from .output import print_blocks, print_json_list, say

if TYPE_CHECKING:
    from ..core.outcome import Measurement
    from ..store.rows import StoredDecision

COLUMNS = ("decision", "kernel", "hardware", "config", "basis", "speed", "time", "tried", "decided")
PAGE = 50  # decisions shown to a person who asks for no number

Timed = tuple["StoredDecision", "Measurement | None"]


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "list",
        "What is decided here, the newest first. On a terminal, what all decisions of a\n"
        "kernel have in common stands once above; a pipe gets each whole, on one line.",
        nothing="no decision matches; --json prints []",
    )
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
    from ..store.explanation.as_json import summary_of

    store = store_of(arguments)
    if is_missing(store, [] if arguments.json else None):
        return NOTHING
    which = {"kernel": arguments.kernel, "hardware": arguments.hardware, "superseded": arguments.superseded}
    limit = arguments.limit
    if limit is None and sys.stdout.isatty() and not arguments.json:
        limit = PAGE
    if arguments.json:
        with closing(store.each_decision(**which)) as decisions:
            shown = islice(decisions, limit)
            some = print_json_list({**summary_of(s), "superseded_at": s.superseded_at} for s in shown)
    else:
        with closing(store.each_timed_decision(**which)) as timed:
            listed = list(islice(timed, limit))
        some = bool(listed)
        if some:
            print_blocks(table_of(listed, sys.stdout))
    warn_unreadable(store)
    if arguments.limit is None and limit is not None and (total := store.count(**which)) > limit:
        say(f"the newest {limit} of {total:,}; --limit N shows more, --kernel K those of one kernel, a pipe gets all")
    if not some and not arguments.json:
        say_not_found(f"no decision matches{hardware_meant(store, arguments.hardware)}")
    return OK if some else NOTHING


def table_of(listed: Sequence[Timed], stream: TextIO, columns: Sequence[str] = COLUMNS) -> list[Block]:
    """Decisions as a table, each with the measurement of its config where that is known.

    On a terminal, what they have in common stands once above: the hardware, and by kernel parts of keys and knobs.

    Args:
        columns: some of `COLUMNS`, in their order.
    """
    decisions = [stored for stored, _ in listed]
    facts: list[tuple[str, str]] = []
    shown = [(str(s.tuning_key.workload), str(s.decision.config)) for s in decisions]
    if len(listed) > 1 and terminal_width(stream) is not None:
        name = decisions[0].tuning_key.hardware.name
        if all(stored.tuning_key.hardware.name == name for stored in decisions):
            columns = [column for column in columns if column != "hardware"]
            facts.append(("all on", name))
        shown = _without_common(decisions, facts, with_knobs="config" in columns)
    rows = []
    for (stored, outcome), (kernel, config) in zip(listed, shown, strict=True):
        row = dict(zip(COLUMNS, _row(stored, outcome, kernel, config), strict=True))
        rows.append([row[column] for column in columns])
    return [*([Facts(facts)] if facts else []), Table(columns, rows, right=("speed", "time", "tried"))]


def _without_common(
    decisions: Sequence[StoredDecision], facts: list[tuple[str, str]], *, with_knobs: bool
) -> list[tuple[str, str]]:
    """Kernel with key, and config, of each decision, without what all decisions of the kernel have in common.

    Args:
        facts: gets a line for each kernel about that.
        with_knobs: whether configs are shown at all.
    """
    shown: dict[int, tuple[str, str]] = {}
    by_kernel: dict[str, list[int]] = {}
    for i, stored in enumerate(decisions):
        by_kernel.setdefault(stored.tuning_key.workload.program.name, []).append(i)
    for kernel, members in by_kernel.items():
        # A key's parts are shown as a config's knobs are; of one decision alone nothing is common.
        same_parts, parts = split_common([Config(key_parts(decisions[i].tuning_key.workload.key)) for i in members])
        same_knobs, configs = split_common([decisions[i].decision.config for i in members])
        for i, own, config in zip(members, parts, configs, strict=True):
            key = ", ".join(f"{name}={part}" for name, part in own.knobs.items())
            shown[i] = f"{kernel}({key})" if key else kernel, str(config) if config.knobs else ""
        shared = (same_parts, *([same_knobs] if with_knobs else []))
        common = [str(each) for each in shared if any(value is not None for value in each.knobs.values())]
        if common:
            facts.append((f"all {kernel}", ", ".join(common)))
    return [shown[i] for i in range(len(decisions))]


def _row(stored: StoredDecision, outcome: Measurement | None, kernel: str, config: str) -> tuple[str, ...]:
    decision = stored.decision
    return (
        short(stored.digest) + ("" if stored.superseded_at is None else " (superseded)"),
        kernel,
        stored.tuning_key.hardware.name,
        config,
        decision.basis,
        "" if decision.speedup is None else f"{decision.speedup:.2f}x",
        as_time(decision.config_us, None if outcome is None else outcome.relative_spread),
        f"{decision.tried} of {decision.space_size}",
        as_date(decision.decided_at),
    )
