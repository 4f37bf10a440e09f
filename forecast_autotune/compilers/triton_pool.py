"""Worker processes that compile what they are handed, each killable together with the tools it started."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ..core.fork_safe_lock import fork_safe_lock
from ..core.forks import after_fork_in_child
from ..core.outcome import Stage
from ..processes.channel import Message, memory_file
from ..processes.core_slots import core_slots
from ..processes.endings import WorkerDiedError, WorkerKilledError, WorkersUnavailableError, WorkerTimeoutError
from ..processes.fork_server import ForkServer, last_words
from ..processes.machine import BACKGROUND_NICE, workers_that_fit
from ..processes.pausing import Pausing
from ..processes.worker import START_S
from .triton_launcher import LauncherTask
from .triton_worker import BuildResult, Task, serve_tasks

log = logging.getLogger(__name__)

WORKER_BYTES = 1 << 30  # 0.17 GiB seen for matmuls (Triton 3.9, sm_90); larger kernels, and ptxas beside, take more
# The default budget's configs: more workers would begin nothing there, and with larger budgets none were measured.
MAX_WORKERS = 16
LEAVE_S = 5.0  # for a thread to let go of a worker that was killed
IDLE_S = 120.0  # then a worker gives its memory back; the next compile starts one in 0.5 s

# What a compile reads of the environment beside Triton's own names. The rest may change under a running worker.
_TOOLS = ("PATH", "LD_LIBRARY_PATH", "HOME", "CUDA_HOME", "ROCM_PATH", "CC")
_PREFIXES = ("TRITON_", "MLIR_", "LLVM_", "NVPTX_", "AMDGCN_", "PTXAS_", "DISABLE_", "USE_IR_LOC")

_CLOSED = "the pool of compile workers is closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a worker is started with; when the caller's differs, another worker takes its place."""

    environment: tuple[tuple[str, str], ...]
    knobs: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    folder: str


class Compiling(Future["BuildResult"]):
    """A compile that waits for a worker, or that one is at."""

    begun: float | None = None
    """When a worker took it, by its pool's clock; None as long as it waits for one, for a core, or for a pause to end."""

    abandoned = False
    """Nobody waits for it any more."""


@dataclass(slots=True, kw_only=True)
class _Job:
    task: Message
    target: Any
    setup: Setup
    timeout_s: float
    future: Compiling = field(default_factory=Compiling)


