"""Kernel Tuner's cache files: those of each version, those the package itself writes, and broken ones."""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.traces import read_trace, write_trace
from forecast_autotune.features.hardware_sheets import sheet_for

NAN = float("nan")


def an_entry(block: Any, tile_size: Any, **changes: Any) -> dict[str, Any]:
    entry = {
        "block_size_x": block,
        "tile": tile_size,
        "time": 2.0,
        "times": [3.0, 1.0, 2.0],
        "compile_time": 500.0,
        "verification_time": 20,
        "benchmark_time": 100.0,
        "GFLOP/s": 1948.2,
        "strategy_time": 7,
        "framework_time": 10.0,
        "timestamp": "2023-12-22 09:54:05.502007+00:00",
    }
    return {name: value for name, value in (entry | changes).items() if value is not ...}


def a_cache(entries: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    given = {
        "device_name": "NVIDIA RTX A4000",
        "kernel_name": "convolution_kernel",
        "problem_size": [4096, 4096],
        "tune_params_keys": ["block_size_x", "tile"],
        "tune_params": {"block_size_x": [16, 32], "tile": [1, 2]},
        "objective": "time",
        "cache": {"16,2": an_entry(16, 2), "32,1": an_entry(32, 1, time=1.0, times=[1.0])}
        if entries is None
        else entries,
    }
    return {name: value for name, value in (given | changes).items() if value is not ...}


def text_of(document: dict[str, Any]) -> str:
    """As Kernel Tuner writes it: an entry a line, not closed by a line end."""
    head = json.dumps({name: v for name, v in document.items() if name != "cache"} | {"cache": {}}, indent="")[:-3]
    lines = [json.dumps({key: entry})[1:-1] for key, entry in document["cache"].items()]
    return head + "\n" + ",\n".join(lines) + "}\n}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conv.json"


def read(path: Path, document: dict[str, Any]) -> Any:
    path.write_text(text_of(document))
    return read_trace(path)


def test_a_cache_file_becomes_a_recording_in_microseconds_and_seconds(path: Path) -> None:
    found = read(path, a_cache())
    assert found.workload.program.name == "convolution_kernel"
    assert found.workload.key == {"problem_size": [4096, 4096]}
    assert found.toolchain.versions == {"recorded": "Kernel Tuner cache"}
    first, second = found.outcomes
    assert found.default == first == Config({"block_size_x": 16, "tile": 2})
    assert list(first.knobs) == ["block_size_x", "tile"]
    assert found.outcomes[first].samples_us == (3000.0, 1000.0, 2000.0)
    assert found.outcomes[first].median_us == 2000.0
    assert found.outcomes[first].compile_s == pytest.approx(0.5)
    assert found.outcomes[first].run_s == pytest.approx(0.1 + 0.02 + 0.01)
    assert found.outcomes[second].samples_us == (1000.0,)


def test_hardware_that_has_a_sheet_has_its_figures_under_the_files_name(path: Path) -> None:
    found = read(path, a_cache(device_name="NVIDIA A100-PCIE-40GB")).hardware
    assert found == sheet_for("NVIDIA A100-PCIE-40GB")
    assert found.bandwidth_gb_per_s == 1555
    found = read(path, a_cache(device_name="AMD Radeon PRO W6600")).hardware
    assert (found.kind, found.name, found.capability, found.warp_size) == ("hip", "AMD Radeon PRO W6600", "gfx1032", 32)
    assert (read(path, a_cache(device_name="Testing")).hardware.kind) == "cuda"


@pytest.mark.parametrize("device", ["", "x86_64", "Intel(R) Xeon(R) CPU @ 2.00GHz"])
def test_a_processor_is_hardware_too(path: Path, device: str) -> None:
    found = read(path, a_cache(device_name=device))
    assert found.hardware.kind == "cpu"
    assert found.hardware.name
    assert found.workload.program.language == "c++"


@pytest.mark.parametrize(
    ("failing", "stage"),
    [
        ({"__error__": "InvalidConfig", "time": ...}, "resources"),  # Kernel Tuner 1.0 and later
        ({"__error__": "CompilationFailedConfig", "time": ...}, "compile"),
        ({"__error__": "RuntimeFailedConfig"}, "launch"),
        ({"__error__": "SomethingNewConfig", "time": ...}, "launch"),
        ({"time": {"__error__": "CompilationFailedConfig"}}, "compile"),
        ({"time": "InvalidConfig"}, "resources"),  # 0.4 to 0.9
        ({"time": "CompilationFailedConfig"}, "compile"),
        ({"time": "RuntimeFailedConfig"}, "launch"),
        ({"time": ..., "GFLOP/s": "RuntimeFailedConfig"}, "launch"),
        ({"time": 1e20}, "launch"),  # up to 0.3
    ],
)
def test_a_config_that_failed_is_a_failure_in_the_words_of_every_version(
    path: Path, failing: dict[str, Any], stage: str
) -> None:
    entries = {"16,2": an_entry(16, 2), "32,1": an_entry(32, 1, times=..., **failing)}
    failure = read(path, a_cache(entries)).outcomes[Config({"block_size_x": 32, "tile": 1})]
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.cost_s) == (stage, pytest.approx(0.63))


