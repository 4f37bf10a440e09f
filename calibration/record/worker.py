"""One device's part of recording: takes workloads on stdin, tunes each exhaustively, writes its trace.

A process of its own for each device (`devices` starts them): a candidate that takes the device's context with
it ends this process and no other. One JSON object a line comes in, a `Task`; what goes out tells how far it has come.

A workload is measured in rounds, each a longer beginning of one seeded sample, so that whatever there is time for is a
fair part of every variant. Each round goes through the front door with budget `all`, and so through the store, which
keeps every outcome at once: a recording that was stopped, or a process that was killed, goes on from there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import platform
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from kernel_suite import Kernel, SuiteKernel, cpp_kernels, cuda_kernels, small_kernels, suite_kernels

from forecast_autotune.core.config import Config
from forecast_autotune.core.digest import digest
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Program, Work
from forecast_autotune.errors import InvalidInputError, TuningWarning
from forecast_autotune.evaluation.traces import read_recorded, read_trace, write_trace
from forecast_autotune.language.sources import sections_of
from forecast_autotune.measure.probe import detect_hardware, device_identity

from .measuring import LETHAL, Silent, lethal_in, noting_in, rounded, shortened
from .single_kernel import SingleKernel

KNOB = "variant"
SEED = 11
FIRST_ROUND = 32  # configs; each further round makes it twice as many
AGAIN = 0.1  # share of the configs that ran which a second pass times once more
MIN_AGAIN = 3
CHECKS_OF = "calibration"  # module that stored outcomes name their check by: the same wherever this file lies
MIN_S = 2.0  # with less time left than this, no round is begun

_CODE = re.compile(r"def |@|\w+ = [-\d]")  # sections that every version wrote alike
_REMARKS = re.compile(r"\A(?:#.*\n)+")  # above them

Recordable = Kernel | SuiteKernel | SingleKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A workload to record: up to so many configs, until so late (seconds as `time.time` counts them)."""

    kernel: str
    case: str
    configs: int
    until: float
    traces: str  # the folder
    stores: str  # the folder of what was measured and not yet written, by device
    corpus: str = "suite"

    @property
    def name(self) -> str:
        return f"{self.kernel}/{self.case}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How far a workload has come, after each round and at its end."""

    kernel: str
    case: str
    done: bool
    tried: int = 0
    of: int = 0  # configs there are, or were asked for if that is fewer
    failed: int = 0
    best: str = ""
    best_us: float = math.nan
    default_us: float = math.nan
    repeats: int = 0  # configs of the second pass
    repeat_error: float = math.nan  # of these, by how much the median of times differs in the middle
    problem: str = ""
    lost: bool = False  # the device's context is gone: this process ends and another goes on


def recordable(kind: str, corpus: str = "suite") -> dict[str, Recordable]:
    """What can be recorded on a kind of device, `cuda` or `cpu`, by name: the `suite`, or the `small` kernels."""
    listed: list[Recordable]
    if corpus == "small":
        listed = [SingleKernel(kernel) for kernel in small_kernels()] if kind == "cuda" else []
    else:
        listed = [*suite_kernels(), *cuda_kernels()] if kind == "cuda" else list(cpp_kernels())
    return {kernel.name: kernel for kernel in listed}


# What is measured --------------------------------------------------------------------------------------------------------


def has_code_of(recorded: Program, now: Program) -> bool:
    """Whether a recorded program has every function and constant of today's, unchanged.

    Digests cannot say: over time, a program's text has held more or less of what surrounds its functions.
    """
    there, needed = (
        {_REMARKS.sub("", section.text) for section in sections_of(program, None)} for program in (recorded, now)
    )
    return all(part in there for part in needed if _CODE.match(part))


def groups(kernel: Recordable) -> list[list[Config]]:
    """A kernel's configs by variant, each variant's default first, the rest in a seeded order of their own.

    A short list, which is always recorded in whole, stays as it was written.
    """
    if isinstance(kernel, SingleKernel):
        return [list(kernel.space)]
    if isinstance(kernel, SuiteKernel):
        spaces = [list(variant.space) for variant in kernel.variants]
    else:
        spaces = list(kernel.variants.values())
    draw = random.Random(f"{SEED} {kernel.name}")
    return [[first, *draw.sample(rest, len(rest))] for first, *rest in spaces]


