"""Trying candidates: checks go side by side, and timings are alone; a worker for each, but for those that rules made."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import shutil
import statistics
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.hardware import Hardware
from ..core.outcome import Failure, Measurement
from ..errors import NoBoxError
from ..processes.box import TOO_MANY, TRITON_FOLDER, Box, boxed_environment, boxed_server
from ..processes.channel import memory_file
from ..processes.endings import (
    WorkerDiedError,
    WorkerMemoryError,
    WorkerRaisedError,
    WorkersUnavailableError,
    WorkerTimeoutError,
)
from ..processes.machine import usable_cores, usable_memory_bytes
from .compile_ahead import compiler_of
from .compiled_files import carry, compiled_to
from .exam import (
    LOAD_TIMEOUT_S,
    Exam,
    Question,
    SeedBaseline,
    StartedWorker,
    WrongError,
    as_outputs,
    at_the_sizes,
    further_checks,
)
from .run_folders import RunFolder
from .runners import Loadable
from .shared_workers import SharedWorker, SharedWorkers
from .task import SearchTask, Sizes
from .trial import serve_candidate
from .turns import turn_at_device

log = logging.getLogger(__name__)

MAX_BYTES = 512 << 20  # of all arguments that are handed over at once
PINNED_BYTES = 128 << 20  # at least, on a GPU
# Workers, of a candidate's further places: the driver starts one after the other, in 0.2 to 0.4 s (H100)
CHECKED_IN = 2
CHECKS = "forecast_autotune_check"  # names threads
CHECKED_BESIDE = 8  # candidates that are checked side by side at most; each compiles, and has a worker or two


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an exam came to: the outcome, and of each size the median in microseconds.

    `code` is a digest of what Triton compiled while it ran; empty of all else. `everywhere` says that it was checked so.
    """

    outcome: Measurement | Failure
    times_us: Mapping[str, float] = field(default_factory=dict)
    code: str = ""
    everywhere: bool = True


@dataclass(slots=True, kw_only=True)
class CheckReport:
    """Whether a candidate is right, `everywhere` or at the sizes alone, and workers to time it in: new ones, which find
    what it compiled, or the `shared` one that it was checked in.

    `code` is that of a `Result`.
    """

    everywhere: bool
    failure: Failure | None = None
    code: str = ""
    seconds: float = 0.0
    started: list[StartedWorker] = field(default_factory=list)
    shared: SharedWorker | None = None

    def end(self) -> None:
        """End the workers that are left."""
        while self.started:
            self.started.pop().close()
        if self.shared is not None:
            self.shared.close()
            self.shared = None


