"""Products of fp8: narrowed like the others, by their own sizes and rate and by a model of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from rehearsed_inductor import Timed, decisions, lowered, names

from forecast_autotune.features.hardware_sheets import sheet_for
from forecast_autotune.frontends.inductor import choices, narrowing, request
from forecast_autotune.frontends.inductor.product import Product, product_features
from forecast_autotune.surrogates.prior import products_prior

pytestmark = [  # torch's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore::UserWarning:torch\..*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 3, "num_warps": 8}


def scaled(
    k: int = 128,
    *,
    fast: bool = False,
    rowwise: bool = False,
    to: torch.dtype = torch.bfloat16,
    of_b: torch.dtype = torch.float8_e4m3fn,
    biased: bool = False,
) -> None:
    """A product; where fewer than 130 are summed, templates may beat the library."""
    a, b = torch.ones(256, k).to(torch.float8_e4m3fn), torch.ones(256, k).to(of_b).t()
    bias = torch.ones(256, dtype=torch.bfloat16) if biased else None
    scales = (torch.ones(256, 1), torch.ones(1, 256)) if rowwise else (torch.tensor(1.0), torch.tensor(1.0))
    lowered(
        lambda a, b, of_a, of_b: torch._scaled_mm(
            a, b, of_a, of_b, bias=bias, out_dtype=to, use_fast_accum=fast
        ),
        a, b, *scales,
    )  # fmt: skip


@pytest.mark.parametrize("rowwise", [False, True])
def test_the_library_the_first_and_the_best_forecasts_go_on(timed: Timed, rowwise: bool) -> None:
    scaled(rowwise=rowwise)
    (listed,) = timed.lists
    assert names(listed)[0] == "_scaled_mm"
    assert len(listed) == 1 + 4
    (stored,) = decisions()
    assert stored.tuning_key.workload.program.name == "inductor.scaled_mm"
    assert stored.tuning_key.workload.key["a"]["dtype"] == "float8_e4m3fn"


def test_how_sums_are_held_is_part_of_the_key_and_never_changed(timed: Timed) -> None:
    scaled()
    scaled(fast=True)
    held = [
        {f"USE_FAST_ACCUM={fast}" in candidate.description for candidate in listed[1:]}
        for fast, listed in zip((False, True), timed.lists, strict=True)
    ]
    assert held == [{True}, {True}]
    assert sorted(stored.tuning_key.workload.key.get("fast_accum", False) for stored in decisions()) == [False, True]


def test_no_template_is_timed_where_the_library_is_forecast_far_faster(timed: Timed, monkeypatch: Any) -> None:
    scaled(k=4096)
    assert timed.lists == []
    assert choices.narrowing.counts.forecast == 1
    monkeypatch.setattr(narrowing, "FAR_SLOWER", 16.0)
    scaled(k=2048)
    assert len(timed.lists) == 1


@pytest.mark.parametrize(
    "unlike",
    [
        {"rowwise": True},
        {"to": torch.float32},
        {"of_b": torch.float8_e5m2},
        {"biased": True},
        {"surrogate": "roofline"},
    ],
)
def test_templates_are_timed_of_products_unlike_those_that_were_recorded(
    timed: Timed, monkeypatch: Any, unlike: dict[str, Any]
) -> None:
    if "surrogate" in unlike:
        monkeypatch.setenv("FORECAST_AUTOTUNE_SURROGATE", unlike.pop("surrogate"))
    scaled(k=4096, **unlike)
    assert len(timed.lists) == 1


def test_products_of_fp8_are_forecast_by_their_own_model(timed: Timed) -> None:
    scaled()
    lowered(lambda a, b: a @ b, torch.ones(256, 64), torch.ones(64, 256))
    models = {stored.tuning_key.workload.program.name: stored.decision.model for stored in decisions()}
    assert len(timed.lists) == 2
    assert models == {
        "inductor.scaled_mm": products_prior(fp8=True).version,
        "inductor.mm": products_prior().version,
    }


def test_a_model_of_fp8_that_differs_is_another_name_in_caches(timed: Timed, monkeypatch: Any) -> None:
    before = request.cache_name()
    of_fp8 = replace(products_prior(fp8=True), version="another")
    monkeypatch.setattr(request, "products_prior", lambda *, fp8=False: of_fp8 if fp8 else products_prior())
    assert request.cache_name() != before
    assert timed.lists == []


def test_forecasts_alone_replace_no_library_of_fp8(timed: Timed, monkeypatch: Any) -> None:
    asked: list[Any] = []

    def decide(job: Any, *args: Any, **options: Any) -> Any:
        asked.append(job)
        return real(job, *args, **options)

    real = narrowing.decide
    monkeypatch.setattr(narrowing, "decide", decide)
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "forecast")
    scaled()
    lowered(lambda a, b: a @ b, torch.ones(256, 256), torch.ones(256, 256))
    fp8, fp32 = asked
    assert not fp8.static_features
    assert fp32.static_features
    assert timed.lists == []


def test_fp8_is_described_at_its_own_rate_and_size() -> None:
    product = Product(batch=1, m=4096, n=4096, k=4096, a_by_rows=True, b_by_rows=False, itemsize=1, out_itemsize=2)
    hardware = sheet_for("H200")
    (fp8,), (bf16,) = (product_features(replace(product, itemsize=size), [TILE], hardware) for size in (1, 2))
    assert fp8["us_flops"] == pytest.approx(bf16["us_flops"] / 2)
    assert fp8["loaded_bytes"] == pytest.approx(bf16["loaded_bytes"] / 2)


def test_what_scales_block_by_block_is_not_described() -> None:
    product = Product(batch=1, m=4096, n=4096, k=4096, a_by_rows=True, b_by_rows=False, itemsize=1, out_itemsize=2)
    blockwise, plain = product_features(product, [{**TILE, "TILE_SIZE_A": 128}, TILE], sheet_for("H200"))
    assert blockwise == {}
    assert plain["programs"] == 32 * 32
