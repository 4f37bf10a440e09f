from __future__ import annotations

import gzip
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import SPACE, a_job, a_measurement

from forecast_autotune.core.config import Config
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.traces import read_trace, write_trace

RECORDED = Path(__file__).parents[4] / "shared" / "traces"


def a_recording() -> Recording:
    job = a_job()
    return Recording(
        workload=job.workload,
        hardware=job.hardware,
        toolchain=job.toolchain,
        default=SPACE[0],
        outcomes={
            SPACE[0]: a_measurement(15.0),
            SPACE[1]: Failure(stage="compile", message="line 1\nline 2", cost_s=1.0, crashed=True),
            SPACE[2]: a_measurement(10.0),
        },
    )


def a_t4(**changes: Any) -> dict[str, Any]:
    results = [
        t4_result({"block": 32, "pad": 0}, [2.0, 1.0, 4.0], compilation=500, framework=10, validation=20),
        t4_result({"block": 64, "pad": 0}, [], invalidity="runtime", compilation=250, framework=5),
        t4_result({"block": 128, "pad": 1}, [], invalidity="compile", compilation=100),
    ]
    return {"metadata": {"timeunit": "miliseconds"}, "results": results, "schema_version": "1.0.0", **changes}


def t4_result(
    config: dict[str, Any], runtimes: list[Any], invalidity: str = "correct", **times: float
) -> dict[str, Any]:
    return {"configuration": config, "invalidity": invalidity, "times": {**times, "runtimes": runtimes}}


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_recording_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    write_trace(a_recording(), tmp_path / name)
    found = read_trace(str(tmp_path / name))
    assert found == a_recording()
    assert list(found.outcomes) == list(SPACE[:3])
    assert list(found.default.knobs) == list(SPACE[0].knobs)
    assert found.workload.features == a_recording().workload.features
    assert found.workload.program.source == a_recording().workload.program.source
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_features_of_configs_come_back_to_six_digits(tmp_path: Path) -> None:
    told = {SPACE[0]: {"programs": 2048.0, "waves": 15.5151515}, SPACE[1]: {"flops": 123456789.0, "bad": float("inf")}}
    write_trace(replace(a_recording(), static_features={**told, SPACE[2]: {}}), tmp_path / "run.jsonl")
    assert read_trace(tmp_path / "run.jsonl").static_features == {
        SPACE[0]: {"programs": 2048.0, "waves": 15.5152},
        SPACE[1]: {"flops": 123457000.0},
    }


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ('{"waves": "many"}', "line 2: described has waves 'many': it must be a number"),
        ('{"waves": true}', "described has waves True: it must be a number"),
        ('{"waves": null}', "described has waves missing: it must be a number"),
        ('{"waves": 1e999}', "described has waves inf: it must be finite"),
        ('{"waves": NaN}', "line 2 holds NaN"),
        ("[1]", "line 2: described is \\[1\\]: it must be a JSON object"),
    ],
)
def test_features_of_a_config_must_be_finite_numbers(tmp_path: Path, described: str, says: str) -> None:
    write_trace(replace(a_recording(), static_features={SPACE[0]: {"waves": 1.0}}), tmp_path / "run.jsonl")
    text = (tmp_path / "run.jsonl").read_text()
    (tmp_path / "run.jsonl").write_text(text.replace('{"waves":1.0}', described))
    with pytest.raises(InvalidInputError, match=says):
        read_trace(tmp_path / "run.jsonl")


