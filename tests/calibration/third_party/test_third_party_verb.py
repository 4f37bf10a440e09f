"""`third-party` where the packages are not installed; `tests/test_third_party.py` runs it where they are."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

import forecast_autotune as fa
from calibration import answers
from calibration.third_party import steps, verb
from calibration.third_party.package_tuners import import_module, modules_of
from forecast_autotune.errors import InvalidInputError

KERNEL = """
import triton
import triton.language as tl

@triton.autotune([triton.Config({{}}, num_warps=w) for w in (2, 4)], key=["n"])
@triton.jit
def {name}(x_ptr, n):
    tl.store(x_ptr, n)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose `__init__` asks for what is not there, and one module of which does."""
    folder = tmp_path / "of_somebody"
    (folder / "ops" / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text("import not_there_at_all")
    for module in ("one", "two", "three", "tests/test_one"):
        (folder / "ops" / f"{module}.py").write_text(KERNEL.format(name=module.rpartition("/")[2]))
    (folder / "ops" / "three.py").write_text("import not_there_either  # triton.autotune\n")
    (folder / "ops" / "plain.py").write_text("raise AssertionError('it names no tuner')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return folder.name


def test_a_package_that_is_half_there_is_listed_as_far_as_it_is(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(modules_of(package)) == [f"{package}.ops.{name}" for name in ("one", "three", "two")]
    assert verb.main(["--list", package, "not_there_at_all", "--json"]) == 1
    found, missing = json.loads(capsys.readouterr().out)
    assert [(t["kernel"], t["configs"], t["ours"]) for t in found["tuners"]] == [
        (f"{package}.ops.{name}.{name}", 2, True) for name in ("one", "two")
    ]
    assert (found["modules"], list(found["missing"])) == (3, [f"{package}.ops.three"])
    assert "not_there_either" in found["missing"][f"{package}.ops.three"]
    assert "no package of that name" in missing["problem"]


def test_what_a_module_lacks_is_told_in_one_line() -> None:
    assert import_module("not_there_at_all") == "ModuleNotFoundError: No module named 'not_there_at_all'"


@pytest.mark.parametrize("words", [["chunk_nothing"], ["swiglu"]])
def test_without_a_gpu_or_the_package_one_line_says_what_to_do(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb.main(words) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_a_choice_is_judged_by_the_times_of_triton_s_own_tuner() -> None:
    stock = {"timings_ms": {"a": {"x": 2.0, "y": 1.0}, "b": {"x": math.inf, "y": 1.0}, "c": {"x": 1.0}}}
    assert verb.over_best(stock, {"chosen": {"a": "x", "b": "x", "c": "x", "d": "x"}}) == {"a": 2.0, "c": 1.0}


def test_what_was_answered_is_kept_and_what_failed_is_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    asked: list[str] = []

    def answer(of: str, found: dict[str, object]) -> dict[str, object]:
        return answers.AnswerFile(file).answer((of, "ours"), lambda: asked.append(of) or found)

    assert answer("swiglu", {"first_s": 1.0}) == answer("swiglu", {"first_s": 2.0}) == {"first_s": 1.0}
    assert answer("gated_norm", {"problem": "no GPU"}) != answer("gated_norm", {"first_s": 3.0})
    assert asked == ["swiglu", "gated_norm", "gated_norm"]
    with file.open("a") as kept:
        kept.write('{"asked": ["cut o')
    assert answer("ragged", {"first_s": 4.0}) == answer("ragged", {"first_s": 5.0}) == {"first_s": 4.0}
    assert asked[3:] == ["ragged"]


def test_a_file_of_other_lines_is_refused_by_the_line(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    for line in (b"half a li", b"[1]", b"{}", b'{"asked": [["a"]], "found": {}}', b"\xff\n"):
        file.write_bytes(b'{"asked": ["a"], "found": {}}\n' + line)
        with pytest.raises(InvalidInputError, match=f"{file}: line 2 is no "):
            answers.AnswerFile(file)


def test_what_was_answered_under_other_settings_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    how = verb.Run(budget="8", steps=50, until_s=0, rehearse=False)
    asked = how.asked("swiglu", "online")
    monkeypatch.setitem(verb.MODES["online"], "FORECAST_AUTOTUNE_ONLINE_CPU", "5%")
    assert how.asked("swiglu", "online") != asked
    assert how.asked("swiglu", "ours") == ("swiglu", "ours", "8", "")


@dataclass
class LearnsSlowly:
    """A kernel whose key is measured from a step on."""

    from_step: float
    steps: int = 0

    @property
    def decisions(self) -> dict[str, Any]:
        return {"key": SimpleNamespace(basis="measured" if self.steps >= self.from_step else "forecast")}

    def step(self) -> torch.Tensor:
        self.steps += 1
        return torch.ones(2, requires_grad=True) * 2


@pytest.mark.parametrize(
    ("from_step", "until_s", "made", "measured_at"),
    [(2, 0.0, 5, 2), (math.inf, 0.0, 5, 0), (9, 60.0, 14, 9), (math.inf, 0.05, None, 0)],
)
def test_steps_go_on_until_all_is_measured_and_as_many_again(
    from_step: float, until_s: float, made: int | None, measured_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = LearnsSlowly(from_step)
    monkeypatch.setattr(steps, "living_tuners", lambda: [kernel])
    monkeypatch.setattr(fa, "tuner_of", lambda each: each)
    monkeypatch.setitem(steps.OPERATIONS, "of a kernel", lambda size: kernel.step)
    found = steps.measured("of a kernel", steps.REHEARSED, 5, until_s)
    assert found["measured_at"] == measured_at
    assert kernel.steps == made if made else found["all_s"] > until_s
