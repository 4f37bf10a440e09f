from __future__ import annotations

import pytest

from forecast_autotune.core.layout import Facts, Table, as_html, as_text

CONFIG = "BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 GROUP=8 num_warps=8 num_stages=3"
COLUMNS = ("decision", "kernel", "time", "config")
ROWS = [
    ("e0578833dc", "matmul(M=4096, N=4096, K=4096)", "9.5 us", CONFIG),
    ("7d63f4af1f", "softmax", "12.25 us", "ROWS=1"),
]
TABLE = Table(COLUMNS, ROWS, right=("time",))
FACTS = Facts([("store", "/a/path 12 MiB of rows, and words that go on"), ("", "more of it"), ("hits", "7")])


def test_without_a_width_each_row_and_each_fact_has_one_line() -> None:
    lines = as_text([FACTS, TABLE]).splitlines()
    assert lines[:4] == [
        "store  /a/path 12 MiB of rows, and words that go on",
        "       more of it",
        "hits   7",
        "",
    ]
    assert lines[5].split() == " ".join(ROWS[0]).split()
    assert [line.index("us") for line in lines[5:]] == [lines[5].index("us")] * 2
    assert len(lines) == 7


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_longer_than_the_width_and_no_word_is_lost(width: int) -> None:
    text = as_text([FACTS, TABLE], width=width)
    assert max(map(len, text.splitlines())) <= width
    for row in ROWS:
        for cell in row:
            assert set(cell.split()) <= set(text.split()), cell


def test_a_cell_of_two_lines_stays_in_its_column() -> None:
    assert as_text([TABLE], width=92).splitlines() == [
        "decision    kernel                              time  config",
        "e0578833dc  matmul(M=4096, N=4096, K=4096)    9.5 us  BLOCK_M=128 BLOCK_N=256 BLOCK_K=64",
        "                                                      GROUP=8 num_warps=8 num_stages=3",
        "7d63f4af1f  softmax                         12.25 us  ROWS=1",
    ]


def test_longer_cells_stand_below_their_row_with_their_columns_names() -> None:
    assert as_text([TABLE], width=60).splitlines() == [
        "decision        time",
        "e0578833dc    9.5 us",
        "  kernel  matmul(M=4096, N=4096, K=4096)",
        "  config  BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 GROUP=8",
        "          num_warps=8 num_stages=3",
        "7d63f4af1f  12.25 us",
        "  kernel  softmax",
        "  config  ROWS=1",
    ]


def test_one_column_below_has_its_heading_among_the_others() -> None:
    table = Table(("", "time", "config"), [("chosen", "9.5 us", CONFIG), ("", "10 us", "BLOCK_M=64")], right=("time",))
    assert as_text([table], width=44).splitlines() == [
        "          time",
        "  config",
        "chosen  9.5 us",
        "  BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 GROUP=8",
        "  num_warps=8 num_stages=3",
        "         10 us",
        "  BLOCK_M=64",
    ]


def test_narrow_columns_give_way_from_the_last_one_on() -> None:
    table = Table(("decision", "basis", "tried"), [("e0578833dc", "measured", "12 of 256")])
    assert as_text([table], width=24).splitlines() == [
        "decision    basis",
        "  tried",
        "e0578833dc  measured",
        "  12 of 256",
    ]


def test_a_word_longer_than_a_line_goes_on_in_the_next() -> None:
    text = as_text([Facts([("path", "/" + "x" * 70)])], width=40)
    assert text.replace("\n", "").replace(" ", "") == "path/" + "x" * 70
    assert max(map(len, text.splitlines())) <= 40


def test_facts_with_long_names_have_their_values_below() -> None:
    assert as_text([Facts([("all of a_kernel_with_a_long_name", "stride=1 padding=0 dtypes=f32")])], width=40) == (
        "all of a_kernel_with_a_long_name\n  stride=1 padding=0 dtypes=f32"
    )


def test_names_and_headings_are_emphasized_and_values_are_not() -> None:
    text = as_text([Facts([("hits", "7")]), Table(("a",), [("1",)])], emphasize=str.upper)
    assert text == "HITS  7\n\nA\n1"


def test_text_of_others_is_harmless_on_a_terminal_and_in_a_notebook() -> None:
    blocks = [Facts([("k", "\x1b[31m<b>")]), Table(("<i>",), [("a\nb",)])]
    assert "\x1b" not in as_text(blocks)
    assert "a b" in as_text(blocks)
    shown = as_html(blocks)
    assert "\\x1b[31m&lt;b&gt;" in shown
    assert "&lt;i&gt;" in shown
    assert "<b>" not in shown
