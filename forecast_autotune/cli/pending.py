"""`pending`: keys met where measuring was not allowed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ..core.figures import as_date, counted, short
from ..core.text import told_apart
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import is_missing, store_of, warn_unreadable
from .output import print_json, print_table, say

if TYPE_CHECKING:
    from ..store.rows import Pending

MOST_LETTERS = 40  # of a version or a flag


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "pending",
        "Keys met where measuring was not allowed (mode cached, forecast or strict, a budget of 0 or one that was spent,\n"
        "torch.compile) and not measured since, the one met last first. `tune-pending` measures them; so does any run of\n"
        "their program in mode tune that calls the kernels itself.",
        nothing="no key is pending; --json prints []",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the pending keys."""
    store = store_of(arguments)
    if is_missing(store, [] if arguments.json else None):
        return NOTHING
    pending = store.pending()
    warn_unreadable(store)
    if arguments.json:
        print_json([_as_json(p) for p in pending])
    elif pending:
        differing = _differing(pending)
        print_table(
            (
                "key",
                "kernel and key",
                "hardware",
                *(["differs by"] if differing else []),
                "configs",
                "why",
                "met by",
                "first",
                "last",
            ),
            [
                (
                    short(p.digest),
                    str(p.tuning_key.workload),
                    where(p),
                    *([differing.get(p.digest, "")] if differing else []),
                    str(p.space_size),
                    p.why,
                    counted(p.met, "process", "processes"),
                    as_date(p.noted_at),
                    as_date(p.met_at),
                )
                for p in pending
            ],
            right=("configs", "met by"),
        )
    else:
        say("no key is pending")
    return OK if pending else NOTHING


def _differing(pending: Sequence[Pending]) -> dict[str, str]:
    """Of keys that have one name and hardware, what tells each from the others: source, space or versions, by its digest."""
    namesakes: dict[tuple[str, str], list[Pending]] = {}
    for each in pending:
        namesakes.setdefault((str(each.tuning_key.workload), where(each)), []).append(each)
    differing: dict[str, str] = {}
    for group in namesakes.values():
        parts = [_parts(each) for each in group]
        names = [name for name in dict.fromkeys(chain(*parts)) if len({part.get(name) for part in parts}) > 1]
        values = [told_apart([part.get(name, "none") for part in parts], MOST_LETTERS) for name in names]
        for each, *own in zip(group, *values, strict=True):
            if own:
                differing[each.digest] = ", ".join(f"{name} {value}" for name, value in zip(names, own, strict=True))
    return differing


def _parts(pending: Pending) -> dict[str, str]:
    source = short(pending.tuning_key.workload.program.digest)
    return {"source": source, "space": short(pending.space), **pending.tuning_key.toolchain.versions}


def where(pending: Pending) -> str:
    """The hardware of a pending key, marked where it was a rehearsal."""
    hardware = pending.tuning_key.hardware
    return f"{hardware.name} (rehearsal)" if is_rehearsal(pending) else hardware.name


def is_rehearsal(pending: Pending) -> bool:
    """Whether a key was met on simulated hardware."""
    from ..core.hardware import REHEARSAL_KINDS

    return pending.tuning_key.hardware.kind in REHEARSAL_KINDS


def _as_json(pending: Pending) -> dict[str, object]:
    return {
        "decision": pending.digest,
        "kernel": pending.tuning_key.workload.program.name,
        "program": pending.tuning_key.workload.program.digest,
        "key": dict(pending.tuning_key.workload.key),
        "hardware": pending.tuning_key.hardware.name,
        "rehearsal": is_rehearsal(pending),
        "toolchain": dict(pending.tuning_key.toolchain.versions),
        "space": pending.space,
        "space_size": pending.space_size,
        "why": pending.why,
        "noted_at": pending.noted_at,
        "met_at": pending.met_at,
        "met": pending.met,
    }
