"""Processes of our own that do one job each and may die of it.

A *workshop* is one child process that imports torch once and then forks a *worker* for each job: about 20 ms instead of
the seconds that a new interpreter with torch takes. It is started clean (never forked from the caller, which may hold a
CUDA context, threads and locks; never through `multiprocessing`, which would import the caller's `__main__` again). A
worker that crashes, hangs or is killed leaves the workshop and the caller as they were.

Messages are JSON objects over a socket pair, one datagram each; what is large travels as an open file beside them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import importlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import AutotuneError

_OWN_SIGNALS = ["ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP", "ALRM", "VTALRM", "PROF", "PIPE", "USR1", "USR2"]
OWN_SIGNALS = frozenset(getattr(signal, f"SIG{name}") for name in _OWN_SIGNALS if hasattr(signal, f"SIG{name}"))
"""What a process brings upon itself, as by its timers. All others come from outside: no memory, an operator, a limit."""

_TROUBLES = (
    *(errno.EACCES, errno.EAGAIN, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOLCK),
    *(errno.ENOMEM, errno.ENOSPC, errno.EROFS, errno.ESTALE),
)
_FROM_OUTSIDE = re.compile(
    "|".join(
        (
            *(re.escape(os.strerror(number)) for number in _TROUBLES),
            r"\b(?:Killed|Terminated|Hangup|Interrupt|File size limit exceeded|CPU time limit exceeded) signal",  # GCC
            r"terminated with signal (?:1|2|9|15|24|25)\b",  # its collect2, of ld
            r"unable to execute command: (?:Killed|Terminated)",  # Clang
            r"(?:died with <Signals\.|was ended by |killed by )SIG(?:HUP|INT|KILL|TERM|XCPU|XFSZ)",  # Python, ourselves
            r"failed with error code -(?:1|2|9|15|24|25)\b|Cannot find ptxas",  # Triton, of ptxas and of asking its version
            r"interrupted by user|virtual memory exhausted|out of memory allocating|std::bad_alloc|MemoryError",
        )
    )
)

_CGROUP = Path("/sys/fs/cgroup")
_PACKAGE = __name__.rpartition(".")[0]
_MESSAGE_BYTES = 64 * 1024  # well below the default socket buffer of Linux (208 KiB); what is longer travels as a file
_MAX_FILES = 16
_LOG_BYTES = 4 << 20
START_S = 60.0  # for the first word of a worker; importing torch takes 2 s, from a cold network file system far longer
# Datagrams that keep their order and report the other end's death: SEQPACKET on Linux, DGRAM where it is missing (macOS).
_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM

Message = dict[str, Any]
Job = Callable[["Channel", Message], None]


class WorkerDiedError(Exception):
    """A worker ended without the answer that was waited for; the message says by which signal or exit status."""


class WorkerKilledError(WorkerDiedError):
    """A worker was ended from outside, or its workshop was: that says nothing of what it was doing."""


class WorkerRaisedError(Exception):
    """A worker's job raised; the message is that exception's."""


class WorkshopError(AutotuneError):
    """No worker could be started at all: it says nothing of the job that was to be done."""


class WorkerTimeoutError(Exception):
    """A worker did not answer in time."""


class Channel:
    """One end of a conversation between a caller and its worker."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self.files: list[int] = []  # descriptors that came with the last message; the receiver closes them

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        if len(data) <= _MESSAGE_BYTES:
            socket.send_fds(self._socket, [data], list(files))
            return
        file = memory_file(len(data), "forecast_autotune_message")
        try:
            os.pwrite(file, data, 0)
            socket.send_fds(self._socket, [json.dumps({"long": len(data)}).encode()], [file, *files])
        finally:
            os.close(file)

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next message.

        Raises:
            WorkerTimeoutError: none came in time.
            WorkerDiedError: the other end is gone.
        """
        self._socket.settimeout(timeout_s)
        try:
            try:
                data, self.files, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _MAX_FILES)
            except ConnectionResetError:  # it was closed with a message unread; how the worker ended is still to be had
                data, self.files, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _MAX_FILES)
        except TimeoutError:
            raise WorkerTimeoutError(f"no answer within {timeout_s:.0f} s") from None
        except OSError as err:
            raise WorkerKilledError(f"the connection broke: {err}") from None
        if not data:  # a worker's end is told; of a workshop's own end, this is all that shows
            raise WorkerKilledError("the process is gone")
        try:
            message = dict(json.loads(data))
        except (TypeError, ValueError):
            raise WorkerDiedError(f"it wrote into what is not its own: {data[:40]!r} is no message") from None
        if "long" in message:
            file = self.files.pop(0)
            try:
                message = dict(json.loads(os.pread(file, message["long"], 0)))
            finally:
                os.close(file)
        return message

    def has_something(self, wait_s: float = 0.0) -> bool:
        """Whether a message or the other's end is there to receive, or comes in so many seconds."""
        look = select.poll()  # select() itself refuses descriptors above 1023
        look.register(self._socket, select.POLLIN)
        return bool(look.poll(1000 * wait_s))

    def close(self) -> None:
        self._socket.close()


