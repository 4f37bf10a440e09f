from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from contracts.store_contract import SPACE, a_job, a_measurement

from forecast_autotune.cli import main
from forecast_autotune.core.knob_effect import KnobEffect
from forecast_autotune.core.outcome import Failure
from forecast_autotune.language.answers import Bins
from forecast_autotune.store.sqlite import SqliteStore


@pytest.fixture
def folder(tmp_path: Path) -> str:
    with SqliteStore(tmp_path / "store") as store:
        for name in ("rmsnorm", "evil[bold]\x1b[31m"):
            for config in SPACE:
                us = 10.0 if config["num_warps"] == 4 else 20.0
                store.record_outcome(a_job(name=name), "run", config, a_measurement(us), None)
        for n in (1, 2, 3):
            store.record_outcome(a_job(name="fails", key={"n": n}), "run", SPACE[0], a_measurement(), None)
            failure = Failure(stage="launch", message="out of\nmemory")
            store.record_outcome(a_job(name="fails", key={"n": n}), "run", SPACE[1], failure, None)
    return str(tmp_path / "store")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(arguments) == code
    told = capsys.readouterr()
    return told.out, told.err


def test_the_most_telling_change_comes_first_on_a_line_of_its_own(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = printed(capsys, "skills", "--dir", folder)
    lines = [line.split() for line in out.splitlines()]
    assert err == ""
    assert " ".join(lines[1]) == "fails (triton) num_warps 2 -> 4 NVIDIA H200 (132 SMs) 0 3 launch: out of in 3"
    assert "num_warps 2 -> 4" in out
    assert "2.00x" in out
    assert "\x1b" not in out
    assert "evil[bold]\\x1b[31m" in out
    assert len(printed(capsys, "skills", "--dir", folder, "--limit", "2")[0].splitlines()) == 3


def test_programs_get_every_field(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "skills", "--dir", folder, "--json", "--hardware", "h200", "--kernel", "rms")[0])
    assert set(found[0]) == {field.name for field in fields(KnobEffect)} | {"text"}
    assert (found[0]["knob"], found[0]["before"], found[0]["after"], found[0]["tried"]) == ("num_warps", 2, 4, 3)
    assert found[0]["speedup"] == pytest.approx(2.0)
    assert found[0]["text"].startswith(
        "num_warps 2 -> 4, in rmsnorm (triton), on NVIDIA H200 (132 SMs): 2.00x, faster in 3"
    )


def test_an_empty_result_is_one_line(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = printed(capsys, "skills", "--dir", folder, "--kernel", "nothing", code=1)
    assert (out, err.count("\n")) == ("", 1)
    assert "at least three pairs" in err
    out, err = printed(capsys, "skills", "--dir", str(tmp_path / "none"), "--json", code=1)
    assert json.loads(out) == []
    assert "nothing has been tuned here yet" in err
    assert printed(capsys, "skills", "--dir", folder, "--limit", "0", code=2)[0] == ""


def test_answers_are_counted_and_their_removal_is_reported(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    with SqliteStore(folder) as store:
        store.keep_answers({"q": Bins(probabilities=(0.125,) * 8, raw_sum=1.0)})
    assert "1 of language models" in printed(capsys, "stats", "--dir", folder)[0]
    assert json.loads(printed(capsys, "stats", "--dir", folder, "--json")[0])["answers"] == 1
    assert "1 answers of language models" in printed(capsys, "clear", "--dir", folder, "--yes")[1]
    assert "none of language models" in printed(capsys, "stats", "--dir", folder)[0]
