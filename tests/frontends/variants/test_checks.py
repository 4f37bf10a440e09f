"""What makes a variant wrong beside its numbers, and what tuning leaves alone: inputs, state, gradients, other threads."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import itertools
import random
import re
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forecast_autotune as fa
from forecast_autotune.errors import TuningWarning

torch = pytest.importorskip("torch")

LAZY_S = 0.004  # long against what a busy machine adds to a sample


def slowed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def slow(*args: Any) -> Any:
        time.sleep(LAZY_S)
        return function(*args)

    slow.__name__ = "slow"
    return slow


@contextlib.contextmanager
def beside_threads(count: int) -> Iterator[None]:
    """While this is held, the program has another thread, or none."""
    with ThreadPoolExecutor(1) as pool:
        for _ in range(count):
            pool.submit(int).result()
        yield


def chosen(function: Any) -> str:
    (decision,) = function.decisions.values()
    return str(decision.config["variant"])


def failure_of(function: Any, *args: Any) -> str:
    """Why the one variant that failed did."""
    function(*args)
    (message,) = (o.message for o in function.tuned.outcomes(args).values() if hasattr(o, "message"))
    return str(message)


# Inputs are real, and nobody's but the caller's ---------------------------------------------------------------------

READ_ONLY = """
import ctypes, mmap, os, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl
import forecast_autotune as fa

libc, held = ctypes.CDLL(None, use_errno=True), []

def read_only(n):
    memory = mmap.mmap(-1, max(mmap.PAGESIZE, 4 * n))
    tensor = torch.frombuffer(memory, dtype=torch.float32, count=n)
    tensor.copy_(torch.arange(float(n)))
    held.append(memory)
    size = ctypes.c_size_t(len(memory))
    assert libc.mprotect(ctypes.c_void_p(tensor.data_ptr()), size, mmap.PROT_READ) == 0
    return tensor

@fa.autotune(configs=[triton.Config({"BLOCK": b}) for b in (256, 512)], key=["n"], check="allclose")
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

x, n = read_only(1024), 1024
assert torch.equal(fa.variants([lambda x: x * 2, lambda x: x + x])(x), 2 * x)
for y in (torch.zeros(n), 2 * x):  # one that holds the answer already
    double[lambda knobs: (triton.cdiv(n, knobs["BLOCK"]),)](x, y, n)
    assert torch.equal(y, 2 * x)
    double.cache.clear()
    os.environ["FORECAST_AUTOTUNE_BUDGET"] = "all"
