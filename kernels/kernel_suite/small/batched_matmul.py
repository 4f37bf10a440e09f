"""Many small matrix products: a tile of one of them for each program of a grid in three dimensions."""

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
def batched_matmul(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of one product."""
    pid_m, pid_n, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    a = a_ptr + batch * stride_ab + rm[:, None] * stride_am + rk[None, :] * stride_ak
    b = b_ptr + batch * stride_bb + rk[:, None] * stride_bk + rn[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        left = tl.load(a, mask=(rm[:, None] < M) & (rk[None, :] < K - k), other=0.0)
        right = tl.load(b, mask=(rk[:, None] < K - k) & (rn[None, :] < N), other=0.0)
        total += tl.dot(left, right)
        a += BLOCK_K * stride_ak
        b += BLOCK_K * stride_bk
    c = c_ptr + batch * stride_cb + rm[:, None] * stride_cm + rn[None, :] * stride_cn
    tl.store(c, total.to(c_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


def make_call(case: Case, seed: int, device: str) -> Call:
    """Under `transposed` the second matrices lie transposed, as keys do."""
    inputs = Inputs(case, seed, device)
    B, M, N, K = (case.sizes[name] for name in "BMNK")
    a, c = inputs.normal(B, M, K), inputs.unwritten(B, M, N)
    b = inputs.normal(B, N, K).transpose(1, 2) if case.sizes.get("transposed") else inputs.normal(B, K, N)
    return Call(
        args=(a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride()),
        grid=lambda meta: (triton.cdiv(M, meta["BLOCK_M"]), triton.cdiv(N, meta["BLOCK_N"]), B),
        outs=(c,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    a, b, c = call.args[:3]
    return (torch.bmm(a.double(), b.double()).to(c.dtype),)


def work(call: Call) -> Work:
    a, b, c = call.args[:3]
    return Work(flops=2.0 * c.numel() * a.shape[2], bytes=moved(a, b, c))


KERNEL = TritonKernel(
    name="batched_matmul",
    function=batched_matmul,
    space=Space.grid(
        {"BLOCK_M": [32, 64], "BLOCK_N": [32, 64, 128], "BLOCK_K": [32, 64], "num_warps": [4], "num_stages": [2, 3]},
        default={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
        roles={
            "BLOCK_M": "tile", "BLOCK_N": "tile", "BLOCK_K": "tile", "num_warps": "threads", "num_stages": "stages",
        },
    ),
    key=("M", "N", "K"),
    cases=(
        Case(name="scores", sizes={"B": 384, "M": 512, "N": 512, "K": 64, "transposed": 1}),
        Case(name="values", sizes={"B": 384, "M": 512, "N": 64, "K": 512}),
        Case(name="tiny", sizes={"B": 16384, "M": 32, "N": 32, "K": 32}, dtype="bfloat16"),
        Case(name="one_row", sizes={"B": 256, "M": 1, "N": 4096, "K": 128, "transposed": 1}),
        Case(name="odd", sizes={"B": 33, "M": 197, "N": 301, "K": 99}),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "M": 1, "N": 1, "K": 1}),
        Case(name="below_a_block", sizes={"B": 3, "M": 5, "N": 7, "K": 9, "transposed": 1}),
        Case(name="over_a_block", sizes={"B": 2, "M": 67, "N": 130, "K": 65}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-2,  # sums that cancel
)  # fmt: skip
