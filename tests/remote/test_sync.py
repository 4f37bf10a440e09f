"""The thread that reads and sends, with an exchange that does as a test says: what it loses, and who waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from contracts.store_contract import HARDWARE, a_job

from forecast_autotune.remote import sync
from forecast_autotune.remote.sync import Sync
from forecast_autotune.store.held_warnings import HeldWarnings

LIMIT_S = 60.0


class Scripted:
    """An exchange: what it was asked, and what is done before each answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda what, name: None

    def _ask(self, what: str, name: str = "") -> None:
        self.before(what, name)
        self.asked.append((what, name))

    def pull(self, hardware: str, program: Any, *, fresh_s: float = 0.0) -> None:
        self._ask("pull", program.name)

    def pull_from_other_hardware(self, hardware: str, program: Any, *, fresh_s: float) -> None:
        self._ask("others", program.name)

    def push(self) -> None:
        self._ask("push")

    def close(self) -> None:
        self._ask("close")

    def after_fork_in_child(self) -> None:
        self.asked.clear()


@pytest.fixture
def exchange() -> Scripted:
    return Scripted()


@pytest.fixture
def syncing(exchange: Scripted, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sync]:
    monkeypatch.setattr(sync, "FIRST_PAUSE_S", LIMIT_S)
    made = Sync(exchange, HeldWarnings(quiet=True))  # type: ignore[arg-type]
    yield made
    exchange.before = lambda what, name: None
    made.end()


def once(raised: BaseException, what: str) -> Callable[[str, str], None]:
    """Raises at the first thing of a kind that is asked."""
    left = [raised]

    def before(asked: str, _: str) -> None:
        if asked == what and left:
            raise left.pop()

    return before


def comes(what: Callable[[], bool]) -> bool:
    """Whether something comes true."""
    until = time.monotonic() + LIMIT_S
    while not what() and time.monotonic() < until:
        time.sleep(0.001)
    return what()


def failed(syncing: Sync) -> None:
    """Wait until something has failed, and the thread is at rest."""
    assert comes(lambda: syncing._failures > 0 and not syncing._busy)


def test_a_failure_to_read_does_not_keep_a_process_that_ends_from_sending(syncing: Sync, exchange: Scripted) -> None:
    exchange.before = once(OSError("one request in a hundred"), "pull")
    syncing.want(a_job())
    failed(syncing)
    exchange.before = lambda what, name: time.sleep(0.2 * (what == "push"))
    syncing.send(HARDWARE)
    syncing.end()
    assert ("push", "") in exchange.asked


def test_a_dead_storage_is_tried_once_more_at_the_end_and_not_waited_for(
    syncing: Sync, exchange: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "END_S", LIMIT_S)
    tried = []

    def dead(what: str, _: str) -> None:
        tried.append(what)
        raise OSError("nobody is there")

    exchange.before = dead
    syncing.send(HARDWARE)
    failed(syncing)
    before, began = len(tried), time.monotonic()
    syncing.end()
    assert tried[before:] == ["push"]
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize("copies", [False, True])
def test_a_pack_that_cannot_be_read_is_promised_nothing(exchange: Scripted, copies: bool) -> None:
    exchange.before = once(OSError("nobody is there"), "pull")
    warnings = HeldWarnings(quiet=False)
    warned: list[str] = []
    warnings.warn_once = lambda about, text: warned.append(text)  # type: ignore[method-assign]
    syncing = Sync(exchange, warnings, "it", is_copied=(lambda _: False) if copies else None)  # type: ignore[arg-type]
    syncing.want(a_job())
    assert comes(lambda: warned != [])
    assert ("sent later" in warned[0]) is not copies
    assert ("used without it" in warned[0]) is copies
    syncing.end()


def test_a_process_that_ends_finishes_a_copy_and_reads_none_that_is_whole(exchange: Scripted) -> None:
    whole = {"copied"}
    copying = Sync(exchange, HeldWarnings(quiet=True), is_copied=lambda program: program.name in whole)  # type: ignore[arg-type]
    exchange.before = lambda what, name: time.sleep(0.2 * (what == "pull"))
    copying.want(a_job(name="copied"))
    copying.want(a_job(name="rest"))
    assert not copying.is_reading(a_job(name="copied"))
    copying.end()
    assert [name for what, name in exchange.asked if what == "pull"] == ["rest"]


def test_what_is_no_exception_does_not_end_the_thread(syncing: Sync, exchange: Scripted) -> None:
    exchange.before = once(asyncio.CancelledError(), "pull")
    syncing.want(a_job())
    failed(syncing)
    assert not syncing.is_reading(a_job())
    syncing.send(HARDWARE)
    assert comes(lambda: ("push", "") in exchange.asked)


def test_a_launch_does_not_wait_until_the_worker_has_ended(
    syncing: Sync, exchange: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "IDLE_S", 0.0)
    closing, over = threading.Event(), threading.Event()

    def slow(what: str, _: str) -> None:
        if what == "close":
            closing.set()
            assert over.wait(LIMIT_S)

    exchange.before = slow
    syncing.want(a_job())
    assert closing.wait(LIMIT_S)
    called = threading.Thread(target=lambda: (syncing.want(a_job(name="another")), syncing.send(HARDWARE)))
    called.start()
    called.join(LIMIT_S)
    assert not called.is_alive()
    assert not over.is_set()
    over.set()
    assert syncing.finish(LIMIT_S)
    assert {("pull", "another"), ("push", "")} <= set(exchange.asked)


def test_unreadable_outcomes_of_another_gpu_keep_nobody_from_deciding(syncing: Sync, exchange: Scripted) -> None:
    begun, go_on = threading.Event(), threading.Event()
    fails = once(OSError("one request in a hundred"), "others")

    def before(what: str, name: str) -> None:
        if name == "first" and what == "pull":
            begun.set()
            assert go_on.wait(LIMIT_S)
        if name != "first":
            fails(what, name)

    exchange.before = before
    syncing.want(a_job(name="first"))
    assert begun.wait(LIMIT_S)
    syncing.want(a_job(name="second"))
    syncing.want(a_job(name="third"))
    go_on.set()
    failed(syncing)
    assert {("pull", "second"), ("pull", "third")} <= set(exchange.asked)


def test_what_could_not_be_read_is_read_again_once_the_storage_is_back(syncing: Sync, exchange: Scripted) -> None:
    exchange.before = once(OSError("one request in a hundred"), "pull")
    syncing.want(a_job())
    failed(syncing)
    syncing.want(a_job())
    assert not syncing.is_reading(a_job()), "not at every call that misses"
    syncing.send(HARDWARE)
    assert comes(lambda: not syncing._failures)
    syncing.want(a_job())
    assert syncing.finish(LIMIT_S)
    assert exchange.asked.count(("pull", "rmsnorm")) == 1
