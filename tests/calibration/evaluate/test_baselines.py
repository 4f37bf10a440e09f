"""The tables of `calibration.evaluate.baselines`, against numbers worked out by hand, and the command that prints them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import HERE, best_us, recording

pytest.importorskip("sklearn")
pytest.importorskip("kernel_tuner")

from calibration.evaluate import aggregates, baselines
from calibration.evaluate.baselines import main
from calibration.evaluate.benchmark import (
    OURS,
    UNSTOPPED,
    Entry,
    Pool,
    ResultCache,
    Row,
    Search,
    Unstopped,
    attempt,
    limit_of,
    others,
    with_progress,
    work,
)
from calibration.evaluate.honesty import Honesty, fifths
from calibration.paths import TRACES
from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.job import Compile, Measure, Stop, View
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.traces import write_trace

SOFTMAX = TRACES / "softmax.scores.NVIDIA_H200.jsonl.gz"
OTHER = replace(HERE, name="B", units=60)
HIP = replace(HERE, kind="hip", name="C")


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    """One kernel at two sizes on A, and at one on B and on another vendor's C."""
    found = []
    for n, hardware, best_block in ((4096, HERE, 7.0), (8192, HERE, 7.5), (4096, OTHER, 6.5), (4096, HIP, 9.0)):
        found.append(tmp_path / f"bowl.{n}.{hardware.name}.jsonl.gz")
        write_trace(recording(n=n, hardware=hardware, best_block=best_block), found[-1])
    return found


def row(method: str, slowdown: float, trace: str = "a", **more: object) -> Row:
    return {
        "setting": "cold",
        "kernel": "k",
        "trace": trace,
        "budget": "10",
        "method": method,
        "slowdown": slowdown,
    } | more


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*map(str, words), "--json", "--jobs", "1"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# Arithmetic -------------------------------------------------------------------------------------------------------------


def test_a_summary_is_the_geometric_mean_over_traces_of_medians_over_seeds() -> None:
    rows = [row("random", s) for s in (1.0, 2.0, 9.0)] + [row("random", s, "b") for s in (8.0, 8.0, 1.0)]
    (found,) = aggregates.summary(rows)
    assert found["geomean_of_medians"] == pytest.approx(4.0)
    assert found["geomean_of_p90s"] == pytest.approx(math.sqrt(72.0))
    assert (found["p90"], found["worst"], found["traces"], found["runs"]) == (9.0, 9.0, 2, 6)
    assert found["whole"]
    assert found["worst_over_default"] is None


def test_the_worst_over_the_default_leaves_out_where_the_default_fails() -> None:
    rows = [
        row("random", 2.0, over_default=0.5),
        row("random", 3.0, over_default=1.25),
        row("random", 9.0, over_default=None),
    ]
    assert aggregates.summary(rows)[0]["worst_over_default"] == 1.25


def test_kernels_are_summarised_apart_where_there_are_several() -> None:
    rows = [row("random", 2.0), row("random", 8.0, "b", kernel="other")]
    found = {r["kernel"]: r["geomean_of_medians"] for r in aggregates.summary(rows)}
    assert found == {None: pytest.approx(4.0), "k": pytest.approx(2.0), "other": pytest.approx(8.0)}


def test_a_method_that_did_not_search_every_space_is_no_best_baseline() -> None:
    rows = [row("random", 2.0), row("random", 2.0, "b"), row("gp-ei", 1.0), row(OURS, 1.0), row(OURS, 1.0, "b")]
    assert {r["method"]: r["whole"] for r in aggregates.summary(rows)} == {"random": True, "gp-ei": False, OURS: True}
    (compared,) = aggregates.comparisons(rows)
    assert (compared["against"], compared["ratio"]) == ("random", pytest.approx(0.5))


def test_nobody_who_follows_our_forecasts_is_a_baseline() -> None:
    rows = [row("random", 2.0), row("top-forecast", 1.0), row(OURS, 1.0)]
    assert aggregates.comparisons(rows)[0]["against"] == "random"
    assert aggregates.comparisons(rows, ["top-forecast"])[0]["ratio"] == pytest.approx(1.0)


