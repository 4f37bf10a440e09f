"""unsloth (Apache-2.0): attention with large heads, whose queries see an interval of keys; both passes."""

from __future__ import annotations

import torch

from calibration.record.programs.attempts import DEVICE, attempt, backward, in_rounds, normal, on_path, without_init

on_path("unsloth")
without_init("unsloth")
without_init("unsloth.kernels")

from unsloth.kernels.large_head_attention import large_head_attention  # found on the path set above


def attention(batch: int, heads: int, of_keys: int, length: int, dim: int) -> None:
    """Causal attention."""
    q = normal(batch, heads, length, dim, grad=True)
    k, v = (normal(batch, of_keys, length, dim, grad=True) for _ in range(2))
    last = torch.arange(length, device=DEVICE, dtype=torch.int32).expand(batch, length).contiguous()
    backward(large_head_attention(q, k, v, torch.zeros_like(last), last))


def main() -> None:
    """Every attempt."""
    for sizes in ((1, 8, 4, 2048, 256), (2, 16, 8, 1024, 512), (1, 32, 8, 4096, 256)):
        attempt(f"attention {sizes}", lambda: attention(*sizes))


if __name__ == "__main__":
    in_rounds(main)
