# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Traffic counts whole memory sectors of 32 bytes, against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest

from forecast_autotune.features.hardware_sheets import sheet_for
from forecast_autotune.features.launch_features import describe_call, launch_features

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

H200 = sheet_for("H200")
ROWS, COLUMNS = 4096, 1024
SECTOR = 32


@triton.jit
def doubled(x_ptr, out_ptr, stride_row, stride_column, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = (tl.program_id(1) * BN + tl.arange(0, BN)) % 1024
    where = rows[:, None] * stride_row + columns[None, :] * stride_column
    tl.store(out_ptr + where, tl.load(x_ptr + where) * 2)


@triton.jit
def doubled_across(x_ptr, out_ptr, stride_row, stride_column, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    where = tl.trans(rows[:, None] * stride_row + columns[None, :] * stride_column)
    tl.store(out_ptr + where, tl.load(x_ptr + where) * 2)


@triton.jit
def doubled_blocks(x_ptr, out_ptr, stride_row, stride_column, BM: tl.constexpr, BN: tl.constexpr):
    place = (tl.program_id(0) * BM, tl.program_id(1) * BN)
    x = tl.make_block_ptr(x_ptr, (4096, 1024), (stride_row, stride_column), place, (BM, BN), (1, 0))
    out = tl.make_block_ptr(out_ptr, (4096, 1024), (stride_row, stride_column), place, (BM, BN), (1, 0))
    tl.store(out, tl.load(x) * 2)


@triton.jit
def gathered(x_ptr, index_ptr, out_ptr, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    taken = tl.load(index_ptr + rows)
    x = tl.load(x_ptr + taken[:, None] * 1024 + columns[None, :])
    tl.store(out_ptr + rows[:, None] * 1024 + columns[None, :], x)


@triton.jit
def elements_gathered(x_ptr, index_ptr, out_ptr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + places, tl.load(x_ptr + tl.load(index_ptr + places)))


@triton.jit
def heads_shared(x_ptr, out_ptr, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    x = tl.load(x_ptr + (rows // 8)[:, None] * 1024 + columns[None, :])
    tl.store(out_ptr + rows[:, None] * 1024 + columns[None, :], x)


def numbers(count: int, dtype: Any = None) -> Any:
    return torch.empty(count, dtype=dtype or torch.float32, device="meta")


def of_a_tile(kernel: Any, bm: int, bn: int, *, strides: tuple[int, int] | None = None, dtype: Any = None) -> Any:
    """What is told of a tile that is read and written once; its strides are those of rows one after the other."""
    given = dict(zip(("stride_row", "stride_column"), strides or (COLUMNS, 1), strict=True))
    call = describe_call({"x_ptr": numbers(ROWS * COLUMNS, dtype), "out_ptr": numbers(ROWS * COLUMNS, dtype), **given})
    knobs = [{"BM": bm, "BN": bn, "num_warps": 4}]
    return launch_features(kernel, call, knobs, grid=(ROWS // bm, COLUMNS // bn), hardware=H200)[0]


USED = 2 * ROWS * COLUMNS * 4


@pytest.mark.parametrize("kernel", [doubled, doubled_across, doubled_blocks], ids=lambda k: k.__name__)
@pytest.mark.parametrize(("columns", "factor"), [(32, 1), (8, 1), (4, 2), (2, 4), (1, 8)])
def test_a_tile_of_few_columns_moves_a_sector_for_each_row(kernel: Any, columns: int, factor: int) -> None:
    found = of_a_tile(kernel, 64, columns)
    assert found["traffic_bytes"] == factor * USED
    assert found["unique_bytes"] == USED  # what is left of a sector is read by other programs, from L2
    assert found["us_bound"] == of_a_tile(kernel, 64, 32)["us_bound"]


def test_sectors_lengthen_the_estimate_of_moving() -> None:
    wide, narrow = of_a_tile(doubled, 64, 32), of_a_tile(doubled, 2048, 1)
    assert narrow["us_memory"] > 1.5 * wide["us_memory"]


def test_neighbours_may_lie_along_any_axis() -> None:
    assert of_a_tile(doubled, 64, 1, strides=(1, ROWS))["traffic_bytes"] == USED
    assert of_a_tile(doubled, 2, 64, strides=(1, ROWS))["traffic_bytes"] == 4 * USED


def test_rows_of_few_columns_that_follow_one_another_share_sectors() -> None:
    assert of_a_tile(doubled, 64, 2, strides=(2, 1))["traffic_bytes"] == USED


def test_each_element_along_a_long_stride_is_a_sector_of_its_own() -> None:
    assert of_a_tile(doubled, 64, 32, strides=(COLUMNS * 64, 64))["traffic_bytes"] == 8 * USED
    assert of_a_tile(doubled, 64, 32, strides=(COLUMNS * 64, 64), dtype=torch.float16)["traffic_bytes"] == 8 * USED


def test_what_lies_between_near_neighbours_is_taken_to_be_used() -> None:
    assert of_a_tile(doubled, 64, 32, strides=(COLUMNS * 2, 2))["traffic_bytes"] == USED


@pytest.mark.parametrize(("columns", "factor"), [(32, 1), (1, 8)])
def test_rows_that_memory_tells_are_runs_of_their_columns(columns: int, factor: int) -> None:
    call = describe_call(
        {"x_ptr": numbers(ROWS * COLUMNS), "index_ptr": numbers(ROWS), "out_ptr": numbers(ROWS * COLUMNS)}
    )
    grid = (ROWS // 64, COLUMNS // columns)
    (found,) = launch_features(gathered, call, [{"BM": 64, "BN": columns}], grid=grid, hardware=H200)
    assert found["traffic_bytes"] == factor * USED + ROWS * 4 * COLUMNS / columns


def test_elements_that_memory_tells_are_sectors_of_their_own() -> None:
    n = 1 << 20
    call = describe_call({"x_ptr": numbers(n), "index_ptr": numbers(n), "out_ptr": numbers(n)})
    (found,) = launch_features(elements_gathered, call, [{"BLOCK": 256}], grid=(n // 256,), hardware=H200)
    assert found["traffic_bytes"] == n * (4 + 4 + SECTOR)


def test_a_quotient_is_the_same_for_neighbours() -> None:
    call = describe_call({"x_ptr": numbers(ROWS * COLUMNS // 8), "out_ptr": numbers(ROWS * COLUMNS)})
    (found,) = launch_features(heads_shared, call, [{"BM": 64, "BN": 32}], grid=(ROWS // 64, 32), hardware=H200)
    assert found["traffic_bytes"] == USED
