"""A task without a compiler: `out = 2 x`, in Python, so that a candidate is any text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from forecast_autotune.core.space import Space
from forecast_autotune.program_search.examiner import CheckReport, Result
from forecast_autotune.program_search.runners import Loadable
from forecast_autotune.program_search.task import SearchTask

SOURCE = """
import torch


def double(x, out, *, PARTS):
    step = max(1, -(-len(x) // PARTS))
    for start in range(0, len(x), step):
        torch.mul(x[start : start + step], 2, out=out[start : start + step])
"""
SIZES = {"large": {"n": 20_000}}


def make_inputs(sizes: Mapping[str, Any], seed: int, device: str) -> tuple[Any, ...]:
    import torch

    random = torch.Generator().manual_seed(seed)
    return torch.rand(sizes["n"], generator=random) + 1, torch.empty(sizes["n"])


def reference(x: Any, out: Any) -> Any:
    return 2 * x


def task(**others: Any) -> SearchTask:
    """The task; `others` replace its fields. Tolerances are wide, as those of kernels in half precision are."""
    sys.modules.setdefault("doubling", sys.modules[__name__])
    given: dict[str, Any] = {
        "name": "double", "language": "triton", "source": SOURCE,
        "spaces": {"plain": Space.grid({"PARTS": [8, 1, 2, 4, 16, 32, 64]}, roles={"PARTS": "tile"})},
        "sizes": SIZES, "held_out": {"odd": {"n": 3_333}}, "corners": {"one": {"n": 1}},
        "make_inputs": make_inputs, "reference": reference, "tolerances": ((1e-2, 1e-3),),
        "module": "doubling", "entries": {"plain": "double"},
    }  # fmt: skip
    return SearchTask(**{**given, **others})


class Unchecked:
    """What an examiner that examines by a table makes of a check; `checked_beside` says how many were checked at once."""

    def __init__(self) -> None:
        self.checked_beside: list[int] = []

    @contextmanager
    def checked(
        self, candidates: Sequence[Loadable], timings: int = 1, *, everywhere: bool = True
    ) -> Iterator[list[CheckReport]]:
        self.checked_beside.append(len(candidates))
        yield [CheckReport(everywhere=everywhere) for _ in candidates]

    def examine_all(self, candidates: Sequence[Loadable], **how: Any) -> list[Result]:
        with self.checked(candidates, everywhere=False):
            return [self.examine(one) for one in candidates]

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def time(self, made: Loadable, checked: CheckReport, *, best_us: Any = None, sizes: Any = None) -> Result:
        return self.examine(made, sizes=sizes)

    def examine(self, made: Loadable, *, sizes: Any = None, is_seed: bool = False) -> Result:
        raise NotImplementedError


TASK = task()
