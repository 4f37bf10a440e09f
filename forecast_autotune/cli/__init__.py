"""The forecast-autotune command. Each subcommand is a module with `add_parser(subparsers)`, imported when it is named."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "list": ("listing", "what is decided here"),
    "show": ("show", "one decision: why, forecast beside measurement, what it beat"),
    "skills": ("skills", "what changes of one knob did, by what was measured"),
    "stats": ("stats", "size, hits, time saved, how honest the forecasts were"),
    "replay": ("replay", "tune against recorded spaces: loss, spend, honesty"),
    "run": ("run", "run a program whose triton.autotune is ours"),
    "forecast": ("forecast", "rank a kernel's configs for a GPU without touching one"),
    "pending": ("pending", "keys met where measuring was not allowed"),
    "tune-pending": ("tune_pending", "run a program to tune pending keys"),
    "export": ("export", "write decisions and outcomes as JSON lines"),
    "import": ("import_", "take in exported decisions and outcomes"),
    "prune": ("prune", "remove superseded decisions and what nothing uses any more"),
    "clear": ("clear", "remove everything, or one kernel"),
    "doctor": ("doctor", "check compilers, devices, the store and the settings"),
}
"""Name to module and help line. The module sets `run`, a function of the parsed arguments, as its parser's default. None
is called like a builtin: once imported, a module `list` would hide the builtin from this one."""

OK, NOTHING, BAD_INPUT = 0, 1, 2

EPILOG = """exit codes:
  0  done
  1  nothing found; for doctor: a problem found; for tune-pending: keys are still pending, or the program failed
  2  bad input: a wrong argument, a broken file, a store that cannot be used
run ends with the program's own exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; the result goes to stdout, everything else to stderr."""
    from ..core.text import plain
    from ..errors import AutotuneError

    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parsed = _parser(arguments).parse_args(arguments)
        code = int(parsed.run(parsed))
        sys.stdout.flush()  # a reader that has gone is met here, not while Python ends
        return code
    except SystemExit as stop:  # argparse has told what is wrong, or printed help
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    except BrokenPipeError:
        # The reader of a pipe has seen enough, as `head` has. What is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (AutotuneError, OSError) as err:
        print(f"forecast-autotune: {plain(str(err))}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("forecast-autotune: interrupted", file=sys.stderr)
        return 130


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The whole parser; of the subcommands only the one that is named is imported."""
    parser = argparse.ArgumentParser(
        prog="forecast-autotune",
        description="Inspect and manage what forecast_autotune has learned on this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    named = next((a for a in arguments if not a.startswith("-")), None)
    for command, (module, line) in COMMANDS.items():
        if command == named:
            importlib.import_module(f"{__name__}.{module}").add_parser(subparsers)
        else:
            subparsers.add_parser(command, help=line)
    return parser
