"""Pools of programs made by rewrites: what counts, what is written, and that a recording goes on."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from doubling import task

from calibration.record import pools
from calibration.record.pools import main, programs, record, tasks
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.traces import read_recorded, read_trace
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search.candidate import Candidate
from forecast_autotune.program_search.exam import Loadable, Result, compiled_to
from forecast_autotune.store.textfile import read_text

CPP = """
void f(const float* x, float* out, int n) {
    for (int i = 0; i < n; ++i) out[i] = 2 * x[i];
    for (int i = 0; i < n; ++i) out[i] += 0;
}
"""
TASK = task(language="c++", source=CPP, spaces={"": Space.grid({"A": [1, 2]})})


class Table:
    """Prepares and examines: by the length of a text, which is its machine code too; every seventh is wrong."""

    examined = 0

    def __init__(self, *_: Any) -> None:
        pass

    def prepare(self, candidate: Candidate) -> Loadable | Failure:
        if "noinline" in candidate.source:
            return Failure(stage="compile", message="no")
        return Loadable(message={"n": len(candidate.source)}, code=str(len(candidate.source) // 10))

    def examine(self, made: Loadable, *, is_seed: bool = False) -> Result:
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
    monkeypatch.setattr(pools, "toolchain_of", lambda _: pools.Toolchain(versions={"gcc": "12"}))
    monkeypatch.setattr(Table, "examined", 0)
    return Table


def test_programs_differ_from_the_seed_by_their_text_and_come_in_a_seeded_order() -> None:
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
    before = table.examined
    more = record(TASK, 12, 1e12, tmp_path / "work", tmp_path / "traces")
    assert table.examined == before + 1  # the seed, for what it shows
    assert (more.ran, more.failed) == (pool.ran, pool.failed)


def test_a_seed_that_fails_is_told_of(table: type[Table], tmp_path: Path) -> None:
    of = task(language="c++", source=CPP + "int noinline;", spaces={"": Space([{"A": 1}])})
    with pytest.raises(InvalidInputError, match="own source fails, so no pool can be made of it: no"):
        record(of, 3, 1e12, tmp_path, tmp_path)


def test_kernels_are_named_by_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert [of.name for of in tasks(["gemm"])] == ["gemm"]
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
