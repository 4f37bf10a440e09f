"""What every front door promises; subclass it and say how to make a tuned function and how to call it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from learning_at_once import learning_at_once  # noqa: E402

from forecast_autotune.core.outcome import Failure  # noqa: E402
from forecast_autotune.errors import CacheMissError, InvalidInputError, TuningWarning  # noqa: E402
from forecast_autotune.frontends import dispatch  # noqa: E402
from forecast_autotune.frontends.online.learning_threads import learners  # noqa: E402

LIMIT_S = 240.0


class Decisions:
    """Counts decisions, and can hold one up.

    Attributes:
        timed: of each decision, whether configs were timed for it.
        held: while it is clear, a decision waits before it begins.
        waiting: set once a decision waits.
    """

    def __init__(self) -> None:
        self.timed: list[bool] = []
        self.held, self.waiting = threading.Event(), threading.Event()
        self.held.set()
        self._decide = dispatch.decide

    def __call__(self, job: Any, request: Any, *, measurer: Any, **keywords: Any) -> Any:
        if not self.held.is_set():
            self.waiting.set()
            self.held.wait(60)
        resolution = self._decide(job, request, measurer=measurer, **keywords)
        self.timed.append(int(measurer.measured) > 0)
        return resolution


class FrontDoorContract(ABC):
    """A tuned function has two configs: a slow `default`, then `best`, at least twice as fast."""

    @abstractmethod
    def make(self, *, default_raises: bool = False) -> Any:
        """The tuned function, new as in another process; the default raises whenever it runs if that is asked for."""

    @abstractmethod
    def call(self, tuned: Any, x: Any) -> str:
        """Call it on a tensor, whose size is the key; returns the config that ran: `default` or `best`."""

    def stage(self) -> AbstractContextManager[Any]:
        """Held around each test, such as a simulated driver."""
        return nullcontext()

    @pytest.fixture(autouse=True)
    def on_stage(self) -> Iterator[None]:
        with self.stage():
            yield

    @pytest.fixture
    def decided(self, monkeypatch: pytest.MonkeyPatch) -> Decisions:
        counting = Decisions()
        monkeypatch.setattr(dispatch, "decide", counting)
        return counting

    def door(self, tuned: Any) -> Any:
        return tuned.dispatcher._door

    # Misses and hits

    def test_a_miss_measures_and_runs_the_best(self, decided: Decisions) -> None:
        tuned = self.make()
        assert self.call(tuned, torch.ones(64)) == "best", tuned.decisions
        assert decided.timed == [True]
        (decision,) = tuned.decisions.values()
        assert decision.basis == "measured", decision.reason

    def test_a_hit_decides_nothing(self, decided: Decisions) -> None:
        tuned = self.make()
        for _ in range(3):
            assert self.call(tuned, torch.ones(64)) == "best"
        assert len(decided.timed) == 1

    def test_each_key_is_decided_by_itself(self, decided: Decisions) -> None:
        tuned = self.make()
        for size in (64, 128, 64):
            assert self.call(tuned, torch.ones(size)) == "best"
        assert len(decided.timed) == len(tuned.decisions) == 2

    def test_what_another_process_decided_is_recalled(self, decided: Decisions) -> None:
        for _ in range(2):
            assert self.call(self.make(), torch.ones(64)) == "best"
        assert decided.timed == [True, False]

    # What was decided, explained

    def test_a_decision_is_explained_whether_made_here_or_recalled(self, decided: Decisions) -> None:
        for _ in range(2):
            tuned = self.make()
            self.call(tuned, torch.ones(64))
            (decision,) = tuned.decisions.values()
            explained = tuned.explain().as_json()
            assert explained["config"] == dict(decision.config.knobs)
            assert [c["outcome"]["samples_us"] != [] for c in explained["configs"]] == [True, True]
            assert decision.reason in str(tuned.explain())
        assert decided.timed == [True, False]

    def test_the_key_decided_last_is_explained_and_any_other_on_demand(self) -> None:
        tuned = self.make()
        for size in (64, 128):
            self.call(tuned, torch.ones(size))
        first, last = tuned.decisions
        assert tuned.explain().as_json() == tuned.explain(last).as_json()
        assert tuned.explain(first).as_json()["decided_at"] == tuned.decisions[first].decided_at

    def test_in_mode_forecast_the_decision_alone_is_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "forecast")
        tuned = self.make()
        self.call(tuned, torch.ones(64))
        explained = tuned.explain().as_json()
        assert explained["basis"] in ("forecast", "default")
        assert explained["default"] is not None
        assert explained["configs"] == []

    def test_where_nothing_is_decided_there_is_nothing_to_explain(self) -> None:
        tuned = self.make()
        with pytest.raises(InvalidInputError, match=r"has decided nothing in this process: call it first"):
            tuned.explain()
        self.call(tuned, torch.ones(64))
        with pytest.raises(InvalidInputError, match=r"decided nothing for 'another': \.decisions holds"):
            tuned.explain("another")

    def test_a_tuned_key_has_a_closing_line_and_a_hit_none(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RANK", raising=False)
        for tuned in (self.make(), self.make()):
            for _ in range(2):
                self.call(tuned, torch.ones(64))
        shown = capsys.readouterr()
        closing = [line for line in shown.err.splitlines() if "(forecast-autotune show " in line]
        assert len(closing) == 1, shown.err
        assert "2 of 2 tried, " in closing[0]
        assert "tried" not in shown.out

    # Calls that must not be measured

    def test_an_unmeasured_call_times_nothing_and_leaves_the_key_open(
        self, decided: Decisions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tuned = self.make()
        with monkeypatch.context() as patch:
            patch.setattr(
                type(self.door(tuned)), "why_unmeasured", lambda door, call: "a CUDA graph was being captured"
            )
            for _ in range(3):
                self.call(tuned, torch.ones(64))
            assert decided.timed == [False]
        assert self.call(tuned, torch.ones(64)) == "best"
        assert decided.timed == [False, True]

    def test_mode_first_runs_the_default(self, decided: Decisions, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
        assert self.call(self.make(), torch.ones(64)) == "default"
        assert not decided.timed

    def test_mode_strict_raises_on_a_miss(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "strict")
        with pytest.raises(CacheMissError):
            self.call(self.make(), torch.ones(64))

    # Learning from calls

    @pytest.fixture
    def online(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Mode `online`, by threads that begin at once."""
        monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "online")
        monkeypatch.setenv("FORECAST_AUTOTUNE_ISOLATE", "0")
        with learning_at_once():
            yield

    def test_mode_online_runs_the_default_first_and_decides_by_later_calls(self, online: None) -> None:
        tuned, x = self.make(), torch.ones(64)
        assert self.call(tuned, x) == "default"
        ran, ends = set(), time.monotonic() + LIMIT_S
        while any(entry.learning is not None for _, entry in tuned.dispatcher.table.items()):
            assert time.monotonic() < ends, "undecided"
            ran.add(self.call(tuned, x))
        assert ran == {"default", "best"}
        (decision,) = tuned.decisions.values()
        assert (decision.basis, decision.tried) == ("measured", 2), decision.reason
        assert self.call(tuned, x) == "best"
        assert self.call(self.make(), x) == "best", "recalled"

    def test_in_mode_online_no_tensor_of_a_call_is_held(self, online: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(learners, "start", lambda _: None)
        tuned = self.make()
        self.call(tuned, torch.ones(32))  # imports, and what is made once
        gc.collect()
        gc.disable()
        try:
            for _ in range(8):
                x = torch.ones(64)
                held = weakref.ref(x)
                self.call(tuned, x)
                del x
                assert held() is None
            assert any(entry.learning is not None for _, entry in tuned.dispatcher.table.items())
        finally:
            gc.enable()

    # What fails

    @pytest.mark.filterwarnings("ignore::forecast_autotune.errors.TuningWarning")
    def test_a_default_that_raises_is_not_chosen(self) -> None:
        tuned = self.make(default_raises=True)
        for _ in range(2):
            assert self.call(tuned, torch.ones(64)) == "best"
        (decision,) = tuned.decisions.values()
        assert decision.failed == 1

    def test_a_refused_winner_gives_way_to_the_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.call(self.make(), torch.ones(64)) == "best"
        tuned = self.make()
        door = self.door(tuned)
        tuning_of = door.tuning

        def refusing(call: Any, request: Any) -> Any:
            made = tuning_of(call, request)
            failure = Failure(stage="check", message="its outputs differ", cost_s=0.0)
            monkeypatch.setattr(type(made), "refused", lambda tuning, config, measurer: failure)
            return made

        monkeypatch.setattr(door, "tuning", refusing)
        with pytest.warns(TuningWarning, match="its outputs differ"):
            assert self.call(tuned, torch.ones(64)) == "default"
        assert self.call(tuned, torch.ones(64)) == "default"
        (decision,) = tuned.decisions.values()
        assert decision.basis == "default"

    def test_tuning_that_fails_never_breaks_the_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("no reason")

        tuned = self.make()
        monkeypatch.setattr(dispatch, "decide", broken)
        with pytest.warns(TuningWarning, match="no reason") as warned:
            assert self.call(tuned, torch.ones(64)) == "default"
        assert {Path(w.filename).is_relative_to(Path(__file__).parents[1]) for w in warned} == {True}, "the user's line"

    # What is held, and who waits

    def test_nothing_of_a_call_is_held_afterwards(self) -> None:
        tuned = self.make()
        self.call(tuned, torch.ones(32))  # imports, and what is made once
        gc.collect()
        gc.disable()
        try:
            for _ in range(2):
                x = torch.ones(64)
                held = weakref.ref(x)
                self.call(tuned, x)
                del x
                assert held() is None
        finally:
            gc.enable()

    def test_another_thread_runs_the_default_while_one_measures(self, decided: Decisions) -> None:
        tuned = self.make()
        ran: list[str] = []
        decided.held.clear()
        thread = threading.Thread(target=lambda: ran.append(self.call(tuned, torch.ones(64))))
        thread.start()
        try:
            assert decided.waiting.wait(60)
            for size in (64, 128):
                assert self.call(tuned, torch.ones(size)) == "default"
            assert not tuned.decisions, "both keys stay open"
        finally:
            decided.held.set()
            thread.join(60)
        assert ran == ["best"]
        assert self.call(tuned, torch.ones(128)) == "best"