class WorkerPool:
    """Up to `workers` processes, started as tasks arrive and let go when idle.

    A thread per worker waits for it in the caller, asleep but for a hand-over. Not usable in a forked child; see
    `shared_pool`.

    Args:
        workers: the most processes.
        nice: by how much they give way to other processes for the CPU.
    """

    def __init__(self, workers: int, *, nice: int = 0) -> None:
        self.workers = max(1, workers)
        self._nice = nice
        self._server = ForkServer("triton")
        self.started = 0  # processes, ever
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._live: set[_Compiler] = set()
        self._idle = 0
        self._waiting = 0
        self._pausing = Pausing()
        self._unavailable = ""  # why no worker can be had; asked once, since a start that fails may take a minute

    def submit(self, task: Task | LauncherTask, setup: Setup, timeout_s: float) -> Compiling:
        """Have a task done; the future raises `WorkersUnavailableError` where no worker can be started.

        Raises:
            WorkersUnavailableError: a task cannot be handed to a worker, or none could be started before.
        """
        try:
            job = _Job(task=task.as_json(), target=task.target, setup=setup, timeout_s=timeout_s)
        except (ValueError, SyntaxError) as err:
            raise WorkersUnavailableError(f"{task.name} cannot be handed to a worker: {err}") from None
        self._put(job)
        return job.future

    def prepare(self) -> None:
        """Have the workers' server import Triton, which takes it 0.2 s, while the caller still makes the first task."""
        with self._lock:
            if self._threads or self._unavailable or self._pausing.is_paused:
                return
            self._server.prepare()
            try:
                self._add_thread()  # which also ends the server if no task comes
            except RuntimeError:  # the system has no more; the first task says so
                self._server.stop()

    def abandon(self, compiling: Collection[Compiling]) -> None:
        """Nobody waits for these any more: those that have begun end, and their workers with them."""
        for future in compiling:
            future.abandoned = not future.cancel()
        with self._lock:
            for compiler in self._live:
                if compiler.future is not None and compiler.future.abandoned and not compiler.future.done():
                    compiler.worker.kill()

    def _put(self, job: _Job) -> None:
        with self._lock:
            if self._unavailable:
                raise WorkersUnavailableError(self._unavailable)
            self._waiting += 1
            if self._waiting > self._idle and len(self._threads) < self.workers:
                try:
                    self._add_thread()
                except RuntimeError as err:  # the system has no more
                    if not self._threads:
                        self._waiting -= 1
                        raise WorkersUnavailableError(f"no thread can be started to wait for a worker: {err}") from None
        self._jobs.put(job)

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name="forecast_autotune-compile", daemon=True)
        thread.start()  # it takes the lock before it counts
        self._threads.append(thread)
        self._idle += 1

    def paused(self) -> AbstractContextManager[None]:
        """Stop every compile, its tools included, for as long as something is timed that must not be disturbed."""
        return self._pausing.paused()

    def clock(self) -> float:
        """Seconds since any moment, of which workers could run: no pauses count."""
        return self._pausing.clock()

    def processes(self) -> tuple[int, ...]:
        """Process ids of the workers that live."""
        with self._lock:
            return tuple(compiler.worker.pid for compiler in self._live)

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nothing is compiled any more."""
        return self._unavailable == _CLOSED

    def close(self) -> None:
        """Kill the workers, and wait a moment for their threads; what waits is cancelled.

        A worker's connection and log are closed by its thread alone: closed twice, their numbers may be somebody else's.
        """
        with self._lock:
            self._unavailable = _CLOSED
            for compiler in self._live:
                compiler.worker.kill()
        self._pausing.give_up()
        with contextlib.suppress(queue.Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    job.future.cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(LEAVE_S)
        self._server.stop()

    def _serve(self) -> None:
        """One thread: take jobs, keep a worker of the right setup for them."""
        compiler: _Compiler | None = None
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_S if compiler or self._server.pid is not None else None)
            except queue.Empty:
                self._retire(compiler)
                compiler = None
                self._stop_unused_server()
                continue
            if job is None:
                self._retire(compiler)
                return
            with self._lock:
                self._waiting -= 1
                self._idle -= 1
            try:
                if job.future.set_running_or_notify_cancel():
                    compiler = self._run(job, compiler)
            except BaseException as err:  # whatever it is, who waits for the future must hear of it
                self._retire(compiler)
                compiler = None
                if not job.future.done():
                    job.future.set_exception(err)
            finally:
                with self._lock:
                    self._idle += 1

    def _stop_unused_server(self) -> None:
        """End the workers' server where there is no worker, and no thread that may be starting one."""
        with self._lock:
            if not self._live and not self._waiting and self._idle == len(self._threads):
                self._server.stop()

    def _run(self, job: _Job, compiler: _Compiler | None) -> _Compiler | None:
        self._pausing.wait()
        if compiler is not None and (compiler.setup != job.setup or compiler.worker.has_ended):
            self._retire(compiler)
            compiler = None
        if compiler is None:
            compiler = self._start(job.setup)
        built = self._compiled(compiler, job)
        if built.transient and not (job.future.abandoned or self.closed):
            log.warning("%s: it is compiled once more", built.error)
            if compiler.worker.has_ended:
                self._retire(compiler)
                compiler = self._start(job.setup)
            built = self._compiled(compiler, job)
        job.future.set_result(built)
        return compiler

    def _compiled(self, compiler: _Compiler, job: _Job) -> BuildResult:
        """What comes of a task in a worker, which is known by it meanwhile."""
        with self._lock:
            compiler.future = job.future
        try:
            return compiler.run(job)
        finally:
            with self._lock:
                compiler.future = None

    def _start(self, setup: Setup) -> _Compiler:
        """A new worker that is ready."""
        self._pausing.wait()  # importing Triton beside what is timed would be told from it
        if self.closed:
            raise WorkersUnavailableError(_CLOSED)
        try:
            compiler = _Compiler(self._server, setup, self._nice, self.clock)
        except WorkersUnavailableError as err:
            self._unavailable = self._unavailable or str(err)
            raise
        with self._lock:
            self.started += 1
            self._live.add(compiler)
            self._pausing.add(compiler.worker)
            if self.closed:
                compiler.worker.kill()
        return compiler

    def _retire(self, compiler: _Compiler | None) -> None:
        if compiler is not None:
            with self._lock:
                self._live.discard(compiler)
            self._pausing.discard(compiler.worker)
            compiler.close()


