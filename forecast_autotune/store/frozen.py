"""Whether programs that use a store may still try configs in real calls: a file in its folder says that they may not."""

from __future__ import annotations

import os
from pathlib import Path

from .filesystem import make_folder

_NAME = "frozen"


def is_frozen(folder: Path) -> bool:
    """Whether nothing more is to be learned from real calls by programs with a store in this folder."""
    return os.path.lexists(folder / _NAME)


def freeze(folder: Path) -> bool:
    """Have programs learn nothing more; False where that was so already.

    Raises:
        OSError: the folder cannot be written to.
    """
    try:
        make_folder(folder)
        try:
            os.close(os.open(folder / _NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
    except FileNotFoundError:  # what /proc says where nothing can be made
        raise OSError(f"no file can be made in {folder}: name a folder that can be written to") from None
    return True


def thaw(folder: Path) -> bool:
    """Let programs learn again; False where they may already.

    Raises:
        OSError: the folder cannot be written to.
    """
    try:
        os.unlink(folder / _NAME)
    except FileNotFoundError:
        return False
    return True
