"""What tunes on one device of a cluster: a process of its own calls the kernels, while its node's store is watched."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..errors import InvalidInputError, WorkerError
from ..processes.booting import environment_with
from ..processes.endings import died
from ..processes.worker import end_session
from ..settings import PREFIX, Settings
from ..store.encoding import from_text, to_text
from ..store.filesystem import identity_of
from ..store.following import Following
from ..store.holders import this_process
from ..store.jsonl import Decided, Entry, decode_entry, encode_decided, encode_run
from ..store.queries import StoreFile
from . import key_list, work_sharing
from .key_list import ListedKey, write_keys

HELP_S = 0.5  # for which a device that helps waits before it is asked again: the other one may not have begun
LOOK_S = 0.1  # between two looks at the store, 0.3 ms each: what a node that is killed has not told is lost
START_S = 300.0  # for a process to import what it needs and to see its device
ENDING_S = 10.0  # for a program to end that has nothing left to tune

_PROCESS = (sys.executable, "-m", "forecast_autotune.distributed.suite_process")


def encoded(entries: Iterable[Entry]) -> list[str]:
    """Entries as lines that `taken_in` reads."""
    return [to_text(encode_decided(e) if isinstance(e, Decided) else encode_run(e)) for e in entries]


def taken_in(store: StoreFile, lines: Sequence[str]) -> list[Entry]:
    """Keep lines in a store, each checked first; what they hold.

    Raises:
        InvalidInputError: one is broken; nothing is kept.
        StoreError: the store cannot be written.
    """
    entries = [decode_entry(from_text(line, "a line")) for line in lines]
    if entries:
        store.take(entries)
    return entries


def decided_in(entries: Iterable[Entry]) -> set[tuple[str, str]]:
    """Keys that entries have a measured decision of, by the digests of their hardware and workload."""
    decided = (
        e for e in entries if isinstance(e, Decided) and e.superseded_at is None and e.decision.rests_on_outcomes
    )
    return {(e.tuning_key.hardware.digest, e.tuning_key.workload.digest) for e in decided}


def identity(path: Path) -> list[object] | None:
    """What tells a file from all others of a cluster's machines; None if there is none."""
    of_file = identity_of(path)
    if of_file is None:
        return None
    with suppress(OSError):
        return [Path("/proc/sys/kernel/random/boot_id").read_text(), *of_file]
    return [os.uname().nodename, *of_file]


