"""What compilers say of every config of the suite, without a GPU: `python -m calibration evidence trimul --target cuda:90`.

For each Triton kernel with variants, at its first case, and each CUDA kernel: registers, stack, spills, shared memory, code
size, instructions and seconds of each config, or why it fails. A target's evidence on a kernel is a *table*, a file such as
`trimul.sm_90.jsonl.gz` of JSON lines. The first is a header:

    {"schema": "forecast_autotune.evidence", "version": 1, "kernel", "language", "source": digest, "case", "sizes",
     "arguments": [each one's type and shape, or its value], "target", "device": {limit: value}, "toolchain": {…}}

Every other line is a config; of a kernel with variants, the knob `variant` names one, as behind the front door:

    {"config": {knob: value}, "evidence": {"compile_s", "registers", …, "instructions": {name: count}}}
    {"config": {knob: value}, "failure": {"stage", "message", "cost_s", "crashed"}}

A config that its variant refuses at that size fails at `launch`. A kernel that an earlier config has compiled is read from
Triton's cache: its `compile_s` is the time to read it, and its spills are unknown if it has a stack frame. nvcc counts no
instructions.

Each result is written at once. A run that was stopped goes on where it was; a complete table is compressed. A table of
another source, case, device or toolchain is begun again: results are never mixed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from kernel_suite import Case, Kernel, SuiteKernel, cuda_kernels, suite_kernels

from forecast_autotune.cli.output import table_text
from forecast_autotune.core.config import Config
from forecast_autotune.core.digest import digest
from forecast_autotune.core.file_format import FileFormat
from forecast_autotune.core.outcome import Evidence, Failure
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.features.hardware_sheets import device_properties, sheet_for
from forecast_autotune.measure.probe import compiler_version, nvcc_path
from forecast_autotune.processes.machine import usable_cores, usable_memory_bytes
from forecast_autotune.store import encoding
from forecast_autotune.store.encoding import Json, from_text, to_text
from forecast_autotune.store.textfile import read_text, write_lines

from ..command import number, verb_parser
from ..paths import EVIDENCE
from .single_kernel import SingleKernel

if TYPE_CHECKING:
    from forecast_autotune.compilers.triton_launches import Launched
    from forecast_autotune.compilers.triton_pool import WorkerPool

FORMAT = FileFormat(schema="forecast_autotune.evidence", version=1)
TARGETS = {"triton": ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942"), "cuda": ("cuda:80", "cuda:90")}
KNOB = "variant"
SEED = 0

JOBS_OF_A_FEEDER = 16  # one process lowers some 50 configs a second, 16 compilers take about as many at their quickest
LOT = 64  # configs for each compiler that are told ahead, in 2 ms each; at a lot's end some compilers wait for the last
REPORT_EVERY_S = 10.0

Result = Evidence | Failure
Subject = SuiteKernel | Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceTable:
    """What the compiler says of a kernel's configs for one target, and what it was asked about."""

    kernel: str
    language: str  # "triton" or "cuda"
    source: str  # digest of the program
    case: str
    target: str  # `cuda:90`
    toolchain: Mapping[str, str]
    header: Mapping[str, object]  # all of the first line
    results: Mapping[Config, Result]


def read_evidence(path: Path | str) -> EvidenceTable:
    """Read a table, complete or not; a last line that was cut off while it was written is left out.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no table of this version, or a line in it is damaged; names the line.
    """
    path = Path(path)
    first, *lines = read_text(path).split("\n")[:-1] or [""]
    what = f"{path}, line 1"
    header = encoding.fields(from_text(first, what), what)
    remedy = "make it again by 'python -m calibration evidence'"
    FORMAT.check(header, path, accepted=f"this reads {FORMAT.schema}; {remedy}", remedy=remedy)
    results: dict[Config, Result] = {}
    for place, line in enumerate(lines, start=2):
        what = f"{path}, line {place}"
        value = encoding.fields(from_text(line, what), what)
        results[encoding.decode_config(value.get("config"), what)] = _decoded(value, what)
    texts = {
        name: encoding.text_field(header, name, what) for name in ("kernel", "language", "source", "case", "target")
    }
    toolchain = encoding.decode_toolchain(header.get("toolchain"), f"{path}, line 1: toolchain").versions
    return EvidenceTable(**texts, toolchain=toolchain, header=header, results=results)