print("done", [d.tried for d in double.decisions.values()])
"""


def test_inputs_on_read_only_pages_are_tuned_on(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(READ_ONLY)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(tmp_path / "program.py")], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "done [2]\n"), ran.stderr


def test_no_other_thread_sees_an_input_change() -> None:
    x, over, sums = torch.rand(4096), threading.Event(), set()

    def watch() -> None:
        while not over.is_set():
            sums.add(float(x.sum()))

    thread = threading.Thread(target=watch)
    thread.start()
    fa.variants([slowed(lambda x: x * 2), lambda x: x + x])(x)
    over.set()
    thread.join()
    assert sums <= {float(x.sum())}


def test_what_another_thread_adds_to_an_argument_meanwhile_stays() -> None:
    weights, runs = torch.zeros(8), itertools.count()
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()

        def updated(w: Any) -> Any:
            other.submit(weights.add_, 1).result()
            next(runs)
            return w * 2

        double = fa.variants([updated, lambda w: w + w], check=None)
        double(weights)
    assert weights.tolist() == [float(next(runs))] * 8


def test_what_another_thread_adds_to_state_meanwhile_stays() -> None:
    served, runs = torch.zeros(8), itertools.count()
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()

        def beside(x: Any) -> Any:
            other.submit(served.add_, 1).result()
            next(runs)
            return x * 2

        double = fa.variants([beside, lambda x: beside(x) + 0])
        double(torch.ones(8))
    assert served.tolist() == [float(next(runs))] * 8
    assert next(iter(double.decisions.values())).failed == 0


def converging(x: Any) -> Any:
    y = x
    for _ in range(1000):
        following = 0.5 * (y + x / y)
        if (following - y).abs().max() < 1e-6:
            return following
        y = following
    raise AssertionError("it would never end")


def guarded(x: Any) -> Any:
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    return x.sqrt()


TABLE = torch.arange(10.0).sqrt()


def looks_up(x: Any) -> Any:
    return TABLE[(x * 5).long()]


@pytest.mark.parametrize("default", [converging, guarded, looks_up])
def test_the_default_gets_real_numbers_only_and_wrong_variants_are_caught(default: Callable[..., Any]) -> None:
    x = torch.rand(100) / 2 + 1
    tuned = fa.variants([slowed(default), lambda x: x * 3], name=default.__name__)
    assert torch.equal(tuned(x), default(x))
    assert chosen(tuned) == "slow"


def test_memory_is_not_mistaken_for_an_output_of_an_in_place_default() -> None:
    def in_place(x: Any) -> None:
        x.copy_(converging(x))

    x = torch.rand(100) + 1
    tuned = fa.variants([slowed(in_place), lambda x: x.copy_(x.sqrt()) and None])
    expected = x.sqrt()
    tuned(x)
    torch.testing.assert_close(x, expected)
    (decision,) = tuned.decisions.values()
    assert decision.tried == 2


# What is compared beside values -------------------------------------------------------------------------------------


def test_one_huge_element_lets_nothing_else_pass() -> None:
    x, mask = torch.randn(64, 64), torch.ones(64, 64, dtype=torch.bool).triu(1)
    scores = fa.variants(
        [
            slowed(lambda x, mask: (x @ x.T).masked_fill(mask, -1e9)),
            lambda x, mask: torch.zeros_like(x).masked_fill(mask, -1e9),
        ]
    )
    assert "elements differ" in failure_of(scores, x, mask)


class Image(torch.Tensor):  # type: ignore[misc]
    """A subclass as vision libraries have them."""


@pytest.mark.parametrize(
    ("default", "other", "says"),
    [
        (lambda x: (x * 2, None), lambda x: x * 2, "the result is Tensor, the default's tuple"),
        (lambda x: (x * 2, None), lambda x: (x * 2, x), r"the result\[1\] is Tensor, the default's None"),
        (lambda x: [x], lambda x: (x,), "the result is tuple, the default's list"),
        (lambda x: (x + 1, "mean"), lambda x: (x + 1, "max"), r"the result\[1\] is 'max', the default's 'mean'"),
        (lambda x: {"a": x + 1, "b": x}, lambda x: {"b": x + 1, "a": x}, "elements differ"),
        (lambda x: {"a": x + 1}, lambda x: {"c": x + 1}, "the result has the keys 'c', the default's 'a'"),
        (lambda x: x.sum().item(), lambda x: x.sum(), "the result is Tensor, the default's float"),
        (lambda x: x.clone(), lambda x: x, "lies in the memory of x, the default's of none"),
        (lambda x: (x + 1, x + 1), lambda x: ((x + 1),) * 2, "output 1 shares memory with output 0"),
        (lambda x: x @ x, lambda x: (x.T @ x.T).T, "has the strides 1, 8, the default's 8, 1"),
        (lambda x: (x + 1).as_subclass(Image), lambda x: x + 1, "output 0 is a Tensor, the default's a Image"),
    ],
)
def test_what_is_returned_must_be_built_and_placed_alike(default: Any, other: Any, says: str) -> None:
    tuned = fa.variants([slowed(default), other])
    with torch.no_grad():
        message = failure_of(tuned, torch.rand(8, 8))
    assert re.search(says, message), message


def test_a_variant_whose_results_do_not_stay_is_wrong() -> None:
    workspace: dict[Any, Any] = {}

    def kept(x: Any) -> Any:
        return torch.mul(x, 2, out=workspace.setdefault(x.shape, torch.empty_like(x)))

    tuned = fa.variants([slowed(lambda x: x * 2), kept])
    assert "its next call returns the memory of an earlier result" in failure_of(tuned, torch.rand(8))
    # Nor do the default's here.
    both = fa.variants([slowed(kept), kept], name="both")
    both(torch.rand(8))
    assert chosen(both) == "kept"


@pytest.mark.parametrize("inference", [False, True])
def test_a_variant_that_returns_what_it_keeps_is_right(inference: bool) -> None:
    kept: dict[int, Any] = {}

    def table(x: Any) -> Any:
        return torch.arange(64.0).view(8, 8).t()[::2]

    def cached(x: Any) -> Any:
        if not kept:
            kept[0] = table(x)
        return kept[0]

    tuned = fa.variants([slowed(table), cached])
    with torch.inference_mode(inference):
        tuned(torch.rand(8))
    assert chosen(tuned) == "cached"
    assert torch.equal(kept[0], table(None)), "as it was, to the bit"


def read_only(folder: Path) -> Any:
    path = folder / "table.bin"
    path.write_bytes(bytes(range(64)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the memory may not be written to
        return torch.from_numpy(np.memmap(path, dtype=np.float32, mode="r"))


@pytest.mark.parametrize(
    "table", [lambda _: torch.arange(8), lambda _: torch.ones(8, 8).tril() > 0, read_only], ids=["ids", "mask", "file"]
)
def test_what_it_keeps_may_be_of_any_kind(table: Callable[[Path], Any], tmp_path: Path) -> None:
    kept: dict[str, Any] = {}

    def cached(x: Any) -> Any:
        if not kept:
            kept["table"] = table(tmp_path)
        return kept["table"]

    tuned = fa.variants([slowed(lambda x: table(tmp_path)), cached])
    tuned(torch.rand(8))
    assert chosen(tuned) == "cached"


def test_a_variant_that_writes_integers_to_what_it_keeps_is_wrong() -> None:
    kept: dict[str, Any] = {}

    def counted(x: Any) -> Any:
        if not kept:
            kept["ids"] = torch.empty(8, dtype=torch.int64)
        return torch.arange(8, out=kept["ids"])

    tuned = fa.variants([slowed(lambda x: torch.arange(8)), counted])
    assert "its next call returns the memory" in failure_of(tuned, torch.rand(8))


def test_a_variant_that_writes_a_part_of_what_it_keeps_is_wrong() -> None:
    kept: dict[str, Any] = {}

    def fresh(x: Any) -> Any:
        return torch.cat([x[None], torch.ones(3, 8)])

    def partly(x: Any) -> Any:
        if not kept:
            kept["rows"] = torch.ones(4, 8)
        kept["rows"][0] = x
        return kept["rows"]

    assert "its next call returns the memory" in failure_of(fa.variants([slowed(fresh), partly]), torch.rand(8))
    assert torch.equal(kept["rows"][1:], torch.ones(3, 8))


def test_a_variant_whose_result_autograd_cannot_save_is_wrong() -> None:
    tuned = fa.variants([slowed(torch.no_grad()(lambda x: x * 2)), torch.inference_mode()(lambda x: x * 2)])
    assert "output 0 is of inference mode: True, the default's: False" in failure_of(tuned, torch.rand(8))


def test_a_dict_in_another_order_with_the_same_values_passes() -> None:
    tuned = fa.variants([slowed(lambda x: {"a": x + 1, "b": x * 2}), lambda x: {"b": x * 2, "a": x + 1}])
    tuned(torch.rand(8))
    assert chosen(tuned) == "<lambda>"


class Point:
    def __init__(self, x: Any, mark: str = "") -> None:
        self.x, self.mark, self.itself = x, mark, self


@pytest.mark.parametrize(
    ("default", "other", "says"),
    [
        (lambda x: Point(x + 1), lambda x: Point(x + 2), "elements differ"),
        (lambda x: torch.distributions.Normal(x, 1.0), lambda x: torch.distributions.Normal(x + 1, 1.0), "differ"),
        (lambda x: Point(x + 1, "a"), lambda x: Point(x + 1, "b"), r"the result\['?mark'?\] is 'b'"),
        (lambda x: {"a", "b"}, lambda x: {"a"}, "the result is {'a'}, the default's {'a', 'b'}"),
        (
            lambda x: 2**70,
            lambda x: 2**71,
            "the result is 2361183241434822606848, the default's 1180591620717411303424",
        ),
    ],
)
def test_objects_sets_and_huge_integers_are_looked_into(default: Any, other: Any, says: str) -> None:
    message = failure_of(fa.variants([slowed(default), other]), torch.rand(8))
    assert re.search(says, message), message


def test_a_generator_cannot_be_compared_so_the_default_runs() -> None:
    tuned = fa.variants([slowed(lambda x: (x + i for i in range(3))), lambda x: (x - i for i in range(3))])
    with pytest.warns(TuningWarning, match="cannot look into what the default config returns, a generator"):
        results = list(tuned(torch.ones(2)))
    assert results[2].tolist() == [3.0, 3.0]
    assert not tuned.decisions


def test_a_coroutine_cannot_be_compared_and_none_is_left_unawaited() -> None:
    async def doubled(x: Any) -> Any:
        return x * 2

    async def added(x: Any) -> Any:
        return x + x

    tuned = fa.variants([doubled, added])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", TuningWarning)
        assert asyncio.run(tuned(torch.ones(2))).tolist() == [2, 2]


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 8))

    def forward(self, x: Any) -> Any:
        time.sleep(LAZY_S)
        return x @ self.weight

    def detached(self, x: Any) -> Any:
        return x @ self.weight.detach()


def test_a_gradient_that_does_not_reach_what_the_defaults_does_is_wrong() -> None:
    module = Linear()
    tuned = fa.variants([module.forward, module.detached])
    assert tuned(torch.rand(4, 8)).requires_grad
    x, w = (torch.rand(8, 8, requires_grad=True) for _ in range(2))
    partly = fa.variants([slowed(lambda x, w: x @ w), lambda x, w: x @ w.detach()])
    assert "gradients reach x, the default's w, x" in failure_of(partly, x, w)
    listed = fa.variants([slowed(lambda xs: torch.cat(xs)), lambda xs: torch.cat([xs[0], xs[1].detach()])], key=len)
    assert listed([x, w]).requires_grad
    listed([x, w]).sum().backward()
    assert w.grad is not None


def test_a_decision_made_without_gradients_is_not_used_where_weights_learn() -> None:
    module, x = Linear(), torch.rand(4, 8)
    tuned = fa.variants([module.forward, module.detached])
    with torch.no_grad():
        tuned(x)
    assert chosen(tuned) == "detached"
    assert tuned(x).requires_grad


def test_training_mode_of_a_module_is_part_of_the_key() -> None:
    dropout, x = torch.nn.Dropout().eval(), torch.ones(1000)
    tuned = fa.variants([slowed(lambda x: dropout(x) * 1), lambda x: x * 1])
    assert tuned(x).all()
    assert chosen(tuned) == "<lambda>"
    dropout.train()
    assert not tuned(x).all()


def test_the_callers_graph_can_still_be_walked_backwards() -> None:
    w = torch.ones(4, requires_grad=True)
    scales = (w * w).exp()
    tuned = fa.variants([slowed(lambda x: x * scales), lambda x: scales * x])
    tuned(torch.ones(4)).sum().backward()
    assert w.grad is not None


def test_a_gradient_of_another_value_is_wrong() -> None:
    x = torch.rand(8, requires_grad=True)
    tuned = fa.variants([slowed(lambda x: x * 2), lambda x: x + x.detach()])
    assert "the gradient of x: 8 of 8 elements differ" in failure_of(tuned, x)
    assert x.grad is None


@pytest.mark.parametrize(("times", "is_right"), [(1, True), (0, False), (2, False)])
def test_what_a_backward_pass_writes_is_compared(times: int, is_right: bool) -> None:
    w, mean = torch.rand(4, requires_grad=True), torch.zeros(())

    def watched(y: Any, times: int = 1) -> Any:
        for _ in range(times):
            y.register_hook(lambda g: (mean.mul_(0.9).add_(0.1 * g.abs().mean()), None)[1])
        return y

    tuned = fa.variants([slowed(lambda x: watched(x * w)), lambda x: watched(w * x, times)])
    tuned(torch.rand(4)).sum().backward()
    assert float(mean) == pytest.approx(0.1)
    assert next(iter(tuned.decisions.values())).failed == int(not is_right)


def product(x: Any, w: Any) -> Any:
    return torch.relu(x @ w) @ w


def cut_product(x: Any, w: Any) -> Any:
    hidden = torch.relu(x @ w)
    return torch.cat([hidden[:, :4], hidden[:, 4:].detach()], 1) @ w


def checkpointed(x: Any, w: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(product, x, w, use_reentrant=True)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: torch.compile(product, backend="aot_eager", dynamic=True), "donated_buffer=False"),
        (lambda: checkpointed, "use_reentrant=False"),
    ],
    ids=["compiled", "checkpointed"],
)
def test_a_default_whose_gradients_cannot_be_had_is_not_tuned(make: Any, told: str) -> None:
    tuned = fa.variants([slowed(make()), cut_product])
    x, w = torch.rand(8, 8, requires_grad=True), torch.rand(8, 8, requires_grad=True)
    with pytest.warns(TuningWarning, match=told):
        tuned(x, w).sum().backward()
    assert not tuned.decisions
    gradient, w.grad = w.grad, None
    product(x, w).sum().backward()
    torch.testing.assert_close(gradient, w.grad)


def test_variants_that_work_in_place_leave_the_gradient_right() -> None:
    x = torch.ones(4, requires_grad=True)
    double = fa.variants([lambda h: h.mul_(2), lambda h: h.add_(h)])
    y = double(x * 1)
    y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([2.0] * 4, [2.0] * 4)


# State beside the arguments -----------------------------------------------------------------------------------------


def out_of_sight(graph: Any, inputs: Any) -> Any:
    """A backend of `torch.compile` whose code runs no operator that a mode sees, as kernels do not."""
    from torch.utils._python_dispatch import _disable_current_modes

    def run(*args: Any) -> Any:
        with _disable_current_modes():
            return graph(*args)

    return run


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_state_of_a_module_is_as_after_one_call(others: int, is_compiled: bool) -> None:
    x = torch.randn(64, 8) + 3
    untuned, norm = torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(8)

    def other(x: Any) -> Any:
        norm.num_batches_tracked.add_(1)
        mean, variance = norm.running_mean, norm.running_var
        return torch.batch_norm(x, norm.weight, norm.bias, mean, variance, True, 0.1, 1e-5, False)

    def first(x: Any) -> Any:
        return norm(x)

    compiled = torch.compile(first, backend=out_of_sight) if is_compiled else first
    tuned = fa.variants([compiled, other])
    with beside_threads(others):
        torch.testing.assert_close(tuned(x), untuned(x))
    assert int(norm.num_batches_tracked) == 1
    torch.testing.assert_close(norm.running_mean, untuned.running_mean)
    assert next(iter(tuned.decisions.values())).failed == 0


@pytest.mark.parametrize("by_argument", [False, True])
def test_a_lazy_module_is_initialized_at_its_first_call_and_then_tuned(by_argument: bool) -> None:
    def call(x: Any, module: Any) -> Any:
        return module(x).relu()

    x, lazy = torch.rand(4, 8), torch.nn.LazyLinear(8)
    if by_argument:
        tuned = fa.variants([slowed(call), lambda x, module: torch.relu(module(x))], key="x")
        given = x, lazy
    else:
        tuned = fa.variants([slowed(lambda x: call(x, lazy)), lambda x: torch.relu(lazy(x))])
        given = (x,)
    torch.manual_seed(7)
    result, following = tuned(*given), torch.rand(1)
    assert not tuned.decisions
    torch.manual_seed(7)
    torch.testing.assert_close(result, call(x, torch.nn.LazyLinear(8)))
    assert torch.equal(following, torch.rand(1))
    torch.testing.assert_close(tuned(*given), result)
    assert chosen(tuned) == "<lambda>"


def test_a_variant_changing_state_the_default_leaves_is_wrong_and_undone() -> None:
    state = torch.zeros(4)
    tuned = fa.variants([slowed(lambda x: x + 1), lambda x: state.add_(1) * 0 + x + 1])
    assert "wrote to state, which the default leaves as it was" in failure_of(tuned, torch.rand(4))
    assert not state.any()


@pytest.mark.parametrize("order", [1, -1])
def test_weights_that_are_also_an_argument_are_as_after_each_call(order: int) -> None:
    weight = torch.zeros(4)

    def first(_one: Any, _other: Any, gradient: Any) -> Any:
        weight.sub_(gradient * 0.1)
        return gradient * 1

    def second(_one: Any, _other: Any, gradient: Any) -> Any:
        weight.add_(gradient, alpha=-0.1)
        return gradient * 1

    tuned = fa.variants([first, second], key="gradient")
    for _ in range(3):
        tuned(*[weight, torch.rand(4)][::order], torch.ones(4))
    torch.testing.assert_close(weight, torch.full((4,), -0.3))


def test_every_state_of_one_name_is_put_back() -> None:
    def made(w: Any) -> Any:
        def count(x: Any) -> Any:
            w.add_(1)
            return x * 2

        return count

    a, b = torch.zeros(2), torch.zeros(2)
    tuned = fa.variants([made(a), made(b)], check=None)
    tuned(torch.ones(2))
    assert sorted([a.tolist(), b.tolist()]) == [[0.0] * 2, [1.0] * 2]


def test_arguments_that_no_variant_reaches_are_not_written() -> None:
    given = [torch.zeros(4), torch.zeros(4)]
    tuned = fa.variants([lambda tensors: tensors[0] * 2, lambda tensors: tensors[0] + tensors[0]])
    stop = threading.Event()
    counts: list[None] = []

    def train() -> None:  # as another process that shares this memory, whose writes no operator shows
        shared = given[0].numpy()
        while not stop.is_set():
            shared += 1
            counts.append(None)

    trainer = threading.Thread(target=train)
    trainer.start()
    tuned(given)
    stop.set()
    trainer.join()
    assert given[0].tolist() == [float(len(counts))] * 4


def test_a_state_in_a_dict_is_timed_at_the_calls_own_size() -> None:
    sizes = []

    def by_row(state: Any, x: Any) -> Any:
        state["rows"] = torch.cat([state["rows"], x])
        sizes.append(len(state["rows"]))
        return state["rows"].sum()

    state = {"rows": torch.ones(1, 8)}
    tuned = fa.variants([by_row, slowed(by_row)], key="x")
    tuned(state, torch.ones(1, 8))
    assert len(sizes) > 10
    assert set(sizes) == {2}
    assert len(state["rows"]) == 2
    assert chosen(tuned) == "by_row"


def test_what_empties_its_arguments_is_tuned() -> None:
    def drain(rows: Any) -> Any:
        total = torch.zeros(8)
        while rows:
            total = total + rows.pop()
        return total

    def at_once(rows: Any) -> Any:
        total = torch.stack(rows).sum(0)
        rows.clear()
        return total

    tuned, rows = fa.variants([slowed(drain), at_once]), [torch.ones(8) for _ in range(4)]
    assert tuned(rows).tolist() == [4.0] * 8
    assert rows == []
    assert chosen(tuned) == "at_once"


def test_what_is_packed_once_in_an_argument_is_timed_packed() -> None:
    calls, packs = [], []

    def plain(x: Any, kept: Any) -> Any:
        kept["rows"].append(x)
        return x @ kept["weight"]

    def packing(x: Any, kept: Any) -> Any:
        calls.append(None)
        kept["rows"].append(x)
        if "packed" not in kept:
            packs.append(None)
            kept["packed"] = kept["weight"].t().contiguous().t()
        return x @ kept["packed"]

    tuned = fa.variants([slowed(plain), packing], key="x")
    tuned(torch.ones(2, 2), {"weight": torch.ones(2, 2), "rows": []})
    assert chosen(tuned) == "packing"
    assert len(packs) < len(calls) / 2


def test_a_backward_pass_within_variants_counts_once() -> None:
    def first(x: Any, w: Any) -> Any:
        loss = (x @ w).square().sum()
        loss.backward()
        return loss.detach()

    def second(x: Any, w: Any) -> Any:
        loss = (x @ w).pow(2).sum()
        loss.backward()
        return loss.detach()

    x, w, inner = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    tuned = fa.variants([first, second])
    tuned(x, w)
    assert w.grad.tolist() == [[8.0] * 2] * 2
    assert next(iter(tuned.decisions.values())).failed == 0
    held = fa.variants([lambda x: first(x, inner), lambda x: second(x, inner)])
    held(x)
    assert inner.grad.tolist() == [[8.0] * 2] * 2
    skipping = fa.variants([slowed(first), lambda x, w: (x @ w.detach()).square().sum()])
    fresh = torch.ones(2, 2, requires_grad=True)
    assert "gradients reach nothing, the default's w.grad" in failure_of(skipping, x, fresh)


class Averaging(torch.nn.Module):
    """It keeps state by putting other objects where it had some, and a table that the first call makes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.hidden: Any = None
        self.seen: list[Any] = []
        self.table: Any = None
        self.calls = 0
        self.tuned = fa.variants([self.first, self.second, self.forgetful], name="averaging")

    def first(self, x: Any) -> Any:
        time.sleep(LAZY_S)
        return self.second(x)

    def second(self, x: Any) -> Any:
        if self.table is None:
            self.table = torch.arange(8.0)
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        self.hidden = (x.sum(0) if self.hidden is None else self.hidden[0] + x.sum(0),)
        self.seen.append(x * 1)
        self.calls += 1
        return torch.cat(self.seen).sum(0) + self.hidden[0] - self.mean + self.table

    def forgetful(self, x: Any) -> Any:
        mean = self.mean
        y = self.second(x)
        self.mean = mean
        return y


