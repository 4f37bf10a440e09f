"""Worker processes that compile what they are handed, each killable together with the tools it started."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..workers import WorkshopError, killed_from_outside, memory_file, usable_cores, usable_memory_bytes
from .triton_worker import Built, Task

log = logging.getLogger(__name__)

WORKER_BYTES = 1 << 30  # 0.17 GiB seen for matmuls (Triton 3.9, sm_90); larger kernels, and ptxas beside, take more
MOST_WORKERS = 16  # a short list is no longer
START_S = 60.0  # importing Triton takes 0.3 s, from a cold network file system far longer
LEAVE_S = 5.0  # for a thread to let go of a worker that was killed
IDLE_S = 120.0  # then a worker gives its memory back; the next compile starts one in 0.5 s
RANKS_ON_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")

# What a compile reads of the environment beside Triton's own names. The rest may change under a running worker.
_TOOLS = ("PATH", "LD_LIBRARY_PATH", "HOME", "CUDA_HOME", "ROCM_PATH", "CC")
_PREFIXES = ("TRITON_", "MLIR_", "LLVM_", "NVPTX_", "AMDGCN_", "PTXAS_", "DISABLE_", "USE_IR_LOC")

_CLOSED = "the pool of compile workers is closed"

# A clean interpreter: no site, no user variables, no start-up hooks. The module path is the caller's.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main(*sys.argv[2:])"


class WorkersUnavailableError(Exception):
    """No worker process can be started here; whoever asked compiles by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a worker is started with; when the caller's differs, another worker takes its place."""

    environment: tuple[tuple[str, str], ...]
    knobs: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    folder: str
    path: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Job:
    task: Task | None  # None: only have a worker ready
    setup: Setup
    timeout_s: float
    future: Future[Built | Ended] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A worker that came to an end over a task: killed because it took too long, brought down by the compiler, or killed
    by others, which is `transient`."""

    cost_s: float
    timed_out: bool
    message: str
    transient: bool = False


class WorkerPool:
    """Up to `workers` processes, started as tasks arrive and let go when idle.

    A thread per worker waits for it in the caller, asleep but for a hand-over. Not usable in a forked child; see
    `shared_pool`.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        self.pid = os.getpid()
        self.started = 0  # processes, ever
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._live: set[_Worker] = set()
        self._idle = 0
        self._waiting = 0
        self._pauses = 0
        self._may_run = threading.Event()
        self._may_run.set()
        self._unavailable = ""  # why no worker can be had; asked once, since a start that fails may take a minute

    def submit(self, task: Task, setup: Setup, timeout_s: float) -> Future[Built | Ended]:
        """Have a task compiled; the future raises `WorkersUnavailableError` where no worker can be started."""
        job = _Job(task=task, setup=setup, timeout_s=timeout_s)
        self._put(job)
        return job.future

    def _put(self, job: _Job) -> None:
        with self._lock:
            if self._unavailable:
                raise WorkersUnavailableError(self._unavailable)
            self._waiting += 1
            if self._waiting > self._idle and len(self._threads) < self.workers:
                thread = threading.Thread(target=self._serve, name="forecast_autotune-compile", daemon=True)
                self._threads.append(thread)
                self._idle += 1
                thread.start()
        self._jobs.put(job)

    def warm(self, setup: Setup) -> None:
        """Have all workers start now, so that they stand ready when the first task comes."""
        with contextlib.suppress(WorkersUnavailableError):
            for _ in range(self.workers - len(self.processes())):
                self._put(_Job(task=None, setup=setup, timeout_s=START_S))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop every compile, its tools included, for as long as something is timed that must not be disturbed."""
        with self._lock:
            self._pauses += 1
            if self._pauses == 1:
                self._may_run.clear()
                for worker in self._live:
                    worker.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if not self._pauses:
                    for worker in self._live:
                        worker.signal(signal.SIGCONT)
                    self._may_run.set()

    def processes(self) -> tuple[int, ...]:
        """Process ids of the workers that live."""
        with self._lock:
            return tuple(worker.process.pid for worker in self._live)

    @property
    def closed(self) -> bool:
        return self._unavailable == _CLOSED

    def close(self) -> None:
        """Kill the workers, and wait a moment for their threads; what waits is cancelled.

        A worker's connection and log are closed by its thread alone: closed twice, their numbers may be somebody else's.
        """
        with self._lock:
            self._unavailable = _CLOSED
            live = list(self._live)
            self._may_run.set()
        with contextlib.suppress(queue.Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    job.future.cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for worker in live:
            worker.remove_folder()  # now as well: this process may be killed after the worker
            worker.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(LEAVE_S)

    def _serve(self) -> None:
        """One thread: take jobs, keep a worker of the right setup for them."""
        worker: _Worker | None = None
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_S if worker else None)
            except queue.Empty:
                self._retire(worker)
                worker = None
                continue
            if job is None:
                self._retire(worker)
                return
            with self._lock:
                self._waiting -= 1
                self._idle -= 1
            try:
                if job.future.set_running_or_notify_cancel():
                    worker = self._run(job, worker)
            except BaseException as err:  # whatever it is, who waits for the future must hear of it
                self._retire(worker)
                worker = None
                if not job.future.done():
                    job.future.set_exception(err)
            finally:
                with self._lock:
                    self._idle += 1

    def _run(self, job: _Job, worker: _Worker | None) -> _Worker | None:
        self._may_run.wait()
        if worker is not None and (worker.setup != job.setup or not worker.alive):
            self._retire(worker)
            worker = None
        if worker is None:
            worker = self._start(job.setup)
        if job.task is None:
            return worker
        answer = worker.run(job.task, job.timeout_s, self._may_run)
        if answer.transient:
            told = answer.message if isinstance(answer, Ended) else answer.error
            log.warning("%s: it is compiled once more", told)
            if isinstance(answer, Ended):
                self._retire(worker)
                worker = self._start(job.setup)
            answer = worker.run(job.task, job.timeout_s, self._may_run)
        if isinstance(answer, Ended):
            self._retire(worker)
            worker = None
        job.future.set_result(answer)
        return worker

    def _start(self, setup: Setup) -> _Worker:
        """A new worker that is ready; one that is killed before it is, is started once more."""
        for last in (False, True):
            self._may_run.wait()  # importing Triton beside what is timed would be told from it
            if self.closed:
                raise WorkersUnavailableError(_CLOSED)
            worker = _Worker(setup)
            try:
                with self._lock:
                    self.started += 1
                    self._live.add(worker)
                    if self._pauses:
                        worker.signal(signal.SIGSTOP)
                worker.wait_until_ready()
                return worker
            except BaseException as err:
                self._retire(worker)
                if last or not worker.was_killed:
                    self._unavailable = str(err)
                    raise
        raise AssertionError("a worker that is neither ready nor refused")

    def _retire(self, worker: _Worker | None) -> None:
        if worker is not None:
            with self._lock:
                self._live.discard(worker)
            worker.close()


class _Worker:
    """One process and the connection to it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.was_killed = False  # by others, before it was ready
        # A killed ptxas leaves its files in here. The worker makes it, and takes it along should this process be killed.
        self.folder = os.path.join(tempfile.gettempdir(), f"forecast_autotune-worker-{uuid.uuid4().hex}")
        with contextlib.ExitStack() as undo:
            try:
                self.log = undo.enter_context(os.fdopen(memory_file(0, "forecast_autotune_log"), "r+b", buffering=0))
                ours, theirs = (undo.enter_context(end) for end in socket.socketpair())
                held, lifeline = os.pipe()
            except (OSError, WorkshopError) as err:
                raise WorkersUnavailableError(f"a compile worker cannot be had: {err}") from err
            undo.pop_all()
        self._lifeline = os.fdopen(lifeline, "wb")  # never written to: the worker sees it end when this process does
        package = __name__.rpartition(".")[0]
        command = [
            *(sys.executable, "-I", "-S", "-c", _START.format(module=f"{package}.triton_worker")),
            *(json.dumps(setup.path), str(theirs.fileno()), str(held), self.folder),
        ]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                cwd=setup.folder,
                env={**os.environ, **dict(setup.environment), "TMPDIR": self.folder},
                pass_fds=[theirs.fileno(), held],
            )
        except OSError as err:
            ours.close()
            self._lifeline.close()
            self.log.close()
            raise WorkersUnavailableError(f"{command[0]} does not start: {err}") from err
        finally:
            theirs.close()
            os.close(held)
        self.connection = Connection(ours.detach())

    @property
    def alive(self) -> bool:
        if self.process.returncode is not None:
            return False
        # Looked at, not reaped: as long as it is not, its number and its group's are not given to another.
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait_until_ready(self) -> None:
        """Raises WorkersUnavailableError if it does not get as far as having Triton imported."""
        try:
            self.connection.send({group: dict(values) for group, values in self.setup.knobs})
            if self.connection.poll(START_S):
                self.connection.recv()
                return
            reason = f"it is not ready after {START_S:.0f} s"
        except (EOFError, OSError):
            reason = self.last_words() or "it ended at once"
            self.kill()  # if it is gone already, what it started
            self.was_killed = killed_from_outside(self.process.returncode)
        self.close()
        raise WorkersUnavailableError(f"a compile worker does not start ({sys.executable}): {reason}")

    def run(self, task: Task, timeout_s: float, may_run: threading.Event) -> Built | Ended:
        """Have it compile; a worker that takes too long, not counting pauses, is killed."""
        began = time.perf_counter()
        left = timeout_s
        try:
            self.connection.send(task)
            while True:
                look = time.perf_counter()
                if self.connection.poll(min(max(left, 0.0), 0.5)):
                    answer: Built = self.connection.recv()
                    return answer
                if may_run.is_set():
                    left -= time.perf_counter() - look
                if not self.alive:
                    raise EOFError
                if left <= 0:
                    self.kill()
                    spent = time.perf_counter() - began
                    return Ended(
                        cost_s=spent,
                        timed_out=True,
                        message=f"compiling took longer than {timeout_s:g} s and was killed",
                    )
        except (EOFError, OSError):
            self.kill()  # if it is gone already, what it started
            return Ended(
                cost_s=time.perf_counter() - began,
                timed_out=False,
                message=f"the compiler's process {_how_it_ended(self.process.returncode)}: "
                f"{self.last_words() or 'it left no message'}",
                transient=killed_from_outside(self.process.returncode),
            )

    def last_words(self) -> str:
        """The end of what the process wrote, where LLVM says why it aborts."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: another thread has closed it
            written = os.fstat(self.log.fileno()).st_size
            return os.pread(self.log.fileno(), 4000, max(0, written - 4000)).decode(errors="replace")[-1000:].strip()
        return ""

    def signal(self, number: int) -> None:
        """Send a signal to the process and all it started, even if it has ended itself."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.process.pid) == self.process.pid:
                os.killpg(self.process.pid, number)
            else:  # it has only just started
                os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.close()
        self.remove_folder()  # now as well: this process may be killed after the worker
        self.kill()
        self._lifeline.close()
        self.log.close()
        self.remove_folder()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit status {code}"


