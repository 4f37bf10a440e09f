"""Text by whoever, fit to be shown."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence


def plain(text: str) -> str:
    """Text on one line without control characters: what others wrote may hold terminal commands."""
    return "".join(c if c.isprintable() else {"\n": " ", "\t": " "}.get(c, f"\\x{ord(c):02x}") for c in text)


def shortened(text: str, most: int | None) -> str:
    """Text of so many characters at most, with `…` where something was left out; None for all of it."""
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def told_apart(texts: Sequence[str], most: int) -> list[str]:
    """Several texts, each of so many characters at most, and cut so that what differs is seen.

    Of longer texts the words are left out that all have, such as flags; where that does not tell, how all begin.
    """
    if all(len(text) <= most for text in texts):
        return list(texts)
    words = [re.findall(r'[^\s,"\[\]]+', text) for text in texts]
    shared = set(words[0]).intersection(*words[1:])
    own_words = [" ".join([*(["…"] if shared else []), *(w for w in each if w not in shared)]) for each in words]
    begun_alike = len(os.path.commonprefix(list(texts)))  # noqa: RUF071  # of characters, not of paths
    for tried in (own_words, [f"…{text[begun_alike:]}" for text in texts]):
        cut = [shortened(text, most) for text in tried]
        if len(set(cut)) == len(set(texts)):
            return cut
    for text in set(cut):  # some of several may have more in common than all: they are told apart by themselves
        places = [place for place, each in enumerate(cut) if each == text]
        if 1 < len(places) < len(cut):
            for place, own in zip(places, told_apart([texts[place] for place in places], most), strict=True):
                cut[place] = own
    return cut


def shown(value: object) -> str:
    """A value as a message quotes it: 60 characters at most, and `missing` for None."""
    try:
        text = repr(value)
    except RecursionError:
        return "nested too deeply to be shown"
    return "missing" if value is None else text if len(text) <= 60 else text[:57] + "..."


def error_text(err: BaseException) -> str:
    """An error's message; of a file that the system refuses, its path and what to do, in place of `[Errno 2] …`."""
    if not isinstance(err, OSError) or err.filename is None:
        return str(getattr(err, "strerror", None) or err)
    path = os.fsdecode(err.filename) if isinstance(err.filename, (str, bytes)) else str(err.filename)
    folder = os.path.dirname(path) or os.curdir
    if isinstance(err, FileNotFoundError) and not os.path.isdir(folder):
        return f"there is no folder {folder}: make it, or look at its spelling"
    if isinstance(err, FileNotFoundError):
        return f"there is no file {path}: look at its spelling, or give its whole path"
    if isinstance(err, IsADirectoryError):
        return f"{path} is a folder: name a file"
    if isinstance(err, NotADirectoryError):
        return f"{path}: {folder} is a file, not a folder: name a folder that is there"
    if isinstance(err, PermissionError):
        return f"{path}: this user may not read or write it: change its permissions, or name another"
    if err.errno == errno.ENOEXEC:
        return f"{path} is no program: give a Python file, or one that begins with #!"
    return f"{path}: {err.strerror}"