@pytest.mark.parametrize("others", [0, 1])
def test_what_a_call_rebinds_is_as_after_one_call(others: int) -> None:
    x = torch.randn(4, 8) + 3
    untuned = Averaging()
    expected = [untuned.second(x) for _ in range(2)]
    for _ in ("tuned", "recalled"):
        averaging = Averaging()
        before = averaging.seen
        with beside_threads(others):
            results = [averaging.tuned(x)]
        results.append(averaging.tuned(x))
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close(averaging.mean, untuned.mean)
        assert (averaging.seen is before, len(before)) == (True, 2)
        assert list(averaging.state_dict()) == list(untuned.state_dict())
        assert averaging.calls == 2
        assert next(iter(averaging.tuned.decisions.values())).failed == 1


def test_a_variant_that_does_not_rebind_what_the_default_does_is_wrong() -> None:
    averaging = Averaging()
    assert "left Averaging.mean as it was, which the default writes" in failure_of(averaging.tuned, torch.rand(4, 8))


@pytest.mark.parametrize("others", [0, 1])
def test_storages_that_each_call_exchanges_come_back(others: int) -> None:
    def averaged(average: Any, weight: Any) -> Any:
        average.data = average.data * 0.5 + weight.data * 0.5
        return average + 1

    weight, average = torch.ones(2, 4), torch.zeros(4, 2).t()
    memory = average.data_ptr()

    def exchanging(x: Any) -> Any:
        return averaged(average, weight) * x

    def in_place(x: Any) -> Any:
        return average.mul_(0.5).add_(weight, alpha=0.5).add(1) * x

    def forgetful(x: Any) -> Any:
        return averaged(average.clone(), weight) * x

    tuned = fa.variants([slowed(exchanging), in_place, forgetful], name="averaged")
    with beside_threads(others):
        x = torch.ones(2, 4)
        assert "left average as it was, which the default writes" in failure_of(tuned, x)
    assert (average.unique().tolist(), chosen(tuned), average.data_ptr()) == ([0.5], "in_place", memory)
    assert torch.equal(tuned(x), torch.full((2, 4), 1.75))