def test_a_ratio_pairs_spaces_and_holds_its_interval_around_it() -> None:
    ours = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, 2.0], "c": [5.0]}
    found = aggregates.ratio(ours, {"a": [2.0, 2.0, 2.0], "b": [2.0, 2.0, 2.0]})
    assert found is not None
    # a: one half, b: 1; drawing both spaces anew gives one half, its root or 1.
    assert found["ratio"] == pytest.approx(math.sqrt(0.5))
    assert (found["low"], found["high"]) == (pytest.approx(0.5), pytest.approx(1.0))
    assert aggregates.ratio(ours, {"a": [math.inf]}) is None
    assert aggregates.ratio(ours, {"d": [1.0]}) is None


def test_an_interval_holds_its_mean_and_widens_with_what_kernels_differ_by() -> None:
    alike = {f"t{i}": [1.1, 1.2, 1.3] for i in range(8)}
    kernels = {f"t{i}": f"k{i // 2}" for i in range(8)}
    apart = {t: [2.0 * x if kernels[t] == "k0" else x for x in values] for t, values in alike.items()}
    narrow, wide = (aggregates.interval(by, kernels) for by in (alike, apart))
    assert narrow["low"] <= aggregates.geomean_of_medians(alike) <= narrow["high"]
    assert wide["high"] / wide["low"] > 1.2 * narrow["high"] / narrow["low"]
    assert aggregates.interval({"t0": [math.inf]}, kernels) == {"low": math.inf, "high": math.inf}


def test_seeds_are_drawn_in_pairs() -> None:
    """Both methods are three times slower with the same seeds, so that their ratio is sure."""
    ours, theirs = [1.0, 3.0, 9.0, 27.0, 81.0], [2.0, 6.0, 18.0, 54.0, 162.0]
    found = aggregates.ratio({"a": ours}, {"a": theirs})
    assert found is not None
    assert found["low"] == pytest.approx(found["high"]) == pytest.approx(0.5)


def test_a_new_kernel_is_held_against_another_baseline_at_each_budget() -> None:
    slow = {"random": 4.0, "gp-ei": 2.0, "lfbo": 1.0, OURS: 1.0}
    rows = [row(m, s, budget=b) for b in ("5", "10", "20") for m, s in slow.items()]
    found = {r["budget"]: (r["against"], r["ratio"]) for r in aggregates.bars(rows)}
    assert found == {
        "5": ("random", pytest.approx(0.25)),
        "10": ("gp-ei", pytest.approx(0.5)),
        "20": ("lfbo", pytest.approx(1.0)),
    }


def test_stopping_says_what_was_spent_and_lost() -> None:
    rows = [row(OURS, 1.1, measured=5, limit=20), row(OURS, 1.1, "b", measured=15, limit=20)]
    rows += [row(UNSTOPPED, 1.0, measured=20, limit=20), row(UNSTOPPED, 1.0, "b", measured=20, limit=20)]
    (found,) = aggregates.stopping(rows)
    assert (found["spent_share"], found["ratio"]) == (pytest.approx(0.5), pytest.approx(1.1))


