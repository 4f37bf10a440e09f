# ruff: noqa: N803, SIM108  # Triton kernels write their meta-parameters in capitals, and branches in full
"""What a kernel's source tells of its configs before compiling, against counts by hand and against the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from forecast_autotune.core.space import ROLES
from forecast_autotune.core.workload import Work
from forecast_autotune.features.hardware_sheets import device_properties, sheet_for
from forecast_autotune.features.kernel_model import kernel_model
from forecast_autotune.features.launch_features import (
    Call,
    combine_launches,
    describe_call,
    knob_roles,
    launch_features,
    work_of,
)

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

H100 = sheet_for("H100")


@triton.jit
def activate(x, SLOPE: tl.constexpr):
    return tl.where(x >= 0, x, SLOPE * x)


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BM)
    num_pid_n = tl.cdiv(N, BN)
    group = GROUP_M * num_pid_n
    first = (pid // group) * GROUP_M
    size = min(num_pid_m - first, GROUP_M)
    pid_m = first + ((pid % group) % size)
    pid_n = (pid % group) // size
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    columns = (pid_n * BN + tl.arange(0, BN)) % N
    inner = tl.arange(0, BK)
    a_ptrs = a_ptr + (rows[:, None] * stride_am + inner[None, :])
    b_ptrs = b_ptr + (inner[:, None] * stride_bk + columns[None, :])
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=inner[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=inner[:, None] < K - k * BK, other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BK
        b_ptrs += BK * stride_bk
    if ACTIVATION == "leaky":
        total = activate(total, 0.01)
    c = total.to(tl.float16)
    out_m = pid_m * BM + tl.arange(0, BM)
    out_n = pid_n * BN + tl.arange(0, BN)
    tl.store(c_ptr + stride_cm * out_m[:, None] + out_n[None, :], c, mask=(out_m[:, None] < M) & (out_n[None, :] < N))


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def row_sums(x_ptr, out_ptr, bias_ptr, rows, columns, BLOCK: tl.constexpr, UNROLLED: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, columns, BLOCK, loop_unroll_factor=UNROLLED):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * columns + offsets, mask=offsets < columns, other=0.0)
    result = tl.sum(total, axis=0)
    if bias_ptr is not None:
        result += tl.load(bias_ptr + row)
    tl.store(out_ptr + row, result)


@triton.jit
def causal(q_ptr, k_ptr, o_ptr, length, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    start = tl.program_id(0)
    rows = start * BM + tl.arange(0, BM)
    depth = tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + depth[None, :])
    total = tl.zeros([BM, BN], dtype=tl.float32)
    if CAUSAL:
        stop = start * BM
    else:
        stop = length
    for n in range(0, stop, BN):
        columns = n + tl.arange(0, BN)
        k = tl.load(k_ptr + columns[:, None] * D + depth[None, :])
        total += tl.dot(q, tl.trans(k))
    tl.store(o_ptr + rows[:, None] * BN + tl.arange(0, BN)[None, :], total)


@triton.jit
def unrolled(
    a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, UNROLLED: tl.constexpr
):  # fmt: skip
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, K, BK, loop_unroll_factor=UNROLLED):
        inner = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * N + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(tl.float16))


@triton.jit
def by_descriptor(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a_desc.load([m, k]), b_desc.load([n, k]).T, total)
    c_desc.store([m, n], total.to(tl.float16))


def half(*shape: int) -> Any:
    return torch.empty(*shape, dtype=torch.float16, device="meta")


def matmul_call(m: int = 1024, n: int = 2048, k: int = 512) -> Call:
    return describe_call(
        dict(zip(matmul.arg_names, (half(m, k), half(k, n), half(m, n), m, n, k, k, n, n), strict=False))
    )


def matmul_grid(given: Mapping[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(given["M"], given["BM"]) * triton.cdiv(given["N"], given["BN"]),)


def tile(bm: int = 128, bn: int = 64, bk: int = 32, warps: int = 4, stages: int = 3, **more: Any) -> dict[str, Any]:
    knobs = {"BM": bm, "BN": bn, "BK": bk, "GROUP_M": 8, "SPLIT_K": 1, "ACTIVATION": ""}
    return {**knobs, "num_warps": warps, "num_stages": stages, **more}


def test_a_matmul_is_described_as_counted_by_hand() -> None:
    (found,) = launch_features(matmul, matmul_call(), [tile()], grid=matmul_grid, hardware=H100)
    assert found["programs"] == 8 * 32
    assert found["trips"] == 16
    assert (found["tile_m"], found["tile_n"], found["tile_k"]) == (128, 64, 32)
    assert found["per_thread"] == 128 * 64 / 128
    assert found["loaded_bytes"] == 16 * (128 * 32 + 32 * 64) * 2
    assert found["stored_bytes"] == 128 * 64 * 2
    assert found["flops"] == 2 * 1024 * 2048 * 512
    assert found["unique_bytes"] == 2 * (1024 * 512 + 512 * 2048 + 1024 * 2048)
    assert found["overshoot"] == 1.0
    assert found["us_bound"] > 0


@pytest.mark.parametrize(("target", "copies"), [("cuda:90", 3), ("cuda:80", 2)])
def test_shared_memory_is_forecast_as_the_compiler_will_lay_it_out(target: str, copies: int) -> None:
    (found,) = launch_features(matmul, matmul_call(), [tile()], grid=matmul_grid, hardware=sheet_for(target))
    assert found["shared_bytes"] == max(copies * (128 * 32 + 32 * 64) * 2, 128 * 64 * 2)


def test_operands_of_odd_strides_go_through_registers_element_by_element() -> None:
    even, odd = (
        launch_features(matmul, call, [tile(bk=64, stages=n) for n in (2, 4)], grid=matmul_grid, hardware=H100)
        for call in (matmul_call(), matmul_call(1024, 2040, 500))
    )
    operands = (128 * 64 + 64 * 64) * 2
    assert [d["shared_bytes"] for d in even] == [2 * operands, 4 * operands]
    assert [d["shared_bytes"] for d in odd] == [operands, operands]  # no copy past the registers, and so no stages
    assert (even[0]["access_bytes"], odd[0]["access_bytes"]) == (16, 2)
    assert odd[0]["registers"] - even[0]["registers"] == 3 * operands / 2 / 128


@pytest.mark.parametrize(
    ("n", "block", "widest"),
    [(4096, 1024, 16), (4096 + 8, 1024, 2), (4096, 256, 4), (4096, 8, 2)],
    ids=["whole", "a length of which nothing is told", "two elements a thread", "fewer elements than threads"],
)
def test_a_thread_moves_as_much_at_once_as_length_and_tile_allow(n: int, block: int, widest: int) -> None:
    call = describe_call({"x_ptr": half(n), "y_ptr": half(n), "out_ptr": half(n), "n": n})
    (found,) = launch_features(add, call, [{"BLOCK": block, "num_warps": 4}], grid=(n // block,), hardware=H100)
    assert found["access_bytes"] == widest


def test_a_tile_that_does_not_divide_is_seen_as_waste() -> None:
    exact, ragged = (
        launch_features(matmul, matmul_call(m), [tile()], grid=matmul_grid, hardware=H100)[0] for m in (1024, 1025)
    )
    assert exact["waste"] == 1.0
    assert ragged["waste"] == pytest.approx(9 * 128 / 1025)
    assert ragged["overshoot"] == pytest.approx(9 * 128 / 1025)


def test_helpers_and_branches_count_only_where_they_run() -> None:
    plain, active = launch_features(
        matmul, matmul_call(), [tile(), tile(ACTIVATION="leaky")], grid=matmul_grid, hardware=H100
    )
    assert active["elementwise"] > plain["elementwise"]


def test_maxnreg_becomes_a_share_of_the_registers_that_a_block_may_have() -> None:
    configs = [tile(num_warps=16), tile(num_warps=16, maxnreg=128), tile(num_warps=16, maxnreg=168)]
    plain, all_of_them, too_many = launch_features(matmul, matmul_call(), configs, grid=matmul_grid, hardware=H100)
    assert "register_share" not in plain
    assert (all_of_them["register_share"], too_many["register_share"]) == (1.0, 168 / 128)
    several = combine_launches([plain, too_many, all_of_them])
    assert several["register_share"] == 168 / 128


def test_an_elementwise_kernel_is_bound_by_memory() -> None:
    n = 1 << 20
    call = describe_call(dict(zip(add.arg_names, (half(n), half(n), half(n), n), strict=False)))
    described = launch_features(
        add, call, [{"BLOCK": 1024, "num_warps": 4}], grid=lambda g: (triton.cdiv(n, g["BLOCK"]),), hardware=H100
    )
    (found,) = described
    assert found["traffic_bytes"] == found["unique_bytes"] == 3 * n * 2
    assert found["elementwise"] == n
    assert found["flops"] == 0
    assert found["us_memory"] > found["us_flops"]
    assert found["us_memory"] == pytest.approx(3 * n * 2 / 3350e3)
    assert work_of(described) == Work(flops=n, bytes=3 * n * 2)


def test_what_is_expanded_lies_in_memory_once() -> None:
    n = 1 << 20
    call = describe_call(dict(zip(add.arg_names, (half(n), half(1).expand(n), half(n), n), strict=False)))
    (found,) = launch_features(
        add, call, [{"BLOCK": 1024, "num_warps": 4}], grid=lambda g: (triton.cdiv(n, g["BLOCK"]),), hardware=H100
    )
    assert found["unique_bytes"] == 2 * n * 2 + 2
    assert found["traffic_bytes"] == 3 * n * 2


def test_a_loop_and_an_argument_that_is_none_are_counted() -> None:
    x, out = half(64, 1000), half(64)
    knobs = [{"BLOCK": 256, "UNROLLED": 2, "num_warps": 2}]
    without = launch_features(
        row_sums, describe_call({"x_ptr": x, "out_ptr": out, "bias_ptr": None, "rows": 64, "columns": 1000}), knobs
    )
    biased = launch_features(
        row_sums, describe_call({"x_ptr": x, "out_ptr": out, "bias_ptr": out, "rows": 64, "columns": 1000}), knobs
    )
    assert without[0]["loaded_bytes"] == 4 * 256 * 2
    assert biased[0]["loaded_bytes"] == 4 * 256 * 2 + 2
    assert without[0]["waste"] == pytest.approx(1.024)


def test_a_loop_up_to_the_diagonal_counts_half() -> None:
    arguments = {"q_ptr": half(1024, 64), "k_ptr": half(1024, 64), "o_ptr": half(1024, 64), "length": 1024}
    knobs = {"BM": 64, "BN": 64, "D": 64, "num_warps": 4}
    whole, lower = launch_features(
        causal,
        describe_call(arguments),
        [{**knobs, "CAUSAL": False}, {**knobs, "CAUSAL": True}],
        grid=(16,),
        hardware=H100,
    )
    assert whole["trips"] == 16
    assert lower["trips"] == 7.5
    assert lower["flops"] == whole["flops"] * 7.5 / 16


def test_descriptors_are_read_by_the_block_shape_each_config_gives_them() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    def call(knobs: Mapping[str, Any]) -> Call:
        blocks = [[knobs["BM"], knobs["BK"]], [knobs["BN"], knobs["BK"]], [knobs["BM"], knobs["BN"]]]
        made = [TensorDescriptor(half(512, 512), [512, 512], [512, 1], block) for block in blocks]
        return describe_call(dict(zip(by_descriptor.arg_names, (*made, 512), strict=False)))

    small, large = launch_features(
        by_descriptor, call, [tile(64, 64, 64), tile(128, 128, 64)], grid=(4, 4), hardware=H100
    )
    assert (small["tile_m"], small["tile_n"], small["tile_k"], small["trips"]) == (64, 64, 64, 8)
    assert large["loaded_bytes"] == 8 * (128 * 64 * 2) * 2


def test_roles_follow_use_before_names() -> None:
    assert knob_roles(matmul, tile()) == {
        "BM": "tile", "BN": "tile", "BK": "tile", "GROUP_M": "order", "SPLIT_K": "algorithm", "ACTIVATION": "algorithm",
        "num_warps": "threads", "num_stages": "stages",
    }  # fmt: skip
    assert knob_roles(row_sums, {"BLOCK": 1, "UNROLLED": 2, "odd": 3}) == {"BLOCK": "tile", "UNROLLED": "unroll"}
    assert set(knob_roles(matmul, tile()).values()) <= set(ROLES)


def test_features_that_cannot_be_read_are_missing_and_nothing_is_raised() -> None:
    call = describe_call({"a_ptr": object(), "M": "many"})

    def grid(_: Mapping[str, Any]) -> tuple[int]:
        raise RuntimeError("not now")

    for found in launch_features(matmul, call, [{}, {"BM": "wide"}, tile()], grid=grid, hardware=H100):
        assert "flops" not in found
        assert found["threads"] >= 32
    assert launch_features(lambda x: x, call, [tile()])[0]["threads"] == 128
    assert launch_features(print, call, [tile()])[0]["threads"] == 128
    assert work_of([{}]) is None


def test_a_kernel_of_the_interpreter_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpretedFunction

    interpreted = InterpretedFunction(add.fn)
    assert len(kernel_model(interpreted).accesses) == 3


def test_the_forecast_of_shared_memory_agrees_with_what_is_compiled(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plain_calls import plain_call

    from forecast_autotune.compilers.triton_compile import TritonCompiler
    from forecast_autotune.compilers.triton_pool import shared_pool
    from forecast_autotune.core.config import Config

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    args = (half(1024, 512), half(512, 2048), half(1024, 2048), 1024, 2048, 512, 512, 2048, 2048)
    configs = [Config(tile(64, 64, 64, 4, 3)), Config(tile(128, 128, 32, 8, 4))]
    for target in ("cuda:80", "cuda:90"):
        sheet = sheet_for(target)
        compiling = TritonCompiler(matmul, plain_call(*args), target=target, properties=device_properties(sheet))
        for config, built in compiling.compile(configs):
            (found,) = launch_features(matmul, matmul_call(), [config.knobs], grid=matmul_grid, hardware=sheet)
            assert found["shared_bytes"] == built.shared_bytes
    shared_pool().close()


def test_trips_that_are_made_one_need_so_much_more_shared_memory(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plain_calls import plain_call

    from forecast_autotune.compilers.triton_compile import TritonCompiler
    from forecast_autotune.compilers.triton_pool import shared_pool
    from forecast_autotune.core.config import Config

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    args = (half(1024, 512), half(512, 2048), half(1024, 2048), 2048, 512)
    call = describe_call(dict(zip(("a_ptr", "b_ptr", "c_ptr", "N", "K"), args, strict=True)))
    knobs = {"BM": 128, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 3}
    configs = [Config({**knobs, "UNROLLED": factor}) for factor in (1, 2, 4)]
    sheet = sheet_for("cuda:90")
    compiling = TritonCompiler(unrolled, plain_call(*args), target="cuda:90", properties=device_properties(sheet))
    built = dict(compiling.compile(configs))
    found = launch_features(unrolled, call, [config.knobs for config in configs], grid=(8, 32), hardware=sheet)
    assert [f["shared_bytes"] for f in found] == [built[config].shared_bytes for config in configs]
    assert found[2]["shared_bytes"] == 4 * found[0]["shared_bytes"]
    shared_pool().close()


@triton.jit
def copy_rows(x, y, n, row, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * row + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets), mask=offsets < n)


@pytest.mark.parametrize("rows", [(1, True), (True, 1), (16, 16.0), (16.0, 16), ((1, 2), (True, 2)), ([1], [2])])
def test_knobs_that_are_equal_but_of_other_types_have_their_own_features(rows: tuple[Any, Any]) -> None:
    x = torch.empty(4096, dtype=torch.float16)
    call = describe_call({"x": x, "y": x, "n": 4096})
    configs = [{"BLOCK": 1024, "row": row} for row in rows]
    together = launch_features(copy_rows, call, configs, grid=(4,))
    assert together == [launch_features(copy_rows, call, [config], grid=(4,))[0] for config in configs]
    assert all("loaded_bytes" in each for each in together)
