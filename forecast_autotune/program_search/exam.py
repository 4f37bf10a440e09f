"""The caller's side of trying a candidate: it draws the inputs, reads the clock, and looks at what timed launches wrote.

Nothing that the worker says is believed but that it is done. While inputs are drawn the worker is stopped, so that
nothing can be computed ahead; when it says that it is done it is stopped again, so that nothing can be computed
after. Every launch has inputs that were never seen before, outputs of its own that hold NaN before, and guard zones
around them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import mmap
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.digest import digest
from ..core.hardware import Hardware
from ..core.outcome import Failure, Measurement
from ..errors import InvalidInputError
from ..features.hardware_sheets import tensor_peak_gflops
from ..measure.probe import device_identity
from ..processes.box import TOO_MANY, TRITON_FOLDER, Box, NoBoxError, boxed_environment, boxed_server
from ..processes.channel import Message, memory_file
from ..processes.core_slots import own_folder
from ..processes.endings import (
    WorkerDiedError,
    WorkerMemoryError,
    WorkerRaisedError,
    WorkersUnavailableError,
    WorkerTimeoutError,
)
from ..processes.file_lock import turn_at
from ..processes.machine import usable_cores, usable_memory_bytes
from ..processes.worker import Worker
from .compiled_files import carry, compiled_to
from .task import SearchTask, Sizes
from .trial import nothing, pin, serve_candidate

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

BATCHES = 7  # timed, of each size
BATCH_S = 0.004  # that a batch lasts at least: a message there and back takes 60 us, which is taken off
MOST_SETS = 24  # in a batch
MOST_BYTES = 512 << 20  # of all sets together
PINNED_BYTES = 128 << 20  # at least, on a GPU
ALIGNMENT = 64
GUARD_BYTES = 4096
GUARD = 0xA5
LOAD_TIMEOUT_S = 180.0  # Triton compiles within it
FIRST_TIMEOUT_S = 60.0
TIMEOUT_RATIO, TIMEOUT_FLOOR_S = 30.0, 5.0
SLOW_RATIO, SLOW_BATCHES = (
    1.2,
    3,
)  # one so many times slower than the best in each of its first batches is timed no further
PRECISION_RATIO = (
    16.0  # of root-mean-square errors to the seed's: half precision in place of single is off by thousands
)
LIGHT_RATIO = 0.8  # of the least time that the device's peaks allow: sheets are not exact
CHECKS = "forecast_autotune_check"  # names threads
CHECKED_BESIDE = 8  # candidates that are checked side by side at most; each compiles, and has a worker or two
SHIFT = 1  # elements off the usual alignment
RESOLVED = 0.1  # of what a batch took that is its launches' at least, however long a message took
OVERHEAD_RATIO, OVERHEAD_US = 4.0, 30.0  # of what a launch takes beyond the device's own time, against the seed's


class _WrongError(Exception):
    """A candidate computed something else; the message says what."""


class _FasterThanLightError(_WrongError):
    """A candidate was done before it can have been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loadable:
    """What a worker loads a candidate by: see `trial.serve_candidate`.

    `modules` are imported before the box is closed. `code` is a digest of what it was compiled to; empty where that
    is not known.
    """

    message: Message
    readable: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    may_start: bool = False  # Triton starts an assembler
    compile_s: float = 0.0
    code: str = ""


