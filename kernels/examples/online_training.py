"""Training that starts at full speed: `mode="online"` compiles one config before the first step, and learns from the steps.

Look at the loop, which is any training loop: while candidates compile in the background, steps run the best known config,
and now and then a candidate in its place. Look at `fa.freeze()`: from then on every step runs the same configs. Without a
GPU it is a rehearsal (see first_triton_kernel.py).

Prints at which step each direction was decided, its config, and the loss (where it is computed), first and last.
"""

import contextlib
import time

import torch
import triton
import triton.language as tl

import forecast_autotune as fa

ON_GPU = torch.cuda.is_available()
TIMES = {fa.Config({"BLOCK": block}): us for block, us in {64: 9000.0, 256: 3500.0, 1024: 2000.0}.items()}
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 256, 1024)]


@fa.autotune(configs=CONFIGS, key=["n", "BACKWARD"], mode="online")
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
    x = torch.randn(256, 64, device="cuda" if ON_GPU else "cpu")
    weight, losses, decided, ends = torch.randn(64, 64).to(x).requires_grad_(), [], {}, time.time() + 60
    while time.time() < ends and len(decided) < 2:
        loss = (SquaredReLU.apply(x @ weight).mean(1) - x.square().mean(1)).square().mean()
        losses.append(loss.item())
        weight.data -= 0.1 * torch.autograd.grad(loss, weight)[0]
        for (_, backward, *_), decision in square.decisions.items():
            if decision.basis == "measured":
                decided.setdefault("backward" if backward else "forward", (len(losses), decision.config["BLOCK"]))
    fa.freeze()
for which, (step, block) in sorted(decided.items()):
    print(f"{which}: BLOCK={block}, decided at step {step} of {len(losses)}")
if ON_GPU:
    print(f"loss {losses[0]:.1f}, then {losses[-1]:.1f}")
