"""Record the suite's spaces on the devices at hand: `python -m calibration record [KERNEL | KERNEL/CASE …] [--minutes M]`.

Every workload becomes a trace, `<kernel>.<case>.<hardware>.jsonl.gz`: up to so many configs of all variants, an even
sample of a larger space, with the spread of repeats, the device's clock and temperature, versions, and the kernels'
sources. The first case of every kernel comes first, then the second of every kernel, and so on, so that a short time
limit is spent on what is worth most. Each GPU records by itself, with its part of the cores to compile on; on a machine
without one, the C++ kernels are recorded on the CPU.

`record PROGRAM.py … [-- ARGUMENTS]` records other people's kernels: it runs programs that call them, each as
`python PROGRAM.py ARGUMENTS` would, several at once where there are several GPUs. Whatever class a kernel's tuner is of, the
first launch of each key measures the whole list, a minute at most, and writes
`packages/<package>/<kernel>.<key>.<hardware>.jsonl.gz`: where the kernel comes from, how it was called and what each config
took, without a line of its source. `--untuned` does the same for kernels without a tuner, over warps and stages. Processes
that a program starts are not reached. A GPU that is named twice in `--devices` has two programs at a time: while one
compiles, the other is timed.

Each outcome is kept at once, so that a recording that was stopped goes on from there when it is run again on the same
device. What another device has begun is begun anew: a trace never mixes two.

`--ray ADDRESS` records on every GPU of a Ray cluster: each workload once for each product. Traces come here after every
round; what is not finished stays in the node's folder `--work`.

`--corpus small` records the kernels of a page each instead, into the folder `small` beside the suite's traces: called as
users call them, all configs of their short lists, a few samples of each.

`--describe` records nothing: it writes into existing traces what can be told of their configs without a device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from kernel_suite import Kernel

from forecast_autotune.errors import AutotuneError, InvalidInputError
from forecast_autotune.processes.machine import usable_cores

from ..command import verb_parser
from ..paths import CORPORA
from .describe import DescribeReport, describe_traces
from .worker import Status, Task, recordable

if TYPE_CHECKING:
    from .program_worker import ProgramTask

GRACE_S = 90.0  # after its time, a process may end what it has begun, a compile of a minute included
ATTEMPTS = 6  # of one workload, each in a new process that goes on behind the config which ended the one before
STARTING_S = 20.0  # before the end, nothing is begun any more


class Device:
    """A device and the process that records on it, on these cores; `command` starts one, given the device.

    A process that dies or hangs is started again, and goes on with what its predecessor has kept.
    """

    def __init__(
        self,
        name: str,
        cores: Sequence[int],
        command: Sequence[str] = (sys.executable, "-m", "calibration.record.worker"),
        *,
        patience_s: float = math.inf,
    ) -> None:
        self.name = name
        self._patience_s = patience_s  # between two lines of the process; by default until its time is up
        self._cores = cores
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._lock = threading.Lock()
        self._closed = False

    def record(self, task: Task | ProgramTask, tell: Any) -> Status:
        """Record one workload; `tell` is called with the status after each round."""
        last = Status(kernel=task.kernel, case=task.case, done=True)
        for _ in range(ATTEMPTS):
            with self._lock:
                if self._closed:
                    return replace(last, done=True, problem="stopped")
                tasks = self._started()
            with contextlib.suppress(OSError, ValueError):  # it has ended: its last words follow
                tasks.write(json.dumps(asdict(task)) + "\n")
            while (line := self._next_line(task)) is not None:
                last = Status(**json.loads(line))
                if last.done:
                    break
                tell(self.name, last)
            if line is not None and not last.lost:
                return last
            ended = self.stop()
            if line is None:
                last = replace(last, done=True, problem=f"the process that recorded it ended ({ended})")
            if time.time() > task.until:
                break
        return last

    def close(self) -> None:
        """End the process, and start no other, whoever is recording."""
        with self._lock:
            self._closed = True
            self.stop()

    def stop(self) -> str:
        """End the process; how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "never started"
        process.kill()
        with process:  # closes its pipes
            return f"exit status {process.wait()}"

    def _started(self) -> IO[str]:
        """Where a running process reads its tasks; it is started if there is none."""
        if self._process is not None and self._process.stdin is not None and self._process.poll() is None:
            return self._process.stdin
        environment = {n: v for n, v in os.environ.items() if not n.startswith("FORECAST_AUTOTUNE_")}
        # Not isolated: this process is one that may die.
        environment.update(PYTHONUNBUFFERED="1", FORECAST_AUTOTUNE_ISOLATE="0", OMP_NUM_THREADS=str(len(self._cores)))
        if self.name != "cpu":
            number = int(self.name.partition(":")[2])
            visible = [v.strip() for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v.strip()]
            environment["CUDA_VISIBLE_DEVICES"] = visible[number] if visible else str(number)
        self._lines = queue.Queue()
        process = self._process = subprocess.Popen(
            [*self._command, "cpu" if self.name == "cpu" else "cuda:0"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment,
        )  # fmt: skip
        threading.Thread(target=_pump, args=(process.stdout, self._lines), daemon=True).start()
        with contextlib.suppress(OSError):  # it has ended already
            os.sched_setaffinity(process.pid, self._cores)
        return cast("IO[str]", process.stdin)

    def _next_line(self, task: Task | ProgramTask) -> str | None:
        """The next line of the process; None where it has ended or hangs."""
        left_s = max(0.0, task.until - time.time()) + GRACE_S
        try:
            return self._lines.get(timeout=min(left_s, self._patience_s))
        except queue.Empty:
            return None


def _pump(lines: Iterable[str], into: queue.Queue[str | None]) -> None:
    for line in lines:
        into.put(line)
    into.put(None)


class Plan:
    """The workloads still to be recorded, handed to devices: most valuable first, a kernel's own device before others."""

    def __init__(self, workloads: Sequence[tuple[str, str]]) -> None:
        self._left = list(workloads)
        self._whose: dict[str, str] = {}
        self._lock = threading.Lock()

    def next(self, device: str) -> tuple[str, str] | None:
        """What a device should record now: a kernel it has compiled already, or one that nobody has."""
        with self._lock:
            free = (w for w in self._left if self._whose.setdefault(w[0], device) == device)
            workload = next(free, self._left[0] if self._left else None)
            if workload is not None:
                self._left.remove(workload)
            return workload


def workloads(asked: Sequence[str], kind: str, corpus: str = "suite") -> list[tuple[str, str]]:
    """Kernels and cases by name, the first case of every kernel before the second of any.

    Raises:
        InvalidInputError: no kernel or case of that name can be recorded on this kind of device.
    """
    known = recordable(kind, corpus)
    if not known:
        raise InvalidInputError(f"no kernel of the corpus {corpus} can be recorded on {kind}: it needs a GPU")
    wanted: dict[str, list[str]] = {}
    for word in asked or known:
        name, _, case = word.partition("/")
        if name not in known:
            raise InvalidInputError(f"no kernel {name!r} can be recorded on {kind}: there are {', '.join(known)}")
        cases = [c.name for c in known[name].cases]
        if case and case not in cases:
            raise InvalidInputError(f"{name} has no case {case!r}: it has {', '.join(cases)}")
        wanted.setdefault(name, []).extend([case] if case else cases)
    ranked = [(i, name, case) for name, cases in wanted.items() for i, case in enumerate(dict.fromkeys(cases))]
    return [(name, case) for _, name, case in sorted(ranked, key=lambda each: each[0])]


def devices(asked: str) -> list[str]:
    """The devices to record on: those named, or every GPU, or the CPU where there is none.

    Raises:
        InvalidInputError: one of them is not there.
    """
    import torch

    there = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    named = [name.strip() for name in asked.split(",") if name.strip()] or there or ["cpu"]
    for name in named:
        if name not in (*there, "cpu"):
            raise InvalidInputError(f"there is no device {name!r} here: there are {', '.join([*there, 'cpu'])}")
    return named


def record(given: argparse.Namespace) -> list[Status]:
    """Record everything asked for, or as much as there is time for; what became of each workload."""
    names = devices(given.devices)
    kind = names[0].partition(":")[0]
    todo = workloads(given.workloads, kind, given.corpus)
    until = time.time() + 60 * given.minutes
    plan, results = Plan(todo), list[Status]()
    cores = sorted(os.sched_getaffinity(0))[: usable_cores()]
    each = max(1, len(cores) // len(names))
    working = [Device(name, cores[i * each : (i + 1) * each] or cores) for i, name in enumerate(names)]
    share_s = 60 * given.minutes * len(names) / max(1, len(todo))

    def work(device: Device) -> None:
        while time.time() < until - STARTING_S and (workload := plan.next(device.name)) is not None:
            task = Task(
                kernel=workload[0], case=workload[1], configs=given.configs,
                # One workload takes no more than a few times its share, however slow it is to compile.
                until=min(until, time.time() + max(60.0, 4 * share_s)),
                traces=str(given.to), stores=str(given.work), corpus=given.corpus,
            )  # fmt: skip
            try:
                ended = device.record(task, show)
            except Exception as err:  # no process can be started, or it says what nobody understands
                device.stop()
                problem = f"{type(err).__name__}: {err}"
                ended = Status(kernel=task.kernel, case=task.case, done=True, problem=problem)
            if isinstance(recordable(kind, given.corpus)[task.kernel], Kernel):
                device.stop()  # of extension modules, a process can load about a thousand
            results.append(ended)
            show(device.name, ended)

    threads = [threading.Thread(target=work, args=(device,), daemon=True) for device in working]
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
    return results


def show(device: str, status: Status) -> None:
    """One line on stderr: how far a workload has come."""
    best = "" if math.isnan(status.best_us) else f", best {status.best_us:.1f} us"
    gain = status.default_us / status.best_us
    best += "" if math.isnan(gain) else f", {gain:.2f}x the default"
    again = f", {status.repeats} again: {status.repeat_error:.1%} apart" if status.repeats else ""
    end = f": {status.problem}" if status.problem else best + again
    far = f"{status.tried} of {status.of} tried, {status.failed} failed"
    print(
        f"{time.strftime('%H:%M:%S')} {device} {status.kernel}/{status.case}: {far}{end}", file=sys.stderr, flush=True
    )


def describe(given: argparse.Namespace) -> int:
    """Describe what is in the traces, and print how much that is."""
    results = describe_traces(given.to, show_described, packages=given.corpus == "packages")
    if given.json:
        print(json.dumps([asdict(t) for t in results], indent=1))
    else:
        done = [t for t in results if not t.left]
        configs, described = sum(t.configs for t in done), sum(t.described for t in done)
        print(
            f"{described} of {configs} configs described in {len(done)} traces, {len(results) - len(done)} left as they are"
        )
    return 0


def show_described(result: DescribeReport) -> None:
    """One line on stderr: what became of a trace."""
    far = f"left as it is: {result.left}" if result.left else f"{result.described} of {result.configs} described"
    print(f"{result.trace}: {far}", file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Record, then print what there is."""
    parser = verb_parser("record", __doc__)
    parser.add_argument(
        "workloads", nargs="*", metavar="KERNEL[/CASE] | PROGRAM.py", help="default: all kernels of the corpus"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="when to stop; default 8")
    parser.add_argument("--configs", type=int, default=256, help="at most so many for each workload; default 256")
    parser.add_argument(
        "--corpus", choices=tuple(CORPORA), default="suite",
        help="which kernels: of the suite (the default), the small ones, whose lists are always measured in whole, or, to "
        "describe again, those of packages",
    )  # fmt: skip
    parser.add_argument("--to", type=Path, help="folder of the traces; default that of the corpus")
    parser.add_argument("--work", type=Path, default=Path("build/recording"), help="folder of what is not finished")
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="record on every GPU of a Ray cluster: HOST:PORT, auto, or local for this machine's",
    )
    parser.add_argument("--devices", default="", metavar="cuda:0,cuda:1", help="default: every GPU, else the CPU")
    parser.add_argument(
        "--describe", action="store_true",
        help="record nothing: write into the folder's traces what can be told of their configs without a device",
    )  # fmt: skip
    parser.add_argument(
        "--untuned", action="store_true", help="of programs: kernels without a tuner too, over warps and stages"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    words = list(sys.argv[1:] if words is None else words)
    given = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    arguments = words[words.index("--") + 1 :] if "--" in words else []
    scripts = [word for word in given.workloads if word.endswith(".py")]
    try:
        if scripts and scripts != given.workloads:
            raise InvalidInputError("give either programs or kernels; what a program is to be given comes after --")
        if arguments and not scripts:
            raise InvalidInputError("what comes after -- is given to a program: name one")
        if scripts:
            given.corpus = "packages"
        elif given.corpus == "packages" and not given.describe:
            raise InvalidInputError("kernels of packages are recorded by programs that call them: name one")
        given.work = given.work.absolute()
        given.to = (given.to or CORPORA[given.corpus]).absolute()
        if given.describe:
            return describe(given)
        if given.ray is not None and (scripts or given.devices):
            raise InvalidInputError("--ray is for kernels of a corpus, on the devices that the cluster has")
        for folder in (given.work, given.to):
            folder.mkdir(parents=True, exist_ok=True)
        if scripts:
            from .program_devices import record_programs

            return record_programs(given, scripts, arguments)
        if given.ray is None:
            results = record(given)
        else:
            from .ray_devices import record_on_ray

            with contextlib.redirect_stdout(sys.stderr):  # Ray prints what befalls its nodes
                results = record_on_ray(given, show)
    except (AutotuneError, OSError) as err:
        print(f"record: {err}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps([{n: v for n, v in asdict(t).items() if v == v} for t in results], indent=1))
    else:
        ran = [t for t in results if not t.problem]
        tried = sum(t.tried for t in results)
        print(f"{len(ran)} of {len(results)} workloads recorded, {tried} configs tried, in {given.to}")
    return 0 if all(not t.problem for t in results) else 1
