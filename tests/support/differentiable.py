"""A task whose inputs require gradients: `x w`, by a function of autograd in Python, so that a candidate is any text."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from forecast_autotune.core.space import Space
from forecast_autotune.program_search.task import SearchTask

TEMPLATE = """
import torch
{before}

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, parts):
        ctx.save_for_backward(x, w)
        {forward}

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        {backward}


def product(x, w, *, PARTS):
    {call}
"""
FORWARD = """\
out = torch.empty_like(x)
step = max(1, -(-len(x) // parts))
for start in range(0, len(x), step):
    torch.mul(x[start : start + step], w[start : start + step], out=out[start : start + step])
return out
"""
BACKWARD = "return g * w, g * x, None"
CALL = "return Product.apply(x, w, PARTS)"


def program(*, before: str = "", forward: str = FORWARD, backward: str = BACKWARD, call: str = CALL) -> str:
    """A candidate that does this in its passes."""
    deep = {"forward": forward, "backward": backward}
    lines = {name: text.strip("\n").replace("\n", "\n        ") for name, text in deep.items()}
    return TEMPLATE.format(before=before, call=call.replace("\n", "\n    "), **lines)


SOURCE = program()


def make_inputs(sizes: Mapping[str, Any], seed: int, device: str) -> tuple[Any, ...]:
    import torch

    random = torch.Generator().manual_seed(seed)
    x, w = ((torch.rand(sizes["n"], generator=random) + 1).requires_grad_() for _ in range(2))
    return x, w


def reference(x: Any, w: Any) -> Any:
    return x * w


def task(**others: Any) -> SearchTask:
    """The task; `others` replace its fields. Tolerances are wide, as those of kernels in half precision are."""
    sys.modules.setdefault("differentiable", sys.modules[__name__])
    given: dict[str, Any] = {
        "name": "product", "language": "triton", "source": SOURCE,
        "spaces": {"plain": Space.grid({"PARTS": [8, 1, 2, 4, 16, 32, 64]}, roles={"PARTS": "tile"})},
        "sizes": {"large": {"n": 20_000}, "small": {"n": 3_000}}, "held_out": {"odd": {"n": 3_333}},
        "corners": {"one": {"n": 1}}, "make_inputs": make_inputs, "reference": reference,
        "tolerances": ((1e-2, 1e-3),), "module": "differentiable", "entries": {"plain": "product"},
    }  # fmt: skip
    return SearchTask(**{**given, **others})
