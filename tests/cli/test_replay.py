from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from recorded import recording

from forecast_autotune.cli import main, replay_runs
from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Measurement

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def write_t4(path: Path, scale: float = 1.0) -> Path:
    """The small recording in T4 form; its times scaled, so that two files differ."""
    results = []
    for config, outcome in recording().outcomes.items():
        ran = isinstance(outcome, Measurement)
        results.append(
            {
                "configuration": dict(config.knobs),
                "invalidity": "correct" if ran else "compile" if outcome.stage == "compile" else "runtime",
                "times": {
                    "compilation": 500.0,
                    "runtimes": [t / 1000 * scale for t in outcome.samples_us] if ran else [],
                    "framework": 1.0,
                    "validation": 0,
                },
            }
        )
    path.write_bytes(gzip.compress(json.dumps({"metadata": {"timeunit": "miliseconds"}, "results": results}).encode()))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_t4(tmp_path / "bowl_lab_A_T4.json.gz")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return write_t4(tmp_path / "bowl_lab_B_T4.json.gz", scale=3.0)


@pytest.fixture(autouse=True)
def fresh() -> None:
    replay_runs._read.cache_clear()


def run(*arguments: object) -> int:
    return main(["replay", *map(str, arguments)])


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run(*arguments, "--json", "--jobs", 1) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_report_has_the_agreed_shape(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = report(capsys, trace, "--budget", "5", "--budget", "10%", "--seeds", "2")
    assert set(told) == {"runs", "summary", "forecast", "priors"}
    assert told["priors"] == []
    assert [(r["budget"], r["seed"]) for r in told["runs"]] == [("5", 0), ("5", 1), ("10%", 0), ("10%", 1)]
    for row in told["runs"]:
        assert set(row) == {
            *("trace", "kernel", "hardware", "history", "budget", "seed"),
            *("slowdown", "regret", "measured", "compiled", "spent_s"),
        }
        assert (row["trace"], row["kernel"], row["hardware"], row["history"]) == (trace.name, "bowl", "A", [])
        assert row["slowdown"] >= 1.0
        assert row["regret"] == pytest.approx(row["slowdown"] - 1.0)
        assert row["measured"] == (5 if row["budget"] == "5" else 8)
        assert row["spent_s"] > 0.5 * (row["measured"] - 1)
    assert [(s["budget"], s["kernel"]) for s in told["summary"]] == [
        ("5", None), ("5", "bowl"), ("10%", None), ("10%", "bowl")
    ]  # fmt: skip
    for row in told["summary"]:
        assert set(row) == {"budget", "kernel", "geomean_of_medians", "median", "p90", "worst"}
        assert 1.0 <= row["median"] <= row["p90"] <= row["worst"]
    assert [f["target_measured"] for f in told["forecast"]] == [0, 10, 50]
    for row in told["forecast"]:
        assert set(row) == {
            *("trace", "target_measured", "accuracy", "off_by_one", "half_brier", "brier_skill", "crps7", "nll", "ece"),
            *("error_by_fifth", "top_1_percent", "top_10_percent", "top_50_percent"),
        }
        assert len(row["error_by_fifth"]) == 5


def test_forecasts_are_better_the_more_is_measured(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = report(capsys, trace, "--budget", "1", "--seeds", "2")["forecast"]
    assert scores[0]["brier_skill"] < scores[1]["brier_skill"] < scores[2]["brier_skill"]


def test_measuring_everything_finds_the_best(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = report(capsys, trace, "--budget", "all", "--policy", "exhaustive", "--seeds", "1")["runs"]
    assert row["slowdown"] == pytest.approx(1.0, abs=0.005)  # a tie goes to the config listed first
    assert row["measured"] == 84


def test_the_first_config_is_as_slow_as_it_is(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = report(capsys, trace, "--budget", "0", "--policy", "first", "--seeds", "1")
    of = recording()
    best = min(o.median_us for o in of.outcomes.values() if isinstance(o, Measurement))
    default = of.outcomes[of.default]
    assert isinstance(default, Measurement)
    assert told["runs"][0]["slowdown"] == pytest.approx(default.median_us / best)
    assert told["runs"][0]["measured"] == 0


def test_history_helps_and_is_named(trace: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cold = report(capsys, trace, "--budget", "3", "--seeds", "2")
    warm = report(capsys, trace, "--budget", "3", "--seeds", "2", "--history", trace, elsewhere)
    assert warm["runs"][0]["history"] == [elsewhere.name]
    assert warm["summary"][0]["median"] < cold["summary"][0]["median"]
    assert warm["summary"][0]["median"] < 1.05
    assert warm["forecast"][0]["brier_skill"] > 0.5


def test_a_run_is_left_out_of_its_own_history_and_that_is_said(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "copy").mkdir()
    copy = write_t4(tmp_path / "copy" / trace.name, scale=1.1)
    assert run(trace, "--history", trace, copy, "--budget", "0", "--seeds", 1, "--json", "--jobs", 1) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["runs"][0]["history"] == []
    assert told.err.count("left out") == 2


def test_another_kernel_is_no_history(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_t4(tmp_path / "gemm_lab_B_T4.json.gz")
    told = report(capsys, trace, "--history", other, "--budget", "0", "--seeds", 1)
    assert told["runs"][0]["history"] == []


def test_processes_give_what_one_gives(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = report(capsys, trace, "--budget", "6", "--seeds", "2")
    assert run(trace, "--budget", "6", "--seeds", 2, "--json", "--jobs", 2) == 0
    together = json.loads(capsys.readouterr().out)
    for row in alone["runs"] + together["runs"]:
        row.pop("spent_s")  # real time is a part of it
    assert together == alone


def test_a_table_is_for_people(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace, "--budget", "4", "--seeds", 1, "--jobs", 1) == 0
    told = capsys.readouterr()
    assert "Slowdown" in told.out
    assert "bowl" in told.out
    assert told.err == ""


def test_ctrl_c_prints_what_is_finished(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = replay_runs.ReplayPlan.do
    calls = []

    def interrupted(self: replay_runs.ReplayPlan, task: replay_runs.Task) -> replay_runs.Row:
        calls.append(task)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return done(self, task)

    monkeypatch.setattr(replay_runs.ReplayPlan, "do", interrupted)
    assert run(trace, "--budget", "4", "--seeds", 5, "--json", "--jobs", 1) == 130
    told = capsys.readouterr()
    assert len(json.loads(told.out)["runs"]) == 2
    assert "2 of" in told.err


@pytest.mark.parametrize("arguments", [["--budget", "lots"], ["--history", "nowhere.json"]])
def test_what_cannot_be_read_is_said_on_stderr(
    trace: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, *arguments, "--json") == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert arguments[1] in told.err


def test_a_decision_that_does_not_run_has_no_slowdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad_lab_A_T4.json.gz"
    write_t4(path)
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["results"][0]["invalidity"] = "runtime"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    told = report(capsys, path, "--budget", "0", "--policy", "first", "--seeds", 1)
    assert told["runs"][0]["slowdown"] is None
    assert told["summary"][0]["worst"] is None
    assert Config(document["results"][0]["configuration"]) == recording().default


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded spaces are not here")
def test_ten_measurements_of_a_real_space_beat_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    path = SHARED / "convolution_milo_A4000_T4.json.gz"
    told = report(capsys, path, "--budget", "10", "--seeds", "3")
    assert told["summary"][0]["median"] < 4.0  # the default is 6.0 times slower than the best
    assert told["forecast"][2]["brier_skill"] > 0.1
