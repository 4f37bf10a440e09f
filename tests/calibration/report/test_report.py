"""The report: one page that parses and needs nothing else, whose figures are those that other code comes to."""

from __future__ import annotations

import base64
import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from recorded import HERE, recording
from threadpoolctl import threadpool_limits

from forecast_autotune.core.context import ForecastContext
from forecast_autotune.surrogates.base import StatelessSurrogate

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")
pytest.importorskip("kernel_tuner")

from calibration.evaluate import honesty
from calibration.evaluate.benchmark import OURS, Entry, Search, case
from calibration.evaluate.honesty import PageForecasts
from calibration.paths import TRACES
from calibration.report import captions, chart_data, pictures
from calibration.report.chart_data import Curve
from calibration.report.page import PageContent, page
from calibration.report.report import budgets_to, main
from forecast_autotune.core.forecast import Abstention
from forecast_autotune.evaluation.replay_runner import ReplayPlan, Task
from forecast_autotune.evaluation.traces import write_trace
from forecast_autotune.surrogates.by_name import make_surrogate

REAL = TRACES / "cuda_transpose.small.NVIDIA_H200.jsonl.gz"
NASTY = 'bowl<script>alert(1)&"$x$".jsonl.gz'
WORDS = ("--methods", OURS, "random", "gp-ei", "--seeds", "2", "--budget", "7", "--jobs", "1")


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314  # we wrote it ourselves


