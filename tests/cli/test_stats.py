"""What `stats` says of how honest forecasts were, and what is done about it; and that `replay` does nothing about it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.cli import main, replay
from forecast_autotune.core.forecast import Forecast, Normal
from forecast_autotune.frontends import informed
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.prior import SHIPPED, shipped_prior
from forecast_autotune.surrogates.recalibrated import Recalibrated

TRACE = Path(__file__).parents[1] / "traces" / "gemm_few_rows.jsonl.gz"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Twenty forecasts of 0.0, each wrong by two octaves: 20 sigmas of one voice, two of the other."""
    bells = (Normal(0.0, 0.1, 0.5, "bold"), Normal(0.0, 1.0, 0.5, "shy"))
    with SqliteStore(tmp_path / "store") as opened:
        for n in range(5):
            opened.record_outcome(a_job(key={"n": n}), "run", SPACE[0], a_measurement(10.0), None)
            for config in SPACE[1:5]:
                forecast = Forecast(bells, "bold and shy", default_us=10.0)
                opened.record_outcome(a_job(key={"n": n}), "run", config, a_measurement(40.0), forecast)
    return tmp_path / "store"


def test_stats_report_the_sigma_scale_its_pairs_and_each_component(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", "--dir", str(store), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    learned = told["recalibration"]["cuda"]
    assert learned["after"] > 1.1
    assert (learned["after_pairs"], learned["ahead"], learned["ahead_pairs"]) == (20, 1.0, 0)
    assert learned["voices"] == {"bold": pytest.approx(-13.8, abs=0.1), "shy": pytest.approx(-2.92, abs=0.01)}
    assert (told["honesty"]["coverage_50"], told["honesty"]["coverage_90"]) == (0.0, 0.0)
    assert told["honesty"]["count"] == 20
    assert main(["stats", "--dir", str(store)]) == 0
    out = capsys.readouterr().out
    assert f"cuda: sigma after x{learned['after']:.2f} (20 pairs)" in out
    assert "log density of shy -2.92, bold -13.8" in out
    assert "inside 90 %" in out


def test_real_calls_have_their_line_where_exploring_lost_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SqliteStore(tmp_path) as opened:
        opened.record_decision(a_job(), a_decision(a_job(), saved_s=0.3))
    assert main(["stats", "--dir", str(tmp_path)]) == 0
    assert re.search(
        "in real calls +0 s lost to exploring, those that were timed took 0.3 s less", capsys.readouterr().out
    )
    assert main(["show", "--dir", str(tmp_path), a_job().workload.program.name]) == 0
    assert re.search("real calls +lost 0 s to exploring; .* 0.3 s less than by the default", capsys.readouterr().out)


def test_stats_tell_how_honest_forecasts_were_by_the_kind_of_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moves = {"flops": 0.0, "tile_elements": 1024.0, "loaded_bytes": 2048.0, "elementwise": 4096.0}
    kernels = {"dense": {**moves, "flops": 1e9}, "plain": moves, "told nothing": {}}
    with SqliteStore(tmp_path) as opened:
        for number, features in enumerate(kernels.values()):
            job = replace(a_job(key={"n": number}), static_features=[features] * len(SPACE) if features else ())
            for place in range(5):
                forecast = Forecast.normal(0.0, 0.3, source="learned")
                opened.record_outcome(job, "run", SPACE[place], a_measurement(10.0 * (1 + place * number)), forecast)
    assert main(["stats", "--dir", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    by_kind = told["honesty_by_kind"]
    assert {kind: each["count"] for kind, each in by_kind.items()} == {
        "matmul-like": 4, "one tile each": 4, "not described": 4,
    }  # fmt: skip
    assert by_kind["matmul-like"]["half_brier"] < by_kind["not described"]["half_brier"]
    assert told["model"]["version"] == shipped_prior().version
    assert main(["stats", "--dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "one tile each: 4 compared, " in out
    assert f"{shipped_prior().version}, " in out
    assert "kernels left out: " in out


def test_the_correction_shown_is_the_one_in_use(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--dir", str(store), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["recalibration"]["cuda"]
    with SqliteStore(store) as opened:
        assert informed._lessons_of(opened, "cuda").sigma_scale.warm == told["after"]


def test_stats_of_a_store_without_pairs_tell_of_no_correction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SqliteStore(tmp_path) as opened:
        opened.record_outcome(a_job(), "run", SPACE[0], a_measurement(10.0), None)
    assert main(["stats", "--dir", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["recalibration"], told["honesty"]) == ({}, None)
    assert main(["stats", "--dir", str(tmp_path)]) == 0
    assert "correction" not in capsys.readouterr().out


def test_replay_never_recalibrates(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Any, context: Any) -> Any:
        raise AssertionError("a replay asked a recalibrated surrogate")

    monkeypatch.setattr(Recalibrated, "start", refuse)
    monkeypatch.setattr(SqliteStore, "calibration_pairs", refuse)
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(store))
    monkeypatch.setattr(replay, "_jobs", lambda _: None)  # in this process, where the surrogate is refused
    assert main(["replay", str(TRACE), "--budget", "4", "--seeds", "1", "--json"]) == 0
    assert "failed" not in capsys.readouterr().err


HONEST = {"kernels": 3, "brier_skill": 0.1, "ece": 0.05}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("x", "honesty_by_kind is 'x': it must be a JSON object"),
        ([1], "honesty_by_kind is [1]: it must be a JSON object"),
        ({"looping": 1}, "honesty_by_kind of 'looping' is 1: it must be a JSON object"),
        ({"looping": {"kernels": 3, "brier_skill": 0.1}}, "has ece missing: it must be a number"),
        ({"looping": {**HONEST, "ece": math.nan}}, "has ece nan: it must be finite"),
        ({"looping": {**HONEST, "kernels": "3"}}, "has kernels '3': it must be a whole number"),
    ],
)
def test_an_odd_card_of_a_model_is_named_and_the_model_too(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, told: object, reason: str
) -> None:
    document = json.loads(SHIPPED.read_text())
    document["card"]["honesty_by_kind"] = told
    path = store / "held.json"
    path.write_text(json.dumps(document))
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODEL", str(path))
    assert main(["stats", "--dir", str(store)]) == 0
    out = capsys.readouterr().out
    assert str(path) in out
    assert "its card does not tell how honest it is: " in out
    assert reason in out
    assert main(["stats", "--dir", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["honesty_by_kind"] == {}


def test_a_card_without_skill_of_a_kind_is_read(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(SHIPPED.read_text())
    document["card"] = {"honesty_by_kind": {"looping": {**HONEST, "brier_skill": None}}}
    path = store / "held.json"
    path.write_text(json.dumps(document))
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODEL", str(path))
    assert main(["stats", "--dir", str(store)]) == 0
    assert "looping, on 3 kernels left out: calibration error 0.050" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "there is no file"),
        ("{", "is no model"),
        (
            '{"schema":"forecast_autotune.prior","version":1}',
            "has version 1, this version of forecast_autotune reads 2, 3, 4",
        ),
    ],
)
def test_why_a_held_model_cannot_be_read_stands_in_its_line(
    store: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    reason: str,
) -> None:
    path = store / "held.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODEL", str(path))
    assert main(["stats", "--dir", str(store)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("model")]
    assert str(path) in line
    assert reason in line
    assert main(["stats", "--dir", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] is None
