"""`show`: one decision. What was chosen, why, against what, and what had been forecast."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ._exit_codes import BAD_INPUT, NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import is_missing, nearest_kernels, say_not_found, store_of, warn_unreadable
from .listing import table_of
from .output import print_json, print_text, say, text_for

if TYPE_CHECKING:
    from ..store.queries import StoreFile
    from ..store.rows import StoredDecision

LISTED = ("decision", "kernel", "hardware", "speed", "decided")  # of each decision that a name stands for
MAX_LISTED = 10  # of these decisions


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "show",
        "One decision: what was chosen, why, what it beat, and what was forecast of each\n"
        "config. Of a key that is decided under several power limits, all of them; with\n"
        "--json, as a list. 5.37 ±0.4 us is the median of a config's samples and their\n"
        "standard deviation; 1.32x (1.07-1.62) a forecast and one either side of it.",
        nothing="no decision is called KEY; --json prints {}",
    )
    parser.add_argument(
        "key",
        metavar="KEY",
        help="a kernel's name, the start of a decision's digest as `list` prints it, or a part of a name as "
        "`list --kernel` takes it",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also who forecast what, each failure's message, the run that measured, and versions in full",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the decision that the key names."""
    from ..store.explanation.explanation import Explanation

    store = store_of(arguments)
    if is_missing(store, {} if arguments.json else None):
        return NOTHING
    matches = store.find(arguments.key)
    if not matches:
        warn_unreadable(store)
        _say_unknown(store, arguments.key)
        if arguments.json:
            print_json({})
        return NOTHING
    # One key decided under power limits that do not compare: its decisions have one digest.
    if len({stored.digest for stored in matches}) > 1:
        _say_others(arguments.key, matches)
        if len({stored.tuning_key.workload.program.name for stored in matches}) > 1:
            return BAD_INPUT
        matches = [stored for stored in matches if stored.digest == matches[0].digest]
    explanation = Explanation(tuple(store.detail(stored) for stored in matches))
    warn_unreadable(store)
    if arguments.json:
        print_json(explanation.as_json())
    else:
        print_text(lambda width, emphasize: explanation.as_text(
            width=width, verbose=arguments.verbose, emphasize=emphasize
        ))  # fmt: skip
    return OK


def _say_unknown(store: StoreFile, key: str) -> None:
    kernels = store.kernels()
    if undecided := [name for name in kernels if key and key in name]:
        say_not_found(f"no decision of {' or '.join(undecided[:3])} is stored here, only what was measured")
        return
    hint = nearest_kernels(key, kernels)
    say_not_found(f"no decision starts with {key!r} and no decided kernel has it in its name; {hint}")


def _say_others(key: str, matches: list[StoredDecision]) -> None:
    """Name what the key may stand for, and how to choose, on stderr. Of one kernel's the newest is shown."""
    kernels = len({stored.tuning_key.workload.program.name for stored in matches})
    shown = f"of {kernels} kernels" if kernels > 1 else "and the newest is shown"
    say(f"{key!r} stands for {len(matches)} decisions, {shown}; choose one by the start of its digest:")
    some = table_of([(stored, None) for stored in matches[:MAX_LISTED]], sys.stderr, LISTED)
    print(text_for(some, sys.stderr), file=sys.stderr)
    if len(matches) > MAX_LISTED:
        say(f"and {len(matches) - MAX_LISTED} more: 'forecast-autotune list --kernel {key}' prints them all")
    say(f"such as 'forecast-autotune show {matches[0].digest[:10]}', the newest")
