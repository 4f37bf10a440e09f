"""What a run returned, told by what is nested how and whose memory it lies in."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from deadline import DeadlineError, deadline_in

from forecast_autotune.measure import outputs
from forecast_autotune.measure.buffers import Buffers
from forecast_autotune.measure.copies import CopiedArguments
from forecast_autotune.measure.outputs import gradients_of, outputs_of, shared_memory


def test_a_tensor_is_told_by_the_argument_or_result_whose_memory_it_shares() -> None:
    arguments = CopiedArguments((torch.ones(4), torch.ones(4)), names=("x", "y"))
    (_, y), _ = arguments.values()
    own = torch.ones(4)
    items = outputs_of([own, 3, own[1:], y, y[2:], torch.ones(0)], arguments).form["items"]
    assert [item.get("within") for item in items] == [[], None, [], ["y"], ["y"], []]
    assert [item.get("shares") for item in items] == [None, None, 0, None, 3, None]


def test_memory_that_two_calls_results_share_is_found_but_for_arguments() -> None:
    arguments = CopiedArguments((torch.ones(4),), names=("x",))
    (x,), _ = arguments.values()
    kept = torch.ones(4)
    (shared,) = shared_memory([torch.ones(4), kept, x, 1], [kept[1:], x, torch.ones(4), 1], arguments)
    assert shared.data_ptr() == kept[1:].data_ptr()


class Counted(list[Any]):
    """A list that counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return super().__iter__()


@pytest.mark.parametrize("of", [outputs_of, lambda r, a: shared_memory(r, r, a)], ids=["outputs", "shared memory"])
def test_many_results_are_looked_up_by_their_addresses(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [torch.ones(2) for _ in range(200)]
    looked_at: list[object] = []
    has_memory = outputs._has_memory
    monkeypatch.setattr(outputs, "_has_memory", lambda t: looked_at.append(t) or has_memory(t))  # type: ignore[func-returns-value]
    arguments = Buffers(Counted(CopiedArguments([results]).buffers))
    of(results, arguments)
    assert len(looked_at) <= 4 * len(results), "twice each"
    assert arguments.buffers.times <= 4  # type: ignore[attr-defined]


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004  # torch's signature
        return x / 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradient * math.exp(-math.log(2))


def test_what_a_handler_of_signals_raises_in_a_backward_pass_is_no_result() -> None:
    halved = Halved.apply(torch.ones(2, requires_grad=True))
    with deadline_in(math, "exp"), pytest.raises(DeadlineError):
        gradients_of([halved], {})
