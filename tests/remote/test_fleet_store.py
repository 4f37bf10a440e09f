"""A store with other machines' behind it: what they learn from each other, and what a launch sees of trouble."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import HARDWARE, SPACE, TOOLCHAIN, StoreContract, a_decision, a_job, a_measurement
from fake_hub import fake_hub
from faults.stores import in_child, told_by
from recorded import job_of, recording

from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision, Resolution
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.core.outcome import Measurement, Outcome
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.errors import CacheMissError, RemoteStoreError, StoreWarning
from forecast_autotune.frontends import deciding
from forecast_autotune.frontends.deciding import decide
from forecast_autotune.frontends.request import make_request
from forecast_autotune.measure.replay import Replay
from forecast_autotune.remote import exchange, sync
from forecast_autotune.remote.fleet_store import FleetStore, open_store
from forecast_autotune.remote.location import ListedSegment, Location
from forecast_autotune.remote.segments import name_of
from forecast_autotune.settings import RemoteStore, Settings
from forecast_autotune.store import rows
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.history import History

DIGEST = "0" * 32
LIMIT_S = 60.0  # for what takes milliseconds

Machines = Callable[..., FleetStore]


class TestTrusted(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[FleetStore]:
        with FleetStore(tmp_path / "own", RemoteStore(url=f"file://{tmp_path}/shared", trusted=True)) as store:
            yield store


class TestNotTrusted(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[FleetStore]:
        remote = RemoteStore(url=f"file://{tmp_path}/shared")
        with FleetStore(tmp_path / "own", remote, apart=False) as store:
            yield store


class TestInMemory(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[FleetStore]:
        with FleetStore(None, RemoteStore(url=f"file://{tmp_path}/shared", trusted=True)) as store:
            yield store


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Makes machines that share a folder, each with a store of its own; asked for one again, another process of it."""
    made: list[FleetStore] = []

    def machine(name: str, *, trusted: bool = True, **options: Any) -> FleetStore:
        remote = RemoteStore(url=f"file://{tmp_path}/shared", trusted=trusted)
        made.append(FleetStore(tmp_path / name, remote, **{"apart": False, **options}))
        return made[-1]

    yield machine
    for store in made:
        store.close()


def tuned(store: FleetStore, job: Job, chosen: int = 1, **changes: Any) -> None:
    """Have a machine tune a job, and wait until that is sent."""
    values = {"decided_at": time.time(), "run": f"run-{chosen}", **changes}
    for number, us in ((0, 15.0), (chosen, 10.0)):
        store.record_outcome(job, values["run"], job.space[number], a_measurement(us), None)
    store.record_decision(job, a_decision(job, job.space[chosen], **values))
    assert store.syncs[0].finish(LIMIT_S)


def heard(store: FleetStore, job: Job) -> Any:
    """A machine's decision for a job once it has heard of the others."""
    store.syncs[0]._asked.clear()  # as after a minute
    store.decision(job)
    assert store.syncs[0].finish(LIMIT_S)
    return store.decision(job)


@pytest.fixture(autouse=True)
def listings_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "FRESH_S", 0.0)


# Learning from each other -----------------------------------------------------------------------------------------------


def test_a_trusted_machines_decision_and_outcomes_are_used(machines: Machines) -> None:
    tuned(machines("one"), a_job())
    other = machines("two")
    assert heard(other, a_job()).config == SPACE[1]
    assert set(other.outcomes(a_job())) == {SPACE[0], SPACE[1]}
    assert other.suggested(a_job()) == ()


@pytest.mark.parametrize("trusted", [True, False])
def test_a_process_of_its_own_exchanges_the_same(machines: Machines, trusted: bool) -> None:
    tuned(machines("one", apart=True), a_job())
    other = machines("two", trusted=trusted, apart=True)
    found = heard(other, a_job())
    assert (found.config if trusted else other.suggested(a_job())[0]) == SPACE[1]
    (recorded,) = other.mirror.own_recordings(a_job())
    assert set(recorded.outcomes) == {SPACE[0], SPACE[1]}


