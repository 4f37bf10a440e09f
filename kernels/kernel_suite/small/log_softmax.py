"""log_softmax over rows that do not fit into registers: a program goes over its row twice, block by block."""

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
def log_softmax(out_ptr, x_ptr, stride, N, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each lane keeps a maximum and a sum of its own until the row has ended."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_N)
    high = tl.full([BLOCK_N], -1e30, dtype=tl.float32)
    total = tl.zeros([BLOCK_N], dtype=tl.float32)
    for start in range(0, N, BLOCK_N):
        x = tl.load(x_ptr + row * stride + start + cols, mask=start + cols < N, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(high, x)
        total = total * tl.exp(high - higher) + tl.exp(x - higher)
        high = higher
    top = tl.max(high, axis=0)
    lse = top + tl.log(tl.sum(total * tl.exp(high - top), axis=0))
    for start in range(0, N, BLOCK_N):
        x = tl.load(x_ptr + row * stride + start + cols, mask=start + cols < N).to(tl.float32)
        tl.store(out_ptr + row * stride + start + cols, x - lse, mask=start + cols < N)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, rows, columns = Inputs(case, seed, device), case.sizes["rows"], case.sizes["columns"]
    x, out = inputs.normal(rows, columns).mul_(3), inputs.unwritten(rows, columns, dtype=torch.float32)
    return Call(args=(out, x, x.stride(0), columns), grid=lambda _: (rows,), outs=(out,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    return (torch.log_softmax(call.args[1].double(), dim=1).float(),)


def work(call: Call) -> Work:
    """Rows are read twice; the second time much of them comes from the cache."""
    return Work(flops=6.0 * call.outs[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="log_softmax",
    function=log_softmax,
    space=Space.grid(
        {"BLOCK_N": [1024, 2048, 4096, 8192], "num_warps": [4, 8, 16, 32]},
        constraints=[lambda BLOCK_N, num_warps: 4 <= BLOCK_N // (32 * num_warps) <= 64],
        default={"BLOCK_N": 4096, "num_warps": 8},
        roles={"BLOCK_N": "tile", "num_warps": "threads"},
    ),
    key=("N",),
    cases=(
        Case(name="vocabulary", sizes={"rows": 2048, "columns": 50257}, dtype="bfloat16"),
        Case(name="large_vocabulary", sizes={"rows": 512, "columns": 128256}),
        Case(name="one_token", sizes={"rows": 1, "columns": 151936}),
        Case(name="classes", sizes={"rows": 4096, "columns": 1000}, dtype="float32"),
        Case(name="odd", sizes={"rows": 1111, "columns": 7777}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 37}, dtype="float32"),
        Case(name="over_a_block", sizes={"rows": 2, "columns": 1030}, dtype="bfloat16"),
        Case(name="over_every_block", sizes={"rows": 2, "columns": 8199}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-5,
    atol=1e-5,
)