class Worker:
    """The caller's handle on one worker process; a context manager that never leaves it running."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._finished = False
        self.files: list[int] = []
        self.pid = int(self.receive(START_S)["pid"])

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        """Send a message; that the worker is gone already shows at the next `receive`."""
        with contextlib.suppress(OSError):
            self._channel.send(message, files)

    def receive(self, timeout_s: float) -> Message:
        """The worker's next message.

        Raises:
            WorkerTimeoutError: none came in time; the worker is still running.
            WorkerRaisedError: its job raised.
            WorkerDiedError: it ended; the message says how.
        """
        message = self._channel.receive(timeout_s)
        self.files = self._channel.files
        if "exit" in message:
            raise self._ended(int(message["exit"]))
        if "raised" in message:
            raise WorkerRaisedError(str(message["raised"]))
        return message

    def finish(self, timeout_s: float) -> None:
        """Wait for the worker to end by itself.

        Raises:
            WorkerTimeoutError: it does not.
            WorkerDiedError: it ended by a signal or with an error, which freeing corrupted memory leads to.
        """
        message = self._channel.receive(timeout_s)
        if "exit" not in message:
            raise WorkerDiedError(f"it goes on where it was to end: {str(message)[:200]}")
        if message["exit"] != 0:
            raise self._ended(int(message["exit"]))
        self._finished = True

    def kill(self) -> None:
        """End the worker and every process it started."""
        if not self._finished:  # when its end is told the workshop has ended the rest; its number may be another's
            end_session(self.pid)

    def _ended(self, code: int) -> WorkerDiedError:
        self._finished = True
        return (WorkerKilledError if killed_from_outside(code) else WorkerDiedError)(_describe_exit(code))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._channel.close()


class Workshop:
    """Starts workers; see the module's docstring. One per process is enough: `workshop()`."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None

    def start(
        self, job: Job, request: Mapping[str, Any], files: Sequence[int] = (), *, may_leave: bool = False
    ) -> Worker:
        """Fork a worker that runs `job(channel, request)`, a module-level function of this package.

        Processes that it leaves behind are killed, unless it ended well and `may_leave` some, such as a compiler's server.

        Raises:
            WorkshopError: none can be started (no fork, no memory, no torch).
        """
        try:
            return self._start(job, request, files, may_leave)
        except (ConnectionError, WorkerKilledError):  # something killed the workshop, or the worker: once more
            with self._lock:
                if self._control is not None:  # workers' connections end a moment before that of a workshop that dies
                    self._control.has_something(wait_s=1.0)
        except (OSError, WorkerDiedError, WorkerTimeoutError) as err:
            raise WorkshopError(f"the worker process could not be started: {err}") from None
        try:
            return self._start(job, request, files, may_leave)
        except (OSError, WorkerDiedError, WorkerTimeoutError) as err:
            raise WorkshopError(f"the worker process could not be started: {err}") from None

    def _start(self, job: Job, request: Mapping[str, Any], files: Sequence[int], may_leave: bool) -> Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, _KIND)
        channel = Channel(ours)
        try:
            # Closed before the answer is waited for: a workshop that is gone must show as an end, not as silence.
            with theirs, self._lock:
                self._ensure_running().send({"may_leave": may_leave}, [theirs.fileno()])
            # The request follows on the worker's own connection, so that it may be of any length.
            channel.send({"module": job.__module__, "function": job.__name__, "request": dict(request)}, files)
            return Worker(channel)
        except BaseException:
            channel.close()
            raise

    def _ensure_running(self) -> Channel:
        if self._owner != os.getpid():  # we are a fork of the process that started it: its workshop is not ours
            _not_ours.append(self._process)
            self._owner, self._process, self._control = os.getpid(), None, None
        if self._control is not None and self._process is not None:
            # It never writes to this connection, so what can be read is its end, which shows before it can be waited for.
            if not self._control.has_something():
                return self._control
            self._control.close()
            self._process.wait()
        ours, theirs = socket.socketpair(socket.AF_UNIX, _KIND)
        # An interpreter that takes its modules from where the caller has them, and from nowhere else: not from the folder
        # it happens to be started in, where a file named torch.py may lie.
        path = [p for p in sys.path if p]
        start = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        start += f"from {__name__} import serve; serve({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", start, json.dumps(path)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the caller's; it ends the workshop by closing the connection
        )
        theirs.close()
        self._control = Channel(ours)
        atexit.register(self.stop)
        return self._control

    def stop(self) -> None:
        """End the workshop and all its workers."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._owner == os.getpid() and self._control is not None and self._process is not None:
            self._control.close()  # which is what tells it
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._control = None


_workshop = Workshop()
_not_ours: list[object] = []  # kept, or their finalisers would complain of a process that still runs


def workshop() -> Workshop:
    """The process's workshop, started at its first job and ended with the process."""
    return _workshop


