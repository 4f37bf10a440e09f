"""The corpora beside the suite that ship: whole lists, described, small, and without source that is not ours."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

pytest.importorskip("triton")

from calibration.paths import CORPORA, traces
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.evaluation.traces import read_recorded, read_trace

KEPT_BACK = re.compile(r"flash.linear.attention|\bfla\b|liger", re.IGNORECASE)
"""Packages on whose kernels forecasts are judged: nothing is fitted on them."""


@pytest.fixture(scope="module")
def recordings() -> dict[Path, Recording]:
    return {path: read_trace(path) for path in traces("small", "packages")}


def test_they_take_few_megabytes(recordings: dict[Path, Recording]) -> None:
    assert len(recordings) >= 200
    assert sum(path.stat().st_size for path in recordings) < 4e6


def test_lists_of_small_kernels_are_whole_right_and_described(recordings: dict[Path, Recording]) -> None:
    for path in traces("small"):
        recording, recorded = recordings[path], read_recorded(path)
        assert path.name.startswith(f"{recorded['kernel']}.{recorded['case']}.")
        assert (recorded["corpus"], recorded["agrees_with_reference"]) == ("small", True), path.name
        assert isinstance(recording.outcomes[recording.default], Measurement), path.name
        assert len(recording.outcomes) == recorded["space"], path.name
        ran = {config for config, outcome in recording.outcomes.items() if isinstance(outcome, Measurement)}
        assert ran <= recording.static_features.keys(), path.name


def test_kernels_of_packages_name_where_they_come_from_and_hold_no_source(recordings: dict[Path, Recording]) -> None:
    for path in traces("packages"):
        recording, recorded = recordings[path], read_recorded(path)
        text = gzip.decompress(path.read_bytes()).decode()
        assert recording.workload.program.source == "", path
        assert not re.search(r"\btl\.\w+\(|\bdef \w+\(|@triton", text), path
        assert path.parent.name == re.sub(r"[^\w.-]+", "_", str(recorded["package"]) or str(recorded["script"]))
        assert not KEPT_BACK.search(f"{recorded['package']} {recorded['path']} {recorded['module']}"), path
        assert re.fullmatch(r"[0-9a-f]{32}", str(recorded["digest"])), path


def test_each_corpus_lies_in_the_folder_that_paths_names() -> None:
    assert {path.relative_to(CORPORA["suite"]).parts[0] for path in traces("small", "packages")} <= {
        "small",
        "packages",
    }
    assert not {*traces("suite")} & {*traces("small", "packages")}
