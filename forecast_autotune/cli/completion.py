"""`completion`: a script that completes the command's verbs, options and files in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ..errors import MissingExtraError
from ._commands import COMMANDS
from ._exit_codes import OK
from ._parsing import Subparsers, new_parser

SHELLS = ("bash", "zsh", "fish")
COMPLETED = {"FILE": "FILE", "TRACE": "FILE", "MODULE:KERNEL": "FILE", "SCRIPT ARGS": "FILE", "DIR": "DIRECTORY"}
"""From what an argument is called in help to what shtab calls the names of files that complete it."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "completion",
        "Print a script that completes verbs, options and files. Every new shell\n"
        "completes once it is kept where the shell looks:\n\n"
        "  bash  ~/.local/share/bash-completion/completions/forecast-autotune\n"
        "  zsh   _forecast-autotune, in a folder of $fpath\n"
        "  fish  ~/.config/fish/completions/forecast-autotune.fish\n\n"
        "For this bash alone: source <(forecast-autotune completion bash)",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        MissingExtraError: shtab, which writes it, is not installed.
    """
    try:
        import shtab
    except ImportError as err:
        raise MissingExtraError(
            "completion is written by shtab, which is not installed: pip install 'forecast-autotune[completion]'"
        ) from err
    from . import parser_with

    parser = parser_with(COMMANDS)
    for action in _actions(parser):
        if action.metavar in COMPLETED:
            action.complete = getattr(shtab, COMPLETED[action.metavar])  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=arguments.shell))
    return OK


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of its subparsers."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _actions(subparser)