def _decoded(value: Mapping[str, object], what: str) -> Result:
    if "failure" in value:
        outcome = encoding.decode_outcome(value["failure"], what)
        if isinstance(outcome, Failure):
            return outcome
        raise InvalidInputError(f"{what}: its failure has no stage")
    facts = encoding.fields(value.get("evidence"), f"{what}: evidence")
    counts = encoding.fields(facts.get("instructions", {}), f"{what}: instructions")
    sizes = ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes")
    return Evidence(
        compile_s=encoding.number_field(facts, "compile_s", what),
        instructions={name: encoding.count_field(counts, name, what) for name in counts},
        **{name: encoding.count_field(facts, name, what) for name in sizes if facts.get(name) is not None},
    )


def _line(config: Config, result: Result) -> str:
    if isinstance(result, Failure):
        fields = encoding.encode_outcome(result) | {"cost_s": round(result.cost_s, 4)}
        return to_text({"config": encoding.encode_config(config), "failure": fields})
    known = {name: value for name, value in asdict(result).items() if value is not None}
    known["compile_s"] = round(result.compile_s, 4)
    return to_text({"config": encoding.encode_config(config), "evidence": known})


# Kernels and their spaces -----------------------------------------------------------------------------------------------


@cache
def subjects() -> dict[str, Subject]:
    """Every kernel that tables are of, by name: those of Triton with variants, and those in CUDA."""
    listed: list[Subject] = [*suite_kernels(), *cuda_kernels()]
    return {subject.name: subject for subject in listed}


def language_of(subject: Subject) -> str:
    return "triton" if isinstance(subject, SuiteKernel) else "cuda"


def spaces(subject: Subject) -> list[list[Config]]:
    """The configs of each variant, its default first."""
    if isinstance(subject, SuiteKernel):
        return [[Config({KNOB: v.name, **config.knobs}) for config in v.space] for v in subject.variants]
    return [list(subject.space)]


@cache
def fake_arguments(name: str) -> tuple[Any, ...]:
    """The arguments of a Triton kernel's first case, without their data."""
    subject = subjects()[name]
    assert isinstance(subject, SuiteKernel)  # noqa: S101  # for mypy: no other is asked for them
    return fake_inputs(subject, subject.cases[0], 0)


def fake_inputs(subject: SuiteKernel | SingleKernel | Kernel, case: Case, seed: int) -> tuple[Any, ...]:
    """The arguments of a kernel's call, without their data.

    They take no memory, unless sizes among them depend on drawn numbers: then they are made for real first.
    """
    from torch import Tensor
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
    from torch.utils._pytree import tree_map_only

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            return subject.make_inputs(case, seed, "cpu")
    except DataDependentOutputException:
        real = subject.make_inputs(case, seed, "cpu")
        return tuple(tree_map_only(Tensor, partial(mode.from_tensor, static_shapes=True), real))


def launches_of(name: str, config: Config) -> list[Launched]:
    """What a kernel of the suite launches under a config.

    Raises:
        InvalidInputError: the variant refuses the config at this size.
    """
    from forecast_autotune.compilers.triton_launches import launches

    subject = subjects()[name]
    assert isinstance(subject, SuiteKernel)  # noqa: S101  # for mypy: no other has launches
    knobs = {knob: value for knob, value in config.knobs.items() if knob != KNOB}
    return launches(subject.variant(str(config[KNOB])).launch, fake_arguments(name), knobs)


def header_of(subject: Subject, target: str) -> Json:
    """A table's first line: all that evidence depends on beside the config."""
    import torch

    case = subject.cases[0]
    if isinstance(subject, SuiteKernel):
        from forecast_autotune.compilers.triton_source import gpu_target
        from forecast_autotune.frontends.triton.target import current_toolchain

        source = subject.tuned().tuned.program.digest
        toolchain = dict(current_toolchain(gpu_target(target)).versions)
        arguments = [
            [str(a.dtype).removeprefix("torch."), *a.shape] if isinstance(a, torch.Tensor) else repr(a)
            for a in fake_arguments(subject.name)
        ]
    else:
        files = {path.parent for path in subject.sources.values()}.pop().iterdir()
        source = digest(*(path.read_text() for path in sorted(files) if path.suffix in (".cu", ".cuh", ".cpp", ".h")))
        toolchain = {"nvcc": compiler_version(nvcc_path() or "nvcc"), "compiler": compiler_version("c++")}
        arguments = []  # a CUDA kernel is compiled for all sizes
    sheet = sheet_for(target)
    return {
        **FORMAT.header,
        "kernel": subject.name,
        "language": language_of(subject),
        "source": source,
        "case": case.name,
        "sizes": dict(case.sizes),
        "arguments": arguments,
        "target": target,
        "device": {"name": sheet.name, **device_properties(sheet)},
        "toolchain": toolchain,
    }