@pytest.mark.thorough
def test_machines_learn_from_each_other_through_a_repository_on_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By huggingface_hub itself; only the server is not the hub's, and files go to it by git's protocol for large ones."""
    pytest.importorskip("huggingface_hub")
    (tmp_path / "repository").mkdir()
    remote = RemoteStore(url="hf://org/name/tuning", trusted=True)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with fake_hub(tmp_path / "repository", "org/name", "main") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with FleetStore(tmp_path / "reader", remote) as store:
            told = told_by(lambda: not_sent(store, a_job()))[1]
            assert len(told) == 1
            assert "401 Unauthorized" in told[0]
            assert "look at its permissions" in told[0]
        monkeypatch.setenv("HF_TOKEN", hub.token)
        with FleetStore(tmp_path / "one", remote) as store:
            tuned(store, a_job())
        with FleetStore(tmp_path / "two", remote) as store:
            assert heard(store, a_job()).config == SPACE[1]
    assert capfd.readouterr().err == ""


def not_sent(store: FleetStore, job: Job) -> None:
    store.record_decision(job, a_decision(job, decided_at=time.time()))
    assert not store.syncs[0].finish(LIMIT_S)


def test_a_process_that_exchanges_and_is_killed_is_started_again(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "FIRST_PAUSE_S", 0.01)
    store = machines("one", apart=True)
    tuned(store, a_job())
    worker = store.syncs[0].exchange._worker  # type: ignore[union-attr]
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    tuned(store, a_job(key={"n": 1}))
    assert heard(machines("two"), a_job(key={"n": 1})) is not None


def test_a_strangers_decision_is_no_decision_but_tried_first(machines: Machines) -> None:
    tuned(machines("one"), a_job())
    other = machines("two", trusted=False)
    assert heard(other, a_job()) is None
    assert other.outcomes(a_job()) == {}
    assert other.suggested(a_job()) == (SPACE[1],)
    (seed,) = other.related_recordings(a_job())
    assert set(seed.outcomes) == {SPACE[0], SPACE[1]}


@pytest.mark.parametrize("trusted", [True, False])
def test_other_hardware_and_toolchains_seed_forecasts_alone(machines: Machines, trusted: bool) -> None:
    h100 = replace(HARDWARE, name="NVIDIA H100", memory_gib=80)
    tuned(machines("one"), a_job(hardware=h100))
    tuned(machines("two"), a_job(toolchain=Toolchain(versions={**TOOLCHAIN.versions, "triton": "3.8.0"})))
    other = machines("three", trusted=trusted)
    assert heard(other, a_job()) is None
    assert other.outcomes(a_job()) == {}
    assert other.suggested(a_job()) == ()
    assert {r.hardware.name for r in other.related_recordings(a_job())} == {"NVIDIA H200", "NVIDIA H100"}


def test_with_any_toolchain_another_ones_decision_counts(machines: Machines) -> None:
    tuned(machines("one"), a_job(toolchain=Toolchain(versions={"triton": "3.8.0"})))
    assert heard(machines("two", toolchain="any"), a_job()).config == SPACE[1]


def test_a_trusted_decision_for_other_constexprs_is_found(machines: Machines) -> None:
    decided, asked = (a_job(key={"n": 1, "given constexprs": {"D": size}}) for size in (64, 512))
    tuned(machines("one"), decided)
    for name, trusted in (("two", True), ("three", False)):
        other = machines(name, trusted=trusted)
        assert heard(other, asked) is None
        assert (other.decision_for_any_constexprs(asked) is not None) is trusted


def test_all_machines_come_to_the_newest_decision(machines: Machines) -> None:
    began = time.time()
    for number, name in enumerate(("one", "two", "three"), start=1):
        tuned(machines(name), a_job(), chosen=number, decided_at=began + number)
    assert {heard(machines(name), a_job()).config for name in ("one", "two", "three", "four")} == {SPACE[3]}


def test_a_machine_whose_clock_is_hours_ahead_does_not_win_for_hours(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(machines("ahead"), a_job(), chosen=1, decided_at=time.time() + 36_000)
    tuned(machines("right"), a_job(), chosen=2, decided_at=time.time() + 1)
    assert heard(machines("other"), a_job()).config == SPACE[2]


def test_machines_of_one_name_and_equal_runs_lose_nothing(machines: Machines) -> None:
    """No name of a machine is part of anything: what tells two apart is what they have measured."""
    for chosen, name in ((1, "one"), (2, "two")):
        tuned(machines(name), a_job(), chosen=chosen, run="the same run")
    other = machines("three")
    heard(other, a_job())
    assert set(other.outcomes(a_job())) == {SPACE[0], SPACE[1], SPACE[2]}


def test_another_process_of_a_machine_finds_what_the_first_has_read(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(machines("one"), a_job())
    heard(machines("two"), a_job())

    def reads(self: Location, segments: Sequence[ListedSegment]) -> Iterator[Any]:
        assert not segments, "read again"
        yield from ()

    monkeypatch.setattr(Location, "read", reads)
    second = machines("two")
    assert second.decision(a_job()) is not None
    assert heard(second, a_job()) is not None


def test_a_decision_ends_the_run_of_a_machine_that_is_tuning(machines: Machines) -> None:
    other = machines("two")
    arrived = other.arrivals(a_job())
    assert heard(other, a_job()) is None
    assert arrived() is None
    tuned(machines("one"), a_job())
    heard(other, a_job())
    decision = arrived()
    assert decision is not None
    assert decision.config == SPACE[1]


def test_a_config_outside_of_the_space_is_not_taken(machines: Machines) -> None:
    job = a_job()
    tuned(machines("one"), job)
    small = replace(job, space=type(SPACE)([SPACE[0], SPACE[2], SPACE[3]]))
    lying = machines("liar")
    lying.record_decision(small, a_decision(small, SPACE[1], decided_at=time.time()))
    assert lying.syncs[0].finish(LIMIT_S)
    other = machines("two")
    assert heard(other, small) is None
    assert other.suggested(small) == ()


def test_what_is_withdrawn_is_forgotten_also_when_it_comes_again(machines: Machines, tmp_path: Path) -> None:
    one, other = machines("one"), machines("two")
    tuned(one, a_job())
    tuned(one, a_job(key={"n": 7}))
    shutil.copytree(tmp_path / "shared", tmp_path / "backup")
    assert heard(other, a_job()) is not None
    (stored,) = [s for s in StoreFile(tmp_path / "one").decisions() if s.tuning_key.workload.key == {"n": 4096}]
    one.syncs[0].exchange.withdraw([stored])
    assert one.decision(a_job()) is None
    assert heard(other, a_job()) is None
    assert other.outcomes(a_job()) == {}
    assert other.decision(a_job(key={"n": 7})) is not None
    one.syncs[0].exchange.compact()
    shutil.copytree(tmp_path / "backup", tmp_path / "shared", dirs_exist_ok=True)  # a machine that was offline
    assert heard(machines("three"), a_job()) is None
    assert heard(other, a_job()) is None
    tuned(one, a_job(), chosen=2)  # what is measured later counts
    assert heard(other, a_job()).config == SPACE[2]


def test_what_a_clock_that_is_ahead_withdraws_is_withdrawn_until_now(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, ahead = machines("one"), machines("ahead")
    tuned(one, a_job())
    assert heard(ahead, a_job()) is not None
    assert ahead.mirror is not None
    with monkeypatch.context() as patched:
        patched.setattr(exchange.rows, "now", lambda: time.time() + 36_000)
        ahead.syncs[0].exchange.withdraw(ahead.related_decisions(a_job()))
    assert heard(ahead, a_job()) is None
    tuned(one, a_job(), chosen=2)
    assert heard(machines("other"), a_job()).config == SPACE[2]
    assert heard(ahead, a_job()).config == SPACE[2], "as on any other machine"


def test_a_segment_in_a_folder_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location, seen = Location(tmp_path.as_uri()), []

    def replaced(partial: str, path: str) -> None:
        seen.append((Path(partial).read_bytes(), location.segments(DIGEST, DIGEST), Path(path).exists()))
        replace(partial, path)

    replace = os.replace
    monkeypatch.setattr(os, "replace", replaced)
    location.write(DIGEST, DIGEST, f"{DIGEST}.jsonl.gz", b"data")
    assert seen == [(b"data", [], False)]
    assert [data for _, data in location.read(location.segments(DIGEST, DIGEST))] == [b"data"]

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(RemoteStoreError, match="No space left"):
        location.write(DIGEST, DIGEST, f"{'1' * 32}.jsonl.gz", b"data")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{DIGEST}.jsonl.gz"]


def test_compacting_keeps_all_that_counts(machines: Machines, tmp_path: Path) -> None:
    jobs = [a_job(key={"n": n}) for n in range(5)]
    for number, name in enumerate(("one", "two"), start=1):
        for job in jobs:
            tuned(machines(name), job, chosen=number)
    before = machines("three")
    found = {job.digest: (heard(before, job), before.outcomes(job)) for job in jobs}
    written, removed = before.syncs[0].exchange.compact()
    assert len(written) == 1
    assert len(removed) == 10
    assert len(list((tmp_path / "shared").rglob("*.gz"))) == 1
    after = machines("four")
    assert {job.digest: (heard(after, job), after.outcomes(job)) for job in jobs} == found
    assert before.syncs[0].exchange.compact() == ([], [])
    # Who has read all of it before gets nothing twice.
    heard(before, jobs[0])
    with sqlite3.connect(before.mirror.folder / "store.sqlite3") as opened:  # type: ignore[operator]
        assert opened.execute("SELECT count(*) FROM outcome").fetchone() == (20,)
        assert opened.execute("SELECT count(*) FROM decision").fetchone() == (10,)
    opened.close()


def test_what_is_older_than_wanted_is_deleted(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machines("one")
    with monkeypatch.context() as patch:
        patch.setattr(rows, "now", lambda: time.time() - 5 * 86_400)
        tuned(store, a_job(), decided_at=time.time() - 5 * 86_400)
    tuned(store, a_job(name="young"))
    store.syncs[0].exchange.compact(since=time.time() - 4 * 86_400)
    assert heard(machines("two"), a_job()) is None
    assert heard(machines("two"), a_job(name="young")) is not None


# Trouble ----------------------------------------------------------------------------------------------------------------


def test_offline_is_one_warning_and_what_was_learned_is_sent_later(tmp_path: Path) -> None:
    remote = RemoteStore(url=f"file://{tmp_path}/file/shared", trusted=True)
    (tmp_path / "file").write_text("in its way")

    def offline() -> None:
        for number in range(3):
            with FleetStore(tmp_path / "one", remote, apart=number > 0) as store:
                job = a_job(key={"n": number})
                store.record_outcome(job, "run", SPACE[1], a_measurement(), None)
                store.record_decision(job, a_decision(job, decided_at=time.time()))
                assert not store.syncs[0].finish(LIMIT_S)
                store.record_decision(job, a_decision(job, decided_at=time.time()))
                assert store.decision(job) is not None
            if number == 0:
                assert len(told) <= 1

    told: list[str] = []
    _, told = told_by(offline)
    assert len(told) == 3, "one for each process"
    assert all("the remote store cannot be used: cannot" in text and "sent later" in text for text in told)
    (tmp_path / "file").unlink()
    with FleetStore(tmp_path / "one", remote, apart=False) as later:
        later.decision(a_job(key={"n": "new"}))
        assert later.syncs[0].finish(LIMIT_S)
    with FleetStore(tmp_path / "two", remote) as other:  # apart
        assert all(heard(other, a_job(key={"n": number})) for number in range(3))


def test_a_storage_that_comes_back_is_used_without_a_new_process(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "FIRST_PAUSE_S", 0.01)
    one, failing = machines("one"), threading.Event()
    failing.set()
    write = Location.write

    def sometimes(self: Location, *args: Any) -> None:
        if failing.is_set():
            raise RemoteStoreError("no space left")
        write(self, *args)

    monkeypatch.setattr(Location, "write", sometimes)
    one.record_decision(a_job(), a_decision(a_job(), decided_at=time.time()))
    with pytest.warns(StoreWarning, match="no space left"):
        one.syncs[0].finish(LIMIT_S)
    failing.clear()
    deadline = time.monotonic() + LIMIT_S
    while not one.syncs[0].finish(LIMIT_S) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert heard(machines("two"), a_job()) is not None


def test_warnings_that_are_errors_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("in its way")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with FleetStore(tmp_path / "one", RemoteStore(url=f"file://{tmp_path}/shared", trusted=True)) as store:
            store.record_decision(a_job(), a_decision(a_job()))
            assert not store.syncs[0].finish(LIMIT_S)
            assert store.decision(a_job()) == a_decision(a_job())


def test_a_broken_segment_is_left_out_with_one_warning_and_read_once_whole(machines: Machines, tmp_path: Path) -> None:
    tuned(machines("one"), a_job())
    (segment,) = (tmp_path / "shared").rglob("*.gz")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-9])
    garbage = segment.with_name(name_of(b"garbage"))
    garbage.write_bytes(b"garbage")
    other = machines("two")
    found, told = told_by(lambda: [heard(other, a_job()), heard(other, a_job())])
    assert found == [None, None]
    assert len(told) == 1
    assert "is left out" in told[0]
    segment.write_bytes(whole)
    assert heard(other, a_job()) is not None


def test_a_launch_waits_for_nothing_of_a_storage_that_hangs(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of this would wait for the event if any of it waited for the storage."""
    over = threading.Event()
    asked = threading.Event()

    def hangs(*_: object) -> list[Any]:
        asked.set()
        assert over.wait(LIMIT_S)
        return []

    monkeypatch.setattr(Location, "segments", hangs)
    store = machines("one")
    store.decision(a_job())
    assert asked.wait(LIMIT_S)
    assert store.is_reading(a_job())
    store.record_outcome(a_job(), "run", SPACE[1], a_measurement(), None)
    store.record_decision(a_job(), a_decision(a_job()))
    assert store.decision(a_job()) == a_decision(a_job())
    assert not over.is_set()
    assert store.is_reading(a_job())
    over.set()
    assert store.syncs[0].finish(LIMIT_S)
    assert not store.is_reading(a_job())


