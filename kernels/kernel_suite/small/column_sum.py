"""Sum of each column in Triton, as a bias has its gradient: programs share the rows and add up with atomics."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved


@triton.jit  # type: ignore[untyped-decorator]
def column_sum(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, M, N, PARTS, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_N columns; every PARTS-th block of BLOCK_M rows."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(tl.program_id(1) * BLOCK_M, M, PARTS * BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        mask = (m < M)[:, None] & (n < N)[None, :]
        total += tl.load(x_ptr + m.to(tl.int64)[:, None] * N + n[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.atomic_add(out_ptr + n, tl.sum(total, 0), mask=n < N)


SPACE = Space.grid(
    {"BLOCK_M": [16, 32, 64], "BLOCK_N": [32, 64, 128], "num_warps": [4, 8]},
    default={"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4},
    roles={"BLOCK_M": "tile", "BLOCK_N": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """The sums begin with zeros."""
    m, n, parts = (case.sizes[name] for name in ("m", "n", "parts"))
    x, out = Inputs(case, seed, device, "bfloat16").normal(m, n), torch.zeros(n, device=device)
    return Call(
        args=(x, out, m, n, parts),
        grid=lambda knobs: (triton.cdiv(n, knobs["BLOCK_N"]), parts),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, out = call.args[:2]
    return (out + x.sum(0, dtype=torch.float64).float(),)


def work(call: Call) -> Work:
    x, out = call.args[:2]
    return Work(flops=float(x.numel()), bytes=moved(x, out))


KERNEL = TritonKernel(
    name="column_sum",
    function=column_sum,
    space=SPACE,
    key=("M", "N", "PARTS"),
    cases=(
        Case(name="hidden", sizes={"m": 16384, "n": 4096, "parts": 16}),
        Case(name="narrow", sizes={"m": 1 << 20, "n": 64, "parts": 256}, dtype="float32"),
        Case(name="wide", sizes={"m": 512, "n": 131072, "parts": 1}),
        Case(name="odd", sizes={"m": 50001, "n": 333, "parts": 33}, dtype="float16"),
        Case(name="small", sizes={"m": 1024, "n": 768, "parts": 8}),
    ),
    corners=(
        Case(name="one", sizes={"m": 1, "n": 1, "parts": 1}),
        Case(name="below_a_block", sizes={"m": 5, "n": 77, "parts": 2}, dtype="float16"),
        Case(name="over_blocks", sizes={"m": 203, "n": 131, "parts": 3}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=2e-2,  # up to a million numbers that mostly cancel
    restore_value=("out_ptr",),
)
