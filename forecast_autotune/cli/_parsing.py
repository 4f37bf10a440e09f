"""What the parsers of several verbs share."""

from __future__ import annotations

import argparse
import math
import sys
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
    parser.set_defaults(parser=parser)  # which tells of words that nobody takes, with its own usage
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
    """A whole number of at least 1, as an option's `type`; of larger ones the largest that counts items.

    Raises:
        argparse.ArgumentTypeError: it is another text.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return min(int(text), sys.maxsize)


def days(text: str) -> float:
    """A number of days, as an option's `type`.

    Raises:
        argparse.ArgumentTypeError: it is another text.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of days, such as 30")
    return number
