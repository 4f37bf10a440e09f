"""Commands that are killed, interrupted or no longer listened to: whole results or none, and a store that stays whole."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from faults.ledger import Case, Ledger, marked_processes
from faults.stores import runs_kept
from recorded import recording

from forecast_autotune.evaluation.traces import write_trace
from forecast_autotune.store.jsonl import read_entries
from forecast_autotune.store.sqlite import SqliteStore

COMMAND = [sys.executable, "-m", "forecast_autotune"]
LIMIT_S = 120
ROWS = 400


def fill(folder: Path, runs: str, rows: int = ROWS) -> None:
    with SqliteStore(folder) as store:
        for number in range(rows):
            job = a_job(key={"n": number})
            store.record_outcome(job, f"{runs}-{number}", SPACE[0], a_measurement(), None)
            store.record_decision(job, a_decision(job, run=f"{runs}-{number}"))


def start(case: Case, *arguments: object, begun_by: Sequence[str] = COMMAND) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*begun_by, *map(str, arguments)],
        env=case.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def took_s(case: Case, *arguments: object) -> float:
    """How long a command takes when nobody disturbs it."""
    began = time.monotonic()
    process = start(case, *arguments)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out + err
    return time.monotonic() - began


def kill_somewhere(case: Case, whole_s: float, chance: random.Random, *arguments: object) -> int:
    """Kill a command at a random moment of its life; its exit code."""
    process = start(case, *arguments)
    time.sleep(chance.uniform(0.2, 1.1) * whole_s)
    process.kill()
    process.communicate(timeout=LIMIT_S)
    return process.returncode


def test_a_killed_export_leaves_the_old_file_or_the_whole_new_one(faults: Ledger, tmp_path: Path) -> None:
    chance = random.Random(1)
    with faults.case("kill -9 of `export`", tmp_path, seen="the old file or the whole new one") as case:
        fill(case.store, "old", 5)
        target = case.folder / "out" / "pack.jsonl.gz"
        target.parent.mkdir()
        took_s(case, "export", target)
        old = target.read_bytes()
        fill(case.store, "new")
        whole_s = took_s(case, "export", case.folder / "out" / "other.jsonl.gz")
        new = (case.folder / "out" / "other.jsonl.gz").read_bytes()
        for _ in range(case.many(short=4, whole=40)):
            target.write_bytes(old)
            with case.attempt():
                kill_somewhere(case, whole_s, chance, "export", target)
            assert target.read_bytes() in (old, new)
            assert {p.name for p in target.parent.iterdir()} == {"pack.jsonl.gz", "other.jsonl.gz"}
        read_entries(target)


@pytest.mark.parametrize("command", ["import", "prune", "clear"])
def test_a_killed_import_prune_or_clear_leaves_a_store_the_next_completes(
    faults: Ledger, tmp_path: Path, command: str
) -> None:
    chance = random.Random(command)
    fault = "kill -9 of `import`, `prune`, `clear`"
    with faults.case(fault, tmp_path, seen="the store is whole; run again, it does the rest") as case:
        fill(case.folder / "source", "brought")
        pack = case.folder / "pack.jsonl"
        took_s(case, "export", pack, "--dir", case.folder / "source")
        before = case.folder / "before"
        fill(before, "here", 50)
        words = {"import": ["import", pack], "prune": ["prune", "--days", 0], "clear": ["clear", "--yes"]}[command]
        shutil.copytree(before, case.store)
        whole_s = took_s(case, *words)
        done = len(runs_kept(case.store))
        assert done != 50
        for _ in range(case.many(short=3, whole=40)):
            shutil.rmtree(case.store)
            shutil.copytree(before, case.store)
            with case.attempt():
                kill_somewhere(case, whole_s, chance, *words)
            assert min(50, done) <= len(runs_kept(case.store)) <= max(50, done)
            with SqliteStore(case.store) as store:
                store.record_outcome(a_job(key={"n": -1}), "after", SPACE[0], a_measurement(), None)
            assert "after" in runs_kept(case.store)
            if case.row.attempts % 5 == 1:
                took_s(case, *words)
                assert len(set(runs_kept(case.store)) - {"after"}) == done


def test_a_reader_that_has_seen_enough_ends_a_listing_without_a_traceback(faults: Ledger, tmp_path: Path) -> None:
    with faults.case("a reader that leaves, as `head` does", tmp_path, seen="nothing, and exit code 0") as case:
        fill(case.store, "run")
        key = "n=7"
        for words in (["list"], ["list", "--json"], ["show", key], ["stats"], ["skills"], ["pending"], ["doctor"]):
            with case.attempt():
                process = start(case, *words)
                assert process.stdout is not None
                process.stdout.close()
                assert process.stderr is not None
                told = process.stderr.read()
                process.stderr.close()
                process.wait(timeout=LIMIT_S)
            assert "Traceback" not in told
            assert "BrokenPipe" not in told


def test_control_c_ends_a_command_with_one_line_and_a_store_that_is_whole(faults: Ledger, tmp_path: Path) -> None:
    chance = random.Random(3)
    with faults.case("Ctrl-C of a command", tmp_path, seen="one line, and exit code 130") as case:
        fill(case.folder / "source", "brought")
        pack = case.folder / "pack.jsonl"
        took_s(case, "export", pack, "--dir", case.folder / "source")
        fill(case.store, "here", 20)
        commands = (["import", pack], ["export", case.folder / "again.jsonl"], ["stats"])
        codes: list[int] = []
        for words in commands:
            whole_s = took_s(case, *words)
            for _ in range(case.many(short=2, whole=20)):
                codes.append(interrupted(case, chance.uniform(0.5, 1.0) * whole_s, *words))
                assert 20 <= len(runs_kept(case.store)) <= 20 + ROWS
        while 130 not in codes and len(codes) < 100:  # all were done before, or had not begun
            codes.append(interrupted(case, chance.uniform(0.3, 1.0) * whole_s, *words))
        assert 130 in codes


def interrupted(case: Case, after_s: float, *words: object) -> int:
    """The exit code of a command that Ctrl-C came to: done before, or told, or not yet begun."""
    with case.attempt():
        process = start(case, *words)
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=LIMIT_S)
    code = process.returncode
    assert code in (0, 130, -signal.SIGINT) or (code == 1 and "Failed to import the site module" in told), told
    if code == 130:
        assert told.splitlines().count("forecast-autotune: interrupted") == 1, told
        # Python tells of an interrupt that came to a destructor or a hook, and goes on.
        assert "Traceback" not in told or "Exception ignored" in told, told
    return code


@pytest.mark.thorough
def test_a_replay_whose_worker_is_killed_finishes_all_its_runs(faults: Ledger, tmp_path: Path) -> None:
    with faults.case("kill -9 of a worker of `replay`", tmp_path, seen="its runs begin again; all are there") as case:
        write_trace(recording(), case.folder / "bowl.jsonl")
        for _ in range(case.many(short=1, whole=5)):
            with case.attempt():
                process = start(case, "replay", case.folder / "bowl.jsonl", "--seeds", 60, "--jobs", 2, "--json")
                workers: list[int] = []
                deadline = time.monotonic() + LIMIT_S
                while not workers and time.monotonic() < deadline:
                    workers = [pid for pid, said in marked_processes(case.mark).items() if "spawn_main" in said]
                os.kill(workers[0], signal.SIGKILL)
                out, told = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, told
            assert "a worker process died" in told
            assert len(json.loads(out)["runs"]) == 60 * 3


# The command, which waits for a writer for two seconds in place of twenty.
IMPATIENT = (
    "import sys; from forecast_autotune.store import database; database.BUSY_S = 2.0;"
    " from forecast_autotune.cli import main; sys.exit(main())"
)


@pytest.mark.thorough
def test_a_command_waits_for_a_writer_holding_the_store_and_then_says_so(faults: Ledger, tmp_path: Path) -> None:
    fault = "a process that holds the store's lock and stands still"
    with faults.case(
        fault, tmp_path, seen="reading goes on; writing waits 20 s, then says that the store is locked"
    ) as case:
        fill(case.store, "run", 5)
        holder = sqlite3.connect(case.store / "store.sqlite3", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            for words, code in ((["list", "--json"], 0), (["prune"], 2)):
                with case.attempt():
                    begun_by = COMMAND if case.whole else [sys.executable, "-c", IMPATIENT]
                    process = start(case, *words, begun_by=begun_by)
                    _, told = process.communicate(timeout=LIMIT_S)
                assert process.returncode == code, told
                assert "Traceback" not in told
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        assert "locked" in told or "busy" in told
        assert len(runs_kept(case.store)) == 5
