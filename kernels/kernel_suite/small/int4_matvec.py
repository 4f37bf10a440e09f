"""A vector times a matrix of 4-bit weights in Triton, two to a byte along each row, a scale and an offset for each group."""

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
def int4_matvec(  # type: ignore[no-untyped-def]
    packed_ptr,
    scale_ptr,
    least_ptr,
    x_ptr,
    y_ptr,
    N,
    K,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """BLOCK_N rows of the matrix, BLOCK_K of their columns at a time."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_N,), tl.float32)
    for start in range(0, K // 2, BLOCK_K // 2):
        pair = start + tl.arange(0, BLOCK_K // 2)
        mask = (n < N)[:, None] & (pair < K // 2)[None, :]
        both = tl.load(packed_ptr + n[:, None] * (K // 2) + pair[None, :], mask=mask, other=0)
        group = n[:, None] * (K // GROUP) + (pair // (GROUP // 2))[None, :]
        scale = tl.load(scale_ptr + group, mask=mask, other=0.0)
        least = tl.load(least_ptr + group, mask=mask, other=0.0)
        even = tl.load(x_ptr + 2 * pair, mask=pair < K // 2, other=0.0).to(tl.float32)
        odd = tl.load(x_ptr + 2 * pair + 1, mask=pair < K // 2, other=0.0).to(tl.float32)
        low = (both & 15).to(tl.float32) * scale + least
        high = (both >> 4).to(tl.float32) * scale + least
        total += tl.sum(low * even[None, :] + high * odd[None, :], 1)
    tl.store(y_ptr + n, total.to(y_ptr.dtype.element_ty), mask=n < N)


SPACE = Space.grid(
    {"BLOCK_N": [4, 8, 16], "BLOCK_K": [256, 512, 1024], "num_warps": [2, 4]},
    default={"BLOCK_N": 8, "BLOCK_K": 512, "num_warps": 4},
    roles={"BLOCK_N": "tile", "BLOCK_K": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    n, k, group = (case.sizes[name] for name in ("n", "k", "group"))
    inputs = Inputs(case, seed, device, "bfloat16")
    packed = inputs.integers(256, n, k // 2, dtype=torch.uint8)
    scale = inputs.uniform(n, k // group, dtype=torch.float32).mul_(0.1)
    least = scale * -7.5
    x, y = inputs.normal(k), inputs.unwritten(n)
    return Call(
        args=(packed, scale, least, x, y, n, k, group),
        grid=lambda knobs: (triton.cdiv(n, knobs["BLOCK_N"]),),
        outs=(y,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    packed, scale, least, x, y, _, _, group = call.args
    steps = torch.stack((packed & 15, packed >> 4), 2).flatten(1).float().unflatten(1, (-1, group))
    weight = (steps * scale[..., None] + least[..., None]).flatten(1)
    return ((weight.double() @ x.double()).to(y.dtype),)


def work(call: Call) -> Work:
    """A product and a sum for the weight, and again for the vector."""
    packed = call.args[0]
    return Work(flops=8.0 * packed.numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="int4_matvec",
    function=int4_matvec,
    space=SPACE,
    key=("N", "K", "GROUP"),
    cases=(
        Case(name="up", sizes={"n": 14336, "k": 4096, "group": 128}),
        Case(name="down", sizes={"n": 4096, "k": 14336, "group": 128}, dtype="float16"),
        Case(name="head", sizes={"n": 128256, "k": 4096, "group": 128}),
        Case(name="small", sizes={"n": 2048, "k": 2048, "group": 32}),
        Case(name="odd", sizes={"n": 3001, "k": 64 * 47, "group": 64}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1, "k": 16, "group": 16}),
        Case(name="below_a_block", sizes={"n": 3, "k": 96, "group": 32}, dtype="float16"),
        Case(name="over_blocks", sizes={"n": 21, "k": 1088, "group": 64}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=2e-3,
)
