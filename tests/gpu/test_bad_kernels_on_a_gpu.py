"""Candidates that misbehave on a real GPU leave the caller's random numbers alone and are found out after a while, too."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.core.outcome import Failure  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def slow(x: Any) -> Any:
    for _ in range(20):
        x = x + 0
    return x * 2


def fast(x: Any) -> Any:
    return x * 2


def draws(x: Any) -> Any:
    return x * (1 + torch.rand_like(x))


def test_the_random_state_is_kept_and_an_uncleared_workspace_is_caught() -> None:
    sums = torch.zeros(1, device="cuda")

    def adds_up(x: Any) -> Any:
        sums.add_(1)  # as a counter of finished blocks that nobody sets back
        return x * (1 + sums)

    x = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    before = torch.cuda.get_rng_state()
    function = fa.variants([slow, draws, adds_up, fast], name="bad_on_a_gpu", budget="all")
    assert torch.equal(function(x), 2 * x)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    (decision,) = function.decisions.values()
    assert decision.config["variant"] == "fast"
    failed = {c["variant"]: o for c, o in function.tuned.outcomes((x,)).items() if isinstance(o, Failure)}
    assert set(failed) == {"draws", "adds_up"}
    assert "wrote to sums" in failed["adds_up"].message