class Page:
    """A page as parsed."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        self.root = parsed(self.text)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.root.itertext()).split())

    @property
    def images(self) -> list[str]:
        return [image.attrib["src"] for image in self.root.iter("img")]

    def table(self, first: str) -> dict[str, dict[str, str]]:
        """The table whose first heading is this one: cells by the first cell of the row, then by heading."""
        for table in self.root.iter("table"):
            head, *rows = [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
            if head[0] == first:
                return {row[0]: dict(zip(head, row, strict=True)) for row in rows}
        raise AssertionError(f"no table begins with {first}")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    found = [folder / NASTY, folder / "bowl.8192.A.jsonl.gz"]
    for path, n in zip(found, (4096, 8192), strict=True):
        write_trace(recording(n=n, hardware=HERE, best_block=6.0 + n / 4096), path)
    return found


@pytest.fixture(scope="module")
def both(traces: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, Path]:
    """The page of the two toys and a real trace, and the file that its results are kept in."""
    folder = tmp_path_factory.mktemp("page")
    kept = folder / "kept.jsonl"
    to = folder / "new" / "report.html"
    assert main([*map(str, traces), str(REAL), *WORDS, "--to", str(to), "--keep", str(kept)]) == 0
    return Page(to), kept


@pytest.fixture
def made(both: tuple[Page, Path]) -> Page:
    return both[0]


def svgs(made: Page) -> Iterator[str]:
    for source in made.images:
        yield base64.b64decode(source.removeprefix("data:image/svg+xml;base64,")).decode()


# The page ---------------------------------------------------------------------------------------------------------------


def test_all_pictures_are_there(made: Page) -> None:
    # Slowdowns together and of two kernels; three of reliability; error by fifth together and of three spaces; risk; beside.
    assert len(made.images) == (1 + 2) + 3 + (1 + 3) + 1 + 3
    for svg in svgs(made):
        assert len(list(parsed(svg).iter("{http://www.w3.org/2000/svg}path"))) > 5
    for image in made.root.iter("img"):
        assert image.attrib["alt"]


def test_the_page_loads_nothing(made: Page) -> None:
    assert not {element.tag for element in made.root.iter()} & {"script", "link", "iframe", "object", "embed", "base"}
    for element in made.root.iter():
        for name, value in element.attrib.items():
            assert name not in ("srcset", "action", "href", "style")
            assert name != "src" or value.startswith("data:image/svg+xml;base64,")
            assert not name.startswith("on")
    assert "http" not in re.sub(r"http-equiv", "", made.text)
    assert "url(" not in made.text
    assert "@import" not in made.text
    for svg in svgs(made):
        assert "<script" not in svg
        links = re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', svg)
        assert all((a or b).startswith(("#", "data:image/png;base64,")) for a, b in links)
    assert "default-src 'none'" in made.text


def test_names_are_escaped(made: Page) -> None:
    assert "<script" not in made.text
    assert "bowl&lt;script&gt;alert(1)&amp;&quot;$x$&quot;" in made.text
    assert NASTY in made.words
    assert not any("alert" in svg for svg in svgs(made))
    assert "\\x" not in made.words  # nothing of our own counts as unprintable


def test_a_name_with_control_characters_makes_a_page_that_parses() -> None:
    row = {"setting": "cold", "trace": "a\x1b[2J\udcff", "kernel": "k", "why": "no\x00", "failed": True}
    made = PageContent(
        rows=[row],
        sources=[],
        history=["\x07"],
        seeds=1,
        command="\x1b",
        code="",
        versions={},
        shipped_on=[],
        finished=False,
    )
    text = page(made)
    text.encode()
    parsed(text)
    assert "interrupted" in text
    assert "1 of the runs failed" in text


def test_the_page_says_what_it_was_made_of(made: Page) -> None:
    assert "python -m calibration report" in made.words
    assert "3 recorded spaces of 2 kernels" in made.words
    assert "2 seeds" in made.words
    for name in ("numpy", "matplotlib", "scikit-learn", "kernel-tuner", "Python"):
        assert re.search(rf"{name} \d", made.words)
    assert made.table("trace")[NASTY]["configs"] == "84"
    assert "The shipped model was fitted on" in made.words
    assert "had seen the kernel" not in made.words


def test_results_that_were_kept_make_the_same_page(both: tuple[Page, Path], traces: list[Path], tmp_path: Path) -> None:
    first, kept = both
    again = tmp_path / "again.html"
    size = kept.stat().st_size
    words = [*map(str, traces), str(REAL), *WORDS, "--to", str(again), "--keep", str(kept)]
    assert main(words) == 0
    assert kept.stat().st_size == size
    assert Page(again).images == first.images


# Its figures ------------------------------------------------------------------------------------------------------------


def test_slowdowns_are_those_of_the_searches(made: Page, traces: list[Path]) -> None:
    for method in (OURS, "random"):
        cell = made.table("method")[method]["5"]
        with threadpool_limits(1):  # as the page's: between two configs of one forecast, rounding decides
            found = [
                [
                    float(row["slowdown"])
                    for seed in range(2)
                    for row in Search(entry=Entry(trace=t, setting="x"), method=method, seed=seed, budgets=("5",)).do()
                ]
                for t in (*traces, REAL)
            ]
        mean = statistics.geometric_mean(map(statistics.median, found))
        every = sorted(s for some in found for s in some)
        assert cell == f"{mean:.3f}{every[5]:.3f} / {every[5]:.3f}"  # of six runs the worst is the 90th percentile too
        assert cell.startswith(f"{mean:.3f}")


def test_scores_are_those_that_replay_tells(traces: list[Path], tmp_path: Path) -> None:
    """On kernels that nothing was fitted on, so that the shipped model is the one that forecasts."""
    to = tmp_path / "report.html"
    assert (
        main(
            [*map(str, traces), "--methods", "random", "--seeds", "2", "--budget", "2", "--jobs", "1", "--to", str(to)]
        )
        == 0
    )
    table = Page(to).table("score")
    auto = partial(make_surrogate, "auto")
    plan = ReplayPlan(traces=tuple(traces), histories=((), ()), policy="selective", surrogate=auto)
    for known, column in ((0, "before measuring"), (10, "after 10 measured"), (50, "after 50 measured")):
        rows: list[dict[str, Any]] = [
            plan.do(Task(trace, known, draw)) for trace in range(2) for draw in range(2 if known else 1)
        ]
        for name in ("accuracy", "off_by_one", "brier_skill", "half_brier", "crps7", "nll", "ece"):
            assert float(table[chart_data.SCORES[name][0]][column]) == pytest.approx(
                statistics.fmean(row[name] for row in rows), abs=6e-4
            ), name
    assert "after 10 measured, the rest" in next(iter(table.values()))


def test_the_pictures_leave_out_what_was_measured(traces: list[Path]) -> None:
    (row,) = honesty.PageForecasts(entry=Entry(trace=traces[1], setting="x"), known=10, draws=2).do()
    wrong, confidence = np.array(row["wrong"]), np.array(row["confidence"])
    assert wrong.shape == confidence.shape == (2, 84 - 10)
    assert row["rest_accuracy"] == pytest.approx(1 - wrong.mean())
    assert row["risk"][-1] == pytest.approx(wrong.mean())
    assert row["rest_aurc"] == pytest.approx(np.mean(row["risk"]), abs=0.02)
    ran = sum(
        np.isfinite(found.speedups).sum() for found in [honesty.drawn_forecasts(case_of(traces[1]), 10, 0).rest()]
    )
    assert len(row["expected"]) == len(row["measured"]) == len(row["inside_90"]) == ran


def case_of(path: Path) -> Any:
    from calibration.evaluate.benchmark import case

    return case(Entry(trace=path, setting="x"))


def test_a_space_without_any_forecast_is_reported(traces: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(StatelessSurrogate):
        name = "silent"

        def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> list[Abstention]:
            return [Abstention("silent", "it knows nothing")] * len(context.job.space)

    entry = Entry(trace=traces[0], setting="cold")
    monkeypatch.setattr("calibration.evaluate.honesty.case", lambda _: replace(case(entry), surrogate=Silent))
    (row,) = PageForecasts(entry=entry, known=0, draws=1).do()
    assert row["expected"] == row["measured"] == row["inside_90"] == []
    assert len(row["wrong"][0]) == row["configs"]


def test_reliability_counts_every_space_alike() -> None:
    small = {"confidence": [[0.95]], "wrong": [[True]]}
    large = {"confidence": [[0.95, 0.95, 0.15]], "wrong": [[False, False, True]]}
    found = chart_data.reliability([small, large])
    assert found.count.tolist() == [1, 3]
    assert found.share.tolist() == pytest.approx([1 / 6, 1 / 2 + 1 / 3])
    assert found.accuracy.tolist() == pytest.approx([0.0, (1 / 3) / (5 / 6)])
    assert found.mean_accuracy == pytest.approx(1 / 3)


def test_combined_fifths_are_the_mean_over_spaces_between_their_bounds() -> None:
    one = {"error_by_fifth": [0.8, 0.6, 0.4, 0.2, 0.0], "error_low": [0.0] * 5, "error_high": [1.0] * 5}
    other = one | {"error_by_fifth": [0.4] * 5}
    found = chart_data.fifths_together([one, other])
    assert found is not None
    assert found.error.tolist() == pytest.approx([0.6, 0.5, 0.4, 0.3, 0.2])
    assert (found.low <= found.error).all()
    assert (found.error <= found.high).all()
    alone = chart_data.fifths_together([one, one | {"error_by_fifth": []}])
    assert alone is not None
    assert alone.high.tolist() == [1.0] * 5


def test_a_method_that_left_out_a_space_is_in_no_picture() -> None:
    rows = [searched(m, t, 1.0 + i) for m, t in (("random", "a"), ("random", "b"), ("gp-ei", "a")) for i in range(2)]
    assert set(chart_data.curves(rows)) == {"random"}
    assert set(chart_data.standings(rows)) == {("random", "10")}


def searched(method: str, trace: str, slowdown: float) -> dict[str, Any]:
    return {"setting": "cold", "trace": trace, "kernel": "k", "method": method, "budget": "10", "slowdown": slowdown}


def curve(*middle: float) -> Curve:
    values = np.array(middle)
    return Curve(budgets=np.array([1.0, 10.0, 20.0]), middle=values, low=values, high=values)


def test_a_sentence_says_who_leads_and_from_when_another_is_as_low() -> None:
    found = {OURS: curve(2.0, 1.1, 1.0), "random": curve(2.0, 1.5, 1.1), "top-forecast": curve(2.0, 1.05, 1.05)}
    text = captions.slowdowns_reading(found, [])
    assert "ours stands at 1.100" in text
    assert "random, the best of those that do not use our forecasts, at 1.500" in text
    assert "random comes as low from 20 on" in text
    assert text.endswith("lowest is top-forecast at 1.050.")
    assert captions.slowdowns_reading({}, []) == captions.NOTHING
    nothing_ran = curve(np.inf, np.inf, np.inf)
    assert captions.slowdowns_reading({OURS: nothing_ran}, []) == captions.NOTHING
    pictures.slowdown_picture({OURS: nothing_ran}, banded=[OURS])


def test_a_picture_has_the_same_bytes_each_time() -> None:
    found = {m: curve(2.0, 1.5, 1.1) for m in (OURS, "random", "kt-pso")}
    assert pictures.slowdown_picture(found) == pictures.slowdown_picture(found)


def test_every_method_has_a_look_of_its_own_by_default() -> None:
    from calibration.report.report import METHODS_COLD, METHODS_WITH_HISTORY

    for methods in (METHODS_COLD, METHODS_WITH_HISTORY):
        assert len(methods) <= 8
        assert len({str(pictures.style_of(m)) for m in methods}) == len(methods)


# The command ------------------------------------------------------------------------------------------------------------


def test_budgets_are_even_on_a_logarithmic_scale() -> None:
    assert budgets_to(50) == ("0", "1", "2", "3", "5", "7", "10", "15", "20", "30", "50")
    assert budgets_to(1) == ("0", "1")
    assert budgets_to(12)[-2:] == ("10", "12")


def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, missing = tmp_path / "broken.jsonl.gz", tmp_path / "missing.jsonl.gz"
    broken.write_bytes(b"\x1f\x8bnothing of the kind")
    for path in (broken, missing):
        assert main([str(path), "--to", str(tmp_path / "report.html")]) == 2
        assert path.name in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_what_makes_no_sense_is_refused(traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twin = tmp_path / traces[1].name
    twin.write_bytes(traces[1].read_bytes())
    assert main([str(traces[1]), str(twin), "--to", str(tmp_path / "report.html")]) == 2
    assert "same name" in capsys.readouterr().err
    assert main([str(twin), "--methods", "magic"]) == 2
    assert "no method 'magic'" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main([str(twin), "--to", str(tmp_path / "file" / "report.html")]) == 2
    assert "report:" in capsys.readouterr().err


def test_history_is_shown_beside_none(traces: list[Path], tmp_path: Path) -> None:
    to = tmp_path / "report.html"
    words = [
        "--history",
        str(traces[1]),
        "--methods",
        "look-up",
        "random",
        "--seeds",
        "1",
        "--budget",
        "3",
        "--jobs",
        "1",
    ]
    assert main([str(traces[0]), *words, "--to", str(to)]) == 0
    made = Page(to)
    assert "Slowdown against measurements, cold" in made.words
    assert "Slowdown against measurements, with history" in made.words
    assert "Histories are taken from bowl.8192.A.jsonl.gz" in made.words
    tables = [t for t in made.root.iter("table") if "method" in "".join(t.itertext())]
    assert ["look-up" in "".join(t.itertext()) for t in tables] == [False, True]
