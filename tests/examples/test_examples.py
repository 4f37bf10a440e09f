"""Every program of kernels/examples runs as its user would run it, prints what it says, and decides what it should.

Those in Triton run on a GPU, and rehearsed where the GPU is hidden from them.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "kernels" / "examples"
LIMIT_S = 240  # against a hang: each takes under ten seconds on an idle machine

rehearsed_and_on_a_gpu = pytest.mark.parametrize(
    "on_gpu",
    [
        pytest.param(False, id="rehearsed"),
        pytest.param(
            True,
            id="gpu",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
            ],
        ),
    ],
)
every_example = pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)


def printed(name: str, folder: Path, *, on_gpu: bool = False) -> list[str]:
    """The lines that an example prints, started in a folder, with the store of this test."""
    environment = dict(os.environ) if on_gpu else {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def matched(pattern: str, lines: list[str]) -> list[tuple[str, ...]]:
    """What a pattern's groups hold in each line; every line has to match it whole."""
    found = [re.fullmatch(pattern, line) for line in lines]
    assert all(found), lines
    return [match.groups() for match in found if match]


@rehearsed_and_on_a_gpu
def test_the_first_kernel_is_tuned_for_each_size(tmp_path: Path, on_gpu: bool) -> None:
    pattern = r"n=(\d+): \{'BLOCK': (\d+)\}, \d warps: ([\d.]+)x the default's speed, (\d+) of 12 tried"
    lines = matched(pattern, printed("first_triton_kernel", tmp_path, on_gpu=on_gpu))
    assert [n for n, *_ in lines] == ["1048576", "16777216"]
    assert all(int(tried) >= 4 for *_, tried in lines)
    if not on_gpu:
        assert {(block, speed) for _, block, speed, _ in lines} == {("1024", "4.50")}


def test_the_first_kernel_runs_where_nothing_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    lines = matched(r"n=(\d+): {'BLOCK': 64}, 2 warps", printed("first_triton_kernel", tmp_path))
    assert [n for (n,) in lines] == ["1048576", "16777216"]


@pytest.mark.thorough  # torch's headers take half a minute
@pytest.mark.skipif(shutil.which("g++") is None, reason="builds variants with g++")
def test_the_dot_product_tries_every_variant_and_takes_another(tmp_path: Path) -> None:
    result, told = printed("cpp_dot", tmp_path)
    assert result == "65536.0"
    ((lanes,),) = matched(r"LANES=(\d+): [\d.]+x the default's speed, 5 of 5 tried", [told])
    assert lanes != "1"


def test_the_dot_product_is_the_one_in_the_main_readme() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (shown,) = (block for block in blocks if "load_inline(" in block)
    assert shown in (EXAMPLES / "cpp_dot.py").read_text()


def test_variants_are_decided_by_shape(tmp_path: Path) -> None:
    pattern = (
        r"(\d+) words of (?:256|1024): variant=(\w+)(?: BAGS=\d+)?: [\d.]+x the first one's speed, (\d) of 5 tried"
    )
    large, small = matched(pattern, printed("embedding_variants", tmp_path))
    assert (large[0], small[0]) == ("30000", "16")
    assert large[2] == small[2] == "5"
    assert {large[1], small[1]} <= {"built_in", "count"}  # the others are ten to hundreds of times as slow


@rehearsed_and_on_a_gpu
def test_training_goes_on_from_the_decisions_of_its_checkpoint(
    tmp_path: Path, on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORECAST_AUTOTUNE_DIR")
    first, again = (printed("training_loop", tmp_path, on_gpu=on_gpu) for _ in range(2))
    if on_gpu:
        for lines in (first, again):
            ((at_first, at_last),) = matched(r"loss ([\d.]+), then ([\d.]+)", [lines.pop(0)])
            assert float(at_last) < float(at_first) / 4
    pattern = r"(forward|backward): (BLOCK=\d+ .*): decided (now|by an earlier run)"
    decided = matched(pattern, first)
    assert [(which, when) for which, _, when in decided] == [("forward", "now"), ("backward", "now")]
    assert matched(pattern, again) == [(which, config, "by an earlier run") for which, config, _ in decided]
    assert (tmp_path / "checkpoint" / "decisions" / "store.sqlite3").exists()


@rehearsed_and_on_a_gpu
def test_the_server_measures_before_capture_and_in_idle_minutes(tmp_path: Path, on_gpu: bool) -> None:
    pattern = r"(serving|idle): batch (\d+): (ROWS=\d) .*: (measured|forecast|default), (\d+) tried"
    lines = matched(pattern, printed("graph_server", tmp_path, on_gpu=on_gpu))
    tried = {(when, batch): int(count) for when, batch, _, _, count in lines}
    assert {where for where, count in tried.items() if count == 0} == {("serving", "100")}
    assert set(tried) == {(when, batch) for when in ("serving", "idle") for batch in ("16", "1024", "100")}
    if not on_gpu:
        assert {(config, basis) for when, _, config, basis, _ in lines if when == "idle"} == {("ROWS=4", "measured")}


@rehearsed_and_on_a_gpu
def test_the_online_server_launches_at_once_and_learns_from_requests(tmp_path: Path, on_gpu: bool) -> None:
    lines = printed("online_server", tmp_path, on_gpu=on_gpu)
    at_once = matched(r"at once: batch (\d+): ROWS=\d: (default|forecast)", lines[:3])
    assert [batch for batch, _ in at_once] == ["16", "128", "1024"]
    learned = matched(r"learned: batch (\d+): ROWS=(\d): measured, (0\.\d{4}) s explored", lines[3:])
    assert [batch for batch, *_ in learned] == ["16", "128", "1024"]
    assert on_gpu or {rows for _, rows, _ in learned} == {"4"}


@rehearsed_and_on_a_gpu
def test_online_training_decides_while_it_trains(tmp_path: Path, on_gpu: bool) -> None:
    lines = printed("online_training", tmp_path, on_gpu=on_gpu)
    decided = matched(r"(backward|forward): BLOCK=(\d+), decided at step (\d+) of (\d+)", lines[:2])
    assert [which for which, *_ in decided] == ["backward", "forward"]
    assert all(1 < int(step) <= int(steps) for *_, step, steps in decided)
    assert on_gpu or {block for _, block, *_ in decided} == {"1024"}


@rehearsed_and_on_a_gpu
def test_ranks_come_to_one_decision(tmp_path: Path, on_gpu: bool) -> None:
    lines = matched(r"rank (\d): first (.+), at last (.+)", printed("torchrun_ranks", tmp_path, on_gpu=on_gpu))
    assert [rank for rank, *_ in lines] == ["0", "1"]
    (config,) = {last for *_, last in lines}
    assert on_gpu or config.startswith("BLOCK=1024 ")


def test_a_pack_decides_where_nothing_may_be_measured(tmp_path: Path) -> None:
    pattern = r"(here|there): (variant=\w+): decided (now|elsewhere)"
    here, there = matched(pattern, printed("ship_a_pack", tmp_path))
    assert (here[0], here[2]) == ("here", "now")
    assert there == ("there", here[1], "elsewhere")


@every_example
def test_examples_are_short_and_say_what_they_show_and_print(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 60
    said = ast.get_docstring(ast.parse(text)) or ""
    assert "Look at" in said
    assert "Prints" in said


@every_example
def test_no_example_has_the_name_of_a_package(path: Path) -> None:
    assert importlib.util.find_spec(path.stem) is None


@every_example
def test_every_example_is_in_the_readme(path: Path) -> None:
    assert f"| [{path.name}]({path.name}) |" in (EXAMPLES / "README.md").read_text()
