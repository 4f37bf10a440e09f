"""Live searches, with forecasts and without: what is written, what goes on, and what is told of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from doubling import task

from calibration.evaluate import search_live
from calibration.evaluate.search_live import Remembered, by_hand, main, read, summary
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search.examiner import Result
from forecast_autotune.program_search.runners import Loadable
from forecast_autotune.surrogates.history import History

pytest.importorskip("libcst")

SPACE = Space.grid({"PARTS": [8, 1, 2, 4, 16, 32, 64]}, roles={"PARTS": "tile"})


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    good = task(spaces={"plain": SPACE, "again": SPACE}, entries={"plain": "double", "again": "double"})
    wrong = task(name="wrong", reference=lambda x, out: 3 * x)
    monkeypatch.setattr(search_live, "search_tasks", lambda names: [t for t in (good, wrong) if t.name in names])
    monkeypatch.setattr(search_live, "surrogate_without", lambda name: History())


@pytest.mark.skipif(bool(lacking()), reason=f"no box here: {lacking()}")
def test_tasks_are_searched_by_both_arms_and_what_was_stopped_goes_on(
    tasks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "found.jsonl"
    words = ["--to", str(to), "--work", str(tmp_path / "work"), "--measurements", "8", "--json"]
    assert main([*words, "--seeds", "1", "--tasks", "double", "wrong"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(row["task"], row["measured"], row["seeds"]) for row in found["searches"]] == [("double", 8, 1)]
    assert "own source fails" in found["left_out"][0]["reason"]
    assert found["left_out"][0]["task"] == "wrong"
    searches = [row for row in read(to) if row["what"] == "search"]
    assert [row["arm"] for row in searches] == ["forecasts", "random"]
    assert all(len(row["best_us"]) == 8 for row in searches)
    assert searches[0]["best_us"][0] == searches[1]["best_us"][0]  # the seed is measured once
    assert sum(row["examined"] for row in searches) < 16
    finals = [row for row in read(to) if row["what"] == "final"]
    assert {row["variant"] for row in finals if row["by_hand"]} == {"plain", "again"}
    with to.open("a") as file:
        file.write('{"what": "sea')  # killed as it wrote
    main([*words, "--seeds", "2", "--tasks", "double"])
    capsys.readouterr()
    searches = [row for row in read(to) if row["what"] == "search"]
    assert [row["seed"] for row in searches] == [0, 0, 1, 1]
    finals = [row for row in read(to) if row["what"] == "final"]
    assert {name for row in finals[-1:] + finals for name in row["of"]} >= {"random 0", "random 1"}

    last = searches[-1]
    to.write_text(to.read_text().replace(json.dumps(last), json.dumps({**last, "cut": True})))
    main([*words, "--seeds", "2", "--tasks", "double"])
    again = [row for row in read(to) if row["what"] == "search"][-1]
    assert (again["arm"], again["seed"], again["cut"]) == (last["arm"], last["seed"], False)
    assert again["examined"] == 1  # the seed: what programs came to is known from the process before
    assert again["best_us"] == last["best_us"]


class Table:
    """An examiner that answers one after the other."""

    def __init__(self, *outcomes: Measurement | Failure) -> None:
        self.outcomes = list(outcomes)

    def examine(self, *_: object, **__: object) -> Result:
        outcome = self.outcomes.pop(0)
        return Result(outcome=outcome, times_us={"large": 5.0} if isinstance(outcome, Measurement) else {})


def test_a_seed_that_fails_in_a_later_process_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    ran, failed = Measurement(samples_us=(5.0,)), Failure(stage="launch", message="no memory")
    seed = Loadable(message={"path": "/seed/candidate.py"})
    for outcome in (ran, ran, failed):
        remembered = Remembered(Table(outcome), tmp_path / "kept")  # type: ignore[arg-type]
        assert remembered.examine(seed, is_seed=True).outcome == outcome
    assert len(read(tmp_path / "kept")) == 1


@pytest.mark.skipif(bool(lacking()), reason=f"no box here: {lacking()}")
def test_what_programs_came_to_is_of_these_sizes_alone(
    tasks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(n: int) -> dict[str, Any]:
        live = search_live.LiveTask(task=task(sizes={"large": {"n": n}}), folder=tmp_path)
        return live.search("random", 0, 4, math.inf)

    assert search(20_000)["examined"] == 4
    assert search(10_000)["examined"] == 4
    assert search(20_000)["examined"] == 1


def test_no_time_is_told_as_nothing_found(tasks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--to", str(tmp_path / "none.jsonl"), "--work", str(tmp_path), "--limit-s", "1", "--tasks", "double"]
    assert main(words) == 0
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"searches": [], "finals": [], "left_out": []}


def a_search(name: str, arm: str, seed: int, *best_us: float) -> dict[str, Any]:
    found = [best_us[min(i, len(best_us) - 1)] for i in range(16)]
    return {"what": "search", "task": name, "arm": arm, "seed": seed, "best_us": found, "built": 16}


def test_what_was_left_out_and_went_on_later_is_told_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def left_out(*rows: dict[str, Any]) -> list[str]:
        (tmp_path / "found.jsonl").write_text("\n".join(map(json.dumps, rows)))
        status = main(["--report", "--json", "--to", str(tmp_path / "found.jsonl")])
        told = [row["task"] for row in json.loads(capsys.readouterr().out)["left_out"]]
        assert status == bool(told)
        return told

    out, done = {"what": "left out", "task": "a", "reason": "no memory"}, a_search("a", "random", 0, 5.0)
    assert left_out(out, {**out, "task": "b"}, done) == ["b"]
    assert left_out(out, done) == []
    assert left_out(done, out) == ["a"]


def test_arms_are_compared_from_the_same_seeds_alone() -> None:
    rows = [
        *(a_search("a", arm, 0, 100, us) for arm, us in (("forecasts", 50), ("random", 100))),
        *(a_search("b", arm, 0, 100, us) for arm, us in (("forecasts", 80), ("random", 80))),
        a_search("b", "forecasts", 1, 100, 1),
    ]
    told = {(row["task"], row["measured"]): row for row in summary(rows)}
    assert told["a", 8]["over_random"] == pytest.approx(0.5)
    assert told["b", 16]["over_random"] == pytest.approx(1.0)
    assert told["all", 16]["over_random"] == pytest.approx(math.sqrt(0.5))
    assert told["all", 16]["low"] == pytest.approx(0.5)
    assert ("a", 32) not in told


def test_the_fastest_found_is_told_over_the_fastest_by_hand() -> None:
    def final(name: str, hand: bool, searched: float, held_out: float) -> dict[str, Any]:
        times = {"large": searched, "odd": held_out}
        return {
            "what": "final",
            "task": name,
            "by_hand": hand,
            "times_us": times,
            "held_out": ["odd"],
            "failure": "",
            "began": 1.0,
        }

    rows = [final("a", True, 10, 20), final("a", True, 8, 30), final("a", False, 4, 25), final("b", True, 1, 1)]
    rows.append({**rows[2], "failure": "wrong", "times_us": {}})
    (told,) = by_hand(rows)
    assert told["over_best_by_hand_searched"] == pytest.approx(0.5)
    assert told["over_best_by_hand_held_out"] == pytest.approx(25 / 20)