def test_equal_recordings_make_equal_files(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_trace(a_recording(), tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_a_config_with_other_knobs_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    write_trace(a_recording(), tmp_path / "run.jsonl")
    before = (tmp_path / "run.jsonl").read_bytes()
    strange = replace(a_recording(), outcomes={Config({"x": 1}): a_measurement()})
    with pytest.raises(InvalidInputError, match="knobs"):
        write_trace(strange, tmp_path / "run.jsonl")
    assert (tmp_path / "run.jsonl").read_bytes() == before


def test_t4_times_become_microseconds_and_costs_seconds(tmp_path: Path) -> None:
    path = tmp_path / "convolution_milo_A100_T4.json"
    path.write_text(json.dumps(a_t4()))
    found = read_trace(path)
    first, second, third = found.outcomes
    assert found.default == first == Config({"block": 32, "pad": 0})
    measured = found.outcomes[first]
    assert isinstance(measured, Measurement)
    assert measured.samples_us == (2000.0, 1000.0, 4000.0)
    assert measured.median_us == 2000.0
    assert (measured.compile_s, measured.run_s) == pytest.approx((0.5, 0.037))
    assert found.outcomes[second] == Failure(stage="launch", message="recorded as invalid: runtime", cost_s=0.255)
    assert found.outcomes[third] == Failure(stage="compile", message="recorded as invalid: compile", cost_s=0.1)


@pytest.mark.parametrize(
    ("name", "kernel", "hardware", "kind", "key"),
    [
        ("convolution_milo_A100_T4.json.gz", "convolution", "A100", "cuda", {"campaign": "milo"}),
        ("gemm_milo_second_MI250X_T4.json", "gemm", "MI250X", "hip", {"campaign": "milo_second"}),
        ("hotspot_W7800_T4.json", "hotspot", "W7800", "hip", {}),
        ("hotspot_W6600.json", "hotspot", "W6600", "hip", {}),
        ("hotspot_A6000_t4.JSON.GZ", "hotspot", "A6000", "cuda", {}),
        ("gemm_milo_NVIDIA RTX A4000_T4.json", "gemm", "NVIDIA RTX A4000", "cuda", {"campaign": "milo"}),
        ("mine.json", "mine", "unknown", "cuda", {}),
    ],
)
def test_a_t4_files_name_says_kernel_and_hardware(
    tmp_path: Path, name: str, kernel: str, hardware: str, kind: str, key: dict[str, str]
) -> None:
    text = json.dumps(a_t4(), indent=2).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.lower().endswith(".gz") else text)
    found = read_trace(tmp_path / name)
    assert found.workload.program.name == kernel
    assert (found.hardware.name, found.hardware.kind, found.workload.key) == (hardware, kind, key)


@pytest.mark.parametrize(
    ("hardware", "capability", "units"),
    [
        ("A100", "8.0", 108),
        ("A4000", "8.6", 48),
        ("A6000", "8.6", 84),
        ("MI250X", "gfx90a", 110),
        ("W6600", "gfx1032", 28),
        ("W7800", "gfx1100", 70),
        ("B9999", "", 0),
    ],
)
def test_a_t4_files_hardware_has_the_figures_of_its_sheet(
    tmp_path: Path, hardware: str, capability: str, units: int
) -> None:
    path = tmp_path / f"gemm_lab_{hardware}_T4.json"
    path.write_text(json.dumps(a_t4()))
    found = read_trace(path).hardware
    assert (found.name, found.capability, found.units) == (hardware, capability, units)
    assert (min(found.bandwidth_gb_per_s, found.peak_gflops, found.shared_bytes, found.max_threads) > 0) == (units > 0)


def test_what_a_benchmark_cost_beyond_its_runtimes_counts(tmp_path: Path) -> None:
    results = [t4_result({"a": 1}, [2.0, 1.0], benchmark=50, framework=-4, validation=None)]  # type: ignore[arg-type]
    (tmp_path / "a_b_T4.json").write_text(json.dumps(a_t4(results=results)))
    (measured,) = read_trace(tmp_path / "a_b_T4.json").outcomes.values()
    assert isinstance(measured, Measurement)
    assert measured.run_s == pytest.approx(0.05)  # a framework's time below nothing is a clock's error


def test_a_space_of_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "a_b_T4.json").write_text(broken_t4(results=a_t4()["results"][:1]))
    assert len(read_trace(tmp_path / "a_b_T4.json").outcomes) == 1


def test_a_config_that_stands_twice_counts_once_as_it_came_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document = a_t4()
    document["results"] += [t4_result({"pad": 0, "block": 32}, [9.0])] * 2
    (tmp_path / "a_b_T4.json").write_text(json.dumps(document))
    with caplog.at_level(logging.WARNING):
        found = read_trace(tmp_path / "a_b_T4.json")
    assert len(caplog.records) == 1
    assert "2 configs stand there more than once" in caplog.text
    assert len(found.outcomes) == 3
    assert isinstance(found.outcomes[found.default], Measurement)
    assert found.outcomes[found.default].median_us == 2000.0  # type: ignore[union-attr]


