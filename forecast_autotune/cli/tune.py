"""`tune`: a suite's calls, or the keys that a program meets, tuned on all GPUs of a Ray cluster."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.figures import as_duration, counted
from ..errors import InvalidInputError
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import store_folder
from .output import print_json, print_table, say
from .run import add_program_arguments, command_of
from .tune_pending import budget_that_measures

if TYPE_CHECKING:
    from ..distributed.ray_tuning import TuningPlan
    from ..store.queries import StoreFile

DESCRIPTION = """\
Tune on every GPU of a Ray cluster, or of this machine: one process for each GPU, or one a node where there are none. What
is measured and decided comes into the store here as it is found, so that a run which was stopped goes on from there.
Products that differ (H100, H200) decide each for itself; GPUs of one node that are alike share the configs of a key once
there are fewer keys than GPUs.

SUITE is a file, or a module after -m, that defines `tuning_calls()`: it returns functions without arguments, by name, each
of which calls a kernel once. The words behind it choose among the names. Any other program is run as `run` does: once to
see which keys it meets, then for some of its keys at a time; once these are decided it is ended.

Nodes need this package and the program, at the same place. Each keeps what it measures in its own store too; its own
FORECAST_AUTOTUNE_DIR holds there, all other settings are those of here."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(subparsers, "tune", DESCRIPTION, nothing="something failed, or there was nothing to tune")
    parser.add_argument(
        "--ray", metavar="ADDRESS", default="local",
        help="HOST:PORT of a Ray cluster, or auto for the one that this machine belongs to; default: a Ray of this machine "
        "alone, which ends with the run",
    )  # fmt: skip
    parser.add_argument(
        "--keys", type=Path, metavar="FILE", help="tune these alone: a list that `coverage --write` made"
    )
    parser.add_argument("--budget", metavar="B", help="of a key, as FORECAST_AUTOTUNE_BUDGET")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    add_program_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tune, and print what became of each call or key."""
    from ..distributed.key_list import read_keys
    from ..distributed.ray_pool import RayPool
    from ..distributed.ray_tuning import TuningPlan
    from ..distributed.suites import find_module, is_suite
    from ..distributed.tuning_worker import identity
    from ..settings import PREFIX
    from ..store.queries import StoreFile

    words = arguments.program[arguments.program[:1] == ["--"] :]
    if words and arguments.module and find_module(words[0]) is None:
        raise InvalidInputError(f"there is no module {words[0]!r}: look at its spelling, and at PYTHONPATH")
    suite = bool(words) and is_suite(words[0], module=arguments.module)
    command = ["module" if arguments.module else "file", words[0]] if suite else command_of(arguments)
    keys = None if arguments.keys is None else read_keys(arguments.keys)
    if keys is not None and not keys:
        say(f"{arguments.keys} names no key: there is nothing to tune")
        return OK
    directory = store_folder(arguments.dir).absolute()
    store = StoreFile(directory)
    store.take([])  # made if there is none, so that workers which see the same file know it
    environment: dict[str, Any] = {n: v for n, v in os.environ.items() if n.startswith(PREFIX)} | {
        f"{PREFIX}DIR": str(directory),
        f"{PREFIX}MODE": "tune",
        f"{PREFIX}BUDGET": budget_that_measures(arguments.budget),
        "TORCHDYNAMO_DISABLE": "1",  # compiled code measures nothing
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }
    plan = TuningPlan(store, wanted=words[1:] if suite else None, keys=keys, say=say)
    worker = {
        "suite": suite,
        "command": command,
        "folder": os.getcwd(),
        "environment": environment,
        "store": identity(store.path),
        "known": store.lines(),
        "keys": None if keys is None else [key.fields for key in keys],
    }
    # Ray prints what befalls its nodes to stdout, which is for the result.
    with (
        redirect_stdout(sys.stderr),
        RayPool(arguments.ray, "forecast_autotune.distributed.tuning_worker:TuningWorker", worker, say=say) as pool,
    ):
        pool.run(plan)
    return _report(plan, store, as_json=arguments.json)


def _report(plan: TuningPlan, store: StoreFile, *, as_json: bool) -> int:
    failed = [each for each in plan.ended_tasks if each.problem]
    if as_json:
        print_json(plan.as_json())
    elif plan.ended_tasks:
        print_table(
            ("tuned", "hardware", "by", "took", "result"),
            [
                (e.what, e.on, e.by, as_duration(e.seconds), e.problem or "; ".join(e.warnings) or "done")
                for e in plan.ended_tasks
            ],
            right=("took",),
        )
    failures = f"{len(failed)} of {len(plan.ended_tasks)} failed"
    say(f"{counted(len(plan.decided), 'key')} decided, {failures}; the store is {store.path}")
    return NOTHING if failed or not plan.ended_tasks else OK
