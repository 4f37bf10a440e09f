"""What a candidate launches, described before it is compiled: one in Triton is called on tensors without data, in a box, and
one in CUDA is read (`cuda_descriptions.py`).

A worker loads a text, notes the launches that it would make under each of its configs, and describes them as those of a
decorated kernel are (`features/launch_features.py`). It has no GPU, and the answer is numbers by name: a candidate that
makes up its own misleads forecasts, and nothing else. So a text in Triton that a model wrote has a worker to itself. Of
texts in CUDA nothing is run, so all share workers.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.hardware import Hardware
from ..core.outcome import Failure
from ..processes.channel import Channel, Message
from ..store.encoding import encode_hardware
from . import without_gpu
from .candidate import Candidate
from .cuda_descriptions import CudaPreparer, serve_cuda_descriptions, told_of
from .run_folders import remove
from .runners import Loadable, Preparer, PythonPreparer
from .task import SearchTask
from .trial import load
from .turns import turn_at_device

log = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_S = 20.0  # for all that a worker is asked about; one config takes 0.05 s
SHARES = without_gpu.BESIDE  # of the texts that share workers: to start a worker takes longer than to describe a config
MOST = 1e30  # of any number: means and ratios of several are numbers still

Features = Mapping[str, float]
Described = Mapping[str, Features | None]
"""By the name of a size what is launched there: nothing where the candidate refuses the size, None where nobody can tell."""


def describer_of(task: SearchTask, hardware: Hardware, folder: Path) -> CandidateDescriber | None:
    """What describes a task's candidates; None where nothing can: in C++, and on a CPU."""
    is_read = task.language == "cuda" and hardware.kind != "cpu" and task.recipe is not None
    return CandidateDescriber(task, hardware, folder) if is_read or without_gpu.can_tell(task, hardware) else None


class CandidateDescriber:
    """Describes candidates of one task on one kind of hardware, each once.

    Args:
        task: what is searched for, in Triton or CUDA.
        hardware: what is described for.
        folder: where the texts are written, and workers get a folder each.
    """

    def __init__(self, task: SearchTask, hardware: Hardware, folder: Path) -> None:
        self._folder, self._is_read = folder, task.language == "cuda"
        self._preparer: Preparer = CudaPreparer(task) if self._is_read else PythonPreparer(task, folder)
        told = told_of if self._is_read else without_gpu.without_data
        with turn_at_device(task.device, alone=False):
            self._calls = {
                name: [told(value) for value in task.make_inputs(sizes, 0, task.device)]
                for name, sizes in task.sizes.items()
            }
        self._hardware = encode_hardware(hardware)
        self._known: dict[str, Described] = {}  # by digest
        # Where a worker ends, code of the candidate's own may have raised; in CUDA none ran.
        self._untold: Described = dict.fromkeys(self._calls) if self._is_read else {}

    def describe(self, candidates: Sequence[Candidate]) -> list[Described]:
        """Of each candidate the features of its launches by the name of a size; see `Described`."""
        texts: dict[str, list[Candidate]] = {}
        for one in {c.digest: c for c in candidates if c.digest not in self._known}.values():
            texts.setdefault(one.source_digest, []).append(one)
        if texts:
            self._learn(list(texts.values()))
        return [self._known.get(one.digest, self._untold) for one in candidates]

    def _learn(self, texts: Sequence[Sequence[Candidate]]) -> None:
        """Have candidates described: each text in Triton that a model wrote by a worker of its own, others by a few workers,
        and what those ended at by its own."""
        shared = [text for text in texts if self._is_read or all(one.by_rules for one in text)]
        shares = [[one for text in shared[i::SHARES] for one in text] for i in range(min(SHARES, len(shared)))]
        try:
            with without_gpu.side_by_side(self._folder) as beside:
                for groups in ([*shares, *(text for text in texts if text not in shared)], shared):
                    left = [new for group in groups if (new := [one for one in group if one.digest not in self._known])]
                    list(beside.threads.map(lambda group: self._tell(group, beside), left))
            self._known.update(
                {one.digest: self._untold for text in texts for one in text if one.digest not in self._known}
            )
        except OSError as err:
            log.warning("candidates are forecast without descriptions: %s", err)

    def _tell(self, group: Sequence[Candidate], beside: without_gpu.SideBySide) -> None:
        """Learn what a worker says of candidates; nothing of those that it ends at."""
        try:
            made = [(one, self._preparer.prepare(one)) for one in group]
            ready = [(one, loadable) for one, loadable in made if not isinstance(loadable, Failure)]
            folder = Path(tempfile.mkdtemp(prefix="description-", dir=beside.folder))
            try:
                loadables = [loadable for _, loadable in ready]
                for (one, _), described in zip(ready, self._described(loadables, folder, beside.watch), strict=True):
                    self._known[one.digest] = described
            finally:
                remove(folder)
        except without_gpu.FINDS_NOTHING as err:
            log.info("a candidate is forecast without a description: %r", err)

    def _described(self, made: Sequence[Loadable], folder: Path, watch: Callable[[], None]) -> Iterator[Described]:
        """Each as it is described by a worker; raises where that ends or takes too long."""
        if not made:
            return
        serve = serve_cuda_descriptions if self._is_read else serve_descriptions
        with without_gpu.start(serve, made, folder, self._hardware, self._calls) as worker:
            until = time.monotonic() + DESCRIBE_TIMEOUT_S
            for _ in made:
                yield _checked(worker.receive(max(0.0, until - time.monotonic()), watch)["described"], self._calls)


def over_sizes(described: Described, sizes: Sequence[str]) -> Features:
    """One description of a candidate at several sizes: of each number its geometric mean, as times are; the mean of one that
    may be 0. Empty where a size is not described."""
    each = [features for name in sizes if (features := described.get(name))]
    if not each or len(each) < len(sizes):
        return {}
    return {name: _mean([one[name] for one in each]) for name in each[0] if all(name in one for one in each)}


def _mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if min(values) > 0 else statistics.fmean(values)


def _checked(described: Any, calls: Mapping[str, Any]) -> Described:
    """An answer, as far as it has the form of one: a candidate may have written it."""
    if not isinstance(described, dict):
        return {}
    return {
        size: None
        if features is None
        else {
            name: float(value)
            for name, value in features.items()
            if isinstance(name, str) and type(value) in (int, float) and 0 <= value <= MOST
        }
        for size, features in described.items()
        if size in calls and (features is None or isinstance(features, dict))
    }


# The worker's side -----------------------------------------------------------------------------------------------------


def serve_descriptions(channel: Channel, request: Message) -> None:
    """Close the box, load what is asked for, and describe its launches. Runs in a worker."""
    from ..compilers.triton_launches import launches, static_features
    from ..frontends.triton.simulated_driver import rehearsal

    hardware = without_gpu.begin(channel, request)

    def features(call: Callable[..., Any], values: Sequence[Message], device: str = "cuda") -> Features:
        try:
            return static_features(launches(call, without_gpu.fakes(values, device), {}), hardware)
        except Exception:  # it refuses the size, or needs data to tell
            log.debug("a call is not described", exc_info=True)
            return {}

    channel.send({"ready": True})
    for message in request["loads"]:
        described: dict[str, Features] = {}
        try:
            call = load(message)
        except Exception:  # its check will say so
            log.debug("%s does not load", message["path"], exc_info=True)
        else:
            with rehearsal(hardware=hardware):  # some ask their device how large it is
                described = {
                    name: features(call, values) or features(call, values, "cpu")
                    for name, values in request["calls"].items()
                }
        channel.send({"described": described})