def current_setup() -> Setup | None:
    """What a worker started now would need; None where a worker cannot do as the caller would.

    That is so with compiler stages or a cache of the caller's own making, which exist in its process only.
    """
    import triton
    from triton import knobs

    if getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None:
        return None
    if getattr(knobs.compilation, "instrumentation_mode", ""):
        return None
    read, overrides = set(_TOOLS), []
    for name, group in vars(knobs).items():
        if not isinstance(group, knobs.base_knobs):
            continue
        read.update(descriptor.key for descriptor in group.knob_descriptors.values())
        plain = []
        for knob, value in sorted(vars(group).items()):
            if isinstance(value, (str, int, float, type(None))):
                plain.append((knob, value))
            elif name == "cache":  # a manager set as a class
                return None
        if plain:
            overrides.append((name, tuple(plain)))
    environment = sorted((k, v) for k, v in os.environ.items() if k in read or k.startswith(_PREFIXES))
    try:
        folder = os.getcwd()
    except OSError:  # it was removed; only a relative path would tell the difference
        folder = os.sep
    # Both are found by the caller's path, unless an import hook of an editable installation finds them.
    homes = [str(Path(__file__).resolve().parents[2]), str(Path(triton.__file__).resolve().parents[1])]
    path = [entry or folder for entry in sys.path if isinstance(entry, str)]
    return Setup(
        environment=tuple(environment),
        knobs=tuple(overrides),
        folder=folder,
        path=tuple(dict.fromkeys([*path, *homes])),
    )


_shared: WorkerPool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> WorkerPool:
    """The process's own pool; a forked child gets a new one, since the parent's threads are not in it."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared.pid != os.getpid() or _shared.closed:
            if _shared is None:
                atexit.register(_close_shared)
            _shared = WorkerPool(worker_count())
        return _shared


def _close_shared() -> None:
    if _shared is not None and _shared.pid == os.getpid():
        _shared.close()


def worker_count() -> int:
    """How many workers suit this machine: one a core and GiB that are ours to use, shared with the node's other ranks."""
    ranks = 1
    for name in RANKS_ON_NODE:
        text = os.environ.get(name, "").split("(")[0]  # SLURM writes 8(x2)
        if text.isdigit() and int(text) > 0:
            ranks = int(text)
            break
    by_memory = usable_memory_bytes() // WORKER_BYTES
    return int(max(1, min(MOST_WORKERS, usable_cores() // ranks, by_memory // ranks)))
