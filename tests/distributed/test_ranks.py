"""Ranks and their key-value store, in one process; `faults/test_ranks.py` has real processes."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch.distributed
from contracts.store_contract import SPACE, StoreContract, a_decision, a_job

from forecast_autotune.core.hardware import Hardware
from forecast_autotune.distributed import job_channel as channel
from forecast_autotune.distributed.job_channel import JobChannel, KeyValue, UnreachableError, job_channel, within
from forecast_autotune.distributed.job_store import JobStore, Patience
from forecast_autotune.errors import TuningWarning
from forecast_autotune.store.encoding import encode_decision, encode_workload, to_text
from forecast_autotune.store.sqlite import SqliteStore

PUBLISHED = {**encode_decision(a_decision(a_job())), "workload": encode_workload(a_job().workload)}
HURRIED = Patience(grace_s=0.05, beat_s=0.05, silent_s=0.4)


@pytest.fixture(autouse=True)
def nothing_told_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_group", "_agent"):
        monkeypatch.setattr(channel, name, None)


@pytest.fixture
def shared() -> KeyValue:
    return torch.distributed.HashStore()


def a_rank(shared: KeyValue, rank: int, patience: Patience = HURRIED, **more: bool) -> JobStore:
    return JobStore(SqliteStore.in_memory(), JobChannel(lambda: shared, rank=rank, ranks=8), patience=patience, **more)


class TestJobStore(StoreContract):
    """To its own rank it is the store that it wraps."""

    @pytest.fixture
    def store(self, shared: KeyValue) -> Iterator[JobStore]:
        return a_rank(shared, 0)


# Agreeing ---------------------------------------------------------------------------------------------------------------


def test_the_first_decision_given_is_everybodys(shared: KeyValue) -> None:
    first, second, third = (a_rank(shared, r) for r in range(3))
    assert first.shared_decision(a_job()) is None
    assert first.publish_decision(a_job(), a_decision(a_job(), SPACE[1])).config == SPACE[1]
    assert second.publish_decision(a_job(), a_decision(a_job(), SPACE[2])).config == SPACE[1]
    assert third.shared_decision(a_job()) == a_decision(a_job(), SPACE[1])


def test_ranks_whose_constexprs_differ_decide_together(shared: KeyValue) -> None:
    one, two = (a_job(key={"n": 1, "given constexprs": {"RANK": rank}}) for rank in range(2))
    a_rank(shared, 0).publish_decision(one, a_decision(one))
    other = a_rank(shared, 1)
    theirs = other.shared_decision(two)
    assert theirs is not None
    assert (theirs.config, theirs.basis, theirs.config_us) == (a_decision(one).config, "forecast", None)
    assert other.publish_decision(two, a_decision(two, SPACE[3])) == theirs
    assert other.own.decision(one) == a_decision(one), "it is kept for what it was measured under"
    assert other.own.decision(two) is None
    assert other.shared_decision(a_job(key={"n": 2, "given constexprs": {"RANK": 0}})) is None


def test_a_measured_decision_that_is_adopted_is_kept_for_the_next_job(shared: KeyValue) -> None:
    a_rank(shared, 0).publish_decision(a_job(), a_decision(a_job()))
    other = a_rank(shared, 1)
    other.shared_decision(a_job())
    assert other.own.decision(a_job()) == a_decision(a_job())


def test_an_unmeasured_decision_that_is_adopted_is_not_kept(shared: KeyValue) -> None:
    a_rank(shared, 0).publish_decision(a_job(), a_decision(a_job(), basis="forecast", tried=0))
    other = a_rank(shared, 1)
    assert other.shared_decision(a_job()) is not None
    assert other.own.decision(a_job()) is None


def test_ranks_with_other_hardware_decide_among_themselves(shared: KeyValue) -> None:
    elsewhere = a_job(hardware=Hardware(kind="cuda", name="NVIDIA A100", units=108))
    a_rank(shared, 0).publish_decision(a_job(), a_decision(a_job()))
    assert a_rank(shared, 1).shared_decision(elsewhere) is None


def test_what_was_decided_without_measuring_stands_in_no_measurements_way(shared: KeyValue) -> None:
    a_rank(shared, 0, measures=False).publish_decision(a_job(), a_decision(a_job(), SPACE[0], basis="default", tried=0))
    assert a_rank(shared, 1).shared_decision(a_job()) is None
    assert a_rank(shared, 1, measures=False).shared_decision(a_job()) is not None


@pytest.mark.parametrize(
    "published",
    [
        "no JSON",
        "\udcff",
        "[1, 2]",
        '{"config": {"BLOCK": 64}}',
        to_text({**PUBLISHED, "config": {"BLOCK": 7, "num_warps": 2}}),
        to_text({**PUBLISHED, "config": {"__reduce__": "os.system"}}),
        to_text({**PUBLISHED, "space_digest": "another"}),
        to_text({**PUBLISHED, "workload": {"key": {"n": 7}}}),
        to_text(encode_decision(a_decision(a_job()))),
    ],
)
def test_what_is_no_decision_for_the_job_is_ignored_with_one_warning(shared: KeyValue, published: str) -> None:
    rank = a_rank(shared, 1)
    shared.set(f"{rank._key(a_job())}/decision", published.encode("utf-8", "surrogateescape"))
    with pytest.warns(TuningWarning, match="ignored"):
        assert rank.shared_decision(a_job()) is None
    with rank.single_flight(a_job()) as alone:  # a second warning would be an error
        assert alone
    assert rank.publish_decision(a_job(), a_decision(a_job(), SPACE[3])).config == SPACE[3]


# Leading ----------------------------------------------------------------------------------------------------------------


def leads(rank: JobStore) -> bool:
    """Whether a rank leads now. In a thread of its own: one that leads already would lead again."""
    with ThreadPoolExecutor(1) as pool:

        def fly() -> bool:
            with rank.single_flight(a_job()) as alone:
                return alone

        return pool.submit(fly).result()


def leads_in_the_end(rank: JobStore, limit_s: float = 60.0) -> bool:
    """Whether a rank that asks again and again leads at last."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if leads(rank):
            return True
        time.sleep(0.02)
    return False


