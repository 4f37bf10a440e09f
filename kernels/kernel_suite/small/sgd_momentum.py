"""A step of SGD with momentum in place, Nesterov's or the plain one, with weight decay."""

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

RATE, MOMENTUM, DECAY = 0.1, 0.9, 5e-4


@triton.jit  # type: ignore[untyped-decorator]
def sgd_momentum(  # type: ignore[no-untyped-def]
    p_ptr, g_ptr, buf_ptr, n, lr, momentum, weight_decay, NESTEROV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The buffer gathers gradients; parameters follow it."""
    idx = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = idx < n
    p = tl.load(p_ptr + idx, mask=inside)
    g = tl.load(g_ptr + idx, mask=inside).to(tl.float32) + weight_decay * p
    buf = momentum * tl.load(buf_ptr + idx, mask=inside) + g
    if NESTEROV:
        g += momentum * buf
    else:
        g = buf
    tl.store(buf_ptr + idx, buf, mask=inside)
    tl.store(p_ptr + idx, p - lr * g, mask=inside)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device, "float32"), case.sizes["n"]
    p, buf = (inputs.normal(n, dtype=torch.float32) for _ in range(2))
    return Call(
        args=(p, inputs.normal(n), buf, n, RATE, MOMENTUM, DECAY, bool(case.sizes.get("nesterov"))),
        grid=lambda meta: (triton.cdiv(n, meta["BLOCK"]),),
        outs=(p, buf),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    p, g, buf, *_, nesterov = call.args
    gradient = g.double() + DECAY * p.double()
    momentum = MOMENTUM * buf.double() + gradient
    step = gradient + MOMENTUM * momentum if nesterov else momentum
    return (p.double() - RATE * step).float(), momentum.float()


def work(call: Call) -> Work:
    return Work(flops=6.0 * call.args[3], bytes=moved(*call.args, *call.outs))


KERNEL = TritonKernel(
    name="sgd_momentum",
    function=sgd_momentum,
    space=Space.grid(
        {"BLOCK": [256, 1024, 4096], "num_warps": [4, 8]},
        default={"BLOCK": 1024, "num_warps": 4},
        roles={"BLOCK": "tile", "num_warps": "threads"},
    ),
    key=("n", "NESTEROV"),
    cases=(
        Case(name="resnet", sizes={"n": 25_557_032, "nesterov": 1}),
        Case(name="classifier", sizes={"n": 4096 * 4096}, dtype="float16"),
        Case(name="convolution", sizes={"n": 64 * 64 * 9}),
        Case(name="odd", sizes={"n": 102_760_449}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 111, "nesterov": 1}, dtype="float16"),
        Case(name="over_a_block", sizes={"n": 4099, "nesterov": 1}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-5,
    atol=1e-5,  # sums that cancel
    restore_value=("p_ptr", "buf_ptr"),
)
