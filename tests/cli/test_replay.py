from __future__ import annotations

import argparse
import gzip
import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import recording
from talking import Talking, named_by_settings

from forecast_autotune.cli import main, replay
from forecast_autotune.cli._replay_report import SHOWN_PRIORS
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.evaluation import replay_runner
from forecast_autotune.evaluation.history import history_of
from forecast_autotune.evaluation.recorded_space import read_space
from forecast_autotune.evaluation.replay_runner import ReplayPlan, Row, Task
from forecast_autotune.evaluation.traces import read_trace, write_trace
from forecast_autotune.settings import SURROGATES
from forecast_autotune.surrogates.base import StatelessSurrogate
from forecast_autotune.surrogates.prior import shipped_prior
from forecast_autotune.surrogates.roofline import Roofline

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
    read_space.cache_clear()


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays start no process: what a test puts in place of something, or listens to, is in this one."""
    monkeypatch.setattr(replay, "_jobs", lambda _: None)


def run(*arguments: object) -> int:
    return main(["replay", *map(str, arguments)])


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run(*arguments, "--json", "--jobs", 1) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("told", [True, False])
def test_a_replayed_job_says_of_its_configs_what_the_trace_does(tmp_path: Path, told: bool) -> None:
    asked: list[ForecastContext] = []

    class Listening(StatelessSurrogate):
        name = "listening"

        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> list[Abstention]:
            asked.append(context)
            return [Abstention(self.name, "it only listens")] * len(context.job.space)

    configs = list(recording().outcomes)
    described = {configs[1]: {"programs": 8.0}, configs[0]: {"programs": 4.0}} if told else {}
    path = tmp_path / "run.jsonl"
    write_trace(replace(recording(), static_features=described), path)
    plan = ReplayPlan(traces=(path,), histories=((),), policy="selective", surrogate=Listening)
    plan.do(Task(0, "4", 1))
    job = asked[0].job
    assert list(job.static_features) == ([described.get(config, {}) for config in job.space] if told else [])


def test_the_report_has_the_agreed_shape(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = report(capsys, trace, "--budget", "5", "--budget", "10%", "--seeds", "2")
    assert set(told) == {"runs", "summary", "forecast", "priors"}
    assert told["priors"] == list(shipped_prior().fitted_on)
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
            *("error_by_fifth", "top_1_percent", "top_10_percent", "top_50_percent", "rank_correlation"),
            *("aurc", "coverage_50", "coverage_90", "regret_10", "regret_30"),
        }
        assert len(row["error_by_fifth"]) == 5


def test_forecasts_are_better_the_more_is_measured(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = report(capsys, trace, "--budget", "1", "--seeds", "2")["forecast"]
    assert scores[0]["brier_skill"] < scores[1]["brier_skill"] < scores[2]["brier_skill"]


def test_measuring_everything_finds_the_best(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = report(capsys, trace, "--budget", "all", "--policy", "exhaustive", "--seeds", "1")["runs"]
    assert row["slowdown"] == pytest.approx(1.0, abs=0.005)  # a tie goes to the config listed first
    assert row["measured"] == 84


def test_a_budget_of_all_measures_every_config_as_a_live_run_does(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, selective, none = report(
        capsys, trace, *("--budget", "all"), *("--budget", "100%"), *("--budget", "0"), "--seeds", "1"
    )["runs"]
    assert [run["measured"] for run in (whole, none)] == [84, 0]
    assert selective["measured"] < 84, "what `all` measures must not be the work of a policy that stops by itself"


def test_recorded_failures_are_not_reported_again(
    trace: Path, caplog: pytest.LogCaptureFixture, in_this_process: None
) -> None:
    caplog.set_level(logging.INFO)
    assert run(trace, "--budget", "all", "--seeds", 1, "--json") == 0
    assert not [r for r in caplog.records if "configs tried failed" in r.getMessage()]


def test_files_of_one_name_in_two_folders_are_two_spaces_of_the_summary(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "others").mkdir()
    other = write_t4(tmp_path / "others" / trace.name)
    document = json.loads(gzip.decompress(other.read_bytes()))
    document["results"] = [r for r in document["results"] if r["times"]["runtimes"]][:3]
    other.write_bytes(gzip.compress(json.dumps(document).encode()))
    seeds = ("--policy", "first", "--seeds", 1, "--budget", "0")
    alone = [report(capsys, path, *seeds)["runs"][0]["slowdown"] for path in (trace, other)]
    assert alone[0] != alone[1]
    both = report(capsys, trace, other, *seeds)["summary"][0]
    assert both["geomean_of_medians"] == pytest.approx((alone[0] * alone[1]) ** 0.5)


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


def test_a_run_is_left_out_of_its_own_history_and_reported(
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


def rewritten(path: Path, to: Path, change: Any) -> Path:
    """A T4 file again, its document changed."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    change(document)
    to.write_bytes(gzip.compress(json.dumps(document).encode()))
    return to


