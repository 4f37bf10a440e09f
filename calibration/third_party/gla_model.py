"""A small language model of flash-linear-attention's operations: what a user of them trains."""

from __future__ import annotations

import torch
from fla.modules import FusedRMSNormGated, RMSNorm, ShortConvolution
from fla.modules.activations import swiglu
from fla.ops.gla import chunk_gla
from torch import nn


class GLABlock(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Gated linear attention with short convolutions and a gated norm, then a feed-forward layer with swiglu."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        size = heads * width
        self.heads = heads
        self.norm, self.feed_norm = RMSNorm(size), RMSNorm(size)
        self.project = nn.Linear(size, 5 * size, bias=False)  # queries, keys, values, decay, gate
        self.convolutions = nn.ModuleList(ShortConvolution(size, 4, activation="silu") for _ in range(3))
        self.gated_norm = FusedRMSNormGated(width)
        self.out = nn.Linear(size, size, bias=False)
        self.up, self.down = nn.Linear(size, 4 * size, bias=False), nn.Linear(2 * size, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of shape (batch, tokens, heads * width), as what it returns."""
        *mixed, decay, gate = self.project(self.norm(x)).chunk(5, dim=-1)
        q, k, v = (conv(each.contiguous())[0] for conv, each in zip(self.convolutions, mixed, strict=True))
        q, k, v, decay, gate = (each.unflatten(-1, (self.heads, -1)).contiguous() for each in (q, k, v, decay, gate))
        seen, _ = chunk_gla(q, k, v, nn.functional.logsigmoid(decay) / 16)
        x = x + self.out(self.gated_norm(seen, gate).flatten(-2))
        return x + self.down(swiglu(*(each.contiguous() for each in self.up(self.feed_norm(x)).chunk(2, dim=-1))))


class GLAModel(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Tokens in, the loss of the next token out."""

    VOCABULARY = 4096

    def __init__(self, layers: int, heads: int, width: int) -> None:
        super().__init__()
        size = heads * width
        self.embedding = nn.Embedding(self.VOCABULARY, size)
        self.blocks = nn.ModuleList(GLABlock(heads, width) for _ in range(layers))
        self.norm = RMSNorm(size)
        self.head = nn.Linear(size, self.VOCABULARY, bias=False)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of predicting each token from those before it; `tokens` is (batch, tokens)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
