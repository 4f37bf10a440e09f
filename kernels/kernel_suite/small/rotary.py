"""Rotary embedding that turns the first half of a head against the second, forward or backward."""

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
def rotary(  # type: ignore[no-untyped-def]
    out_ptr, x_ptr, cos_ptr, sin_ptr, length, heads,
    HALF: tl.constexpr, BACKWARD: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Some heads of one token, which share its angles."""
    token = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    cols = tl.arange(0, HALF)
    angle = (token % length) * HALF + cols
    cos = tl.load(cos_ptr + angle)[None, :]
    sin = tl.load(sin_ptr + angle)[None, :]
    if BACKWARD:
        sin = -sin
    at = (token.to(tl.int64) * heads + head)[:, None] * (2 * HALF) + cols[None, :]
    mask = (head < heads)[:, None]
    first = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + at + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, first * cos - second * sin, mask=mask)
    tl.store(out_ptr + at + HALF, second * cos + first * sin, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs = Inputs(case, seed, device)
    batch, length, heads, width = (case.sizes[name] for name in ("batch", "length", "heads", "width"))
    x, out = inputs.normal(batch, length, heads, width), inputs.unwritten(batch, length, heads, width)
    frequency = 10000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    angle = torch.arange(length, device=device)[:, None] * frequency
    return Call(
        args=(out, x, angle.cos(), angle.sin(), length, heads, width // 2, bool(case.sizes.get("backward"))),
        grid=lambda meta: (batch * length, triton.cdiv(heads, meta["BLOCK_H"])),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    """As a product of complex numbers; backward turns the other way round."""
    out, x, cos, sin, *_, backward = call.args
    turn = torch.complex(cos.double(), -sin.double() if backward else sin.double())[:, None, :]
    turned = torch.complex(*x.double().chunk(2, dim=-1)) * turn
    return (torch.cat((turned.real, turned.imag), dim=-1).to(out.dtype),)


def work(call: Call) -> Work:
    return Work(flops=3.0 * call.outs[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="rotary",
    function=rotary,
    space=Space.grid(
        {"BLOCK_H": [1, 2, 4, 8, 16], "num_warps": [1, 2, 4]},
        default={"BLOCK_H": 4, "num_warps": 4},
        roles={"BLOCK_H": "tile", "num_warps": "threads"},
    ),
    key=("length", "heads", "HALF", "BACKWARD"),
    cases=(
        Case(name="prompt", sizes={"batch": 2, "length": 4096, "heads": 32, "width": 128}, dtype="bfloat16"),
        Case(name="keys", sizes={"batch": 4, "length": 8192, "heads": 8, "width": 128}),
        Case(name="backward", sizes={"batch": 8, "length": 1024, "heads": 16, "width": 64, "backward": 1}),
        Case(name="odd", sizes={"batch": 3, "length": 1111, "heads": 14, "width": 64}, dtype="float32"),
        Case(name="short", sizes={"batch": 64, "length": 16, "heads": 40, "width": 128}),
    ),
    corners=(
        Case(name="one", sizes={"batch": 1, "length": 1, "heads": 1, "width": 16}),
        Case(name="few_heads", sizes={"batch": 2, "length": 3, "heads": 5, "width": 32}, dtype="bfloat16"),
        Case(
            name="back_over_a_block",
            sizes={"batch": 1, "length": 3, "heads": 17, "width": 16, "backward": 1},
            dtype="float32",
        ),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-3,
)
