"""relu(x) squared, as some language models take it for GELU."""

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
def relu_squared(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One block of elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    x = tl.maximum(x, 0.0)
    tl.store(y_ptr + i, x * x, mask=i < n)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device), case.sizes["n"]
    x, y = inputs.normal(n), inputs.unwritten(n)
    return Call(args=(x, y, n), grid=lambda meta: (triton.cdiv(n, meta["BLOCK"]),), outs=(y,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, y, _ = call.args
    return (x.float().relu().square().to(y.dtype),)


def work(call: Call) -> Work:
    return Work(flops=2.0 * call.args[2], bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="relu_squared",
    function=relu_squared,
    space=Space(
        [{"BLOCK": block} for block in (1024, 128, 256, 512, 2048, 4096, 8192)],
        roles={"BLOCK": "tile"},
    ),
    key=("n",),
    cases=(
        Case(name="hidden", sizes={"n": 8192 * 8192}),
        Case(name="one_token", sizes={"n": 16384}),
        Case(name="batch", sizes={"n": 32 * 512 * 3072}, dtype="float32"),
        Case(name="odd", sizes={"n": 1_234_567}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 65}, dtype="float32"),
        Case(name="over_a_block", sizes={"n": 8200}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-10,  # a unit in float16's last place
    atol=1e-7,
)