def serve(descriptor: int) -> None:
    """Run a workshop: fork a worker per request until the caller is gone. Called in the workshop's own process."""
    # The point of the workshop: every worker finds torch imported. Nothing more of it: torch.utils.cpp_extension asks for a
    # GPU when imported, and CUDA cannot be used in the fork of a process that has asked (seen on an H200, torch 2.11).
    import torch  # noqa: F401

    os.umask(0o077)  # what workers write is this user's alone
    control = socket.socket(fileno=os.dup(descriptor))  # a low number: the caller's may be beyond what select() takes
    os.close(descriptor)
    children: dict[int, socket.socket] = {}
    leaving: set[int] = set()  # those of them that may leave processes behind
    left: set[int] = set()  # and what they have left
    _adopt_orphans()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    while True:
        ready = select.select([control.fileno(), wake_read], [], [])[0]
        if wake_read in ready:
            os.read(wake_read, 4096)
            _report_ended(children, leaving, left)
        if control.fileno() in ready:
            data, files, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, _MAX_FILES)
            if not data:
                break
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()  # not a group: ninja gives each compiler one of its own, so that killing ours left them
                for inherited in (control, *children.values()):
                    inherited.close()
                _die_with_parent()
                _adopt_orphans()
                _be_the_first_to_go()
                _work(files[0])
            if json.loads(data)["may_leave"]:
                leaving.add(pid)
            children[pid] = socket.socket(fileno=files[0])
            for file in files[1:]:
                os.close(file)
    for pid in children:
        end_session(pid)
        os.waitpid(pid, 0)
    while orphans := (_orphans(()) or set()) - left:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def end_session(leader: int) -> None:
    """Kill a process that leads a session, and all that it started, in whatever group."""
    ended: set[int] = set()
    while new := {leader, *_members_of_session(leader)} - ended:  # one may have started another in between
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= new
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)  # all there is to do where there is no /proc