@pytest.mark.parametrize("version", ["1.0.0", "1.0.1", "1.1.0"])
def test_a_file_that_tells_its_version_is_read(path: Path, version: str) -> None:
    found = read(path, a_cache(schema_version=version))
    assert found.toolchain.versions == {"recorded": f"Kernel Tuner cache {version}"}
    assert len(found.outcomes) == 2


def test_what_older_versions_left_out_is_not_missed(path: Path) -> None:
    costs = dict.fromkeys(
        (
            "times",
            "compile_time",
            "verification_time",
            "benchmark_time",
            "strategy_time",
            "framework_time",
            "timestamp",
        ),
        ...,
    )
    found = read(path, a_cache({"16,2": an_entry(16, 2, **costs)}, problem_size=..., objective=..., tune_params=...))
    (measured,) = found.outcomes.values()
    assert measured == Measurement(samples_us=(2000.0,), compile_s=0.0, run_s=measured.run_s)
    assert measured.run_s == pytest.approx(0.002)
    assert found.workload.key == {}


@pytest.mark.parametrize("size", [4096, [64, 32, 16], "callable", ["n", 4]])
def test_the_problem_size_is_the_key(path: Path, size: Any) -> None:
    assert read(path, a_cache(problem_size=size)).workload.key == {"problem_size": size}


def test_a_file_in_any_layout_and_in_gzip_is_read(path: Path) -> None:
    expected = read(path, a_cache())
    document = a_cache()
    for text in (
        json.dumps(document),
        json.dumps(document, indent=4) + "\n",
        json.dumps(document, sort_keys=True),
        "\ufeff" + text_of(document),
    ):
        path.write_text(text)
        assert read_trace(path) == expected
        path.with_suffix(".json.gz").write_bytes(gzip.compress(text.encode()))
        assert read_trace(path.with_suffix(".json.gz")) == expected


def test_a_cache_file_survives_our_own_form(path: Path, tmp_path: Path) -> None:
    found = read(path, a_cache())
    write_trace(found, tmp_path / "trace.jsonl")
    assert read_trace(tmp_path / "trace.jsonl") == found


def test_a_space_of_one_is_read(path: Path) -> None:
    found = read(path, a_cache({"16,2": an_entry(16, 2)}))
    assert len(found.outcomes) == 1


def test_a_metric_may_be_anything(path: Path) -> None:
    odd = {"GFLOP/s": NAN, "power": float("inf"), "names": ["a", None], "clock": {"a": 1}, "note": None}
    assert len(read(path, a_cache({"16,2": an_entry(16, 2, **odd)})).outcomes) == 1


