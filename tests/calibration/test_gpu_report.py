"""The report on both tuners: what it makes of its parts, and all of it on the rehearsal driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from kernel_suite import add_inplace  # noqa: E402
from rehearsed import own_triton_cache  # noqa: E402

from calibration.gpu_report import Parts, compare, compiles_counted, lines, main, own_environment, summary  # noqa: E402
from calibration.side_by_side import rehearsing  # noqa: E402

REPOSITORY = Path(__file__).parents[2]
KERNEL = add_inplace.KERNEL
CASE = KERNEL.corners[-1]
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with own_triton_cache(tmp_path / "triton-cache"):
        yield


def part(chosen: int, seconds: float = 1.0) -> dict[str, Any]:
    return {"first_call_s": seconds, "compiled": 3, "timed": 2, "chosen": chosen}


def test_what_each_chose_is_compared_with_the_best_of_all() -> None:
    found = summary(KERNEL, CASE, {"stock": part(2), "4": part(1)}, [30.0, 20.0, 10.0, None], count=4)
    stock, ours, first = found["tuners"]
    assert found["best"] == {"config": dict(KERNEL.space[2].knobs), "kernel_us": 10.0}
    assert (stock["ratio_to_best"], ours["ratio_to_best"], first["ratio_to_best"]) == (1.0, 2.0, 3.0)
    assert (ours["tuner"], ours["budget"], ours["chosen"]) == ("ours", "4", dict(KERNEL.space[1].knobs))
    assert (ours["compiled"], ours["timed"], first["compiled"]) == (3, 2, None)


def test_what_is_not_known_stays_unknown_in_the_table() -> None:
    found = summary(KERNEL, CASE, {"stock": None, "4": part(1)}, None)
    shown = list(lines([found]))
    assert [line[3:] for line in shown] == [("-",) * 5, ("1.0", "3", "2", "-", "-"), ("-",) * 5]
    assert shown[0][:2] == ("add_inplace", f"n={CASE.sizes['n']}, {len(KERNEL.space)} configs")
    assert [line[2] for line in shown] == ["stock", "ours, budget 4", "first config"]


def test_a_choice_that_does_not_run_in_turn_has_no_ratio() -> None:
    found = summary(KERNEL, CASE, {"stock": part(3)}, [30.0, 20.0, 10.0, None], count=4)
    assert found["tuners"][0]["ratio_to_best"] is None


def test_compiles_are_counted_and_what_the_cache_holds_is_not() -> None:
    call = KERNEL.make_call(CASE, 0, "cpu")
    with rehearsing([KERNEL]), compiles_counted() as compiled:
        for block, warps in ((1024, 4), (1024, 4), (1024, 8)):
            call.launch(KERNEL.function, BLOCK=block, num_warps=warps)
    assert compiled == ["add_inplace"] * 2


def test_a_parts_caches_are_its_own_and_no_setting_reaches_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "1")
    found = own_environment(tmp_path)
    assert "FORECAST_AUTOTUNE_BUDGET" not in found
    assert found["FORECAST_AUTOTUNE_DIR"] == f"{tmp_path}/store"
    assert found["TRITON_CACHE_DIR"] == f"{tmp_path}/triton"


@pytest.mark.parametrize(
    ("limit_s", "told"),
    [(0.0, "time is up (0 s): add_inplace was not begun"), (0.2, "time is up (0 s): add_inplace was cut off")],
)
def test_when_time_is_up_a_part_is_cut_off_or_not_begun_and_that_is_said(
    limit_s: float, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = Parts(limit_s=limit_s)
    assert parts.run("add_inplace", ["--rehearse", "--part", "stock"], tmp_path) is None
    assert parts.notes == [told]
    assert told in capfd.readouterr().err
    assert not parts.failed


def test_a_part_that_fails_is_noted_with_its_last_words_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    parts = Parts(limit_s=100)
    assert parts.run("add_inplace", ["--kernels", "no_such_kernel"], tmp_path) is None
    assert parts.failed
    assert "add_inplace failed with exit code 2" in parts.notes[0]
    assert "no_such_kernel" in parts.notes[0]


@needs_no_gpu
def test_without_a_gpu_it_says_so_and_exits_with_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "no GPU is to be had" in capfd.readouterr().err


def reported(words: Sequence[str], folder: Path) -> tuple[str, dict[str, Any]]:
    """The report's output and JSON, on the rehearsal driver."""
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "kernels"), os.environ.get("PYTHONPATH", "")])
    written = folder / "a" / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "calibration.gpu_report", "--rehearse", *words, "--json", str(written)],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(written.read_text())


def test_the_whole_report_is_made_on_the_rehearsal_driver(tmp_path: Path) -> None:
    shown, found = reported(["--kernels", "add_inplace", "--configs", "4", "--budgets", "2", "all"], tmp_path)
    assert {"date", "gpu", "torch", "triton", "cores", "spent_s"} <= found.keys()
    assert found["missing"] == []
    (kernel,) = found["kernels"]
    stock, two, everything, first = kernel["tuners"]
    assert (stock["compiled"], stock["timed"]) == (4, 4)
    assert (two["compiled"], two["timed"]) == (2, 2)
    assert (everything["compiled"], everything["timed"]) == (4, 4)
    assert stock["ratio_to_best"] == everything["ratio_to_best"] == 1.0
    assert stock["chosen"] == kernel["best"]["config"]
    assert first["ratio_to_best"] >= two["ratio_to_best"] >= 1.0
    assert all(tuner["first_call_s"] > 0 for tuner in (stock, two, everything))
    assert "made-up times" in shown
    assert "ours, budget all" in shown


def test_a_part_that_failed_makes_the_report_exit_with_1_after_the_table(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(parts: Parts, what: str, words: Sequence[str], caches: Path) -> None:
        parts.failed = True
        parts.notes.append(f"{what} failed")

    monkeypatch.setattr(Parts, "run", fail)
    assert main(["--rehearse", "--kernels", "add_inplace", "--budgets", "4"]) == 1
    shown = capfd.readouterr().out
    assert "ours, budget 4" in shown
    assert "missing: add_inplace over_a_block: stock failed" in shown


def test_each_part_begins_with_empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the last, which finds what stock's tuner has compiled."""
    begun: list[tuple[str, Path]] = []
    parts = Parts(limit_s=100)
    monkeypatch.setattr(Parts, "run", lambda self, what, words, caches: begun.append((words[-1], caches)))
    compare(KERNEL, CASE, ("4", "8"), None, parts)
    assert [word for word, _ in begun] == ["stock", "4", "8", "times"]
    folders = [caches for _, caches in begun]
    assert len(set(folders[:3])) == 3
    assert folders[3] == folders[0]