def test_what_the_first_call_creates_is_neither_timed_nor_compared() -> None:
    class Keeping:
        table: Any = None

        def make(self) -> Any:
            time.sleep(5 * LAZY_S)
            return torch.arange(8.0)

        def slow(self, x: Any) -> Any:
            time.sleep(LAZY_S)
            return x * torch.arange(8.0)

        def quick(self, x: Any) -> Any:
            if self.table is None:
                self.table = self.make()
            return x * self.table

    keeping = Keeping()
    tuned = fa.variants([keeping.slow, keeping.quick])
    tuned(torch.rand(8))
    assert chosen(tuned) == "quick"
    defaults = fa.variants([keeping.quick, keeping.slow], name="defaults")
    keeping.table = None
    defaults(torch.rand(8))
    decision = next(iter(defaults.decisions.values()))
    assert (chosen(defaults), decision.failed) == ("quick", 0)


def test_what_the_first_call_does_once_is_done_once() -> None:
    """Flags, caches, files and handles stay as a run leaves them: what they stand for is done."""
    done, opened, held = itertools.count(), itertools.count(), {"is_ready": False, "scale": torch.ones(1)}
    memo: dict[int, Any] = {}

    class Layer(torch.nn.Module):
        is_packed, handle = False, 0

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8), requires_grad=False)

        def forward(self, x: Any) -> Any:
            if not held["is_ready"]:
                held["is_ready"] = next(done) == 0
            if not self.is_packed:
                self.weight.data, self.is_packed = self.weight.data / 2, True
                self.register_forward_hook(lambda module, given, result: result * 2)
            if x.shape[0] not in memo:
                memo[x.shape[0]] = torch.arange(8.0), next(opened)
            self.handle = self.handle + 1
            self.scores = x * self.weight  # for who wants to look at them
            return self.scores + memo[x.shape[0]][0]

    layer, x = Layer(), torch.ones(8)

    def fused(x: Any) -> Any:
        expected = layer(x)
        layer.scores = None
        return expected

    tuned = fa.variants([slowed(lambda x: layer(x)), fused], name="once")
    for _ in range(2):
        assert torch.equal(tuned(x), 2 * (torch.ones(8) / 2 + torch.arange(8.0)))
    assert (next(done), next(opened), len(layer._forward_hooks)) == (1, 1, 1)
    assert next(iter(tuned.decisions.values())).failed == 0


