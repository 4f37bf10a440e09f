"""Imported config files: kept in the store's folder as they are read, and asked for what a job should try first."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ...core.config import Config
from ...core.digest import Value
from ...core.job import Job
from ...core.signal_handlers import raised_by_signal_handler
from ...core.text import error_text, plain
from ...core.user_warnings import warn_once
from ...errors import InvalidInputError, StoreWarning
from ..encoding import Json, from_text, to_text
from ..filesystem import make_folder
from ..textfile import read_text, write_lines
from . import FORMATS
from .base import MAX_FILE_BYTES

if TYPE_CHECKING:
    from .base import ConfigFormat

FOLDER = "config_files"

MAX_FILES = 20_000
"""Looked at in one import: vLLM 0.33 and SGLang 0.5.23 together ship some 730."""

log = logging.getLogger(__name__)


def import_files(store: Path, known: ConfigFormat, paths: Sequence[Path]) -> tuple[int, int]:
    """Check config files, and files anywhere in the folders that are named, and keep them all; or none, if one is broken.

    Args:
        store: the store's folder.
    Returns:
        How many are kept, and how many files in the folders have a name that is none of the format.
    Raises:
        OSError: a file cannot be read, or the folder cannot be written to.
        InvalidInputError: a file is none of the format, or is broken; up to five are named.
    """
    parsed: list[tuple[PurePosixPath, Json]] = []
    broken: list[str] = []
    others = 0
    for path, is_named in _files(paths):
        try:
            found = known.parse(path)
        except InvalidInputError as err:
            broken.append(str(err))
            continue
        if found is not None:
            parsed.append(found)
        elif is_named:
            broken.append(f"{path} has no name that {known.name} looks for")
        else:
            others += 1
    if broken:
        more = f"; and {len(broken) - 5} more" if len(broken) > 5 else ""
        raise InvalidInputError(
            f"nothing was imported: {'; '.join(broken[:5])}{more}. Fix these files, or leave them out"
        )
    root = store / FOLDER / known.name
    for name, content in parsed:
        make_folder((root / name).parent)
        write_lines(root / name, [to_text(content)])
    return len(parsed), others


def _files(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    """The files to read, each with whether it was named itself; in folders, links are passed by."""
    files: list[tuple[Path, bool]] = []
    for path in paths:
        if not path.is_dir():
            path.stat()  # where there is none, that is said and not that its name is wrong
            files.append((path, True))
            continue
        for folder, _, names in os.walk(path, followlinks=False):
            plain = (Path(folder, name) for name in sorted(names))
            files += [(file, False) for file in plain if file.suffix == ".json" and stat.S_ISREG(file.lstat().st_mode)]
            if len(files) > MAX_FILES:
                raise InvalidInputError(f"{path} holds more than {MAX_FILES} JSON files: name the folder of configs")
    return files


def count_imported(store: Path) -> int:
    """How many imported files a store has."""
    return sum(len(files) for _, _, files in os.walk(store / FOLDER))


def remove_imported(store: Path) -> None:
    """Forget all imported files."""
    shutil.rmtree(store / FOLDER)


def suggested(store: Path, job: Job) -> tuple[Config, ...]:
    """Configs of a job's space that imported files name as the best; raises only what a handler of signals does."""
    configs: dict[Config, None] = {}
    for known in FORMATS.values():
        kept = _KeptFiles(store / FOLDER / known.name)
        try:
            for source, knobs in known.suggest(job, kept) if kept.is_there() else ():
                config = _in_space(knobs, job)
                if config is None:
                    log.warning("%s: what %s of %s names %s", job.workload, source, known.name, _unfit(knobs, job))
                else:
                    log.info("%s: %s is tried first, for %s of %s names it", job.workload, config, source, known.name)
                    configs[config] = None
        except Exception as err:  # whatever stands in a file, the run goes on as without it
            if raised_by_signal_handler(err):
                raise
            warn_once(
                f"{kept.root}: imported configs are not used ({type(err).__name__}: {error_text(err)})", StoreWarning
            )
    return tuple(configs)


def _in_space(knobs: Mapping[str, Value], job: Job) -> Config | None:
    """The config of the space with these knobs; of several, the one whose other knobs are most like the default's."""
    fitting = [c for c in job.space if all(n in c.knobs and c.knobs[n] == v for n, v in knobs.items())]
    default = job.space.default.knobs
    return max(fitting, key=lambda c: sum(c.knobs[n] == default[n] for n in default if n in c.knobs), default=None)


def _unfit(knobs: Mapping[str, Value], job: Job) -> str:
    """Why a job cannot try these knobs, as the end of a sentence."""
    if strange := [name for name in knobs if name not in job.space.default.knobs]:
        return f"is not tried, for the kernel has no knob {', '.join(strange)}"
    return f"is none of its configs: add it to them to have it tried ({plain(str(Config(knobs)))})"


class _KeptFiles:
    """The kept files of one format."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def is_there(self) -> bool:
        """Whether there is a folder of them. `Path.is_dir` of Python 3.14 passes over a program's deadline."""
        try:
            return stat.S_ISDIR(self.root.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def read(self, name: str) -> Json | None:
        """A file's content; None where there is none, or it is broken, which is warned of."""
        path = self.root / name
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise InvalidInputError("it is no plain file")
            value = from_text(read_text(path, most_bytes=MAX_FILE_BYTES), path.name)
        except FileNotFoundError:
            return None
        except (OSError, InvalidInputError) as err:
            if raised_by_signal_handler(err):
                raise
            warn_once(f"{path} is left out: {error_text(err)}. Import it again", StoreWarning)
            return None
        return value if isinstance(value, dict) else None

    def folders(self) -> list[str]:
        """The names of the folders that files are kept in."""
        with os.scandir(self.root) as found:
            return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