@pytest.mark.parametrize(("unit", "us"), [("ms", 1e3), ("s", 1e6), ("microseconds", 1.0), ("Nanoseconds", 1e-3)])
def test_other_units_of_time_are_understood(tmp_path: Path, unit: str, us: float) -> None:
    (tmp_path / "a_b_T4.json").write_text(json.dumps(a_t4(metadata={"timeunit": unit})))
    found = read_trace(tmp_path / "a_b_T4.json")
    assert found.outcomes[found.default].median_us == pytest.approx(2 * us)  # type: ignore[union-attr]


def broken_t4(**changes: Any) -> str:
    return json.dumps(a_t4(**changes))


BROKEN = [
    ("", "no trace"),
    ("hello, world", "no trace"),
    ("<html>", "no trace"),
    ("[]", "no trace"),
    ("{}", "no 'results'"),
    ('{"results": {}}', "no 'results'"),
    (json.dumps(a_t4(), indent=1)[:-20], "cut off"),
    (broken_t4()[:-20], "cut off"),
    (broken_t4(results=[]), "no results"),
    (broken_t4(results=[3]), "result 1"),
    (broken_t4(results=[t4_result({"a": [1]}, [1.0])]), "result 1: configuration"),
    (broken_t4(results=a_t4()["results"][1:]), "no config that ran"),
    (broken_t4(results=[t4_result({"a": 1}, [0.0])]), "runtime 0.0"),
    (broken_t4(results=[t4_result({"a": 1}, [-1])]), "runtime -1"),
    (broken_t4(results=[t4_result({"a": 1}, [float("nan")])]), "NaN"),
    (broken_t4(results=[t4_result({"a": 1}, ["1"])]), "runtime '1'"),
    (broken_t4(results=[t4_result({"a": 1}, [None])]), "runtime None"),
    (broken_t4(results=[t4_result({"a": 1}, [True])]), "runtime True"),
    (broken_t4(results=[t4_result({"a": 1}, [[1.0]])]), r"runtime \[1.0\]"),
    (broken_t4(results=[t4_result({"a": 1}, [1e300])]), r"runtime 1e\+300"),
    (broken_t4(results=[t4_result({"a": 1}, [10**400])]), "runtime 1000"),
    (broken_t4(results=[t4_result({"a": 1}, [1e-300])]), "runtime 1e-300"),
    (broken_t4(results=[t4_result({"a": 1}, [1.0])]).replace("1.0]", "1" * 5000 + "]"), "integer"),
    (broken_t4(results=[t4_result({"a": 10**400}, [1.0])]), "a number of 401 digits"),
    (broken_t4(results=[t4_result({"a": float("inf")}, [1.0])]), "Infinity"),
    (broken_t4(results=[t4_result({"a": 1}, [1.0]), t4_result({"b": 1}, [1.0])]), "result 2: config b=1 has the knobs"),
    (broken_t4(results=[t4_result([1], [1.0])]), "result 1: configuration"),  # type: ignore[arg-type]
    (broken_t4(results=[{"configuration": {"a": 1}, "times": [1.0]}]), "result 1: times"),
    (broken_t4(metadata={"timeunit": 3}), "time unit 3"),
    (broken_t4(results=[t4_result({"a": 1}, [])]), "no runtimes"),
    (broken_t4(results=[t4_result({"a": 1}, [1.0], "sideways")]), "sideways"),
    (broken_t4(results=[t4_result({"a": 1}, [1.0], compilation="x")]), "compilation"),  # type: ignore[arg-type]
    (broken_t4(metadata={"timeunit": "fortnights"}), "fortnights"),
    ('{"schema": "other", "version": 1}\n', "schema 'other'"),
    ('{"schema": "forecast_autotune.trace", "version": 2}\n', "version 2"),
    ('{"schema": "forecast_autotune.trace", "version": 1}\n', "line 1: program"),
]


@pytest.mark.parametrize(("text", "named"), BROKEN)
def test_a_file_that_is_no_whole_trace_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "a_b_T4.json").write_text(text)
    with pytest.raises(InvalidInputError, match=named) as told:
        read_trace(tmp_path / "a_b_T4.json")
    assert "a_b_T4.json" in str(told.value)


