"""Pools of programs made by rewrites: what counts, what is written, and that a recording goes on."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from doubling import Unchecked, task

from calibration.evaluate import search_replay
from calibration.record import pools
from calibration.record.pools import changed, changes, main, programs, record
from calibration.search_tasks import SIZES, search_tasks
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.traces import read_recorded, read_trace
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search.archive import Archive
from forecast_autotune.program_search.candidate import Candidate, TriedCandidate
from forecast_autotune.program_search.compiled_files import compiled_to
from forecast_autotune.program_search.examiner import Result
from forecast_autotune.program_search.runners import Loadable
from forecast_autotune.store.textfile import read_text
from forecast_autotune.surrogates.history import History

CPP = """
void f(const float* x, float* out, int n) {
    for (int i = 0; i < n; ++i) out[i] = 2 * x[i];
    for (int i = 0; i < n; ++i) out[i] += 0;
}
"""
TASK = task(language="c++", source=CPP, spaces={"": Space.grid({"A": [1, 2]})})


class Table(Unchecked):
    """Prepares and examines: by the length of a text, which is its machine code too; every seventh is wrong."""

    examined = 0
    beside = 2

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def prepare(self, candidate: Candidate) -> Loadable | Failure:
        if "noinline" in candidate.source:
            return Failure(stage="compile", message="no")
        return Loadable(message={"n": len(candidate.source)}, code=str(len(candidate.source) // 10))

    def examine(self, made: Loadable, *, sizes: Any = None, is_seed: bool = False) -> Result:
        Table.examined += 1
        if made.message["n"] % 7 == 0 and not is_seed:
            return Result(outcome=Failure(stage="check", message="wrong"))
        return Result(
            outcome=Measurement(samples_us=(float(made.message["n"]),)), times_us={"large": made.message["n"]}
        )


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> type[Table]:
    monkeypatch.setattr(pools, "preparer", Table)
    monkeypatch.setattr(pools, "Examiner", Table)
    monkeypatch.setattr(pools, "toolchain_of", lambda _: Toolchain(versions={"gcc": "12"}))
    monkeypatch.setattr(Table, "examined", 0)
    return Table


def recorded(work: Path) -> list[TriedCandidate]:
    return list(Archive(work, TASK, detect_hardware("cpu"), Toolchain(versions={"gcc": "12"})))


def test_programs_differ_from_the_seed_and_come_in_a_seeded_order() -> None:
    made = list(islice(programs(TASK), 40))
    assert [c.digest for c in made] == [c.digest for c in islice(programs(TASK), 40)]
    assert all(c.source != CPP and 1 <= len(c.steps) <= pools.DEPTH for c in made)
    assert len({c.source for c in made}) > 20
    assert {c.config["A"] for c in made} == {1, 2}


def test_a_pool_holds_programs_of_different_machine_code_and_goes_on(table: type[Table], tmp_path: Path) -> None:
    pool = record(TASK, 12, 1e12, tmp_path / "work", tmp_path / "traces")
    assert pool.ran == 12
    assert pool.failed > 0
    assert pool.twins > 0
    trace, programs_file = map(Path, pool.traces)
    recording = read_trace(trace)
    ran = [o for o in recording.outcomes.values() if isinstance(o, Measurement)]
    assert len({int(o.median_us) // 10 for o in ran}) == len(ran) == 13  # the seed too
    assert recording.workload.key == {"case": "large", "n": 20_000}
    assert read_recorded(trace)["by"] == "record-pool"
    lines = [json.loads(line) for line in read_text(programs_file).splitlines()]
    assert len(lines) >= 13
    assert lines[0]["source"] == CPP
    assert all(line["steps"] for line in lines[1:])
    sources = {changed(CPP, line["changes"]) for line in lines}
    assert sources == {tried.candidate.source for tried in recorded(tmp_path / "work")}
    before = table.examined
    more = record(TASK, 12, 1e12, tmp_path / "work", tmp_path / "traces")
    assert table.examined == before + 1  # the seed, for what it shows
    assert (more.ran, more.failed) == (pool.ran, pool.failed)


def test_a_recording_that_is_killed_leaves_its_traces_and_goes_on(
    table: type[Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "WRITE_EVERY_S", 0.0)

    class KilledError(BaseException):
        pass

    def killed(self: Table, made: Loadable, **how: Any) -> Result:
        if Table.examined == 9:
            raise KilledError
        return examine(self, made, **how)

    examine = table.examine
    with monkeypatch.context() as patched:
        patched.setattr(table, "examine", killed)
        with pytest.raises(KilledError):
            record(TASK, 12, 1e12, tmp_path / "work", tmp_path / "traces")
    (trace,) = (tmp_path / "traces").glob("double.large.*")
    kept = len(recorded(tmp_path / "work"))
    assert 5 <= len(read_trace(trace).outcomes) <= kept
    record(TASK, 12, 1e12, tmp_path / "work", tmp_path / "traces")
    assert len(read_trace(trace).outcomes) == len(recorded(tmp_path / "work")) > kept


def test_a_pool_is_searched_by_replay_without_its_kernel(
    table: type[Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left_out: list[str] = []

    def surrogate(kernel: str) -> History:
        left_out.append(kernel)
        return History()

    monkeypatch.setattr(search_replay, "_surrogate", surrogate)
    monkeypatch.setattr(search_replay, "use_one_thread", lambda: None)
    monkeypatch.setattr(search_replay, "side_by_side", lambda do, traces, jobs: [(one, do(one)) for one in traces])
    pool = record(TASK, 24, 1e12, tmp_path / "work", tmp_path / "traces")
    words = ["--pools", str(tmp_path / "traces"), "--seeds", "2", "--measurements", "16", "--json"]
    assert search_replay.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["spaces"] == 1
    assert left_out == ["double"]
    rows = {row["arm"]: row for row in told["over_random_sampling"] if row["measured"] == 16}
    assert rows["oracle"]["over_random_sampling"] <= 1.0
    assert all(row["builds"] >= 16 for row in rows.values())
    assert pool.ran == 24


def test_a_seed_that_fails_is_told_of(table: type[Table], tmp_path: Path) -> None:
    of = task(language="c++", source=CPP + "int noinline;", spaces={"": Space([{"A": 1}])})
    with pytest.raises(InvalidInputError, match="own source fails, so no pool can be made of it: no"):
        record(of, 3, 1e12, tmp_path, tmp_path)


def test_a_text_is_told_by_the_lines_that_change() -> None:
    other = CPP.replace("2 * x[i]", "x[i] + x[i]").replace("}\n", "}  // end\n") + "int last;"
    assert changed(CPP, changes(CPP, other)) == other
    assert changes(CPP, CPP) == []


def test_kernels_are_named_by_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert [of.name for of in search_tasks(["gemm"])] == ["gemm"]
    (softmax,) = search_tasks(["softmax"])
    assert (tuple(softmax.sizes), tuple(softmax.held_out)) == SIZES["softmax"]
    assert main(["magic"]) == 2
    assert "no kernel 'magic'" in capsys.readouterr().err


def test_what_triton_compiled_is_told_apart_by_its_binaries_alone(tmp_path: Path) -> None:
    warm, one, other = (tmp_path / name for name in ("warm", "one", "other"))
    for folder in (warm, one, other):
        (folder / "seed").mkdir(parents=True)
        (folder / "seed" / "kernel.cubin").write_bytes(b"seed")
    assert compiled_to(tmp_path / "none", None) == ""
    assert compiled_to(one, warm) == compiled_to(warm, None) != ""
    for folder, name in ((one, "a"), (other, "b")):
        (folder / name).mkdir()
        (folder / name / "kernel.cubin").write_bytes(b"binary")
        (folder / name / "kernel.ttir").write_text(name)
    assert compiled_to(one, warm) == compiled_to(other, warm) != compiled_to(warm, None)
    (other / "b" / "kernel.cubin").write_bytes(b"another")
    assert compiled_to(one, warm) != compiled_to(other, warm)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(lacking(may_start=True)), reason=f"no box here: {lacking(may_start=True)}")
def test_a_pool_of_a_real_kernel_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["conv2d", "--programs", "2", "--to", str(tmp_path / "to"), "--work", str(tmp_path / "work"), "--json"]
    assert main(words) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["ran"] == 2
    assert len(row["traces"]) == 3