def test_error_falls_with_confidence_unless_it_rises_beyond_chance() -> None:
    n = 1000
    confidence = np.linspace(0.2, 1.0, n)[None]
    honest = np.random.default_rng(0).random((1, n)) > confidence
    found = fifths(honest, confidence)
    assert (found["falls"], found["rises"]) == (True, [])
    assert found["error_by_fifth"] == sorted(found["error_by_fifth"], reverse=True)  # type: ignore[call-overload]
    found = fifths(~honest, confidence)
    assert found["falls"] is False
    assert found["rises"]
    flat = np.tile([True, False], (1, n // 2))
    assert fifths(flat, confidence)["rises"] == []
    assert fifths(honest[:, :4], confidence[:, :4])["falls"] is None


def test_error_by_fifth_goes_from_the_least_confident_to_the_most() -> None:
    confidence = np.arange(10.0)[None][:, ::-1]
    wrong = np.array([[False] * 6 + [True, False, True, True]])
    assert fifths(wrong, confidence)["error_by_fifth"] == [1.0, 0.5, 0.0, 0.0, 0.0]


def test_a_budget_is_a_count_or_a_share() -> None:
    assert [limit_of(b, 4362) for b in ("10", "1%", "10%", "0")] == [10, 44, 436, 0]
    assert limit_of("10", 4) == 4
    for wrong in ("2s", "all", "10,2s"):
        with pytest.raises(InvalidInputError, match="give a count"):
            limit_of(wrong, 100)


# Tasks ------------------------------------------------------------------------------------------------------------------


def test_history_is_of_the_same_kernel_and_never_the_workload_itself(traces: list[Path], tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl.gz"
    write_trace(recording(), again)
    mine, size, elsewhere, vendor = traces
    assert others(mine, [*traces, again, SOFTMAX]) == (size, elsewhere, vendor)
    (entry, *_) = [e for e in baselines.transfer(traces, []) if e.trace == mine]
    assert (entry.setting, entry.history) == ("other hardware", (elsewhere, vendor))
    assert next(e.history for e in baselines.transfer(traces, []) if e.setting == "other vendor") == (vendor,)
    assert [e.trace for e in baselines.left_out(traces, []) if e.history] == [mine, size]


@pytest.mark.parametrize("method", [OURS, UNSTOPPED])
def test_ours_decides_within_the_budget_and_is_looked_at_like_the_others(method: str, traces: list[Path]) -> None:
    entry = Entry(trace=traces[0], setting="cold")
    rows = Search(entry=entry, method=method, seed=0, budgets=("0", "1", "30", "100%")).do()
    assert [r["limit"] for r in rows] == [0, 1, 30, 84]
    assert [r["measured"] for r in rows][:3] == [0, 1, 30]
    of = recording()
    default = of.outcomes[of.default]
    assert isinstance(default, Measurement)
    assert rows[1]["slowdown"] == pytest.approx(default.median_us / best_us(of))
    assert rows[1]["over_default"] == pytest.approx(1.0)
    slowdowns = [float(str(r["slowdown"])) for r in rows[1:]]
    assert slowdowns[0] > slowdowns[1] >= slowdowns[2]
    if method == UNSTOPPED:
        assert rows[3]["measured"] == 84


def test_a_policy_that_may_not_stop_takes_what_may_gain_most() -> None:
    space = Space([{"k": k} for k in range(4)])
    forecasts = [Forecast.normal(mean, 0.1, source="test") for mean in (0.0, 0.2, 3.0, 1.0)]
    outcomes = {space[0]: Measurement(samples_us=(1.0,))}

    class Stops:
        def step(self, view: View) -> Compile | Measure | Stop:
            return Stop("enough")

    def view(left: float) -> View:
        return View(
            space=space, forecasts=forecasts, outcomes=outcomes, evidence={}, configs_left=left, seconds_left=1.0
        )

    assert Unstopped(Stops()).step(view(5)) == Compile((space[2],))
    assert Unstopped(Stops()).step(view(0)) == Stop("enough")


@pytest.mark.thorough
def test_a_space_beyond_a_method_is_reported_and_not_searched(traces: list[Path]) -> None:
    entry = Entry(trace=SOFTMAX, setting="cold")
    rows = Search(entry=entry, method="gp-ei", seed=0, budgets=("6", "150")).do()
    assert rows[0]["measured"] == 6
    assert "slowdown" not in rows[1]
    assert "more than 100" in str(rows[1]["why"])
    alien = Entry(trace=traces[0], setting="x", history=(SOFTMAX,))
    (found,) = Search(entry=alien, method="look-up", seed=0, budgets=("4",)).do()
    assert "recorded elsewhere" in str(found["why"])


def test_the_pool_ranks_before_anything_is_measured(traces: list[Path]) -> None:
    rows = Pool(entry=Entry(trace=traces[0], setting="sizes", history=(traces[1],))).do()
    found = {r["ranking"]: [float(str(r[f"top_{s}%"])) for s in (1, 10, 50)] for r in rows}
    assert set(found) == {"forecast", "look-up", "random"}
    for tops in found.values():
        assert tops == sorted(tops, reverse=True)
        assert tops[-1] >= 1.0
    assert found["look-up"][0] < found["random"][0]
    assert found["forecast"][0] < found["random"][0]


def test_a_task_that_fails_says_why_and_is_tried_again(tmp_path: Path, traces: list[Path]) -> None:
    entry = Entry(trace=traces[0], setting="cold")

    @dataclass(frozen=True)
    class Fails:
        entry: Entry
        own: bool = True

        def do(self) -> list[Row]:
            raise RuntimeError("out of luck")

    (found,) = attempt(Fails(entry))
    assert "out of luck" in str(found["why"])
    kept = ResultCache(tmp_path / "kept.jsonl")
    list(work([Fails(entry)], 1, kept))
    assert not ResultCache(tmp_path / "kept.jsonl").rows


def test_what_is_kept_is_not_searched_again(
    tmp_path: Path, traces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry(trace=traces[0], setting="cold")
    tasks = [Search(entry=entry, method="random", seed=seed, budgets=("4",)) for seed in range(3)]
    file = tmp_path / "kept.jsonl"
    first = [rows for _, rows in work(tasks, 1, ResultCache(file))]
    file.write_text(file.read_text() + '{"key": "cut o')
    monkeypatch.setattr(
        "calibration.evaluate.benchmark.attempt", lambda task: pytest.fail(f"{task} was searched again")
    )
    assert [rows for _, rows in work(tasks, 1, ResultCache(file))] == first


def test_what_follows_a_torn_line_is_kept_too(tmp_path: Path, traces: list[Path]) -> None:
    task = Search(entry=Entry(trace=traces[0], setting="cold"), method="random", seed=0, budgets=("4",))
    file = tmp_path / "kept.jsonl"
    file.write_text('[1]\n{"key": "cut o')
    ((_, rows),) = work([task], 1, ResultCache(file))
    assert list(ResultCache(file).rows.values()) == [rows]


def test_progress_goes_to_stderr(traces: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    entry = Entry(trace=traces[0], setting="cold")
    tasks = [Search(entry=entry, method="random", seed=seed, budgets=("4",)) for seed in range(2)]
    list(with_progress(work(tasks, 1, ResultCache(None)), 2, name="report", every_s=0.0))
    heard = capsys.readouterr()
    assert "report: 1 of 2" in heard.err
    assert not heard.out


# The command ------------------------------------------------------------------------------------------------------------


def test_large_says_what_each_method_found(traces: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    methods = (OURS, "random", "gp-ei", "kt-genetic_algorithm")
    found = told(capsys, "large", *traces[:2], "--seeds", 2, "--budget", 4, "--budget", "20%", "--methods", *methods)
    assert {(r["method"], r["budget"]) for r in found["summary"]} == {(m, b) for m in methods for b in ("4", "20%")}
    assert all(r["traces"] == 2 and r["runs"] == 4 and r["geomean_of_medians"] >= 1.0 for r in found["summary"])
    assert [r["limit"] for r in found["runs"] if r["method"] == "random"][:2] == [4, 17]
    assert [r["budget"] for r in found["comparisons"]] == ["4", "20%"]
    assert found["left_out"] == []


def test_transfer_knows_first_other_hardware_then_another_vendor(
    traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [traces[0], *traces[2:]]
    found = told(
        capsys, "transfer", *files, "--seeds", 1, "--budget", 5, "--methods", "look-up", "look-up-vendor", OURS
    )
    settings = {(r["setting"], r["trace"], r["history"]) for r in found["runs"]}
    first, second, third = (path.name for path in files)
    assert ("other hardware", first, 2) in settings
    assert {trace for setting, trace, _ in settings if setting == "other vendor"} == {first, second, third}
    assert {r["method"] for r in found["spaces"]} == {"look-up", "look-up-vendor", OURS}


def test_the_suite_is_searched_with_kernels_and_with_sizes_left_out(
    traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--seeds", 1, "--methods", OURS, "random", "look-up", "top-forecast")
    found = told(capsys, "suite", *traces[:2], *words)
    assert {r["setting"] for r in found["summary"]} == {"kernels left out", "sizes left out"}
    assert not [r for r in found["runs"] if r["setting"] == "kernels left out" and r["method"] == "look-up"]
    assert {r["budget"] for r in found["runs"]} == {"0", "1", "4", "8", "16"}
    best = {r["ranking"]: r for r in found["pools"] if r["setting"] == "sizes left out"}
    assert best["look-up"]["top_10%_geomean"] <= best["random"]["top_10%_geomean"]


def test_honesty_scores_forecasts_with_and_without_history(
    traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "honesty", *traces[:2], "--seeds", 2)
    assert {(r["setting"], r["known"]) for r in found["honesty"]} == {
        ("cold", 0), ("cold", 10), ("cold", 50), ("with history", 0), ("with history", 50),
    }  # fmt: skip
    assert all(len(r["error_by_fifth"]) == 5 for r in found["runs"])
    by = {(r["setting"], r["known"]): r for r in found["honesty"] if r["kind"] is None}
    of_kinds = [r for r in found["honesty"] if r["kind"] is not None]
    assert sum(r["traces"] for r in of_kinds) == sum(r["traces"] for r in by.values())
    assert all(0.0 <= r["pooled_ece"] <= 1.0 for r in found["honesty"])
    assert by["cold", 50]["brier_skill"] > by["cold", 10]["brier_skill"]
    (scored,) = Honesty(entry=Entry(trace=traces[0], setting="cold"), known=10, draws=2).do()
    assert scored["draws"] == 2


@pytest.mark.parametrize("table", ["stopping", "uncertainty", "new-kernel"])
def test_other_tables_print(table: str, traces: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["--methods", OURS, "random"] if table == "new-kernel" else []
    words = [table, *map(str, traces[:2]), "--seeds", "1", "--jobs", "1", "--budget", "5", *methods]
    assert main(words) == 0
    assert OURS in capsys.readouterr().out


@pytest.mark.thorough
def test_a_recorded_space_of_the_suite_in_processes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--seeds", "1", "--budget", "8", "--jobs", "2", "--methods", OURS, "kt-simulated_annealing", "random")
    assert main(["large", str(SOFTMAX), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {OURS, "kt-simulated_annealing", "random"} <= {line.split(" ")[0] for line in lines}


def test_ctrl_c_keeps_what_is_done(
    traces: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(tasks: Any, jobs: int, kept: ResultCache) -> Any:
        yield tasks[0], attempt(tasks[0])
        raise KeyboardInterrupt

    monkeypatch.setattr("calibration.evaluate.benchmark.work", interrupted)
    assert main(["large", str(traces[0]), "--budget", "4", "--methods", "random", "--json"]) == 130
    heard = capsys.readouterr()
    assert "1 of 10 done" in heard.err
    assert len(json.loads(heard.out)["runs"]) == 1


def test_bad_words_are_refused(traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "copies").mkdir()
    copied = tmp_path / "copies" / traces[0].name
    copied.write_bytes(traces[0].read_bytes())
    for words, said in (
        (["large"], "has no traces of its own"),
        (["large", str(traces[0]), "--methods", "magic"], "no method 'magic'"),
        (["large", str(traces[0]), "--budget", "2s"], "give a count"),
        (["transfer", str(traces[0])], "none of 1 traces has another one"),
        (["large", "nowhere.json.gz"], "nowhere.json.gz"),
        (["large", str(traces[0]), "--keep", str(tmp_path)], "Is a directory"),
        (["large", str(traces[0]), str(copied)], "have the same name"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
