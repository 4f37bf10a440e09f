"""A step of Lion in place (Chen et al., Symbolic Discovery of Optimization Algorithms, 2023): each of one length."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved, multiprocessors

RATE, BETA1, BETA2, DECAY = 1e-2, 0.9, 0.99, 0.1


@triton.jit  # type: ignore[untyped-decorator]
def lion(  # type: ignore[no-untyped-def]
    param_ptr, grad_ptr, momentum_ptr, n_elements, lr, beta1, beta2, decay,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Each program goes on by all that the others take until nothing is left."""
    start = tl.program_id(0) * BLOCK_SIZE
    step = tl.num_programs(0) * BLOCK_SIZE
    for base in tl.range(start, n_elements, step):
        offs = base + tl.arange(0, BLOCK_SIZE)
        mask = offs < n_elements
        param = tl.load(param_ptr + offs, mask=mask).to(tl.float32)
        grad = tl.load(grad_ptr + offs, mask=mask).to(tl.float32)
        momentum = tl.load(momentum_ptr + offs, mask=mask).to(tl.float32)
        update = beta1 * momentum + (1 - beta1) * grad
        sign = (update > 0).to(tl.float32) - (update < 0).to(tl.float32)
        tl.store(param_ptr + offs, param * (1 - lr * decay) - lr * sign, mask=mask)
        tl.store(momentum_ptr + offs, beta2 * momentum + (1 - beta2) * grad, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Gradients are integers and momenta lie halfway between two, so that no update cancels, whose sign could be either."""
    inputs, n = Inputs(case, seed, device, "bfloat16"), case.sizes["n"]
    param, grad, momentum = inputs.normal(n), inputs.normal(n).mul_(3).round_(), inputs.normal(n).round_().add_(0.5)
    programs = 16 * multiprocessors(device)
    return Call(
        args=(param, grad, momentum, n, RATE, BETA1, BETA2, DECAY),
        grid=lambda meta: (min(programs, triton.cdiv(n, meta["BLOCK_SIZE"])),),
        outs=(param, momentum),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    param, grad, momentum = (t.double() for t in call.args[:3])
    sign = (BETA1 * momentum + (1 - BETA1) * grad).sign()
    stepped, gathered = param * (1 - RATE * DECAY) - RATE * sign, BETA2 * momentum + (1 - BETA2) * grad
    return stepped.to(call.args[0].dtype), gathered.to(call.args[2].dtype)


def work(call: Call) -> Work:
    return Work(flops=9.0 * call.args[3], bytes=moved(*call.args, *call.outs))


KERNEL = TritonKernel(
    name="lion",
    function=lion,
    space=Space.grid(
        {"BLOCK_SIZE": [512, 1024, 2048, 4096], "num_warps": [4, 8], "num_stages": [1, 2, 4]},
        default={"BLOCK_SIZE": 1024, "num_warps": 4, "num_stages": 2},
        roles={"BLOCK_SIZE": "tile", "num_warps": "threads", "num_stages": "stages"},
    ),
    key=("n_elements",),
    cases=(
        Case(name="embedding", sizes={"n": 50257 * 4096}),
        Case(name="linear", sizes={"n": 4096 * 4096}, dtype="float32"),
        Case(name="norm", sizes={"n": 4096}),
        Case(name="odd", sizes={"n": 33_333_331}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 130}, dtype="float32"),
        Case(name="over_every_program", sizes={"n": 64 * 1024 + 7}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-6,
    restore_value=("param_ptr", "momentum_ptr"),
)
