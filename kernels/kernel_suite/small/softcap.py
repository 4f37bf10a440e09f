"""Logits kept below a cap in place, by a tanh: a row for each program, block by block."""

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

CAP = 30.0


@triton.jit  # type: ignore[untyped-decorator]
def softcap(logits_ptr, stride, n_cols, cap, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row."""
    row_ptr = logits_ptr + tl.program_id(0).to(tl.int64) * stride
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        tanh = 2.0 * tl.sigmoid(2.0 * x / cap) - 1.0
        tl.store(row_ptr + cols, cap * tanh, mask=cols < n_cols)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, rows, columns = Inputs(case, seed, device), case.sizes["rows"], case.sizes["columns"]
    logits = inputs.normal(rows, columns).mul_(20)
    return Call(args=(logits, logits.stride(0), columns, CAP), grid=lambda _: (rows,), outs=(logits,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    logits, *_, cap = call.args
    return ((cap * torch.tanh(logits.double() / cap)).to(logits.dtype),)


def work(call: Call) -> Work:
    return Work(flops=6.0 * call.outs[0].numel(), bytes=2 * moved(*call.outs))


KERNEL = TritonKernel(
    name="softcap",
    function=softcap,
    space=Space.grid(
        {"BLOCK": [512, 1024, 2048, 4096, 8192], "num_warps": [4, 8, 16]},
        constraints=[lambda BLOCK, num_warps: 64 * num_warps <= BLOCK],
        default={"BLOCK": 1024, "num_warps": 4},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("n_cols",),
    cases=(
        Case(name="vocabulary", sizes={"rows": 1024, "columns": 128256}),
        Case(name="large_vocabulary", sizes={"rows": 256, "columns": 256000}, dtype="bfloat16"),
        Case(name="one_token", sizes={"rows": 1, "columns": 256000}, dtype="float32"),
        Case(name="scores", sizes={"rows": 32768, "columns": 2048}),
        Case(name="odd", sizes={"rows": 1023, "columns": 3333}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 37}, dtype="float32"),
        Case(name="over_a_block", sizes={"rows": 2, "columns": 1030}, dtype="bfloat16"),
        Case(name="over_every_block", sizes={"rows": 2, "columns": 8200}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-4,  # a tanh near 0 is a difference of numbers near 1
    restore_value=("logits_ptr",),
)
