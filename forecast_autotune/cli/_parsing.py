"""What the parsers of several verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

from ._commands import COMMANDS
from ._exit_codes import exit_codes

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

FORMATS = ("vllm", "sglang", "fla")
"""Programs whose config files are written and read, as `store.config_files.FORMATS` names them: help imports no format."""

JSON_HELP = "one JSON value on stdout, for programs"


def new_parser(subparsers: Subparsers, command: str, description: str, *, nothing: str = "") -> argparse.ArgumentParser:
    """A verb's parser, with its line of `COMMANDS` and its exit codes in its help.

    Args:
        nothing: when the verb returns NOTHING; empty where it never does.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        command,
        help=COMMANDS[command][1],
        description=description,
        epilog=exit_codes(nothing),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_store_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--dir`, the folder of the store."""
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="the store's folder (default: FORECAST_AUTOTUNE_DIR, else the user's cache)",
    )


def count(text: str) -> int:
    """A count of at least 1, as an option's `type`."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a count of at least 1")
    return number
