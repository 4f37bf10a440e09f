"""Operations of flash-linear-attention as its users call them, and a model: what makes one returns a training step of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Step = Callable[[], torch.Tensor]
"""Runs the operation forward and hands out what its backward pass begins at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the tensors are, and where they lie."""

    device: str
    batch: int = 2
    tokens: int = 4096
    heads: int = 16
    width: int = 128  # of a head
    slots: int = 64  # of gated slot attention
    dtype: torch.dtype = torch.bfloat16

    def per_head(self, *last: int) -> torch.Tensor:
        """Small normal numbers for each batch, token, head, and of so many more: by default a head's width."""
        return self.of(self.batch, self.tokens, self.heads, *(last or (self.width,)))

    def per_token(self) -> torch.Tensor:
        """Small normal numbers of all heads' width for each batch and token."""
        return self.of(self.batch, self.tokens, self.heads * self.width)

    def of(self, *shape: int) -> torch.Tensor:
        """Small normal numbers with a gradient."""
        return (torch.randn(*shape, device=self.device) / 8).to(self.dtype).requires_grad_()


def chunk_gla(size: Size) -> Step:
    """Gated linear attention."""
    from fla.ops.gla import chunk_gla

    q, k, v, g = (size.per_head() for _ in range(4))
    return lambda: chunk_gla(q, k, v, torch.nn.functional.logsigmoid(g))[0]


def chunk_rwkv7(size: Size) -> Step:
    """RWKV-7."""
    from fla.ops.rwkv7 import chunk_rwkv7

    r, w, k, v, a, b = (size.per_head() for _ in range(6))
    return lambda: chunk_rwkv7(r, -torch.sigmoid(w), k, v, a, b)[0]


def chunk_gsa(size: Size) -> Step:
    """Gated slot attention."""
    from fla.ops.gsa import chunk_gsa

    q, k, v = (size.per_head() for _ in range(3))
    s, g = size.per_head(size.slots), size.per_head(size.slots)
    return lambda: chunk_gsa(q, k, v, s, torch.nn.functional.logsigmoid(g))[0]


def forgetting_attention(size: Size) -> Step:
    """Softmax attention that forgets."""
    from fla.ops.forgetting_attn import parallel_forgetting_attn

    q, k, v = (size.per_head() for _ in range(3))
    g = size.of(size.batch, size.tokens, size.heads)
    return lambda: parallel_forgetting_attn(q, k, v, torch.nn.functional.logsigmoid(g))


def short_convolution(size: Size) -> Step:
    """A causal convolution of four tokens."""
    from fla.modules import ShortConvolution

    layer = ShortConvolution(size.heads * size.width, 4).to(size.device, size.dtype)
    x = size.per_token()
    return lambda: layer(x)[0]


def swiglu(size: Size) -> Step:
    """The gate of a feed-forward layer."""
    from fla.modules.activations import swiglu

    x, y = size.per_token(), size.per_token()
    return lambda: swiglu(x, y)


def gated_norm(size: Size) -> Step:
    """A norm with a gate."""
    from fla.modules import FusedRMSNormGated

    layer = FusedRMSNormGated(size.width).to(size.device, size.dtype)
    x, g = size.per_head(), size.per_head()
    return lambda: layer(x, g)


def gla_model(size: Size) -> Step:
    """A language model of four layers in training: a step first applies what the last one's gradients say."""
    from .gla_model import GLAModel

    model = GLAModel(layers=4, heads=size.heads, width=size.width).to(size.device, size.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(GLAModel.VOCABULARY, (size.batch, size.tokens), device=size.device)

    def step() -> torch.Tensor:
        optimizer.step()  # without gradients, at first, it changes nothing
        optimizer.zero_grad()
        loss: torch.Tensor = model.loss(tokens)
        return loss

    return step


OPERATIONS: dict[str, Callable[[Size], Any]] = {
    make.__name__: make
    for make in (
        chunk_gla,
        chunk_rwkv7,
        chunk_gsa,
        forgetting_attention,
        short_convolution,
        swiglu,
        gated_norm,
        gla_model,
    )
}