def as_kernel_tuner(path: Path, to: Path, *, scale: float = 1.0, **header: Any) -> Path:
    """A T4 file as Kernel Tuner's cache file."""
    results = json.loads(gzip.decompress(path.read_bytes()))["results"]
    knobs = list(results[0]["configuration"])
    cache = {}
    for result in results:
        times = [t * scale for t in result["times"]["runtimes"]]
        found = {"time": sum(times) / len(times), "times": times} if times else {"__error__": "RuntimeFailedConfig"}
        cache[",".join(map(str, result["configuration"].values()))] = {
            **result["configuration"], **found, "compile_time": 500.0, "benchmark_time": 1.0, "verification_time": 0.0
        }  # fmt: skip
    document = {
        "device_name": "NVIDIA A40",
        "kernel_name": "bowl",
        "problem_size": [4096],
        "tune_params_keys": knobs,
        "tune_params": {},
        "objective": "time",
        **header,
        "cache": cache,
    }
    to.write_text(json.dumps(document))
    return to


def kept_of(capsys: pytest.CaptureFixture[str], trace: Path, *history: Path) -> list[str]:
    row = report(capsys, trace, "--budget", "0", "--seeds", 1, "--history", *history)["runs"][0]
    kept: list[str] = row["history"]
    return kept


