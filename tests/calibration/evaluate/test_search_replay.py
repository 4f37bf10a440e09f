"""Searches replayed on recorded spaces."""

from __future__ import annotations

import random

import pytest

from calibration.evaluate import search_replay
from calibration.evaluate.search_replay import ARMS, main, search, session_without, summary
from calibration.paths import TRACES
from forecast_autotune.evaluation.recorded_space import read_space
from forecast_autotune.surrogates.history import History

TRACE = TRACES / "attention.full.NVIDIA_H200.jsonl.gz"


@pytest.fixture(autouse=True)
def nothing_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_replay, "_surrogate", lambda left_out: History())


def test_each_arm_measures_as_many_and_the_oracle_finds_most() -> None:
    space = read_space(TRACE)
    session = session_without("attention", space)
    runs = [search(space, session, arm, seed, 16) for seed in range(4) for arm in ARMS]
    assert {tuple(run.slowdown) for run in runs} == {(8, 16)}
    assert all(1 <= run.slowdown[16] <= run.slowdown[8] for run in runs)
    assert all(run.builds[16] >= 16 for run in runs)
    rows = {row["arm"]: row for row in summary(runs) if row["measured"] == 16}
    assert rows["evolution"]["over_evolution"] == rows["evolution"]["low"] == rows["evolution"]["high"] == 1.0
    assert rows["oracle"]["over_evolution"] < 1.0
    over_random = {row["arm"]: row for row in summary(runs, over="random-sampling") if row["measured"] == 16}
    assert over_random["random-sampling"]["over_random_sampling"] == 1.0
    assert over_random["oracle"]["over_random_sampling"] < over_random["evolution"]["over_random_sampling"]
    assert rows["oracle"]["over_evolution"] <= rows["random-filter"]["over_evolution"]


def test_the_same_seed_searches_alike_and_children_are_new_and_near() -> None:
    space = read_space(TRACE)
    session = session_without("", space)
    first = search(space, session, "ours-4x", 3, 16)
    search(space, session, "ours-2x", 4, 16)  # what a session was asked before does not matter
    assert (
        search(space, session, "ours-4x", 3, 16) == first == search(space, session_without("", space), "ours-4x", 3, 16)
    )
    searching = search_replay._Searching(space, session)
    searching.measure(space.space.default)
    children = searching.children(random.Random(0), 12)
    assert len(set(children)) == 12
    assert space.space.default not in children


def test_arms_that_are_none_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--arms", "evolution,magic"]) == 2
    assert main(["--arms", "oracle"]) == 2
    assert "name it among the arms" in capsys.readouterr().err
