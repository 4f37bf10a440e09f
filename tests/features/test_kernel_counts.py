# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
"""Loops, branches and programs of kernels as people write them are counted as often as they run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from asking import ask
from recorded import job_of, question, recording

from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.features import kernel_counts
from forecast_autotune.features.hardware_sheets import sheet_for, tensor_peak_gflops
from forecast_autotune.features.kernel_model import kernel_model
from forecast_autotune.features.launch_features import combine_launches, describe_call, launch_features
from forecast_autotune.surrogates.learned import Learned
from forecast_autotune.surrogates.roofline import Roofline

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

H200 = sheet_for("H200")


def half(*shape: int) -> Any:
    return torch.empty(*shape, dtype=torch.float16, device="meta")


def described(kernel: Any, grid: tuple[int, ...], **given: Any) -> Mapping[str, float]:
    """One config at a call; constexprs among what is given."""
    return launch_features(kernel, describe_call(given), [{"num_warps": 4}], grid=grid, hardware=H200)[0]


@triton.jit
def of_a_sequence(x_ptr, out_ptr, starts_ptr, T, VARLEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if VARLEN:
        first = tl.load(starts_ptr + row)
        T = tl.load(starts_ptr + row + 1) - first
        blocks = tl.cdiv(T, BLOCK)
    else:
        first = row * T
        blocks = tl.cdiv(T, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(blocks):
        total += tl.load(x_ptr + first + i * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + row, tl.sum(total, 0))


@triton.jit
def parts_of_rows(x_ptr, out_ptr, columns, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    each = tl.cdiv(columns, PARTS * BLOCK) * BLOCK
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(part * each, min(columns, (part + 1) * each), BLOCK):
        total += tl.load(x_ptr + row * columns + start + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, 0))


def test_a_row_that_its_first_part_alone_loads_is_counted() -> None:
    given = {"x_ptr": half(65536 * 1024), "out_ptr": half(65536 * 8), "columns": 1024, "PARTS": 8, "BLOCK": 1024}
    assert described(parts_of_rows, (65536 * 8,), **given)["loaded_bytes"] == 1024 * 2 / 8


def test_a_number_that_one_branch_loads_is_known_where_the_other_is_taken() -> None:
    given = {"x_ptr": half(64 * 4096), "out_ptr": half(64), "starts_ptr": half(65), "T": 4096, "BLOCK": 128}
    fixed = described(of_a_sequence, (64,), VARLEN=False, **given)
    assert fixed["trips"] == 32
    assert fixed["loaded_bytes"] == 4096 * 2


def test_a_loop_that_data_bounds_runs_until_what_it_reads_was_read() -> None:
    given = {"x_ptr": half(64 * 4096), "out_ptr": half(64), "starts_ptr": half(65), "T": 4096, "BLOCK": 128}
    told = described(of_a_sequence, (64,), VARLEN=True, **given)
    assert told["trips"] == 32
    assert told["unique_bytes"] == pytest.approx(2 * 64 * 4096, rel=0.01)
    assert told["us_bound"] < 0.1 * told["us_memory"]  # all sequences may be empty


@triton.jit
def tiles_in_turn(x_ptr, out_ptr, tiles, K, BLOCK: tl.constexpr):
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, K, BLOCK):
            at = (k + tl.arange(0, BLOCK))[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
            x = tl.load(x_ptr + tile * K * BLOCK + at)
            total = tl.dot(x, x, total)
        tl.store(out_ptr + tile * BLOCK * BLOCK + tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK), total)


def test_a_persistent_kernels_outer_loop_is_counted() -> None:
    given = {"x_ptr": half(1056 * 512 * 64), "out_ptr": half(1056 * 64 * 64), "tiles": 1056, "K": 512, "BLOCK": 64}
    told = described(tiles_in_turn, (132,), **given)
    assert told["trips"] == 8 * 8
    assert told["flops"] == 2 * 64**3 * 8 * 1056
    assert told["overshoot"] == 1.0


@triton.jit
def pairs_seen(x, q, first, last, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(first, last, BLOCK):
        at = (start + tl.arange(0, BLOCK))[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        total += tl.dot(q, tl.load(x + at))
    return total


@triton.jit
def whole_and_edge(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    place = (at + tl.arange(0, BLOCK))[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    q = tl.load(x_ptr + place)
    total = pairs_seen(x_ptr, q, 0, at // BLOCK * BLOCK, BLOCK)
    total += pairs_seen(x_ptr, q, at // BLOCK * BLOCK, at + BLOCK, BLOCK)
    tl.store(out_ptr + place, total)


def test_of_a_whole_and_an_edge_loop_in_a_helper_both_are_counted() -> None:
    told = described(whole_and_edge, (100,), x_ptr=half(6400, 64), out_ptr=half(6400, 64), BLOCK=64)
    assert told["trips"] == pytest.approx(49.5, rel=0.01)  # of the larger loop: 0 to 99; the edge has one
    assert told["flops"] == pytest.approx(2 * 64**3 * (49.5 + 1) * 100, rel=0.01)


@triton.jit
def counted_by_hand(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = 0
    total = tl.zeros((BLOCK,), tl.float32)
    while i < n:
        total += tl.load(x_ptr + tl.program_id(0) * n + i + tl.arange(0, BLOCK))
        i += BLOCK
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, 0))


def test_a_while_loop_that_counts_up_is_counted() -> None:
    assert described(counted_by_hand, (8,), x_ptr=half(8, 1024), out_ptr=half(8), n=1024, BLOCK=128)["trips"] == 8


@triton.jit
def stepping_by_name(x_ptr, out_ptr, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(0, n, step=BLOCK, num_stages=STAGES):
        total += tl.load(x_ptr + tl.program_id(0) * n + i + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, 0))


def test_a_step_that_is_given_by_name_is_one() -> None:
    told = described(stepping_by_name, (8,), x_ptr=half(8, 1024), out_ptr=half(8), n=1024, BLOCK=128, STAGES=2)
    assert told["trips"] == 8
    assert kernel_model(stepping_by_name).roles == {"BLOCK": "tile", "STAGES": "stages"}


@triton.jit
def biased_perhaps(x_ptr, bias_ptr, out_ptr, BIASED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at) + tl.load(bias_ptr + at) if BIASED else tl.load(x_ptr + at)
    tl.store(out_ptr + at, x)


def test_of_a_conditional_expression_only_what_is_picked_is_loaded() -> None:
    given = {"x_ptr": half(1024), "bias_ptr": half(1024), "out_ptr": half(1024), "BLOCK": 128}
    assert described(biased_perhaps, (8,), BIASED=False, **given)["loaded_bytes"] == 128 * 2
    assert described(biased_perhaps, (8,), BIASED=True, **given)["loaded_bytes"] == 2 * 128 * 2


@triton.jit
def leaves_early(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    if at >= n:
        return
    tl.store(out_ptr + at + tl.arange(0, BLOCK), tl.load(x_ptr + at + tl.arange(0, BLOCK)))


def test_programs_that_return_early_move_nothing() -> None:
    busy = described(leaves_early, (100,), x_ptr=half(12800), out_ptr=half(12800), n=12800, BLOCK=128)
    idle = described(leaves_early, (100,), x_ptr=half(12800), out_ptr=half(12800), n=6400, BLOCK=128)
    assert busy["traffic_bytes"] == 2 * 2 * 12800
    assert idle["traffic_bytes"] == busy["traffic_bytes"] / 2


@triton.jit
def recurrent(w_ptr, x_ptr, out_ptr, steps, BLOCK: tl.constexpr):
    square = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    state, w = tl.zeros((BLOCK, BLOCK), tl.float32), tl.load(w_ptr + square)
    for step in range(steps):
        state = tl.dot(w, state.to(tl.float16)) + tl.load(x_ptr + step * BLOCK * BLOCK + square)
    tl.store(out_ptr + square, state)


def test_a_loop_whose_product_waits_for_the_one_before_is_serial() -> None:
    state = described(
        recurrent, (1,), w_ptr=half(64, 64), x_ptr=half(99, 64, 64), out_ptr=half(64, 64), steps=99, BLOCK=64
    )
    assert state["serial_trips"] == 99
    tiles = described(
        tiles_in_turn, (8,), x_ptr=half(8 * 512 * 64), out_ptr=half(8 * 64 * 64), tiles=8, K=512, BLOCK=64
    )
    assert "serial_trips" not in tiles
    edge = described(whole_and_edge, (100,), x_ptr=half(6400, 64), out_ptr=half(6400, 64), BLOCK=64)
    assert "serial_trips" not in edge


def test_registers_hold_all_that_is_needed_at_one_time() -> None:
    state = described(
        recurrent, (1,), w_ptr=half(64, 64), x_ptr=half(99, 64, 64), out_ptr=half(64, 64), steps=99, BLOCK=64
    )
    # The state, its product, and what is added: 64 x 64 of 4, 4 and 2 bytes over 128 threads, beside addresses.
    assert state["registers"] >= 40 + 64 * 64 * (4 + 4) / 4 / 128


def test_of_several_kernels_the_one_with_most_work_stands_for_all() -> None:
    main = {"us_memory": 90.0, "us_flops": 10.0, "us_bound": 5.0, "programs": 264.0, "tile_m": 128.0}
    last = {"us_memory": 2.0, "us_flops": 0.0, "us_bound": 6.0, "programs": 1.0}
    told = combine_launches([main, last])
    assert (told["programs"], told["tile_m"], told["launches"], told["least_programs"]) == (264.0, 128.0, 2.0, 1.0)
    assert (told["us_memory"], told["us_flops"]) == (92.0, 10.0)


def test_drivers_that_tell_no_matrix_peak_are_helped_by_the_sheet() -> None:
    as_told = replace(H200, peak_tensor_gflops=0.0)
    assert tensor_peak_gflops(as_told) == H200.peak_tensor_gflops
    assert tensor_peak_gflops(as_told, 1) == 2 * tensor_peak_gflops(as_told) == 4 * tensor_peak_gflops(as_told, 4)
    unknown = replace(as_told, name="NVIDIA H199", peak_gflops=H200.peak_gflops / 2)
    assert tensor_peak_gflops(unknown) == pytest.approx(H200.peak_tensor_gflops / 2)
    assert tensor_peak_gflops(Hardware(kind="cpu", name="a CPU")) == 0.0
    given = {"x_ptr": half(8 * 512 * 64), "out_ptr": half(8 * 64 * 64), "tiles": 8, "K": 512, "BLOCK": 64}
    told, helped = (
        launch_features(tiles_in_turn, describe_call(given), [{}], grid=(8,), hardware=hardware)[0]
        for hardware in (H200, as_told)
    )
    assert told == helped


# What the model cannot read ---------------------------------------------------------------------------------------------


@triton.jit
def in_assembly(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=r,r", [tl.load(x_ptr + at)], tl.float32, True, 1)
    tl.store(out_ptr + at, y)


@triton.jit
def calls_itself(x_ptr, n, BLOCK: tl.constexpr):
    if n > 0:
        calls_itself(x_ptr, n - 1, BLOCK)
        calls_itself(x_ptr, n - 2, BLOCK)
    return tl.load(x_ptr + tl.arange(0, BLOCK))


@triton.jit
def of_syntax_not_known(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for at in [x for x in range(n) if x % 2]:
        assert at >= 0
        (first, *_), sizes = (at, 1, 2), {"block": BLOCK}
        match first:
            case 0:
                pass
        tl.store(out_ptr + (lambda i: i)(at), tl.load(x_ptr + sizes["block"]))


def test_assembly_is_passed_over_and_the_rest_is_counted() -> None:
    told = described(in_assembly, (8,), x_ptr=half(1024), out_ptr=half(1024), BLOCK=128)
    assert told["traffic_bytes"] == 2 * 2 * 1024


@pytest.mark.parametrize("kernel", [calls_itself, of_syntax_not_known, lambda x: x, print, 7, "text", None])
@pytest.mark.parametrize("n", [5, math.inf, math.nan, -3, "many", None])
def test_what_cannot_be_read_is_described_by_what_is_known(kernel: Any, n: Any) -> None:
    told = described(kernel, (8,), x_ptr=half(1024), out_ptr=half(1024), n=n, BLOCK=128)
    assert told["threads"] == 128
    assert all(math.isfinite(value) for value in told.values())


def test_an_endless_source_is_given_up_soon() -> None:
    nested = "0"
    for _ in range(3000):
        nested = f"({nested} + n)"

    def deep(n: int) -> None:
        raise NotImplementedError

    deep.src = f"def deep(n):\n    tl.load(p + {nested})\n"  # type: ignore[attr-defined]
    assert kernel_model(deep).accesses == ()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -1.0, -1e300, 0.0])
@pytest.mark.parametrize("surrogate", [Learned, Roofline])
def test_impossible_described_values_give_no_nan_or_infinite_forecast(surrogate: Any, value: float) -> None:
    job = job_of(recording())
    names = ("us_bound", "us_memory", "us_flops", "threads", "programs", "trips", "registers", "traffic_bytes")
    told = [dict.fromkeys(names, 100.0 + i) for i in range(len(job.space))]
    told[3] = dict.fromkeys(names, value)
    asked = replace(question(recording()), job=replace(job, static_features=told))
    for forecast in ask(surrogate(), asked):
        if isinstance(forecast, Forecast):
            assert math.isfinite(forecast.mean)
            assert math.isfinite(forecast.sigma)
            assert 0.0 <= forecast.fail_probability <= 1.0


def test_numbers_that_a_source_makes_as_large_as_it_likes_are_not_computed() -> None:
    names = kernel_counts._FUNCTIONS
    assert names["power"](2, 10) == 1024
    assert names["shifted"](1, 6) == 64
    for refused in (lambda: names["power"](9, 9**9), lambda: names["shifted"](1, 10**15)):
        with pytest.raises(OverflowError):
            refused()
