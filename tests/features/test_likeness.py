from __future__ import annotations

from typing import Any

import pytest
from contracts.store_contract import a_job

from forecast_autotune.core.hardware import Hardware
from forecast_autotune.features.likeness import ranked


def test_what_counts_most_comes_first_and_of_what_counts_alike_the_first() -> None:
    a100 = Hardware(kind="cuda", name="NVIDIA A100")
    near, far = a_job(key={"n": 2048}), a_job(key={"n": 16})
    known = [far, a_job(hardware=a100), near, a_job(key={"n": 8192}), a_job(key={"n": 2048}, source="older")]
    assert [place for _, place in ranked(a_job(), known)] == [2, 3, 4, 1, 0]
    assert ranked(a_job(), [a_job()]) == [(1.0, 0)]


@pytest.mark.parametrize("shape", [5, None, "ab", [None, {}], [2**2000]])
def test_a_key_that_anybody_wrote_is_ranked_last_and_raises_nothing(shape: Any) -> None:
    tensor = {"dtype": "float32", "shape": [64, 64], "strides": [64, 1]}
    odd = a_job(key={"x": {"dtype": "float32", "shape": shape}})
    assert [place for _, place in ranked(a_job(key={"x": tensor}), [odd, a_job(key={"x": tensor})])] == [1, 0]
