"""The fork server's own side: it forks workers, says how each ended, and ends with its caller."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .channel import Channel
from .endings import WorkerDiedError
from .machine import thread_ids
from .worker import end_session

if TYPE_CHECKING:
    from .fork_server import Job

_PACKAGE = __name__.partition(".")[0]
_LOG_BYTES = 4 << 20
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def serve(descriptor: str, caller: str, preload: str, folder: str) -> None:
    """Fork a worker per request until the caller is gone. Called in the fork server's own process.

    Args:
        descriptor: of the connection to the caller.
        caller: its process id.
        preload: what to import for all workers.
        folder: for their temporary files; made here.
    """
    signal_at_death_of_parent(signal.SIGKILL)  # an import may hang where no handler runs, and somebody waits for it
    importlib.import_module(preload)
    # From here on the thread that started this process may end before the caller does. A process that the caller forked may
    # hold the connection, and a process that was stopped reads none: SIGCONT wakes it, and is a reason to look.
    signal.signal(signal.SIGCONT, lambda *_: None)
    signal_at_death_of_parent(signal.SIGCONT)
    control = Channel(socket.socket(fileno=os.dup(int(descriptor))))  # a low number: select() takes none above 1023
    os.close(int(descriptor))
    with contextlib.suppress(OSError):  # without it, temporary files go where they would
        os.mkdir(folder, 0o700)
    try:
        server = _Server(folder)
        while os.getppid() == int(caller):
            ready = select.select([control.fileno(), server.wake], [], [])[0]
            if server.wake in ready:
                os.read(server.wake, 4096)
                server.report_ended()
            if control.fileno() in ready:
                try:
                    request = control.receive()
                except WorkerDiedError:
                    break
                server.fork(control, bool(request["may_leave"]))
        server.end_all()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Server:
    """The workers of a fork server."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._workers: dict[int, Channel] = {}
        self._staying: set[int] = set()  # what workers that ended well have left on purpose
        self._names_staying, self._name_staying = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._names_staying.setblocking(False)
        self._pid = os.getpid()
        _adopt_orphans()
        self.wake, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def fork(self, control: Channel, may_leave: bool) -> None:
        """Fork a worker for the connection that came with the last message."""
        pid = os.fork()
        channel = Channel(socket.socket(fileno=control.files[0]))
        if pid:
            self._workers[pid] = channel
            return
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGCONT):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()  # not a group: ninja gives each compiler one of its own, so that killing ours left them
            for inherited in (control, *self._workers.values()):
                inherited.close()
            signal_at_death_of_parent(signal.SIGKILL)
            if os.getppid() == self._pid:
                _adopt_orphans()
                _be_the_first_to_go()
                self._use_own_folder()
                if not may_leave:
                    self._name_staying.close()
                work(channel, self._name_staying if may_leave else None)
        finally:
            os._exit(1)

    def _use_own_folder(self) -> None:
        own = os.path.join(self._folder, str(os.getpid()))
        with contextlib.suppress(OSError):
            os.mkdir(own, 0o700)
            os.environ["TMPDIR"] = own
            tempfile.tempdir = None  # it may have been asked for before

    def report_ended(self) -> None:
        """Tell the callers of ended workers how they ended, as the last message of the conversation, and end what they left.

        A worker that may leave processes behind names them just before it ends. All else that comes to this process by the
        death of its parent is killed, whichever workers end in the same moment.
        """
        ended: dict[int, int] = {}
        with contextlib.suppress(ChildProcessError):
            while (one := os.waitpid(-1, os.WNOHANG))[0]:
                ended[one[0]] = one[1]
        with contextlib.suppress(BlockingIOError):
            while True:
                self._staying.update(json.loads(self._names_staying.recv(1 << 16)))
        orphans = self._orphans()
        for pid in ended.keys() & self._workers.keys() - self._staying if orphans is None else ():
            end_session(pid)
        for pid in orphans or ():  # theirs become ours as they end, which is noticed like this one's end
            os.kill(pid, signal.SIGKILL)
        for pid, status in ended.items():
            self._staying.discard(pid)
            if (channel := self._workers.pop(pid, None)) is not None:
                shutil.rmtree(os.path.join(self._folder, str(pid)), ignore_errors=True)
                with contextlib.suppress(OSError):
                    channel.send({"exit": os.waitstatus_to_exitcode(status)})
                channel.close()

    def end_all(self) -> None:
        for pid in self._workers:
            end_session(pid)
            os.waitpid(pid, 0)
        self._workers.clear()
        while orphans := self._orphans():
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _orphans(self) -> set[int] | None:
        """The children of this process that are no workers, nor are to stay. None where Linux does not tell."""
        children = children_of(os.getpid())
        return None if children is None else children - self._workers.keys() - self._staying


def _adopt_orphans() -> None:
    """Become the parent of what this process's children leave behind, in whatever session.

    A worker adopts what is left by what it starts, and the server all of that when the worker ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_at_death_of_parent(number: int) -> None:
    """Have Linux send this process a signal when the thread that started it ends, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def children_of(pid: int) -> set[int] | None:
    """The children of a process; None where Linux does not tell."""
    lists = []
    for thread in thread_ids(pid):
        with contextlib.suppress(OSError):  # it has ended since
            lists.append(Path(f"/proc/{pid}/task/{thread}/children").read_text())
    return {int(child) for text in lists for child in text.split()} if lists else None


def _descendants(pids: Iterable[int]) -> set[int]:
    below = {child for pid in pids for child in children_of(pid) or ()}
    return below | _descendants(below) if below else below


def work(channel: Channel, name_staying: socket.socket | None) -> NoReturn:
    """The life of a worker."""
    status = 1
    try:
        message = channel.receive()
        if message["environment"] is not None:
            temporary = os.environ.get("TMPDIR")
            os.environ.clear()
            os.environ.update(message["environment"], **({"TMPDIR": temporary} if temporary else {}))
        if message["folder"] is not None:
            os.chdir(message["folder"])
        module, function = str(message["module"]), str(message["function"])
        if module.partition(".")[0] != _PACKAGE:
            raise PermissionError(f"{module} is no part of {_PACKAGE}")
        job: Job = getattr(importlib.import_module(module), function)
        channel.send({"pid": os.getpid()})
        job(channel, message["request"])
        status = 0
    except WorkerDiedError:
        status = 0  # the caller hung up: nobody is left to answer
    except BaseException as err:
        with contextlib.suppress(OSError):
            channel.send({"raised": f"{type(err).__name__}: {err}"[:4000]})
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):  # a candidate may have closed them
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)  # what C++ code printed
        if status == 0 and name_staying is not None:
            with contextlib.suppress(OSError):
                name_staying.send(json.dumps([os.getpid(), *_descendants([os.getpid()])]).encode())
        os._exit(status)


def _be_the_first_to_go() -> None:
    """Have Linux end this worker rather than the caller where memory runs out, and leave no image of it on the disk."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def redirect_output(log: int | str) -> None:
    """Send this process's stdout and stderr, those of C++ code included, to the end of a file; a long file begins anew."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if isinstance(log, str) else log
    if os.fstat(file).st_size > _LOG_BYTES:
        os.ftruncate(file, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
