"""Small kernels, a page each, as people write them: one function, its sizes, and a short list of configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from forecast_autotune.frontends.triton.simulated_driver import current_rehearsal

from ..suite import Case

KINDS: Mapping[str, Sequence[str]] = {
    "elementwise": (
        "add_bias",
        "masked_fill",
        "cast",
        "complex_multiply",
        "ema_update",
        "dropout_add",
    ),
    "activation": (
        "gelu",
        "gelu_backward",
        "silu_and_mul",
        "silu_and_mul_backward",
        "relu_squared",
        "softcap",
    ),
    "normalisation": (
        "softmax_backward",
        "log_softmax",
        "layer_norm_backward",
        "rms_norm_backward",
        "group_norm",
        "batch_norm_stats",
    ),
    "position": ("rotary", "rotary_interleaved"),
    "attention": ("attention_delta", "attention_dq", "attention_dkdv"),
    "loss": ("cross_entropy_backward",),
    "random": ("dropout",),
    "optimiser": ("adamw", "sgd_momentum", "lion"),
    "product": ("linear_gelu", "batched_matmul", "matvec"),
    "layout": ("outer_sum", "transpose_copy"),
    "scan": ("row_cumsum", "chunk_cumsum", "cumulative_logsumexp", "segmented_cumsum"),
    "recurrence": (
        "linear_attention_state",
        "retention_output",
        "retention_state_backward",
        "retention_recurrent",
        "selective_scan",
        "gated_recurrence",
        "gated_recurrence_backward",
    ),
    "convolution": (
        "causal_conv1d",
        "causal_conv1d_backward_input",
        "causal_conv1d_backward_weight",
        "im2col",
        "stencil",
    ),
    "pooling": ("max_pool2d", "average_pool2d", "global_average_pool", "sequence_mean", "upsample_nearest"),
    "gather": ("embedding", "embedding_backward", "combine_experts", "paged_cache_write"),
    "selection": ("router_topk", "row_argmax", "sort_rows", "top_p_mask", "bincount", "expert_ranks"),
    "quantisation": ("int8_per_token", "int8_dequantise", "int4_pack", "int4_matvec", "fp8_delayed_scale"),
    "reduction": (
        "column_sum",
        "row_variance",
        "cosine_similarity",
        "kl_divergence",
        "smoothed_cross_entropy",
        "l2_normalise",
        "causal_softmax",
    ),
}
"""Modules by what they compute; a new kernel is one more name here. Each has its `KERNEL`."""


class Inputs:
    """Random tensors of a call, of the type that its case names, or of `dtype`; equal for equal seeds."""

    def __init__(self, case: Case, seed: int, device: str, dtype: str = "float16") -> None:
        self.dtype: torch.dtype = getattr(torch, case.dtype or dtype)
        self._random = torch.Generator(device).manual_seed(seed)
        self._device = device

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers of mean 0 and deviation 1."""
        numbers = torch.randn(shape, generator=self._random, device=self._device)
        return numbers.to(dtype or self.dtype)

    def uniform(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Numbers from 0 to 1."""
        return torch.rand(shape, generator=self._random, device=self._device).to(dtype or self.dtype)

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Integers from 0 to below `high`."""
        return torch.randint(high, shape, generator=self._random, device=self._device, dtype=dtype)

    def unwritten(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """An output: NaN everywhere, or the least integer there is."""
        kind = dtype or self.dtype
        nothing = torch.nan if kind.is_floating_point else torch.iinfo(kind).min
        return torch.full(shape, nothing, dtype=kind, device=self._device)


def moved(*args: Any) -> float:
    """Bytes of the tensors among some arguments, each of them moved once."""
    return float(sum(arg.numel() * arg.element_size() for arg in args if isinstance(arg, torch.Tensor)))


def multiprocessors(device: str) -> int:
    """How many multiprocessors the GPU has, for persistent kernels, or a rehearsed one; 4 where there is none."""
    if (rehearsed := current_rehearsal()) is not None:
        return rehearsed.hardware.units
    return torch.cuda.get_device_properties(device).multi_processor_count if device.startswith("cuda") else 4