def test_a_parameter_may_be_null_a_list_or_an_object(path: Path) -> None:
    entries = {"None,(2, 4)": an_entry(None, [2, 4]), "x,{}": an_entry("x,y", {})}
    assert list(read(path, a_cache(entries)).outcomes) == [
        Config({"block_size_x": None, "tile": "[2,4]"}),
        Config({"block_size_x": "x,y", "tile": "{}"}),
    ]


def test_a_cost_that_clocks_made_negative_is_none(path: Path) -> None:
    (measured,) = read(
        path, a_cache({"16,2": an_entry(16, 2, framework_time=-3.0, compile_time=None)})
    ).outcomes.values()
    assert measured.compile_s == 0
    assert measured.run_s == pytest.approx(0.12)


# Still being written ----------------------------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    return record.getMessage()


@pytest.mark.parametrize("ending", [",", ",\n", "", "\n", "}", "}\n"])
def test_a_file_that_is_not_closed_is_read_with_one_warning(
    path: Path, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(text_of(a_cache())[:-3] + ending)
    with caplog.at_level(logging.WARNING):
        assert len(read_trace(path).outcomes) == 2
    assert told(caplog) == f"{path} is not closed: 2 whole entries of its cache are read"


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_off_anywhere_gives_its_whole_entries(
    path: Path, packed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    text = text_of(a_cache())
    first, second = text.index('"16,2"'), text.index('"32,1"')
    ends_at = text.index("}", second) + 1
    for end in range(second + 1, ends_at):
        caplog.clear()
        path.write_bytes(gzip.compress(text[:end].encode(), 0) if packed else text[:end].encode())
        with caplog.at_level(logging.WARNING):
            assert len(read_trace(path).outcomes) == 1
        assert (
            told(caplog)
            == f"{path} is not closed: 1 whole entries of its cache are read, the last one is incomplete and left out"
        )
    for end in range(text.index('"tune_params_keys"') + 20, text.index("}", first), 7):
        path.write_text(text[:end])
        with pytest.raises(InvalidInputError, match="cut off before the first whole entry"):
            read_trace(path)


def test_the_last_of_thousands_may_be_incomplete_with_one_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = {f"{n},1": an_entry(n, 1, times=[1.0 + n / 100] * 32) for n in range(11_130)}
    path.write_text(text_of(a_cache(entries))[:-40])
    began = time.process_time()
    with caplog.at_level(logging.WARNING):
        assert len(read_trace(path).outcomes) == 11_129
    assert time.process_time() - began < 5  # 0.5 s on a quiet core
    assert "11129 whole entries" in told(caplog)


def test_a_config_that_stands_twice_counts_once_as_it_came_first(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = text_of(a_cache())[:-3]
    again = json.dumps({"16,2": an_entry(16, 2, time=9.0, times=[9.0])})[1:-1]
    path.write_text(text + ",\n" + again + ",\n" + again + "}\n}")
    with caplog.at_level(logging.WARNING):
        found = read_trace(path)
    assert told(caplog) == f"{path}: 2 configs stand there more than once; the first of each is kept"
    assert found.outcomes[found.default].median_us == 2000.0  # type: ignore[union-attr]


# Broken -----------------------------------------------------------------------------------------------------------------


def entry_with(**changes: Any) -> dict[str, Any]:
    return a_cache({"32,1": an_entry(32, 1), "16,2": an_entry(16, 2, **changes)})


BROKEN = [
    (a_cache({}), "no entries"),
    (a_cache(cache=...) | {"cache": {}}, "no entries"),
    (a_cache({"16,2": an_entry(16, 2, time="RuntimeFailedConfig", times=...)}), "no config that ran, of 1"),
    (a_cache(device_name=...), "device_name missing"),
    (a_cache(kernel_name=7), "kernel_name 7"),
    (a_cache(kernel_name="\ud800"), "surrogates"),
    (a_cache(problem_size={"x": 1}), "problem_size"),
    (a_cache(problem_size=[NAN]), "problem_size"),
    (a_cache(tune_params_keys=...), "tune_params_keys"),
    (a_cache(tune_params_keys=[]), "tune_params_keys"),
    (a_cache(tune_params_keys=["block_size_x", "tile", "unroll"]), "'16,2'.*'unroll'"),
    (entry_with(tile=...), "'16,2'.*'tile'"),
    (entry_with(tile=4), "'16,2'.*block_size_x=16 tile=4"),
    (a_cache({"16": an_entry(16, 2)}), "'16'.*other parameters"),
    (entry_with(tile=NAN), "'16,2'.*tile.*nan"),
    (entry_with(tile=[NAN]), "'16,2'.*parameter"),
    (a_cache({"1,2": an_entry(10**400, 2)}), "'1,2'"),
    (a_cache({f"{10**400},2": an_entry(10**400, 2)}), "a number of 401 digits"),
    (a_cache({"16,2": 3}), "'16,2' is 3"),
    (entry_with(time=..., times=...), "'16,2'.*neither a time nor an error"),
    (entry_with(time=None, times=None), "neither a time nor an error"),
    (entry_with(time=NAN), "'16,2' has the time nan: times are positive"),
    (entry_with(time=0), "'16,2' has the time 0: "),
    (entry_with(time=-1.5), "'16,2' has the time -1.5: "),
    (entry_with(time=True), "time True"),
    (entry_with(time="fast", times=...), "time 'fast'"),
    (entry_with(time=[2.0], times=...), "time \\[2.0\\]"),
    (entry_with(times=3.0), "times '3.0'"),
    (entry_with(times=[1.0, NAN]), "among its times nan"),
    (entry_with(times=[1.0, 0.0]), "among its times 0.0"),
    (entry_with(times=[1.0, None]), "among its times None"),
    (entry_with(times=["1.0"]), "among its times '1.0'"),
    (entry_with(compile_time="long"), "compile_time 'long'"),
    (entry_with(compile_time=NAN), "compile_time nan"),
]


@pytest.mark.parametrize(("document", "named"), BROKEN)
def test_what_is_not_as_it_should_be_is_refused_by_file_and_entry(
    path: Path, document: dict[str, Any], named: str
) -> None:
    path.write_text(text_of(document))
    with pytest.raises(InvalidInputError, match=named) as refusal:
        read_trace(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (lambda text: text.replace('"tile": 2', '"tile": 2 2'), "damaged in line 2[0-9], column"),
        (lambda text: text.replace('"time": 2.0, ', '"time": , '), "damaged in line"),
        (lambda text: text + "\n{}", "goes on behind its closing brace"),
        (lambda text: text.replace('"cache": {', '"cache": [') + "]", "damaged"),
        (lambda text: text.replace("500.0", "9" * 5000), "no cache file of Kernel Tuner"),
        (lambda text: text.replace("1948.2", "[" * 100_000), "no cache file|cut off|damaged"),
    ],
)
def test_a_damaged_file_is_refused_and_not_taken_for_an_open_one(path: Path, broken: Any, named: str) -> None:
    path.write_text(broken(text_of(a_cache())))
    with pytest.raises(InvalidInputError, match=named):
        read_trace(path)


def test_text_that_is_not_utf_8_is_refused(path: Path) -> None:
    path.write_bytes(text_of(a_cache(device_name="Caf@")).encode().replace(b"@", b"\xe9"))
    with pytest.raises(InvalidInputError, match="no UTF-8 text"):
        read_trace(path)


# As the package itself writes them --------------------------------------------------------------------------------------

SOURCE = """
extern "C" float scale(float *out, const float *in, int n) {
    for (int i = 0; i < n; i += UNROLL) for (int j = 0; j < UNROLL; j++) out[i + j] = in[i + j] * block_size_x;
    return UNROLL * 1.5f;
}
"""


@pytest.fixture
def kernel_tuner() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own and those of what it imports
        yield pytest.importorskip("kernel_tuner")


@pytest.fixture
def written(kernel_tuner: Any, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A cache file that Kernel Tuner wrote of a C function, and the results it returned; two configs failed, as it says."""
    if shutil.which("g++") is None:
        pytest.skip("compiles with g++")
    import numpy as np

    data, path = np.ones(64, np.float32), tmp_path / "scale_cache.json"
    results, _ = kernel_tuner.tune_kernel(
        "scale",
        SOURCE,
        64,
        [np.zeros_like(data), data, np.int32(64)],
        {"block_size_x": [1, 2], "UNROLL": [1, 2]},
        lang="C",
        compiler="g++",
        iterations=3,
        cache=str(path),
        quiet=True,
    )
    opened = kernel_tuner.util.read_cache(str(path), open_cache=True)["cache"]
    for block, error in ((3, kernel_tuner.util.InvalidConfig()), (4, kernel_tuner.util.CompilationFailedConfig())):
        result = {"block_size_x": block, "UNROLL": 1, "__error__": error, "compile_time": 4.0, "benchmark_time": 0.0}
        result |= {"verification_time": 0.0, "framework_time": 0.0, "strategy_time": 0.0}
        kernel_tuner.util.store_cache(f"{block},1", result, str(path), opened)
        results.append(result)
    kernel_tuner.util.close_cache(str(path))
    return path, results


def test_a_file_that_kernel_tuner_wrote_is_read_as_it_reads_it(
    written: tuple[Path, list[dict[str, Any]]], kernel_tuner: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path, results = written
    found = read_trace(path)
    assert (found.workload.program.name, found.workload.key) == ("scale", {"problem_size": 64})
    assert found.hardware.kind == "cpu"
    expected = kernel_tuner.util.read_cache(str(path), open_cache=False)["cache"]
    assert len(found.outcomes) == len(expected) == 6
    for (config, outcome), (key, entry) in zip(found.outcomes.items(), expected.items(), strict=True):
        assert key == f"{config['block_size_x']},{config['UNROLL']}"
        if "__error__" in entry:
            assert isinstance(outcome, Failure)
            assert outcome.message == f"recorded as {entry['__error__']}"
            assert (outcome.stage, outcome.cost_s) == ({3: "resources", 4: "compile"}[config["block_size_x"]], 0.004)  # type: ignore[index]
        else:
            assert isinstance(outcome, Measurement)
            assert outcome.samples_us == pytest.approx([1500.0 * int(str(config["UNROLL"]))] * 3)
            assert outcome.samples_us == pytest.approx([ms * 1e3 for ms in entry["times"]])
            assert outcome.compile_s == pytest.approx(entry["compile_time"] / 1e3)
            assert outcome.compile_s > 0

    # Opened to go on, as it does when it is started again, and stopped within the next entry.
    opened = kernel_tuner.util.read_cache(str(path), open_cache=True)["cache"]
    assert path.read_text().endswith(",")
    with caplog.at_level(logging.WARNING):
        assert read_trace(path) == found
    failed = {"block_size_x": 5, "UNROLL": 1, "__error__": kernel_tuner.util.RuntimeFailedConfig()}
    kernel_tuner.util.store_cache("5,1", failed, str(path), opened)
    stopped = read_trace(path).outcomes[Config({"block_size_x": 5, "UNROLL": 1})]
    assert isinstance(stopped, Failure)
    assert stopped.stage == "launch"
    path.write_text(path.read_text()[:-9])
    assert read_trace(path) == found
    assert "the last one is incomplete" in caplog.records[-1].getMessage()

    # The same results in the T4 form.
    kernel_tuner.file_utils.store_output_file(
        str(path.with_name("scale_lab_A100_T4.json")), results, {"block_size_x": [], "UNROLL": []}
    )
    also = read_trace(path.with_name("scale_lab_A100_T4.json"))
    assert also.outcomes.keys() == found.outcomes.keys()
    assert also.log2_speedups() == pytest.approx(found.log2_speedups())
    for config, outcome in also.outcomes.items():
        same = found.outcomes[config]
        assert type(outcome) is type(same)
        if isinstance(outcome, Failure) and isinstance(same, Failure):
            assert outcome.stage == same.stage
