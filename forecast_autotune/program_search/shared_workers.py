"""Workers that try one candidate after another: of those in Python that rules made of what a person wrote.

To start a device in a new process takes longer than to try a candidate: an H100's driver starts one process after the other,
in 0.2 to 0.4 s. A candidate that a model wrote has a process to itself, since it may leave anything behind. So has one that
is compiled to host code, which may write anywhere in its process. A candidate that fails ends the worker that it was in,
unless it merely raised and the device still answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..processes.box import TRITON_FOLDER
from ..processes.channel import Message
from ..processes.endings import WorkerDiedError, WorkerMemoryError, WorkerRaisedError, WorkerTimeoutError
from .compiled_files import carry, compiled_to, forget
from .exam import Exam, Question, StartedWorker

UNLOAD_S = 10.0
MAX_TRIED = 64  # by one worker: its box lets it compute for so long alone


@dataclass(kw_only=True, eq=False)
class SharedWorker:
    """A worker, the exam that is held in it, and how many candidates it has loaded."""

    started: StartedWorker
    exam: Exam
    loaded: int = 0

    def check(self, message: Message, asked: Iterable[Question], *, warm: Path | None, ahead: Path | None) -> str:
        """Load a candidate and ask of it; a digest of what it was compiled to, empty where that is not known.

        Args:
            warm: what was compiled for the seed.
            ahead: what was compiled for the candidate.
        Raises:
            WrongError, WorkerRaisedError, WorkerDiedError, WorkerTimeoutError, WorkerMemoryError: it fails.
        """
        compiled = self.started.folder / TRITON_FOLDER
        if self.loaded:
            forget(compiled, warm)
        self.loaded += 1
        if ahead is not None:
            carry(ahead, compiled)
        self.exam.load(message)
        self.exam.check(asked)
        # Where nothing was compiled ahead, a kernel that an earlier one launched too was not compiled anew.
        return compiled_to(compiled, warm) if ahead is not None or self.loaded == 1 else ""

    def unload(self) -> bool:
        """Let go of the candidate; whether the worker still answers, and its device does."""
        try:
            self.started.worker.resume()  # what is stopped may hold what another process waits for
            self.exam.ask({"unload": True}, UNLOAD_S)
        except (WorkerDiedError, WorkerMemoryError, WorkerRaisedError, WorkerTimeoutError):
            return False
        return True

    def close(self) -> None:
        """End it."""
        self.exam.close()
        self.started.close()


class SharedWorkers:
    """Those of one examiner that wait for a candidate, so many at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: list[SharedWorker] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, begin: Callable[[], SharedWorker]) -> SharedWorker:
        """One that waits, or a new one."""
        while True:
            with self._lock:
                one = self._idle.pop() if self._idle else None
            if one is None:
                return begin()
            if not one.started.worker.has_ended:
                return one
            one.close()

    def give_back(self, one: SharedWorker) -> None:
        """Let it wait for the next candidate; or end it where it has had its share, enough wait, or it is not well."""
        if one.loaded < MAX_TRIED and one.unload():
            with self._lock:
                if len(self._idle) < self._most:
                    self._idle.append(one)
                    return
        one.close()

    def close(self) -> None:
        """End those that wait."""
        while self._idle:
            self._idle.pop().close()
