"""vLLM (Apache-2.0): scans of state-space models over several sequences, scores of documents, blocks of keys by score.

Of the package only these files are needed; stand-ins answer what they ask of the rest. Its copies of
flash-linear-attention's kernels are left out.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from calibration.record.programs.attempts import (
    DEVICE,
    attempt,
    in_rounds,
    indices,
    normal,
    on_path,
    stand_in,
    without_init,
)

on_path("vllm")
for package in ("vllm", "vllm.model_executor", "vllm.model_executor.layers", "vllm.models", "vllm.v1", "vllm.v1.pool"):
    without_init(package)
without_init("vllm.models.minimax_m3")
without_init("vllm.models.minimax_m3.common")
without_init("vllm.models.minimax_m3.common.ops")
stand_in("vllm.triton_utils", triton=triton, tl=tl, HAS_TRITON=True)
stand_in("vllm.envs")
stand_in("vllm._custom_ops")
stand_in("vllm.logger", init_logger=logging.getLogger)
stand_in("vllm.utils")
stand_in("vllm.utils.math_utils", round_up=lambda x, y: -(-x // y) * y)
stand_in("vllm.utils.platform_utils", get_device_name_as_file_name=torch.cuda.get_device_name)
for name in ("vllm.v1.attention", "vllm.v1.attention.backends"):
    stand_in(name)
stand_in("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=0)
stand_in(
    "vllm.platforms",
    current_platform=SimpleNamespace(
        is_cuda=lambda: True, is_cpu=lambda: False, is_xpu=lambda: False, is_rocm=lambda: False, is_cuda_alike=lambda: True,
        is_device_capability=lambda _: False, is_arch_support_pdl=lambda: False,
        has_device_capability=lambda _: True, is_device_capability_family=lambda _: False,
    ),
)  # fmt: skip

from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen
from vllm.models.minimax_m3.common.ops import index_topk
from vllm.v1.pool.flash_maxsim.flash_maxsim_rerank import flash_maxsim_rerank_direct


def scan(sequences: int, length: int, heads: int, dim: int, state: int, chunk: int) -> None:
    """Sequences of one length, one after the other."""
    total, each = sequences * length, length // chunk
    x, b, c = normal(total, heads, dim), normal(total, 8, state), normal(total, 8, state)
    starts = torch.arange(sequences + 1, device=DEVICE, dtype=torch.int32) * length
    chunks = torch.arange(sequences * each + 1, device=DEVICE, dtype=torch.int32) * chunk
    last = torch.arange(1, sequences + 1, device=DEVICE, dtype=torch.int32) * each - 1
    of_chunk = torch.arange(sequences, device=DEVICE, dtype=torch.int32).repeat_interleave(each)
    mamba_chunk_scan_combined_varlen(
        x, normal(total, heads), -torch.rand(heads, device=DEVICE), b, c, chunk, starts, chunks, last, of_chunk,
        torch.empty_like(x), D=torch.rand(heads, device=DEVICE), dt_bias=torch.rand(heads, device=DEVICE), dt_softplus=True,
        initial_states=torch.zeros(sequences, heads, dim, state, device=DEVICE),
    )  # fmt: skip


def documents(count: int, tokens: int, of_query: int, dim: int) -> None:
    """A query scored against documents of one length."""
    starts = torch.arange(count, device=DEVICE, dtype=torch.int32) * tokens
    flash_maxsim_rerank_direct(
        normal(of_query, dim, dtype=torch.float16), normal(count * tokens, dim, dtype=torch.float16), starts,
        torch.full((count,), tokens, device=DEVICE, dtype=torch.int32), tokens,
    )  # fmt: skip


def blocks_of_keys(batch: int, length: int, heads: int, top: int) -> None:
    """The blocks that matter most to each query of a prompt."""
    total = batch * length
    score = normal(heads, total, -(-length // 128), dtype=torch.float32)
    starts = torch.arange(batch + 1, device=DEVICE, dtype=torch.int32) * length
    before = torch.zeros(batch, device=DEVICE, dtype=torch.int32)
    index_topk.minimax_m3_index_topk(score, starts, before, length, top, 1, 1)


def blocks_in_decoding(batch: int, longest: int, heads: int, top: int) -> None:
    """The same for one token of each sequence."""
    pages = longest // 128
    q, cache = normal(batch, heads, 128), normal(batch * pages, 128, 128)
    table = torch.arange(batch * pages, device=DEVICE, dtype=torch.int32).view(batch, pages)
    lengths = indices(longest, batch, dtype=torch.int32) + 1
    index_topk.minimax_m3_index_decode(q, cache, table, lengths, longest, top, 1, 1, heads, 1, 1)


def main() -> None:
    """Every attempt."""
    for sizes in (
        (4, 2048, 32, 64, 128, 256),
        (1, 8192, 80, 64, 128, 256),
        (16, 512, 16, 64, 64, 128),
        (2, 4096, 24, 128, 256, 256),
    ):
        attempt(f"scan {sizes}", lambda: scan(*sizes))
    for sizes in ((1000, 128, 32, 128), (100, 512, 32, 128), (5000, 64, 16, 96)):
        attempt(f"documents {sizes}", lambda: documents(*sizes))
    for sizes in ((1, 8192, 4, 16), (4, 4096, 1, 16), (1, 65536, 1, 32)):
        attempt(f"blocks of keys {sizes}", lambda: blocks_of_keys(*sizes))
        attempt(f"blocks of keys in decoding {sizes}", lambda: blocks_in_decoding(8 * sizes[0], *sizes[1:]))


if __name__ == "__main__":
    in_rounds(main)
