"""`evaluate` where rows, or what training says of a model, are damaged: an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibration.fit import evaluate
from calibration.fit.train import CARD
from calibration.paths import FOLDER

SCORES = ("half_brier", "half_brier_by_frequency", "brier_skill", "ece", "nll", "crps7", "accuracy", "off_by_one")
TOPS = ("top_1_percent", "top_10_percent", "top_50_percent")
ROW: dict[str, Any] = {
    "way": "sizes",
    "method": "uniform",
    "error_by_fifth": [],
    **dict.fromkeys(SCORES, 0.5),
    **dict.fromkeys(TOPS),
}


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The last line on stderr of a call that ends with 2 and prints nothing."""
    assert evaluate.main([*map(str, words)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    return told.err.splitlines()[-1]


def test_rows_of_earlier_runs_make_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "error_by_fifth": [0.5] * 5, TOPS[0]: 1.5}) + "\n")
    assert evaluate.main(["--rows", str(file), "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["spaces"], line["skill"], line[TOPS[0]]) == (2, 0.0, pytest.approx(1.5))


@pytest.mark.parametrize(
    "line",
    [
        b'{"way": "sizes", "meth',
        b'{"way": "sizes"}',
        b"[1]",
        json.dumps(ROW).encode().replace(b"uniform", b"\xff"),
        json.dumps({**ROW, "ece": None}).encode(),
        json.dumps({**ROW, "error_by_fifth": [0.5]}).encode(),
        json.dumps({**ROW, TOPS[1]: 0}).encode(),
    ],
)
def test_a_line_that_is_no_row_is_named_by_file_and_number(
    tmp_path: Path, line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(json.dumps(ROW).encode() + b"\n" + line)
    assert f"evaluate: {file}: line 2 is no " in refused(capsys, "--rows", file)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("plan", {}),
        ("left_out", []),
        ("left_out", {"sizes": "all"}),
        ("learned", [1]),
        ("chosen_on", None),
        ("model", "small"),
        ("temperature", "warm"),
    ],
)
def test_a_card_whose_field_is_damaged_is_named_with_the_field(
    tmp_path: Path, field: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    card = json.loads((FOLDER / "forecaster" / CARD).read_text())
    (tmp_path / CARD).write_text(json.dumps({**card, field: value}))
    assert f"evaluate: {tmp_path / CARD}: {field} is " in refused(capsys, tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", "3"])
def test_a_card_of_something_else_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / CARD).write_text(text)
    assert f"evaluate: {tmp_path / CARD}" in refused(capsys, tmp_path)


def test_a_whole_card_is_read() -> None:
    assert evaluate.read_card(FOLDER / "forecaster")["plan"]["objective"] == "nll"


def test_without_a_model_and_rows_a_folder_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").touch()
    assert "name a folder" in refused(capsys)
    assert "name a folder" in refused(capsys, "--rows", tmp_path / "rows.jsonl")