def _members_of_session(leader: int) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            # After the command's name in brackets, which may hold anything: state, parent, group, session.
            if int(entry.read_text(errors="replace").rpartition(")")[2].split()[3]) == leader:
                found.add(int(entry.parent.name))
    return found


def _adopt_orphans() -> None:
    """Become the parent of what this process's children leave behind, in whatever session.

    A worker adopts what is left by what it starts, and the workshop all of that when the worker ends: so it is known whose
    it is.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _orphans(workers: Iterable[int]) -> set[int] | None:
    """The children of this process that are no workers: what ended ones have left. None where Linux does not tell."""
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:
        return None
    return set(map(int, children)).difference(workers)


def _report_ended(children: dict[int, socket.socket], leaving: set[int], left: set[int]) -> None:
    """Tell the callers of ended workers how they ended, as the last message of the conversation, and end what they left."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    if not ended:
        return
    orphans = _orphans(children)
    workers = ended.keys() & children.keys()
    if all(ended[pid] == 0 and pid in leaving for pid in workers) if workers else left.issuperset(ended):
        left |= orphans or set()
    elif orphans is None:
        for pid in workers:
            end_session(pid)
    else:
        for orphan in orphans - left:  # theirs become ours as they end, which is told like this one's end
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)
    for pid, status in ended.items():
        leaving.discard(pid)
        left.discard(pid)
        if (end := children.pop(pid, None)) is not None:
            with contextlib.suppress(OSError):
                Channel(end).send({"exit": os.waitstatus_to_exitcode(status)})
            end.close()


def _work(descriptor: int) -> None:
    """The life of a worker; never returns."""
    channel = Channel(socket.socket(fileno=descriptor))
    status = 1
    try:
        message = channel.receive()
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
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)  # what C++ code printed
        os._exit(status)


def _die_with_parent() -> None:
    """Have Linux kill this worker when the workshop goes, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _be_the_first_to_go() -> None:
    """Have Linux end this worker rather than the caller where memory runs out, and leave no image of it on the disk."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def blames_the_machine(text: str) -> bool:
    """Whether a tool's last words speak of a signal from outside, of memory or of a disk, not of what it was given."""
    return _FROM_OUTSIDE.search(text) is not None


def killed_from_outside(code: int | None) -> bool:
    """Whether a process with this exit code, as `subprocess` tells it, was ended by a signal that it did not cause."""
    return code is not None and code < 0 and -code not in OWN_SIGNALS


def _describe_exit(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"ended with exit status {code}"


def redirect_output(path: str) -> None:
    """Send this process's stdout and stderr, those of C++ code included, to the end of a file; a long file begins anew."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if os.fstat(log).st_size > _LOG_BYTES:
        os.ftruncate(log, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def memory_file(size: int, name: str) -> int:
    """A descriptor of an anonymous file of `size` bytes, gone with the last process that holds it.

    Raises:
        WorkshopError: none can be had, so nothing of size can be handed to a worker.
    """
    try:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create(name)
        else:
            import tempfile

            descriptor, path = tempfile.mkstemp(prefix=name)
            os.unlink(path)
        try:
            os.ftruncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as err:
        raise WorkshopError(f"no file of {size >> 20} MiB can be had for a worker process: {err}") from None
    return descriptor


def usable_cores() -> int:
    """Cores this process may use, by its affinity and its cgroup's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def usable_memory_bytes() -> int:
    """Memory that can still be taken, by the kernel's estimate and the cgroup's limit; 4 GiB where nobody says.

    Pages of files are free: a container that has read much is at its limit with them.
    """
    free = 4 << 30
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with contextlib.suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        with contextlib.suppress(OSError):
            lines = (_CGROUP / "memory.stat").read_text().splitlines()
            used -= sum(int(line.split()[1]) for line in lines if line.startswith(("active_file", "inactive_file")))
        free = min(free, max(0, limit - used))
    return free
