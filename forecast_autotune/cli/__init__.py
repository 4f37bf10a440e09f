"""The forecast-autotune command: one module a verb, imported when the verb is typed."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ._commands import COMMANDS
from ._exit_codes import BAD_INPUT, OK, exit_codes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; the result goes to stdout, everything else to stderr."""
    from ..core.text import error_text
    from ..errors import AutotuneError
    from .output import say

    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names are anybody's, and a locale may know ASCII alone
    try:
        if not arguments:
            parser_with([]).print_help(sys.stderr)
            return BAD_INPUT
        named = next((a for a in arguments if not a.startswith("-")), "")
        parsed, left_over = parser_with([named]).parse_known_args(arguments)
        if left_over:
            parsed.parser.error(f"unrecognized arguments: {' '.join(left_over)}")
        with _warnings_as_lines():
            code = int(parsed.run(parsed))
        sys.stdout.flush()  # a closed pipe raises at this line, not while Python ends
        return code
    except SystemExit as stop:  # argparse has printed what is wrong, or help
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    except BrokenPipeError:
        # The reader of a pipe has seen enough, as `head` has. What is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (AutotuneError, OSError) as err:
        say(error_text(err))
        return BAD_INPUT
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def _open_closed_streams() -> None:
    """Let what the caller has closed, as `>&-` does, be empty to read from and take what is written to it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in this order each gets its usual number
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115  # for good


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print our warnings as lines of the command: there is no line of the user's that they could point at."""
    from ..errors import StoreWarning, TuningWarning
    from .output import say

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, (StoreWarning, TuningWarning)):
            say(str(message))
        else:
            others(message, category, *place, **more)

    with warnings.catch_warnings():
        others, warnings.showwarning = warnings.showwarning, show
        for category in (StoreWarning, TuningWarning):
            warnings.simplefilter("default", category)
        yield


def parser_with(commands: Collection[str]) -> argparse.ArgumentParser:
    """The parser; of the subcommands only these are imported, the others have a name and a line."""
    from ._version import Version

    parser = argparse.ArgumentParser(
        prog="forecast-autotune",
        description="Inspect and manage what forecast_autotune has learned on this machine.",
        epilog=exit_codes("nothing was found, or something failed: COMMAND --help says what")
        + "\nrun ends with the program's own exit code.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print this version, Triton's, torch's and Python's")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, (module, line) in COMMANDS.items():
        if command in commands:
            importlib.import_module(f"{__name__}.{module}").add_parser(subparsers)
        else:
            subparsers.add_parser(command, help=line)
    return parser
