"""Record other people's kernels on the devices at hand: programs that launch them, shared among the devices."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from forecast_autotune.errors import InvalidInputError
from forecast_autotune.processes.machine import usable_cores

from ..paths import REPOSITORY
from .devices import STARTING_S, Device, devices, show
from .program_worker import TIME_IS_UP, ProgramTask
from .worker import Status

COMMAND = (sys.executable, "-m", "calibration.record.program_worker")
# A key takes a minute at most; an import, or data that a program makes between two keys, may take longer
SILENT_S = 240.0
MIN_SHARE_S = 60.0  # of one program, of which imports may take a third


class Programs:
    """The programs still to be run, each for its share of the time, then once more those that had not come to their end.

    When all have begun, devices that are free help where one runs: keys are shared.
    """

    def __init__(self, scripts: Sequence[str]) -> None:
        self._left = list(scripts)
        self._running: dict[str, set[str]] = {}  # devices by program
        self._ended: set[str] = set()
        self._lock = threading.Lock()

    def next(self, device: str) -> str | None:
        """What a device should run now; None where nothing is left to do."""
        with self._lock:
            if self._left:
                script = self._left.pop(0)
            else:
                others = {s: d for s, d in self._running.items() if s not in self._ended and device not in d}
                if not others:
                    return None
                script = min(others, key=lambda s: len(others[s]))
            self._running.setdefault(script, set()).add(device)
            return script

    def end(self, script: str) -> None:
        """It ran to its end somewhere: nobody need help any more."""
        with self._lock:
            self._ended.add(script)
            self._left = [left for left in self._left if left != script]

    def again(self, script: str, device: str) -> None:
        """Its share of the time was up: it goes on when all others have had theirs."""
        with self._lock:
            self._running[script].discard(device)
            if script not in self._ended and script not in self._left:
                self._left.append(script)


def record_programs(given: argparse.Namespace, scripts: Sequence[str], arguments: Sequence[str]) -> int:
    """Run programs and record what they launch; prints what there is, and returns the exit status.

    Raises:
        InvalidInputError: a program or a device is not there.
    """
    for script in scripts:
        if not Path(script).is_file():
            raise InvalidInputError(f"there is no program {script!r}")
    names = devices(given.devices)
    if names == ["cpu"] and not given.devices:
        raise InvalidInputError("there is no GPU here: what programs launch is recorded on one")
    before = set(given.to.rglob("*.jsonl.gz"))
    until = time.time() + 60 * given.minutes
    programs, results = Programs(scripts), dict[str, Status]()
    cores = sorted(os.sched_getaffinity(0))[: usable_cores()]
    each = max(1, len(cores) // len(names))
    share_s = max(MIN_SHARE_S, 2 * 60 * given.minutes * len(names) / len(scripts))
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    working = [
        Device(name, cores[i * each : (i + 1) * each] or cores, COMMAND, patience_s=SILENT_S)
        for i, name in enumerate(names)
    ]

    def work(number: int, device: Device) -> None:
        name = f"{device.name} {number}"
        while time.time() < until - STARTING_S and (script := programs.next(name)) is not None:
            task = ProgramTask(
                script=str(Path(script).absolute()), arguments=tuple(arguments),
                until=min(until, time.time() + share_s), traces=str(given.to), stores=str(given.work),
                untuned=given.untuned,
            )  # fmt: skip
            try:
                ended = device.record(task, show)
            except Exception as err:  # no process can be started, or it says what nobody understands
                problem = f"{type(err).__name__}: {err}"
                ended = Status(kernel=task.kernel, case=task.case, done=True, problem=problem)
            device.stop()  # each program has a process of its own
            if ended.problem == TIME_IS_UP:
                programs.again(script, name)
            else:
                programs.end(script)
            known = results.get(script)
            if known is None or known.problem:
                results[script] = ended
            show_program(device.name, ended)

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate(working)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        print("stopped: run it again to go on from here", file=sys.stderr)
    finally:
        for device in working:
            device.close()
    for script in scripts:
        missing = Status(kernel=Path(script).stem, case="program", done=True, problem="no time was left")
        results.setdefault(script, missing)
    new = set(given.to.rglob("*.jsonl.gz")) - before
    if given.json:
        print(json.dumps([{n: v for n, v in asdict(t).items() if v == v} for t in results.values()], indent=1))
    else:
        ran = sum(not status.problem for status in results.values())
        print(f"{ran} of {len(scripts)} programs ran to their end, {len(new)} new traces in {given.to}")
    return 0 if all(not status.problem for status in results.values()) else 1


def show_program(device: str, status: Status) -> None:
    """One line on stderr: how a program ended."""
    end = f": {status.problem}" if status.problem else ""
    line = f"{time.strftime('%H:%M:%S')} {device} {status.kernel}: {status.tried} keys{end}"
    print(line, file=sys.stderr, flush=True)