def test_while_one_leads_the_others_hear_so_at_once_and_adopt_its_decision(shared: KeyValue) -> None:
    patient = replace(HURRIED, silent_s=60.0)
    leader, other = a_rank(shared, 0, patient), a_rank(shared, 1, patient)
    with leader.single_flight(a_job()) as alone:
        assert alone
        assert not leads(other)
        (seen,) = other.channel.seen.values()
        assert seen.sign is not None
        claim, beats = seen.sign
        while shared.add(f"{leader._key(a_job())}/beat/{claim.rpartition(' ')[2]}", 0) == beats:
            time.sleep(0.01)  # until it shows life
        seen.changed -= 120.0  # longer than silence is borne
        assert not leads(other)
        leader.publish_decision(a_job(), a_decision(a_job()))
    assert not leads(other)
    assert other.shared_decision(a_job()) == a_decision(a_job())
    assert not other.channel.seen


def test_a_rank_other_than_the_first_leads_when_rank_0_does_not_come(shared: KeyValue) -> None:
    assert leads_in_the_end(a_rank(shared, 5))


def test_another_store_of_the_same_rank_goes_on_from_what_was_seen(shared: KeyValue) -> None:
    line = JobChannel(lambda: shared, rank=5, ranks=8)

    def asks() -> bool:  # as each look at a key makes a store
        return leads(JobStore(SqliteStore.in_memory(), line, patience=HURRIED))

    assert not asks()
    line.seen[next(iter(line.seen))].first -= 60.0
    assert asks()


def test_rank_0_leads_when_it_comes_within_the_grace(shared: KeyValue) -> None:
    patience = Patience(grace_s=60.0)
    assert not leads(a_rank(shared, 3, patience))
    assert leads(a_rank(shared, 0, patience))