COUNT = torch.zeros(1)


def test_variables_and_slots_come_back() -> None:
    local, pair = torch.zeros(1), Pair()

    def counting(x: Any) -> Any:
        global COUNT
        nonlocal local
        COUNT, local, pair.left = COUNT + 1, local + 1, x * 2
        return x * 2

    tuned = fa.variants([counting, lambda x: counting(x) + 0])
    x = torch.rand(8)
    tuned(x)
    assert (float(COUNT), float(local)) == (1.0, 1.0)
    assert torch.equal(pair.left, x * 2)
    assert not hasattr(pair, "right")


class Pair:
    __slots__ = ("left", "right")


@pytest.mark.parametrize("others", [0, 1])
def test_what_is_empty_before_the_first_call_comes_back(others: int) -> None:
    last: dict[str, Any] = {}
    seen: list[Any] = []

    def decaying(x: Any) -> Any:
        last["h"] = last["h"] * 0.5 + x if "h" in last else x * 1
        seen.append(x * 1)
        return last["h"] + torch.stack(seen).sum(0)

    tuned = fa.variants([decaying, lambda x: decaying(x) + 0])
    with beside_threads(others):
        assert [float(tuned(torch.ones(1))) for _ in range(3)] == [2.0, 3.5, 4.75]


class Layer:
    keys: Any = None


