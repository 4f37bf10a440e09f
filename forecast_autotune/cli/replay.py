"""`replay`: tune against recorded spaces, and report what it would have cost and won."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..core.budget import BudgetLimits
from ..core.model_names import FORMS, is_language_model, parse_model_name
from ..errors import WorkerError
from ..evaluation.history import history_of
from ..evaluation.replay_runner import POLICIES, ReplayPlan, Row, Task, work
from ..settings import SURROGATES, Settings, check_surrogate
from ..surrogates.by_name import make_surrogate
from ..surrogates.learned import check_model
from ._exit_codes import BAD_INPUT, OK
from ._parsing import Subparsers, count, new_parser
from ._replay_report import report_of, show_report
from .output import with_progress

BUDGETS = ("10", "1%", "10%")
TARGETS = (0, 10, 50)  # configs whose outcomes are known when forecasts are scored
DRAWS = 10  # of those configs, at most; from one draw to the next Brier skill scatters by 0.04 to 0.10 (10 measured)


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "replay",
        "Tune against recorded spaces, as if their hardware were here, and say how close the decisions come to each\n"
        "space's best, what they cost, and how good and how honest the forecasts were. Ctrl-C prints what is finished.",
    )
    parser.add_argument(
        "traces",
        nargs="+",
        metavar="TRACE",
        type=Path,
        help="recorded run: our own form, T4 JSON, or a cache file of Kernel Tuner",
    )
    parser.add_argument(
        "--history",
        nargs="+",
        action="extend",
        default=[],
        metavar="TRACE",
        type=Path,
        help="runs that are in the store; the one under test is left out of its own history",
    )
    parser.add_argument(
        "--budget",
        action="append",
        metavar="B",
        help=f"as FORECAST_AUTOTUNE_BUDGET; may be repeated; default: {', '.join(BUDGETS)}".replace("%", "%%"),
    )
    parser.add_argument(
        "--policy",
        choices=sorted(POLICIES),
        default="selective",
        help="default: %(default)s, which tries every config where the budget is all",
    )
    parser.add_argument(
        "--surrogate",
        default="auto",
        metavar="S",
        help=f"{', '.join(SURROGATES)}, or a language model ({FORMS}); default: %(default)s",
    )
    parser.add_argument("--seeds", type=count, default=10, metavar="N", help="runs per budget; default: %(default)s")
    parser.add_argument(
        "--workers",
        type=count,
        default=1,
        metavar="N",
        help="how many configs compile side by side in a run, and beside timing; default: %(default)s",
    )
    parser.add_argument("--jobs", type=count, default=os.cpu_count() or 1, metavar="N", help="processes to use")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay, print, and return the exit code: 0, 130 when interrupted, 2 when workers died.

    Raises:
        InvalidInputError: a budget or a surrogate does not parse, a file is no trace, or the fitted model is none.
        OSError: a file cannot be read.
    """
    budgets = list(dict.fromkeys(args.budget or BUDGETS))
    for text in budgets:
        BudgetLimits.parse(text)
    settings = Settings.from_environment()
    check_surrogate(args.surrogate, "--surrogate", remote_model=settings.remote_model)
    plan = ReplayPlan(
        traces=tuple(args.traces),
        histories=tuple(_history(trace, args.history) for trace in args.traces),
        policy=args.policy,
        workers=args.workers,
        surrogate=partial(make_surrogate, args.surrogate, answer=settings.answer, model=settings.model),
    )
    tasks = _tasks(args, budgets)
    surrogate = plan.surrogate()
    check_model(surrogate)  # a broken model is reported before hours pass
    priors = list(surrogate.fitted_on)
    done, code = _collect(plan, tasks, _jobs(args))
    report = report_of(done, budgets)
    if args.json:
        print(json.dumps(report | {"priors": priors}, allow_nan=False))
    else:
        show_report(report, priors)
    return code


def _history(trace: Path, candidates: Sequence[Path]) -> tuple[Path, ...]:
    """The history of a trace; a line on stderr for each candidate that is left out."""
    history = history_of(trace, candidates)
    for path, why in history.left_out.items():
        print(f"{path.name} is left out of the history of {trace.name}: {why}", file=sys.stderr)
    return history.kept


def _tasks(args: argparse.Namespace, budgets: Sequence[str]) -> list[Task]:
    """All runs, seed by seed and those of the largest shares first, then all scorings of forecasts."""
    tasks = [
        Task(trace, text, seed)
        for seed in range(args.seeds)
        for text in sorted(budgets, key=lambda text: BudgetLimits.parse(text).share or 0.0, reverse=True)
        for trace in range(len(args.traces))
    ]
    draws = min(DRAWS, args.seeds)
    return tasks + [
        Task(trace, known, draw)
        for trace in range(len(args.traces))
        for known in TARGETS
        for draw in range(draws if known else 1)
    ]


def _jobs(args: argparse.Namespace) -> int | None:
    """How many processes to use: only this one for a model that each would load, as many as named for a server."""
    loads = is_language_model(args.surrogate) and parse_model_name(args.surrogate).runs != "server"
    return None if loads else int(args.jobs)


def _collect(plan: ReplayPlan, tasks: Sequence[Task], jobs: int | None) -> tuple[dict[Task, Row], int]:
    """The rows of all tasks that finished, and the exit code."""
    done: dict[Task, Row] = {}
    try:
        for task, row in with_progress(work(plan, tasks, jobs), len(tasks), "replaying"):
            done[task] = row  # noqa: PERF403 - one by one: what is finished when Ctrl-C comes is reported
    except KeyboardInterrupt:
        print(f"interrupted: {len(done)} of {len(tasks)} runs are finished; these follow", file=sys.stderr)
        return done, 130
    except WorkerError as err:
        print(f"{err}; {len(done)} of {len(tasks)} runs are finished, and follow", file=sys.stderr)
        return done, BAD_INPUT
    return done, OK