def variant_place(kernel: SuiteKernel, joint: Config) -> int:
    """Which variant of a kernel a joint config is of."""
    return [v.launch.__name__ for v in kernel.variants].index(str(joint[KNOB]))


def beginning(whole: Sequence[Sequence[Config]], count: int) -> list[list[Config]]:
    """The first `count` configs when the groups take turns, still by group; a default of each at least."""
    turns = [(i, config) for row in itertools.zip_longest(*whole) for i, config in enumerate(row) if config is not None]
    chosen = turns[: max(count, len(whole))]
    return [[config for j, config in chosen if j == i] for i in range(len(whole))]


def front_door(kernel: Recordable, chosen: Sequence[Sequence[Config]], budget: str) -> Callable[..., Any]:
    """The kernel behind its front door, to choose among these configs alone."""
    if isinstance(kernel, SingleKernel):
        return kernel.front_door(*chosen, budget=budget)
    if isinstance(kernel, SuiteKernel):
        variants = tuple(
            replace(variant, space=Space(configs, roles=variant.space.roles))
            for variant, configs in zip(kernel.variants, chosen, strict=True)
        )
        check = within([(output.rtol, output.atol) for output in kernel.outputs])
        tuned: Callable[..., Any] = replace(kernel, variants=variants).tuned(
            budget=budget, check=check, surrogate=Silent()
        )
        return tuned
    space = Space(itertools.chain(*chosen), default=kernel.space.default, roles=kernel.space.roles)
    return kernel.tuned(space=space, budget=budget, check=within([(kernel.rtol, kernel.atol)]))


def within(tolerances: Sequence[tuple[float, float]]) -> Callable[[Sequence[Any], Sequence[Any]], bool]:
    """A check that each output is as near the default's as two right results can be: twice the tolerance of one."""

    def within_tolerance(got: Sequence[Any], expected: Sequence[Any]) -> bool:
        import torch

        def wide(tensor: Any) -> Any:
            return tensor.float() if tensor.element_size() == 1 else tensor  # float8, of which torch compares none

        return all(
            torch.allclose(wide(a), wide(b), rtol=2 * rtol, atol=2 * atol, equal_nan=True)
            for a, b, (rtol, atol) in zip(got, expected, tolerances, strict=True)
        )

    # What an earlier run kept under other tolerances is not what this one would find.
    tolerance_text = " ".join(f"{rtol:g}+{atol:g}" for rtol, atol in tolerances)
    within_tolerance.__module__, within_tolerance.__qualname__ = CHECKS_OF, f"within {tolerance_text}"
    return within_tolerance


def wrong(kernel: Recordable, got: Sequence[Any], expected: Sequence[Any]) -> str:
    """Which output of what was decided is not what the reference says; empty if all are."""
    import torch

    named = kernel.outputs if isinstance(kernel, SuiteKernel) else [kernel] * len(expected)
    for output, a, b in zip(named, got, expected, strict=True):
        a, b = (t.float() if t.element_size() == 1 else t for t in (a, b))
        if not torch.allclose(a, b, rtol=output.rtol, atol=output.atol, equal_nan=True):
            return f"{output.name} is off by {float((a.float() - b.float()).abs().max()):.3g}"
    return ""


# One workload ------------------------------------------------------------------------------------------------------------