class LazyCache:
    """Its layers are made by the first call."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.by_name: dict[str, Any] = {}

    def appended(self, x: Any) -> Any:
        if not self.layers:
            self.layers.append(Layer())
        layer = self.layers[0]
        layer.keys = x if layer.keys is None else torch.cat([layer.keys, x])
        self.filled = layer.keys
        return self.filled.mean(0)

    def merged(self, x: Any) -> Any:
        held = self.by_name.setdefault("layer", {})
        held["keys"] = torch.cat([held["keys"], x]) if held else x
        self.filled = held["keys"]
        return self.filled.mean(0)


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("name", ["appended", "merged"])
def test_a_cache_that_the_first_call_makes_and_each_fills_comes_back(name: str, others: int) -> None:
    cache = LazyCache()
    call = getattr(cache, name)
    tuned = fa.variants([slowed(lambda x: call(x)), lambda x: call(x) + 0])
    with beside_threads(others):
        for _ in range(3):
            assert tuned(torch.ones(1, 4)).tolist() == [1.0] * 4
    assert len(cache.filled) == 3
    assert next(iter(tuned.decisions.values())).failed == 0


def test_what_the_first_call_makes_and_each_leaves_alike_is_made_once() -> None:
    """A workspace, an entry that counts who asks for it, packed weights."""

    class Entry:
        def __init__(self) -> None:
            self.table, self.asked = torch.arange(8.0), next(made)

    made, packed = itertools.count(), itertools.count()
    held: dict[str, Any] = {}

    def call(x: Any) -> Any:
        if "workspace" not in held:
            held["workspace"], held["weights"] = torch.empty(8), [torch.ones(8), next(packed)]
        entry = held.setdefault("entry", None) or Entry()
        held["entry"] = entry
        entry.asked += 1
        torch.mul(x, entry.table, out=held["workspace"])
        return held["workspace"] * held["weights"][0]

    tuned = fa.variants([slowed(call), lambda x: call(x) + 0])
    for _ in range(2):
        assert torch.equal(tuned(torch.ones(8)), torch.arange(8.0))
    assert (next(made), next(packed)) == (1, 1)


class Block:
    def __init__(self) -> None:
        self.memory, self.is_freed = torch.zeros(4), False


class Once:
    """What each of its calls does once, by whatever tells that it was done, beside tensors that each call changes."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.weight = torch.nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
        self.seen, self.calls = torch.zeros(4), 0
        self.packed: Any = None
        self.engine: Any = None
        self.block: Any = None

    def counted(self, x: Any) -> Any:
        if self.calls == 0:
            self.done.append("set up")
        self.calls += 1
        self.seen.add_(x)
        return x * 2

    def packing(self, x: Any) -> Any:
        if self.packed is None:
            self.done.append("packed")
            self.weight.data = self.weight.data / 2
            self.packed = types.SimpleNamespace(scale=2.0, most=torch.zeros(4))
        self.packed.most = torch.maximum(self.packed.most, x)
        return x * self.weight * self.packed.scale

    def by_a_flag_elsewhere(self, x: Any) -> Any:
        if not self.done:
            self.done.append("made")
            self.engine = types.SimpleNamespace(last=None)
        self.engine.last = x * 2
        return self.engine.last + 0

    def of_a_pool(self, x: Any) -> Any:
        if self.block is not None:
            assert not self.block.is_freed, "freed twice"
            self.block.is_freed = True
        self.block = Block()
        torch.mul(x, 2, out=self.block.memory)
        return self.block.memory + 0


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("name", ["counted", "packing", "by_a_flag_elsewhere", "of_a_pool"])
def test_what_is_done_once_stays_done(name: str, others: int) -> None:
    once = Once()
    call = getattr(once, name)
    tuned = fa.variants([slowed(lambda x: call(x)), lambda x: call(x) + 0])
    with beside_threads(others):
        for _ in range(3):
            assert tuned(torch.ones(4)).tolist() == [2.0] * 4
    assert len(once.done) == (name != "of_a_pool")


