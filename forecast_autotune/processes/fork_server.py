"""Starting workers: processes that do one job each and may die of it.

A *fork server* is one child process that imports torch, or Triton, once and then forks a worker for each job: about 20 ms
instead of the seconds that a new interpreter with torch takes. It is started clean (never forked from the caller, which may
hold a CUDA context, threads and locks; never through `multiprocessing`, which would import the caller's `__main__` again). A
worker that crashes, hangs or is killed leaves the fork server and the caller as they were.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.forks import after_fork_in_child
from .channel import Channel, Message, channels, memory_file
from .endings import (
    WorkerDiedError,
    WorkerKilledError,
    WorkerRaisedError,
    WorkersUnavailableError,
    WorkerTimeoutError,
)
from .worker import Worker

Job = Callable[[Channel, Message], None]

# An interpreter that takes its modules from where the caller has them, and from nowhere else: no site, no user variables,
# not the folder it happens to be started in, where a file named torch.py may lie.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import serve; serve(*sys.argv[2:])"


class ForkServer:
    """Starts workers that find a module imported; see this module's docstring.

    Args:
        preload: the module. Nothing more of it: torch.utils.cpp_extension asks for a GPU when imported, and CUDA cannot be
            used in the fork of a process that has asked (seen on an H200, torch 2.11).
        environment: what the server is started with, instead of the caller's; its workers can read that whatever they are
            given themselves.
    """

    def __init__(self, preload: str, *, environment: Mapping[str, str] | None = None) -> None:
        self._preload = preload
        self._environment = environment
        self._reset()
        _servers.add(self)

    def _reset(self) -> None:
        """Begin anew, also in a fork of the caller: the server, and a lock that a thread held just then, are not its own."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self._log: int | None = None
        self._folder = ""

    def prepare(self) -> None:
        """Have the server import its module while nobody waits for it. What goes wrong shows at the first `start`."""
        with contextlib.suppress(OSError), self._lock:
            self._ensure_running()

    def start(
        self,
        job: Job,
        request: Mapping[str, Any],
        files: Sequence[int] = (),
        *,
        ready_s: float | None = None,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        may_leave: bool = False,
    ) -> Worker:
        """Fork a worker that runs `job(channel, request)`, a module-level function of this package.

        One that is stopped from outside before it is ready is started once more.

        Args:
            files: descriptors that the job finds in `channel.files`.
            ready_s: how long to wait for its first message, which says that it is ready; None: it sends none.
            environment: instead of the fork server's.
            folder: to work in, instead of the fork server's.
            may_leave: processes that it leaves behind, such as a compiler's server, stay where it ends well. All else that
                is left behind is killed.
        Raises:
            WorkersUnavailableError: none can be had (no fork, no memory, no torch), or not set up.
        """
        # The request follows on the worker's own connection, so that it may be of any length.
        message = {
            "module": job.__module__,
            "function": job.__name__,
            "request": dict(request),
            "environment": None if environment is None else dict(environment),
            "folder": folder,
        }
        try:
            try:
                return self._start(message, files, ready_s, may_leave)
            except (ConnectionError, WorkerKilledError):  # something killed the server, or the worker: once more
                with self._lock:
                    if self._control is not None:  # workers' connections end a moment before that of a server that dies
                        self._control.is_readable(wait_s=1.0)
                return self._start(message, files, ready_s, may_leave)
        except (OSError, WorkerDiedError, WorkerTimeoutError, WorkerRaisedError) as err:
            raise self._unavailable(err) from None

    def _unavailable(self, err: Exception) -> WorkersUnavailableError:
        why = str(err)
        with self._lock:
            # Readable though nothing was asked: the server is gone.
            if self._control is not None and self._log is not None and self._control.is_readable():
                why = last_words(self._log) or why
                self._stop()
        return WorkersUnavailableError(f"a worker process cannot be started or set up: {why}")

    def _start(self, message: Message, files: Sequence[int], ready_s: float | None, may_leave: bool) -> Worker:
        ours, theirs = channels()
        try:
            try:
                with self._lock:
                    self._ensure_running().send({"may_leave": may_leave}, [theirs.fileno()])
            finally:
                theirs.close()  # before the answer is waited for: a server that is gone must show as an end, not as silence
            ours.send(message, files)
            worker = Worker(ours)
        except BaseException:
            ours.close()
            raise
        try:
            if ready_s is not None:
                worker.receive(ready_s)
        except BaseException:
            worker.close()
            raise
        return worker

    def _ensure_running(self) -> Channel:
        # It never writes to this connection, so what can be read is its end, which shows before it can be waited for.
        if self._control is not None and not self._control.is_readable():
            return self._control
        self._stop()
        if not sys.executable:
            raise OSError("this Python does not say where its program lies")
        # Both are found by the caller's path, unless an import hook of an editable installation finds them.
        files = [__file__.rpartition(os.sep)[0], getattr(sys.modules.get(self._preload), "__file__", None)]
        path = [
            *(entry for entry in sys.path if entry and isinstance(entry, str)),  # Python passes over all others, too
            *(str(Path(file).resolve().parents[1]) for file in files if file),
        ]
        ours, theirs = channels()
        # What workers write to a temporary place lies in here, and goes with the server.
        folder = os.path.join(tempfile.gettempdir(), f"forecast_autotune-workers-{uuid.uuid4().hex}")
        log = memory_file(0, "forecast_autotune_log")
        try:
            start = _START.format(f"{__package__}.serving")
            arguments = [str(theirs.fileno()), str(os.getpid()), self._preload, folder]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", start, json.dumps(path), *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is the caller's; it ends the server by closing the connection
            )
        except BaseException:
            ours.close()
            os.close(log)
            raise
        finally:
            theirs.close()
        self._control, self._log, self._folder = ours, log, folder
        return ours

    @property
    def pid(self) -> int | None:
        """The server's own process, where one was started."""
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """End the server and all its workers; the next start begins with a new one."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._control is None or self._process is None or self._log is None:
            return
        self._control.hang_up()  # which is what tells it
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._log)
        shutil.rmtree(self._folder, ignore_errors=True)  # it may have been killed
        self._process = self._control = self._log = None


_servers: weakref.WeakSet[ForkServer] = weakref.WeakSet()
_shared = ForkServer("torch")


def fork_server() -> ForkServer:
    """The process's own, whose workers find torch imported; started at its first job and ended with the process."""
    return _shared


@atexit.register
def _stop_all() -> None:
    for server in list(_servers):
        server.stop()


@after_fork_in_child
def _after_fork_in_child() -> None:
    for server in list(_servers):
        if server._process is not None:
            server._process.returncode = 0  # another's child: or its finaliser would complain that it still runs
        if server._control is not None:
            server._control.close()  # or it would hold the server though the caller is gone
        server._reset()


def last_words(log: int) -> str:
    """The end of what a process wrote to its log, where LLVM says why it aborts."""
    with contextlib.suppress(OSError):
        written = os.fstat(log).st_size
        return os.pread(log, 4000, max(0, written - 4000)).decode(errors="replace")[-1000:].strip()
    return ""
