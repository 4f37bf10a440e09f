"""The gradient of GELU by the error function, with what the forward pass was given."""

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
def gelu_backward(dy_ptr, x_ptr, dx_ptr, n_elements, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """dy times the normal distribution at x plus x times its density."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    below = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    tl.store(dx_ptr + offsets, dy * (below + x * density), mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device), case.sizes["n"]
    dy, x, dx = inputs.normal(n), inputs.normal(n), inputs.unwritten(n)
    return Call(args=(dy, x, dx, n), grid=lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),), outs=(dx,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    dy, x, dx, _ = call.args
    given = x.double().requires_grad_()
    torch.nn.functional.gelu(given).backward(dy.double())
    return (torch.as_tensor(given.grad).to(dx.dtype),)


def work(call: Call) -> Work:
    return Work(flops=12.0 * call.args[3], bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="gelu_backward",
    function=gelu_backward,
    space=Space.grid(
        {"BLOCK_SIZE": [512, 1024, 2048, 4096], "num_warps": [4, 8, 16]},
        default={"BLOCK_SIZE": 1024, "num_warps": 4},
        roles={"BLOCK_SIZE": "tile", "num_warps": "threads"},
    ),
    key=("n_elements",),
    cases=(
        Case(name="hidden", sizes={"n": 4096 * 16384}, dtype="bfloat16"),
        Case(name="small_model", sizes={"n": 8 * 1024 * 3072}),
        Case(name="few_tokens", sizes={"n": 12 * 8192}),
        Case(name="odd", sizes={"n": 3_333_333}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 200}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"n": 4100}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-5,
)
