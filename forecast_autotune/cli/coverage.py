"""`coverage`: for which hardware, programs and keys decisions are missing, measured elsewhere, or forecast only."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.figures import as_date, counted
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, days, new_parser
from ._store import refuse_file, store_of
from .output import print_json_list, print_table, say

if TYPE_CHECKING:
    from ..distributed.key_list import ListedKey
    from ..remote.coverage import KeyCoverage

DESCRIPTION = """\
Say for each kernel and each hardware how many of its keys are decided there: by measurements, or not. Counted are all keys
that this store, what it has read of a remote one, and packs know; a key that one GPU has met is wanted on every GPU.

measured   by measurements on this hardware, under the toolchain in use there
elsewhere  on other hardware, under another toolchain, or by machines that are not trusted
forecast   met on this hardware, and never measured there
missing    met on other hardware alone, and measured nowhere"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(subparsers, "coverage", DESCRIPTION, nothing="no key is known, or one is not measured")
    parser.add_argument("--kernel", metavar="K", help="only kernels with this in their name")
    parser.add_argument("--hardware", metavar="H", help="only hardware with this in its name")
    parser.add_argument("--days", type=days, metavar="N", help="only keys decided, used or met in the last N days")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write what is not measured, torch.compile's own choices left out: a list for `tune --keys`",
    )
    parser.add_argument("--json", action="store_true", help=f"{JSON_HELP}: every key on every hardware")
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what is covered; NOTHING where nothing is known, or something is not measured."""
    from ..remote.coverage import coverage, known_here
    from ..settings import Settings
    from ..store.queries import is_meant

    settings, store = Settings.from_environment(), store_of(arguments)
    refuse_file(store)  # where there is none, packs may know of keys
    since = 0.0 if arguments.days is None else time.time() - 86_400 * arguments.days
    covered = [
        each
        for each in coverage(known_here(settings, store.path.parent, say))
        if each.at >= since
        and is_meant(arguments.kernel, each.workload.program.name)
        and is_meant(arguments.hardware, each.hardware.name)
    ]
    open_ones = [each for each in covered if each.state != "measured"]
    if arguments.write is not None and covered:
        from ..distributed.key_list import write_keys
        from ..frontends.inductor.request import is_inductors

        listed = [each for each in open_ones if not is_inductors(each.workload.program)]
        write_keys(arguments.write, map(_as_key, listed))
        if others := len(open_ones) - len(listed):
            say(
                f"{counted(others, 'key')} of inductor.* left out: torch.compile tunes them where it compiles, in mode tune"
            )
        how = (
            f": forecast-autotune tune --keys {arguments.write} PROGRAM" if listed else ", as there is nothing to tune"
        )
        say(f"{counted(len(listed), 'key')} in {arguments.write}{how}")
    if arguments.json:
        print_json_list(map(_as_json, covered))
    elif covered:
        _print(covered)
    else:
        unwritten = "" if arguments.write is None else f": {arguments.write} is not written"
        say(f"no key is known here; rehearsals do not count{unwritten}")
    return OK if covered and not open_ones else NOTHING


def _print(covered: list[KeyCoverage]) -> None:
    from ..remote.coverage import STATES

    rows: dict[tuple[str, str, str], Counter[str]] = {}
    at: dict[tuple[str, str, str], float] = {}
    for each in covered:
        program = each.workload.program
        row = program.name, program.digest, each.hardware.name
        rows.setdefault(row, Counter())[each.state] += 1
        at[row] = max(at.get(row, 0.0), each.at)
    print_table(
        ("kernel", "hardware", "keys", *STATES, "last used"),
        [
            (row[0], row[2], str(states.total()), *(str(states[state] or "") for state in STATES), as_date(at[row]))
            for row, states in rows.items()
        ],
        right=("keys", *STATES),
    )


def _as_key(covered: KeyCoverage) -> ListedKey:
    from ..distributed.key_list import ListedKey

    return ListedKey(
        hardware=covered.hardware.digest,
        workload=covered.workload.digest,
        what=str(covered.workload),
        on=covered.hardware.name,
        why=covered.state,
    )


def _as_json(covered: KeyCoverage) -> dict[str, object]:
    return {
        "kernel": covered.workload.program.name,
        "program": covered.workload.program.digest,
        "key": dict(covered.workload.key),
        "hardware": covered.hardware.name,
        "state": covered.state,
        "measured_on": list(covered.measured_on),
        "at": covered.at,
    }
