"""Rotary embedding in place that turns each pair of neighbours."""

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
def rotary_interleaved(x_ptr, cos_ptr, sin_ptr, pairs, row_pairs, HALF: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """BLOCK pairs, whichever tokens and heads they are of."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pair < pairs
    token = pair // row_pairs
    angle = token * HALF + pair % HALF
    cos = tl.load(cos_ptr + angle, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=mask, other=0.0)
    x0 = tl.load(x_ptr + 2 * pair, mask=mask, other=0.0).to(tl.float32)
    x1 = tl.load(x_ptr + 2 * pair + 1, mask=mask, other=0.0).to(tl.float32)
    tl.store(x_ptr + 2 * pair, x0 * cos - x1 * sin, mask=mask)
    tl.store(x_ptr + 2 * pair + 1, x0 * sin + x1 * cos, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs = Inputs(case, seed, device)
    tokens, heads, width = (case.sizes[name] for name in ("tokens", "heads", "width"))
    x = inputs.normal(tokens, heads, width)
    frequency = 500000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    angle = torch.arange(tokens, device=device)[:, None] * frequency
    pairs = tokens * heads * width // 2
    return Call(
        args=(x, angle.cos(), angle.sin(), pairs, heads * width // 2, width // 2),
        grid=lambda meta: (triton.cdiv(pairs, meta["BLOCK"]),),
        outs=(x,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, cos, sin = call.args[:3]
    pairs = torch.view_as_complex(x.double().reshape(*x.shape[:2], -1, 2))
    turned = pairs * torch.complex(cos.double(), sin.double())[:, None, :]
    return (torch.view_as_real(turned).reshape(x.shape).to(x.dtype),)


def work(call: Call) -> Work:
    return Work(flops=3.0 * call.outs[0].numel(), bytes=moved(*call.args, *call.outs))


KERNEL = TritonKernel(
    name="rotary_interleaved",
    function=rotary_interleaved,
    space=Space.grid(
        {"BLOCK": [128, 256, 512, 1024], "num_warps": [1, 2, 4, 8]},
        constraints=[lambda BLOCK, num_warps: 32 * num_warps <= BLOCK],
        default={"BLOCK": 512, "num_warps": 4},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("pairs", "HALF"),
    cases=(
        Case(name="prompt", sizes={"tokens": 8192, "heads": 32, "width": 128}, dtype="bfloat16"),
        Case(name="decode", sizes={"tokens": 128, "heads": 64, "width": 128}),
        Case(name="latent", sizes={"tokens": 16384, "heads": 16, "width": 64}, dtype="bfloat16"),
        Case(name="odd", sizes={"tokens": 1777, "heads": 12, "width": 96}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"tokens": 1, "heads": 1, "width": 2}),
        Case(name="below_a_block", sizes={"tokens": 3, "heads": 2, "width": 12}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"tokens": 5, "heads": 9, "width": 50}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-3,
    restore_value=("x_ptr",),
)
