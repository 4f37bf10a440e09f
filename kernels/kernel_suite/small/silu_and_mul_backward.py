"""The gradient of silu(gate) * up, where gate and up take turns from column to column."""

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
def silu_and_mul_backward(dy_ptr, x_ptr, dx_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """BLOCK elements of dy, and twice as many of x and its gradient."""
    pid = tl.program_id(0).to(tl.int64)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    both = pid * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    dy = tl.load(dy_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + both, mask=both < 2 * n, other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(x, (BLOCK, 2)))
    sig = tl.sigmoid(gate)
    dgate = dy * up * sig * (1 + gate * (1 - sig))
    dup = dy * gate * sig
    tl.store(dx_ptr + both, tl.interleave(dgate, dup), mask=both < 2 * n)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, M, N = Inputs(case, seed, device, "bfloat16"), case.sizes["M"], case.sizes["N"]
    dy, x, dx = inputs.normal(M, N), inputs.normal(M, 2 * N), inputs.unwritten(M, 2 * N)
    return Call(args=(dy, x, dx, M * N), grid=lambda meta: (triton.cdiv(M * N, meta["BLOCK"]),), outs=(dx,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    dy, x, dx, _ = call.args
    given = x.double().requires_grad_()
    (torch.nn.functional.silu(given[:, ::2]) * given[:, 1::2]).backward(dy.double())
    return (torch.as_tensor(given.grad).to(dx.dtype),)


def work(call: Call) -> Work:
    return Work(flops=10.0 * call.args[3], bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="silu_and_mul_backward",
    function=silu_and_mul_backward,
    space=Space.grid(
        {"BLOCK": [256, 512, 1024, 2048], "num_warps": [2, 4, 8]},
        default={"BLOCK": 1024, "num_warps": 4},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("n",),
    cases=(
        Case(name="layer", sizes={"M": 4096, "N": 14336}),
        Case(name="small_model", sizes={"M": 2048, "N": 2816}, dtype="float16"),
        Case(name="few_rows", sizes={"M": 8, "N": 4096}),
        Case(name="odd", sizes={"M": 999, "N": 2731}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1}),
        Case(name="below_a_block", sizes={"M": 3, "N": 17}, dtype="float32"),
        Case(name="over_a_block", sizes={"M": 5, "N": 411}, dtype="float16"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-5,
)
