"""Candidates that compile far longer than others, which Inductor then does not wait for."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, as_completed
from types import SimpleNamespace
from typing import Any

import pytest
from rehearsed_inductor import Timed, decisions, product, store
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.async_compile import AsyncCompile

from forecast_autotune.frontends.inductor import choices, stragglers
from forecast_autotune.frontends.inductor.candidate_times import by_our_clock
from forecast_autotune.frontends.inductor.narrowing import Narrowing
from forecast_autotune.frontends.inductor.stragglers import (
    LEFT_BEHIND,
    as_completed_but_stragglers,
    is_left_behind,
    note_begun,
    patience_s,
)

pytestmark = [  # torch's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore::UserWarning:torch\..*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

UNDER_WAY = None


class Choice:
    """A candidate of Inductor's; one behind whose name stands a ' is compiled as another is."""

    layout = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    bmreq = object()

    def __init__(self, name: str) -> None:
        self.name, self.annotations = name, {LEFT_BEHIND: set[str]()}

    def kernel_hash_key(self) -> str:
        return self.name.rstrip("'")


def futures_of(**seconds: float | Exception | None) -> dict[Future[Any], Any]:
    """A future for each candidate: compiled in so many seconds, failed, or under way for ever."""
    futures: dict[Future[Any], Any] = {}
    for name, took in seconds.items():
        future: Future[Any] = Future()
        if isinstance(took, Exception):
            future.set_exception(took)
        elif took is not UNDER_WAY:
            future.set_result((None, took * 1e6))
        futures[future] = Choice(name)
    return futures


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stragglers, "AT_ONCE", 0.01)
    monkeypatch.setattr(stragglers, "QUEUED", 0.01)


def waited(futures: dict[Future[Any], Any], *, may_leave: bool = True, timeout: float = 0.2) -> set[str]:
    wait = as_completed_but_stragglers(as_completed, lambda _: may_leave)
    return {futures[future].name for future in wait(futures, timeout=timeout)}


@pytest.mark.parametrize("others", [{"quick": 1.0}, {"quick": 1.0, "other": 1.2}], ids=["one", "two"])
def test_what_compiles_far_longer_than_others_is_left_behind(others: Any) -> None:
    futures = futures_of(**others, library=0.0, broken=RuntimeError(), slow=UNDER_WAY)
    assert waited(futures, timeout=60) == {*others, "library", "broken"}
    assert [each.name for each in futures.values() if is_left_behind(each)] == ["slow"]


@pytest.mark.parametrize(("threads", "least_s"), [(16, 0.0), (3, 0.2), (None, 0.2)])
def test_where_some_may_have_queued_it_is_waited_longer(
    threads: int | None, least_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "QUEUED", 0.2)
    began = time.monotonic()
    with inductor_config.patch(compile_threads=threads):
        assert waited(futures_of(quick=1.0, slow=UNDER_WAY), timeout=60) == {"quick"}
    assert time.monotonic() - began >= least_s


def test_with_fewer_left_and_more_ended_it_is_waited_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stragglers, "AT_ONCE", 0.3)
    assert patience_s([0.0], 3, may_queue=False) == math.inf
    assert [patience_s([1.0] * (4 - left), left, may_queue=False) for left in (3, 2, 1)] == pytest.approx(
        [0.9, 0.3, 0.1]
    )
    assert patience_s([0.3, 0.0], 1, may_queue=False) == pytest.approx(0.3 * stragglers.LEAST_S)


def test_what_may_have_queued_behind_other_products_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def patience(_took_s: Any, _left: int, *, may_queue: bool) -> float:
        asked.append(may_queue)
        return 60.0

    monkeypatch.setattr(stragglers, "patience_s", patience)
    products = [futures_of(**{f"{name}{i}": 1.0 for i in range(4)}) for name in "abcd"]
    with inductor_config.patch(compile_threads=9):
        for futures in products[:3]:
            for choice in futures.values():
                note_begun(choice)
        for futures in products[:3]:
            waited(futures, timeout=60)
        for choice in products[3].values():  # by then none of those is being compiled any more
            note_begun(choice)
        waited(products[3], timeout=60)
    assert asked == [False, False, True, False]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param({"library": 0.0}, id="a library alone"),
        pytest.param({"other": 0.01, "third": 0.02}, id="others that were compiled before"),
        pytest.param({"other": RuntimeError(), "third": RuntimeError()}, id="others that failed"),
    ],
)
def test_without_others_to_compare_with_all_are_waited_for(others: Any) -> None:
    futures = futures_of(**others, slow=UNDER_WAY)
    with pytest.raises(TimeoutError, match=f"1 of {len(futures)}"):
        waited(futures)
    assert not any(map(is_left_behind, futures.values()))


def test_what_must_not_be_left_is_waited_for_as_ever() -> None:
    futures = futures_of(quick=1.0, other=1.2, slow=UNDER_WAY)
    with pytest.raises(TimeoutError, match="unfinished"):
        waited(futures, may_leave=False)
    assert not any(map(is_left_behind, futures.values()))


def test_one_that_ends_while_another_is_waited_for_counts() -> None:
    futures = futures_of(quick=1.0, other=1.2, late=UNDER_WAY, slow=UNDER_WAY)
    wait = as_completed_but_stragglers(as_completed, lambda _: True)(futures, timeout=60)
    assert {futures[next(wait)].name, futures[next(wait)].name} == {"quick", "other"}
    late = next(future for future, each in futures.items() if each.name == "late")
    late.set_result((None, 1e6))
    assert [futures[future].name for future in wait] == ["late"]


def test_what_was_left_behind_is_not_timed_nor_what_shares_its_compiler() -> None:
    futures = futures_of(quick=1.0, slow=UNDER_WAY)
    waited(futures, timeout=60)
    left = next(each.annotations[LEFT_BEHIND] for each in futures.values() if is_left_behind(each))
    of_an_equal_product = [Choice("quick"), Choice("slow"), Choice("slow'")]
    for choice in of_an_equal_product:
        choice.annotations[LEFT_BEHIND] = left
    found = by_our_clock(lambda listed: dict.fromkeys(listed, 0.1), lambda: False)(of_an_equal_product)
    assert [found[each] for each in of_an_equal_product] == [0.1, float("inf"), float("inf")]
    assert list(map(is_left_behind, of_an_equal_product)) == [False, True, True]


def test_what_was_left_behind_is_timed_after_all_where_nothing_else_runs() -> None:
    futures = futures_of(quick=1.0, slow=UNDER_WAY)
    waited(futures, timeout=60)
    found = by_our_clock(
        lambda listed: {each: 0.1 if each.name == "slow" else float("inf") for each in listed}, lambda: False
    )(list(futures.values()))
    assert {each.name: ms for each, ms in found.items()} == {"quick": float("inf"), "slow": 0.1}
    assert not any(map(is_left_behind, found))


@pytest.mark.usefixtures("timed")
def test_a_candidate_that_was_left_behind_is_told_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(candidates: list[Any], *_: Any, **__: Any) -> dict[Any, float]:
        candidates[2].annotations[LEFT_BEHIND].add(candidates[2].kernel_hash_key())
        return {each: float("inf") if is_left_behind(each) else 0.1 for each in candidates}

    monkeypatch.setattr(select_algorithm.AlgorithmSelectorCache, "benchmark_in_current_process", staticmethod(left))
    product()
    (stored,) = decisions()
    touched = store().detail(stored).touched
    assert len(touched) == 4
    assert all(each.outcome is not None for each in touched)
    assert "1 left behind, whose compilers took far longer" in stored.decision.reason


def test_builds_in_threads_are_waited_for_though_the_pool_is_ready_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    may_leave: list[Any] = []
    preprocess: list[Any] = []
    of_threads, of_the_pool = Choice("early"), Choice("late")
    for name in ("patch_fusion", "patch_generated", "patch_finalizing"):
        monkeypatch.setattr(choices, name, lambda _: None)
    monkeypatch.setattr(choices, "patch_benchmarking", lambda _, asked, *__: may_leave.append(asked))
    monkeypatch.setattr(choices, "is_active", lambda: True)
    monkeypatch.setattr(choices, "narrowing", Narrowing())
    monkeypatch.setattr(choices.narrowing, "may_leave_behind", lambda _: True, raising=False)
    monkeypatch.setattr(select_algorithm, "add_preprocessing_fn", preprocess.append)
    monkeypatch.setattr(select_algorithm, "add_feedback_saver", lambda _: None)
    choices._listen()
    for choice, is_ready in ((of_threads, False), (of_the_pool, True)):
        monkeypatch.setattr(AsyncCompile, "use_process_pool", lambda is_ready=is_ready: is_ready)
        assert preprocess[0]([choice]) == [choice]
    assert list(map(may_leave[0], (of_threads, of_the_pool))) == [False, True]


def test_inductor_waits_by_our_patience_while_a_product_is_undecided(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def benchmark(candidates: list[Any], *_: Any, **__: Any) -> dict[Any, float]:
        asked.extend(map(choices.narrowing.may_leave_behind, candidates))
        return dict.fromkeys(candidates, 0.1)

    monkeypatch.setattr(
        select_algorithm.AlgorithmSelectorCache, "benchmark_in_current_process", staticmethod(benchmark)
    )
    product()
    assert select_algorithm.as_completed is not as_completed
    assert asked == [True] * 5
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "all")
    product(m=512)
    assert not any(asked[5:])
    assert len(asked) > 5
    assert timed.lists == []