@dataclasses.dataclass(slots=True)
class Cell:
    hidden: Any


@dataclasses.dataclass
class State:
    cells: list[Cell]


@pytest.mark.parametrize("others", [0, 1])
def test_an_object_that_each_call_makes_anew_comes_back(others: int) -> None:
    class Recurrent:
        state = State([Cell(torch.zeros(4))])

        def step(self, x: Any) -> Any:
            self.state = State([Cell(cell.hidden * 0.5 + x) for cell in self.state.cells])
            return self.state.cells[0].hidden * 2

    recurrent, x = Recurrent(), torch.ones(4)
    tuned = fa.variants([slowed(lambda x: recurrent.step(x)), lambda x: recurrent.step(x) + 0])
    with beside_threads(others):
        assert [float(tuned(x)[0]) for _ in range(3)] == [2.0, 3.0, 3.5]


@pytest.mark.parametrize("others", [0, 1])
def test_two_buffers_that_each_call_swaps_come_back(others: int) -> None:
    class Grid:
        def __init__(self) -> None:
            self.now, self.next = torch.arange(8.0), torch.zeros(8)

        def step(self, rate: float) -> Any:
            torch.add(self.now, self.now.roll(1), alpha=rate, out=self.next)
            self.now, self.next = self.next, self.now
            return self.now.clone()

    untuned, grid = Grid(), Grid()
    tuned = fa.variants([slowed(lambda rate: grid.step(rate)), lambda rate: grid.step(rate) + 0], key=lambda rate: 0)
    with beside_threads(others):
        for _ in range(3):
            assert torch.equal(tuned(0.5), untuned.step(0.5))
    assert torch.equal(grid.next, untuned.next)
    assert grid.now is not grid.next


def test_what_another_thread_rebinds_meanwhile_stays() -> None:
    held: dict[str, Any] = {"ours": torch.zeros(8), "theirs": torch.zeros(8)}
    counts = itertools.count()
    with ThreadPoolExecutor(1) as other:

        def serve() -> None:
            held["theirs"] = held["theirs"] + 1
            next(counts)

        other.submit(int).result()

        def beside(x: Any) -> Any:
            other.submit(serve).result()
            held["ours"] = held["ours"] + x
            return x * 2

        double = fa.variants([beside, lambda x: beside(x) + 0])
        double(torch.ones(8))
    assert held["ours"].tolist() == [1.0] * 8
    assert held["theirs"].tolist() == [float(count := next(counts))] * 8
    assert count > 2


class Halving(torch.optim.lr_scheduler.LRScheduler):  # type: ignore[misc]
    def get_lr(self) -> list[float]:
        return [base * 0.5**self.last_epoch for base in self.base_lrs]


SET_UP: list[str] = []


class Signs(torch.optim.Optimizer):  # type: ignore[misc]
    """It counts its steps itself, as packages of optimizers do."""

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, {"lr": lr, "foreach": False})
        self.calls, self.is_ready = 0, False

    @torch.no_grad()
    def step(self) -> None:
        if not self.is_ready:
            SET_UP.append("once")
            self.is_ready = True
        self.calls += 1
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["step"], state["mean"] = 0, torch.zeros_like(weight)
                state["step"] += 1
                state["mean"].mul_(0.9).add_(weight.grad, alpha=0.1)
                weight.sub_(state["mean"].sign() / state["step"], alpha=group["lr"] / self.calls)


class Derived(torch.optim.AdamW):  # type: ignore[misc]
    pass


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, Derived, Signs])
def test_an_optimizer_steps_once(make: Any, others: int) -> None:
    def trained(tuned: bool) -> tuple[Any, Any]:
        weights = [torch.nn.Parameter(torch.ones(8)) for _ in range(4)]
        optimizer = make(weights, lr=0.1)
        own = make in (Derived, Signs)
        schedule = Halving(optimizer) if own else torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for weight in weights:
            weight.grad = torch.ones(8)

        def one_by_one() -> None:
            optimizer.param_groups[0]["foreach"] = False
            optimizer.step()
            schedule.step()

        def at_once() -> None:
            optimizer.param_groups[0]["foreach"] = True
            optimizer.step()
            schedule.step()

        step: Any = fa.variants([one_by_one, at_once], key=lambda: 0, name="step") if tuned else one_by_one
        for _ in range(2):
            step()
        if tuned:
            assert next(iter(step.decisions.values())).failed == 0
        return weights, [*optimizer.state.values(), schedule.get_last_lr()]

    SET_UP.clear()
    torch.testing.assert_close(trained(tuned=True), trained(tuned=False))
    assert len(SET_UP) == (2 if make is Signs else 0), "once for each optimizer"


