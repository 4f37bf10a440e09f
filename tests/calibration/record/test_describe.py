"""Describing the configs of traces afterwards: what could be told is added, and nothing else in the files changes."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("triton")

import calibration
from calibration.record import devices
from calibration.record.describe import DescribeReport, describe_trace
from forecast_autotune.core.outcome import Failure
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.traces import read_trace
from forecast_autotune.store.encoding import to_text

TRACES = Path(calibration.__file__).parent / "traces"
CUDA = "cuda_transpose.square.NVIDIA_H200.jsonl.gz"
TRACE = "rms_norm.few_rows.NVIDIA_H200.jsonl.gz"


def lines_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A trace as it was before anything was told of its configs."""
    first, *lines = lines_of(TRACES / TRACE)
    told = [line.partition(',"described":{')[0].removesuffix("}") + "}" for line in lines]
    (tmp_path / TRACE).write_bytes(gzip.compress("".join(f"{line}\n" for line in (first, *told)).encode()))
    return tmp_path / TRACE


def test_features_that_can_be_computed_are_added_and_all_else_stays(bare: Path) -> None:
    before = lines_of(bare)
    assert not read_trace(bare).static_features
    bare.chmod(0o644)
    told = describe_trace(bare)
    assert bare.stat().st_mode & 0o777 == 0o644
    assert lines_of(bare) == lines_of(TRACES / TRACE), "features have changed: describe the traces again"
    after = lines_of(bare)
    assert after[0] == before[0]
    changed = 0
    for old, new in zip(before[1:], after[1:], strict=True):
        if new != old:
            changed += 1
            assert new.startswith(old[:-1] + ',"described":{')
            assert json.loads(old) == {n: v for n, v in json.loads(new).items() if n != "described"}
    assert told == DescribeReport(trace=TRACE, configs=len(before) - 1, described=changed)
    recording = read_trace(bare)
    refused = [o for c, o in recording.outcomes.items() if c not in recording.static_features]
    assert len(recording.static_features) == changed > len(refused) > 0
    assert all(isinstance(o, Failure) and o.stage == "launch" for o in refused), (
        "a variant that refused it then does now"
    )


def test_describing_again_changes_nothing(bare: Path) -> None:
    describe_trace(bare)
    written = bare.stat()
    describe_trace(bare)
    assert (bare.stat().st_ino, bare.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def test_features_that_differ_are_computed_again(bare: Path) -> None:
    describe_trace(bare)
    right = lines_of(bare)
    wrong = [line.replace('"described":{"threads":', '"described":{"threads":1') for line in right]
    assert wrong != right
    bare.write_bytes(gzip.compress("".join(f"{line}\n" for line in wrong).encode()))
    describe_trace(bare)
    assert lines_of(bare) == right


def test_traces_of_other_kernels_or_older_source_are_left_as_they_are(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda = bare.with_name(CUDA)
    shutil.copy(TRACES / CUDA, cuda)
    for path, was, now in ((bare, "tl.load(", "tl.load(0 + "), (cuda, "__syncthreads();", "__syncwarp();")):
        header, *lines = lines_of(path)
        older = json.loads(header)
        older["program"]["source"] = older["program"]["source"].replace(was, now)
        text = "".join(f"{line}\n" for line in (json.dumps(older), *lines))
        path.write_bytes(gzip.compress(text.encode()))
    other = bare.with_name("other.jsonl.gz")
    other.write_bytes(bare.read_bytes())
    header, *lines = lines_of(other)
    unknown = json.loads(header)
    unknown["recorded"]["kernel"] = "no_such"
    text = "".join(f"{line}\n" for line in (json.dumps(unknown), *lines))
    other.write_bytes(gzip.compress(text.encode()))
    files = {path: path.read_bytes() for path in (bare, cuda, other)}
    assert devices.main(["--describe", "--to", str(bare.parent), "--work", str(bare.parent / "work")]) == 0
    assert {path: path.read_bytes() for path in files} == files
    said = capsys.readouterr()
    assert said.out == "0 of 0 configs described in 0 traces, 3 left as they are\n"
    assert "its kernels are no longer the suite's" in said.err
    assert "no GPU kernel of the suite" in said.err


def test_a_trace_in_cuda_is_described_anew_as_it_is(bare: Path) -> None:
    pytest.importorskip("tree_sitter_cuda")
    path = bare.with_name(CUDA)
    shutil.copy(TRACES / CUDA, path)
    header, *lines = right = lines_of(path)
    plain = [json.loads(line) for line in lines]
    assert all(value.pop("described") for value in plain)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in (header, *map(to_text, plain))).encode()))
    assert describe_trace(path).described == len(lines)
    assert lines_of(path) == right


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"[]\n"))
    with pytest.raises(InvalidInputError, match=r"a.jsonl.gz, line 1 is \[\]: it must be a JSON object"):
        describe_trace(tmp_path / "a.jsonl.gz")