# Asking the compiler ----------------------------------------------------------------------------------------------------


class TargetConfig(NamedTuple):
    """A config of a kernel for a target."""

    target: str
    kernel: str
    config: Config


def answers(asked: Sequence[TargetConfig], jobs: int) -> Generator[tuple[TargetConfig, Result]]:
    """What the compilers say, each answer as it comes. So many compilers run at a time, in child processes."""
    from forecast_autotune.compilers.triton_pool import WorkerPool

    def kind(each: TargetConfig) -> tuple[str, str]:
        return language_of(subjects()[each.kernel]), each.target

    with contextlib.closing(WorkerPool(jobs)) as pool:
        for (language, target), group in groupby(sorted(asked, key=kind), kind):
            listed = list(group)
            if language == "cuda":
                yield from by_nvcc(listed, jobs)
                continue
            for begin in range(0, len(listed), LOT * jobs):
                lot = listed[begin : begin + LOT * jobs]
                calls = [partial(launches_of, each.kernel, each.config) for each in lot]
                for place, result in by_triton(calls, target, pool):
                    yield lot[place], result


def by_triton(
    calls: Sequence[Callable[[], Sequence[Launched]]], target: str, pool: WorkerPool | None = None
) -> Iterator[tuple[int, Result]]:
    """What Triton says of the launches that each call returns, by the call's place; a call that raises fails at `launch`.

    While they are called, the target's usual device is the current one: some kernels ask for its size.
    """
    from forecast_autotune.compilers.triton_launches import LaunchesCompiler
    from forecast_autotune.compilers.triton_worker import brief as message_of
    from forecast_autotune.frontends.triton.simulated_driver import rehearsal

    launched: dict[Config, Sequence[Launched]] = {}
    refused: list[tuple[int, Failure]] = []
    with rehearsal(target):
        for place, call in enumerate(calls):
            began = time.perf_counter()
            try:
                launched[Config({"call": place})] = call()
            except Exception as err:
                why = str(err) if isinstance(err, InvalidInputError) else message_of(err)
                refused.append((place, Failure(stage="launch", message=why, cost_s=time.perf_counter() - began)))
    yield from refused
    limits = device_properties(sheet_for(target))
    compiler = LaunchesCompiler(launched.__getitem__, target=target, properties=limits, pool=pool)
    for called, result in compiler.compile(list(launched)):
        yield int(called["call"]), result  # type: ignore[arg-type]  # it is the number put there above


def by_nvcc(asked: Sequence[TargetConfig], jobs: int) -> Iterator[tuple[TargetConfig, Result]]:
    """What nvcc says of CUDA kernels, so many at a time."""
    with ThreadPoolExecutor(jobs) as threads:
        try:
            asking = {threads.submit(_nvcc_report, each): each for each in asked}
            for future in as_completed(asking):
                yield asking.pop(future), future.result()
        finally:
            threads.shutdown(cancel_futures=True)


@cache
def _recipe(name: str) -> Any:
    return subjects()[name].load()._recipe  # type: ignore[union-attr]  # only CUDA kernels come here


def _nvcc_report(asked: TargetConfig) -> Result:
    from forecast_autotune.compilers.cpp_compile import CppCompiler
    from forecast_autotune.compilers.triton_evidence import cubin_facts
    from forecast_autotune.measure.probe import detect_cpp_toolchain

    toolchain, began = detect_cpp_toolchain(cuda=True), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="forecast_autotune-evidence-") as name:
        folder = Path(name)
        compiler = CppCompiler(_recipe(asked.kernel), toolchain, sheet_for(asked.target), folder, nvcc=nvcc_path())
        result = compiler.report(asked.config)
        if result is None:
            logs = [path.read_text(errors="replace") for path in folder.rglob("kernel_report.log")]
            errors = re.findall(r".*\b(?:error|fatal)\b.*", logs[0]) if logs else []
            message = errors[0].replace(name, "").strip() if errors else "nvcc ended without a word"
            return Failure(stage="compile", message=message[:1500], cost_s=time.perf_counter() - began)
        if isinstance(result, Evidence):
            cubin = next(folder.rglob("kernel_part.cubin")).read_bytes()
            result = Evidence(**{**asdict(result), "code_bytes": cubin_facts(cubin).get("code_bytes")})
        return result


