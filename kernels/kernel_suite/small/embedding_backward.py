"""Gradient of an embedding's table in Triton: each token adds its row's with atomics, in float32."""

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
def embedding_backward(ids_ptr, dout_ptr, dtable_ptr, dim, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """BLOCK columns of one token."""
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < dim
    row = tl.load(ids_ptr + token)
    gradient = tl.load(dout_ptr + token.to(tl.int64) * dim + column, mask=mask)
    tl.atomic_add(dtable_ptr + row * dim + column, gradient.to(tl.float32), mask=mask)


SPACE = Space.grid(
    {"BLOCK": [128, 256, 512, 1024, 2048], "num_warps": [1, 2, 4, 8]},
    constraints=[lambda BLOCK, num_warps: 1 <= BLOCK // (32 * num_warps) <= 32],
    default={"BLOCK": 512, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Low numbers are frequent, as in text: the square of a number from 0 to 1. The table's gradient begins with zeros."""
    tokens, rows, dim = (case.sizes[name] for name in ("tokens", "rows", "dim"))
    inputs = Inputs(case, seed, device, "bfloat16")
    ids = inputs.uniform(tokens, dtype=torch.float32).square().mul_(rows).long().clamp_max_(rows - 1)
    dout, dtable = inputs.normal(tokens, dim), torch.zeros(rows, dim, device=device)
    return Call(
        args=(ids, dout, dtable, dim),
        grid=lambda knobs: (tokens, triton.cdiv(dim, knobs["BLOCK"])),
        outs=(dtable,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    ids, dout, dtable = call.args[:3]
    return (dtable.clone().index_add_(0, ids, dout.float()),)


def work(call: Call) -> Work:
    """What is added to is read and written."""
    ids, dout = call.args[:2]
    return Work(flops=float(dout.numel()), bytes=moved(ids, dout) + 8.0 * dout.numel())


KERNEL = TritonKernel(
    name="embedding_backward",
    function=embedding_backward,
    space=SPACE,
    key=("dim",),
    cases=(
        Case(name="batch", sizes={"tokens": 16384, "rows": 50304, "dim": 2048}),
        Case(name="encoder", sizes={"tokens": 32768, "rows": 30522, "dim": 768}),
        Case(name="few_rows", sizes={"tokens": 32768, "rows": 16, "dim": 1024}),
        Case(name="odd", sizes={"tokens": 10001, "rows": 5000, "dim": 1111}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"tokens": 1, "rows": 1, "dim": 1}),
        Case(name="the_same_row", sizes={"tokens": 9, "rows": 2, "dim": 77}),
        Case(name="over_a_block", sizes={"tokens": 3, "rows": 5, "dim": 2051}, dtype="float16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=5e-3,  # rows add up in any order
    restore_value=("dtable_ptr",),
)
