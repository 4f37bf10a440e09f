"""Many processes on many machines, one server that speaks S3's protocol, and all that can befall it."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from remote.member import POOL, PROGRAMS, job_of
from s3_server import BUCKET, Faults, S3Server, faulty_proxy, s3_environment, s3_server

from forecast_autotune.remote.exchange import Exchange
from forecast_autotune.remote.location import Location
from forecast_autotune.remote.mirror import Mirror
from forecast_autotune.store.sqlite import SqliteStore

pytestmark = pytest.mark.thorough

TESTS = Path(__file__).parents[1]
URL = f"s3://{BUCKET}/tuning"
LIMIT_S = 1_000.0
SEED = 20261123


@contextmanager
def restarted_now_and_then(server: S3Server, draw: random.Random) -> Iterator[None]:
    """The server is killed and started again, at moments drawn at random."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(draw.uniform(1.0, 3.0)):
            server.kill()
            over.wait(draw.uniform(0.1, 1.0))
            server.start()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def exchange_of(folder: Path) -> Exchange:
    return Exchange(SqliteStore(folder), Mirror(folder, URL), Location(URL), sources=False, complain=pytest.fail)


@pytest.mark.timeout(1_200)
def test_faults_of_the_server_neither_lose_nor_duplicate_anything(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = request.config.getoption("--whole-faults")
    processes, machines, keys = (64, 16, 10) if whole else (6, 3, 10)
    draw = random.Random(SEED)
    faults = Faults(errors=0.15, cuts=0.15, slow=0.15, slow_s=0.3, seed=SEED)
    path = os.pathsep.join([str(TESTS), str(TESTS / "support")])
    with s3_server(tmp_path / "s3") as server:
        with faulty_proxy(server, faults) as url, restarted_now_and_then(server, draw):
            environment = {**os.environ, **s3_environment(url), "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
            members = []
            for number in range(processes):
                words = [str(tmp_path / f"machine {number % machines}"), URL, str(number), str(keys)]
                with (tmp_path / f"{number}.out").open("w") as out, (tmp_path / f"{number}.err").open("w") as err:
                    members.append(
                        subprocess.Popen(
                            [sys.executable, "-m", "remote.member", *words], env=environment, stdout=out, stderr=err
                        )
                    )
            killed = draw.sample(range(processes), processes // 8 + 1)
            for number in killed:  # once it has kept something
                while not (tmp_path / f"{number}.out").read_text() and members[number].poll() is None:
                    time.sleep(0.01)
                members[number].kill()
            codes = {number: member.wait(LIMIT_S) for number, member in enumerate(members)}
        said = {number: (tmp_path / f"{number}.err").read_text() for number in codes}
        assert {n: said[n] for n, code in codes.items() if (code, said[n]) != (0, "") and n not in killed} == {}
        assert all(faults.done[kind] for kind in ("errors", "cuts", "slow"))
        lines = [
            json.loads(line)
            for number in codes
            for line in (tmp_path / f"{number}.out").read_text().split("\n")[:-1]  # the last may be cut off by a kill
        ]
        kept = {(d["key"], d["run"], config) for d in lines if "key" in d for config in d["configs"]}

        # All is well again; what processes could not send, the next ones do.
        for name, value in s3_environment(server.url).items():
            monkeypatch.setenv(name, value)
        late = [exchange_of(tmp_path / f"machine {number}").push() for number in range(machines)]
        newcomer = exchange_of(tmp_path / "newcomer")
        hardware = job_of(0).hardware.digest
        for program in range(PROGRAMS):
            newcomer.pull(hardware, job_of(program).workload.program)
        rows, decided = contents_of(newcomer.mirror)
        assert kept <= rows.keys(), "lost"
        assert max(rows.values()) == 1, "twice"

        # All machines come to one decision for each key, the one of the newcomer.
        for number in range(machines):
            other = exchange_of(tmp_path / f"machine {number}")
            for program in range(PROGRAMS):
                other.pull(hardware, job_of(program).workload.program)
            theirs, choice = contents_of(other.mirror)
            own = contents_of(other.own)
            assert all(newest(choice, own[1], key) == decided[key] for key in decided)
            assert (theirs.keys() | own[0].keys()) >= kept
        written, removed = newcomer.compact()
        another = exchange_of(tmp_path / "another")
        for program in range(PROGRAMS):
            another.pull(hardware, job_of(program).workload.program)
        assert contents_of(another.mirror) == (rows, decided)
    calls_ms = sorted(1000 * s for d in lines for s in d.get("calls_s", ()))
    print(
        json.dumps(
            {
                "processes": processes,
                "machines": machines,
                "killed": len(killed),
                "faults": dict(faults.done),
                "outcomes_kept": len(kept),
                "sent_by_the_next_process": sum(late),
                "segments_before_compacting": len(removed),
                "segments_after": len(written),
                "hits": sum(d.get("hit", False) for d in lines),
                "median_ms": round(calls_ms[len(calls_ms) // 2], 2),
                "p99_ms": round(calls_ms[int(0.99 * len(calls_ms))], 1),
            }
        )
    )


Kept = Counter[tuple[int, str, str]]


def contents_of(store: SqliteStore | Mirror) -> tuple[Kept, dict[int, tuple[float, str]]]:
    """How often each outcome is there, and by key when the decision was made that holds, and for what."""
    if isinstance(store, Mirror):
        store = store.store
    store.close()
    assert store.path is not None
    with closing(sqlite3.connect(store.path)) as opened:
        assert opened.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        outcomes = opened.execute(
            "SELECT json_extract(workload.value, '$.key.n'), run.value, config.value FROM outcome"
            " JOIN workload ON workload.id = workload JOIN text AS run ON run.id = run"
            " JOIN text AS config ON config.id = config"
        ).fetchall()
        held = opened.execute(
            "SELECT json_extract(workload.value, '$.key.n'), decided_at, json_extract(decision.value, '$.run') FROM decision"
            " JOIN workload ON workload.id = workload WHERE superseded_at IS NULL"
        ).fetchall()
    assert len({key for key, _, _ in held}) == len(held) <= POOL
    return Counter(outcomes), {key: (at, run) for key, at, run in held}


def newest(theirs: dict[int, tuple[float, str]], own: dict[int, tuple[float, str]], key: int) -> tuple[float, str]:
    return max(known[key] for known in (theirs, own) if key in known)
