"""The headers that a build has read, as its compiler says, and whether they are what they were."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

KEPT = "headers.json"  # in a slot: what its objects were compiled from
UNKNOWN = ""  # the digest of a header that was edited while it was compiled: no file has it


def read_by_ninja(slot: Path) -> list[str]:
    """Files that the objects in a build folder were made from, as ninja has noted them."""
    listed = subprocess.run(
        ["ninja", "-t", "deps"], cwd=slot, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    ).stdout
    return [os.path.join(slot, line.strip()) for line in listed.splitlines() if line.startswith("    ")]


def read_by_compiler(dependency_file: Path) -> list[str]:
    """Files in what a compiler wrote for `-MMD`: a rule of make's, spaces in names escaped."""
    try:
        text = dependency_file.read_text(errors="replace")
    except OSError:
        return []
    _, _, files = text.replace("\\\n", " ").partition(": ")
    return [name.replace("\\ ", " ").replace("$$", "$") for name in re.split(r"(?<!\\)\s+", files.strip()) if name]


def header_digests(
    files: Iterable[str], *, not_in: Iterable[Path], folders: Iterable[str], began_ns: int
) -> dict[str, str]:
    """The headers among the files that a build read, each with a digest of its content.

    The toolchain's own are left out, for its version stands for them, unless the caller named their folder.

    Args:
        files: what was read.
        not_in: folders with sources that were written for the build.
        folders: what the caller names for headers.
        began_ns: when the build began. What was edited since may have been read before that or after it.
    """
    written = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in not_in)
    named = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in folders)
    digests, ended_ns = {}, time.time_ns()
    for file in sorted({os.path.realpath(file) for file in files}):
        if file.startswith(written) or (file.startswith(_toolchain_folders()) and not file.startswith(named)):
            continue
        facts = _facts(file)
        edited = facts is None or began_ns <= facts[0] <= ended_ns
        digests[file] = UNKNOWN if facts is None or edited else _digest(file, facts)
    return digests


def changed(headers: Mapping[str, str]) -> str | None:
    """The first of some headers that is gone or no longer what it was; None if all are."""
    for file, known in headers.items():
        facts = _facts(file)
        if facts is None or _digest(file, facts) != known:
            return file
    return None


def keep_headers(slot: Path, headers: Mapping[str, str], reached: str) -> None:
    """Note what a build folder's objects were compiled from, for `drop_outdated_objects`.

    Args:
        headers: what the build has read, with digests.
        reached: a digest of what the sources reached in the caller's folders when the build began.
    """
    (slot / KEPT).write_text(json.dumps({"read": headers, "reached": reached}))


def drop_outdated_objects(slot: Path, reached: str) -> None:
    """Remove a build folder's objects if a header of theirs has changed, or another would be read in its place.

    ninja goes by times: a header that was put back, or copied with its time, is older than the object and another one.
    Nor does it see a new header in a folder that is searched before the old one's.

    Args:
        reached: a digest of what the sources reach in the caller's folders now.
    """
    try:
        kept = json.loads((slot / KEPT).read_text())
        outdated = kept["reached"] != reached or changed(kept["read"]) is not None
    except FileNotFoundError:
        return
    except (OSError, ValueError, AttributeError, KeyError, TypeError):  # older versions kept the headers alone
        outdated = True
    if outdated:
        for path in slot.glob("*.o"):
            path.unlink()


def _facts(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@functools.lru_cache(maxsize=65_536)
def _digest(file: str, facts: tuple[int, int, int]) -> str:  # noqa: ARG001  # a file with the same facts is not read again
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:32]
    except OSError:
        return "gone"


@functools.cache
def _toolchain_folders() -> tuple[str, ...]:
    folders = ["/usr/include", "/usr/lib", "/usr/local/include", "/usr/local/cuda"]
    folders += [sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
    folders += [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    if (torch := sys.modules.get("torch")) is not None:
        folders += torch.__path__
    return tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in folders if folder)
