"""GELU, by the error function or by the approximation that takes a tanh."""

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
def gelu(x_ptr, out_ptr, n, APPROXIMATE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """x times the chance that a normal number is below x."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n).to(tl.float32)
    if APPROXIMATE:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        y = x * tl.sigmoid(2 * inner)
    else:
        y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    tl.store(out_ptr + offs, y, mask=offs < n)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device), case.sizes["n"]
    x, out = inputs.normal(n).mul_(2), inputs.unwritten(n)
    return Call(
        args=(x, out, n, bool(case.sizes.get("approximate"))),
        grid=lambda meta: (triton.cdiv(n, meta["BLOCK"]),),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, out, _, approximate = call.args
    return (torch.nn.functional.gelu(x.double(), approximate="tanh" if approximate else "none").to(out.dtype),)


def work(call: Call) -> Work:
    return Work(flops=8.0 * call.args[2], bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="gelu",
    function=gelu,
    space=Space.grid(
        {"BLOCK": [256, 512, 1024, 2048], "num_warps": [2, 4, 8]},
        default={"BLOCK": 1024, "num_warps": 4},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("n", "APPROXIMATE"),
    cases=(
        Case(name="hidden", sizes={"n": 8192 * 16384}),
        Case(name="vision", sizes={"n": 64 * 197 * 3072, "approximate": 1}, dtype="bfloat16"),
        Case(name="one_token", sizes={"n": 16384}),
        Case(name="odd", sizes={"n": 9_999_991}, dtype="float32"),
        Case(name="approximate", sizes={"n": 2048 * 5120, "approximate": 1}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 123, "approximate": 1}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"n": 2049}, dtype="float32"),
        Case(name="approximate_over_a_block", sizes={"n": 2100, "approximate": 1}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=2e-6,
)
