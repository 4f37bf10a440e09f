"""The README's chart: the picture is what its figures draw, the figures are those of the runs, and READMEs say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from calibration.evaluate.benchmark import OURS, Entry, Row, Search
from calibration.paths import FOLDER, REPOSITORY, TRACES
from calibration.report import chart, pictures
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.recorded_space import read_space

REAL = TRACES / "cuda_transpose.small.NVIDIA_H200.jsonl.gz"


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(chart.FIGURES.read_text())
    return read


def test_the_chart_is_drawn_from_its_figures_to_the_byte(figures: dict[str, Any]) -> None:
    again = pictures.chart_picture(figures)
    assert chart.PICTURE.read_text() == again, "draw it again: python -m calibration chart --draw"
    root = ElementTree.fromstring(again)  # noqa: S314  # we wrote it ourselves
    assert root.tag.endswith("svg")
    assert "<script" not in again
    assert 'href="http' not in again


def test_the_lines_are_what_the_runs_beside_them_come_to(figures: dict[str, Any]) -> None:
    assert chart.lines(figures["spaces"]) == figures["lines"]
    assert chart.as_text(figures) == chart.FIGURES.read_text()
    traces = {path.name.removesuffix(".jsonl.gz"): read_space(path) for path in TRACES.glob("*.jsonl.gz")}
    assert set(figures["spaces"]) == set(traces)
    for name, space in figures["spaces"].items():
        assert (space["kernel"], space["configs"]) == (traces[name].kernel, len(traces[name].space))
        for method, slowdown in space["slowdown"].items():
            assert [len(at) for at in slowdown] == [1 if method == chart.LIST else figures["seeds"]] * len(
                chart.BUDGETS
            )
            assert set(slowdown[0]) == {round(traces[name].default_slowdown, 4)}


def test_what_readmes_say_of_the_chart_is_what_it_shows(figures: dict[str, Any]) -> None:
    told = chart.caption(figures)
    assert "with 4, 8, 16 and 32 configs measured: " in told
    assert f"measured: {figures['lines'][OURS][2]['slowdown']:.2f}, " in told
    readmes = [FOLDER / "report" / "README.md", REPOSITORY / "README.md"]
    showing = [path for path in readmes if "chart.svg)" in path.read_text()]
    assert readmes[0] in showing
    for path in showing:
        assert told in " ".join(path.read_text().split()), f"{path} shows the chart and does not say: {told}"


def test_a_search_of_the_chart_gives_the_figures_that_ship(figures: dict[str, Any]) -> None:
    shipped = figures["spaces"][REAL.name.removesuffix(".jsonl.gz")]["slowdown"]
    budgets = tuple(map(str, chart.BUDGETS))
    rows = Search(entry=Entry(trace=REAL, setting="cold"), method="random", seed=1, budgets=budgets).do()
    assert [round(float(str(row["slowdown"])), 4) for row in rows] == [at[1] for at in shipped["random"]]
    assert [[round(s, 4) for s in at] for at in chart.by_list(REAL)] == shipped["list"]


@pytest.mark.parametrize("name", ["matmul.deep", "cuda_gemm.square", "gdn_chunk_fwd_h.odd"])
def test_the_list_s_order_begins_with_the_default_and_has_every_config(name: str) -> None:
    trace = TRACES / f"{name}.NVIDIA_H200.jsonl.gz"
    order = chart.list_order(read_space(trace).kernel, trace)
    assert order[0] == 0
    assert sorted(order) == list(range(len(read_space(trace).space)))


def searched(task: Search) -> list[Row]:
    """A search that finds the best at its second measurement."""
    found = [read_space(task.entry.trace).default_slowdown, *[1.0] * (len(task.budgets) - 1)]
    return [
        {**task.entry.named, "method": task.method, "seed": task.seed, "budget": budget, "slowdown": slowdown}
        for budget, slowdown in zip(task.budgets, found, strict=True)
    ]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[Search], list[Row]]], Path]:
    """Has the command write to a folder, from searches of a single trace that are made by a function."""

    def use(search: Callable[[Search], list[Row]]) -> Path:
        (tmp_path / "traces").mkdir()
        (tmp_path / "traces" / REAL.name).symlink_to(REAL)
        monkeypatch.setattr(chart, "TRACES", tmp_path / "traces")
        monkeypatch.setattr(chart, "FIGURES", tmp_path / "chart.json")
        monkeypatch.setattr(chart, "PICTURE", tmp_path / "chart.svg")
        monkeypatch.setattr(chart, "collect", lambda tasks, *_, **__: ([r for t in tasks for r in search(t)], True))
        return tmp_path

    return use


def test_the_command_writes_figures_and_picture_and_says_them(
    elsewhere: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = elsewhere(searched)
    assert chart.main(["--seeds", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "with 4, 8, 16 and 32 configs measured: 1.00, " in told[0]
    assert told[1:] == [str(folder / "chart.json"), str(folder / "chart.svg")]
    drawn = (folder / "chart.svg").read_text()
    (folder / "chart.svg").unlink()
    assert chart.main(["--draw"]) == 0
    assert (folder / "chart.svg").read_text() == drawn


def test_a_search_without_a_result_writes_nothing(
    elsewhere: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = elsewhere(lambda task: searched(task)[:-1])
    assert chart.main(["--seeds", "1"]) == 1
    assert "no result of the search" in capsys.readouterr().err
    assert not (folder / "chart.json").exists()
    with pytest.raises(InvalidInputError, match="nothing is written"):
        chart.figures([REAL], [], 1)


def test_drawing_without_figures_is_an_error(
    elsewhere: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere(searched)
    assert chart.main(["--draw"]) == 2
    assert "chart.json" in capsys.readouterr().err
