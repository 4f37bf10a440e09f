"""A first Triton kernel: one line of it is ours, and every new size is tuned by the first call that has it.

Look at `@fa.autotune`, which stands where `@triton.autotune` would. The first config of the list is the default: what is
chosen must beat it beyond the noise. The key says when to decide anew. Call it as any Triton kernel.

Without a GPU this is a rehearsal: configs are compiled for an H200 and refused as there, but a launch computes nothing and
takes the time that `TIMES` gives it.

Prints a line for each size: the chosen config, its speed against the default's, and how many configs were tried.
"""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
import contextlib

import torch
import triton
import triton.language as tl

import forecast_autotune as fa

ON_GPU = torch.cuda.is_available()
TIMES = {fa.Config({"BLOCK": block}): us for block, us in {64: 90.0, 256: 35.0, 1024: 20.0, 4096: 28.0}.items()}


@fa.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=w) for block in (64, 256, 1024, 4096) for w in (2, 4, 8)],
    key=["n"],
)
@triton.jit
def silu_mul(gate_ptr, up_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + at, mask=at < n).to(tl.float32)
    up = tl.load(up_ptr + at, mask=at < n)
    tl.store(out_ptr + at, gate * tl.sigmoid(gate) * up, mask=at < n)


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    out = torch.empty_like(gate)
    n = gate.numel()
    silu_mul[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](gate, up, out, n)
    return out


if __name__ == "__main__":
    with contextlib.nullcontext() if ON_GPU else fa.rehearsal("H200", TIMES):
        for n in (1 << 20, 1 << 24):
            gate, up = torch.randn(2, n, device="cuda" if ON_GPU else "cpu")
            out = gated(gate, up)  # tunes; a second call of this size is a look-up
            if ON_GPU:
                torch.testing.assert_close(out, torch.nn.functional.silu(gate) * up, rtol=1e-4, atol=1e-4)
            best = silu_mul.best_config
            print(f"n={n}: {best.kwargs}, {best.num_warps} warps", end="")
            if not silu_mul.decisions:  # FORECAST_AUTOTUNE_MODE=first decides nothing
                print()
                continue
            decision = list(silu_mul.decisions.values())[-1]
            print(f": {decision.speedup or 1:.2f}x the default's speed,", end=" ")
            print(f"{decision.tried} of {decision.space_size} tried")