def test_the_run_under_test_is_no_history_under_any_name(
    trace: Path, elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "bowl_lab_Z_T4.json.gz"
    link.symlink_to(trace)
    renamed = tmp_path / "bowl_other_MI250X_T4.json.gz"
    renamed.write_bytes(trace.read_bytes())
    unpacked = tmp_path / "bowl_lab_H100.json"
    unpacked.write_bytes(gzip.decompress(trace.read_bytes()))
    ours = tmp_path / "mine.jsonl"
    write_trace(replace(read_trace(trace), hardware=Hardware(kind="cuda", name="other")), ours)
    part = rewritten(trace, tmp_path / "bowl_part_B_T4.json.gz", lambda d: d.update(results=d["results"][10:40]))

    def in_seconds(document: dict[str, Any]) -> None:
        document["metadata"]["timeunit"] = "seconds"
        for result in document["results"]:
            result["times"] = {
                name: [t / 1000 for t in times] if isinstance(times, list) else times / 1000
                for name, times in result["times"].items()
            }

    seconds = rewritten(trace, tmp_path / "bowl_lab_L4_T4.json.gz", in_seconds)
    theirs = as_kernel_tuner(trace, tmp_path / "cache.json")
    monkeypatch.chdir(tmp_path)
    copies = [trace, Path(trace.name), link, renamed, unpacked, ours, part, seconds, theirs]
    assert kept_of(capsys, trace, *copies, elsewhere) == [elsewhere.name]


def test_a_rerun_of_the_same_workload_on_the_same_hardware_is_no_history(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A T4 file tells no workload: what its author called a second campaign may be a rerun.
    again = write_t4(tmp_path / "bowl_second_A_T4.json.gz", scale=1.1)
    unknown = write_t4(tmp_path / "bowl.json.gz", scale=1.2)
    assert kept_of(capsys, trace, again, unknown) == []
    mine = as_kernel_tuner(trace, tmp_path / "mine.json")
    rerun = as_kernel_tuner(trace, tmp_path / "rerun.json", scale=1.3)
    untold = as_kernel_tuner(trace, tmp_path / "untold.json", scale=1.4, problem_size="callable")
    larger = as_kernel_tuner(trace, tmp_path / "larger.json", scale=1.5, problem_size=[8192])
    other = as_kernel_tuner(trace, tmp_path / "other.json", scale=1.6, device_name="NVIDIA A10")
    t4 = write_t4(tmp_path / "bowl_lab_A40_T4.json.gz", scale=1.7)
    assert kept_of(capsys, mine, rerun, untold, t4, larger, other) == [larger.name, other.name]


def test_two_runs_that_agree_on_half_their_times_are_two_runs(
    trace: Path, elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = json.loads(gzip.decompress(trace.read_bytes()))["results"]

    def half_the_same(document: dict[str, Any]) -> None:
        document["results"][::2] = times[::2]

    half = rewritten(elsewhere, tmp_path / "bowl_lab_C_T4.json.gz", half_the_same)
    assert kept_of(capsys, trace, half) == [half.name]


def test_history_with_other_knobs_is_borne(
    trace: Path, elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_knob_more(document: dict[str, Any]) -> None:
        for result in document["results"]:
            result["configuration"]["unroll"] = 4

    def all_others(document: dict[str, Any]) -> None:
        for n, result in enumerate(document["results"]):
            result["configuration"] = {"a": n, "b": "x"}

    more = rewritten(elsewhere, tmp_path / "bowl_lab_C_T4.json.gz", one_knob_more)
    others = rewritten(elsewhere, tmp_path / "bowl_lab_D_T4.json.gz", all_others)
    told = report(capsys, trace, "--budget", "5", "--seeds", 1, "--history", more, others)
    assert told["runs"][0]["history"] == [more.name, others.name]
    assert told["runs"][0]["slowdown"] >= 1.0


def test_a_kernel_tuner_file_is_replayed_and_helps(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = as_kernel_tuner(trace, tmp_path / "mine.json")
    other = as_kernel_tuner(trace, tmp_path / "other.json", scale=3.0, device_name="AMD Instinct MI250X")
    told = report(capsys, mine, "--budget", "5", "--seeds", 2, "--history", other)
    assert told["runs"][0]["kernel"] == "bowl"
    assert told["runs"][0]["hardware"] == "NVIDIA A40"
    assert told["runs"][0]["history"] == ["other.json"]
    assert told["summary"][0]["median"] < 1.05


def test_an_unclosed_file_is_reported_once_however_many_processes_read_it(trace: Path, tmp_path: Path) -> None:
    path = as_kernel_tuner(trace, tmp_path / "open.json")
    path.write_text(path.read_text()[:-30])
    command = [sys.executable, "-m", "forecast_autotune", "replay", str(path), "--budget", "3", "--seeds", "4"]
    ended = subprocess.run([*command, "--jobs", "2", "--json"], capture_output=True, text=True, check=True)
    assert len(json.loads(ended.stdout)["runs"]) == 4
    assert ended.stderr.count("not closed") == 1


def test_a_space_of_one_is_replayed(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = rewritten(trace, tmp_path / "one_lab_A_T4.json.gz", lambda d: d.update(results=d["results"][:1]))
    told = report(capsys, one, "--budget", "10", "--budget", "10%", "--seeds", "2")
    assert {r["slowdown"] for r in told["runs"]} == {1.0}
    assert len(told["forecast"]) == 3


@pytest.mark.parametrize("name", SURROGATES)
def test_each_surrogate_of_the_settings_may_be_replayed(name: str) -> None:
    parser = argparse.ArgumentParser()
    replay.add_parser(parser.add_subparsers())
    assert parser.parse_args(["replay", "x", "--surrogate", name]).surrogate == name


def test_what_the_surrogate_was_fitted_on_is_reported(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_this_process: None
) -> None:
    class Fitted(Roofline):
        fitted_on = tuple(f"kernel{n}" for n in range(SHOWN_PRIORS + 3))

    monkeypatch.setattr(replay, "make_surrogate", lambda _name, **_: Fitted())
    priors = report(capsys, trace, "--budget", "0", "--seeds", 1)["priors"]
    assert priors == [f"kernel{n}" for n in range(SHOWN_PRIORS + 3)]
    assert run(trace, "--budget", "0", "--seeds", 1, "--jobs", 1) == 0
    told = capsys.readouterr().out
    assert f"fitted beforehand on {', '.join(priors[:SHOWN_PRIORS])} and 3 more" in " ".join(told.split())


@pytest.mark.parametrize(("surrogate", "fitted"), [("learned", True), ("history", False), ("roofline", False)])
def test_only_what_holds_the_model_was_fitted_on_anything(
    trace: Path, capsys: pytest.CaptureFixture[str], surrogate: str, fitted: bool
) -> None:
    told = report(capsys, trace, "--budget", "0", "--seeds", "1", "--surrogate", surrogate)
    assert told["priors"] == (list(shipped_prior().fitted_on) if fitted else [])


@pytest.mark.parametrize("surrogate", ["auto", "learned", "roofline"])
def test_a_held_model_that_is_missing_stops_what_would_forecast_by_it(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, surrogate: str
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODEL", "/nowhere/model.json")
    code = run(trace, "--budget", "0", "--seeds", 1, "--jobs", 1, "--surrogate", surrogate)
    told = capsys.readouterr()
    if surrogate == "roofline":
        assert (code, told.err) == (0, "")
    else:
        assert (code, told.out) == (2, "")
        assert "FORECAST_AUTOTUNE_MODEL=/nowhere/model.json: there is no folder /nowhere" in told.err


def test_processes_give_what_one_gives(capsys: pytest.CaptureFixture[str]) -> None:
    trace = Path(__file__).parents[2] / "calibration" / "traces" / "softmax.few_rows.NVIDIA_H200.jsonl.gz"
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
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_this_process: None
) -> None:
    done = ReplayPlan.do
    calls = []

    def interrupted(self: ReplayPlan, task: Task) -> Row:
        calls.append(task)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return done(self, task)

    monkeypatch.setattr(ReplayPlan, "do", interrupted)
    assert run(trace, "--budget", "4", "--seeds", 5, "--json", "--jobs", 1) == 130
    told = capsys.readouterr()
    assert len(json.loads(told.out)["runs"]) == 2
    assert "2 of" in told.err


@pytest.mark.parametrize("arguments", [["--budget", "lots"], ["--history", "nowhere.json"]])
def test_what_cannot_be_read_is_reported_on_stderr(
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
def test_the_history_of_a_real_space_is_the_same_kernel_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted(SHARED.glob("*.json.gz"))
    kept = dict(zip(paths, (history_of(path, paths).kept for path in paths), strict=True))
    for path, history in kept.items():
        kernel = path.name.partition("_")[0]
        assert set(history) == {p for p in paths if p.name.startswith(kernel)} - {path}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded spaces are not here")
def test_ten_measurements_of_a_real_space_beat_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    path = SHARED / "convolution_milo_A4000_T4.json.gz"
    told = report(capsys, path, "--budget", "10", "--seeds", "3")
    assert told["summary"][0]["median"] < 4.0  # the default is 6.0 times slower than the best
    assert told["forecast"][2]["brier_skill"] > 0.1


# Language models --------------------------------------------------------------------------------------------------------


def test_a_language_model_is_replayed_in_one_process_and_asked_things_once(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_settings: Path
) -> None:
    def several(*_: object) -> Any:
        raise AssertionError("each process would load the model")

    monkeypatch.setattr(replay_runner, "side_by_side", several)
    with named_by_settings(Talking()) as model:
        assert run(trace, "--surrogate", "hf:kernels", "--budget", "3", "--seeds", 2, "--jobs", 2, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["runs"]) == 2
    assert len(model.asked) == 83
    assert not own_settings.exists(), "no store is read, nor begun"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("tea leaves", "accepted are auto"), ("http://10.0.0.7:8000", "FORECAST_AUTOTUNE_REMOTE_MODEL=1")],
)
def test_a_surrogate_that_may_not_be_asked_is_refused(
    trace: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    assert run(trace, "--surrogate", name) == 2
    told = capsys.readouterr().err
    assert f"--surrogate={name!r}" in told
    assert reason in told