class Recorder:
    """Records one workload on one device."""

    def __init__(self, task: Task, device: str) -> None:
        self.task = task
        self.device = device
        self.kernel = recordable(device.partition(":")[0], task.corpus)[task.kernel]
        self.case = next(case for case in self.kernel.cases if case.name == task.case)
        self.groups = groups(self.kernel)
        self.whole = sum(map(len, self.groups))
        self.machine = machine_of(device)
        self.store = Path(task.stores) / self.machine
        self.trying = self.store / f"{task.kernel}.{task.case}.trying"
        self.lethal: frozenset[Config] = frozenset()  # left out, since they end the process
        self.kept = 0  # configs of the trace on file, if it is of the same source
        self.second: dict[Config, Measurement] = {}
        self.agrees: bool | str = "not compared"
        self.work = Work(flops=0.0, bytes=0.0)
        self.blank: list[Any] = []  # the outputs as they are before a launch

    def record(self) -> Iterator[Status]:
        """Measure round by round; a status after each. The trace on file is as new as the last status.

        Raises:
            torch.OutOfMemoryError: the device has no room for the workload.
        """
        status = self.begun_elsewhere()
        if status is not None:
            yield status
            return
        self.leave_out_lethal()
        args = self.inputs()
        self.work = self.kernel.work(*args)
        self.blank = [out.clone() for out in self.outs(args)]
        expected = self.expected(args)
        count = min(FIRST_ROUND, self.task.configs)
        while self.left_s > MIN_S:
            tuned = self.tune(count, self.store, args)
            if not (problem := wrong(self.kernel, self.outs(args), expected) if expected else ""):
                self.agrees = bool(expected) or "not compared"
            recording = self.recording_of(tuned, args)
            status = self.written(recording, done=False, problem=problem)
            if count < min(self.task.configs, self.whole) and not status.problem:
                yield status
                count = min(2 * count, self.task.configs)
                continue
            if not status.problem and self.left_s > MIN_S and not isinstance(self.kernel, SingleKernel):
                yield status
                self.measure_again(recording, args)
                status = self.written(recording, done=True)
            yield replace(status, done=True)
            return
        yield replace(
            status or Status(kernel=self.task.kernel, case=self.task.case, done=True, problem="no time was left"),
            done=True,
        )

    @property
    def left_s(self) -> float:
        return self.task.until - time.time()

    @property
    def path(self) -> Path:
        return Path(self.task.traces)

    def inputs(self) -> tuple[Any, ...]:
        """The arguments of one call; a kernel for the CPU alone asks for no device."""
        where = () if isinstance(self.kernel, Kernel) and self.device == "cpu" else (self.device,)
        return tuple(self.kernel.make_inputs(self.case, SEED, *where))

    def outs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs among the arguments."""
        if isinstance(self.kernel, SingleKernel):
            return self.kernel.outs(*args)
        return args[-len(self.kernel.outputs) if isinstance(self.kernel, SuiteKernel) else -1 :]

    def expected(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the outputs should hold; empty where memory is short for the reference."""
        import torch

        try:
            outs = self.kernel.reference(*args)
        except torch.OutOfMemoryError:
            return ()
        return outs if isinstance(outs, tuple) else (outs,)

    def tune(
        self, count: int, store: Path, args: tuple[Any, ...], *, only: frozenset[tuple[int, Config]] | None = None
    ) -> Any:
        """Measure so many configs through the front door; with `only`, these alone beside the defaults.

        `only` names a config with the place of its variant, since two variants may have equal configs.
        """
        chosen = beginning(self.groups, count)
        if only is not None:
            chosen = [[first, *(c for c in rest if (i, c) in only)] for i, (first, *rest) in enumerate(chosen)]
        os.environ["FORECAST_AUTOTUNE_DIR"] = str(store)
        if isinstance(self.kernel, Kernel):  # whose front door takes no surrogate in code: the quickest there is
            os.environ["FORECAST_AUTOTUNE_SURROGATE"] = "roofline"
        else:
            os.environ.pop("FORECAST_AUTOTUNE_SURROGATE", None)
        for out, blank in zip(self.outs(args), self.blank, strict=True):
            # So that what the default writes is seen, though an earlier round has left the answer there
            out.copy_(blank)
        tuned = front_door(self.kernel, chosen, f"all,{max(1, int(self.left_s))}s")
        with noting_in(self.trying):
            tuned(*args)
        return tuned.tuned  # type: ignore[attr-defined]

    def recording_of(self, tuned: Any, args: tuple[Any, ...]) -> Recording:
        """What is known of every config of the sample, in its order."""
        job, outcomes = tuned.job(args), tuned.outcomes(args)
        kept = shortened if isinstance(self.kernel, SingleKernel) else rounded
        described = dict(zip(job.space, job.static_features, strict=True)) if job.static_features else {}
        return Recording(
            workload=job.workload,
            hardware=job.hardware,
            toolchain=job.toolchain,
            default=job.space.default,
            outcomes={c: kept(outcomes[c]) for c in job.space if c in outcomes} | dict.fromkeys(self.lethal, LETHAL),
            static_features={c: d for c, d in described.items() if d},
        )

    def leave_out_lethal(self) -> None:
        """Leave out the configs that end the process which measures them."""
        self.lethal = lethal_in(self.trying)
        own = {(self._place(c), self._own(c)) for c in self.lethal}
        left = [[c for c in group if (i, c) not in own] for i, group in enumerate(self.groups)]
        self.groups = [some or group for some, group in zip(left, self.groups, strict=True)]

    def measure_again(self, first: Recording, args: tuple[Any, ...]) -> None:
        """Time a random tenth of what ran once more, nothing known of the first time."""
        ran = [c for c, o in first.outcomes.items() if isinstance(o, Measurement)]
        draw = random.Random(f"{SEED} {self.task.name}").sample(
            ran, min(len(ran), max(MIN_AGAIN, math.ceil(AGAIN * len(ran))))
        )
        own = frozenset((self._place(c), self._own(c)) for c in draw)
        tuned = self.tune(self.task.configs, self.store.with_name(f"{self.machine}-again"), args, only=own)
        again = self.recording_of(tuned, args).outcomes
        self.second = {c: o for c in ran if isinstance(o := again.get(c), Measurement)}

    def _own(self, joint: Config) -> Config:
        """A variant's own config in a joint one."""
        if isinstance(self.kernel, SingleKernel):
            return Config({name: joint[name] for name in self.kernel.space.knobs})
        if isinstance(self.kernel, Kernel):
            return joint
        variant = self.kernel.variants[self._place(joint)]
        return Config({name: joint[name] for name in variant.space.knobs})

    def _place(self, joint: Config) -> int:
        """Which variant a joint config is of."""
        if isinstance(self.kernel, SuiteKernel):
            return variant_place(self.kernel, joint)
        if isinstance(self.kernel, SingleKernel):
            return 0
        return next(i for i, configs in enumerate(self.kernel.variants.values()) if joint in configs)

    def written(self, recording: Recording, *, done: bool, problem: str = "") -> Status:
        """Write the trace, if any config ran and the one on file is not longer; the status."""
        ran = {c: o for c, o in recording.outcomes.items() if isinstance(o, Measurement)}
        if not ran:
            failures = [str(o.message) for o in recording.outcomes.values() if not isinstance(o, Measurement)]
            problem = problem or f"no config ran: {failures[0] if failures else 'none was tried'}"
        elif not problem and len(recording.outcomes) >= self.kept:
            self.path.mkdir(parents=True, exist_ok=True)
            write_trace(recording, self.path / trace_name(self.task, recording.hardware), recorded=self.recorded())
        best = min(ran, key=lambda c: ran[c].median_us, default=None)
        errors = sorted(abs(math.log(again.median_us / ran[c].median_us)) for c, again in self.second.items())
        return Status(
            kernel=self.task.kernel,
            case=self.task.case,
            done=done,
            tried=len(recording.outcomes),
            of=min(self.task.configs, self.whole),
            failed=len(recording.outcomes) - len(ran),
            best="" if best is None else str(best),
            best_us=math.nan if best is None else ran[best].median_us,
            default_us=ran[recording.default].median_us if recording.default in ran else math.nan,
            repeats=len(errors),
            repeat_error=errors[len(errors) // 2] if errors else math.nan,
            problem=problem,
        )

    def recorded(self) -> dict[str, object]:
        """The trace's field `recorded`: how it was made."""
        return {
            "kernel": self.task.kernel,
            "case": self.task.case,
            **({"corpus": self.task.corpus} if self.task.corpus != "suite" else {}),
            "device": self.machine,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "space": self.whole,
            "seed": SEED,
            "agrees_with_reference": self.agrees,
            "flops": self.work.flops,
            "bytes": self.work.bytes,
            "second_pass": [
                {"config": dict(c.knobs), "samples_us": list(m.samples_us)} for c, m in self.second.items()
            ],
        }

    def begun_elsewhere(self) -> Status | None:
        """The status of a trace on file, if another device of this kind recorded all that is asked for.

        One that is shorter, of older source, or torn is begun again: a trace never mixes two devices.
        """
        path = self.path / trace_name(self.task, detect_hardware(self.device))
        if not path.exists():
            return None
        try:
            device, recording = read_recorded(path).get("device"), read_trace(path)
        except InvalidInputError as err:
            print(f"{err}; it is begun anew", file=sys.stderr)
            return None
        now = front_door(self.kernel, beginning(self.groups, 1), "0").tuned.program  # type: ignore[attr-defined]
        if not has_code_of(recording.workload.program, now):
            return None
        self.kept = len(recording.outcomes)
        if device in (None, self.machine) or self.kept < min(self.task.configs, self.whole):
            return None
        return self.written_before(recording)

    def written_before(self, recording: Recording) -> Status:
        ran = {c: o for c, o in recording.outcomes.items() if isinstance(o, Measurement)}
        best = min(ran, key=lambda c: ran[c].median_us)
        return Status(
            kernel=self.task.kernel,
            case=self.task.case,
            done=True,
            tried=len(recording.outcomes),
            of=min(self.task.configs, self.whole),
            failed=len(recording.outcomes) - len(ran),
            best=str(best),
            best_us=ran[best].median_us,
            default_us=ran[recording.default].median_us if recording.default in ran else math.nan,
        )


def trace_name(task: Task, hardware: Hardware) -> str:
    """`<kernel>.<case>.<hardware>.jsonl.gz`"""
    return f"{task.kernel}.{task.case}.{'_'.join(hardware.name.split())}.jsonl.gz"


def machine_of(device: str) -> str:
    """A name that no other device has, in traces and among stores.

    Where the device has no identity of its own, the name says which of its host's devices it is.
    """
    which = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return digest(device_identity(device) or f"{device} of {which} of {platform.node()}")[:12]


def serve(device: str) -> None:
    """Record what is asked for on stdin, one workload after the other."""
    import torch

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what kernels and compilers print must not mix with answers
    for line in sys.stdin:
        task = Task(**json.loads(line))
        # The caller is not spared here: what was not tuned was not recorded. Of a single kernel the outcomes tell.
        warnings.simplefilter("default" if task.corpus == "small" else "error", TuningWarning)
        last = Status(kernel=task.kernel, case=task.case, done=True)
        try:
            with alone(Path(task.stores), device):
                for last in Recorder(task, device).record():
                    print(json.dumps(asdict(last)), file=answers)
        except Exception as err:
            short = "memory is short: " if isinstance(err, torch.OutOfMemoryError) else ""
            problem = f"{short}{type(err).__name__}: {err}".partition("\n")[0]
            lost = is_lost(device)
            print(json.dumps(asdict(replace(last, done=True, problem=problem, lost=lost))), file=answers)
            if lost:
                return
        if device != "cpu":
            torch.cuda.empty_cache()


@contextlib.contextmanager
def alone(stores: Path, device: str) -> Iterator[None]:
    """Keep other recordings off a device: two that time on it at once disturb each other.

    Raises:
        InvalidInputError: there is one already.
    """
    stores.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(stores / f"{machine_of(device)}.lock", timeout=0):
            yield
    except Timeout:
        raise InvalidInputError(f"another process is recording on {device} into {stores}: wait for it") from None


def is_lost(device: str) -> bool:
    """Whether nothing can be launched in this process any more."""
    import torch

    try:
        if device != "cpu":
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    serve(sys.argv[1])
