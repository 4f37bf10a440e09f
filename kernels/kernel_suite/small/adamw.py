"""A step of AdamW in place: moments in float32, parameters in what the model is kept in."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved

RATE, BETA1, BETA2, EPSILON, DECAY, STEP = 1e-2, 0.9, 0.95, 1e-8, 0.1, 10


@triton.jit  # type: ignore[untyped-decorator]
def adamw(  # type: ignore[no-untyped-def]
    param_ptr, grad_ptr, mean_ptr, square_ptr, n,
    lr, beta1, beta2, eps, weight_decay, correction1, correction2,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Decay the parameters, update both moments, and step along their quotient."""
    pid = tl.program_id(axis=0)
    offsets = pid.to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    param = tl.load(param_ptr + offsets, mask=mask).to(tl.float32)
    grad = tl.load(grad_ptr + offsets, mask=mask).to(tl.float32)
    mean = tl.load(mean_ptr + offsets, mask=mask)
    square = tl.load(square_ptr + offsets, mask=mask)
    mean = beta1 * mean + (1.0 - beta1) * grad
    square = beta2 * square + (1.0 - beta2) * grad * grad
    denominator = tl.sqrt(square / correction2) + eps
    param = param * (1.0 - lr * weight_decay) - lr * (mean / correction1) / denominator
    tl.store(mean_ptr + offsets, mean, mask=mask)
    tl.store(square_ptr + offsets, square, mask=mask)
    tl.store(param_ptr + offsets, param, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device, "float32"), case.sizes["n"]
    param, grad = inputs.normal(n), inputs.normal(n)
    mean, square = inputs.normal(n, dtype=torch.float32).mul_(0.1), inputs.uniform(n, dtype=torch.float32)
    constants = (RATE, BETA1, BETA2, EPSILON, DECAY, 1 - BETA1**STEP, 1 - BETA2**STEP)

    def grid(meta: Mapping[str, int]) -> tuple[int, ...]:
        return (triton.cdiv(n, meta["BLOCK_SIZE"]),)

    return Call(args=(param, grad, mean, square, n, *constants), grid=grid, outs=(param, mean, square))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    param, grad, mean, square = (t.double() for t in call.args[:4])
    mean, square = BETA1 * mean + (1 - BETA1) * grad, BETA2 * square + (1 - BETA2) * grad**2
    step = mean / (1 - BETA1**STEP) / ((square / (1 - BETA2**STEP)).sqrt() + EPSILON)
    param = param * (1 - RATE * DECAY) - RATE * step
    return param.to(call.args[0].dtype), mean.float(), square.float()


def work(call: Call) -> Work:
    """Everything is read, and all but the gradient is written."""
    return Work(flops=16.0 * call.args[0].numel(), bytes=moved(*call.args, *call.outs))


KERNEL = TritonKernel(
    name="adamw",
    function=adamw,
    space=Space.grid(
        {"BLOCK_SIZE": [256, 512, 1024, 2048], "num_warps": [2, 4, 8]},
        default={"BLOCK_SIZE": 1024, "num_warps": 4},
        roles={"BLOCK_SIZE": "tile", "num_warps": "threads"},
    ),
    key=("n",),
    cases=(
        Case(name="embedding", sizes={"n": 32000 * 4096}, dtype="bfloat16"),
        Case(name="linear", sizes={"n": 4096 * 11008}),
        Case(name="attention", sizes={"n": 2048 * 2048}, dtype="bfloat16"),
        Case(name="bias", sizes={"n": 8192}),
        Case(name="odd", sizes={"n": 768 * 50257 + 1}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 77}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"n": 2051}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # of bfloat16, which parameters are rounded to
    atol=1e-5,
    restore_value=("param_ptr", "mean_ptr", "square_ptr"),
)
