"""The caller's side of trying a candidate: it draws the inputs, reads the clock, and looks at what timed launches wrote.

Nothing that the worker says is believed but that it is done. While inputs are drawn the worker is stopped, so that nothing
can be computed ahead; when it says that it is done it is stopped again, so that nothing can be computed after. Every launch
has inputs that were never seen before, outputs of its own that hold NaN before, and guard zones around them. Where inputs
require gradients, a launch is the forward and the backward pass. The gradients of its outputs are drawn like inputs, and the
gradients of its inputs are checked like outputs.
"""

from __future__ import annotations

import math
import mmap
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.hardware import Hardware
from ..errors import InvalidInputError
from ..features.hardware_sheets import tensor_peak_gflops
from ..processes.channel import Message
from ..processes.endings import WorkerRaisedError
from ..processes.worker import Worker
from .run_folders import remove
from .task import SearchTask, Sizes
from .trial import nothing, pin

if TYPE_CHECKING:
    import torch

BATCHES = 7  # timed, of each size
BATCH_S = 0.004  # that a batch lasts at least: a message there and back takes 60 us, which is taken off
MAX_SETS = 24  # in a batch; and elements that an error is told by, at least
SMALL_BYTES = 4 << 20  # of calls that are made again with other inputs, guard zones included
ALIGNMENT = 64
GUARD_BYTES = 4096
GUARD = 0xA5
LOAD_TIMEOUT_S = 180.0  # Triton compiles within it
FIRST_TIMEOUT_S = 60.0
TIMEOUT_RATIO, TIMEOUT_FLOOR_S = 30.0, 5.0
SLOW_RATIO, SLOW_BATCHES = 1.2, 3  # what is so many times slower than the best in so many batches is timed no further
# Of root-mean-square errors to the seed's: half precision in place of single is off by thousands
PRECISION_RATIO = 16.0
LIGHT_RATIO = 0.8  # of the least time that the device's peaks allow: sheets are not exact
SHIFT = 1  # elements off the usual alignment
RESOLVED = 0.1  # of what a batch took that is its launches' at least, however long a message took
OVERHEAD_RATIO, OVERHEAD_US = 1.5, 30.0  # of what a launch takes beyond the device's own time, against the seed's
MAX_CONTRADICTED = 40  # batches of a size; a busy host is late in one of ten (H100), false events are always


class WrongError(Exception):
    """A candidate computed something else; the message says what."""


class _ImplausiblyFastError(WrongError):
    """A candidate was done before it can have been."""


class _IncomparableError(WrongError):
    """A call returned what cannot be compared, or has no gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whether a call is right at these sizes: on ordinary inputs, at shifted addresses, or on zeros and ones."""

    name: str
    sizes: Sizes
    shifted: bool = False
    of_zeros_and_ones: bool = False


def at_the_sizes(task: SearchTask) -> list[Question]:
    """What every candidate is asked."""
    return [
        Question(name=name, sizes=sizes, of_zeros_and_ones=whole)
        for whole in (False, True)
        for name, sizes in task.sizes.items()
    ]


def further_checks(task: SearchTask) -> list[Question]:
    """What those are asked that could win: Triton compiles each corner, and what is not aligned, anew."""
    corners = [
        Question(name=name, sizes=sizes, of_zeros_and_ones=whole)
        for whole in (False, True)
        for name, sizes in task.corners.items()
    ]
    return [*corners, *(Question(name=name, sizes=sizes, shifted=True) for name, sizes in task.sizes.items())]


@dataclass(slots=True, kw_only=True)
class SeedBaseline:
    """What the seed has shown, which candidates are held against; filled in while the seed is examined.

    By size: its error (see `_error`), that of each gradient apart, whether it is exact on zeros and ones, runs at shifted
    addresses, and the time of a launch beyond the device's own. And the outputs whose elements are off by more than the
    tolerances where terms nearly cancel, by their place; gradients come after them.
    """

    rounds: set[int] = field(default_factory=set)

    errors: dict[str, float] = field(default_factory=dict)
    exact: dict[str, bool] = field(default_factory=dict)
    shifts: dict[str, bool] = field(default_factory=dict)
    overhead_us: dict[str, float] = field(default_factory=dict)
    time_s: dict[str, float] = field(default_factory=dict)  # of a launch, for time limits
    floors_us: dict[str, float] = field(default_factory=dict)  # the least that the device's peaks allow
    idle_s: float = math.inf  # that a message there and back takes; a candidate that answers late gains nothing by it


