"""Tasks whose inputs require gradients; those of candidates that cheat are in `test_attacks.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import differentiable
import pytest
import torch
from differentiable import program
from doubling import task as doubling_task

from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search.examiner import Examiner, Result
from forecast_autotune.program_search.runners import PythonPreparer
from forecast_autotune.program_search.task import SearchTask

pytestmark = pytest.mark.skipif(bool(lacking()), reason=f"no box here: {lacking()}")


class Tries:
    """Tries programs for a task, the seed first."""

    def __init__(self, folder: Path, task: SearchTask) -> None:
        self.task = task
        self.examiner = Examiner(task, detect_hardware("cpu"), folder)
        self.preparer = PythonPreparer(task, folder)

    def seed(self) -> Result:
        return self(self.task.source, is_seed=True)

    def __call__(self, source: str, *, is_seed: bool = False) -> Result:
        made = self.preparer.prepare(replace(self.task.seed, source=source, by_rules=False))
        assert not isinstance(made, Failure)
        return self.examiner.examine(made, is_seed=is_seed)


def failed(result: Result) -> str:
    assert isinstance(result.outcome, Failure), result
    return result.outcome.message


def test_a_launch_is_timed_with_its_backward_pass(tmp_path: Path) -> None:
    tries = Tries(tmp_path, differentiable.task())
    assert isinstance(tries.seed().outcome, Measurement)
    assert isinstance(tries(program(forward="return x * w")).outcome, Measurement)
    slow = tries(program(before="import time", backward="time.sleep(0.01)\nreturn g * w, g * x, None")).outcome
    assert isinstance(slow, Measurement)
    assert slow.median_us > 10_000


def test_the_seeds_error_bounds_that_of_each_gradient_apart(tmp_path: Path) -> None:
    half = "return g * w, (g.half() * x).float(), None"
    tries = Tries(tmp_path, differentiable.task(source=program(backward=half)))
    assert isinstance(tries.seed().outcome, Measurement)
    assert isinstance(tries(tries.task.source.replace("range(0,", "range(0 ,")).outcome, Measurement)
    other = tries(program(backward="return (g.half() * w).float(), g * x, None"))
    assert "the gradient of argument 0: its error" in failed(other)


def of_a_small_weight(share: float) -> str:
    return program(forward="return 1 + 1e-5 * x * w", backward=f"return {share} * g * w, 1e-5 * g * x, None")


def test_a_gradient_far_below_the_outputs_is_compared_at_its_own_scale(tmp_path: Path) -> None:
    """Within the absolute tolerance of an output of one; and at a corner no precision is asked for."""
    searched = differentiable.task(source=of_a_small_weight(1e-5), reference=lambda x, w: 1 + 1e-5 * x * w)
    tries = Tries(tmp_path, searched)
    assert isinstance(tries.seed().outcome, Measurement)
    off = of_a_small_weight(1e-5).replace("return 1e-05", "return (1e-5 if len(x) > 1 else 0.9e-5)")
    assert off != of_a_small_weight(1e-5)
    assert "at one, the gradient of argument 0: 1 of 1 elements are wrong" in failed(tries(off))


def test_of_zeros_and_ones_gradients_are_exact(tmp_path: Path) -> None:
    tries = Tries(tmp_path, differentiable.task())
    assert isinstance(tries.seed().outcome, Measurement)
    off = "found = g * w\nfound[0] += (x[0] == x[0].round()).float() * 1e-3\nreturn found, g * x, None"
    assert "of zeros and ones, the gradient of argument 0" in failed(tries(program(backward=off)))


def test_an_input_without_effect_has_a_gradient_of_zeros_or_none(tmp_path: Path) -> None:
    backwards = {
        None: "return 2 * g, None, None",
        Measurement: "return 2 * g, torch.zeros_like(w), None",
        Failure: "return 2 * g, torch.ones_like(w), None",
    }
    none, zeros, ones = (program(forward="return 2 * x", backward=text) for text in backwards.values())
    tries = Tries(tmp_path, differentiable.task(source=none, reference=lambda x, w: 2 * x))
    assert isinstance(tries.seed().outcome, Measurement)
    assert isinstance(tries(zeros).outcome, Measurement)
    assert "the gradient of argument 1: 20000 of 20000 elements are wrong" in failed(tries(ones))


def test_outputs_that_autograd_does_not_follow_are_compared_too(tmp_path: Path) -> None:
    call = "y = Product.apply(x, w, PARTS)\nreturn y, (x > w).long()"
    searched = differentiable.task(source=program(call=call), reference=lambda x, w: (x * w, (x > w).long()))
    tries = Tries(tmp_path, searched)
    assert isinstance(tries.seed().outcome, Measurement)
    assert "elements are wrong" in failed(tries(program(call=call.replace(">", "<"))))


def test_of_a_sum_and_of_what_is_expanded_gradients_are_compared(tmp_path: Path) -> None:
    call, off = "return x.sum(), w[:1].expand(len(w))", "return x.sum() + x[0] - x[0].detach(), w[:1].expand(len(w))"
    searched = differentiable.task(source=program(call=call), reference=lambda x, w: (x.sum(), w[:1].expand(len(w))))
    tries = Tries(tmp_path, searched)
    assert isinstance(tries.seed().outcome, Measurement)
    assert "the gradient of argument 0: 1 of 20000 elements are wrong" in failed(tries(program(call=off)))


def test_half_precision_and_an_input_without_a_gradient(tmp_path: Path) -> None:
    def make_inputs(sizes: Mapping[str, Any], seed: int, device: str) -> tuple[Any, ...]:
        x, w = differentiable.make_inputs(sizes, seed, device)
        return x.detach().half().requires_grad_(), w.detach().half()

    tries = Tries(tmp_path, differentiable.task(make_inputs=make_inputs))
    assert isinstance(tries.seed().outcome, Measurement)
    assert isinstance(tries(program(backward="return g * w, None, None")).outcome, Measurement)


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        ("x.detach() * w.detach()\n", r"returns None, where the reference returns float32 \[20000\]"),
        ("return Product.apply(x, w, PARTS).detach()", r"returns float32 \[20000\] without a grad_fn, where"),
        ("return Product.apply(x, w, PARTS), x", r"returns float32 \[20000\], float32 \[20000\], where"),
        ("return Product.apply(x, w, PARTS).half()", r"returns float16 \[20000\], where"),
        ("return Product.apply(x, w, PARTS).sum()", r"returns float32 \[\], where"),
        ("return ()", "returns nothing, where"),
    ],
)
def test_a_seed_that_cannot_be_differentiated_is_refused_with_what_to_do(tmp_path: Path, call: str, seen: str) -> None:
    tries = Tries(tmp_path, differentiable.task(source=program(call=call)))
    with pytest.raises(InvalidInputError, match=f"inputs of product require gradients, and it {seen}.*autograd"):
        tries.seed()


def test_a_call_that_writes_to_its_outputs_is_refused_with_what_to_do(tmp_path: Path) -> None:
    def make_inputs(sizes: Any, seed: int, device: str) -> tuple[Any, ...]:
        return torch.ones(sizes["n"], requires_grad=True), torch.empty(sizes["n"])

    source = "def double(x, out, *, PARTS):\n    out.copy_(2 * x.detach())\n"
    tries = Tries(tmp_path, doubling_task(source=source, make_inputs=make_inputs))
    with pytest.raises(
        InvalidInputError, match=r"of double require gradients, and it returns None.*backward pass a task"
    ):
        tries.seed()


def test_a_reference_that_cannot_be_differentiated_is_refused(tmp_path: Path) -> None:
    tries = Tries(tmp_path, differentiable.task(reference=lambda x, w: (x * w).detach()))
    with pytest.raises(InvalidInputError, match="nothing that its reference returns has a grad_fn"):
        tries.seed()


def test_gradients_are_compared_where_the_caller_has_turned_autograd_off(tmp_path: Path) -> None:
    tries = Tries(tmp_path, differentiable.task())
    with torch.no_grad():
        assert isinstance(tries.seed().outcome, Measurement)


@pytest.mark.parametrize("kind", ["one tensor twice", "expanded", "masks", "a mean in half precision"])
def test_inputs_and_outputs_of_other_kinds_are_compared(kind: str, tmp_path: Path) -> None:
    def make_inputs(sizes: Mapping[str, Any], seed: int, device: str) -> tuple[Any, ...]:
        x, w = differentiable.make_inputs(sizes, seed, device)
        if kind == "one tensor twice":
            return x, x
        if kind == "expanded":
            return x.detach()[:1].expand(len(x)).requires_grad_(), w
        return (x.detach().half().requires_grad_(), w.detach()) if kind.startswith("a mean") else (x, w)

    def reference(x: Any, w: Any) -> Any:
        if kind.startswith("a mean"):
            return (x.float() / 100).mean().half()
        return (x * w, x > w) if kind == "masks" else x * w

    call = "return x * w, x > w" if kind == "masks" else "return x * w"
    source = program(call=call)
    if kind.startswith("a mean"):  # a step of the smallest numbers off at most
        away = "found = g.float() / (100 * len(x)) * 2**24\nfound = found.sign() * found.abs().ceil() / 2**24\n"
        backward = f"{away}return found.half().expand(len(x)), torch.zeros_like(w), None"
        source = program(forward="return (x.float() / 100).mean().half()", backward=backward)
    searched = differentiable.task(source=source, make_inputs=make_inputs, reference=reference)
    tries = Tries(tmp_path, searched)
    assert isinstance(tries.seed().outcome, Measurement)
    if kind != "a mean in half precision":
        assert "the gradient of argument 1: " in failed(
            tries(program(call=call.replace("x * w", "x * w * 2 - x * w.detach()")))
        )


def test_a_reference_that_returns_no_tensor_is_told(tmp_path: Path) -> None:
    tries = Tries(tmp_path, differentiable.task(reference=lambda x, w: (x * w, None)))
    with pytest.raises(InvalidInputError, match="returns a NoneType"):
        tries.seed()
