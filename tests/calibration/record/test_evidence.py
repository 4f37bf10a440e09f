"""The evidence table: what is in it, that nothing is asked twice, and that nothing of another origin is mixed in."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_suite import cross_entropy

from calibration.record import evidence
from calibration.record.evidence import main, read_evidence
from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Evidence, Failure
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError

REPOSITORY = Path(__file__).parents[3]
KNOBS = [{"ROWS": 1, "num_warps": 4}, {"ROWS": 8, "num_warps": 1}, {"ROWS": 2, "num_warps": 4}]
CONFIGS = [Config({"variant": "in_registers", **knobs}) for knobs in KNOBS]
NAME = "cross_entropy.sm_90.jsonl"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="builds variants with nvcc")


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., tuple[int, list[Config]]]]:
    """Look at three configs of one variant, for Hopper unless told otherwise; the exit status, and what was asked."""
    whole = cross_entropy.VARIANTS
    variant = replace(whole.variant("in_registers"), space=Space(KNOBS))
    small = replace(whole, cases=(whole.case("classes"),), variants=(variant,))
    monkeypatch.setattr(evidence, "subjects", lambda: {small.name: small})
    evidence.fake_arguments.cache_clear()
    asked: list[Config] = []
    several = evidence.answers_of_several

    def noted(wanted: Any, jobs: int) -> Any:
        asked.extend(each.config for each in wanted)
        return several(wanted, jobs)

    monkeypatch.setattr(evidence, "answers_of_several", noted)

    def run(*arguments: str) -> tuple[int, list[Config]]:
        asked.clear()
        target = () if "--target" in arguments else ("--target", "cuda:90")
        return main([*arguments, *target, "--to", str(tmp_path), "--jobs", "1"]), list(asked)

    yield run
    evidence.fake_arguments.cache_clear()


def lines_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_a_complete_table_is_compressed_holds_every_config_and_is_reused(
    look: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, asked = look()
    assert (status, set(asked)) == (0, set(CONFIGS))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [f"{NAME}.gz"]
    table = read_evidence(tmp_path / f"{NAME}.gz")
    assert list(table.results) == CONFIGS
    assert (table.kernel, table.language, table.target, table.case) == ("cross_entropy", "triton", "cuda:90", "classes")
    built, refused, _ = table.results.values()
    assert isinstance(built, Evidence)
    assert built.registers
    assert built.code_bytes
    assert built.instructions["barrier"] > 0
    assert built.compile_s > 0
    assert isinstance(refused, Failure)
    assert refused.stage == "launch"
    assert refused.message == "256 logits to a thread, of 1000 columns: at most 128 are worth compiling"
    capsys.readouterr()
    assert look("--json") == (0, [])
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["complete"], told["configs"], told["compiled"], told["failed"]) == (True, 3, 2, {"launch": 1})
    assert told["median_compile_s"] <= told["total_compile_s"]
    assert "unknown" not in evidence.report([told])
    assert look("--target", "hip:gfx942") == (0, asked)
    assert read_evidence(tmp_path / "cross_entropy.gfx942.jsonl.gz").results.keys() == set(CONFIGS)


def test_a_long_run_tells_how_far_it_has_come(
    look: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look("--sample", "0")
    monkeypatch.setattr(evidence, "REPORT_EVERY_S", 0.0)
    look()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("evidence: cross_entropy sm_90: 2 of 3 configs, ")
    assert second.startswith("evidence: cross_entropy sm_90: 3 of 3 configs, ")
    assert second.endswith(" a second, 0 min left")


def test_configs_of_unknown_spilling_are_counted_apart(
    look: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    look()
    header, *lines = lines_of(tmp_path / f"{NAME}.gz")
    first = json.loads(lines[0])
    del first["evidence"]["spill_bytes"]
    (tmp_path / f"{NAME}.gz").write_bytes(
        gzip.compress("\n".join([header, json.dumps(first), *lines[1:], ""]).encode())
    )
    capsys.readouterr()
    assert look() == (0, [])
    assert " 0, 1 unknown " in capsys.readouterr().out


def test_what_a_torn_line_was_about_is_asked_again_and_nothing_else_is(look: Any, tmp_path: Path) -> None:
    look()
    header, *lines = lines_of(tmp_path / f"{NAME}.gz")
    (tmp_path / f"{NAME}.gz").unlink()
    (tmp_path / NAME).write_text(f"{header}\n{lines[0]}\n{lines[1]}\n{lines[2][:40]}")
    assert list(read_evidence(tmp_path / NAME).results) == CONFIGS[:2]
    assert look() == (0, CONFIGS[2:])
    assert lines_of(tmp_path / f"{NAME}.gz")[:3] == [header, *lines[:2]]
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    ("part", "then", "said"),
    [
        ("toolchain", {"triton": "3.0.0"}, "of another toolchain (triton 3.0.0, now "),
        ("source", "0" * 32, f"of another source ({'0' * 32}, now "),
        ("sizes", {"rows": 1, "columns": 1000}, "of another sizes (rows 1, now 65536)"),
    ],
)
def test_a_table_of_another_origin_stays_until_its_replacement_is_complete(
    look: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, then: Any, said: str
) -> None:
    look()
    path = tmp_path / f"{NAME}.gz"
    header, *lines = lines_of(path)
    now = json.loads(header)[part]
    old = {**now, **then} if isinstance(then, dict) else then
    text = "\n".join([json.dumps({**json.loads(header), part: old}), *lines, ""])
    path.write_bytes(gzip.compress(text.encode()))
    capsys.readouterr()
    assert look("--sample", "0") == (0, CONFIGS[:1])
    assert said in capsys.readouterr().err
    assert read_evidence(path).header[part] == old
    status, asked = look()
    assert (status, set(asked)) == (0, set(CONFIGS[1:]))
    assert read_evidence(path).header[part] == now


def test_a_damaged_table_is_restarted_and_the_reader_names_the_line(
    look: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    look()
    header, *lines = lines_of(tmp_path / f"{NAME}.gz")
    (tmp_path / f"{NAME}.gz").unlink()
    (tmp_path / NAME).write_text("\n".join([header, lines[0][:30], lines[1], ""]))
    with pytest.raises(InvalidInputError, match=f"{NAME}, line 2 is no JSON"):
        read_evidence(tmp_path / NAME)
    status, asked = look()
    assert (status, set(asked)) == (0, set(CONFIGS))
    assert "begun anew" in capsys.readouterr().err
    (tmp_path / "other.jsonl").write_text('{"schema":"forecast_autotune.trace","version":1}\n')
    with pytest.raises(InvalidInputError, match="has the schema 'forecast_"):
        read_evidence(tmp_path / "other.jsonl")


def test_a_run_out_of_time_or_stopped_reports_it_and_the_next_continues(
    look: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look("--minutes", "0")[0] == 1
    assert "time is up" in capsys.readouterr().err
    (first,) = read_evidence(tmp_path / NAME).results
    add = evidence.Table.add

    def add_and_press_ctrl_c(self: Any, *given: Any) -> None:
        add(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evidence.Table, "add", add_and_press_ctrl_c)
        status, asked = look()
    assert (status, len(asked), first in asked) == (1, 2, False)
    assert "stopped" in capsys.readouterr().err
    status, asked = look()
    assert (status, len(asked)) == (0, 1)


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "calibration", "evidence", *arguments, "--to", str(folder), "--jobs", "1"]


@pytest.mark.thorough
def test_a_process_that_is_killed_half_way_goes_on_where_it_was(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "kernels"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": str(tmp_path / "triton-cache")}
    arguments = ["fp8_quant", "--target", "cuda:90", "--sample", "0", "--json"]
    path = tmp_path / "fp8_quant.sm_90.jsonl"
    with subprocess.Popen(
        command(tmp_path, *arguments), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 120
        while not (path.exists() and path.read_text().count("\n") > 1) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    before = read_evidence(path).results
    assert 1 <= len(before) < 3
    done = subprocess.run(
        command(tmp_path, *arguments), env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)
    assert (told["looked_at"], told["complete"]) == (3, False)
    after = read_evidence(path).results
    assert len(after) == 3
    assert dict(list(after.items())[: len(before)]) == dict(before)


@pytest.mark.thorough
def test_several_processes_share_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "JOBS_OF_A_FEEDER", 1)
    arguments = ["fp8_quant", "--target", "cuda:90", "--sample", "0", "--to", str(tmp_path), "--jobs", "2"]
    assert main(arguments) == 0
    variants = {config["variant"] for config in read_evidence(tmp_path / "fp8_quant.sm_90.jsonl").results}
    assert variants == {"one_pass", "persistent", "two_kernels"}


@needs_nvcc
def test_a_cuda_kernel_has_a_table_of_what_nvcc_says(tmp_path: Path) -> None:
    arguments = ["cuda_transpose", "--target", "cuda:90", "--sample", "0", "--to", str(tmp_path)]
    assert main(arguments) == 0
    table = read_evidence(tmp_path / "cuda_transpose.sm_90.jsonl")
    (found,) = table.results.values()
    assert table.language == "cuda"
    assert isinstance(found, Evidence)
    assert found.registers
    assert found.code_bytes
    assert found.spill_bytes == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["matrix"], "no kernel 'matrix': there are "),
        (["--target", "metal:3"], "target 'metal:3' does not parse: accepted are "),
        (["--target", "cuda:35"], "no hardware sheet for 'cuda:35': did you mean "),
        (["cuda_gemm", "--target", "hip:gfx942"], "nothing to look at: "),
        (["--sample", "-1"], "--sample -1: give 0 "),
        (["--jobs", "0"], "--jobs 0: give 1 or more"),
        (["--to", "{file}/within"], "cannot be written to"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = [word.format(file=tmp_path / "file") for word in arguments]
    assert main([*given, *([] if "--to" in given else ["--to", str(tmp_path)])]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with evidence.held(tmp_path):
        assert main(["fp8_quant", "--to", str(tmp_path)]) == 2
    assert f"another run writes to {tmp_path}" in capsys.readouterr().err
