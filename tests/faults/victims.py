"""Real tunings that are killed at drawn moments: what they say as they go, and who may be hit."""

from __future__ import annotations

import json
import os
import queue
import random
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.ledger import Case, marked_processes

from forecast_autotune.processes.serving import children_of

WAIT_S = 90.0  # for anything that happens at all; these machines are busy

KINDS = ("parent", "fork server", "worker", "tool")
"""Who can be killed: the process that tunes, the one that forks its workers, a worker that builds or times, a compiler."""

_TOOLS = re.compile(r"^(\S*/)?(c\+\+|g\+\+|cc1plus|as|ld|collect2|ninja|ptxas\S*|sh)( |$)")

CPP = """
    import json, sys, time
    import torch
    import forecast_autotune as fa
    from forecast_autotune.compilers.cpp_compile import CppCompiler
    from forecast_autotune.measure.isolated import Isolated
    from forecast_autotune.store.sqlite import SqliteStore
    from forecast_autotune.tuning.finalists import Finals
    from toy import Toy
    from pathlib import Path

    def say(what, config=None):
        print(what, "" if config is None else config["NUMBER"], flush=True)

    def told(owner, name, before=None, after=None):
        function = getattr(owner, name)
        def call(self, *args, **keywords):
            config = next((a for a in args if isinstance(a, fa.Config)), None)
            if before:
                say(before, config)
            result = function(self, *args, **keywords)
            if after:
                say(after, config)
            return result
        setattr(owner, name, call)

    told(CppCompiler, "_build", before="builds")
    told(Isolated, "measure", before="times")
    told(SqliteStore, "record_outcome", after="kept")
    told(Finals, "measure", before="finalists")
    told(SqliteStore, "record_decision", before="decides", after="decided")

    {first}
    toy = Toy(Path({builds!r}))
    numbers = json.loads({numbers!r})
    space = [dict(MODE="slow" if n % 3 else "plain", NUMBER=n) for n in numbers]
    module = fa.load_inline(
        **{{**toy.arguments(), "space": space, "budget": "all", "key": {{"scaled": lambda x, a: {key!r}}}}}
    )
    x = torch.ones(2000)
    say("ready")
    right = torch.equal(module.scaled(x, 2.0), 2 * x)
    while any(not d.run for d in module.scaled.decisions.values()):  # another process tunes the key
        time.sleep(0.2)
        module.scaled(x, 2.0)
    decision = next(iter(module.scaled.decisions.values()), None)
    decided = {{"config": dict(decision.config.knobs), "run": decision.run}} if decision else {{}}
    print(json.dumps({{"right": right, **decided}}), flush=True)
"""


TRITON = """
    import contextlib, json
    from rehearsed import call, configs, playing, tuned
    from forecast_autotune.compilers.triton_pool import WorkerPool
    from forecast_autotune.store.sqlite import SqliteStore

    record, paused = SqliteStore.record_outcome, WorkerPool.paused

    def recorded(self, job, run, config, *rest):
        record(self, job, run, config, *rest)
        print("kept", config["BLOCK"] * 100 + config["num_warps"], flush=True)

    @contextlib.contextmanager
    def told(self):
        with paused(self):
            print("paused", flush=True)
            yield

    SqliteStore.record_outcome, WorkerPool.paused = recorded, told
    with playing():
        kernel = tuned(configs=configs(warps=(1, 2, 4, 8)), budget="all")
        print("ready", flush=True)
        call(kernel)
        (decision,) = kernel.decisions.values()
        print(json.dumps({{"config": dict(decision.config.knobs)}}), flush=True)
"""


@dataclass(slots=True)
class Tuning:
    """A tuning in a process of its own, and what it has said so far."""

    process: subprocess.Popen[str]
    lines: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    said: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    silent: bool = False
    readers: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        for stream, take in ((self.process.stdout, self._take), (self.process.stderr, self.errors.append)):
            self.readers.append(threading.Thread(target=self._read, args=(stream, take), daemon=True))
            self.readers[-1].start()

    def _take(self, line: str) -> None:
        self.lines.put(line)

    def _read(self, stream: Any, take: Any) -> None:
        for line in stream:
            take(line.strip())
        if take == self._take:
            self.lines.put(None)

    def hears(self, wait_s: float = WAIT_S) -> str | None:
        """The next thing it says; None when it will say no more."""
        if self.silent:
            return None
        try:
            line = self.lines.get(timeout=wait_s)
        except queue.Empty:
            raise TimeoutError(f"nothing said for {wait_s:.0f} s after {self.said[-3:]}") from None
        if line is None:
            self.silent = True
        else:
            self.said.append(line)
        return line

    def hears_until(self, start: str, times: int = 1) -> bool:
        """Listen until it has said something so many times; False where it ended before."""
        while sum(line.startswith(start) for line in self.said) < times:
            if self.hears() is None:
                return False
        return True

    def end(self, wait_s: float = WAIT_S) -> int:
        """Listen to the end; the exit code."""
        while self.hears(wait_s) is not None:
            pass
        code = self.process.wait(timeout=wait_s)
        for reader in self.readers:  # until nobody is left to say anything
            reader.join(wait_s)
            if reader.is_alive():
                raise TimeoutError(f"ended with {code}, and something that it left holds its output")
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(OSError, ValueError):
                    stream.close()
        return code

    def numbers(self, what: str) -> list[int]:
        """What it did to which variants, before it came to the finalists, who are timed again by intent."""
        search = self.said[: self.said.index("finalists")] if "finalists" in self.said else self.said
        return [int(line.split()[1]) for line in search if line.startswith(f"{what} ") and line.split()[1:]]

    @property
    def result(self) -> dict[str, Any]:
        found = [line for line in self.said if line.startswith("{")]
        assert found, (self.said[-5:], self.errors[-20:])
        return dict(json.loads(found[-1]))


