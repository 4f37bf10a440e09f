from __future__ import annotations

import pytest

from forecast_autotune.cli.output import print_table, table_text

COLUMNS = ("tuner", "us", "note")
ROWS = [("stock", "9.1", "a"), ("ours, budget 4", "10.0", ""), ("first", "-", "b\x1b[31m")]


def test_columns_are_as_wide_as_their_cells_and_numbers_are_flush_right() -> None:
    assert table_text(COLUMNS, ROWS).splitlines() == [
        "tuner             us  note",
        "stock            9.1  a",
        "ours, budget 4  10.0",
        "first              -  b\\x1b[31m",
    ]


def test_the_columns_named_are_flush_right_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, ROWS, right=("tuner",))
    assert capsys.readouterr().out.splitlines()[1] == "         stock  9.1   a"


def test_a_table_without_rows_is_its_headings() -> None:
    assert table_text(COLUMNS, []) == "tuner  us  note"


def test_a_pipe_gets_the_text_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, ROWS, right=("us",))
    assert capsys.readouterr().out == table_text(COLUMNS, ROWS) + "\n"