def test_a_null_is_a_knobs_value(tmp_path: Path) -> None:
    (tmp_path / "a_b_T4.json").write_text(broken_t4(results=[t4_result({"a": None, "b": "x"}, [1.0])]))
    assert read_trace(tmp_path / "a_b_T4.json").default == Config({"a": None, "b": "x"})


@pytest.mark.parametrize(
    "data", [b'{"results": ["\xe9"]}', "{}".encode("utf-16"), b"\x1f\x8b", b"\x1f\x8b\x08" + b"x" * 50]
)
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a_b_T4.json").write_bytes(data)
    with pytest.raises(InvalidInputError, match=r"no UTF-8 text|gzip data") as told:
        read_trace(tmp_path / "a_b_T4.json")
    assert "a_b_T4.json" in str(told.value)


@pytest.mark.parametrize("keep", [0.2, 0.9])
def test_gzip_that_ends_early_is_refused(tmp_path: Path, keep: float) -> None:
    data = gzip.compress(json.dumps(a_t4()).encode())
    (tmp_path / "a_b_T4.json.gz").write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(InvalidInputError, match="cut off"):
        read_trace(tmp_path / "a_b_T4.json.gz")


def test_our_own_form_cut_off_or_broken_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_trace(a_recording(), path)
    text = path.read_text()
    lines = text.splitlines()
    for broken, named in [
        (text[:-20], "cut off in line 4"),
        ("\n".join([*lines[:2], '{"config": {"BLOCK": 1}, "samples_us": [1.0]}', ""]), "line 3.*knobs"),
        ("\n".join([*lines[:2], lines[2].replace('"BLOCK":64', '"BLOCK":[]'), ""]), "line 3: config"),
        ("\n".join([*lines[:3], lines[3].replace("10.0", "0.0"), ""]), "line 4"),
        (lines[0] + "\n", "no config that ran"),
    ]:
        path.write_text(broken)
        with pytest.raises(InvalidInputError, match=named):
            read_trace(path)


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "nothing.json")


def test_eleven_thousand_configs_are_read_in_two_seconds(tmp_path: Path) -> None:
    runtimes = [1.0 + n / 100 for n in range(32)]
    results = [t4_result({f"k{k}": n * (k + 1) for k in range(8)}, runtimes, compilation=1) for n in range(11_130)]
    (tmp_path / "a_b_T4.json.gz").write_bytes(gzip.compress(json.dumps(a_t4(results=results)).encode(), 1))
    began = time.process_time()
    assert len(read_trace(tmp_path / "a_b_T4.json.gz").outcomes) == 11_130
    assert time.process_time() - began < 5  # 0.6 s on a quiet core


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded spaces are not on this machine")
def test_each_recorded_space_is_read_with_its_hardware() -> None:
    found = {path.name: read_trace(path) for path in RECORDED.glob("*_T4.json.gz")}
    sizes = {"convolution": 4362, "dedispersion": 11_130}
    hardware = {"A100": "8.0", "A4000": "8.6", "MI250X": "gfx90a", "W6600": "gfx1032"}
    assert found.keys() == {f"{kernel}_milo_{name}_T4.json.gz" for kernel in sizes for name in hardware}
    for name, recording in found.items():
        kernel, _, product, _ = name.split("_")
        assert recording.workload.program.name == kernel
        assert len(recording.outcomes) == sizes[kernel]
        assert (recording.hardware.name, recording.hardware.capability) == (product, hardware[product])
        assert recording.hardware.kind == ("cuda" if product.startswith("A") else "hip")
        assert len(recording.log2_speedups()) > 0.7 * sizes[kernel]


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded spaces are not on this machine")
@pytest.mark.parametrize(
    ("name", "ran", "of"), [("convolution_milo_A100", 4201, 4362), ("convolution_milo_MI250X", 4362, 4362)]
)
def test_a_recorded_space_is_read_whole_and_survives_our_own_form(tmp_path: Path, name: str, ran: int, of: int) -> None:
    found = read_trace(RECORDED / f"{name}_T4.json.gz")
    assert len(found.outcomes) == of
    assert len(found.log2_speedups()) == ran
    write_trace(found, tmp_path / "trace.jsonl.gz")
    assert read_trace(tmp_path / "trace.jsonl.gz") == found