@dataclass(kw_only=True, eq=False)
class StartedWorker:
    """A worker that has closed its box and started its device, and has loaded nothing yet."""

    worker: Worker
    file: int  # the memory that arguments are handed over in
    bytes: int  # of it
    folder: Path

    def close(self) -> None:
        """End the worker, and remove what it left; once."""
        self.worker.close()
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)
            remove(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExpectedResults:
    """What the reference makes of one call; without the last three where no input requires a gradient.

    `tracked` are the places of the outputs that autograd follows, `output_gradients` were drawn for these, and `gradients`
    come of them, by the place of the argument.
    """

    outputs: Sequence[torch.Tensor]
    tracked: Sequence[int] = ()
    output_gradients: Sequence[torch.Tensor] = ()
    gradients: Mapping[int, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _DrawnCall:
    """One set of arguments in the shared memory, with what the outputs should hold.

    Where the outputs are brought a second time, after the backward pass, they come after the first ones.
    """

    expected: _ExpectedResults
    inputs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # in shared memory, and as drawn
    outputs: list[torch.Tensor] = field(default_factory=list)
    output_gradients: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # as inputs
    gradients: list[torch.Tensor] = field(default_factory=list)
    described: list[Message] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Contradictions:
    """Batches of one size whose events and the caller's clock do not go together. A few are a busy host's."""

    most_s: float  # that they may take together
    batches: int = 0
    took_s: float = 0.0

    def add(self, name: str, claimed_us: float, took_s: float, count: int) -> None:
        """Count a batch of so many launches.

        Raises:
            WrongError: there are too many: events do not tell the truth.
        """
        self.batches, self.took_s = self.batches + 1, self.took_s + took_s
        if self.batches > MAX_CONTRADICTED or self.took_s > self.most_s:
            raise _ImplausiblyFastError(
                f"at {name}: events say {claimed_us:.3g} us a launch, and by the caller's clock {count} of them "
                f"took {1e6 * took_s:.3g} us, as before in {self.batches - 1} batches: its "
                "events do not tell the truth"
            )


class Exam:
    """The exam of the candidate that was loaded last, in one worker; a context manager that lets go of the memory they
    share."""

    def __init__(
        self, task: SearchTask, hardware: Hardware, baseline: SeedBaseline, started: StartedWorker, *, is_seed: bool
    ) -> None:
        self.task, self.baseline, self.hardware = task, baseline, hardware
        self.worker, self.is_seed = started.worker, is_seed
        self.size = started.bytes
        self.memory = mmap.mmap(started.file, self.size)
        self.random = random.SystemRandom()  # a candidate that knows the seeds knows the answers
        self.timeout_s = FIRST_TIMEOUT_S
        self._unpin = pin(self.memory, self.task.device)

    def __enter__(self) -> Exam:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the memory."""
        self._unpin()

    # The conversation -----------------------------------------------------------------------------------------------

    def ask(self, message: Message, timeout_s: float) -> Message:
        """The worker's answer.

        Raises:
            WorkerRaisedError: the candidate raised.
            WrongError: what it returned cannot be compared.
        """
        self.worker.send(message)
        answer = self.worker.receive(timeout_s)
        if "unfit" in answer:
            raise _IncomparableError(str(answer["unfit"]))
        if "raised" in answer:
            raise WorkerRaisedError(str(answer["raised"]))
        return answer

    def load(self, message: Message) -> None:
        """Load a candidate; what it computes while it is loaded, it computes without inputs."""
        self.timeout_s = FIRST_TIMEOUT_S
        self.worker.resume()
        self.ask({"load": message}, LOAD_TIMEOUT_S)

    def launch(self, drawn: Sequence[_DrawnCall], timeout_s: float) -> tuple[float, Message]:
        """Have it called on each set, once: the seconds by our clock until it said that it was done, and what it said."""
        if self.task.device != "cpu":
            self._stage(drawn)
        took_s, answer = self._run(len(drawn), timeout_s)
        if self.task.device != "cpu":
            self.ask({"collect": True}, timeout_s)
        self.worker.pause()
        return took_s, answer

    def _stage(self, drawn: Sequence[_DrawnCall]) -> None:
        self.worker.resume()
        self.ask({"stage": [one.described for one in drawn]}, self.timeout_s)

    def _run(self, count: int, timeout_s: float) -> tuple[float, Message]:
        began = time.perf_counter()
        self.worker.resume()
        answer = self.ask({"run": count}, timeout_s)
        return time.perf_counter() - began, answer

    # Inputs and outputs ---------------------------------------------------------------------------------------------

    def draw(
        self,
        sizes: Sequence[tuple[str, Sizes]],
        *,
        shift: int = 0,
        alter: Callable[[Any], Any] | None = None,
        twice: bool = False,
    ) -> list[_DrawnCall]:
        """Draw inputs for each of these calls into the shared memory, and leave the worker stopped.

        On the CPU it has laid out the arguments by then, and none of its code runs between the inputs and the clock.

        Args:
            twice: whether outputs that are returned are brought a second time, after the backward pass.
        """
        self.worker.pause()
        drawn, offset = list[_DrawnCall](), GUARD_BYTES
        for _, one in sizes:
            values = self.task.make_inputs(one, self.random.getrandbits(31), self.task.device)
            if alter is not None:
                values = tuple(alter(v) for v in values)
            kept, offset = self._lay_out(values, self._expected(values, alter), offset, shift, twice=twice)
            drawn.append(kept)
        if self.task.device == "cpu":
            self._stage(drawn)
            self.worker.pause()
        for kept in drawn:  # last: a signal to stop takes a moment to arrive
            for laid, value in (*kept.inputs, *kept.output_gradients):
                _flat(laid).copy_(_flat(value))
            for described in kept.described:
                if described.get("output"):
                    self._empty(described)
        return drawn

    def _expected(self, values: Sequence[Any], alter: Callable[[Any], Any] | None) -> _ExpectedResults:
        """What the reference makes of a call and, where inputs require gradients, of output gradients drawn here."""
        import torch

        wanted = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad]
        # Arguments that are one tensor, or come of one, have gradients of their own, as those of a candidate.
        if wanted:
            values = [v.detach().requires_grad_(i in wanted) if torch.is_tensor(v) else v for i, v in enumerate(values)]
        with torch.set_grad_enabled(bool(wanted) or torch.is_grad_enabled()):
            outputs = as_outputs(self.task.reference(*values))
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                raise InvalidInputError(
                    f"the reference of {self.task.name} returns a {type(output).__name__}, and a search compares tensors"
                )
        if not wanted:
            if len(outputs) != self.task.outputs:
                raise InvalidInputError(
                    f"the reference of {self.task.name} returns {len(outputs)} outputs, and a call has {self.task.outputs}"
                )
            return _ExpectedResults(outputs=outputs)
        tracked = [i for i, output in enumerate(outputs) if output.requires_grad]
        if not tracked:
            raise InvalidInputError(
                f"argument {wanted[0]} of {self.task.name} requires a gradient, and nothing that its reference returns has "
                "a grad_fn: compute it by operations that autograd follows"
            )
        output_gradients = [self._output_gradient(outputs[i], alter) for i in tracked]
        gradients = torch.autograd.grad(
            [outputs[i] for i in tracked],
            [values[i] for i in wanted],
            output_gradients,
            allow_unused=True,
            materialize_grads=True,
        )
        return _ExpectedResults(
            outputs=[output.detach().contiguous() for output in outputs],  # what is expanded cannot be copied to
            tracked=tracked,
            output_gradients=output_gradients,
            gradients={i: gradient.contiguous() for i, gradient in zip(wanted, gradients, strict=True)},
        )

    def _output_gradient(self, output: torch.Tensor, alter: Callable[[Any], Any] | None) -> torch.Tensor:
        import torch

        generator = torch.Generator(output.device).manual_seed(self.random.getrandbits(63))
        drawn = torch.randn(output.shape, generator=generator, dtype=output.dtype, device=output.device)
        return drawn if alter is None else alter(drawn)

    def _lay_out(
        self, values: Sequence[Any], expected: _ExpectedResults, offset: int, shift: int, *, twice: bool
    ) -> tuple[_DrawnCall, int]:
        import torch

        kept = _DrawnCall(expected=expected)

        def lay(part: str, value: torch.Tensor, **told: bool) -> torch.Tensor:
            nonlocal offset
            laid, described, offset = self._lay(value, offset, shift)
            kept.described.append({**described, "part": part, **told})
            return laid

        first_output = len(values) - (0 if expected.gradients else self.task.outputs)
        for i, value in enumerate(values):
            if not isinstance(value, torch.Tensor):
                if not isinstance(value, (bool, int, float, str, type(None))):
                    raise InvalidInputError(
                        f"argument {i} of {self.task.name} is a {type(value).__name__}: a search hands over "
                        f"tensors and plain values"
                    )
                kept.described.append({"part": "argument", "value": value})
            elif i >= first_output:
                kept.outputs.append(lay("argument", value, output=True))
            else:
                laid = lay("argument", value, requires_grad=value.requires_grad)
                kept.inputs.append((laid, value.detach()))
        if not expected.gradients:
            return kept, offset
        for part in ("returned", "returned again") if twice else ("returned",):
            for i, value in enumerate(expected.outputs):
                kept.outputs.append(lay(part, value, output=True, tracked=i in expected.tracked))
        for value in expected.output_gradients:
            kept.output_gradients.append((lay("output gradient", value), value))
        for value in expected.gradients.values():
            kept.gradients.append(lay("gradient", value, output=True))
        return kept, offset

    def _lay(self, value: torch.Tensor, offset: int, shift: int) -> tuple[torch.Tensor, Message, int]:
        """Memory for such a tensor, what the worker is told of it, and where the next may begin."""
        import torch

        elements = (
            0 if not value.numel() else 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
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
        described = {
            "offset": offset, "elements": elements, "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape), "stride": list(value.stride()), "shift": shift,
        }  # fmt: skip
        return flat.as_strided(value.shape, value.stride()), described, end + GUARD_BYTES

    def _empty(self, described: Message) -> None:
        """Let an output hold what is nobody's, so that whatever is left unwritten shows: by one thread, for torch's wait
        for each other where other processes have the cores."""
        import numpy as np
        import torch

        dtype = getattr(torch, described["dtype"])
        number = torch.full((1,), nothing(dtype), dtype=dtype).view(torch.uint8).numpy()
        kind = np.dtype(f"u{number.nbytes}")
        np.frombuffer(self.memory, kind, described["elements"], described["offset"])[:] = number.view(kind)

    def judge(self, drawn: Sequence[_DrawnCall], name: str, *, exact: bool = False) -> dict[str, float]:
        """Look at what each call wrote; the error of the worst, see `_error`: of the outputs, and of each gradient.

        Raises:
            WrongError: an output or a gradient differs, an input was written to, or something beside them.
        """
        errors: dict[str, float] = {}
        for one in drawn:
            for place, (laid, value) in enumerate(one.inputs):
                if not _is_kept(laid, value):
                    raise WrongError(f"at {name}: it wrote to an input, argument {place}")
            if not all(_is_kept(laid, value) for laid, value in one.output_gradients):
                raise WrongError(f"at {name}: it wrote to the gradient of an output, which it was given")
            for described in one.described:
                if "offset" in described and self.task.device == "cpu":
                    self._guarded(described, name)
            count = len(one.expected.outputs)
            for i, output in enumerate(one.outputs):
                place = i % count
                expected = one.expected.outputs[place]
                where = name if i < count else f"{name}, after the backward pass"
                tolerances = (0.0, 0.0) if exact else self._tolerances(place)
                error = self._error(output.to(expected.device), expected, tolerances, f"at {where}", place)
                errors[name] = max(error, errors.get(name, 0.0))
            share = self._gradients_share(one.expected)
            of_arguments = zip(one.gradients, one.expected.gradients.items(), strict=True)
            for place, (gradient, (argument, expected)) in enumerate(of_arguments, count):
                where = f"{name}, the gradient of argument {argument}"
                if expected.count_nonzero() and not gradient.count_nonzero():
                    raise WrongError(f"at {where}: it is missing, or zero throughout, and the reference's is not")
                tolerances = (0.0, 0.0) if exact else (share, share * _usual(expected))
                error = self._error(gradient.to(expected.device), expected, tolerances, f"at {where}", place)
                errors[where] = max(error, errors.get(where, 0.0))
        return errors

    def _tolerances(self, place: int) -> tuple[float, float]:
        """Of an output, relative and absolute."""
        return self.task.tolerances[min(place, len(self.task.tolerances) - 1)]

    def _gradients_share(self, expected: _ExpectedResults) -> float:
        """How far an element of a gradient may be off, as a share of itself and of what is usual in the gradient.

        It is that of the outputs that it comes of, the widest of them. Their absolute tolerances say nothing of a
        gradient, which may be far smaller or larger; so they count as shares of what is usual in an output, if that is
        more than one.
        """
        shares = []
        for place in expected.tracked:
            relative, absolute = self._tolerances(place)
            shares += [relative, absolute / max(1.0, _usual(expected.outputs[place]))]
        return max(shares, default=0.0)

    def _error(
        self, output: torch.Tensor, expected: torch.Tensor, tolerances: tuple[float, float], where: str, place: int
    ) -> float:
        """See `_error` below. Where the seed is off by the rounding of terms that nearly cancel, that is no error of any."""
        try:
            rounding = place in self.baseline.rounds and any(tolerances)
            return _error(output, expected, tolerances, where, rounding=rounding)
        except WrongError:
            if not self.is_seed or not any(tolerances):
                raise
        error = _error(output, expected, tolerances, where, rounding=True)
        self.baseline.rounds.add(place)
        return error

    def _guarded(self, described: Message, name: str) -> None:
        import torch

        start = described["offset"]
        end = start + described["elements"] * torch.empty(0, dtype=getattr(torch, described["dtype"])).element_size()
        for at in (start - GUARD_BYTES, end):
            zone = self.memory[at : at + GUARD_BYTES]
            if zone.count(GUARD) != GUARD_BYTES:
                raise WrongError(f"at {name}: it wrote outside its arguments")

    # What is asked of a candidate -----------------------------------------------------------------------------------

    def check(self, asked: Iterable[Question]) -> None:
        """Call it as each question says.

        Raises:
            WrongError: it is wrong somewhere where the seed is right.
        """
        for one in asked:
            if one.shifted:
                where = f"{one.name}, at shifted addresses"
                self._like_the_seed(self.baseline.shifts, where, one.name, one.sizes, shift=SHIFT)
            elif one.of_zeros_and_ones:
                where = f"{one.name}, of zeros and ones"
                self._like_the_seed(self.baseline.exact, where, one.name, one.sizes, alter=_zeros_and_ones, exact=True)
            else:
                drawn = self._draw_enough(one)
                try:
                    self.launch(drawn, self.timeout_s)
                except _IncomparableError as err:
                    if not self.is_seed:
                        raise
                    raise InvalidInputError(
                        f"inputs of {self.task.name} require gradients, and {err}: let it return its outputs, computed by "
                        "operations that autograd follows, such as a torch.autograd.Function; or make the backward pass a "
                        "task of its own, whose outputs are the gradients"
                    ) from None
                self._precise(self.judge(drawn, one.name))

    def _draw_enough(self, one: Question) -> list[_DrawnCall]:
        """As many calls as an error is told by, where they are small: that of a few elements is luck of the inputs."""
        drawn = self.draw([(one.name, one.sizes)], twice=True)
        expected = drawn[0].expected
        sizes = [t.numel() for t in (*expected.outputs, *expected.gradients.values()) if t.numel()]
        calls = min(-(-MAX_SETS // min(sizes, default=MAX_SETS)), SMALL_BYTES // self._bytes(drawn))
        return drawn if calls <= 1 else self.draw([(one.name, one.sizes)] * calls, twice=True)

    def _precise(self, errors: Mapping[str, float]) -> None:
        for where, error in errors.items():
            if self.is_seed:
                self.baseline.errors[where] = max(error, self.baseline.errors.get(where, 0.0))
            elif error > max(1.0, PRECISION_RATIO * self.baseline.errors.get(where, 0.0)):
                raise WrongError(
                    f"at {where}: its error is {error:.2g} units in the last place on average, the seed's "
                    f"{self.baseline.errors.get(where, 0.0):.2g}: it computes in lower precision"
                )

    def _like_the_seed(
        self, passed: dict[str, bool], where: str, name: str, sizes: Sizes, *, exact: bool = False, **how: Any
    ) -> None:
        """Ask for what the seed can do; what it cannot, nobody must."""
        if not self.is_seed and not passed.get(name, False):
            return
        try:
            drawn = self.draw([(name, sizes)], twice=True, **how)
            if exact and not all(_is_whole(one.expected) for one in drawn):
                passed[name] = False  # a logarithm or a quotient is rounded, by each program in its way
                return
            self.launch(drawn, self.timeout_s)
            self.judge(drawn, where, exact=exact)
        except (WrongError, WorkerRaisedError):
            if not self.is_seed:
                raise
            passed[name] = False
        else:
            passed.setdefault(name, True)

    def time(self, name: str, sizes: Sizes, best_us: float | None) -> list[float]:
        """Times of a launch in microseconds, one for each batch, by the caller's clock; on a GPU by events, bounded
        by it."""
        took_s, bytes_each = self._warm_up(name, sizes)
        count = self._batch_size(name, took_s, bytes_each)
        floor_us = self._floor_us(name, sizes)
        samples: list[float] = []
        beyond: list[float] = []  # of each batch, see `_beyond_us`
        contradictions = _Contradictions(most_s=self.timeout_s)
        while len(samples) < BATCHES:
            launch_us, took_s = self._time_batch(name, sizes, count)
            if self.task.device != "cpu":
                beyond.append(_beyond_us(launch_us, took_s, count))
                if self._is_contradicted(name, launch_us, took_s, count):
                    contradictions.add(name, launch_us, took_s, count)
                    continue
            if launch_us < LIGHT_RATIO * floor_us:
                raise _ImplausiblyFastError(
                    f"at {name}: a launch took {launch_us:.3g} us, and the device needs {floor_us:.3g} us at "
                    "least: it did its work at another time"
                )
            samples.append(launch_us)
            if best_us is not None and len(samples) >= SLOW_BATCHES and min(samples) > SLOW_RATIO * best_us:
                break
        if self.is_seed and beyond:
            self.baseline.overhead_us[name] = statistics.median(beyond)
        return samples

    def _warm_up(self, name: str, sizes: Sizes) -> tuple[float, int]:
        """Launch it twice, and set the time limit of later launches. What a first one compiles or loads is no time of it.

        Returns:
            the seconds that the second launch took, and the bytes of its arguments.
        """
        for _ in range(2):
            drawn = self.draw([(name, sizes)])
            took_s, _ = self.launch(drawn, self.timeout_s)
            self._precise(self.judge(drawn, name))
        if self.is_seed:
            self.baseline.time_s[name] = took_s
        self.timeout_s = max(TIMEOUT_FLOOR_S, TIMEOUT_RATIO * MAX_SETS * self.baseline.time_s.get(name, took_s))
        return took_s, self._bytes(drawn)

    def _batch_size(self, name: str, took_s: float, bytes_each: int) -> int:
        """Launches in a batch: as many as last `BATCH_S`, if so many sets of arguments fit the memory."""
        if self.task.device != "cpu":  # so many launches as of the seed, for what one hides is bounded by the batch
            took_s = self.baseline.time_s.get(name, took_s)
        return int(max(1, min(MAX_SETS, BATCH_S / max(took_s, 1e-6), self.size // bytes_each - 1)))

    def _time_batch(self, name: str, sizes: Sizes, count: int) -> tuple[float, float]:
        """Launch so often, each on inputs of its own, and look at what was written.

        Returns:
            microseconds of a launch, and the seconds that all took by the caller's clock.
        """
        idle_s = self._idle_s() if self.task.device == "cpu" else 0.0
        drawn = self.draw([(name, sizes)] * count)
        took_s, answer = self.launch(drawn, self.timeout_s)
        self._precise(self.judge(drawn, name))
        if self.task.device == "cpu":
            return 1e6 * max(took_s - idle_s, RESOLVED * took_s) / count, took_s
        return self._claimed_us(name, answer, count), took_s

    def _claimed_us(self, name: str, answer: Message, count: int) -> float:
        """What a launch took by the worker's events, in microseconds: the median of a batch."""
        claimed = answer.get("claimed_us")
        if (
            not isinstance(claimed, list)
            or len(claimed) != count
            or not all(isinstance(c, float) and c > 0 for c in claimed)
        ):
            raise WrongError(f"at {name}: it reports no times")
        return float(statistics.median(claimed))

    def _is_contradicted(self, name: str, claimed_us: float, took_s: float, count: int) -> bool:
        """Whether events and the caller's clock do not go together: the seed's do, whatever they say."""
        if self.is_seed:
            return False
        most_us = OVERHEAD_RATIO * self.baseline.overhead_us.get(name, 0.0) + OVERHEAD_US
        return count * claimed_us > 1.05e6 * took_s + OVERHEAD_US or _beyond_us(claimed_us, took_s, count) > most_us

    def _idle_s(self) -> float:
        """What going on and a message there and back take, without a launch; the least that was seen."""
        times = []
        for _ in range(3):
            self.worker.pause()
            times.append(self._run(0, self.timeout_s)[0])
        if self.is_seed:
            self.baseline.idle_s = min(self.baseline.idle_s, *times)
        return min(self.baseline.idle_s, *times)

    def _bytes(self, drawn: Sequence[_DrawnCall]) -> int:
        tensors: list[torch.Tensor] = []
        for one in drawn:
            tensors += [*one.outputs, *one.gradients, *(laid for laid, _ in (*one.inputs, *one.output_gradients))]
        taken: int = sum(t.numel() * t.element_size() + 2 * GUARD_BYTES + ALIGNMENT for t in tensors)
        return taken + 1

    def _floor_us(self, name: str, sizes: Sizes) -> float:
        """The least time that the device's peaks allow for the work; 0 where either is unknown.

        Of bytes on a GPU alone: what a CPU's caches hold, it need not move. Of operations by the fastest units, on
        operands as small as the smallest argument.
        """
        if self.task.work is None:
            return 0.0
        if name not in self.baseline.floors_us:
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
            self.baseline.floors_us[name] = max(compute_us, moved_us if moves else 0.0)
        return self.baseline.floors_us[name]


def as_outputs(returned: Any) -> list[Any]:
    """What a call returned, one by one."""
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _beyond_us(claimed_us: float, took_s: float, count: int) -> float:
    """What a launch took beyond the device's own time, in microseconds.

    The caller's clock counts what a message takes too, and that the device spins first, once more than there are launches
    (`trial._run`). Both are the seed's as well.
    """
    return (1e6 * took_s - count * claimed_us) / (1 + count)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor


def _is_kept(laid: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a tensor in shared memory holds what was drawn."""
    import torch

    return bool(torch.equal(_bits(_flat(laid).to(value.device)), _bits(_flat(value))))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor, or what it is expanded from, as it lies in memory: elements that are one cannot be copied to."""
    for axis in reversed(range(tensor.dim())):
        if tensor.shape[axis] > 1 and tensor.stride(axis) == 0:
            tensor = tensor.select(axis, 0)
    return tensor


def _usual(tensor: torch.Tensor) -> float:
    """The root mean square of the elements that are finite."""
    import torch

    values = tensor.double()
    return float(torch.where(values.isfinite(), values, 0.0).square().mean().sqrt()) if values.numel() else 0.0


def _error(
    output: torch.Tensor, expected: torch.Tensor, tolerances: tuple[float, float], where: str, *, rounding: bool
) -> float:
    """How far an output is from what is expected: the root mean square, in units of the last place of what is usual in it.

    Args:
        tolerances: relative, and absolute.
        rounding: whether an element may also be off by one such unit.
    Raises:
        WrongError: an element is off by more than it may be. NaN is like nothing but NaN.
    """
    import torch

    if not output.is_floating_point():
        if wrong := int((output != expected.to(output.dtype)).sum()):
            raise WrongError(f"{where}: {wrong} of {output.numel()} elements are wrong")
        return 0.0
    if not output.numel():
        return 0.0
    mine, its = output.double(), expected.double()
    usual = _usual(expected)
    # Numbers below the normal ones are no closer to each other, as gradients of a mean in half precision show
    unit = torch.finfo(output.dtype).eps * max(usual, torch.finfo(output.dtype).tiny)
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
        raise WrongError(f"{where}: {wrong} of {output.numel()} elements are wrong{far}{unwritten}")
    finite_error = torch.where(error.isfinite(), error, 0.0)
    return float(finite_error.square().mean().sqrt()) / unit if usual else 0.0


def _is_whole(expected: _ExpectedResults) -> bool:
    """Whether all values are whole numbers, as sums of products of zeros and ones are."""
    import torch

    return all(
        torch.equal(tensor, tensor.round()) if tensor.is_floating_point() else not tensor.is_complex()
        for tensor in (*expected.outputs, *expected.gradients.values())
    )


def _zeros_and_ones(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or bool(value.isnan().any()):
        return value
    if not value.is_contiguous():
        return value
    drawn = torch.randint(0, 2, value.shape, device=value.device).to(value.dtype)
    return drawn.as_strided(value.shape, value.stride()).requires_grad_(value.requires_grad)
