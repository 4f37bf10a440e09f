"""Run one program, and record every autotuned kernel that it launches: takes a `ProgramTask` on stdin, answers as `worker`.

The program runs in this process, as `python SCRIPT` would run it. The first launch of each key measures all configs of its
list through our front door, whoever wrote the tuner, and writes a trace. What was measured lies in the store at once: a
recording that was stopped, or whose process died, runs the program again and goes on with the keys that are missing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from forecast_autotune.core.config import Config
from forecast_autotune.core.digest import digest
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.workload import Program
from forecast_autotune.errors import AutotuneError, InvalidInputError
from forecast_autotune.evaluation.traces import read_trace, write_trace

from .kernel_calls import Origin, encode_call, origin_of
from .measuring import TIMED_MS, Silent, lethal_in, noting_in, shortened
from .tuner_exchange import launches_through
from .worker import Status, is_lost, machine_of

KEY_S = 60.0  # what one key may take; a list of 100 configs is through in less
MIN_S = 2.0  # with less time left than this, no key is begun
UNTUNED_KEYS = 8  # of one kernel without a tuner: the launches of a model's layers are alike
TIME_IS_UP = "the time was up before its end"
LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # what a config sets, and a call may
UNTUNED_WARPS, UNTUNED_STAGES = (1, 2, 4, 8, 16), (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTask:
    """A program to run, until so late (seconds as `time.time` counts them)."""

    script: str
    arguments: Sequence[str] = ()
    until: float
    traces: str  # the folder
    stores: str  # the folder of what was measured
    untuned: bool = False  # record kernels without a tuner too, over warps and stages

    @property
    def kernel(self) -> str:
        """Its name in messages."""
        return Path(self.script).stem

    @property
    def case(self) -> str:
        """What stands for it beside the keys that it launches."""
        return "program"


class TimeIsUp(BaseException):
    """Nothing further is to be recorded; no program catches it."""


class NotRecordedError(RuntimeError):
    """A launch that brought an earlier process down is not made again."""


@dataclass(slots=True)
class _Kernel:
    """A kernel under a tuner of ours, and the keys that were met."""

    tuner: Any  # None where the program's kernel has none
    configs: Sequence[Any]  # the list of the program's tuner that it was made from
    keys: set[Any] = field(default_factory=set)


class ProgramRecorder:
    """Records the keys that a program launches; `tell` gets a status for each."""

    def __init__(self, task: ProgramTask, device: str, tell: Callable[[Status], None]) -> None:
        self.task = task
        self.machine = machine_of(device)
        self.store = Path(task.stores)
        self.keys = 0  # recorded, or known from before
        self._tell = tell
        self._kernels: dict[int, _Kernel] = {}
        self._kept: list[Any] = []  # tuners by whose identity kernels are known

    # Launches -----------------------------------------------------------------------------------------------------------

    def tuned(self, tuner: Any, launch: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch a kernel that has a tuner, and record its key if that is new."""
        from forecast_autotune.compilers.triton_source import jit_function
        from forecast_autotune.frontends.triton.decision_cache import table_key

        self._check_time()
        if kwargs.get("warmup") or len(tuner.configs) < 2 or jit_function(tuner.fn) is None:
            return launch(*args, **kwargs)
        kernel = self._kernels.get(id(tuner))
        if kernel is None or kernel.configs is not tuner.configs:
            kernel = self._kernels[id(tuner)] = _Kernel(as_ours(tuner), tuner.configs)
            self._kept.append(tuner)
        given = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
        key = table_key(kernel.tuner, {n: v for n, v in given.items() if n in tuner.arg_names})
        new = key not in kernel.keys
        kernel.keys.add(key)
        try:
            result = self._record(kernel.tuner, args, kwargs) if new else kernel.tuner.run(*args, **kwargs)
        except (AutotuneError, TypeError, ValueError) as err:  # what our front door refuses, Triton's may take
            print(f"{kernel.tuner.name} is not recorded: {type(err).__name__}: {err}", file=sys.stderr)
            return launch(*args, **kwargs)
        tuner.best_config = kernel.tuner.best_config  # wrappers of packages read it
        return result

    def untuned(self, kernel: Any, launch: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch a kernel that has none, and record it over warps and stages if its key is new."""
        self._check_time()
        if kwargs.get("warmup"):
            return launch(*args, **kwargs)
        known = self._kernels.get(id(kernel))
        if known is None:
            known = self._kernels[id(kernel)] = _Kernel(None, ())
            self._kept.append(kernel)
        options = {name: kwargs[name] for name in LAUNCH_OPTIONS if name in kwargs}
        rest = {name: value for name, value in kwargs.items() if name not in options}
        named = {**dict(zip(kernel.arg_names, args, strict=False)), **rest}
        key = tuple((n, str(v.dtype), tuple(v.shape)) if hasattr(v, "dtype") else (n, str(v)) for n, v in named.items())
        if key in known.keys or len(known.keys) >= UNTUNED_KEYS:
            return launch(*args, **kwargs)
        known.keys.add(key)
        try:
            return self._record(over_warps_and_stages(kernel, named, options), args, rest, tuned=False)
        except (AutotuneError, TypeError, ValueError) as err:
            print(f"{kernel.__name__} is not recorded: {type(err).__name__}: {err}", file=sys.stderr)
            return launch(*args, **kwargs)

    def _check_time(self) -> None:
        if time.time() > self.task.until - MIN_S:
            raise TimeIsUp

    # One key ------------------------------------------------------------------------------------------------------------

    def _record(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, tuned: bool = True) -> Any:
        """Launch, and measure all configs for it; a call that cannot be tuned is launched all the same."""
        from forecast_autotune.frontends.triton.call import TritonCall
        from forecast_autotune.remote.fleet_store import open_store
        from forecast_autotune.settings import Settings

        candidates = tuner.pruned_configs(args, kwargs)
        if len(candidates) < 2:
            return tuner.run(*args, **kwargs)
        call = TritonCall(tuner.spec, candidates, args, kwargs)
        job = call.job
        trying = self.store / "trying" / f"{job.workload.digest}.jsonl"
        lethal = lethal_in(trying)
        store = open_store(Settings.from_environment())
        default = store.outcomes(job).get(job.space.default)
        if job.space.default in lethal or (isinstance(default, Failure) and default.crashed):
            raise NotRecordedError(f"{tuner.name}: its first config ended an earlier process; it is not launched again")
        seconds = min(self.task.until - time.time(), KEY_S)
        os.environ["FORECAST_AUTOTUNE_BUDGET"] = f"all,{max(1, int(seconds))}s"
        before = len(store.outcomes(job))
        with noting_in(trying, lethal):
            result = tuner.run(*args, **kwargs)
        decision = next(reversed(tuner.decisions.values()), None)
        if decision is not None and not decision.run:
            return result  # another process measures it meanwhile, and writes its trace
        outcomes = {c: o for c, o in store.outcomes(job).items() if c in job.space}
        self.keys += 1
        recording = Recording(
            workload=replace(job.workload, program=replace(job.workload.program, source="")),
            hardware=job.hardware,
            toolchain=job.toolchain,
            default=job.space.default,
            outcomes={c: without_source(shortened(outcomes[c])) for c in job.space if c in outcomes},
            static_features={c: d for c, d in zip(job.space, job.static_features, strict=True) if d},
        )
        status = status_of(recording, of=len(job.space), case=job.workload.digest[:10])
        if status.failed < status.tried and (len(outcomes) > before or len(outcomes) == len(job.space)):
            try:
                self._write(recording, call, job.workload.program, tuned=tuned)
            except (InvalidInputError, OSError) as err:
                status = replace(status, problem=f"no trace was written: {err}")
        elif not status.problem:
            status = replace(status, problem="nothing was measured")
        self._tell(status)
        return result

    def _write(self, recording: Recording, call: Any, program: Program, *, tuned: bool) -> None:
        """Write the trace of a key, if none on file has as many configs."""
        origin = origin_of(call.kernel)
        name = re.sub(r"\W+", "_", recording.workload.program.name.rpartition(".")[2])
        which = digest(program.digest, recording.workload.digest)[:10]
        folder = Path(self.task.traces) / re.sub(r"[^\w.-]+", "_", origin.package or self.task.kernel)
        path = folder / f"{name}.{which}.{'_'.join(recording.hardware.name.split())}.jsonl.gz"
        if path.exists():
            with contextlib.suppress(InvalidInputError):
                if len(read_trace(path).outcomes) >= len(recording.outcomes):
                    return
        folder.mkdir(parents=True, exist_ok=True)
        write_trace(
            recording, path, recorded=self._recorded(call, origin, program, list(recording.outcomes)) | {"tuned": tuned}
        )

    def _recorded(self, call: Any, origin: Origin, program: Program, configs: Sequence[Config]) -> dict[str, object]:
        """The trace's field `recorded`: how it was made, and what describing it again needs."""
        recorded: dict[str, object] = {
            "corpus": "packages",
            **asdict(origin),
            "digest": program.digest,
            "script": self.task.kernel,
            "device": self.machine,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        # A grid of the user's that does not run by itself, an argument of a new kind.
        with contextlib.suppress(Exception):
            recorded["call"] = encode_call(call.args, call.kwargs, grids_of(call, configs))
        return recorded


def status_of(recording: Recording, *, of: int, case: str) -> Status:
    """How a key ended."""
    ran = {c: o for c, o in recording.outcomes.items() if isinstance(o, Measurement)}
    failures = [str(o.message) for o in recording.outcomes.values() if isinstance(o, Failure)]
    best = min(ran, key=lambda c: ran[c].median_us, default=None)
    default = ran.get(recording.default)
    return Status(
        kernel=recording.workload.program.name.rpartition(".")[2],
        case=case,
        done=False,
        tried=len(recording.outcomes),
        of=of,
        failed=len(failures),
        best="" if best is None else str(best),
        best_us=math.nan if best is None else ran[best].median_us,
        default_us=math.nan if default is None else default.median_us,
        problem="" if ran or not failures else f"no config ran: {failures[0]}",
    )


def grids_of(call: Any, configs: Sequence[Config]) -> list[tuple[int, ...]]:
    """The grid of a call under each of these configs; one where it is the same whatever the config."""
    from forecast_autotune.compilers.triton_binding import bind_call, defaults_of

    grid = call.kwargs["grid"]
    if not callable(grid):
        return [tuple(grid) if isinstance(grid, Sequence) else (int(grid),)]
    grids = []
    for config in configs:
        args, kwargs = call.arguments_of(config)
        bound = bind_call(call.kernel.arg_names, defaults_of(call.kernel), args, kwargs)
        shape = grid({**bound.arguments, **bound.options})
        grids.append(tuple(shape) if isinstance(shape, Sequence) else (int(shape),))
    return grids


def without_source(outcome: Outcome) -> Outcome:
    """An outcome whose message quotes no code: Triton's quote the lines where they stopped, between place and reason."""
    if not isinstance(outcome, Failure) or "\n" not in outcome.message:
        return outcome
    first, *_, last = outcome.message.strip().splitlines()
    last = last.strip().lstrip("^").strip()  # a mark below the line, where no reason follows
    return replace(outcome, message=f"{first[:200]} {last[:200]}".strip())


# Tuners ------------------------------------------------------------------------------------------------------------------


def as_ours(tuner: Any) -> Any:
    """A tuner of Triton's class, or of one derived from it, as one of ours that measures its whole list.

    Hooks, values to put back and pruning stay the tuner's own. A benchmark of its own does not: our clock times.
    """
    from forecast_autotune.frontends.triton.autotuner import ForecastAutotuner

    def prune(_: Sequence[Any], named: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        tuner.nargs = dict(named)  # its pruning, or a derived class's, reads them there
        return list(tuner.prune_configs(kwargs))

    known = set(tuner.arg_names)
    made = ForecastAutotuner(
        tuner.fn,
        tuner.arg_names,
        list(tuner.configs),
        [name for name in tuner.keys if name in known],
        [name for name in tuner.reset_to_zero if name in known],
        [name for name in tuner.restore_value if name in known],
        pre_hook=tuner.pre_hook if tuner.user_defined_pre_hook else None,
        post_hook=tuner.post_hook if tuner.user_defined_post_hook else None,
        prune_configs_by={"early_config_prune": prune},
        surrogate=Silent(),
    )
    made.num_reps = TIMED_MS
    return made


def over_warps_and_stages(kernel: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """A kernel without a tuner under one that chooses its warps and stages; what the call gives comes first.

    Args:
        named: the call's other arguments, by name; all of them but tensors are its key.
        options: those of `LAUNCH_OPTIONS` that the call gives.
    """
    import triton

    from forecast_autotune.frontends.triton.autotuner import ForecastAutotuner

    others = {name: options[name] for name in ("num_ctas", "maxnreg") if name in options}
    first = (int(options.get("num_warps", 4)), int(options.get("num_stages", 3)))
    loops = bool(re.search(r"\b(?:for|while)\b", str(getattr(kernel, "src", ""))))
    stages = UNTUNED_STAGES if loops else (first[1],)  # stages are of loops
    pairs = [first, *(pair for pair in ((w, s) for w in UNTUNED_WARPS for s in stages) if pair != first)]
    key = [
        n for n, v in named.items() if n in kernel.arg_names and not hasattr(v, "dtype") and not isinstance(v, float)
    ]
    made = ForecastAutotuner(
        kernel,
        kernel.arg_names,
        [triton.Config({}, num_warps=warps, num_stages=stages, **others) for warps, stages in pairs],
        key,
        surrogate=Silent(),
    )
    made.num_reps = TIMED_MS
    return made


# The process -------------------------------------------------------------------------------------------------------------


def run_program(task: ProgramTask, device: str, tell: Callable[[Status], None]) -> Status:
    """Run a program and record what it launches; how it ended."""
    os.environ["FORECAST_AUTOTUNE_DIR"] = task.stores
    recorder = ProgramRecorder(task, device, tell)
    last = Status(kernel=task.kernel, case=task.case, done=True)
    problem = ""
    with launches_through(recorder.tuned, recorder.untuned if task.untuned else None), as_main(task):
        try:
            runpy.run_path(task.script, run_name="__main__")
        except TimeIsUp:
            problem = TIME_IS_UP
        except SystemExit as err:
            problem = "" if err.code in (None, 0) else f"it ended with {err.code}"
        except BaseException as err:
            traceback.print_exc()
            problem = f"{type(err).__name__}: {err}".partition("\n")[0]
    if not problem and not recorder.keys:
        problem = "it launched no autotuned kernel" + ("" if task.untuned else ": --untuned records others")
    lost = is_lost(device)
    return replace(last, tried=recorder.keys, of=recorder.keys, problem=problem, lost=lost)


@contextlib.contextmanager
def as_main(task: ProgramTask) -> Iterator[None]:
    """Arguments and path as `python SCRIPT ARGUMENTS` would have them."""
    before = sys.argv, list(sys.path)
    sys.argv = [task.script, *task.arguments]
    sys.path.insert(0, str(Path(task.script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def serve(device: str, tasks: IO[str] | None = None) -> None:
    """Run the program that is asked for on stdin."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what programs and compilers print must not mix with answers

    def tell(status: Status) -> None:
        try:
            print(json.dumps(asdict(status)), file=answers)
        except BrokenPipeError:  # whoever asked was killed, and may be asking another process already
            os._exit(1)

    for line in tasks or sys.stdin:
        task = ProgramTask(**json.loads(line))
        try:
            tell(run_program(task, device, tell))
        except Exception as err:
            problem = f"{type(err).__name__}: {err}".partition("\n")[0]
            tell(Status(kernel=task.kernel, case=task.case, done=True, problem=problem))


if __name__ == "__main__":
    serve(sys.argv[1])
