"""The loop, its budget and its archive; candidates are timed by a table."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from doubling import TASK, Unchecked, task

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError, NoWorkingConfigError, StoreError
from forecast_autotune.program_search import loop as loop_module
from forecast_autotune.program_search import run as run_module
from forecast_autotune.program_search.archive import Archive
from forecast_autotune.program_search.budget import SearchBudget
from forecast_autotune.program_search.candidate import Candidate, TriedCandidate, incumbent
from forecast_autotune.program_search.examiner import Result, _result, is_fastest
from forecast_autotune.program_search.finals import run_finals
from forecast_autotune.program_search.forecasts import CandidateForecaster
from forecast_autotune.program_search.loop import SearchLoop
from forecast_autotune.program_search.proposers.base import SearchView
from forecast_autotune.program_search.proposers.mix import Mix
from forecast_autotune.program_search.proposers.rewriting import Knobs
from forecast_autotune.program_search.runners import Loadable
from forecast_autotune.surrogates.history import History

SPACE = Space.grid({"A": list(range(16)), "B": list(range(16))})
HARDWARE, TOOLCHAIN = Hardware(kind="cpu", name="a CPU"), Toolchain(versions={"gcc": "12"})


def time_us(candidate: Candidate) -> float:
    return 10.0 + 1.0 * abs(int(candidate.config["A"] or 0) - 11) + 0.5 * abs(int(candidate.config["B"] or 0) - 5)  # type: ignore[call-overload]


class Table(Unchecked):
    """Prepares and examines: by a formula; `failing` names configs that fail, `alike` puts programs down to one code."""

    def __init__(self, failing: Sequence[str] = (), alike: bool = False) -> None:
        self.failing, self.alike = failing, alike
        self.examined: list[str] = []
        super().__init__()
        self._of: dict[str, Candidate] = {}

    def prepare(self, candidate: Candidate) -> Loadable | Failure:
        self._of[candidate.digest] = candidate
        code = str(int(candidate.config["A"] or 0) // 8) if self.alike else ""  # type: ignore[call-overload]
        return Loadable(message={"digest": candidate.digest}, code=code)

    def examine(self, made: Loadable, *, sizes: Any = None, is_seed: bool = False) -> Result:
        candidate = self._of[str(made.message["digest"])]
        self.examined.append(candidate.digest)
        if candidate.config.text in self.failing:
            return Result(outcome=Failure(stage="check", message="wrong"))
        us = time_us(candidate)
        return Result(outcome=Measurement(samples_us=(us,)), times_us={"large": us})


class Oracle:
    """Forecasts what the table will say."""

    def forecast(self, tried: Sequence[TriedCandidate], proposed: Sequence[Candidate]) -> list[Forecast | None]:
        import math

        seed = 10.0 + 11 + 2.5
        return [Forecast.normal(math.log2(seed / time_us(c)), 0.01, source="oracle") for c in proposed]


def a_search(folder: Path, budget: int | SearchBudget = 16, **others: Any) -> SearchLoop:
    of = task(spaces={"plain": SPACE})
    table = others.pop("table", None) or Table()
    given: dict[str, Any] = {
        "task": of, "archive": Archive(folder, of, HARDWARE, TOOLCHAIN),
        "budget": budget if isinstance(budget, SearchBudget) else SearchBudget(measurements=budget),
        "proposer": Knobs(), "forecaster": None, "examiner": table, "preparer": table,
    }  # fmt: skip
    return SearchLoop(**{**given, **others})


def best_of(loop: SearchLoop) -> float:
    return min(t.time_us or 1e9 for t in loop.archive)


def test_a_search_measures_what_its_budget_says_and_starts_with_the_seed(tmp_path: Path) -> None:
    loop = a_search(tmp_path)
    assert loop.run() == "its 16 measurements are spent"
    assert next(t.chosen for t in loop.archive) == "seed"
    assert len(loop.archive) == loop.budget.measured == 16


def test_a_search_makes_the_stores_folder_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "store"))
    monkeypatch.setattr(run_module, "require_box", lambda **_: None)
    with patch.object(run_module, "Archive", side_effect=StoreError("enough")), pytest.raises(StoreError):
        run_module.search(TASK)
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_where_only_the_seed_ran_the_finals_say_why_the_others_did_not(tmp_path: Path) -> None:
    of = task(spaces={"plain": SPACE})
    table = Table(failing=[config.text for config in SPACE if config.text != of.seed.config.text])
    loop = a_search(tmp_path, 4, table=table)
    loop.run()
    finals = run_finals(of, list(loop.archive), of.seed, table, table)  # type: ignore[arg-type]
    assert finals.reason == "no candidate but the seed ran; the first failed at the stage 'check': wrong"
    assert run_finals(of, [], of.seed, table, table).reason == "no candidate but the seed was tried"  # type: ignore[arg-type]


def test_what_is_far_from_the_fastest_is_not_the_fastest() -> None:
    """Fast at one size or at the other in six of seven batches, and at each slow in most."""
    fast, slow = 0.9, 1.05
    result = _result({"a": [fast] * 3 + [slow] * 4, "b": [slow] * 3 + [fast] * 3 + [slow]}, 0.0)
    best = TriedCandidate(
        candidate=TASK.seed,
        outcome=Measurement(samples_us=(1.0,)),
        forecast=None,
        chosen="seed",
        times_us={"a": 1.0, "b": 1.0},
    )
    other = replace(best, outcome=result.outcome, times_us=result.times_us, chosen="promise")
    assert not is_fastest(result.times_us, best.times_us)
    assert incumbent([best, other]) is best


def test_one_candidate_in_four_is_random_and_all_are_without_forecasts(tmp_path: Path) -> None:
    with_forecasts = a_search(tmp_path / "a", 33, forecaster=Oracle())
    with_forecasts.run()
    chosen = [t.chosen for t in with_forecasts.archive]
    assert chosen.count("random") == 8
    assert chosen.count("promise") == 24
    assert all(t.forecast is not None for t in with_forecasts.archive if t.chosen != "seed")
    without = a_search(tmp_path / "b", 33)
    without.run()
    assert {t.chosen for t in without.archive} == {"seed", "random"}


def test_true_forecasts_find_more_for_as_many_measurements(tmp_path: Path) -> None:
    found: dict[str, list[float]] = {"ours": [], "random": []}
    for seed in range(6):
        for name, forecaster in (("ours", Oracle()), ("random", None)):
            loop = a_search(tmp_path / f"{name}{seed}", 16, forecaster=forecaster, seed=seed)
            loop.run()
            found[name].append(best_of(loop))
    assert sum(found["ours"]) < sum(found["random"])


class InTurns:
    """Proposes the configs of its list, each once, so many a round."""

    name = "in turns"

    def __init__(self, configs: Sequence[dict[str, int]], a_round: int) -> None:
        self._left, self._a_round = [Config(knobs) for knobs in configs], a_round

    def propose(self, view: SearchView, n: int) -> Sequence[Candidate]:
        of, self._left = self._left[: self._a_round], self._left[self._a_round :]
        return [replace(view.task.seed, config=config, proposer=self.name) for config in of]

    def repair(self, view: SearchView, failed: TriedCandidate) -> Candidate | None:
        """Never."""


class LaterWiser(Oracle):
    """Forecasts the opposite of the truth until five were tried."""

    def forecast(self, tried: Sequence[TriedCandidate], proposed: Sequence[Candidate]) -> list[Forecast | None]:
        sign = 1 if len(tried) > 4 else -1
        true = super().forecast(tried, proposed)
        return [None if f is None else Forecast.normal(sign * f.mean, 0.01, source="wiser") for f in true]


def test_what_an_early_round_proposed_is_tried_once_forecasts_know_better(tmp_path: Path) -> None:
    """The best config is proposed in the first round alone, when it is forecast to be the worst."""
    best, bad = {"A": 11, "B": 5}, [{"A": 0, "B": b} for b in range(6, 14)]
    others = [{"A": 1, "B": b} for b in range(16)]
    proposer = InTurns([*bad[:4], best, *bad[4:], *others], a_round=9)
    loop = a_search(tmp_path, 9, proposer=proposer, forecaster=LaterWiser(), seed=1)
    loop.run()
    tried = [t.candidate.config.text for t in loop.archive]
    assert Config(best).text in tried[5:]
    assert Config(best).text not in tried[:5]


class FailsOnce(Oracle):
    """Forecasts nothing in the second round."""

    def __init__(self) -> None:
        self.rounds = 0

    def forecast(self, tried: Sequence[TriedCandidate], proposed: Sequence[Candidate]) -> list[Forecast | None]:
        self.rounds += 1
        return [None] * len(proposed) if self.rounds == 2 else super().forecast(tried, proposed)


def test_what_waits_outlasts_a_round_without_forecasts(tmp_path: Path) -> None:
    proposer = InTurns([{"A": 1, "B": b} for b in range(16)], a_round=16)
    loop = a_search(tmp_path, 15, proposer=proposer, forecaster=FailsOnce())
    assert loop.run() == "its 15 measurements are spent"


def test_what_waits_is_bounded_and_nothing_waits_without_forecasts(tmp_path: Path) -> None:
    loop = a_search(tmp_path / "a", 9, forecaster=Oracle(), proposals=200.0)
    with patch.object(loop_module, "MAX_WAITING", 20):
        loop.run()
    assert len(loop.waiting) == 20
    assert not loop.waiting.keys() & {t.candidate.digest for t in loop.archive}
    without = a_search(tmp_path / "b", 9, proposals=200.0)
    without.run()
    assert not without.waiting


def test_a_search_goes_on_where_it_was_and_measures_nothing_twice(tmp_path: Path) -> None:
    first = a_search(tmp_path, 9)
    first.run()
    table = Table()
    more = a_search(tmp_path, 20, table=table)
    more.run()
    known = {t.candidate.digest for t in first.archive}
    assert len(more.archive) == 20
    assert [d for d in table.examined if d in known] == [more.task.seed.digest]  # for what it shows, not for its time
    assert a_search(tmp_path, 20, table=Table()).run() == "its 20 measurements are spent"


def test_programs_that_compile_to_the_same_are_measured_once(tmp_path: Path) -> None:
    loop = a_search(tmp_path, 12, table=Table(alike=True))
    loop.run()
    assert loop.budget.answers["knobs"].unused["compiling to the same as another program"] == len(loop.twins)
    codes = [t.code for t in loop.archive]
    assert len(set(codes)) == len(codes) == 2


def test_candidates_of_a_round_are_checked_side_by_side(tmp_path: Path) -> None:
    table = Table()
    a_search(tmp_path, 9, table=table).run()
    assert table.checked_beside == [4, 4]


def test_a_failure_is_mended_once_and_counts(tmp_path: Path) -> None:
    class Mending(Knobs):
        def __init__(self) -> None:
            self.asked: list[str] = []

        def repair(self, view: Any, failed: TriedCandidate) -> Candidate | None:
            self.asked.append(failed.candidate.digest)
            return next(iter(self.propose(view, 1)), None)

    every = [c.text for c in SPACE if c != SPACE.default]
    proposer = Mending()
    loop = a_search(tmp_path, 9, proposer=proposer, table=Table(failing=every))
    loop.run()
    tried = list(loop.archive)
    assert loop.budget.failed == loop.budget.measured - 1 == 8
    # Of four that failed each is mended once, and a mended one is not.
    assert [t.chosen for t in tried].count("repair") == 4
    assert len(set(proposer.asked)) == len(proposer.asked) == 4


def test_a_seed_that_fails_ends_the_search_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(NoWorkingConfigError, match=r"own source fails at the stage 'check': wrong"):
        a_search(tmp_path, table=Table(failing=[SPACE.default.text])).run()


def test_a_proposer_that_knows_nothing_more_ends_the_search(tmp_path: Path) -> None:
    class Dry(Knobs):
        def propose(self, view: Any, n: int) -> Sequence[Candidate]:
            return []

    assert a_search(tmp_path, proposer=Dry()).run() == "nothing new is proposed any more"


class Busy(Knobs):
    """Cannot be asked so many times; then it proposes."""

    def __init__(self, times: int) -> None:
        self._left = times

    def propose(self, view: SearchView, n: int) -> Sequence[Candidate]:
        self._left -= 1
        self.trouble = "HTTP 503" if self._left >= 0 else ""
        return [] if self.trouble else super().propose(view, n)


@pytest.mark.parametrize(
    ("times", "ended", "pauses"),
    [
        (6, "its 9 measurements are spent", [1, 2, 4, 8, 16, 32]),
        (99, "the server could not be asked: HTTP 503", [1, 2, 4, 8, 16, 32, 64]),
    ],
)
def test_a_search_waits_longer_and_longer_for_a_server_that_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, ended: str, pauses: list[float]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(loop_module.time, "sleep", slept.append)
    assert a_search(tmp_path, 9, proposer=Mix([Busy(times)])).run() == ended
    assert slept == pauses


def test_a_search_waits_for_no_server_while_others_propose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(loop_module.time, "sleep", slept.append)
    assert a_search(tmp_path, 9, proposer=Mix([Busy(99), Knobs()])).run() == "its 9 measurements are spent"
    assert not slept


class Ended(InTurns):
    """Proposes nothing any more, and says why."""

    name, ended = "ended", "its 9 tokens are spent"


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([], "its 9 tokens are spent"),
        ([InTurns([], 1)], "nothing new is proposed any more"),
        ([InTurns([{"A": 1, "B": b} for b in range(9)], 1)], "its 5 measurements are spent"),
    ],
)
def test_a_search_says_why_its_proposers_ended(tmp_path: Path, others: list[InTurns], why: str) -> None:
    assert a_search(tmp_path, 5, proposer=Mix([Ended([], 1), Ended([], 1), *others])).run() == why


class Plain:
    """As the README says: a class with `name`, `propose` and `repair`."""

    name = "plain"

    def propose(self, view: SearchView, n: int) -> Sequence[Candidate]:
        return []

    def repair(self, view: SearchView, failed: TriedCandidate) -> Candidate | None:
        """Never."""


@pytest.mark.parametrize("proposer", [Plain(), Mix([Plain()])])
def test_a_proposer_need_not_say_why_it_proposes_nothing(tmp_path: Path, proposer: Any) -> None:
    assert a_search(tmp_path, proposer=proposer).run() == "nothing new is proposed any more"


def test_waiting_for_a_server_ends_with_the_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        asleep.wait(seconds)

    asleep = threading.Event()
    monkeypatch.setattr(loop_module.time, "sleep", sleep)
    loop = a_search(tmp_path, budget=SearchBudget(measurements=9, minutes=0.02), proposer=Busy(99))
    assert loop.run() == "its 0.02 minutes are over"
    assert sum(slept) <= 1.2, "pauses of 1 s and 2 s without the limit"


@pytest.mark.parametrize("budget", [1, 0, -3, True, 2.5])
def test_a_budget_below_two_is_refused(budget: Any) -> None:
    with pytest.raises(InvalidInputError, match="at least 2"):
        SearchBudget(measurements=budget)


def test_a_surrogate_forecasts_candidates_by_their_knobs_and_steps() -> None:
    of = task(spaces={"plain": SPACE})
    forecaster = CandidateForecaster(of, HARDWARE, TOOLCHAIN, History())
    proposed = [
        Candidate(
            source=of.source + str(i),
            language="triton",
            variant="plain",
            config=SPACE[i],
            proposer="x",
            steps=(f"unroll@loop0={i}",),
        )
        for i in range(5)
    ]
    assert len(forecaster.forecast([], proposed)) == 5


def test_a_damaged_archive_is_told_of_and_never_overwritten(tmp_path: Path) -> None:
    a_search(tmp_path, 4).run()
    file = tmp_path / "searches.sqlite3"
    assert file.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE tried SET value = '{}' WHERE id = 2")
    connection.close()
    with pytest.raises(StoreError, match="cannot be read"):
        a_search(tmp_path, 4)
    file.write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="move it away"):
        a_search(tmp_path, 4)
    assert file.read_bytes().startswith(b"no database")


# Forks a search for each line that it reads: a hundred that are killed cost the imports of one.
PROGRAM = """
import os, sys
sys.path[:0] = {paths!r}
from test_loop import a_search
from pathlib import Path

