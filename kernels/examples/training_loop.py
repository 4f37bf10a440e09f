"""Training with a tuned kernel, forward and backward; its decisions lie in the checkpoint, beside the weights.

Look at `SquaredReLU`, which launches a tuned kernel as it would launch another, and at FORECAST_AUTOTUNE_DIR: a run that
goes on from a checkpoint tunes nothing. Start it twice. Without a GPU it is a rehearsal (see first_triton_kernel.py).

Prints the loss (where it is computed), first and last; for both directions the config, and which run decided it.
"""

import contextlib
import os
import time

import torch
import triton
import triton.language as tl

import forecast_autotune as fa

os.environ.setdefault("FORECAST_AUTOTUNE_DIR", "checkpoint/decisions")
ON_GPU, BEGAN = torch.cuda.is_available(), time.time()
TIMES = {fa.Config({"BLOCK": block}): us for block, us in {64: 90.0, 256: 35.0, 1024: 20.0}.items()}
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 256, 1024) for warps in (2, 4, 8)]


@fa.autotune(configs=CONFIGS, key=["n", "BACKWARD"])
@triton.jit
def square(x, dy, out, n, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    positive = tl.maximum(tl.load(x + at, mask=at < n), 0.0)
    slope = 2.0 * tl.load(dy + at, mask=at < n) if BACKWARD else positive
    tl.store(out + at, positive * slope, mask=at < n)


def launch(x, dy, backward):
    out, n = torch.empty_like(x), x.numel()
    square[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, dy, out, n, backward)
    return out


class SquaredReLU(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: ctx.save_for_backward(x) or launch(x, x, False))
    backward = staticmethod(lambda ctx, dy: launch(*ctx.saved_tensors, dy.contiguous(), True))


with contextlib.nullcontext() if ON_GPU else fa.rehearsal("H200", TIMES):
    x = torch.randn(4096, 64, device="cuda" if ON_GPU else "cpu")
    weight, losses = torch.randn(64, 256).to(x).requires_grad_(), []
    for _ in range(50):
        loss = (SquaredReLU.apply(x @ weight).mean(1) - x.square().mean(1)).square().mean()
        losses.append(loss.item())
        (slope,) = torch.autograd.grad(loss, weight)
        weight.data -= 0.1 * slope
if ON_GPU:
    print(f"loss {losses[0]:.1f}, then {losses[-1]:.1f}")
    os.makedirs("checkpoint", exist_ok=True)
    torch.save(weight, "checkpoint/weight.pt")
for (_, backward, *_), decision in square.decisions.items():
    print("backward:" if backward else "forward:", decision.config, end=": ")
    print("decided now" if decision.decided_at > BEGAN else "decided by an earlier run")
