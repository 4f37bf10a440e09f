"""The GEMM space recorded on this project's own machine, replayed through the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forecast_autotune.cli import main
from forecast_autotune.evaluation.traces import read_trace

TRACE = Path(__file__).parents[1] / "traces" / "gemm_few_rows.jsonl.gz"


def test_the_recording_holds_the_whole_space() -> None:
    recording = read_trace(TRACE)
    speedups = recording.log2_speedups()
    assert len(recording.outcomes) == 400
    assert speedups[recording.default] == 0.0
    assert 2 ** max(speedups.values()) > 1.3
    assert max(speedups.values()) - min(speedups.values()) > 1.58, "the worst takes three times the best, or more"


@pytest.mark.thorough
def test_a_larger_budget_loses_less(capsys: pytest.CaptureFixture[str]) -> None:
    runs, median = [], {}
    for budgets, seeds in (
        (("4", "16", "64"), "4"),
        (("all",), "1"),
    ):  # whoever measures all finds the same by any seed
        arguments = [argument for budget in budgets for argument in ("--budget", budget)]
        assert main(["replay", str(TRACE), *arguments, "--seeds", seeds, "--jobs", "1", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        runs += told["runs"]
        median |= {s["budget"]: s["median"] for s in told["summary"] if s["kernel"] is None}
    assert median["4"] >= median["16"] >= median["64"] >= median["all"] >= 1.0
    assert median["64"] < 1.15
    assert median["all"] <= 1.02, "within what is counted as a tie"
    assert all(run["measured"] <= int(run["budget"]) for run in runs if run["budget"].isdigit())
