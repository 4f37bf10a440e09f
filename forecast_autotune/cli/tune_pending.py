"""`tune-pending`: run a program with measuring allowed, and say which pending keys that settled."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..processes.booting import environment_with
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import is_missing, refuse_read_only, store_of, warn_unreadable
from .output import print_json, say
from .pending import where
from .run import add_program_arguments, command_of, run_to_its_end

_NOTHING_PENDING = {"pending": 0, "settled": 0, "new": 0, "exit_code": None}

if TYPE_CHECKING:
    from ..store.queries import StoreFile
    from ..store.rows import Pending

DESCRIPTION = """\
Run a program as `run` does, in mode tune whatever its environment and its code say, so that the pending keys it meets
are measured; then say which were settled and which are still pending. torch.compile is switched off, since compiled code
measures nothing, unless all that is pending is what torch.compile itself chooses (inductor.*). Keys are met on the
hardware they were noted on, so this belongs on that machine."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "tune-pending",
        DESCRIPTION,
        nothing="keys are still pending, the program failed, or there is no store yet",
    )
    parser.add_argument(
        "--budget", metavar="B", help="as FORECAST_AUTOTUNE_BUDGET; also overrides a budget of 0 in code"
    )
    parser.add_argument("--json", action="store_true", help=f"{JSON_HELP}; the program's own goes to stderr")
    add_store_argument(parser)
    add_program_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the program, and say of each key that was pending what became of it."""
    command = command_of(arguments)
    changes = {
        "FORECAST_AUTOTUNE_MODE": "tune",
        "FORECAST_AUTOTUNE_BUDGET": budget_that_measures(arguments.budget),
    }
    if arguments.dir is not None:
        changes["FORECAST_AUTOTUNE_DIR"] = str(arguments.dir.absolute())
    store = store_of(arguments)
    if is_missing(store, _NOTHING_PENDING if arguments.json else None):
        return NOTHING
    before = store.pending()
    if not before:
        warn_unreadable(store)
        say("no key is pending: there is nothing to tune, and the program is not run")
        if arguments.json:
            print_json(_NOTHING_PENDING)
        return OK
    refuse_read_only((store.path, store.path.parent), "what is tuned")
    compiles = all(map(_is_inductors, before))  # else nothing is: compiled code measures nothing of other kernels
    changes["FORECAST_AUTOTUNE_INDUCTOR" if compiles else "TORCHDYNAMO_DISABLE"] = "1"
    sys.stdout.flush()
    code, interrupted = run_to_its_end(
        command, environment_with(changes), stdout=sys.stderr.fileno() if arguments.json else None
    )
    settled, new = _report(store, before, compiles, interrupted)
    if arguments.json:
        print_json({"pending": len(before), "settled": settled, "new": new, "exit_code": code})
    if code:
        say(f"the program ended with exit code {code}")
    if interrupted:
        raise KeyboardInterrupt
    return NOTHING if code or settled < len(before) else OK


def budget_that_measures(given: str | None) -> str | None:
    """The budget for the program: the one given, else the environment's unless that measures nothing."""
    from ..core.budget import BudgetLimits
    from ..settings import Settings

    text = given if given is not None else Settings.from_environment().budget
    if text is None or BudgetLimits.parse(text).measures:
        return text
    if given is not None:
        say(f"--budget {given} measures nothing: keys will stay pending")
        return given
    say(f"FORECAST_AUTOTUNE_BUDGET={text} measures nothing and is left aside")
    return None


def _is_inductors(pending: Pending) -> bool:
    from ..frontends.inductor.request import is_inductors

    return is_inductors(pending.tuning_key.workload.program)


def _report(store: StoreFile, before: list[Pending], compiles: bool, interrupted: bool) -> tuple[int, int]:
    """Say of each key that was pending what became of it; returns how many are settled, and how many are new.

    Args:
        compiles: whether torch.compile was on.
        interrupted: whether the program was ended by Ctrl-C.
    """
    after = {p.digest: p for p in store.pending()}
    decided = {s.digest: s.decision for s in store.decisions()}
    warn_unreadable(store)
    for pending in before:
        named = f"{pending.tuning_key.workload} on {where(pending)}"
        still = after.get(pending.digest)
        decision = decided.get(pending.digest)
        if still is None:
            speed = (
                "" if decision is None or decision.speedup is None else f", {decision.speedup:.2f}x the default's speed"
            )
            say(f"settled: {named}" + ("" if decision is None else f": {decision.config}{speed}"))
        elif still.met_at > pending.met_at:
            say(
                f"still pending: {named}: it was met, but {still.why} holds for it; --budget overrides a budget in code"
            )
        elif interrupted:
            say(f"still pending: {named}: Ctrl-C came before it was tuned")
        elif not compiles and _is_inductors(pending):
            say(
                f"still pending: {named}: it is met where torch.compile compiles, which is off while other keys wait: "
                "run this again once they are settled, or the program itself in mode tune"
            )
        else:
            others = (
                ", was met after a call that differs in constexprs alone"
                if pending.tuning_key.workload.constexprs
                else ""
            )
            say(f"still pending: {named}: it was not met{others}, or tuning it failed")
    settled = sum(p.digest not in after for p in before)
    new = len(after.keys() - {p.digest for p in before})
    say(f"{settled} of {len(before)} pending keys settled" + (f"; {new} new ones" if new else ""))
    return settled, new
