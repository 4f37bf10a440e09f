"""The store that a verb reads, and what several verbs print of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import InvalidInputError, StoreError
from .output import print_json, say

if TYPE_CHECKING:
    from pathlib import Path

    from ..store.queries import StoreFile


def store_of(arguments: argparse.Namespace) -> StoreFile:
    """The store in the folder of `--dir`, else in that of the settings."""
    from ..store.queries import StoreFile

    return StoreFile(store_folder(arguments.dir))


def store_folder(given: Path | None) -> Path:
    """The folder that is given, else that of the settings."""
    from ..settings import Settings

    return given if given is not None else Settings.from_environment().dir


def is_missing(store: StoreFile, empty: object = None) -> bool:
    """Whether there is no store yet; a line on stderr says so.

    Args:
        empty: what a program that asked for JSON gets then; None where nobody did.
    Raises:
        InvalidInputError: a file stands where its folder is to be.
    """
    refuse_file(store)
    if not store.exists():
        say_not_found(f"there is no store at {store.path}: nothing has been tuned here yet")
        if empty is not None:
            print_json(empty)
        return True
    return False


def say_not_found(text: str) -> None:
    """Say on stderr what a store does not hold, and where else decisions may be, if the settings name any place."""
    others = [name for name in ("FORECAST_AUTOTUNE_REMOTE_STORE", "FORECAST_AUTOTUNE_PACKS") if os.environ.get(name)]
    shown = "are not listed: kernel.explain() shows them, 'forecast-autotune coverage' counts them"
    say(f"{text}; decisions of {' and '.join(others)} {shown}" if others else text)


def refuse_file(store: StoreFile) -> None:
    """Raise where a file stands in the place of a store's folder.

    Raises:
        InvalidInputError: it does.
    """
    folder = store.path.parent
    if folder.is_file():
        found = f"{folder} is a file, and a store is a folder"
        raise InvalidInputError(f"{found}: give {folder.parent if folder.name == store.path.name else 'a folder'}")


def refuse_read_only(paths: Iterable[Path], what: str) -> None:
    """Raise where something could not be kept.

    Args:
        paths: the files and folders that are written to; those that are missing are passed over.
        what: would be lost.
    Raises:
        StoreError: one cannot be written to.
    """
    for path in paths:
        if path.exists() and not os.access(path, os.W_OK):
            raise StoreError(f"{path} cannot be written to: {what} would be lost; check its permissions")


def nearest_kernels(named: str, kernels: Iterable[str]) -> str:
    """Where no kernel has this name, those that may be meant, as the end of a sentence."""
    import difflib

    known = {name.lower(): name for name in kernels}
    having = [name for lower, name in known.items() if named and named.lower() in lower]
    close = [known[lower] for lower in difflib.get_close_matches(named.lower(), known, n=3)]
    nearest = list(dict.fromkeys([*having, *close]))[:3]
    return f"did you mean {' or '.join(nearest)}?" if nearest else "'forecast-autotune list' names them"


def hardware_meant(store: StoreFile, named: str | None) -> str:
    """Where no hardware here has this in its name, some that there is, the likeliest first, as the end of a sentence."""
    if named is None:
        return ""
    import difflib

    known = sorted({decision.tuning_key.hardware.name for decision in store.decisions()})
    if not known or any(named.lower() in name.lower() for name in known):
        return ""
    words = {word.lower(): name for name in known for word in name.split()}  # a person types one word of a name
    close = [words[word] for word in difflib.get_close_matches(named.lower(), words, 3)]
    return f": there is no hardware {named!r}, but {', '.join(list(dict.fromkeys([*close, *known]))[:3])}"


def warn_unreadable(store: StoreFile) -> None:
    """Say on stderr how many rows could not be read, if any."""
    if store.unreadable:
        say(
            f"{len(store.unreadable)} rows of {store.path} cannot be read and are left out, first: {store.unreadable[0]}"
        )
