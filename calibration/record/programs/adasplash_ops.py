"""AdaSplash (MIT): sparse attention by entmax, and entmax itself; both passes."""

from __future__ import annotations

import torch

from calibration.record.programs.attempts import attempt, backward, in_rounds, normal, on_path

on_path("adasplash")

from adasplash import adasplash_v2, triton_entmax_v1, triton_entmax_v2  # found on the path set above


def attention(batch: int, heads: int, length: int, dim: int, steps: int) -> None:
    """Causal attention with so many steps of its search for the threshold."""
    q, k, v = (normal(batch, heads, length, dim, grad=True) for _ in range(3))
    backward(adasplash_v2(q, k, v, niter=steps))


def main() -> None:
    """Every attempt."""
    for m, n in ((4096, 4096), (512, 32768), (16384, 1024)):
        attempt(f"entmax {m}x{n}", lambda: backward(triton_entmax_v1(normal(m, n, dtype=torch.float32, grad=True))))
        attempt(
            f"entmax by histogram {m}x{n}",
            lambda: backward(triton_entmax_v2(normal(m, n, dtype=torch.float32, grad=True))),
        )
    for sizes in ((4, 16, 1024, 64), (1, 16, 4096, 128), (2, 8, 2048, 64)):
        for steps in (1, 3):
            attempt(f"attention {sizes}, {steps} steps", lambda steps=steps: attention(*sizes, steps))


if __name__ == "__main__":
    in_rounds(main)
