"""What a worker is told of candidates in CUDA, and how it describes them: their texts are read, and nothing of them runs.

A text is read by a worker all the same: one may be made so that reading it takes all time or memory, or includes files
that are none of its business.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..compilers.cpp_recipe import SOURCE_KNOB, picked, with_headers
from ..core.outcome import Failure
from ..errors import InvalidInputError
from ..features.cuda_features import Argument, CudaText, argument
from ..processes.channel import Channel, Message
from . import without_gpu
from .candidate import Candidate
from .nvcc_flags import without_flags
from .runners import Loadable
from .task import SearchTask


class CudaPreparer:
    """Makes of a candidate the texts that are compiled together, and what they find defined; see `runners.Preparer`."""

    def __init__(self, task: SearchTask) -> None:
        if task.recipe is None:
            raise InvalidInputError(f"{task.name} has no recipe, by which its binding and its macros are known")
        self._task, self._recipe = task, task.recipe
        self._folders = [path for name in self._recipe.include_folders if os.path.isdir(path := os.path.abspath(name))]

    def prepare(self, candidate: Candidate) -> Loadable | Failure:
        """See `Preparer`."""
        binding = picked(self._recipe.cpp_sources, candidate.config.knobs.get(SOURCE_KNOB))
        texts = [*(with_headers(text, self._folders) for text in binding), without_flags(candidate.source)]
        message = {
            "texts": texts,
            "folders": self._folders,
            "function": self._task.name,
            "macros": self._recipe.macros(candidate.config),
        }
        return Loadable(
            message=message,
            readable=tuple(self._folders),
            by_rules=candidate.by_rules,
        )


def told_of(value: Any) -> Message:
    """An argument of a call as a worker is told of it: a number, or a tensor's shape, strides and dtype."""
    known = argument("", value)
    return {"number": known.number, "layout": known.layout}


def _argument(number: int, told: Message) -> Argument:
    if told["layout"] is None:
        return Argument(str(number), told["number"])
    shape, stride, dtype = told["layout"]
    return Argument(str(number), layout=(tuple(shape), tuple(stride), dtype))


# The worker's side -----------------------------------------------------------------------------------------------------


def serve_cuda_descriptions(channel: Channel, request: Message) -> None:
    """Close the box, and describe the launches of what is asked for; each text is read once. Runs in a worker."""
    hardware = without_gpu.begin(channel, request)
    calls = {name: [_argument(i, told) for i, told in enumerate(values)] for name, values in request["calls"].items()}
    channel.send({"ready": True})
    read: dict[tuple[str, ...], CudaText] = {}
    for message in request["loads"]:
        texts = tuple(message["texts"])
        if texts not in read:
            read[texts] = CudaText(texts, message["folders"])
        described: Mapping[str, Mapping[str, float] | None] = {
            name: read[texts].features(message["function"], arguments, message["macros"], hardware)
            for name, arguments in calls.items()
        }
        channel.send({"described": described})