def begin(case: Case, script: str, *, extra: Mapping[str, str] | None = None, **values: Any) -> Tuning:
    """Start a script, its own process marked as this case's."""
    text = textwrap.dedent(script).format(**values)
    process = subprocess.Popen(
        [sys.executable, "-W", "once::UserWarning", "-c", text],
        env={**case.environment, **(extra or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Tuning(process)


def tuning(case: Case, builds: Path, numbers: Sequence[int], key: int, *, first: str = "pass") -> Tuning:
    """Tune the toy over variants with these numbers; `first` is a line that is run before."""
    return begin(case, CPP, builds=str(builds), numbers=json.dumps(list(numbers)), key=key, first=first)


def beneath(pid: int) -> dict[int, str]:
    """The processes that one has begun, and these in turn, with their command lines; found without looking at all others."""
    found = {}
    for child in children_of(pid) or ():
        with suppress(OSError):
            if command := Path(f"/proc/{child}/cmdline").read_bytes():  # none is left of who is dead
                found[child] = command.replace(b"\0", b" ").decode(errors="replace")[:200]
        found.update(beneath(child))
    return found


def candidates(case: Case, tuning: Tuning, kind: str) -> list[int]:
    """Processes of a kind that are there now."""
    parent = tuning.process.pid
    found = []
    for pid, command in (beneath(parent) or marked_processes(case.mark)).items():
        with suppress(OSError):
            above = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            role = (
                "parent"
                if pid == parent
                else "tool"
                if _TOOLS.match(command)
                else "fork server"
                if above == parent
                else "worker"
            )
            # Triton asks ptxas for its version in the caller, as it does without any tuning. It is of the caller's process
            # group, and looks like a copy of the caller until it is ptxas; a fork server has a group of its own.
            if role == kind and (above != parent or (role != "tool" and os.getpgid(pid) != os.getpgid(parent))):
                found.append(pid)
    return sorted(found)


def strike(case: Case, tuning: Tuning, kind: str, draw: random.Random, number: int = signal.SIGKILL) -> bool:
    """Send a signal to one process of a kind as soon as there is one; False where the tuning ended before.

    The process that tunes stands still meanwhile, so that however long a look takes, nothing is over before it.
    """
    deadline = time.monotonic() + WAIT_S
    while tuning.process.poll() is None:
        tuning.process.send_signal(signal.SIGSTOP)
        try:
            if found := candidates(case, tuning, kind):
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(found), number)
                    return True
        finally:
            tuning.process.send_signal(signal.SIGCONT)
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {kind} for {WAIT_S:.0f} s, and the tuning does not end")
        time.sleep(0.002)
    return False


def kept(store: Path, key: int | None = None) -> dict[int, list[dict[str, Any]]]:
    """All outcomes of each variant that a store holds, once it was found whole."""
    path = store / "store.sqlite3"
    if not path.exists():
        return {}
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if connection.execute("PRAGMA user_version").fetchone() == (0,):
            return {}  # the disk had no room for its tables
        rows = connection.execute(
            "SELECT text.value, outcome.value, workload.value FROM outcome JOIN workload ON workload.id = workload"
            " JOIN text ON text.id = config ORDER BY recorded_at, outcome.id"
        ).fetchall()
    finally:
        connection.close()
    found: dict[int, list[dict[str, Any]]] = {}
    for config, value, workload in rows:
        # Beside it stands what is unusual: torch's threads.
        if key is None or json.loads(workload)["key"]["key"] == key:
            knobs = json.loads(config)
            number = knobs["NUMBER"] if "NUMBER" in knobs else knobs["BLOCK"] * 100 + knobs["num_warps"]
            found.setdefault(number, []).append(json.loads(value))
    return found


def wait_until_gone(case: Case, wait_s: float = 20.0) -> None:
    """Wait until nothing that the case started is left; the ledger looks again in the end."""
    deadline = time.monotonic() + wait_s
    while left := marked_processes(case.mark):
        if time.monotonic() > deadline:
            raise AssertionError(f"left: {left}")
        time.sleep(0.02)