@dataclass(slots=True, kw_only=True)
class Bar:
    """What the seed has shown, which candidates are held against; filled in while the seed is examined.

    By size: its error (see `_error`), whether it is exact on zeros and ones, runs at shifted addresses, and the
    time of a launch beyond the device's own. And whether its elements are off by more than the tolerances where terms
    nearly cancel.
    """

    rounds: bool = False

    errors: dict[str, float] = field(default_factory=dict)
    exact: dict[str, bool] = field(default_factory=dict)
    shifts: dict[str, bool] = field(default_factory=dict)
    overhead_us: dict[str, float] = field(default_factory=dict)
    time_s: dict[str, float] = field(default_factory=dict)  # of a launch, for time limits
    idle_s: float = math.inf  # that a message there and back takes; a candidate that answers late gains nothing by it


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an exam came to: the outcome, and of each size the median in microseconds.

    `code` is a digest of what Triton compiled while it ran; empty of all else.
    """

    outcome: Measurement | Failure
    times_us: Mapping[str, float] = field(default_factory=dict)
    code: str = ""


@dataclass(slots=True, kw_only=True)
class _Begun:
    """A worker that has closed its box and started its device, and has loaded nothing yet."""

    worker: Worker
    file: int  # the memory that arguments are handed over in
    folder: Path

    def close(self) -> None:
        """End the worker, and remove what it left."""
        self.worker.close()
        os.close(self.file)
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class Checked:
    """Whether a candidate is right, and workers to time it in: new ones, which find what it compiled.

    `code` is that of a `Result`.
    """

    failure: Failure | None = None
    code: str = ""
    seconds: float = 0.0
    begun: list[_Begun] = field(default_factory=list)

    def end(self) -> None:
        """End the workers that timed nothing."""
        while self.begun:
            self.begun.pop().close()


class Examiner:
    """Tries candidates of one task, each in workers of its own.

    Args:
        task: what is searched for.
        hardware: whose peaks bound what can be believed.
        folder: where each worker gets a folder to write to, which is removed with it.
        bar: what the seed has shown; empty to examine the seed first.
    """

    def __init__(self, task: SearchTask, hardware: Hardware, folder: Path, bar: Bar | None = None) -> None:
        self.task, self.hardware, self.bar = task, hardware, bar or Bar()
        self.bytes = _handed_over_bytes(task)
        self.floors_us: dict[str, float] = {}  # by size
        self.beside = min(CHECKED_BESIDE, max(1, usable_cores() // 2))
        self._folder = folder
        self._trials = itertools.count(1)
        self._warm: Path | None = None

    @contextlib.contextmanager
    def _turn(self, *, alone: bool) -> Iterator[None]:
        """Check beside what other searches check on this device, or time alone."""
        with contextlib.ExitStack() as held:
            try:
                path = own_folder() / f"search-{digest(device_identity(self.task.device))}.lock"
                held.enter_context(turn_at(path, alone=alone))
            except OSError as err:  # a filesystem without locks
                log.debug("no turn at a device: %s", err)
            yield

    @contextlib.contextmanager
    def checked(self, candidates: Sequence[Loadable], timings: int = 1) -> Iterator[list[Checked]]:
        """See whether candidates are right, side by side, as nothing is timed; then start workers to time them in.

        Nothing but time is saved: each is asked what `examine` asks it, and timed in a process that did nothing before.

        Args:
            timings: how often each is to be handed to `examine`.
        Raises:
            NoBoxError, WorkersUnavailableError, InvalidInputError: see `examine`.
        """
        futures: list[Future[Checked]] = []
        try:
            with self._turn(alone=False), ThreadPoolExecutor(self.beside, thread_name_prefix=CHECKS) as pool:
                futures = [pool.submit(self._check, one, timings) for one in candidates]
            yield [future.result() for future in futures]
        finally:
            for future in futures:
                if future.exception() is None:
                    future.result().end()

    def _check(self, candidate: Loadable, timings: int) -> Checked:
        began = time.perf_counter()
        checked = Checked()
        with ThreadPoolExecutor(
            1 + timings, thread_name_prefix=CHECKS
        ) as pool:  # a worker takes a second or two to start
            first = pool.submit(self._begin, candidate, self._warm)
            others = [pool.submit(self._begin, candidate, None) for _ in range(timings)]
        checked.begun = [other.result() for other in others if other.exception() is None]
        try:
            with contextlib.closing(first.result()) as begun:
                with _Exam(self, begun, is_seed=False) as exam:
                    exam.load(candidate.message)
                    exam.check()
                begun.worker.close()
                compiled = begun.folder / TRITON_FOLDER
                checked.code = compiled_to(compiled, self._warm)
                for other in others:
                    carry(compiled, other.result().folder / TRITON_FOLDER)
        except _ITS_OWN as err:
            checked.end()
            checked.failure = replace(_failure(err), cost_s=time.perf_counter() - began)
        except BaseException:
            checked.end()
            raise
        checked.seconds = time.perf_counter() - began
        return checked

    def examine(
        self,
        candidate: Loadable,
        *,
        best_us: Mapping[str, float] | None = None,
        sizes: Mapping[str, Sizes] | None = None,
        is_seed: bool = False,
        checked: Checked | None = None,
    ) -> Result:
        """Load a candidate, see whether it is right, and time it.

        Args:
            best_us: the fastest so far at each size: far slower ones are not timed to the end.
            sizes: in place of the task's.
            is_seed: it is a person's: what it shows becomes the bar.
            checked: what `checked` found of it, where it was asked before.
        Raises:
            NoBoxError: the system has no box.
            WorkersUnavailableError: no worker can be had.
            InvalidInputError: the task's own reference or inputs do not fit.
        """
        began = time.perf_counter()
        if checked is not None and checked.failure is not None:
            return Result(outcome=checked.failure)
        spent_s = 0.0 if checked is None else checked.seconds
        begun = checked.begun.pop(0) if checked is not None and checked.begun else self._begin(candidate, self._warm)
        compiled = begun.folder / TRITON_FOLDER
        try:
            with self._turn(alone=True), _Exam(self, begun, is_seed=is_seed) as exam:
                exam.load(candidate.message)
                if checked is None:
                    exam.check()
                timed = {
                    name: exam.time(name, one, (best_us or {}).get(name))
                    for name, one in (sizes or self.task.sizes).items()
                }
        except _ITS_OWN as err:
            return Result(outcome=replace(_failure(err), cost_s=spent_s + time.perf_counter() - began))
        else:
            code = compiled_to(compiled, self._warm) if checked is None else checked.code
            if is_seed and compiled.is_dir():
                begun.worker.close()
                self._warm = self._folder / f"warm-{os.getpid()}"
                shutil.rmtree(self._warm, ignore_errors=True)
                carry(compiled, self._warm)
            return replace(_result(timed, spent_s + time.perf_counter() - began), code=code)
        finally:
            begun.close()

    def _new_folder(self, compiled: Path | None) -> Path:
        """An empty folder for one worker, but for what Triton compiled for the seed, or for the same candidate: none finds
        what another left."""
        folder = self._folder / f"trial-{os.getpid()}-{next(self._trials)}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        if compiled is not None:
            carry(compiled, folder / TRITON_FOLDER)
        return folder

    def _begin(self, candidate: Loadable, compiled: Path | None) -> _Begun:
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
        return _Begun(worker=worker, file=file, folder=folder)


def _handed_over_bytes(task: SearchTask) -> int:
    """Of the memory that arguments are handed over in: two sets at least. What a GPU reaches is pinned in each
    process, which takes the longer the more it is."""
    most = min(MOST_BYTES, usable_memory_bytes() // 6)
    if task.device == "cpu":
        return most
    import torch

    largest = 0
    for sizes in (*task.sizes.values(), *task.held_out.values()):
        values = task.make_inputs(sizes, 0, task.device)
        largest = max(largest, sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor)))
    return min(most, max(PINNED_BYTES, 2 * largest + (1 << 20)))


_ITS_OWN = (WorkerTimeoutError, WorkerMemoryError, WorkerRaisedError, WorkerDiedError, _WrongError)
"""What is raised for a candidate's own doing."""


