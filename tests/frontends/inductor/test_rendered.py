"""Convolutions and flex attention: narrowed once they are rendered, before any is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rehearsed_inductor import (
    Timed,
    as_another_process,
    attention,
    attention_backward,
    convolution,
    decisions,
    names,
    product,
    store,
)
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices

import forecast_autotune as fa
from forecast_autotune.errors import TuningWarning
from forecast_autotune.features.hardware_sheets import sheet_for
from forecast_autotune.frontends.inductor import choices, rendered
from forecast_autotune.frontends.inductor import request as product_request
from forecast_autotune.frontends.inductor.lowered import Operand

pytestmark = [  # torch's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore::UserWarning:torch\..*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Could not find an active CPU backend"),
    pytest.mark.filterwarnings("error::forecast_autotune.errors.TuningWarning"),
]


# Convolutions ----------------------------------------------------------------------------------------------------------


def test_a_convolution_times_the_library_and_four_templates(timed: Timed) -> None:
    convolution()
    (listed,) = timed.lists
    assert names(listed)[0] == "convolution"
    assert len(listed) == 1 + 4
    assert len({candidate.description for candidate in listed}) == len(listed)
    (stored,) = decisions()
    assert stored.tuning_key.workload.program.name == "inductor.convolution2d"
    assert stored.tuning_key.workload.key["parameters"]["PADDING_H"] == "1"
    assert len(store().detail(stored).touched) == 1 + 4


def test_a_convolution_that_is_decided_goes_on_alone(timed: Timed, monkeypatch: Any) -> None:
    timed.ms = lambda place: 0.3 - 0.01 * place
    convolution()
    as_another_process(monkeypatch)
    convolution()
    assert len(timed.lists) == 1
    assert choices.narrowing.counts.recalled == 1
    convolution(channels=256)
    assert len(timed.lists) == 2


def test_times_of_convolutions_after_uninstall_are_not_taken_for_ours(timed: Timed) -> None:
    with inductor_config.patch(autotune_local_cache=True):
        fa.uninstall()
        convolution()
        assert decisions() == []
        fa.install(inductor=True)
        timed.ms = lambda place: 0.3 - 0.01 * place
        convolution()
    assert [len(listed) for listed in timed.lists] == [11, 1 + 4]
    (stored,) = decisions()
    assert stored.decision.default_us == pytest.approx(300.0)


@pytest.mark.parametrize("mode", ["cached", "forecast", "first"])
def test_unmeasured_a_convolution_is_the_librarys(timed: Timed, monkeypatch: Any, mode: str) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    gone_on: list[Any] = []
    keep = choices.narrowing.narrow_rendered
    monkeypatch.setattr(
        choices.narrowing, "narrow_rendered", lambda listed: gone_on.append(keep(listed)) or gone_on[-1]
    )
    convolution()
    assert [names(listed) for listed in gone_on if len(listed) == 1] == [["convolution"]]
    assert timed.lists == []


def test_strict_refuses_a_convolution_that_is_not_decided(timed: Timed, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "strict")
    with pytest.raises(Exception, match=r"CacheMissError: no decision for inductor\.convolution2d"):
        convolution()


def test_a_convolution_is_described_as_the_products_it_is_made_of() -> None:
    def by_channels(*shape: int) -> Operand:
        _, channels, height, width = shape
        return Operand(shape, (channels * height * width, 1, channels * width, channels), torch.bfloat16)

    x, weight, out = by_channels(2, 64, 32, 32), by_channels(128, 32, 3, 3), by_channels(2, 128, 16, 16)
    product = rendered.implicit_product(x, weight, out, {"GROUPS": 2})
    assert (product.batch, product.m, product.n, product.k) == (2, 2 * 16 * 16, 64, 32 * 9)
    assert (product.a_by_rows, product.b_by_rows) == (True, False)


# Flex attention --------------------------------------------------------------------------------------------------------


def test_of_attention_inductors_default_and_the_best_forecasts_are_timed(timed: Timed, monkeypatch: Any) -> None:
    attention(monkeypatch)
    (listed,) = timed.lists
    assert len(listed) == 4
    assert "BLOCK_M=64, BLOCK_N=64" in listed[0].description  # what it takes of float32 without max-autotune
    (stored,) = decisions()
    assert stored.tuning_key.workload.program.name == "inductor.flex_attention"
    as_another_process(monkeypatch)
    attention(monkeypatch)
    assert len(timed.lists) == 1


@pytest.mark.parametrize("width", [64, 96])
def test_of_the_gradient_of_attention_the_best_forecasts_are_timed(timed: Timed, monkeypatch: Any, width: int) -> None:
    attention_backward(monkeypatch, width)
    (listed,) = timed.lists
    assert len(listed) == 4
    assert "BLOCK_M1=16" in listed[0].description  # what it takes of float32 without max-autotune
    (stored,) = decisions()
    assert stored.tuning_key.workload.program.name == "inductor.flex_attention_backward"
    as_another_process(monkeypatch)
    attention_backward(monkeypatch, width)
    assert len(timed.lists) == 1


def test_attention_and_convolutions_decided_in_a_pack_are_not_timed(
    timed: Timed, monkeypatch: Any, tmp_path: Path
) -> None:
    timed.ms = lambda place: 0.3 - 0.01 * place

    def every() -> list[str]:
        attention(monkeypatch)
        attention(monkeypatch, queries=16)
        attention_backward(monkeypatch)
        convolution()
        known = choices.narrowing.selections
        return [str(config) for chosen in known for config in chosen.parameters]

    decided = every()
    store().export(tmp_path / "pack.jsonl")
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "second machine"))
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", str(tmp_path / "pack.jsonl"))
    as_another_process(monkeypatch)
    assert every() == decided
    assert len(timed.lists) == choices.narrowing.counts.recalled == 4


def test_scores_that_are_changed_otherwise_are_a_key_of_their_own(timed: Timed, monkeypatch: Any) -> None:
    attention(monkeypatch)
    attention(monkeypatch, score=lambda score, _b, _h, q, kv: score + (q - kv))
    first, second = (stored.tuning_key.workload.key for stored in decisions())
    assert first["operand0"] == second["operand0"]
    assert first["source"] != second["source"]


def test_where_nothing_is_forecast_all_go_on_and_are_kept(timed: Timed, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "2")
    attention(monkeypatch, queries=16)
    (listed,) = timed.lists
    (stored,) = decisions()
    assert stored.tuning_key.workload.program.name == "inductor.flex_decoding"
    assert len(store().detail(stored).touched) == len(listed) == choices.narrowing.counts.candidates > 2
    as_another_process(monkeypatch)
    attention(monkeypatch, queries=16)
    assert len(timed.lists) == 1


def test_attention_of_changing_sizes_is_left_to_inductor(timed: Timed, monkeypatch: Any) -> None:
    attention(monkeypatch, dynamic=True)
    assert choices.narrowing.counts.products == 0
    assert len(timed.lists[0]) > 4


def test_attention_is_described_by_its_tiles() -> None:
    q, kv = (Operand((2, heads, 1024, 64), (heads * 65536, 65536, 64, 1), torch.bfloat16) for heads in (8, 4))
    configs = [{"BLOCK_M": m, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3} for m in (64, 128)]
    small, large = rendered.attention_features(q, kv, kv, configs, sheet_for("H200"))
    assert small["programs"] == 2 * large["programs"] == 1024 // 64 * 2 * 8
    assert small["flops"] == pytest.approx(2 * 8 * 4 * 1024 * 1024 * 64)
    assert small["traffic_bytes"] > large["traffic_bytes"]


def test_the_gradient_of_attention_is_described_by_its_tiles() -> None:
    q, kv = (Operand((2, heads, 1024, 64), (heads * 65536, 65536, 64, 1), torch.bfloat16) for heads in (8, 4))
    configs = [{"BLOCK_M1": 32, "BLOCK_N1": n, "num_warps": 4, "num_stages": 3} for n in (64, 128)]
    small, large = rendered.backward_features(q, kv, kv, configs, sheet_for("H200"))
    assert small["programs"] == 2 * large["programs"] == 1024 // 64 * 2 * 8
    assert small["flops"] == pytest.approx(2 * 8 * 8 * 1024 * 1024 * 64)
    assert small["traffic_bytes"] > large["traffic_bytes"]


def test_what_is_asked_for_configs_is_passed_on_whatever_it_is(timed: Timed) -> None:
    class WithLength(InductorChoices):  # as from torch 2.14 on
        def get_flex_attention_fwd_configs(
            self, head_dim: int, seq_len: int, dtype: torch.dtype, device_type: str = "cuda"
        ) -> list[Any]:
            return [head_dim, seq_len, 7] if inductor_config.max_autotune else [7]

    assert choices.with_ours(WithLength()).get_flex_attention_fwd_configs(64, 1024, torch.float16) == [7, 64, 1024]


# What is not known -----------------------------------------------------------------------------------------------------


def test_a_candidate_that_is_described_otherwise_is_one_warning(timed: Timed, monkeypatch: Any) -> None:
    monkeypatch.setattr(rendered, "PARAMETER", rendered.re.compile(r"(\w+)->(.*)"))
    with pytest.warns(TuningWarning, match="num_warps was expected"):
        convolution()
    assert product_request.stood_aside()
    assert len(timed.lists[0]) > 6
    product()
    assert len(timed.lists[1]) > 6


def test_deterministic_leaves_rendered_ones_to_inductor(timed: Timed) -> None:
    with inductor_config.patch(deterministic=True):
        convolution()
    assert choices.narrowing.counts.products == 0
    assert timed.lists == []