def in_mode_strict(store: FleetStore, job: Job) -> Decision:
    idle: Any = object()
    request = make_request("0", mode="strict", surrogate=History(), default_budget="0")
    return decide(job, request, compiler=idle, measurer=idle, store=store).decision


def test_mode_strict_waits_for_a_trusted_decision_that_is_being_read(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(machines("one"), a_job())
    listed = Location.segments

    def slow(*given: Any) -> Any:
        time.sleep(0.2)
        return listed(*given)

    monkeypatch.setattr(sync, "FRESH_S", LIMIT_S)
    monkeypatch.setattr(Location, "segments", slow)
    assert in_mode_strict(machines("two"), a_job()).config == SPACE[1]
    with pytest.raises(CacheMissError, match="no decision for") as missed:
        in_mode_strict(machines("three"), a_job(key={"n": 7}))
    assert "not read" not in str(missed.value)


def test_mode_strict_names_a_decision_of_a_store_that_is_not_trusted(machines: Machines) -> None:
    tuned(machines("one"), a_job())
    store = machines("two", trusted=False)
    heard(store, a_job())
    with pytest.raises(CacheMissError) as missed:
        in_mode_strict(store, a_job())
    assert str(missed.value) == (
        "no decision for rmsnorm(n=4096) on NVIDIA H200 (132 SMs); it was decided by other machines, whose remote store is "
        "not trusted. Tune it once with FORECAST_AUTOTUNE_MODE=tune, or take that decision with ',trusted' behind the URL "
        "in FORECAST_AUTOTUNE_REMOTE_STORE."
    )
    tells = r"\. Tune it once .*, or take .* with ',trusted' behind the URL in \w+_REMOTE_STORE\.$"
    with pytest.raises(CacheMissError, match=tells):
        in_mode_strict(machines("three", trusted=False), a_job())  # which may have read nothing yet
    newer = a_job(toolchain=Toolchain(versions={"triton": "4"}))
    with pytest.raises(
        CacheMissError, match=r"triton 3\.9\.0, here 4\), by other.*TOOLCHAIN=any and ',trusted' behind"
    ):
        in_mode_strict(store, newer)
    trusted = machines("two")
    with pytest.raises(CacheMissError, match=r"TOOLCHAIN=any\.$"):
        in_mode_strict(trusted, newer)


@pytest.mark.parametrize("trouble", ["silent", "dead"])
def test_mode_strict_names_what_it_waited_for_in_vain(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    over = threading.Event()

    def fails(*_: object) -> list[Any]:
        assert trouble == "dead" or over.wait(LIMIT_S)
        raise RemoteStoreError("nobody is there")

    monkeypatch.setattr(deciding, "STRICT_READING_S", LIMIT_S if trouble == "dead" else 0.1)
    monkeypatch.setattr(sync, "FRESH_S", LIMIT_S)
    monkeypatch.setattr(Location, "segments", fails)
    store = machines("one")
    for _ in range(2):
        with pytest.raises(CacheMissError, match="the remote store, which may have one, is not read"):
            told_by(lambda: in_mode_strict(store, a_job()))
    over.set()


def test_a_store_that_is_away_is_waited_for_once_and_stays_unread(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> list[Any]:
        time.sleep(0.1)
        raise RemoteStoreError("nobody is there")

    def noted(self: sync.Sync, job: Job, wait_s: float) -> None:
        limits_s.append(wait_s)
        waits(self, job, wait_s)

    limits_s: list[float] = []
    waits = sync.Sync.await_read
    monkeypatch.setattr(sync.Sync, "await_read", noted)
    monkeypatch.setattr(sync, "FRESH_S", 0.0)
    monkeypatch.setattr(Location, "segments", fails)
    store = machines("one")

    def ask() -> None:
        for _ in range(20):
            store.decision(a_job())
            store.await_read(a_job(), 0.3)
            assert store.unread(a_job())
            time.sleep(0.02)

    with pytest.warns(StoreWarning, match="nobody is there"):
        ask()
    assert limits_s[0] > limits_s[-1] == 0.0
    monkeypatch.undo()
    until = time.monotonic() + LIMIT_S
    while store.unread(a_job()) and time.monotonic() < until:
        store.decision(a_job())
        time.sleep(0.05)
    assert not store.unread(a_job())


def test_a_process_that_is_killed_leaves_the_rest_to_the_next(machines: Machines, tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "one") as killed:  # it had decided and sent nothing yet
        killed.record_outcome(a_job(), "run", SPACE[1], a_measurement(), None)
        killed.record_decision(a_job(), a_decision(a_job(), decided_at=time.time()))
    heard(machines("one"), a_job(name="another"))
    assert heard(machines("two"), a_job()) is not None


@pytest.mark.parametrize("pause_s", [0.0, 0.1], ids=["at once", "while it is being sent"])
def test_a_process_that_ends_sends_what_it_has_learned(tmp_path: Path, machines: Machines, pause_s: float) -> None:
    program = """
import sys, time
from contracts.store_contract import a_decision, a_job
from forecast_autotune.remote import sync
from forecast_autotune.remote.fleet_store import FleetStore
from forecast_autotune.settings import RemoteStore
sync.END_S = float(sys.argv[3])  # a busy machine may take longer than a user would wait
store = FleetStore(sys.argv[1], RemoteStore(url=sys.argv[2]))
store.record_decision(a_job(), a_decision(a_job(), decided_at=time.time()))
time.sleep(float(sys.argv[4]))
"""
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests / "support")])
    words = [sys.executable, "-c", program, str(tmp_path / "one"), f"file://{tmp_path}/shared", str(LIMIT_S)]
    ended = subprocess.run(
        [*words, str(pause_s)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 4,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert heard(machines("two"), a_job()) is not None


@pytest.mark.parametrize("apart", [True, False])
def test_the_child_of_a_fork_exchanges_by_itself(machines: Machines, apart: bool) -> None:
    store = machines("one", apart=apart)
    heard(store, a_job())

    def child() -> bool:
        tuned(store, a_job())
        return heard(store, a_job(name="another")) is None

    assert in_child(child)
    assert heard(machines("two"), a_job()) is not None
    tuned(store, a_job(key={"n": 1}))


def test_rehearsals_stay_here(machines: Machines, tmp_path: Path) -> None:
    job = a_job(hardware=replace(HARDWARE, kind="replay"))
    store = machines("one")
    store.record_decision(job, a_decision(job))
    tuned(store, a_job())
    assert [p.parent.parent.name for p in (tmp_path / "shared").rglob("*.gz")] == [HARDWARE.digest]


def test_what_was_not_measured_is_not_sent(machines: Machines, tmp_path: Path) -> None:
    store = machines("one")
    store.record_decision(a_job(), a_decision(a_job(), basis="forecast", tried=0))
    store.syncs[0].send(HARDWARE)
    assert store.syncs[0].finish(LIMIT_S)
    assert not list(tmp_path.glob("shared/**/*.gz"))


def tune_with(store: FleetStore, budget: str) -> tuple[Decision, list[Config]]:
    """A decision made on a recording as a front door makes one, and the configs tried for it."""
    found = recording(failures=False)
    replayed = Replay(found)
    environment: dict[str, str] = {}
    request = make_request(budget, default_budget=budget, surrogate=History(), environment=environment)
    decision = decide(job_of(found), request, compiler=replayed, measurer=replayed, store=store).decision
    return decision, list(SqliteStore.outcomes(store, job_of(found)))


def extreme(best: bool) -> tuple[Job, Config]:
    found = recording(failures=False)
    times = {c: o.median_us for c, o in found.outcomes.items() if isinstance(o, Measurement)}
    return job_of(found), (min if best else max)(times, key=times.__getitem__)


@pytest.mark.parametrize("best", [True, False])
def test_a_strangers_config_is_tried_right_after_the_default(machines: Machines, best: bool) -> None:
    """One that is bad loses: a stranger costs one measurement at most."""
    job, suggested = extreme(best)
    stranger, other = machines("stranger"), machines("two", trusted=False)
    stranger.record_decision(job, a_decision(job, suggested, decided_at=time.time()))
    assert stranger.syncs[0].finish(LIMIT_S)
    heard(other, job)
    decision, tried = tune_with(other, "2")
    assert tried == [job.space.default, suggested]
    assert (decision.config == suggested) is best
    assert decision.basis == "measured"


def test_a_trusted_decision_needs_no_measurement(machines: Machines) -> None:
    job, suggested = extreme(False)
    friend, other = machines("friend"), machines("two")
    friend.record_decision(job, a_decision(job, suggested, decided_at=time.time()))
    assert friend.syncs[0].finish(LIMIT_S)
    heard(other, job)
    assert tune_with(other, "2")[0].config == suggested
    assert SqliteStore.outcomes(other, job) == {}
    # A budget of all configs is meant as it is said.
    decision, tried = tune_with(other, "all")
    assert decision.config != suggested
    assert len(tried) == len(job.space)


def test_a_decision_that_arrives_ends_the_run(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    job, suggested = extreme(True)
    friend, other = machines("friend"), machines("two")
    friend.record_decision(job, a_decision(job, suggested, decided_at=time.time()))
    assert friend.syncs[0].finish(LIMIT_S)
    measure, segments, measuring = Replay.measure, Location.segments, threading.Event()

    def late(self: Location, *folder: str) -> Any:
        assert measuring.wait(LIMIT_S)
        return segments(self, *folder)

    monkeypatch.setattr(Location, "segments", late)

    def first_waits(self: Replay, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        measuring.set()
        assert other.syncs[0].finish(LIMIT_S)
        return measure(self, config, limits)

    monkeypatch.setattr(Replay, "measure", first_waits)
    decision, tried = tune_with(other, "16")
    assert decision.config == suggested
    assert tried == [job.space.default]


@pytest.mark.parametrize("knows_other_constexprs", [False, True])
def test_an_unmeasured_key_is_looked_up_again_once_others_are_heard(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, knows_other_constexprs: bool
) -> None:
    job, suggested = extreme(True)
    job, like = (
        replace(job, workload=replace(job.workload, key={"given constexprs": {"D": size}})) for size in (512, 64)
    )
    friend, other = machines("friend"), machines("two")
    if knows_other_constexprs:
        with SqliteStore(other.directory) as own:
            own.record_decision(like, a_decision(like, job.space[1], decided_at=time.time() + 60))
    friend.record_decision(job, a_decision(job, suggested, decided_at=time.time()))
    assert friend.syncs[0].finish(LIMIT_S)
    found = recording(failures=False)
    environment: dict[str, str] = {}
    request = make_request("0", default_budget="0", surrogate=History(), environment=environment)

    def resolved() -> Resolution:
        return decide(job, request, compiler=Replay(found), measurer=Replay(found), store=other)

    answered, segments = threading.Event(), Location.segments

    def late(self: Location, *folder: str) -> Any:
        assert answered.wait(LIMIT_S)
        return segments(self, *folder)

    monkeypatch.setattr(Location, "segments", late)
    first = resolved()
    assert (first.decision.config == job.space[1]) is knows_other_constexprs
    assert first.decision.basis != "measured"
    assert first.retry_after_s is not None
    answered.set()
    assert other.syncs[0].finish(LIMIT_S)
    assert resolved().decision.config == suggested
    assert resolved().retry_after_s is None


def test_many_decisions_are_looked_through_a_few_at_a_time(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "SCANNED_AT_ONCE", 2)
    with SqliteStore(machines("one").directory) as earlier:
        for n in range(7):
            earlier.record_decision(a_job(key={"n": n}), a_decision(a_job(), decided_at=time.time()))
    tuned(machines("one"), a_job())
    other = machines("two")
    heard(other, a_job())
    assert all(other.decision(a_job(key={"n": n})) is not None for n in range(7))


def test_the_settings_open_one_store_for_each_folder(tmp_path: Path) -> None:
    given = {
        "FORECAST_AUTOTUNE_DIR": str(tmp_path),
        "FORECAST_AUTOTUNE_REMOTE_STORE": f"file://{tmp_path}/shared,trusted",
    }
    settings = Settings.from_environment(given)
    store = open_store(settings)
    assert isinstance(store, FleetStore)
    assert store.remote.trusted
    assert open_store(settings) is store
    assert not isinstance(open_store(replace(settings, mode="forecast")), FleetStore)
    assert not isinstance(open_store(replace(settings, remote_store=None)), FleetStore)