def tell(event):
    print(event.tried.candidate.digest if event.tried else "", flush=True)

for _ in sys.stdin:
    searching = os.fork()
    if not searching:
        print(os.getpid(), flush=True)
        a_search(Path(sys.argv[1]), 400, listener=tell).run()
        os._exit(0)
    os.waitpid(searching, 0)
    print("\\nended", flush=True)
"""


def test_an_interrupted_round_first_keeps_the_candidate_checked_everywhere(
    tmp_path: Path,
) -> None:
    class OnlyTheFastest(Table):
        """Checks the fastest of a round everywhere, as an examiner does."""

        def examine_all(self, candidates: Sequence[Loadable], **how: Any) -> list[Result]:
            found = super().examine_all(candidates, **how)
            fastest = min(found, key=lambda result: result.times_us["large"])
            checked_everywhere.add(fastest.times_us["large"])
            return [replace(result, everywhere=result is fastest) for result in found]

    def ended(event: Any) -> None:
        if event.tried is not None and event.tried.chosen != "seed":
            raise KeyboardInterrupt

    for seed in range(6):
        checked_everywhere: set[float] = set()
        loop = a_search(tmp_path / str(seed), table=OnlyTheFastest(), seed=seed, listener=ended)
        with pytest.raises(KeyboardInterrupt):
            loop.run()
        _, first = loop.archive
        assert first.times_us["large"] in checked_everywhere


@pytest.mark.thorough
def test_a_search_that_is_killed_at_any_moment_goes_on(tmp_path: Path) -> None:
    here = Path(__file__).parent
    program = PROGRAM.format(paths=[str(here), str(here.parent / "support"), str(here.parent)])
    told: list[str] = []
    draw, killed = random.Random(0), 0
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while killed < 100 or len(told) <= 100:  # where the machine is busy, searches come less far
            killed += 1
            process.stdin.write("search\n")
            process.stdin.flush()
            searching = int(process.stdout.readline())
            lines = [process.stdout.readline()]
            time.sleep(draw.random() * 0.1 * max(1.0, killed / 100))
            with suppress(ProcessLookupError):  # which has come to its end
                os.kill(searching, signal.SIGKILL)
            while lines[-1] != "ended\n":
                lines.append(process.stdout.readline())
                assert lines[-1], "the process that forks searches ended"
            told += [line.strip() for line in lines[:-2] if line.strip()]  # what a kill cut short stands before the end
        process.stdin.close()
    kept = [t.candidate.digest for t in a_search(tmp_path, 400).archive]
    assert set(told) <= set(kept)
    assert len(set(kept)) == len(kept)
    assert len(set(told)) == len(told), "something was measured again after it had been told of"
