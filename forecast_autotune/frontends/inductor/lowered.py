"""A product that Inductor lowers: what it multiplies, and what it lists for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.virtualized import V

from ...core.config import Config
from .listed import knobs_of
from .product import Product

OPERANDS = {
    "mm": ("a", "b"),
    "bmm": ("a", "b"),
    "addmm": ("bias", "a", "b"),
    "baddbmm": ("bias", "a", "b"),
    "mm_plus_mm": ("a", "b", "c", "d"),
    "scaled_mm": ("a", "b", "a_scale", "b_scale", "bias"),
}

TILES = (8, 16, 32, 64, 128, 256, 512)
"""Sizes of the templates' tiles in k."""


@dataclass(frozen=True)
class Operand:
    """A tensor of a product by its sizes, as far as they are known: hints of those that may change."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def key(self) -> dict[str, object]:
        """It as a part of a workload's key."""
        name = str(self.dtype).removeprefix("torch.")
        return {"shape": list(self.shape), "stride": list(self.strides), "dtype": name}


@dataclass(frozen=True)
class Lowered:
    """A product that Inductor lowers, and what it lists for it: two that are equal are decided alike.

    Attributes:
        op: the operation, as Inductor calls it.
        sizes: m, n, k.
        is_dynamic: whether a size may change.
        k_divisor: the largest tile that k is known to be a multiple of, which such templates need not mask.
        epilogue: whether all that is done with the result is pointwise, which a template may take in.
        fast_accum: whether sums of fp8 may be held with fewer bits.
        listed: the parameters of Inductor's own candidates, in its order, each with its template.
    """

    op: str
    operands: tuple[Operand, ...]
    sizes: tuple[int, int, int]
    out_dtype: torch.dtype
    device: torch.device
    is_dynamic: bool
    k_divisor: int
    epilogue: bool
    tf32: bool
    fast_accum: bool
    listed: tuple[str, ...]

    @classmethod
    def of(cls, listed: Sequence[Any], kernel_inputs: Any, op: str) -> Lowered:
        shapes, strides, dtypes = kernel_inputs.shapes_hinted(), kernel_inputs.strides_hinted(), kernel_inputs.dtypes()
        operands = tuple(Operand(tuple(s), tuple(t), d) for s, t, d in zip(shapes, strides, dtypes, strict=True))
        in_tf32 = any(candidate.extra_kwargs.get("ALLOW_TF32") for candidate in listed)
        return cls(
            op=op,
            operands=operands,
            sizes=tuple(kernel_inputs.mnk_hinted()),
            out_dtype=kernel_inputs.out_dtype(),
            device=kernel_inputs.device(),
            is_dynamic=not all(is_number(size) for sizes in kernel_inputs.shapes_symbolic() for size in sizes),
            k_divisor=_known_divisor(kernel_inputs.mnk_symbolic()[2]),
            epilogue=_has_epilogue(),
            tf32=in_tf32 and any(operand.dtype == torch.float32 for operand in operands),
            fast_accum=any(candidate.params.to_kwargs().get("USE_FAST_ACCUM") for candidate in listed),
            listed=tuple(Config(knobs_of(candidate)).text for candidate in listed),
        )

    @property
    def key(self) -> dict[str, object]:
        """It as a workload's key."""
        names = OPERANDS.get(self.op, ())
        if len(names) < len(self.operands):
            names = tuple(f"operand{i}" for i in range(len(self.operands)))
        key: dict[str, object] = {name: operand.key for name, operand in zip(names, self.operands, strict=False)}
        if self.out_dtype != self.operands[-1].dtype:
            key["out"] = str(self.out_dtype).removeprefix("torch.")
        flags = {
            "tf32": self.tf32,
            "fast_accum": self.fast_accum,
            "dynamic": self.is_dynamic,
            "epilogue": self.epilogue,
        }
        return {**key, **{name: True for name, holds in flags.items() if holds}}

    @property
    def product(self) -> Product:
        """What is to be multiplied."""
        m, n, k = self.sizes
        matrices = [operand for operand in self.operands if len(operand.shape) >= 2]
        a = next((o for o in matrices if o.shape[-2:] == (m, k)), self.operands[0])
        b = next((o for o in matrices if o is not a and o.shape[-2:] == (k, n)), self.operands[-1])
        return Product(
            batch=math.prod(a.shape[:-2]),
            m=m,
            n=n,
            k=k * (2 if self.op == "mm_plus_mm" else 1),
            a_by_rows=a.strides[-1] == 1,
            b_by_rows=b.strides[-1] == 1,
            itemsize=a.dtype.itemsize,
            out_itemsize=self.out_dtype.itemsize,
            tf32=self.tf32,
            fp8=self.op == "scaled_mm" and self._is_as_recorded(a, b),
            fast_accum=self.fast_accum,
        )

    def _is_as_recorded(self, a: Operand, b: Operand) -> bool:
        """Whether a product of fp8 is one as the model was fitted on, library and all."""
        are_e4m3 = a.dtype == b.dtype == torch.float8_e4m3fn
        scales = [each for each in self.operands if each is not a and each is not b]
        are_single = len(scales) == 2 and all(math.prod(scale.shape) == 1 for scale in scales)
        return bool(are_e4m3 and self.out_dtype.itemsize == 2 and are_single)


def _known_divisor(size: Any) -> int:
    """The largest power of two, of those that tiles may have, that a size divides by whatever it will be."""
    known = V.graph.sizevars.statically_known_multiple_of
    return max((tile for tile in TILES if known(size, tile)), default=1)


def _has_epilogue() -> bool:
    """Whether what Inductor lowers now is used by pointwise operations alone, up to the graph's results or further products.

    Not where the result itself is needed too, and not where a reduction follows: that would take the operations in, and a
    template saves little by it.
    """
    node = getattr(V.graph, "current_node", None)
    ahead = [(user, False) for user in getattr(node, "users", ())]
    seen = set(ahead)
    while ahead:
        user, is_changed = ahead.pop()
        if user.op == "output" or getattr(user.target, "_opname", "").lstrip("_") in OPERANDS:
            if not is_changed:
                return False
            continue
        is_pointwise = torch.Tag.pointwise in getattr(user.target, "tags", ())
        if not is_pointwise and not getattr(user.target, "is_view", False):
            return False
        users = {(each, is_changed or is_pointwise) for each in user.users} - seen
        seen |= users
        ahead += users
    return bool(seen)


def is_number(size: Any) -> bool:
    """Whether a size of a tensor can never change."""
    return isinstance(size, int) or bool(getattr(size, "is_number", False))


def is_fp8(dtype: torch.dtype) -> bool:
    """Whether elements are fp8."""
    return bool(dtype.is_floating_point and dtype.itemsize == 1)
