"""`search`: new programs for a kernel, the promising ones built and measured in a box."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.figures import as_time
from ..errors import InvalidInputError
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from .output import print_json, print_table, say

if TYPE_CHECKING:
    from ..program_search.finals import Final
    from ..program_search.run import SearchResult

SUFFIXES = (".cpp", ".cc", ".cxx", ".cu")

DESCRIPTION = """\
Search for faster programs than a kernel's own. A proposer changes its source and its knobs; several times as many are
proposed as are measured; each is forecast against the fastest so far, and of four that are built and measured three
are the most promising and one is drawn at random. At the end the fastest are timed again, in new processes, at sizes
that none was chosen by, beside what people wrote. What won is printed as a diff: no source file is written.

  forecast-autotune search my_kernels.py:TASK --budget 32
  forecast-autotune search my_kernels.py:TASK --proposer rewrite,http://127.0.0.1:8000 --minutes 30
  forecast-autotune search saxpy.cpp
  forecast-autotune search softmax.cu

TASK is a fa.SearchTask: source, knobs, inputs and a reference. The module is imported, as Python imports it. Of a C++
or CUDA file, saxpy.py beside it says the same, under the names of the arguments of fa.load_inline and fa.search:
cpp_sources, which binds the function saxpy to torch, reference, inputs and sizes; where there are any, space,
extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths, no_implicit_headers, work, held_out, corners,
outputs and tolerances. CUDA is built by nvcc and tried on the GPU.

What is proposed is built and run in a box alone: no environment, one folder, no network, no other process. A GPU's
driver is not contained. A search that was ended goes on where it was."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(subparsers, "search", DESCRIPTION, nothing="nothing is faster than the seed")
    parser.add_argument(
        "task", metavar="MODULE:TASK", help="a module's name or a .py file, and the task in it; or a C++ or CUDA file"
    )
    parser.add_argument(
        "--budget", type=int, default=32, metavar="N", help="candidates measured, the seed included (default: 32)"
    )
    parser.add_argument(
        "--proposals",
        type=_times,
        default=16.0,
        metavar="Nx",
        help="proposed for each that is measured (default: 16x)",
    )
    parser.add_argument(
        "--proposer",
        default="rewrite",
        metavar="P[,P]",
        help="rewrite, the URL of a language model's server, or both (default: rewrite)",
    )
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="M", help="stop after so many")
    parser.add_argument(
        "--tokens", type=float, default=math.inf, metavar="N", help="that language models may read and write"
    )
    parser.add_argument(
        "--sizes", metavar="S[,S]", help="what candidates are timed at, by name; all others are held out"
    )
    parser.add_argument("--no-forecasts", action="store_true", help="try candidates at random: the baseline")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all draws")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page of pictures")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Search, and print what won; exit code 1 where nothing did.

    Raises:
        AutotuneError: the task, an option or the system does not allow a search; see `fa.search`.
    """
    if arguments.dir is not None:
        os.environ["FORECAST_AUTOTUNE_DIR"] = str(arguments.dir)
    target = _target(arguments.task)
    from ..program_search.run import search

    result = search(
        target,
        budget=arguments.budget,
        proposals=arguments.proposals,
        proposers=[name.strip() for name in arguments.proposer.split(",") if name.strip()],
        minutes=arguments.minutes,
        tokens=arguments.tokens,
        forecasts=not arguments.no_forecasts,
        sizes=None if arguments.sizes is None else [name.strip() for name in arguments.sizes.split(",")],
        seed=arguments.seed,
        listener=lambda event: say(f"[{event.tried.chosen}] {event.text}" if event.tried else event.text),
    )
    if arguments.json:
        print_json(result.as_json())
    else:
        _print(result)
    if arguments.page is not None:  # last: it may be that no file can be written there
        from ..program_search.page import page_of
        from ..store.textfile import write_lines

        write_lines(arguments.page, page_of(result).splitlines())
    return OK if result.winner is not None else NOTHING


def _target(text: str) -> Any:
    """What is searched for: what MODULE:TASK names, or the task of a C++ or CUDA file.

    Raises:
        InvalidInputError: it names nothing to search for.
    """
    from ..program_search.task import task_of_file
    from ._loading import load_module, load_named

    file = Path(text)
    if file.suffix in SUFFIXES:
        beside = file.with_suffix(".py")
        if not file.is_file() or not beside.is_file():
            raise InvalidInputError(
                f"there is no file {beside if file.is_file() else file}: a search of {file.name} needs it, and beside it "
                f"{beside.name} with cpp_sources, inputs, reference and sizes; see forecast-autotune search --help"
            )
        return task_of_file(
            file, load_module(str(beside), "FILE.py", is_enough=lambda module: hasattr(module, "sizes"))
        )
    if not text.rpartition(":")[0]:
        raise InvalidInputError(
            f"{text!r} names no task: give MODULE:TASK or FILE.py:TASK, a fa.SearchTask, which says what the inputs are "
            "and what is right; or a C++ or CUDA file with a Python file beside it that says so"
        )
    return load_named(text, "task", _is_task)


def _is_task(value: Any) -> bool:
    from ..program_search.task import task_of

    try:
        return task_of(value) is not None
    except Exception:  # whatever a value of the module's raises
        return False


def _print(result: SearchResult) -> None:
    budget = result.budget
    say(
        f"{result.task.name}: {budget.measured} measured, {budget.built} built, {budget.failed} failed, "
        f"{budget.walked} steps walked back, {budget.tokens_used} tokens, {budget.seconds:.0f} s: {result.stopped}"
    )
    for name, answers in result.unused_answers.items():
        say(f"{name}: {answers}")
    rows = [_row(result, final) for final in (result.finals.seed, *result.finals.finals)]
    names = list(result.finals.seed.times_us)
    print_table(("program", "knobs", *names, "speed"), rows, right=(*names, "speed"))
    say(result.finals.reason)
    by_hand = result.best_by_hand
    if by_hand is not None and result.finals.winner is not None:
        ratio = result.finals.speedup(result.finals.winner) / result.finals.speedup(by_hand)
        say(f"the winner is {ratio:.3f}x of the best that a person wrote beside the seed")
    if result.winner is not None:
        print(result.diff())


def _row(result: SearchResult, final: Final) -> tuple[str, ...]:
    times = [as_time(final.times_us.get(name)) for name in result.finals.seed.times_us] if final.times_us else []
    missing = [""] * (len(result.finals.seed.times_us) - len(times))
    speed = final.failure.partition("\n")[0][:120] if final.failure else f"{result.finals.speedup(final):.3f}x"
    from ..program_search.steps import is_by_model, rewrite_of

    what = "; ".join(step for step in final.candidate.steps if rewrite_of(step) is not None or is_by_model(step))
    return (what or final.candidate.proposer, str(final.candidate.config), *times, *missing, speed)


def _times(text: str) -> float:
    """`4x` or `4`."""
    value = float(text.removesuffix("x"))
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"{text}: give 1x to 1000x")
    return value
