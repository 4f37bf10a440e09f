"""What a Triton candidate launches, compiled before it is checked: by a boxed worker without a GPU, which calls it on
tensors without data. So nobody who waits for the device waits for a compiler.

The worker fills a folder as Triton does, and who checks the candidate carries it over. What the worker does not find out is
compiled where it runs.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.hardware import Hardware
from ..processes.box import TRITON_FOLDER
from ..processes.channel import Channel, Message
from ..processes.endings import WorkerDiedError, WorkerRaisedError, WorkerTimeoutError
from ..store.encoding import encode_hardware
from . import without_gpu
from .exam import SHIFT, Question
from .runners import Loadable
from .task import SearchTask
from .trial import load

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0  # for all that one candidate launches; what takes longer is compiled where it runs


def compiler_of(task: SearchTask, hardware: Hardware, folder: Path) -> AheadCompiler | None:
    """What compiles a task's candidates ahead; None in C++ and CUDA, which are built, and on a CPU."""
    return AheadCompiler(task, hardware, folder) if without_gpu.can_tell(task, hardware) else None


class AheadCompiler:
    """Compiles candidates of one task for one kind of hardware.

    Args:
        task: what is searched for, in Triton.
        hardware: what is compiled for.
        folder: where workers get a folder each.
    """

    def __init__(self, task: SearchTask, hardware: Hardware, folder: Path) -> None:
        self._task, self._folder = task, folder
        self._hardware = encode_hardware(hardware)
        self._calls: dict[tuple[str, bool], list[Message]] = {}

    @contextlib.contextmanager
    def compiled(self, wanted: Sequence[tuple[Loadable, Sequence[Question]]]) -> Iterator[list[Path | None]]:
        """Folders of Triton's, while they are needed: one for each candidate, with what it launches at these questions."""
        calls = [self.draw(questions) for _, questions in wanted]
        with contextlib.ExitStack() as held:
            try:
                beside = held.enter_context(without_gpu.side_by_side(self._folder))
            except OSError as err:
                log.info("candidates are compiled where they run: %s", err)
                yield [None] * len(wanted)
                return
            made = beside.threads.map(lambda one, its: self._made(one, its, beside), [one for one, _ in wanted], calls)
            yield list(made)

    def draw(self, questions: Sequence[Question]) -> list[list[Message]]:
        """The arguments of a call at each, none twice: what is compiled for zeros and ones is no other. What was not drawn
        yet is drawn on the task's device."""
        for one in questions:
            if (one.name, one.shifted) not in self._calls:
                values = self._task.make_inputs(one.sizes, 0, self._task.device)
                shift = SHIFT if one.shifted else 0
                self._calls[one.name, one.shifted] = [without_gpu.without_data(value, shift) for value in values]
        return [self._calls[at] for at in dict.fromkeys((one.name, one.shifted) for one in questions)]

    def _made(
        self, candidate: Loadable, calls: Sequence[Sequence[Message]], beside: without_gpu.SideBySide
    ) -> Path | None:
        try:
            folder = Path(tempfile.mkdtemp(prefix="compiled-", dir=beside.folder))
            with (
                without_gpu.start(
                    serve_compiling, [candidate], folder, self._hardware, calls, may_start=True
                ) as worker,
                contextlib.suppress(WorkerDiedError, WorkerRaisedError, WorkerTimeoutError),  # what it made is there
            ):
                worker.receive(TIMEOUT_S, beside.watch)
        except without_gpu.FINDS_NOTHING as err:
            log.info("a candidate is compiled where it runs: %r", err)
            return None
        return folder / TRITON_FOLDER


# The worker's side -----------------------------------------------------------------------------------------------------


def serve_compiling(channel: Channel, request: Message) -> None:
    """Close the box, load a candidate, and compile what it would launch. Runs in a worker."""
    from ..compilers.triton_launches import launches
    from ..compilers.triton_source import compile_here, make_source
    from ..frontends.triton.simulated_driver import rehearsal

    hardware = without_gpu.begin(channel, request)
    channel.send({"ready": True})
    call = load(request["loads"][0])
    made = set()
    with rehearsal(hardware=hardware) as device:
        for values in request["calls"]:
            # It may refuse the size, need data, or not compile: its check will tell.
            with contextlib.suppress(Exception):
                for each in launches(call, without_gpu.fakes(values, "cuda"), {}):
                    source = make_source(each.kernel, each.args, each.kwargs, device.target)
                    if source.hash not in made:
                        made.add(source.hash)
                        compile_here(source)
    channel.send({"compiled": len(made)})
