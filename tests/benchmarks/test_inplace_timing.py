"""The report on the in-place kernel: how orders are compared, and all of it on the rehearsal driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from inplace_timing import main, shown, summary  # noqa: E402
from rehearsed import own_triton_cache  # noqa: E402

from forecast_autotune.evaluation.scores import spearman  # noqa: E402

KNOBS = [{"BLOCK": b} for b in (128, 256, 512)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with own_triton_cache(tmp_path / "triton-cache"):
        yield


def test_equal_orders_correlate_opposite_negatively_and_flat_not_at_all() -> None:
    assert spearman([1, 5, 9], [10, 11, 900]) == pytest.approx(1)
    assert spearman([1, 5, 9], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 1], [3, 2, 1]) is None


def test_equal_values_share_their_mean_rank() -> None:
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.866, abs=1e-3)


def test_each_choice_is_judged_by_what_it_truly_costs() -> None:
    times = {"stock": [5.0, 6.0, 7.0], "ours": [3.0, 2.0, 4.0], "truth": [1.5, 1.0, 2.0]}
    found = summary(KNOBS, times, {"stock": 0, "ours": 1})
    assert found["winners"]["stock"] == {"config": {"BLOCK": 128}, "truth_us": 1.5, "of_best": 1.5}
    assert found["winners"]["ours"]["of_best"] == 1.0
    assert found["winners"]["truth"]["config"] == {"BLOCK": 256}
    assert found["winners_differ"]
    assert found["rank_correlation"]["ours"] == pytest.approx(1)
    assert found["rank_correlation"]["stock"] == pytest.approx(0.5)
    assert "the two choose differently" in shown(found)
    assert "stock's choice is BLOCK=128: truly 1.50 us, 1.500 of the best" in shown(found)


@pytest.mark.thorough
def test_the_report_is_made_on_the_rehearsal_driver_where_all_three_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "2")  # does not reach it
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path))  # what main() sets is put back
    assert main(["--rehearse", "--json", str(tmp_path / "a" / "found.json")]) == 0
    found = json.loads((tmp_path / "a" / "found.json").read_text())
    assert found["bytes"] == 2**20
    assert 12 <= len(found["configs"]) <= 16
    assert "made-up" in found["gpu"]
    for one in found["configs"]:
        assert one["stock_us"] == pytest.approx(one["truth_us"], rel=1e-3)
        assert one["ours_us"] == pytest.approx(one["truth_us"], rel=1e-3)
    assert found["rank_correlation"] == {"stock": pytest.approx(1), "ours": pytest.approx(1)}
    assert not found["winners_differ"]
    assert "the two choose the same config" in capfd.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_without_a_gpu_it_says_so_and_exits_with_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "no GPU is to be had" in capfd.readouterr().err