def _failure(err: Exception) -> Failure:
    message = str(err)
    if isinstance(err, _WrongError):
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
        times_us={name: statistics.median(samples) for name, samples in timed.items()},
    )


@dataclass(slots=True, kw_only=True)
class _Drawn:
    """One set of arguments in the shared memory, with what the outputs should hold."""

    inputs: list[tuple[torch.Tensor, torch.Tensor]]  # in shared memory, and as drawn
    outputs: list[torch.Tensor]
    expected: list[torch.Tensor]
    described: list[Message]


class _Exam:
    """One candidate's exam, in one worker; a context manager that lets go of the memory they share."""

    def __init__(self, examiner: Examiner, begun: _Begun, *, is_seed: bool) -> None:
        self.task, self.bar, self.hardware = examiner.task, examiner.bar, examiner.hardware
        self.floors_us = examiner.floors_us
        self.worker, self.is_seed = begun.worker, is_seed
        self.size = examiner.bytes
        self.memory = mmap.mmap(begun.file, self.size)
        self.random = random.SystemRandom()  # a candidate that knows the seeds knows the answers
        self.timeout_s = FIRST_TIMEOUT_S
        self._unpin = pin(self.memory, self.task.device)

    def __enter__(self) -> _Exam:
        return self

    def __exit__(self, *_: object) -> None:
        self._unpin()

    # The conversation -----------------------------------------------------------------------------------------------

    def ask(self, message: Message, timeout_s: float) -> Message:
        """The worker's answer.

        Raises:
            WorkerRaisedError: the candidate raised.
        """
        self.worker.send(message)
        answer = self.worker.receive(timeout_s)
        if "raised" in answer:
            raise WorkerRaisedError(str(answer["raised"]))
        return answer

    def load(self, message: Message) -> None:
        """Load the candidate; what it computes while it is loaded, it computes without inputs."""
        self.ask({"load": message}, LOAD_TIMEOUT_S)

    def launch(self, drawn: Sequence[_Drawn], timeout_s: float) -> tuple[float, Message]:
        """Have it called on each set, once: the seconds by our clock until it said that it was done, and what it said."""
        self.ask({"stage": [one.described for one in drawn]}, timeout_s)
        began = time.perf_counter()
        answer = self.ask({"run": len(drawn)}, timeout_s)
        took_s = time.perf_counter() - began
        if self.task.device != "cpu":
            self.ask({"collect": True}, timeout_s)
        self.worker.pause()
        return took_s, answer

    # Inputs and outputs ---------------------------------------------------------------------------------------------

    def draw(
        self, sizes: Sequence[tuple[str, Sizes]], *, shift: int = 0, alter: Callable[[Any], Any] | None = None
    ) -> list[_Drawn]:
        """Draw inputs for each of these calls into the shared memory. The worker is stopped meanwhile, and goes on then."""
        self.worker.pause()
        drawn, offset = [], GUARD_BYTES
        for _, one in sizes:
            values = self.task.make_inputs(one, self.random.getrandbits(31), self.task.device)
            if alter is not None:
                values = tuple(alter(v) for v in values)
            kept, offset = self._lay_out(values, offset, shift)
            drawn.append(kept)
        self.worker.resume()
        return drawn

    def _lay_out(self, values: Sequence[Any], offset: int, shift: int) -> tuple[_Drawn, int]:
        import torch

        first_output = len(values) - self.task.outputs
        kept = _Drawn(inputs=[], outputs=[], expected=[], described=[])
        for i, value in enumerate(values):
            if not isinstance(value, torch.Tensor):
                if not isinstance(value, (bool, int, float, str, type(None))):
                    raise InvalidInputError(
                        f"argument {i} of {self.task.name} is a {type(value).__name__}: a search hands over "
                        f"tensors and plain values"
                    )
                kept.described.append({"value": value})
                continue
            if value.requires_grad:
                raise InvalidInputError(
                    f"argument {i} of {self.task.name} requires a gradient, and a search compares outputs: make the "
                    "backward pass a task of its own, whose outputs are the gradients"
                )
            elements = (
                0
                if not value.numel()
                else 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
            )
            offset = -(-offset // ALIGNMENT) * ALIGNMENT + shift * value.element_size()
            end = offset + elements * value.element_size()
            if end + GUARD_BYTES > self.size:
                raise InvalidInputError(
                    f"the arguments of {self.task.name} take more than {self.size >> 20} MiB: give smaller sizes"
                )
            guards = torch.frombuffer(
                self.memory,
                dtype=torch.uint8,
                count=end + GUARD_BYTES - (offset - GUARD_BYTES),
                offset=offset - GUARD_BYTES,
            )
            guards[:GUARD_BYTES] = GUARD
            guards[-GUARD_BYTES:] = GUARD
            flat = (
                torch.frombuffer(self.memory, dtype=value.dtype, count=elements, offset=offset)
                if elements
                else torch.empty(0, dtype=value.dtype)
            )
            laid = flat.as_strided(value.shape, value.stride())
            if i >= first_output:  # what it held before is nobody's: whatever is left unwritten shows
                laid.fill_(nothing(value.dtype))
                kept.outputs.append(laid)
            else:
                laid.copy_(value)
                kept.inputs.append((laid, value))
            kept.described.append({
                "offset": offset, "elements": elements, "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape), "stride": list(value.stride()), "shift": shift, "output": i >= first_output,
            })  # fmt: skip
            offset = end + GUARD_BYTES
        expected = self.task.reference(*values)
        kept.expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        if len(kept.expected) != len(kept.outputs):
            raise InvalidInputError(
                f"the reference of {self.task.name} returns {len(kept.expected)} outputs, and a call has {len(kept.outputs)}"
            )
        return kept, offset

    def judge(self, drawn: Sequence[_Drawn], name: str, *, exact: bool = False) -> float:
        """Look at what each call wrote; the error of the worst; see `_error`.

        Raises:
            _WrongError: an output differs, an input was written to, or something beside them.
        """
        import torch

        worst = 0.0
        for one in drawn:
            for place, (laid, value) in enumerate(one.inputs):
                if not torch.equal(_bits(laid.to(value.device)), _bits(value)):
                    raise _WrongError(f"at {name}: it wrote to an input, argument {place}")
            for described in one.described:
                if "offset" in described and self.task.device == "cpu":
                    self._guarded(described, name)
            for place, (output, expected) in enumerate(zip(one.outputs, one.expected, strict=True)):
                tolerances = (0.0, 0.0) if exact else self.task.tolerances[min(place, len(self.task.tolerances) - 1)]
                worst = max(worst, self._error(output.to(expected.device), expected, tolerances, f"at {name}"))
        return worst

    def _error(
        self, output: torch.Tensor, expected: torch.Tensor, tolerances: tuple[float, float], where: str
    ) -> float:
        """See `_error` below. Where the seed is off by the rounding of terms that nearly cancel, that is no error of any."""
        try:
            return _error(output, expected, tolerances, where, rounding=self.bar.rounds and any(tolerances))
        except _WrongError:
            if not self.is_seed or not any(tolerances):
                raise
        error = _error(output, expected, tolerances, where, rounding=True)
        self.bar.rounds = True
        return error

    def _guarded(self, described: Message, name: str) -> None:
        import torch

        start = described["offset"]
        end = start + described["elements"] * torch.empty(0, dtype=getattr(torch, described["dtype"])).element_size()
        for at in (start - GUARD_BYTES, end):
            zone = self.memory[at : at + GUARD_BYTES]
            if zone.count(GUARD) != GUARD_BYTES:
                raise _WrongError(f"at {name}: it wrote outside its arguments")

    # What is asked of a candidate -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Call it at every corner and size: on ordinary inputs, at shifted addresses, on zeros and ones.

        Raises:
            _WrongError: it is wrong somewhere where the seed is right.
        """
        everywhere = [*self.task.corners.items(), *self.task.sizes.items()]
        for name, sizes in everywhere:
            drawn = self.draw([(name, sizes)])
            self.launch(drawn, self.timeout_s)
            error = self.judge(drawn, name)
            self._precise(name, error)
        for name, sizes in everywhere:
            self._like_the_seed(self.bar.shifts, f"{name}, at shifted addresses", name, sizes, shift=SHIFT)
            self._like_the_seed(
                self.bar.exact, f"{name}, of zeros and ones", name, sizes, alter=_zeros_and_ones, exact=True
            )

    def _precise(self, name: str, error: float) -> None:
        if self.is_seed:
            self.bar.errors[name] = max(error, self.bar.errors.get(name, 0.0))
        elif error > max(1.0, PRECISION_RATIO * self.bar.errors.get(name, 0.0)):
            raise _WrongError(
                f"at {name}: its error is {error:.2g} units in the last place on average, the seed's "
                f"{self.bar.errors.get(name, 0.0):.2g}: it computes in lower precision"
            )

    def _like_the_seed(
        self, passed: dict[str, bool], where: str, name: str, sizes: Sizes, *, exact: bool = False, **how: Any
    ) -> None:
        """Ask for what the seed can do; what it cannot, nobody must."""
        if not self.is_seed and not passed.get(name, False):
            return
        try:
            drawn = self.draw([(name, sizes)], **how)
            if exact and not all(_is_whole(expected) for one in drawn for expected in one.expected):
                passed[name] = False  # a logarithm or a quotient is rounded, by each program in its way
                return
            self.launch(drawn, self.timeout_s)
            self.judge(drawn, where, exact=exact)
        except (_WrongError, WorkerRaisedError):
            if not self.is_seed:
                raise
            passed[name] = False
        else:
            passed.setdefault(name, True)

    def time(self, name: str, sizes: Sizes, best_us: float | None) -> list[float]:
        """Times of a launch in microseconds, one for each batch, by the caller's clock; on a GPU by events, bounded
        by it."""
        for _ in range(2):  # what is compiled or loaded at a first launch is no time of it
            first = self.draw([(name, sizes)])
            took_s, answer = self.launch(first, self.timeout_s)
            self._precise(name, self.judge(first, name))
        bytes_each = self._bytes(first)
        if self.is_seed:
            self.bar.time_s[name] = took_s
        self.timeout_s = max(TIMEOUT_FLOOR_S, TIMEOUT_RATIO * MOST_SETS * self.bar.time_s.get(name, took_s))
        floor_us = self._floor_us(name, sizes)
        count = int(max(1, min(MOST_SETS, BATCH_S / max(took_s, 1e-6), self.size // bytes_each - 1)))
        samples: list[float] = []
        for _ in range(BATCHES):
            drawn = self.draw([(name, sizes)] * count)
            idle_s = self._idle_s()
            took_s, answer = self.launch(drawn, self.timeout_s)
            self._precise(name, self.judge(drawn, name))
            launch_us = 1e6 * max(took_s - idle_s, RESOLVED * took_s) / count
            launch_us = self._of_events(name, answer, launch_us, count)
            if launch_us < LIGHT_RATIO * floor_us:
                raise _FasterThanLightError(
                    f"at {name}: a launch took {launch_us:.3g} us, and the device needs {floor_us:.3g} us at "
                    f"least: it did its "
                    "work at another time"
                )
            samples.append(launch_us)
            if best_us is not None and len(samples) >= SLOW_BATCHES and min(samples) > SLOW_RATIO * best_us:
                break
        return samples

    def _of_events(self, name: str, answer: Message, launch_us: float, count: int) -> float:
        """On a GPU, what events say, unless the caller's clock contradicts them."""
        if self.task.device == "cpu":
            return launch_us
        claimed = answer.get("claimed_us")
        if (
            not isinstance(claimed, list)
            or len(claimed) != count
            or not all(isinstance(c, float) and c > 0 for c in claimed)
        ):
            raise _WrongError(f"at {name}: it reports no times")
        claimed_us = statistics.median(claimed)
        beyond_us = launch_us - claimed_us
        if self.is_seed:
            self.bar.overhead_us[name] = max(beyond_us, self.bar.overhead_us.get(name, 0.0))
        elif (
            claimed_us > 1.05 * launch_us + OVERHEAD_US
            or beyond_us > OVERHEAD_RATIO * self.bar.overhead_us.get(name, 0.0) + OVERHEAD_US
        ):
            raise _FasterThanLightError(
                f"at {name}: events say {claimed_us:.3g} us a launch, and the caller's clock {launch_us:.3g} us: "
                f"its events do not "
                "tell the truth"
            )
        return float(claimed_us)

    def _idle_s(self) -> float:
        """What a message there and back takes, without a launch; the least that was seen."""
        times = []
        for _ in range(3):
            began = time.perf_counter()
            self.ask({"run": 0}, self.timeout_s)
            times.append(time.perf_counter() - began)
        if self.is_seed:
            self.bar.idle_s = min(self.bar.idle_s, *times)
        return min(self.bar.idle_s, *times)

    def _bytes(self, drawn: Sequence[_Drawn]) -> int:
        tensors = [t for one in drawn for t in (*one.outputs, *(laid for laid, _ in one.inputs))]
        taken: int = sum(t.numel() * t.element_size() + 2 * GUARD_BYTES + ALIGNMENT for t in tensors)
        return taken + 1

    def _floor_us(self, name: str, sizes: Sizes) -> float:
        """The least time that the device's peaks allow for the work; 0 where either is unknown.

        Of bytes on a GPU alone: what a CPU's caches hold, it need not move. Of operations by the fastest units, on
        operands as small as the smallest argument.
        """
        if self.task.work is None:
            return 0.0
        if name not in self.floors_us:
            import torch

            arguments = self.task.make_inputs(sizes, 0, self.task.device)
            work = self.task.work(*arguments)
            element_bytes = min((a.element_size() for a in arguments if isinstance(a, torch.Tensor)), default=2)
            peak = max(self.hardware.peak_gflops, tensor_peak_gflops(self.hardware, element_bytes))
            compute_us = work.flops / peak / 1e3 if peak else 0.0
            bandwidth = self.hardware.bandwidth_gb_per_s
            moved_us = work.bytes / bandwidth / 1e3 if bandwidth else 0.0
            within_cache = work.bytes <= max(self.hardware.l2_bytes, 0)
            moves = self.hardware.kind != "cpu" and not within_cache
            self.floors_us[name] = max(compute_us, moved_us if moves else 0.0)
        return self.floors_us[name]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor


def _error(
    output: torch.Tensor, expected: torch.Tensor, tolerances: tuple[float, float], where: str, *, rounding: bool
) -> float:
    """How far an output is from what is expected: the root mean square, in units of the last place of what is usual in it.

    Args:
        tolerances: relative, and absolute.
        rounding: whether an element may also be off by one such unit.
    Raises:
        _WrongError: an element is off by more than it may be. NaN is like nothing but NaN.
    """
    import torch

    if not output.is_floating_point():
        if wrong := int((output != expected.to(output.dtype)).sum()):
            raise _WrongError(f"{where}: {wrong} of {output.numel()} elements are wrong")
        return 0.0
    if not output.numel():
        return 0.0
    mine, its = output.double(), expected.double()
    usual = float(torch.where(its.isfinite(), its, 0.0).square().mean().sqrt())
    unit = torch.finfo(output.dtype).eps * usual
    error = (mine - its).abs()
    rtol, atol = tolerances
    right = (error <= atol + rtol * its.abs()) | (mine == its) | (mine.isnan() & its.isnan())
    if rounding:
        right |= error <= unit
    if wrong := int((~right).sum()):
        missing = int((mine.isnan() & ~its.isnan()).sum())
        finite = error[~right & error.isfinite()]
        far = f", by up to {float(finite.max()):.3g}" if finite.numel() else ""
        unwritten = f", {missing} of them no number or never written" if missing else ""
        raise _WrongError(f"{where}: {wrong} of {output.numel()} elements are wrong{far}{unwritten}")
    finite_error = torch.where(error.isfinite(), error, 0.0)
    return float(finite_error.square().mean().sqrt()) / unit if usual else 0.0


def _is_whole(tensor: Any) -> bool:
    """Whether all values are whole numbers, as sums of products of zeros and ones are."""
    import torch

    return bool(torch.equal(tensor, tensor.round())) if tensor.is_floating_point() else not tensor.is_complex()


def _zeros_and_ones(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or bool(value.isnan().any()):
        return value
    return (
        torch.randint(0, 2, value.shape, device=value.device).to(value.dtype).as_strided(value.shape, value.stride())
        if value.is_contiguous()
        else value
    )
