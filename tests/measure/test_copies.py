"""Copies of a call's arguments are as the arguments are, and nobody else's memory."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import types
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from forecast_autotune.measure.buffers import nudged, stand_in
from forecast_autotune.measure.copies import BorrowedArguments, CopiedArguments, UnportableError
from forecast_autotune.measure.state import tensors_reached


def copies_of(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return CopiedArguments(args, kwargs).values()[0]


def test_strides_offsets_alignment_and_overlap_are_kept() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    rows, columns = base[1:3], base.t()[2:, ::2]
    got_rows, got_columns = copies_of(rows, columns)
    assert torch.equal(got_columns, columns)
    assert (got_columns.stride(), got_rows.data_ptr() % 64) == (columns.stride(), rows.data_ptr() % 64)
    got_rows.fill_(-1)
    assert torch.equal(got_columns, torch.where(torch.isin(columns, base[1:3]), -1.0, columns))
    assert torch.equal(base, torch.arange(24.0).reshape(4, 6))


def test_one_tensor_given_twice_is_one_copy() -> None:
    x = torch.ones(3)
    one, (two,) = copies_of(x, [x])
    assert one is two


@dataclass
class Record:
    base: Any
    sizes: list[int]


Pair = namedtuple("Pair", "left right")


def test_tensors_in_containers_and_records_are_copied_and_the_rest_shared() -> None:
    x, other = torch.ones(3), object()
    record, pair, mapping, same = copies_of(Record(x, [3]), Pair(x, 1), {"x": x}, other)
    assert record.base is pair.left is mapping["x"] is not x
    record.sizes.append(4)
    assert (type(pair), same) == (Pair, other)


def test_what_is_replaced_in_containers_is_put_back_and_additions_stay() -> None:
    class Odd:
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            raise ValueError(other)

    x, extra, odd = torch.ones(3), torch.zeros(2), Odd()
    given = [
        [x],
        {"x": x, "position": 0, "later": None, "odd": odd},
        collections.deque([x]),
        Record(x, [3]),
        {1},
        {"inner": [x]},
    ]
    arguments = CopiedArguments(given, names=["rows", "cache", "queue", "record", "seen", "nested"])

    def run(values: Any) -> None:
        rows, cache, queue, record, seen, nested = values
        rows.append(extra)
        cache.pop("x")
        cache.update(new=extra, position=1, later=extra, odd=Odd())
        queue.popleft()
        record.sizes.append(4)
        record.base = extra
        record.packed = extra
        seen.clear()
        nested["inner"] = [extra]

    run(arguments.values()[0])
    values = arguments.values()[0]
    assert arguments.changed
    run(values)
    arguments.restore()
    (copy,), cache, queue, record, seen, nested = values
    assert all(each is copy for each in (cache["x"], queue[0], record.base, nested["inner"][0]))
    assert (cache["position"], cache["odd"] is odd, record.sizes, seen) == (0, True, [3], {1})
    assert cache["new"] is cache["later"] is record.packed is extra
    assert given[0][0] is given[1]["x"] is x


def test_a_tensor_that_is_an_argument_and_reached_is_put_back() -> None:
    weight, other = torch.nn.Parameter(torch.zeros(3)), torch.zeros(3)
    weight.grad = torch.ones(3)
    state = {"weight": weight, "weight.grad": weight.grad, "other": other}
    arguments = CopiedArguments([weight, other], names=["w", "o"], state=state, also_reached=[weight, weight.grad])
    ((copy, _), _) = arguments.values()
    with torch.no_grad():
        weight.sub_(1)
        copy.sub_(2)
    weight.grad.add_(1)
    other.add_(1)  # by somebody else: candidates reach it as an argument alone, which is a copy
    assert {b.name for b in arguments.detect_writes()} == {"w", "weight", "weight.grad"}
    arguments.put_back()
    assert (weight.tolist(), weight.grad.tolist(), other.tolist()) == ([0] * 3, [1] * 3, [1] * 3)


def test_an_empty_tensor_may_be_given_memory() -> None:
    arguments = CopiedArguments([torch.empty(0)])
    torch.add(torch.ones(3), 1, out=arguments.values()[0][0])
    assert arguments.overrun() is None
    assert [tensor.tolist() for _, tensor in arguments.left()] == [[2.0] * 3]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0, 3),
        torch.tensor(4.5),
        torch.ones(1).expand(3),
        torch.tensor([1 + 2j, -0.5j, 3], dtype=torch.complex64).conj(),
        torch.ones(3, dtype=torch.bool),
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, requires_grad=True) * 2,
    ],
    ids=str,
)
def test_tensors_of_every_kind_arrive(tensor: Any) -> None:
    (got,) = copies_of(tensor)
    assert torch.equal(got, tensor)
    assert (type(got), got.dtype, got.requires_grad, got.is_leaf, got.is_conj()) == (
        type(tensor), tensor.dtype, tensor.requires_grad, tensor.is_leaf, tensor.is_conj()
    )  # fmt: skip


def test_a_subclass_stays_one_with_its_attributes() -> None:
    class Named(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Named)
    x.title = "x"
    (got,) = copies_of(x)
    assert (type(got), got.title) == (Named, "x")
    assert got.data_ptr() != x.data_ptr()


def test_a_tensor_made_in_inference_mode_is_copied_outside_of_it() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    (got,) = copies_of(x)
    got.add_(1)
    assert x.tolist() == [1.0] * 3


def freed(tensor: Any) -> Any:
    tensor.untyped_storage().resize_(0)
    return tensor


class Unasked(torch.Tensor):
    def is_conj(self) -> bool:
        raise ValueError("not me")


@dataclass
class Uncopied:
    x: Any

    def __copy__(self) -> Uncopied:
        raise ValueError("not me")


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own: betas, and what it gives up
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.eye(3).to_sparse(), "argument 0 is a tensor that is sparse"),
        (lambda: torch.eye(3).to_sparse_csr(), "argument 0 is a tensor that is sparse"),
        (lambda: torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.qint8), "argument 0 .* is quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "argument 0 .* is nested"),
        (lambda: torch.ones(2, device="meta"), "argument 0 is a tensor that is without data"),
        (lambda: torch.ones(2, dtype=torch.uint8).view(torch.uint4), "argument 0 is a tensor that is of uint4"),
        (lambda: freed(torch.ones(2)), "argument 0 is a tensor that is freed"),
        (lambda: torch.ones(2).as_subclass(Unasked), "copying these fails: ValueError: not me"),
        (lambda: Uncopied(torch.ones(2)), "copying these fails: ValueError: not me"),
        (lambda: np.ones(3), "argument 0 is a NumPy array"),
        (lambda: [{"x": np.ones(3)}], r"argument 0\[0\]\['x'\] is a NumPy array"),
        (lambda: type("Pointer", (), {"data_ptr": lambda self: 0})(), "argument 0 is a Pointer"),
    ],
)
def test_what_cannot_be_copied_is_refused_by_name(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(UnportableError, match=says):
        copies_of(make())


def test_state_and_borrowed_tensors_that_cannot_be_copied_are_refused() -> None:
    with pytest.raises(UnportableError, match="w is a tensor that is freed"):
        CopiedArguments((), state={"w": freed(torch.ones(2))})
    with pytest.raises(UnportableError, match="copying these fails"):
        BorrowedArguments((), {}, restored={"w": freed(torch.ones(2))}, zeroed={})


@pytest.mark.parametrize(
    "err",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 20 bytes"),
        MemoryError(),
    ],
)
def test_a_lack_of_memory_while_copying_is_raised_as_it_is(err: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "clone", Mock(side_effect=err))
    x = torch.ones(2)
    with pytest.raises(type(err)) as caught:
        copies_of(x)
    assert caught.value is err
    with pytest.raises(type(err)) as caught:
        BorrowedArguments((x,), {}, restored={"x": x}, zeroed={})
    assert caught.value is err


def test_of_the_callers_own_memory_only_elements_that_differ_are_written() -> None:
    state = torch.arange(8.0)
    arguments = CopiedArguments((), state={"state": state})
    (buffer,) = arguments.buffers
    state[2] = -1  # by a candidate, and found
    buffer.note_changed()
    state[5] = 7  # by somebody else
    buffer.restore()
    assert state.tolist() == [0, 1, 2, 3, 4, 7, 6, 7]


def test_only_a_runs_own_writes_are_undone_beside_other_threads() -> None:
    state = torch.zeros(4, 4)
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()
        arguments = CopiedArguments((), state={"state": state})
        with arguments.seeing_writes():
            state[1] += 1
            other.submit(state[2].fill_, 7).result()
        (buffer,) = arguments.detect_writes()
        assert buffer.output.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8
        arguments.release()
    assert state.tolist() == [[0.0] * 4, [0.0] * 4, [7.0] * 4, [0.0] * 4]


def test_of_many_tensors_in_one_storage_those_count_that_a_run_wrote() -> None:
    memory = torch.zeros(8, 4)
    state = {f"row {i}": memory[i] for i in range(4)} | {"first": memory[4:, 0], "last": memory[4:, 3]}
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()
        arguments = CopiedArguments((), state=state)
        with arguments.seeing_writes():
            memory[1:3].add_(1)
            memory[3:7, 2:].add_(2)
            other.submit(memory[3].add_, 4).result()
        assert [b.name for b in arguments.detect_writes()] == ["row 1", "row 2", "row 3", "last"]
        assert not arguments.buffers[0].regions
        arguments.release()
    kept = torch.zeros(8, 4)
    kept[3, :2], kept[4:7, 2] = 4, 2  # by the other thread, and of no tensor
    assert torch.equal(memory, kept)


def test_a_conjugated_view_is_put_back() -> None:
    state = torch.tensor([1 + 2j, 3 + 4j]).conj()
    before = state.clone()
    arguments = CopiedArguments((), state={"state": state})
    state.add_(1)
    assert [b.name for b in arguments.detect_writes()] == ["state"]
    arguments.release()
    assert torch.equal(state, before)


def test_stand_in_outputs_are_finite_in_range_and_differ_everywhere() -> None:
    left = torch.tensor([1.0, 0.0, 0.0, -3.0, 2.0, torch.nan, torch.inf, 1.0])
    for before in (torch.zeros(8), torch.ones(8), left, left / 2, left.flip(0)):
        other = stand_in(left, before)
        assert torch.isfinite(other).all()
        assert ((other != left) & (other != before)).all()
        assert other.abs().max() <= 3
    zeros, ones = torch.zeros(4), torch.ones(4)
    for one, two in itertools.product((zeros, ones, 2 * ones), repeat=2):
        assert ((stand_in(one, two) != one) & (stand_in(one, two) != two)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_a_nudge_changes_each_number_by_next_to_nothing(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, -2.0, 15.0]).to(dtype)
    moved = nudged(x)
    assert not torch.equal(moved, x)
    torch.testing.assert_close(moved, x, rtol=1e-2, atol=1e-6)
    assert (moved.abs()[1:] <= x.abs()[1:]).all(), "no index grows"


GLOBAL = torch.ones(3)


def test_state_is_found_in_closures_globals_modules_objects_and_containers() -> None:
    class Cache:
        def __init__(self) -> None:
            self.slots = [{"k": torch.ones(1)}]

        def look(self, x: Any) -> Any:
            return x + self.slots[0]["k"]

    norm, closed = torch.nn.BatchNorm1d(2), torch.ones(2)
    norm.weight.grad, norm.plain = torch.ones(2), torch.ones(2)

    def uses(x: Any) -> Any:
        return (lambda: norm(x) + closed + GLOBAL)()

    found = tensors_reached([uses, Cache().look])
    assert found["norm.weight"] is norm.weight
    assert found["norm.weight.grad"] is norm.weight.grad
    assert {
        "norm.running_mean",
        "norm.plain",
        "norm.num_batches_tracked",
        "closed",
        "GLOBAL",
        "Cache.slots[0].k",
    } <= found.keys()


class Held:
    weight = torch.ones(1)


@dataclasses.dataclass(slots=True)
class Slots:
    weight: Any
    unset: Any = dataclasses.field(init=False)


class Proxy:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("outside of a request")

    __dict__ = __class__  # type: ignore[assignment]


PROXY, SLOTS, TOKENS = Proxy(), Slots(torch.ones(1)), {f"t{i}": i for i in range(1_100_000)}
QUEUE = collections.deque([torch.ones(1)])


def test_state_is_found_in_slots_classes_and_modules_despite_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    program = types.ModuleType("program")
    program.weight = torch.ones(1)  # type: ignore[attr-defined]
    monkeypatch.setitem(globals(), "PROGRAM", program)

    def uses(x: Any) -> Any:
        return x, TOKENS, PROXY, SLOTS.weight, Held.weight, PROGRAM.weight, QUEUE  # type: ignore[name-defined]  # noqa: F821

    found = tensors_reached([uses, PROXY])
    assert found.keys() == {"SLOTS.weight", "Held.weight", "PROGRAM.weight", "QUEUE[0]"}
