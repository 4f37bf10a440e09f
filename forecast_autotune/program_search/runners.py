"""From a candidate to something an examiner can load: C++ and CUDA are built in a box, Python is written to a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..core.outcome import Failure
from ..processes.channel import Message
from .build import CppBuilder, as_message
from .candidate import Candidate
from .task import SearchTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Loadable:
    """What a worker loads a candidate by: see `trial.serve_candidate`.

    `modules` are imported before the box is closed. `code` is a digest of what it was compiled to; empty where that
    is not known. `by_rules` lets it have a worker that tries other such ones too: see `shared_workers.py`.
    """

    message: Message
    readable: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    may_start: bool = False  # Triton starts an assembler
    compile_s: float = 0.0
    code: str = ""
    by_rules: bool = False


class Preparer(Protocol):
    """Makes candidates loadable."""

    def prepare(self, candidate: Candidate) -> Loadable | Failure:
        """What a worker loads it by, or why it cannot be made."""


class CppPreparer:
    """Builds candidates in C++ and CUDA."""

    def __init__(self, task: SearchTask, folder: Path, builds: Path) -> None:
        self._task, self._builder = task, CppBuilder(task, folder, builds)

    def prepare(self, candidate: Candidate) -> Loadable | Failure:
        """See `Preparer`."""
        built = self._builder.build(candidate)
        if isinstance(built, Failure):
            return built
        message = {**as_message(built.extension), "function": self._task.name}
        folder = str(Path(built.extension.path).parent)
        return Loadable(
            message=message,
            readable=(folder,),
            may_start=self._task.device != "cpu",  # CUDA was seen to start in such a box alone
            compile_s=built.compile_s,
            code=built.code,
        )


class PythonPreparer:
    """Writes candidates in Python to files. Triton compiles them where they run."""

    def __init__(self, task: SearchTask, folder: Path) -> None:
        self._task, self._folder = task, folder

    def prepare(self, candidate: Candidate) -> Loadable | Failure:
        """See `Preparer`."""
        folder = self._folder / candidate.digest
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / "candidate.py"
        path.write_text(candidate.source)
        module = sys.modules[self._task.module]
        file = Path(module.__file__ or "")
        package = module.__name__ if file.name == "__init__.py" else module.__name__.rpartition(".")[0]
        root = Path(sys.modules[module.__name__.partition(".")[0]].__file__ or "").parent
        message = {
            "path": str(path),
            "package": package,
            "entry": self._task.entries[candidate.variant],
            "knobs": dict(candidate.config.knobs),
        }
        return Loadable(
            message=message,
            readable=(str(self._folder if candidate.by_rules else folder), str(root)),
            modules=(module.__name__,),
            may_start=self._task.device != "cpu",
            by_rules=candidate.by_rules,
        )


def preparer(task: SearchTask, folder: Path, builds: Path) -> Preparer:
    """The one for a task's language."""
    return PythonPreparer(task, folder) if task.language == "triton" else CppPreparer(task, folder, builds)