class _Compiler:
    """A worker that compiles one task after another, and its log."""

    def __init__(self, server: ForkServer, setup: Setup, nice: int, clock: Callable[[], float]) -> None:
        self.setup = setup
        self._clock = clock
        self.future: Compiling | None = None  # of what it compiles now
        self._log = memory_file(0, "forecast_autotune_log")
        try:
            self.worker = server.start(
                serve_tasks,
                {"knobs": {group: dict(values) for group, values in setup.knobs}, "nice": nice},
                [self._log],
                ready_s=START_S,
                environment={**os.environ, **dict(setup.environment)},
                folder=setup.folder,
            )
        except BaseException:
            os.close(self._log)
            raise

    def run(self, job: _Job) -> BuildResult:
        """Have it compile when a core is free; a worker that takes too long, not counting pauses, is killed."""
        with core_slots().held(given_up=lambda: self.worker.has_ended or job.future.abandoned):
            return self._run(job)

    def _run(self, job: _Job) -> BuildResult:
        if job.future.abandoned:
            return BuildResult(cost_s=0.0, error="it was abandoned")
        began = time.perf_counter()
        try:
            job.future.begun = self._clock()
            self.worker.send(job.task)
            return BuildResult.from_json(self.worker.receive(job.timeout_s), job.target)
        except WorkerTimeoutError:
            self.worker.kill()
            stage: Stage = "timeout"
            by_itself = True
            error = f"ran out of time: compiling took longer than {job.timeout_s:g} s and was killed"
        except WorkerDiedError as err:
            stage, by_itself = "compile", not isinstance(err, WorkerKilledError)
            error = f"the compiler's process ended ({err}): {last_words(self._log) or 'it left no message'}"
        cost_s = time.perf_counter() - began
        return BuildResult(cost_s=cost_s, error=error, stage=stage, crashed=by_itself, transient=not by_itself)

    def close(self) -> None:
        """End the worker; once more does nothing, for the log's number may be another file's by then."""
        self.worker.close()
        log, self._log = self._log, -1
        if log >= 0:
            os.close(log)


def current_setup() -> Setup | None:
    """What a worker started now would need; None where a worker cannot do as the caller would.

    That is so with compiler stages or a cache of the caller's own making, which exist in its process only.
    """
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
    return Setup(environment=tuple(environment), knobs=tuple(overrides), folder=folder)


_shared: dict[int, WorkerPool] = {}  # by how nice their workers are
_shared_lock = fork_safe_lock()


def shared_pool() -> WorkerPool:
    """The process's own pool; a forked child gets a new one, since the parent's threads are not in it."""
    return _pool(nice=0)


def background_pool() -> WorkerPool:
    """The process's own pool for what nobody waits for: half as many workers, which give way to all other processes."""
    return _pool(nice=BACKGROUND_NICE)


def _pool(nice: int) -> WorkerPool:
    with _shared_lock:
        pool = _shared.get(nice)
        if pool is None or pool.closed:
            if not _shared:
                atexit.register(_close_shared)
            workers = min(MAX_WORKERS, workers_that_fit(WORKER_BYTES))
            pool = _shared[nice] = WorkerPool(workers // 2 if nice else workers, nice=nice)
        return pool


def _close_shared() -> None:
    for pool in list(_shared.values()):
        pool.close()


@after_fork_in_child
def _after_fork_in_child() -> None:
    _shared.clear()
