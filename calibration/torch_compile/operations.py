"""What is compiled: matrix products of models whose layers are in no recording of ours, and three parts of models."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..tiles import FP8, FP8_FAST, is_fp8


@dataclass(frozen=True, slots=True)
class Operation:
    """What is compiled, and a run of that: `run` takes what is to be run, and returns its results."""

    function: Any
    run: Callable[[Any], Any]


Make = Callable[[], Operation]

# (n, k) of layers, by model as published in its configuration.
LAYERS = (
    (9216, 3072), (8192, 3072), (3072, 8192), (3072, 3072),  # Phi-3 mini
    (7680, 2560), (10240, 2560), (2560, 10240), (51200, 2560),  # Phi-2
    (24576, 3072), (3072, 24576),  # Gemma 7B
    (4096, 2304), (9216, 2304), (2304, 9216),  # Gemma 2 2B
    (4672, 4544), (18176, 4544), (4544, 18176),  # Falcon 7B
    (18432, 6144), (6144, 24576),  # GPT-NeoX 20B
    (7168, 7168), (20480, 7168), (7168, 20480),  # Yi 34B
    (12288, 3072), (3072, 12288),  # StarCoder2 3B
    (512, 512), (2048, 512), (512, 2048),  # T5 small
    (6144, 1408), (1408, 6144),  # ViT-g/14
    (1152, 384), (384, 1536),  # DeiT-S
    (288, 96), (384, 96), (96, 384), (1536, 384),  # Swin-T
    (51865, 384), (50280, 2560), (1001, 1280), (1000, 1792), (527, 768), (91, 256), (29, 1024),  # vocabularies, classes
)  # fmt: skip
TOKENS = (16, 48, 100, 256, 512, 1000, 2048, 4096, 8192)
BATCHED = (  # batch, m, n, k: attention by hand, and experts
    (64, 512, 512, 64), (71, 512, 512, 64), (64, 257, 257, 88), (64, 257, 88, 257), (32, 1024, 1024, 96),
    (16, 512, 512, 256), (16, 512, 256, 512), (768, 64, 64, 32), (64, 64, 1024, 2048), (32, 100, 1024, 512),
)  # fmt: skip
EPILOGUES = ("mm", "addmm", "mm+gelu", "addmm+gelu")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
OF_DTYPES = (8, 1, 1)  # of ten
MAX_FLOPS = 1e12
PRODUCTS, SEED = 64, 292
OF_FP8 = 16


@dataclass(frozen=True, slots=True)
class Product:
    """(m, k) by (k, n) as a layer has it, and what follows in the same graph; for `bmm` a batch of both."""

    kind: str
    batch: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def name(self) -> str:
        """Its kind, a blank, and the rest."""
        sizes = (*([self.batch] if self.kind == "bmm" else []), self.m, self.n, self.k)
        return f"{self.kind} {'x'.join(map(str, sizes))} {self.dtype}"

    def make(self) -> Operation:
        """The product with tensors of its own."""
        if is_fp8(self.dtype):
            return self._make_of_fp8()
        dtype = DTYPES[self.dtype]
        if self.kind == "bmm":
            a, b = _random(dtype, self.batch, self.m, self.k), _random(dtype, self.batch, self.n, self.k)
            return Operation(lambda: a @ b.transpose(1, 2), lambda function: function())
        x, weight = _random(dtype, self.m, self.k), _random(dtype, self.n, self.k)
        bias = _random(dtype, self.n) if self.kind.startswith("addmm") else None
        functions = {
            "mm": lambda: x @ weight.T,
            "addmm": lambda: nn.functional.linear(x, weight, bias),
            "mm+gelu": lambda: nn.functional.gelu(x @ weight.T),
            "addmm+gelu": lambda: nn.functional.gelu(nn.functional.linear(x, weight, bias)),
        }
        return Operation(functions[self.kind], lambda function: function())

    def _make_of_fp8(self) -> Operation:
        """Of e4m3 with one scale for each operand; the result is bf16."""
        x, weight = (_random(torch.float32, rows, self.k).to(torch.float8_e4m3fn) for rows in (self.m, self.n))
        scale = torch.ones((), device="cuda")
        given = {"out_dtype": torch.bfloat16, "use_fast_accum": self.dtype == FP8_FAST}
        return Operation(lambda: torch._scaled_mm(x, weight.T, scale, scale, **given), lambda function: function())


def products(count: int = PRODUCTS) -> list[Product]:
    """So many products, at most `PRODUCTS`, in an order of which any beginning is a fair part of all.

    Each layer and batch is there once, then some layers at other numbers of tokens.
    """
    draw = random.Random(SEED)
    chosen = dict.fromkeys(Product("bmm", *sizes, "bf16") for sizes in BATCHED)
    layers = list(LAYERS)
    while len(chosen) < PRODUCTS:
        n, k = layers.pop(0) if layers else draw.choice(LAYERS)
        m = draw.choice([tokens for tokens in TOKENS if 2 * tokens * n * k <= MAX_FLOPS])
        (dtype,) = draw.choices(tuple(DTYPES), OF_DTYPES)
        chosen[Product(draw.choice(EPILOGUES), 1, m, n, k, dtype)] = None
    listed = list(chosen)
    draw.shuffle(listed)
    return listed[:count]


def fp8_products() -> list[Product]:
    """Products of fp8: `OF_FP8` of them, of layers whose sizes the library takes."""
    draw = random.Random(SEED)
    layers = [(n, k) for n, k in LAYERS if n % 16 == k % 16 == 0]
    chosen: dict[Product, None] = {}
    while len(chosen) < OF_FP8:
        n, k = draw.choice(layers)
        m = draw.choice([tokens for tokens in TOKENS if 2 * tokens * n * k <= MAX_FLOPS])
        chosen[Product("scaled_mm", 1, m, n, k, (FP8, FP8_FAST)[len(chosen) % 2])] = None
    return list(chosen)


def _random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda") / shape[-1] ** 0.5


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
    return {**{product.name: product.make for product in (*products(), *fp8_products())}, **MODELS}[name]
