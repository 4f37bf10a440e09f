"""`run`: a program with Triton's tuners decided by ours in it and in every Python process it starts."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import InvalidInputError
from ..processes.booting import environment_with
from ._parsing import Subparsers, new_parser

DESCRIPTION = """\
Run a program with install() in effect in it and in every Python process it starts: multiprocessing, subprocess,
torchrun. It takes effect when Triton is imported; a process that does not import Triton is left as it is. Input, output
and exit code are the program's own.

The program is a Python file, a module after -m, or a command such as torchrun. A process that is started without the
environment of its parent, or as `python -I`, `-E` or `-S`, is not reached."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(subparsers, "run", DESCRIPTION)
    parser.add_argument(
        "--inductor",
        action="store_true",
        help="also narrow what torch.compile with max-autotune compiles and times, as FORECAST_AUTOTUNE_INDUCTOR=1 does",
    )
    add_program_arguments(parser)
    parser.set_defaults(run=run)


def add_program_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what names the program and its own arguments."""
    parser.usage = f"{parser.prog} [options] [-m] SCRIPT [ARGS ...]"
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as after python -m")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS", help="the program, and all that it is given"
    )


def run(arguments: argparse.Namespace) -> int:
    """Become the program; where processes cannot be replaced, run it and return its exit code."""
    command = command_of(arguments)
    environment = environment_with({"FORECAST_AUTOTUNE_INDUCTOR": "1"} if arguments.inductor else {})
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":  # elsewhere, exec leaves the caller waiting for the wrong process
        os.execve(command[0], command, environment)  # noqa: S606  # there is no shell; the command is the user's own
    return run_to_its_end(command, environment)[0]


def run_to_its_end(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | None = None
) -> tuple[int, bool]:
    """Run the program beside this process; its exit code, and whether Ctrl-C came meanwhile.

    A terminal sends that to the program as well, which ends in its own way: it may have something to save.
    """
    interrupted = False

    def note(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # a program in the background is to ignore it too
        signal.signal(signal.SIGINT, note)
    try:
        with subprocess.Popen(command, env=environment, stdout=stdout) as program:
            code = program.wait()
        return code, interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def command_of(arguments: argparse.Namespace) -> list[str]:
    """The command line of the program that is to run.

    Raises:
        InvalidInputError: no program is named, or there is none of that name.
    """
    program: Sequence[str] = arguments.program[arguments.program[:1] == ["--"] :]
    if not program:
        raise InvalidInputError("no program is named: give a Python file, -m MODULE, or a command such as torchrun")
    name, *rest = program
    if arguments.module:
        return [sys.executable, "-m", name, *rest]
    path = Path(name)
    if (path / "__main__.py").is_file() or (
        path.is_file() and (path.suffix in (".py", ".pyz", ".zip") or not os.access(path, os.X_OK))
    ):
        return [sys.executable, name, *rest]
    command = shutil.which(name)
    if command is None and path.is_dir():
        raise InvalidInputError(f"{name} is a folder without a __main__.py: name a Python file in it")
    if command is None:
        raise InvalidInputError(f"there is no file or command {name!r}: give a Python file, -m MODULE, or a command")
    return [command, *rest]