def test_another_takes_the_place_of_one_that_is_silent(shared: KeyValue, caplog: pytest.LogCaptureFixture) -> None:
    dead, heir = a_rank(shared, 0), a_rank(shared, 2)
    shared.set(f"{dead._key(a_job())}/claim", "rank 0 of 8 (process 1 of gone) abc")
    assert not leads(heir)
    with caplog.at_level(logging.WARNING):
        assert leads_in_the_end(heir)
    assert "rank 0 of 8 (process 1 of gone) is silent" in caplog.text


def test_whoever_leads_reads_once_a_beat_however_often_it_is_asked(
    shared: KeyValue, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = a_rank(shared, 0, replace(HURRIED, beat_s=60.0))
    reads: list[str] = []
    read = leader.channel.read
    with leader.single_flight(a_job()):
        monkeypatch.setattr(leader.channel, "read", lambda key: reads.append(key) or read(key))
        assert leader.shared_decision(a_job()) is None
        a_rank(shared, 1).publish_decision(a_job(), a_decision(a_job()))
        assert leader.shared_decision(a_job()) is None
        assert len(reads) == 1
        leader._read_at[leader._key(a_job())] -= 60.0
        assert leader.shared_decision(a_job()) == a_decision(a_job())


def test_one_that_can_have_no_thread_leads_without_a_sign_of_life(
    shared: KeyValue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "forecast-autotune-beat":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with caplog.at_level(logging.WARNING), a_rank(shared, 0).single_flight(a_job()) as alone:
        assert alone
    assert "take it for dead" in caplog.text


def test_one_that_fails_leaves_the_lead_to_the_next_at_once(shared: KeyValue) -> None:
    with pytest.raises(KeyError), a_rank(shared, 0).single_flight(a_job()):
        raise KeyError
    assert leads(a_rank(shared, 1, Patience(grace_s=0.0, silent_s=60.0)))


# Reaching ---------------------------------------------------------------------------------------------------------------


class Silent:
    """Answers nothing, ever."""

    def check(self, keys: list[str]) -> bool:
        threading.Event().wait(60)
        raise AssertionError

    def __getattr__(self, name: str) -> object:
        return self.check


def test_a_stalled_key_value_store_is_abandoned_with_one_warning() -> None:
    line = JobChannel(Silent, rank=1, ranks=8, call_s=0.2)  # type: ignore[arg-type]
    rank = JobStore(SqliteStore.in_memory(), line, patience=HURRIED)
    began = time.monotonic()
    with pytest.warns(TuningWarning, match="cannot be reached"):
        assert rank.shared_decision(a_job()) is None
    for _ in range(50):  # a second warning would be an error
        assert rank.shared_decision(a_job()) is None
        with rank.single_flight(a_job()) as alone:
            assert alone
        assert rank.publish_decision(a_job(), a_decision(a_job())) == a_decision(a_job())
    assert time.monotonic() - began < 20  # 150 questions of 0.2 s would take 30


def test_one_that_cannot_be_connected_to_is_given_up(unused_port: int) -> None:
    environment = {
        "WORLD_SIZE": "8",
        "RANK": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(unused_port),
    }
    line = job_channel(environment, call_s=1.0)
    assert line is not None
    with pytest.raises(UnreachableError):
        line.read("key")


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def test_an_error_while_asking_is_reported_in_one_line() -> None:
    def fail() -> None:
        raise RuntimeError("first line\nsecond line")

    with pytest.raises(UnreachableError, match=r"^RuntimeError: first line$"):
        within(5, fail)


def test_without_a_thread_to_ask_in_nobody_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(UnreachableError, match="can't start new thread"):
        within(5, lambda: None)


SERVER = """
import time
from torch.distributed import TCPStore
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(server.port, flush=True)
time.sleep(600)
"""

ASKS_AND_ENDS = """
import os, signal, sys, time
import torch.distributed
from forecast_autotune.distributed.job_channel import UnreachableError, job_channel
port, server = sys.argv[1:]
line = job_channel({
    "WORLD_SIZE": "2", "RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
}, call_s=30.0)
line.read("key")
line.call_s = 0.5
os.kill(int(server), signal.SIGSTOP)
while open(f"/proc/{server}/stat").read().rpartition(")")[2].split()[0] != "T":
    time.sleep(0.01)
try:
    line.read("key")
except UnreachableError:
    print("given up", flush=True)
class Slow:
    def __del__(self):
        os.kill(int(server), signal.SIGKILL)
        time.sleep(1.0)
sys.modules["slow"] = Slow()
"""


def test_a_process_that_abandoned_its_server_ends_well_after_its_death() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            command = [sys.executable, "-c", ASKS_AND_ENDS, port, str(server.pid)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        finally:
            server.kill()
    assert (done.stdout, done.returncode) == ("given up\n", 0), done.stderr


# Finding ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": ""}])
def test_a_process_by_itself_needs_nobody_and_hears_nothing(environment: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert job_channel(environment) is None


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"WORLD_SIZE": "8", "RANK": "0"}, "init_process_group"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many'"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE='-1'"),
        ({"WORLD_SIZE": "4", "RANK": "7"}, "RANK='7'"),
        ({"WORLD_SIZE": "4"}, "RANK=''"),
        (
            {"WORLD_SIZE": "4", "RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "x"},
            "MASTER_PORT='x'",
        ),
    ],
)
def test_without_a_way_to_the_others_there_is_one_warning(environment: dict[str, str], told: str) -> None:
    with pytest.warns(TuningWarning, match=told):
        assert job_channel(environment) is None
    assert job_channel(environment) is None  # a second warning would be an error


def test_torchruns_agent_is_found_without_a_process_group() -> None:
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(server.port),
    }
    lines = [job_channel({**environment, "RANK": str(rank)}) for rank in (0, 1)]
    assert lines[0] is not None
    assert lines[1] is not None
    assert lines[0].swap("key", "", "ä") == "ä"
    assert lines[1].read("key") == "ä"
    assert (lines[1].add("count", 2), lines[0].add("count", 0)) == (2, 2)


def test_a_rank_asking_before_the_process_group_exists_is_heard_afterwards() -> None:
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "a run",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(server.port),
    }
    before = job_channel(environment)
    assert before is not None
    assert before.swap("key", "", "said") == "said"
    torch.distributed.init_process_group("gloo", store=server, rank=0, world_size=1)
    try:
        afterwards = job_channel({**environment, "RANK": "1"})
        assert afterwards is not None
        assert afterwards.read("key") == "said"
    finally:
        torch.distributed.destroy_process_group()
    for change in ({"TORCHELASTIC_RESTART_COUNT": "1"}, {"WORLD_SIZE": "3"}):  # a rescale counts as no restart
        restarted = job_channel({**environment, **change})
        assert restarted is not None
        assert restarted.read("key") is None, "said by ranks that are gone"


@pytest.mark.parametrize("error", [KeyError("gone"), TypeError("no group"), AssertionError("no backend")])
def test_any_error_while_looking_for_the_process_group_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(channel, "_of_process_group", fail)
    with pytest.warns(TuningWarning, match="no way to the process group's store"):
        assert job_channel({"WORLD_SIZE": "8"}) is None


def test_a_process_group_is_found_and_goes_before_the_environment() -> None:
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = torch.distributed.TCPStore(
        "127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=5), wait_for_workers=False
    )
    torch.distributed.init_process_group("gloo", store=client, rank=0, world_size=1)
    try:
        with pytest.warns(TuningWarning, match="WORLD_SIZE='8', but the process group says 1"):
            assert job_channel({"WORLD_SIZE": "8"}) is None  # alone after all
        assert job_channel({"WORLD_SIZE": "8"}) is None  # a second warning would be an error
    finally:
        torch.distributed.destroy_process_group()