@pytest.mark.parametrize("others", [0, 1])
def test_state_is_as_after_one_call_where_tuners_are_called(others: int) -> None:
    def called(tuned: bool) -> tuple[Any, ...]:
        double: Any = (
            fa.variants([slowed(lambda x: x * 2), lambda x: x + x], name="double") if tuned else lambda x: x * 2
        )
        weight, packed = torch.nn.Parameter(torch.ones(8)), itertools.count()
        optimizer = torch.optim.AdamW([weight], lr=0.1)
        held: dict[str, Any] = {"seen": torch.zeros(0, 8), "table": None}

        def step(x: Any) -> Any:
            if held["table"] is None:
                held["table"] = torch.full((8,), float(next(packed)))
            held["seen"] = torch.cat([held["seen"], double(x)[None]])
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()
            return held["seen"].sum(0) + held["table"]

        call = fa.variants([slowed(step), step], name="stepping") if tuned else step
        results = [call(torch.ones(8)) for _ in range(2)]
        return results, held, weight, list(optimizer.state.values()), next(packed)

    with beside_threads(others):
        torch.testing.assert_close(called(tuned=True), called(tuned=False))


# What cannot be copied ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch gives quantized tensors up
def test_an_argument_that_cannot_be_copied_runs_the_default_with_a_warning() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.qint8)
    tuned = fa.variants([lambda q: q.dequantize(), lambda q: q.int_repr() * 0.1])
    with pytest.warns(TuningWarning, match="q is a tensor that is quantized") as warned:
        results = [tuned(quantized) for _ in range(2)]
    assert all(torch.equal(result, torch.ones(8)) for result in results)
    assert len([w for w in warned if w.category is TuningWarning]) == 1


def test_an_iterator_among_the_arguments_is_left_for_the_call_itself() -> None:
    tuned = fa.variants([slowed(lambda x, numbers: x * next(numbers)), lambda x, numbers: next(numbers) * x], key="x")
    numbers = iter(range(1, 1000))
    with pytest.warns(TuningWarning, match="numbers is a range_iterator, which can be read once"):
        assert tuned(torch.ones(2), numbers).tolist() == [1.0, 1.0]
    assert next(numbers) == 2


def test_a_generator_of_random_numbers_is_drawn_from_once() -> None:
    drawn, untuned = (torch.Generator().manual_seed(7) for _ in range(2))
    tuned = fa.variants(
        [
            slowed(lambda x, generator: x + torch.rand(4, generator=generator)),
            lambda x, generator: torch.rand(4, generator=generator) + x,
        ],
        key="x",
    )
    assert torch.equal(tuned(torch.zeros(4), drawn), torch.rand(4, generator=untuned))
    assert torch.equal(drawn.get_state(), untuned.get_state())
    assert next(iter(tuned.decisions.values())).failed == 0
    pythons = random.Random(7)
    scaled = fa.variants([slowed(lambda x, r: x * r.random()), lambda x, r: r.random() * x], key="x")
    assert scaled(torch.ones(1, dtype=torch.float64), pythons) == random.Random(7).random()
    held = fa.variants(
        [slowed(lambda x: x + torch.rand(4, generator=drawn)), lambda x: torch.rand(4, generator=drawn) + x]
    )
    assert torch.equal(held(torch.zeros(4)), torch.rand(4, generator=untuned))
    assert torch.equal(drawn.get_state(), untuned.get_state())


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (random.Random, lambda source: source.random()),
        (np.random.default_rng, lambda source: source.random()),
        (np.random.RandomState, lambda source: source.rand()),
        (np.random.PCG64, lambda source: int(source.random_raw()) >> 20),
    ],
)
def test_a_generator_that_is_reached_is_drawn_from_once(make: Callable[[int], Any], draw: Callable[[Any], Any]) -> None:
    drawn, untuned = make(7), make(7)
    tuned = fa.variants([slowed(lambda x: x + draw(drawn)), lambda x: draw(drawn) + x], name="drawing")
    x = torch.zeros(1, dtype=torch.float64)
    assert [float(tuned(x)) for _ in range(3)] == [draw(untuned) for _ in range(3)]
    assert chosen(tuned) == "<lambda>"


@pytest.mark.parametrize("others", [0, 1])
def test_dropout_is_drawn_as_in_a_single_call(others: int) -> None:
    import torch._dynamo

    x, w = torch.rand(64, 64), torch.rand(64, 64, requires_grad=True)

    def wide(x: Any) -> Any:
        return torch.dropout((x * w).relu(), 0.5, True)

    tuned = fa.variants([slowed(wide), lambda x: torch.dropout(torch.mul(x, w).clamp(min=0), 0.5, True)])
    with beside_threads(others):
        torch.manual_seed(7)
        result, following = tuned(x), torch.rand(1)
    assert chosen(tuned) == "<lambda>"
    torch.manual_seed(7)
    torch.testing.assert_close(result, wide(x))
    assert torch.equal(following, torch.rand(1))


def test_containers_of_any_class_among_the_arguments_change_once() -> None:
    def first(x: Any, cache: Any, seen: Any) -> Any:
        cache["sum"] = cache.get("sum", 0) + x
        seen.append(x)
        return x * 2

    tuned = fa.variants([slowed(first), lambda x, cache, seen: first(x, cache, seen)], key="x")
    cache, seen = collections.OrderedDict(), collections.deque()
    tuned(torch.ones(2), cache, seen)
    assert (cache["sum"].tolist(), len(seen)) == ([1.0, 1.0], 1)
