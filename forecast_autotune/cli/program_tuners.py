"""`doctor SCRIPT`: run a program, and list which tuners in it are decided here and which are not, and why."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import InvalidInputError
from ..processes.booting import environment_with
from ._exit_codes import NOTHING, OK
from .output import print_json, print_table, say
from .run import command_of, run_to_its_end


def run_and_list(arguments: argparse.Namespace) -> int:
    """Run the program of `doctor SCRIPT` and print its tuners; NOTHING where it had none, or failed.

    Raises:
        InvalidInputError: no program is named, there is none of that name, or a bundle is asked for too.
    """
    if arguments.bundle is not None:
        raise InvalidInputError("--bundle is of this machine, not of a program: give one of them")
    command = command_of(arguments)
    changes: dict[str, str | None] = {}
    if arguments.dir is not None:
        changes["FORECAST_AUTOTUNE_DIR"] = str(arguments.dir.absolute())
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        changes["_FORECAST_AUTOTUNE_TUNERS"] = folder
        code, interrupted = run_to_its_end(command, environment_with(changes), stdout=sys.stderr.fileno())
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("*.json"))]
    tuners = _together(row for report in reports for row in report)
    if arguments.json:
        print_json(tuners)
    elif tuners:
        print_table(
            ("kernel", "tuner", "configs", "keys", "ours", "why"),
            [_as_row(tuner) for tuner in tuners],
            right=("configs", "keys"),
        )
    if code:
        say(f"the program ended with exit code {code}")
    if not reports:
        say("no process of the program imported Triton and came to its end")
    elif not tuners:
        say(f"no kernel with a tuner lived in the program when it ended, in {len(reports)} processes")
    if interrupted:
        raise KeyboardInterrupt
    return NOTHING if code or not tuners else OK


def _together(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that processes agree on as one, with the keys of all."""
    tuners: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        known = tuners.setdefault(
            tuple(value for name, value in row.items() if name != "decided"), {**row, "decided": 0}
        )
        known["decided"] += row["decided"]
    return sorted(tuners.values(), key=lambda row: (row["ours"], row["kernel"]))


def _as_row(tuner: dict[str, Any]) -> tuple[str, ...]:
    ours = "yes" if tuner["ours"] else "no"
    return tuner["kernel"], tuner["tuner"], str(tuner["configs"]), str(tuner["decided"]), ours, tuner["why"]
