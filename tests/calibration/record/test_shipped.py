"""The traces and tables that ship: whole, of one device each, with their sources, and of use to a replay."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("triton")

from kernel_suite import SuiteKernel

import calibration
from calibration.record.evidence import read_evidence
from calibration.record.worker import recordable
from forecast_autotune.cli import main
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Evidence, Failure, Measurement
from forecast_autotune.evaluation.traces import read_recorded, read_trace

HERE = Path(calibration.__file__).parent
TRACES = sorted((HERE / "traces").glob("*.jsonl.gz"))
TABLES = sorted((HERE / "evidence").glob("*.jsonl.gz"))


@pytest.fixture(scope="module")
def recordings() -> dict[Path, Recording]:
    return {path: read_trace(path) for path in TRACES}


def test_they_hold_ten_thousand_measurements_in_few_megabytes(recordings: dict[Path, Recording]) -> None:
    ran = sum(isinstance(o, Measurement) for r in recordings.values() for o in r.outcomes.values())
    assert ran >= 10_000
    assert sum(path.stat().st_size for path in TRACES) < 20e6


def test_each_recording_names_one_workload_one_device_and_how_it_was_made(
    recordings: dict[Path, Recording],
) -> None:
    kernels, met = recordable("cuda"), Counter[tuple[object, ...]]()
    for path, recording in recordings.items():
        recorded = read_recorded(path)
        kernel = kernels[str(recorded["kernel"])]
        assert recorded["case"] in {case.name for case in kernel.cases}
        assert path.name.startswith(f"{recorded['kernel']}.{recorded['case']}.")
        assert recorded["agrees_with_reference"] is True, path.name
        assert recorded["device"]
        assert recording.hardware.kind == "cuda"
        assert {"torch", "cuda" if recording.workload.program.language == "triton" else "nvcc"} <= set(
            recording.toolchain.versions
        )
        met[recorded["kernel"], recorded["case"], recording.hardware.digest] += 1
    assert set(met.values()) == {1}
    assert {kernel for kernel, *_ in met} == set(kernels)


def test_each_recording_samples_every_variant_and_keeps_how_it_was_timed(
    recordings: dict[Path, Recording],
) -> None:
    kernels = recordable("cuda")
    for path, recording in recordings.items():
        kernel = kernels[str(read_recorded(path)["kernel"])]
        knob = "variant" if isinstance(kernel, SuiteKernel) else "source"
        counts = Counter(config[knob] for config in recording.outcomes)
        names = (
            {v.launch.__name__ for v in kernel.variants} if isinstance(kernel, SuiteKernel) else set(kernel.variants)
        )
        assert set(counts) == names, path.name
        assert all(name in recording.workload.program.source for name in names if isinstance(kernel, SuiteKernel))
        assert len(recording.outcomes) >= 64
        assert isinstance(recording.outcomes[recording.default], Measurement)
        for outcome in recording.outcomes.values():
            if isinstance(outcome, Measurement):
                assert outcome.clock_mhz
                assert outcome.temperature_c
            else:
                assert isinstance(outcome, Failure)
                assert outcome.message


def test_every_config_that_ran_on_a_gpu_is_described_without_compiling(
    recordings: dict[Path, Recording],
) -> None:
    for path, recording in recordings.items():
        ran = {config for config, outcome in recording.outcomes.items() if isinstance(outcome, Measurement)}
        if recording.workload.program.language in ("triton", "cuda"):
            assert ran <= recording.static_features.keys(), path.name
            assert all(d["programs"] >= 1 for d in recording.static_features.values())
        else:
            assert not recording.static_features


def test_tables_of_evidence_hold_every_config_of_every_space() -> None:
    found = {}
    for path in TABLES:
        table = read_evidence(path)
        kernel = recordable("cuda")[path.name.partition(".")[0]]
        spaces = [v.space for v in kernel.variants] if isinstance(kernel, SuiteKernel) else [kernel.space]
        assert len(table.results) == sum(map(len, spaces)), path.name
        built = [r for r in table.results.values() if isinstance(r, Evidence)]
        assert len(built) >= 0.8 * len(table.results), path.name
        assert all(r.registers and r.shared_bytes is not None and r.code_bytes for r in built)
        found[path.name.partition(".")[0]] = table
    assert set(found) == set(recordable("cuda"))


def test_a_replay_of_them_ends_nearer_to_the_best_the_more_it_may_measure(capsys: pytest.CaptureFixture[str]) -> None:
    some = [str(path) for path in TRACES if path.name.startswith(("softmax.", "cuda_conv2d.", "attention."))]
    assert len(some) >= 10
    assert main(["replay", *some, "--budget", "4", "--budget", "32", "--seeds", "1", "--jobs", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    loss = {s["budget"]: s["geomean_of_medians"] for s in told["summary"] if s["kernel"] is None}
    assert 1.0 <= loss["32"] < loss["4"] < 1.1
