"""SGLang (Apache-2.0): scans of state-space models, sparse attention, rotary embeddings and norms of diffusion models.

Of the package only these files are needed; stand-ins answer what they ask of the rest. Its copies of
flash-linear-attention's kernels are left out.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from calibration.record.programs.attempts import (
    DEVICE,
    attempt,
    in_rounds,
    normal,
    on_path,
    scaled,
    stand_in,
    without_init,
)

on_path("sglang")
for package in (
    "sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention", "sglang.kernels.ops.mamba",
    "sglang.kernels.ops.mamba.triton_ops", "sglang.kernels.ops.diffusion",
):  # fmt: skip
    without_init(package)


def _no() -> bool:
    return False


def _unchanged(function: Any = None, *_: Any, **__: Any) -> Any:
    return function if callable(function) else _unchanged


for name in (
    "sglang.srt",
    "sglang.kernels.jit",
    "sglang.kernels.ops.diffusion.common",
    "sglang.kernels.ops.attention.fla",
):
    stand_in(name)
stand_in("sglang.kernels.ops.attention.fla.utils", autotune_cache_kwargs={})
stand_in("sglang.kernels.jit.utils", is_arch_support_pdl=_no)
stand_in("sglang.srt.utils", is_gfx95_supported=_no, is_xpu=_no, is_hip=_no, is_cuda=lambda: True)
stand_in("sglang.srt.utils.custom_op", register_custom_op=_unchanged)
stand_in("sglang.srt.environ", envs=SimpleNamespace(SGLANG_OPT_USE_MINIMAX_DECODE_TOPK_RADIX=SimpleNamespace(get=_no)))
stand_in("sglang.srt.runtime_context", get_platform=lambda: SimpleNamespace(is_sm90=True, is_sm100=False))
stand_in("sglang.kernels.ops.diffusion.common.platform", select_impl=_unchanged, lazy_fallback=_unchanged)

from sglang.kernels.ops.attention.minimax_sparse.decode.flash_with_topk_idx import flash_decode_with_topk_idx
from sglang.kernels.ops.attention.minimax_sparse.prefill.flash_with_topk_idx import flash_prefill_with_topk_index
from sglang.kernels.ops.attention.minimax_sparse.prefill.topk_sparse import flash_prefill_with_gqa_share_sparse
from sglang.kernels.ops.diffusion.norm.norm_triton import rms_norm_fn
from sglang.kernels.ops.diffusion.rope.hunyuan_qkv_pack_triton import hunyuan_qkv_rope_pack
from sglang.kernels.ops.diffusion.rope.rotary_triton import apply_rotary_embedding
from sglang.kernels.ops.mamba.triton_ops.ssd_combined import mamba_chunk_scan_combined


def scan(batch: int, length: int, heads: int, dim: int, state: int, chunk: int) -> None:
    """The scan as its layer calls it."""
    x = normal(batch, length, heads, dim)
    b, c = normal(batch, length, 8, state), normal(batch, length, 8, state)
    one = torch.rand(heads, device=DEVICE)
    mamba_chunk_scan_combined(
        x,
        normal(batch, length, heads),
        -one,
        b,
        c,
        chunk,
        D=one,
        dt_bias=one,
        dt_softplus=True,
        out=torch.empty_like(x),
    )


def sparse_attention(batch: int, length: int, heads: int, of_keys: int, dim: int, top: int) -> None:
    """Blocks of keys chosen by score, then attention to them; a prompt, and one token more."""
    total = batch * length
    k, v = normal(total, of_keys, dim), normal(total, of_keys, dim)
    slots = torch.arange(total, device=DEVICE, dtype=torch.int32).view(batch, length)
    of_slot = torch.arange(batch, device=DEVICE, dtype=torch.int32)
    starts = torch.arange(batch + 1, device=DEVICE, dtype=torch.int32) * length
    lengths, before = torch.full_like(of_slot, length), torch.zeros_like(of_slot)
    q = normal(total, heads, dim)
    label = f"{batch}x{length}, {heads} heads of {dim}"

    def prompt(without_values: bool) -> None:
        flash_prefill_with_topk_index(
            q, k, None if without_values else v, None, slots, of_slot, starts, lengths, before, length, length, 1, 128, top,
            disable_index_value=without_values, cu_seqblocks_q=starts, max_seqblock_q=length, all_seqblock_q=total,
        )  # fmt: skip

    chosen = (
        (torch.arange(top, device=DEVICE, dtype=torch.int32) % (length // 128)).expand(of_keys, total, top).contiguous()
    )
    attempt(f"prompt {label}", lambda: prompt(False))
    attempt(f"prompt, scores only {label}", lambda: prompt(True))
    attempt(
        f"prompt, chosen blocks {label}",
        lambda: flash_prefill_with_gqa_share_sparse(
            q, k, v, None, slots, of_slot, chosen, 1, 128, starts, lengths, before, length, cu_seqblocks_q=starts,
            max_seqblock_q=length,
        ),
    )  # fmt: skip
    for without in (False, True):
        attempt(
            f"decoding {label}",
            lambda without=without: flash_decode_with_topk_idx(
                normal(batch, heads, dim), None, k, None if without else v, slots, lengths, length, of_slot, 128, top, 1, 2,
                disable_index_value=without,
            ),
        )  # fmt: skip


def diffusion(batch: int, tokens: int, heads: int, dim: int) -> None:
    """Rotary embeddings and norms of a diffusion model."""
    x, angles = normal(batch, tokens, heads, dim), normal(tokens, dim // 2, dtype=torch.float32)
    text = normal(batch, 256, heads, dim)
    label = f"{batch}x{tokens}x{heads}x{dim}"
    attempt(f"rotary {label}", lambda: apply_rotary_embedding(x, angles, angles))
    attempt(f"rotary, packed {label}", lambda: hunyuan_qkv_rope_pack(x, x, x, text, text, text, angles, angles))
    rows = x.view(batch * tokens, heads * dim)
    attempt(f"RMS norm {label}", lambda: rms_norm_fn(rows, scaled(heads * dim), None, residual=rows))


def main() -> None:
    """Every attempt."""
    for sizes in (
        (4, 2048, 32, 64, 128, 256),
        (1, 8192, 80, 64, 128, 256),
        (8, 1024, 16, 64, 64, 128),
        (2, 4096, 24, 128, 256, 256),
    ):
        attempt(f"scan {sizes}", lambda: scan(*sizes))
    for sizes in ((1, 8192, 4, 1, 128, 16), (4, 4096, 8, 2, 128, 16), (1, 16384, 4, 1, 64, 32)):
        sparse_attention(*sizes)
    for sizes in ((1, 4096, 24, 128), (2, 1024, 16, 64), (1, 32768, 24, 128)):
        diffusion(*sizes)


if __name__ == "__main__":
    in_rounds(main)
