"""`skills`: what changing one knob did, all else equal, and what searches taught, by what was measured."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..store.queries import MINED_OUTCOMES
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, count, new_parser
from ._store import is_missing, store_of, warn_unreadable
from .output import print_json, print_table, say

if TYPE_CHECKING:
    from pathlib import Path

    from ..core.knob_effect import KnobEffect
    from ..program_search.skills import StepSkill

HOW = f"""A case is a pair of measured configs of one variant that differ in one knob. The speed-up is a geometric mean over
the cases of each workload first, then over workloads; faster means by more than the noise. The most telling come first;
a change tried fewer than three times tells nothing. Looked at are the newest {MINED_OUTCOMES:,} outcomes that match.
Before them stand steps that `forecast-autotune search` took to its fastest programs, each measured there with it and
without it, and admitted because it helps at sizes held out too."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "skills",
        f"What changing one knob did, and what searches taught, as measured.\n\n{HOW}",
        nothing="nothing that was measured tells; --json prints []",
    )
    parser.add_argument("--kernel", metavar="K", help="only kernels with this in their name")
    parser.add_argument("--hardware", metavar="H", help="only hardware with this in its name")
    parser.add_argument("--limit", type=count, metavar="N", help="at most so many")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the skills, the most telling first."""
    store = store_of(arguments)
    learnt = _of_searches(store.path.parent, arguments.kernel, arguments.hardware)
    missing = not store.exists() if learnt else is_missing(store)
    skills: list[KnobEffect] = (
        [] if missing else store.knob_effects(kernel=arguments.kernel, hardware=arguments.hardware)
    )
    skills = [*learnt, *skills][: arguments.limit]
    warn_unreadable(store)
    if arguments.json:
        print_json([{**asdict(skill), "text": str(skill)} for skill in skills])
    elif skills:
        print_table(
            ("kernel", "change", "where", "hardware", "speed", "faster", "tried", "failures"),
            [_row(skill) for skill in skills],
            right=("speed", "faster", "tried"),
        )
    elif store.exists():
        say(
            "nothing that was measured tells what a change of one knob does: at least three pairs of configs are needed"
        )
    return OK if skills else NOTHING


def _of_searches(folder: Path, kernel: str | None, hardware: str | None) -> list[StepSkill]:
    """What searches taught, the largest speed-up first; none, with a line on stderr, where their file cannot be read."""
    from ..errors import StoreError
    from ..program_search.skills import skills_in
    from ..store.queries import is_meant

    try:
        skills = skills_in(folder)
    except StoreError as err:
        say(str(err))
        return []
    fitting = [skill for skill in skills if is_meant(kernel, skill.program) and is_meant(hardware, skill.hardware)]
    return sorted(fitting, key=lambda skill: (-skill.held_out, str(skill)))


def _row(skill: KnobEffect) -> tuple[str, ...]:
    return (
        f"{skill.program} ({skill.language})",
        skill.change,
        ", ".join(map(str, skill.conditions)),
        skill.hardware,
        "" if skill.speedup is None else f"{skill.speedup:.2f}x",
        str(skill.faster),
        str(skill.tried),
        "; ".join(f"{kind} in {count}" for kind, count in skill.failures.items()),
    )
