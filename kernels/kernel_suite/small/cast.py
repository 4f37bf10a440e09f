"""float32 to bfloat16 by as many programs as the GPU runs at once, each of which goes on until nothing is left."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved, multiprocessors


@triton.jit  # type: ignore[untyped-decorator]
def cast(src_ptr, dst_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Every so many blocks there are programs."""
    step = tl.num_programs(0) * BLOCK
    for start in range(tl.program_id(0) * BLOCK, n, step):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        tl.store(dst_ptr + offs, tl.load(src_ptr + offs, mask=mask).to(dst_ptr.dtype.element_ty), mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device, "bfloat16"), case.sizes["n"]
    src, dst = inputs.normal(n, dtype=torch.float32), inputs.unwritten(n)
    programs = 8 * multiprocessors(device)
    return Call(args=(src, dst, n), grid=lambda meta: (min(programs, triton.cdiv(n, meta["BLOCK"])),), outs=(dst,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    src, dst, _ = call.args
    return (src.to(dst.dtype),)


def work(call: Call) -> Work:
    return Work(flops=0.0, bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="cast",
    function=cast,
    space=Space.grid(
        {"BLOCK": [512, 1024, 2048, 4096], "num_warps": [4, 8], "num_stages": [1, 3]},
        default={"BLOCK": 1024, "num_warps": 4, "num_stages": 3},
        roles={"BLOCK": "tile", "num_warps": "threads", "num_stages": "stages"},
    ),
    key=("n",),
    cases=(
        Case(name="weights", sizes={"n": 4096 * 14336}),
        Case(name="model", sizes={"n": 2**28}),
        Case(name="small", sizes={"n": 4096}),
        Case(name="odd", sizes={"n": 10_000_019}, dtype="float16"),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 300}, dtype="float16"),
        Case(name="over_every_program", sizes={"n": 32 * 1024 + 5}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # Triton's interpreter cuts off where a GPU rounds
    atol=0.0,
)
