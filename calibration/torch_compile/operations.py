"""What is compiled: matrix products of models whose layers are in no recording of ours, and three parts of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Operation:
    """What is compiled, and a run of that: `run` takes what is to be run, and returns its results."""

    function: Any
    run: Callable[[Any], Any]


Make = Callable[[], Operation]

# (n, k) of layers, by model as published in its configuration.
LAYERS = (
    (9216, 3072), (8192, 3072), (3072, 8192),  # Phi-3 mini
    (24576, 3072), (3072, 24576),  # Gemma 7B
    (4672, 4544), (18176, 4544), (4544, 18176),  # Falcon 7B
    (18432, 6144), (6144, 24576),  # GPT-NeoX 20B
    (7168, 7168), (20480, 7168), (7168, 20480),  # Yi 34B
    (512, 512), (2048, 512), (512, 2048),  # T5 small
    (6144, 1408), (1408, 6144),  # ViT-g/14
    (1152, 384), (384, 1536),  # DeiT-S
)  # fmt: skip
TOKENS = (1, 16, 100, 512, 2048, 8192)
EPILOGUES = ("none", "bias", "gelu")
PRODUCTS = 60


@dataclass(frozen=True, slots=True)
class Product:
    """m tokens through a layer from k to n in bf16, and what follows in the same graph."""

    m: int
    n: int
    k: int
    epilogue: str

    @property
    def name(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self.epilogue}"

    def make(self) -> Operation:
        """The product with tensors of its own."""
        x, weight, bias = _bf16(self.m, self.k), _bf16(self.n, self.k), _bf16(self.n)
        functions = {
            "none": lambda: x @ weight.T,
            "bias": lambda: nn.functional.linear(x, weight, bias),
            "gelu": lambda: nn.functional.gelu(x @ weight.T),
        }
        return Operation(functions[self.epilogue], lambda function: function())


def products(count: int = PRODUCTS) -> list[Product]:
    """So many products, at most `PRODUCTS`: every layer at numbers of tokens and with epilogues in turn."""
    listed = [
        Product(TOKENS[(place + 2 * turn) % len(TOKENS)], n, k, EPILOGUES[(place + turn) % len(EPILOGUES)])
        for turn in range(PRODUCTS // len(LAYERS))
        for place, (n, k) in enumerate(LAYERS)
    ]
    return [listed[place * len(listed) // count] for place in range(count)]


def _bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda") / shape[-1] ** 0.5


class Block(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Attention and a feed-forward layer, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of shape (batch, tokens, width), as what it returns."""
        parts = self.project(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.feed_norm(x))))


def transformer_block() -> Operation:
    """A transformer's block in inference: 8 x 1,024 tokens of width 1,536, bf16."""
    block = Block(1536, 12).to("cuda", torch.bfloat16)
    x = torch.randn(8, 1024, 1536, dtype=torch.bfloat16, device="cuda")
    return Operation(block, lambda compiled: torch.no_grad()(compiled)(x))


def convolutional_block() -> Operation:
    """A bottleneck of a residual network in inference: 32 images of 256 channels, 56 by 56, bf16, channels last."""

    def convolved(into: int, out: int, side: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(into, out, side, padding=side // 2, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    layers = nn.Sequential(convolved(256, 64, 1), convolved(64, 64, 3), convolved(64, 256, 1))
    layers = layers.eval().to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    x = torch.randn(32, 256, 56, 56, dtype=torch.bfloat16, device="cuda").to(memory_format=torch.channels_last)
    return Operation(layers, lambda compiled: torch.no_grad()(compiled)(x))


def causal_flex_attention() -> Operation:
    """Flex attention under a causal mask: 4 sequences of 4,096 tokens, 16 heads of 64, bf16."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (torch.randn(4, 16, 4096, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    mask = create_block_mask(lambda _b, _h, query, key: query >= key, None, None, 4096, 4096, device="cuda")
    return Operation(lambda: flex_attention(q, k, v, block_mask=mask), lambda function: function())


MODELS: dict[str, Make] = {
    made.__name__: made for made in (transformer_block, convolutional_block, causal_flex_attention)
}


def operation_of(name: str) -> Make:
    """What a product or a model of this name is made by.

    Raises:
        KeyError: there is none.
    """
    return {**{product.name: product.make for product in products()}, **MODELS}[name]
