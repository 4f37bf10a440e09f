"""Arguments go to a trial as they are: shared storages, strides, offsets, alignment, odd values."""

from __future__ import annotations

import math

import pytest
import torch

from forecast_autotune.measure.arguments import Arguments, snapshot
from forecast_autotune.measure.copies import UnportableError


def copy_of(*values: object) -> Arguments:
    taken = snapshot(values)
    try:
        return Arguments(taken.layout, taken.file, taken.size)
    finally:
        taken.close()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64]
)
def test_a_tensor_arrives_bit_for_bit(dtype: torch.dtype) -> None:
    x = (torch.randn(7, 5) * 3).to(dtype)
    (got,) = copy_of(x).values()
    assert got.dtype == dtype
    assert torch.equal(got, x)
    assert got.data_ptr() != x.data_ptr()


def test_views_keep_strides_and_offset_and_share_their_storage() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    rows, columns = base[1:3], base.t()[2:, ::2]
    got_rows, got_columns = copy_of(rows, columns).values()
    assert (got_columns.stride(), got_columns.storage_offset() - got_rows.storage_offset()) == (
        columns.stride(),
        columns.storage_offset() - rows.storage_offset(),
    )
    got_rows.fill_(-1)
    assert torch.equal(got_columns, torch.where(torch.isin(columns, base[1:3]), -1.0, columns))


@pytest.mark.parametrize("shift", [1, 2, 3, 5])
def test_alignment_is_kept(shift: int) -> None:
    x = torch.arange(40, dtype=torch.float32)[shift:]
    owned = torch.frombuffer(bytearray(4 * 40 + 64), dtype=torch.float32, count=30)
    for tensor in (x, owned):
        (got,) = copy_of(tensor).values()
        assert got.data_ptr() % 64 == tensor.data_ptr() % 64


def test_other_values_arrive_as_they_are() -> None:
    values = (1, True, None, "text", math.inf, -0.0, [1, (2.5, None)], torch.float16, torch.device("cpu"))
    got = copy_of(*values).values()
    assert got == values
    assert math.copysign(1, got[5]) == -1
    assert math.isnan(copy_of(math.nan).values()[0])


def test_empty_and_zero_dimensional_tensors_arrive() -> None:
    got = copy_of(torch.empty(0, 3), torch.tensor(4.5)).values()
    assert got[0].shape == (0, 3)
    assert got[1].item() == 4.5


def test_written_storages_are_found_and_put_back() -> None:
    x, y = torch.ones(10), torch.ones(10)
    arguments = copy_of(x, y)
    arguments.values()[1][3] = math.nan
    assert [b.name for b in arguments.detect_writes()] == ["tensor argument 1"]
    arguments.restore()
    assert torch.equal(arguments.values()[1], y)


@pytest.mark.parametrize(("offset", "says"), [(-1, "before"), (10, "past the end of")])
def test_a_write_beside_an_argument_is_found(offset: int, says: str) -> None:
    arguments = copy_of(torch.ones(10))
    assert arguments.overrun() is None
    (x,) = arguments.values()
    torch.as_strided(x, (1,), (1,), x.storage_offset() + offset).fill_(7.0)
    assert says in str(arguments.overrun())


def test_a_tensor_that_needs_gradients_is_copied_without_them() -> None:
    (got,) = copy_of(torch.ones(3, requires_grad=True)).values()
    assert not got.requires_grad


@pytest.mark.parametrize("value", [object(), {1: 2}, torch.ones(2).to_sparse()])
def test_what_cannot_be_copied_is_refused(value: object) -> None:
    with pytest.raises(UnportableError, match="argument 0 is a"):
        snapshot([value])
