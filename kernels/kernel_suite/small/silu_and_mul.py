"""silu(gate) * up, where each row holds first the gate and then the other half."""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
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
def silu_and_mul(x_ptr, out_ptr, stride_x, stride_out, N, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """A part of one row."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = cols < N
    gate = tl.load(x_ptr + row * stride_x + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride_x + N + cols, mask=mask, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * stride_out + cols, out, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, M, N = Inputs(case, seed, device, "bfloat16"), case.sizes["M"], case.sizes["N"]
    x, out = inputs.normal(M, 2 * N), inputs.unwritten(M, N)
    return Call(
        args=(x, out, x.stride(0), out.stride(0), N),
        grid=lambda meta: (M, triton.cdiv(N, meta["BLOCK_N"])),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, out = call.args[:2]
    gate, up = x.double().chunk(2, dim=1)
    return ((torch.nn.functional.silu(gate) * up).to(out.dtype),)


def work(call: Call) -> Work:
    return Work(flops=5.0 * call.outs[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="silu_and_mul",
    function=silu_and_mul,
    space=Space.grid(
        {"BLOCK_N": [256, 512, 1024, 2048, 4096], "num_warps": [4, 8]},
        default={"BLOCK_N": 1024, "num_warps": 4},
        roles={"BLOCK_N": "tile", "num_warps": "threads"},
    ),
    key=("N",),
    cases=(
        Case(name="prompt", sizes={"M": 8192, "N": 14336}),
        Case(name="one_token", sizes={"M": 1, "N": 18944}),
        Case(name="batch", sizes={"M": 256, "N": 11008}, dtype="float16"),
        Case(name="experts", sizes={"M": 65536, "N": 768}),
        Case(name="odd", sizes={"M": 1111, "N": 2731}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1}),
        Case(name="below_a_block", sizes={"M": 3, "N": 70}, dtype="float32"),
        Case(name="over_a_block", sizes={"M": 2, "N": 4097}, dtype="float16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-6,
)