class Examiner:
    """Tries candidates of one task, each in workers of its own, but for those that rules made.

    Args:
        task: what is searched for.
        hardware: whose peaks bound what can be believed.
        folder: where each worker gets a folder to write to, which is removed with it.
        baseline: what the seed has shown; empty to examine the seed first.
    """

    def __init__(
        self, task: SearchTask, hardware: Hardware, folder: Path, baseline: SeedBaseline | None = None
    ) -> None:
        self.task, self.hardware, self.baseline = task, hardware, baseline or SeedBaseline()
        self.bytes = _handed_over_bytes(task)
        self.beside = min(CHECKED_BESIDE, max(1, usable_cores() // 2))
        self._folder = folder
        self._run: RunFolder | None = None
        self._run_folder_lock = threading.Lock()
        self._warm: Path | None = None
        self._started: weakref.WeakSet[StartedWorker] = weakref.WeakSet()
        self._ahead = compiler_of(task, hardware, folder)
        self._shared = SharedWorkers(max(CHECKED_IN, self.beside))
        weakref.finalize(self, self._shared.close)
        self._ends = False  # whether what is being checked is to end
        self._started_lock = threading.Lock()

    def end_waiting_workers(self) -> None:
        """End the workers that wait for candidates; there are new ones where more are tried."""
        self._shared.close()

    @contextlib.contextmanager
    def _checking(self, futures: Sequence[Future[Any]]) -> Iterator[ThreadPoolExecutor]:
        """Threads to check in, as nothing is timed, until these are done. After Ctrl-C, what has not begun is left, and the
        workers of the rest are ended: so each future must be added as soon as there is one."""
        with turn_at_device(self.task.device, alone=False):
            pool = ThreadPoolExecutor(self.beside, thread_name_prefix=CHECKS)
            try:
                yield pool
                wait(futures)
            except BaseException:
                with self._started_lock:
                    self._ends = True
                    started = list(self._started)
                for one in started:
                    one.worker.kill()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                # Not for threads: one counts as ended once waiting for it was broken off (Python 3.11).
                wait([future for future in futures if not future.cancelled()])
                self._ends = False

    @contextlib.contextmanager
    def checked(
        self, candidates: Sequence[Loadable], timings: int = 1, *, everywhere: bool = True
    ) -> Iterator[list[CheckReport]]:
        """See whether candidates are right, side by side, as nothing is timed; and start workers to time them in.

        Args:
            timings: how often each is to be handed to `time`; each in a new worker, where that is more than once.
            everywhere: else at the sizes alone.
        Raises:
            NoBoxError, WorkersUnavailableError, InvalidInputError: see `examine`.
        """
        futures: list[Future[CheckReport]] = []
        asked = [*at_the_sizes(self.task), *(further_checks(self.task) if everywhere else ())]
        try:
            with (
                self._compiled_ahead([(one, asked) for one in candidates]) as compiled,
                self._checking(futures) as pool,
            ):
                for one, folder in zip(candidates, compiled, strict=True):
                    futures.append(pool.submit(self._check, one, folder, asked, timings, everywhere=everywhere))
            found = [future.result() for future in futures]
            yield found
            for checked in found:  # after an exception, nobody knows what it was asked last
                shared, checked.shared = checked.shared, None
                if shared is not None:
                    self._shared.give_back(shared)
        finally:
            for future in futures:
                if not future.cancelled() and future.exception() is None:
                    future.result().end()

    @contextlib.contextmanager
    def _compiled_ahead(self, wanted: Sequence[tuple[Loadable, Sequence[Question]]]) -> Iterator[Sequence[Path | None]]:
        """Folders with what candidates launch at these questions, as far as it is compiled ahead."""
        if self._ahead is None:
            yield [None] * len(wanted)
            return
        with self._ahead.compiled(wanted) as folders:
            yield folders

    def _check(
        self, candidate: Loadable, ahead: Path | None, asked: Sequence[Question], timings: int, *, everywhere: bool
    ) -> CheckReport:
        began = time.perf_counter()
        checked = CheckReport(everywhere=everywhere)
        try:
            if candidate.by_rules and timings == 1:
                checked.shared, checked.code = self._check_shared(candidate, ahead, asked)
            else:
                self._check_in_its_own(checked, candidate, ahead, asked, timings)
        except _ITS_OWN as err:
            checked.end()
            checked.failure = replace(_failure(err), cost_s=time.perf_counter() - began)
        except BaseException:
            checked.end()
            raise
        checked.seconds = time.perf_counter() - began
        return checked

    def _check_in_its_own(
        self, checked: CheckReport, candidate: Loadable, ahead: Path | None, asked: Sequence[Question], timings: int
    ) -> None:
        """Check a candidate in a worker of its own, and begin those to time it in."""
        with ThreadPoolExecutor(1 + timings, thread_name_prefix=CHECKS) as pool:  # each takes a second or two to start
            first = pool.submit(self._start_worker, candidate, self._warm)
            others = [pool.submit(self._start_worker, candidate, None) for _ in range(timings)]
        checked.started = [other.result() for other in others if other.exception() is None]
        with contextlib.closing(first.result()) as started:
            compiled = started.folder / TRITON_FOLDER
            if ahead is not None:
                carry(ahead, compiled)
            self._ask(started, candidate, asked)
            started.worker.close()
            checked.code = compiled_to(compiled, self._warm)
            for other in others:
                carry(compiled, other.result().folder / TRITON_FOLDER)

    def _ask(self, started: StartedWorker, candidate: Loadable, asked: Iterable[Question]) -> None:
        with Exam(self.task, self.hardware, self.baseline, started, is_seed=False) as exam:
            exam.load(candidate.message)
            exam.check(asked)

    def _check_shared(
        self, candidate: Loadable, ahead: Path | None, asked: Sequence[Question]
    ) -> tuple[SharedWorker, str]:
        """Check a candidate in a shared worker: that worker, and a digest of what it was compiled to.

        Where it fails in one that others have used, it may be their doing: it is checked again in a new one.
        """
        one = self._shared.take(lambda: self._begin_shared(candidate))
        while True:
            try:
                return one, one.check(candidate.message, asked, warm=self._warm, ahead=ahead)
            except BaseException as err:
                if isinstance(err, WorkerRaisedError):
                    self._shared.give_back(one)
                else:
                    one.close()
                if not isinstance(err, _ITS_OWN) or _is_its_own(err, one):
                    raise
            one = self._begin_shared(candidate)

    def _begin_shared(self, candidate: Loadable) -> SharedWorker:
        started = self._start_worker(candidate, self._warm)
        try:
            return SharedWorker(
                started=started, exam=Exam(self.task, self.hardware, self.baseline, started, is_seed=False)
            )
        except BaseException:
            started.close()
            raise

    def _ask_further(self, candidate: Loadable) -> None:
        """Check a candidate in a few new workers at the corners and shifted addresses where it was not checked yet: there it
        is compiled anew. Candidates made by rules are checked at the sizes again, since others may have used the worker that
        they were checked in."""

        def ask(asked: Sequence[Question], ahead: Path | None) -> None:
            with contextlib.closing(self._start_worker(candidate, self._warm)) as started:
                if ahead is not None:
                    carry(ahead, started.folder / TRITON_FOLDER)
                self._ask(started, candidate, asked)

        places: dict[tuple[str, bool], list[Question]] = {}
        for question in [*further_checks(self.task), *(at_the_sizes(self.task) if candidate.by_rules else ())]:
            places.setdefault((question.name, question.shifted), []).append(question)
        count = min(len(places), CHECKED_IN)
        shares = [[*itertools.chain.from_iterable(list(places.values())[i::count])] for i in range(count)]
        futures: list[Future[None]] = []
        with (
            self._compiled_ahead([(candidate, share) for share in shares]) as compiled,
            self._checking(futures) as pool,
        ):
            for share, folder in zip(shares, compiled, strict=True):
                futures.append(pool.submit(ask, share, folder))
        for future in futures:
            future.result()

    def examine_all(
        self,
        candidates: Sequence[Loadable],
        *,
        best_us: Mapping[str, float] | None = None,
    ) -> list[Result]:
        """Check candidates at the sizes side by side, time those that are right, and check elsewhere what could win.

        All are timed in one turn at the device: of searches beside each other, each would else wait for the others' checks
        before every timing.

        Args:
            best_us: the fastest so far at each size: far slower ones are not timed to the end, nor checked elsewhere.
        Raises:
            NoBoxError, WorkersUnavailableError, InvalidInputError: see `examine`.
        """
        if not candidates:
            return []
        with self.checked(candidates, everywhere=False) as found, contextlib.ExitStack() as held:
            if any(checked.failure is None for checked in found):
                held.enter_context(self.alone())
            results = [self.time(one, checked, best_us=best_us) for one, checked in zip(candidates, found, strict=True)]
        for i in sorted(range(len(results)), key=lambda i: mean_us(results[i].times_us)):
            if results[i].times_us and is_fastest(results[i].times_us, best_us or {}):
                results[i] = self._confirmed(candidates[i], results[i])
                if mean_us(results[i].times_us) < mean_us(best_us or {}):
                    best_us = results[i].times_us
        return results

    def _confirmed(self, candidate: Loadable, result: Result) -> Result:
        """What comes of a candidate that was timed once it is checked elsewhere too."""
        began = time.perf_counter()
        try:
            self._ask_further(candidate)
        except _ITS_OWN as err:
            spent_s = result.outcome.cost_s + time.perf_counter() - began
            return Result(outcome=replace(_failure(err), cost_s=spent_s))
        return replace(result, everywhere=True)

    def examine(
        self, candidate: Loadable, *, sizes: Mapping[str, Sizes] | None = None, is_seed: bool = False
    ) -> Result:
        """Load a candidate, see whether it is right everywhere, and time it.

        Args:
            sizes: in place of the task's.
            is_seed: it is a person's: what it shows becomes the baseline.
        Raises:
            NoBoxError: the system has no box.
            WorkersUnavailableError: no worker can be had.
            InvalidInputError: the task's own reference or inputs do not fit.
        """
        if is_seed:
            return self._examined_seed(candidate, sizes)
        with self.checked([candidate]) as (checked,), self.alone():
            return self.time(candidate, checked, sizes=sizes)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """The turn to time on this device: nothing is checked on it, nor timed by others."""
        with turn_at_device(self.task.device, alone=True):
            yield

    def time(
        self,
        candidate: Loadable,
        checked: CheckReport,
        *,
        best_us: Mapping[str, float] | None = None,
        sizes: Mapping[str, Sizes] | None = None,
    ) -> Result:
        """Time what was checked, `alone`, in a worker that was started for it.

        Args:
            best_us: the fastest so far at each size: far slower ones are not timed to the end.
            sizes: in place of the task's.
        Raises:
            NoBoxError, WorkersUnavailableError, InvalidInputError: see `examine`.
        """
        if checked.failure is not None:
            return Result(outcome=checked.failure)
        began = time.perf_counter()
        try:
            timed = self._timed_shared(checked, best_us, sizes)
            if timed is None:
                ready = checked.started.pop(0) if checked.started else self._start_worker(candidate, self._warm)
                with (
                    contextlib.closing(ready),
                    Exam(self.task, self.hardware, self.baseline, ready, is_seed=False) as exam,
                ):
                    exam.load(candidate.message)
                    timed = self._timed(exam, best_us, sizes)
        except _ITS_OWN as err:
            return Result(outcome=replace(_failure(err), cost_s=checked.seconds + time.perf_counter() - began))
        result = _result(timed, checked.seconds + time.perf_counter() - began)
        return replace(result, code=checked.code, everywhere=checked.everywhere)

    def _timed_shared(
        self, checked: CheckReport, best_us: Mapping[str, float] | None, sizes: Mapping[str, Sizes] | None
    ) -> dict[str, list[float]] | None:
        """Time a candidate in the shared worker that it was checked in; None where there is none, or it fails in one that
        others have used."""
        one = checked.shared
        if one is None:
            return None
        try:
            return self._timed(one.exam, best_us, sizes)
        except _ITS_OWN as err:
            checked.end()
            if _is_its_own(err, one):
                raise
            return None

    def _examined_seed(self, candidate: Loadable, sizes: Mapping[str, Sizes] | None) -> Result:
        """Check and time the seed in one worker; what Triton compiled for it is kept for all candidates."""
        began = time.perf_counter()
        asked = [*at_the_sizes(self.task), *further_checks(self.task)]
        try:
            with contextlib.ExitStack() as held:
                with turn_at_device(self.task.device, alone=False):
                    started = held.enter_context(contextlib.closing(self._start_worker(candidate, self._warm)))
                    exam = held.enter_context(Exam(self.task, self.hardware, self.baseline, started, is_seed=True))
                    exam.load(candidate.message)
                    exam.check(asked)
                    if self._ahead is not None:
                        self._ahead.draw(asked)  # now, for later nobody keeps others from timing meanwhile
                with turn_at_device(self.task.device, alone=True):
                    timed = self._timed(exam, None, sizes)
                compiled = started.folder / TRITON_FOLDER
                code = compiled_to(compiled, self._warm)
                if compiled.is_dir():
                    started.worker.close()
                    self._warm = self._own_folder("warm")
                    carry(compiled, self._warm)
        except _ITS_OWN as err:
            return Result(outcome=replace(_failure(err), cost_s=time.perf_counter() - began))
        return replace(_result(timed, time.perf_counter() - began), code=code)

    def _timed(
        self, exam: Exam, best_us: Mapping[str, float] | None, sizes: Mapping[str, Sizes] | None
    ) -> dict[str, list[float]]:
        return {
            name: exam.time(name, one, (best_us or {}).get(name)) for name, one in (sizes or self.task.sizes).items()
        }

    def _new_folder(self, compiled: Path | None) -> Path:
        """An empty folder for one worker, but for what Triton compiled for the seed, or for the same candidate: none finds
        what another left."""
        folder = self._own_folder("trial")
        if compiled is not None:
            carry(compiled, folder / TRITON_FOLDER)
        return folder

    def _own_folder(self, name: str) -> Path:
        """A new folder that no other search has: not even one in another container, whose process may have the same id."""
        with self._run_folder_lock:
            if self._run is None:
                self._run = RunFolder(self._folder)
                weakref.finalize(self, self._run.close)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._run.path))

    def _start_worker(self, candidate: Loadable, compiled: Path | None) -> StartedWorker:
        import torch

        folder = self._new_folder(compiled)
        file = memory_file(self.bytes, "forecast_autotune_search")
        box = Box(
            folder=str(folder),
            readable=candidate.readable,
            gpu=self.task.device.startswith("cuda"),
            may_start=candidate.may_start,
            memory_bytes=max(2 << 30, usable_memory_bytes() // (self.beside + 1)),
        )
        request = {
            "box": box.as_json(),
            "bytes": self.bytes,
            "threads": torch.get_num_threads(),
            "device": self.task.device,
            "modules": list(candidate.modules),
        }
        try:
            worker = boxed_server().start(
                serve_candidate, request, [file], environment=boxed_environment(), ready_s=LOAD_TIMEOUT_S
            )
        except BaseException as err:
            os.close(file)
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(err, WorkersUnavailableError) and "SystemLacksError" in str(err):
                raise NoBoxError(str(err)) from None
            raise
        started = StartedWorker(worker=worker, file=file, bytes=self.bytes, folder=folder)
        with self._started_lock:
            self._started.add(started)
            ends = self._ends
        if ends:  # it was starting when the others were ended
            worker.kill()
        return started


def _handed_over_bytes(task: SearchTask) -> int:
    """Of the memory that arguments are handed over in: two sets at least. What a GPU reaches is pinned in each
    process, which takes the longer the more it is."""
    most = min(MAX_BYTES, usable_memory_bytes() // 6)
    if task.device == "cpu":
        return most
    import torch

    largest = 0
    for sizes in (*task.sizes.values(), *task.held_out.values()):
        values = task.make_inputs(sizes, 0, task.device)
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        if any(t.requires_grad for t in tensors):
            with torch.no_grad():  # outputs, the same after the backward pass, and their gradients
                tensors += [*(t for t in tensors if t.requires_grad), *3 * as_outputs(task.reference(*values))]
        largest = max(largest, sum(t.numel() * t.element_size() for t in tensors))
    return min(most, max(PINNED_BYTES, 2 * largest + (1 << 20)))


_ITS_OWN = (WorkerTimeoutError, WorkerMemoryError, WorkerRaisedError, WorkerDiedError, WrongError)
"""What is raised for a candidate's own doing."""


def _is_its_own(err: Exception, one: SharedWorker) -> bool:
    """Whether a candidate that failed in a shared worker needs no new one to be believed: it was the first there, or
    another try takes as long as this one."""
    return one.loaded == 1 or isinstance(err, WorkerTimeoutError)


def _failure(err: Exception) -> Failure:
    message = str(err)
    if isinstance(err, WrongError):
        return Failure(stage="check", message=message)
    if isinstance(err, WorkerTimeoutError):
        return Failure(stage="timeout", message=message, crashed=True)
    if isinstance(err, WorkerDiedError):
        if message == f"exited with code {TOO_MANY}":
            message = "it came to too many processes, and its box was ended"
        return Failure(stage="launch", message=message, crashed=True)
    return Failure(stage="launch", message=message)


def _result(timed: Mapping[str, Sequence[float]], run_s: float) -> Result:
    """Of each size its median; and the geometric mean over sizes, batch by batch, as the samples of one measurement."""
    batches = min(len(samples) for samples in timed.values())
    means = [statistics.geometric_mean([samples[i] for samples in timed.values()]) for i in range(batches)]
    return Result(
        outcome=Measurement(samples_us=tuple(means), run_s=run_s),
        times_us=_medians(timed),
    )


def _medians(timed: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(samples) for name, samples in timed.items()}


def mean_us(times_us: Mapping[str, float]) -> float:
    """The geometric mean over sizes; infinite of none."""
    return statistics.geometric_mean(times_us.values()) if times_us else math.inf


def is_fastest(times_us: Mapping[str, float], best_us: Mapping[str, float]) -> bool:
    """Whether nothing was faster so far: what is slower is no search's fastest, and the finals ask everything of all."""
    ratios = [us / best_us[name] for name, us in times_us.items() if name in best_us]
    return not ratios or statistics.geometric_mean(ratios) <= 1
