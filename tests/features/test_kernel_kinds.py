"""The kind of a kernel, by what recorded traces tell of it."""

from __future__ import annotations

import pytest

from calibration.paths import traces
from forecast_autotune.evaluation.traces import read_trace
from forecast_autotune.features.kernel_kinds import KINDS, kernel_kind

EXPECTED = {
    "matmul": "matmul-like",
    "fused_moe": "matmul-like",
    "attention": "attention-like",
    "paged_attention": "attention-like",
    "gdn_chunk_fwd_h": "attention-like",
    "layer_norm": "one tile each",
    "fp8_quant": "one tile each",
    "cuda_gemm": "looping",  # its products are sums of elements
    "cuda_transpose": "one tile each",
}


@pytest.mark.parametrize("kernel", EXPECTED)
def test_recorded_kernels_are_of_the_kind_that_people_would_say(kernel: str) -> None:
    path = next(path for path in traces("suite") if path.name.startswith(f"{kernel}."))
    recorded = read_trace(path)
    assert kernel_kind(recorded.static_features.get(config, {}) for config in recorded.outcomes) == EXPECTED[kernel]


def test_the_first_config_that_is_described_tells_the_kind() -> None:
    assert kernel_kind([{}, {"flops": 10.0}, {"atomic_bytes": 4.0}]) == "matmul-like"
    assert kernel_kind([]) == kernel_kind([{}]) == "not described"


@pytest.mark.parametrize("value", [0.0, -1.0, 1e300, float("inf")])
def test_strange_numbers_give_a_kind_all_the_same(value: float) -> None:
    names = ("flops", "elementwise", "atomic_bytes", "tile_elements", "loaded_bytes")
    assert all(kernel_kind([{name: value}]) in KINDS for name in names)
    assert kernel_kind([dict.fromkeys(names, value)]) in KINDS
