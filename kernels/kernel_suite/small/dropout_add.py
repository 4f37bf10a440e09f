"""residual + dropout(x), the mask drawn where it is used: what a transformer block does after each of its halves."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved

P = 0.1


@triton.jit  # type: ignore[untyped-decorator]
def dropout_add(x_ptr, residual_ptr, keep_ptr, out_ptr, n, p, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Keep x where `keep` says so, scaled for what is lost, and add the residual."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    residual = tl.load(residual_ptr + offsets, mask=mask).to(tl.float32)
    keep = tl.load(keep_ptr + offsets, mask=mask, other=0)
    out = residual + tl.where(keep != 0, x / (1 - p), 0.0)
    tl.store(out_ptr + offsets, out, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device), case.sizes["n"]
    keep = (inputs.uniform(n, dtype=torch.float32) > P).to(torch.int8)
    x, residual, out = inputs.normal(n), inputs.normal(n), inputs.unwritten(n)

    def grid(meta: Mapping[str, int]) -> tuple[int, ...]:
        return (triton.cdiv(n, meta["BLOCK"]),)

    return Call(args=(x, residual, keep, out, n, P), grid=grid, outs=(out,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, residual, keep, out, _, p = call.args
    return ((residual.float() + x.float() * keep / (1 - p)).to(out.dtype),)


def work(call: Call) -> Work:
    return Work(flops=2.0 * call.outs[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="dropout_add",
    function=dropout_add,
    space=Space.grid(
        {"BLOCK": [512, 1024, 2048, 4096], "num_warps": [2, 4, 8]},
        default={"BLOCK": 1024, "num_warps": 4},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("n",),
    cases=(
        Case(name="block", sizes={"n": 4096 * 4096}),
        Case(name="batch", sizes={"n": 64 * 2048 * 1024}),
        Case(name="small", sizes={"n": 2**17}),
        Case(name="odd", sizes={"n": 12_345_677}),
        Case(name="training", sizes={"n": 8 * 1024 * 2560}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 77}),
        Case(name="over_a_block", sizes={"n": 4099}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-10,  # of float16, which is rounded to once
    atol=1e-4,
)
