"""What attention's backward pass begins with: each query's sum of output times its gradient."""

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
def attention_delta(o_ptr, do_ptr, delta_ptr, length, D: tl.constexpr, BLOCK_M: tl.constexpr):  # type: ignore[no-untyped-def]
    """Some queries of one head."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(1).to(tl.int64)
    at = head * length * D + rows[:, None] * D + tl.arange(0, D)[None, :]
    o = tl.load(o_ptr + at, mask=rows[:, None] < length, other=0.0).to(tl.float32)
    do = tl.load(do_ptr + at, mask=rows[:, None] < length, other=0.0).to(tl.float32)
    tl.store(delta_ptr + head * length + rows, tl.sum(o * do, axis=1), mask=rows < length)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs = Inputs(case, seed, device)
    heads, length, width = (case.sizes[name] for name in ("heads", "length", "width"))
    o, do = inputs.normal(heads, length, width), inputs.normal(heads, length, width)
    delta = inputs.unwritten(heads, length, dtype=torch.float32)
    return Call(
        args=(o, do, delta, length, width),
        grid=lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), heads),
        outs=(delta,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    o, do = call.args[:2]
    return ((o.double() * do.double()).sum(-1).float(),)


def work(call: Call) -> Work:
    return Work(flops=2.0 * call.args[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="attention_delta",
    function=attention_delta,
    space=Space.grid(
        {"BLOCK_M": [16, 32, 64, 128], "num_warps": [2, 4, 8]},
        default={"BLOCK_M": 128, "num_warps": 4},
        roles={"BLOCK_M": "tile", "num_warps": "threads"},
    ),
    key=("length", "D"),
    cases=(
        Case(name="prompt", sizes={"heads": 64, "length": 4096, "width": 128}),
        Case(name="long", sizes={"heads": 16, "length": 32768, "width": 64}, dtype="bfloat16"),
        Case(name="vision", sizes={"heads": 1536, "length": 197, "width": 64}),
        Case(name="odd", sizes={"heads": 12, "length": 1111, "width": 64}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"heads": 1, "length": 1, "width": 16}),
        Case(name="below_a_block", sizes={"heads": 2, "length": 7, "width": 32}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"heads": 2, "length": 131, "width": 16}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-5,
    atol=1e-4,  # sums that cancel
)