def answers_of_several(asked: Sequence[TargetConfig], jobs: int) -> Generator[tuple[TargetConfig, Result]]:
    """As `answers`, by as many processes as it takes to keep the compilers busy; each has its share of the configs.

    Raises:
        ChildProcessError: one of them ended before its work was done; the others have done theirs.
    """
    from multiprocessing import get_context
    from multiprocessing.connection import Connection, wait

    feeders = min(max(1, jobs // JOBS_OF_A_FEEDER), len(asked))
    if feeders <= 1:
        yield from answers(asked, jobs)
        return
    spawning = get_context("spawn")
    started, ends = [], {}
    codes: list[int | None] = []
    try:
        for i in range(feeders):
            ours, theirs = spawning.Pipe(duplex=False)
            share = asked[i::feeders]
            given = (theirs, share, jobs // feeders + (i < jobs % feeders))
            process = spawning.Process(target=_feed, args=given, name=f"evidence-{i}")
            process.start()
            theirs.close()
            started.append(process)
            ends[ours] = process, share
        while ends:
            for end in wait(list(ends)):
                assert isinstance(end, Connection)  # noqa: S101  # for mypy: nothing else is waited for
                process, share = ends[end]
                try:
                    place, result = end.recv()
                except EOFError:
                    del ends[end]
                    process.join()
                    codes.append(process.exitcode)
                else:
                    yield share[place], result
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.join()
    if any(codes):
        raise ChildProcessError(
            f"{sum(map(bool, codes))} of {feeders} processes ended with {codes} before they were done"
        )


def _feed(end: Any, asked: Sequence[TargetConfig], jobs: int) -> None:
    """What a child process does. It ends by SIGTERM, or when its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process, which ends the others
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    places = {each: place for place, each in enumerate(asked)}
    with contextlib.suppress(BrokenPipeError), contextlib.closing(answers(asked, jobs)) as results:
        for each, result in results:
            end.send((places[each], result))


# Tables -----------------------------------------------------------------------------------------------------------------


class Table:
    """A table on its way to being complete."""

    def __init__(self, subject: Subject, target: str, folder: Path) -> None:
        self.subject, self.target = subject, target
        self.spaces = spaces(subject)
        self.header = header_of(subject, target)
        short = target.removeprefix("hip:").replace("cuda:", "sm_")
        self.label = f"{subject.name} {short}"
        self.open_path = folder / f"{subject.name}.{short}.jsonl"
        self.path = self.open_path.with_suffix(".jsonl.gz")
        self.results: dict[Config, Result] = {}
        self.discarded = ""  # why an earlier table is of no use
        self._file: TextIO | None = None
        self._load()

    def _load(self) -> None:
        """Go on from an earlier run's table, unless that is of another source, case, device or toolchain."""
        for path in (self.open_path, self.path):
            if not path.exists():
                continue
            try:
                earlier = read_evidence(path)
            except InvalidInputError as err:
                self.discarded = str(err)
                continue
            other = next((name for name in self.header if earlier.header.get(name) != self.header[name]), None)
            if other is None:
                self.results, self.discarded = dict(earlier.results), ""
                return
            self.discarded = (
                f"{path} is of another {other} ({_difference(earlier.header.get(other), self.header[other])})"
            )

    @property
    def complete(self) -> bool:
        return all(config in self.results for space in self.spaces for config in space)

    def wanted(self, sample: int | None) -> list[Config]:
        """Configs to compile, in a random order, so that what is done at any time stands for the whole."""
        if sample is None:
            drawn = [config for space in self.spaces for config in space]
        else:
            chance = random.Random(SEED)
            drawn = [c for s in self.spaces for c in (s[0], *chance.sample(s[1:], min(sample, len(s) - 1)))]
        random.Random(SEED).shuffle(drawn)
        return drawn

    def add(self, config: Config, result: Result) -> None:
        """Keep a result; it is in the file when this returns."""
        if self._file is None:
            lines = [to_text(self.header), *(_line(*each) for each in self.results.items())]
            write_lines(self.open_path, lines)
            self._file = self.open_path.open("a", encoding="ascii")
        self._file.write(_line(config, result) + "\n")
        self._file.flush()
        self.results[config] = result

    def close(self) -> None:
        """If all is there, leave the compressed file alone, its configs in the order of their spaces."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self.complete and self.open_path.exists():
            ordered = (config for space in self.spaces for config in space)
            write_lines(self.path, [to_text(self.header), *(_line(c, self.results[c]) for c in ordered)])
            self.open_path.unlink()

    def summary(self, wanted: Sequence[Config]) -> dict[str, Any]:
        """What there is to say of the configs wanted, as far as they were looked at."""
        results = [self.results[config] for config in wanted if config in self.results]
        built = [r for r in results if isinstance(r, Evidence)]
        failed = Counter(r.stage for r in results if isinstance(r, Failure))
        return {
            "kernel": self.subject.name,
            "target": self.target,
            "file": str(self.path if self.path.exists() and not self.open_path.exists() else self.open_path),
            "complete": self.complete,
            "configs": len(wanted),
            "looked_at": len(results),
            "compiled": len(built),
            "failed": dict(sorted(failed.items())),
            "spilling": sum((r.spill_bytes or 0) > 0 for r in built),
            "spills_unknown": sum(r.spill_bytes is None for r in built),
            "median_compile_s": statistics.median(r.compile_s for r in built) if built else None,
            "total_compile_s": sum(r.compile_s if isinstance(r, Evidence) else r.cost_s for r in results),
        }


def _difference(then: object, now: object) -> str:
    """The first part that differs, on one line."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in (*now, *then):
            if then.get(name) != now.get(name):
                return f"{name} {_brief(then.get(name))}, now {_brief(now.get(name))}"
    return f"{_brief(then)}, now {_brief(now)}"


def _brief(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else f"...{text[-200:]}"


def collect(
    tables: Sequence[Table], *, sample: int | None, jobs: int, until: float, say: Callable[[str], None]
) -> bool:
    """Compile the configs that are wanted and missing in some tables; False if time ran out before all were done."""
    whose = {(t.target, t.subject.name): t for t in tables}
    wanted = [TargetConfig(t.target, t.subject.name, config) for t in tables for config in t.wanted(sample)]
    asked = [each for each in wanted if each.config not in whose[each.target, each.kernel].results]
    left = Counter((each.target, each.kernel) for each in asked)
    tell = _teller(len(wanted), len(asked), say)
    try:
        with contextlib.closing(answers_of_several(asked, jobs)) as results:
            for done, (each, result) in enumerate(results, start=1):
                key = each.target, each.kernel
                whose[key].add(each.config, result)
                left[key] -= 1
                if not left[key]:
                    whose[key].close()
                tell(done, whose[key].label)
                if time.monotonic() > until and done < len(asked):
                    return False
    finally:
        for t in tables:
            t.close()
    return True


def _teller(total: int, asked: int, say: Callable[[str], None]) -> Callable[[int, str], None]:
    """What prints progress, at most every ten seconds."""
    began = printed = time.monotonic()

    def tell(done: int, label: str) -> None:
        nonlocal printed
        if (now := time.monotonic()) - printed > REPORT_EVERY_S:
            printed, rate = now, done / (now - began)
            minutes = (asked - done) / rate / 60
            say(f"{label}: {total - asked + done} of {total} configs, {rate:.1f} a second, {minutes:.0f} min left")

    return tell


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, made if need be, for this run alone.

    Raises:
        InvalidInputError: it cannot be written to, or another run has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as err:
        raise InvalidInputError(f"folder {folder} cannot be written to ({err}): name another with --to") from None
    try:
        with contextlib.suppress(OSError):  # but for this one: some network file systems have no locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidInputError(
                    f"another run writes to {folder}: wait for it, or name another with --to"
                ) from None
        yield
    finally:
        os.close(descriptor)


# The command ------------------------------------------------------------------------------------------------------------


def chosen(kernels: Sequence[str], targets: Sequence[str], say: Callable[[str], None]) -> list[tuple[Subject, str]]:
    """The kernels named, or all, each with those of the targets named, or of the usual ones, that its compiler knows.

    Raises:
        InvalidInputError: there is no such kernel or target, or nothing is left.
    """
    from forecast_autotune.compilers.triton_source import gpu_target
    from forecast_autotune.features.hardware_sheets import target_of

    known = subjects()
    if unknown := [name for name in kernels if name not in known]:
        raise InvalidInputError(f"no kernel {unknown[0]!r}: there are {', '.join(known)}")
    for target in targets:
        gpu_target(target)
    asked = list(dict.fromkeys(target_of(sheet_for(target)) for target in targets))
    pairs = []
    for subject in [known[name] for name in dict.fromkeys(kernels)] or known.values():
        language = language_of(subject)
        if language == "cuda" and nvcc_path() is None:
            say(f"{subject.name} is left out: there is no nvcc on PATH or in CUDA_HOME")
            continue
        usual = TARGETS[language]
        pairs += [(subject, t) for t in asked or usual if language == "triton" or t.startswith("cuda:")]
    if not pairs:
        raise InvalidInputError(
            f"nothing to look at: no compiler here takes {', '.join(kernels) or 'a kernel'} to {', '.join(asked) or 'a GPU'}"
        )
    return pairs


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when all was looked at, 1 when some is left, 2 when what was asked makes no sense."""
    parser = verb_parser("evidence", __doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="all if none is named")
    parser.add_argument("--target", nargs="+", default=[], metavar="TARGET", help="such as cuda:90 or hip:gfx942")
    parser.add_argument(
        "--to", type=Path, default=EVIDENCE, metavar="FOLDER", help="where tables are kept (%(default)s)"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="look at each variant's default and N drawn configs")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after so long; the next run goes on")
    parser.add_argument("--jobs", type=int, metavar="N", help="compilers at a time (as many as cores and memory allow)")
    parser.add_argument("--json", action="store_true", help="the summary as one JSON value on stdout")
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(f"evidence: {text}", file=sys.stderr, flush=True)

    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns until somebody says which
    until = float("inf") if given.minutes is None else time.monotonic() + 60 * given.minutes
    try:
        jobs = _jobs(given.jobs)
        if given.sample is not None and given.sample < 0:
            raise InvalidInputError(f"--sample {given.sample}: give 0 for the defaults alone, or more")
        pairs = chosen(given.kernels, given.target, say)
        with held(given.to):
            tables = [Table(subject, target, given.to) for subject, target in pairs]
            for each in tables:
                if each.discarded:
                    say(f"{each.label} is begun anew: {each.discarded}")
            status = _finished(tables, given.sample, jobs, until, say)
    except InvalidInputError as err:
        say(str(err))
        return 2
    summaries = [each.summary(each.wanted(given.sample)) for each in tables]
    print(json.dumps(summaries) if given.json else report(summaries))
    return status


def _finished(tables: Sequence[Table], sample: int | None, jobs: int, until: float, say: Callable[[str], None]) -> int:
    try:
        if collect(tables, sample=sample, jobs=jobs, until=until, say=say):
            return 0
        say("time is up: the same command goes on from here")
    except KeyboardInterrupt:
        say("stopped: the same command goes on from here")
    except (ChildProcessError, OSError) as err:
        say(f"{err}: what was found until then is kept, and the same command goes on from there")
    return 1


def _jobs(asked: int | None) -> int:
    from forecast_autotune.compilers.triton_pool import WORKER_BYTES

    if asked is None:
        return int(max(1, min(usable_cores(), usable_memory_bytes() // WORKER_BYTES)))
    if asked < 1:
        raise InvalidInputError(f"--jobs {asked}: give 1 or more")
    return asked


def report(summaries: Sequence[Mapping[str, Any]]) -> str:
    """A row for each table."""
    head = ("kernel", "target", "configs", "looked at", "compiled", "spilling", "median s", "total s", "failed")
    rows = [
        (
            *(str(t[name]) for name in ("kernel", "target", "configs", "looked_at", "compiled")),
            f"{t['spilling']}" + (f", {t['spills_unknown']} unknown" if t["spills_unknown"] else ""),
            *(number(t["median_compile_s"], 2), number(t["total_compile_s"])),
            ", ".join(f"{count} {stage}" for stage, count in t["failed"].items()),
        )
        for t in summaries
    ]
    return table_text(head, rows)
