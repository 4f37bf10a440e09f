"""The server's loop: what it makes of its times, and a short one on real builds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from server_loop import compare, main, percentiles


def test_percentiles_are_times_that_were_seen() -> None:
    assert percentiles([float(us) for us in range(1, 101)]) == {"p50_us": 51.0, "p99_us": 100.0}
    assert percentiles([7.0]) == {"p50_us": 7.0, "p99_us": 7.0}


def test_modes_are_compared_with_the_fixed_config_of_the_same_run() -> None:
    fixed = {"p50_us": 10.0, "p99_us": 20.0, "late_p50_us": 8.0}
    tuned = {"p50_us": 5.0, "p99_us": 100.0, "late_p50_us": 2.0}
    ratios = {"p50_ratio": 0.5, "p99_ratio": 5.0, "late_p50_ratio": 0.25}
    assert compare({"first": fixed, "tune": tuned})["tune"] == {**tuned, **ratios}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_in_mode_online_no_request_waits_for_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--keys", "3", "--seconds", "8", "--builds", str(tmp_path / "builds"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert list(rows) == ["first", "online", "tune"]
    assert {mode: row["measured"] > 0 for mode, row in rows.items()} == {"first": 0, "online": 0, "tune": 1}
    assert rows["online"]["keys"] == 3
    assert rows["tune"]["longest_us"] > rows["online"]["longest_us"]
