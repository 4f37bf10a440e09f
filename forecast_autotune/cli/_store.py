"""The store that a verb reads, and what several verbs print of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .output import print_json, say

if TYPE_CHECKING:
    from ..store.queries import StoreFile


def store_of(arguments: argparse.Namespace) -> StoreFile:
    """The store in the folder of `--dir`, else in that of the settings."""
    from ..settings import Settings
    from ..store.queries import StoreFile

    return StoreFile(arguments.dir if arguments.dir is not None else Settings.from_environment().dir)


def is_missing(store: StoreFile, empty: object = None) -> bool:
    """Whether there is no store yet; a line on stderr says so.

    Args:
        empty: what a program that asked for JSON gets then; None where nobody did.
    """
    if not store.exists():
        say(f"there is no store at {store.path}: nothing has been tuned here yet")
        if empty is not None:
            print_json(empty)
        return True
    return False


def warn_unreadable(store: StoreFile) -> None:
    """Say on stderr how many rows could not be read, if any."""
    if store.unreadable:
        say(
            f"{len(store.unreadable)} rows of {store.path} cannot be read and are left out, first: {store.unreadable[0]}"
        )
