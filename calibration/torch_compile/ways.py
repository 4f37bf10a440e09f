"""The ways to compile: torch.compile's own, and ours at budgets."""

from __future__ import annotations

DEFAULT, MAX_AUTOTUNE, EXHAUSTIVE, PRODUCTS_ALONE = "default", "max-autotune", "exhaustive", "gemm"
STOCK = (DEFAULT, MAX_AUTOTUNE, EXHAUSTIVE, PRODUCTS_ALONE)
EVERYTHING = "-max"
"""Behind a budget: in mode max-autotune, which tunes pointwise kernels and reductions too; without, products alone."""


def budget_of(way: str) -> str | None:
    """The budget of a way of ours; None for one of Inductor's own, and for none at all."""
    budget = way.removesuffix(EVERYTHING)
    return budget if budget.isdecimal() else None


def in_order(ways: set[str]) -> list[str]:
    """Inductor's own, then ours by budget."""
    ours = sorted(ways.difference(STOCK), key=lambda way: (int(budget_of(way) or 0), way))
    return [*(way for way in STOCK if way in ways), *ours]
