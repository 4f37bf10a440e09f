"""Built variants on disk: marked when used, removed when nothing has used them for long."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

from ..processes.file_lock import file_lock

_SLOT = re.compile(r"slot-[0-9a-f]{12}-\d+(-[0-9a-f]{32})?")
_VARIANT = re.compile(r"[0-9a-f]{32}")
_IN_A_VARIANT = ("build.lock", "request.json", "built.json", "kernel_part.cu")  # one at least, from the first step on


def mark_used(folder: Path) -> None:
    """Note that a build, or a slot it was built in, is in use."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def remove_unused(root: Path, *, days: float) -> tuple[int, int]:
    """Remove builds that nothing has used for so many days; how many, and how many bytes they took.

    One that is being built now is left alone, and so is every folder that is no build. A process that has a variant loaded
    keeps it.

    Args:
        root: the folder `builds` of a store's folder; there may be none.
    """
    before = time.time() - days * 86400
    count = size = 0
    for folder in sorted(root.glob("*/*")) if root.is_dir() else ():
        try:
            if folder.is_symlink() or not folder.is_dir() or folder.stat().st_mtime > before or not _is_build(folder):
                continue
            name = "slot.lock" if folder.name.startswith("slot-") else "build.lock"
            with file_lock(folder / name, timeout=0):
                size += sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
                _remove(folder)
                count += 1
        except OSError:
            continue
    return count, size


def _remove(folder: Path) -> None:
    """Remove a build; what tells that it is one goes last, for this may be cut off."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in _IN_A_VARIANT:
            path.unlink()
    shutil.rmtree(folder)


def _is_build(folder: Path) -> bool:
    """Whether a folder is a variant's or a slot, cut off half-way or not: others may keep folders called builds too."""
    if _SLOT.fullmatch(folder.name):
        return True
    if not _VARIANT.fullmatch(folder.name):
        return False
    return any((folder / name).exists() for name in _IN_A_VARIANT) or not any(folder.iterdir())