class TuningWorker:
    """Tunes a suite's calls, or the keys that a program meets, on the device that this process sees.

    Args:
        suite: whether the program is one; see `suites`.
        command: the program: for a suite `file` or `module` and its name; else what is run, with all it is given.
        folder: in which it is run.
        environment: the caller's settings; where the node has a `FORECAST_AUTOTUNE_DIR` of its own, that one holds.
        store: the identity of the store that all is gathered in: of the same on this node nothing need be told.
        known: what that store knows already, as lines.
        keys: those to tune, as the fields of `ListedKey`; None for all.
    """

    def __init__(
        self,
        *,
        suite: bool,
        command: Sequence[str],
        folder: str,
        environment: Mapping[str, str | None],
        store: Sequence[object] | None,
        known: Sequence[str],
        keys: Sequence[Mapping[str, str]] | None,
    ) -> None:
        if not Path(folder).is_dir():
            raise InvalidInputError(f"there is no folder {folder} on {os.uname().nodename}: share it among the nodes")
        self._suite, self._command, self._cwd, self._keys = suite, list(command), folder, keys
        changes = {
            "OMP_NUM_THREADS": None,  # Ray sets it to 1
            **dict.fromkeys(_settings(os.environ), None),
            **environment,
        }
        if own := os.environ.get(f"{PREFIX}DIR"):
            changes[f"{PREFIX}DIR"] = own
        changes[work_sharing.VARIABLE] = this_process()  # which has its device to itself, as long as it lives
        self._environment = environment_with(changes)
        self._lists = tempfile.TemporaryDirectory(prefix="forecast_autotune-")
        self.store = StoreFile(Settings.from_environment(self._environment).dir)
        self._is_gathered = store is not None and identity(self.store.path) == list(store)
        self.store.take([])  # made if there is none, so that the node's other devices see the same
        if not self._is_gathered:
            taken_in(self.store, known)
        self._process: SuiteProcess | None = None

    def describe(self) -> dict[str, Any]:
        """The device: its `device`, `hardware` (a digest) and `name`; its node's `store`; and of a suite its `calls`."""
        return {**self._described(), "store": identity(self.store.path)}

    def _described(self) -> dict[str, Any]:
        if self._suite:
            self._process = self._started()
            return self._process.describes
        asked = subprocess.run(
            _PROCESS, env=self._environment, check=True, stdout=subprocess.PIPE, text=True, timeout=START_S
        )
        return dict(json.loads(asked.stdout.strip().rpartition("\n")[2]))

    def work(self, task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Tune; tells what is measured and decided as it comes, as `lines`, and at last how it ended."""
        if not self._is_gathered:
            taken_in(self.store, task.get("known", ()))
        following = Following(self.store.path)
        decided: set[tuple[str, str]] = set()
        if "call" in task:
            steps = self._call(str(task["call"]))
        elif "keys" in task:
            steps = self._tune_keys(task["keys"], decided)
        else:
            steps = self._discover()
        for value in steps:
            entries = following.entries()
            decided |= decided_in(entries)
            if entries and not self._is_gathered:
                yield {"lines": encoded(entries)}
            elif found := decided_in(entries):
                yield {"decided": sorted(found)}
            if value is not None:
                yield value
        if task.get("helps"):
            time.sleep(HELP_S)

    # A suite ----------------------------------------------------------------------------------------------------------

    def _started(self) -> SuiteProcess:
        return SuiteProcess([*_PROCESS, *self._command], self._with_keys(self._keys), self._cwd)

    def _call(self, name: str) -> Iterator[dict[str, Any] | None]:
        if self._process is None or self._process.ended is not None:
            self._process = self._started()
        process = self._process
        process.send({"call": name})
        while (said := process.next(LOOK_S)) is None:
            if process.ended is not None:
                yield {"died": f"the process that called it {process.ended}"}
                return
            yield None
        yield {"problem": said["problem"], "warnings": said["warnings"]}

    # Another program --------------------------------------------------------------------------------------------------

    def _discover(self) -> Iterator[dict[str, Any] | None]:
        """The keys that the program meets and that are not decided."""
        began = time.time()
        with self._running({**self._environment, f"{PREFIX}MODE": "cached"}) as process:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
                yield None
        if process.returncode:
            raise WorkerError(f"the program {died(process.returncode)}")
        met = [p for p in self.store.pending() if p.met_at >= began] if self.store.exists() else []
        keys = [(p, p.tuning_key) for p in met]
        yield {
            "keys": [
                {"hardware": key.hardware.digest, "workload": key.workload.digest, "on": key.hardware.name,
                 "what": str(key.workload), "why": p.why}
                for p, key in keys
            ]
        }  # fmt: skip

    def _tune_keys(
        self, keys: Sequence[Mapping[str, str]], decided: set[tuple[str, str]]
    ) -> Iterator[dict[str, Any] | None]:
        """Run the program until it ends, or until all the keys are decided; `decided` is kept up meanwhile."""
        wanted = {(key["hardware"], key["workload"]) for key in keys}
        if self.store.exists():
            entries = (
                Decided(tuning_key=d.tuning_key, decision=d.decision, superseded_at=d.superseded_at)
                for d in self.store.each_decision()
            )
            decided |= decided_in(entries) & wanted
        stopped = False
        with self._running(self._with_keys(keys)) as process:
            while process.poll() is None and not (stopped := wanted <= decided):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
                yield None
            if stopped:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING_S)
        yield None  # what came last
        problem = "" if stopped or not process.returncode else f"the program {died(process.returncode)}"
        yield {"left": sorted(wanted - decided), "problem": problem, "warnings": []}

    @contextmanager
    def _running(self, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """The program, in a session of its own, which ends with this."""
        command = [*_PROCESS, "run", *self._command]
        with subprocess.Popen(
            command, env=environment, cwd=self._cwd, stdin=subprocess.DEVNULL, start_new_session=True
        ) as process:
            try:
                yield process
            finally:
                end_session(process.pid)

    def _with_keys(self, keys: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
        if keys is None:
            return self._environment
        path = Path(self._lists.name) / f"{time.monotonic_ns()}.jsonl"
        write_keys(path, (ListedKey(**key) for key in keys))
        return {**self._environment, key_list.VARIABLE: str(path)}


class SuiteProcess:
    """A process that makes a suite's calls.

    Raises:
        WorkerError: it does not start, or says nothing in `START_S`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        self._process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.ended: str | None = None
        """How it ended; None while it runs."""
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        said = self.next(START_S)
        if said is None or "problem" in said:
            self._process.kill()
            raise WorkerError(
                str(said["problem"]) if said else f"the process for the suite {self.ended or 'says nothing'}"
            )
        self.describes = said

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self._lines.put(line)
        self._lines.put(None)

    def send(self, value: Mapping[str, Any]) -> None:
        """Ask it something; that it has ended shows at the next `next`."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(json.dumps(value) + "\n")

    def next(self, seconds: float) -> dict[str, Any] | None:
        """What it says next; None where it says nothing for so long, or has ended."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        if line is None:
            self.ended = str(died(self._process.wait()))
            return None
        return dict(json.loads(line))


def _settings(environment: Iterable[str]) -> list[str]:
    return [name for name in environment if name.startswith(PREFIX)]
