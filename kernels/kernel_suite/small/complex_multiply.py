"""The product of two complex vectors whose real and imaginary parts lie side by side."""

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
def complex_multiply(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """(a + bi)(c + di), by parts."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a_real = tl.load(a_ptr + 2 * offsets, mask=mask).to(tl.float32)
    a_imag = tl.load(a_ptr + 2 * offsets + 1, mask=mask).to(tl.float32)
    b_real = tl.load(b_ptr + 2 * offsets, mask=mask).to(tl.float32)
    b_imag = tl.load(b_ptr + 2 * offsets + 1, mask=mask).to(tl.float32)
    tl.store(out_ptr + 2 * offsets, a_real * b_real - a_imag * b_imag, mask=mask)
    tl.store(out_ptr + 2 * offsets + 1, a_real * b_imag + a_imag * b_real, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device, "float32"), case.sizes["n"]
    a, b, out = inputs.normal(n, 2), inputs.normal(n, 2), inputs.unwritten(n, 2)
    return Call(args=(a, b, out, n), grid=lambda meta: (triton.cdiv(n, meta["BLOCK"]),), outs=(out,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    a, b, out, _ = call.args
    product = torch.view_as_complex(a.double()) * torch.view_as_complex(b.double())
    return (torch.view_as_real(product).to(out.dtype),)


def work(call: Call) -> Work:
    return Work(flops=6.0 * call.args[3], bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="complex_multiply",
    function=complex_multiply,
    space=Space.grid(
        {"BLOCK": [256, 512, 1024, 2048], "num_warps": [2, 4, 8]},
        default={"BLOCK": 1024, "num_warps": 4},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("n",),
    cases=(
        Case(name="spectrum", sizes={"n": 2**24}),
        Case(name="image", sizes={"n": 1024 * 1024}),
        Case(name="signal", sizes={"n": 48_000}),
        Case(name="odd", sizes={"n": 7_654_321}, dtype="float16"),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 99}, dtype="float16"),
        Case(name="over_a_block", sizes={"n": 2050}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-10,  # a unit in float16's last place
    atol=1e-5,  # sums that cancel
)
