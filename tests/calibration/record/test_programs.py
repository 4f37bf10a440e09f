"""Programs that are recorded: every tuner they launch, in real processes, on a simulated GPU."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import toy_program  # noqa: E402

from calibration.record import devices, program_devices  # noqa: E402
from calibration.record.measuring import shortened  # noqa: E402
from calibration.record.program_devices import Programs  # noqa: E402
from calibration.record.program_worker import without_source  # noqa: E402
from forecast_autotune.core.outcome import Failure, Measurement  # noqa: E402
from forecast_autotune.evaluation.traces import read_recorded, read_trace  # noqa: E402

PACKAGE = '''
"""A package whose kernels are tuned in three ways, as people's are."""
import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner, Heuristics

CONFIGS = [triton.Config({"BLOCK": b}, num_warps=w) for b in (128, 256, 1024) for w in (2, 4)]


class OwnTuner(Autotuner):
    """A tuner of the package's own."""

    def run(self, *args, **kwargs):
        raise AssertionError("its own tuning is not to run")

    def prune_configs(self, kwargs):
        return [c for c in super().prune_configs(kwargs) if c.kwargs["BLOCK"] < 1024 or self.nargs["n"] > 5000]


@triton.jit
def scale(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y_ptr + at, tl.load(x_ptr + at) * factor)
    else:
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


below = Heuristics(scale, scale.arg_names, {"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
own = OwnTuner(below, scale.arg_names, CONFIGS, ["n"], None, None)


@triton.autotune(configs=CONFIGS[:4], key=["n"], restore_value=["x_ptr"])
@triton.jit
def add_in_place(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def run(n):
    x, y = torch.ones(n), torch.empty(n)
    own[grid](x, y, n, 2.0)
    assert own.best_config in CONFIGS
    add_in_place[grid](x, y, n)
    double[(1,)](x, y, n, BLOCK=512, num_warps=8, num_ctas=1)
'''

PROGRAM = """
import sys
import toykernels
for n in map(int, sys.argv[1:]):
    toykernels.run(n)
print("this goes to stderr")
"""

Run = Callable[..., int]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that calls an installed package's kernels at the sizes it is given; devices are simulated."""
    package, about = tmp_path / "site" / "toykernels", tmp_path / "site" / "toykernels-1.2.dist-info"
    for folder in (package, about):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toykernels\nVersion: 1.2\n")
    (about / "RECORD").write_text("toykernels/__init__.py,,\n")
    script = tmp_path / "calls.py"
    script.write_text(PROGRAM)
    support = Path(toy_program.__file__).parent
    searched = [str(tmp_path / "site"), str(support), *filter(None, sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(searched))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setattr(program_devices, "COMMAND", (sys.executable, toy_program.__file__))
    return script


@pytest.fixture
def record(tmp_path: Path) -> Run:
    """Records a program, with the options given and the sizes that it is to be called with."""

    def run(script: Path, *options: str, sizes: str = "1000", minutes: str = "4") -> int:
        given = [str(script), "--devices", "cpu", "--minutes", minutes, "--to", str(tmp_path / "traces")]
        return devices.main([*given, "--work", str(tmp_path / "work"), *options, "--", *sizes.split()])

    return run


def traces_in(folder: Path) -> dict[str, list[Path]]:
    """Traces by kernel."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.jsonl.gz")):
        found.setdefault(path.name.partition(".")[0], []).append(path)
    return found


@pytest.mark.thorough
def test_every_tuner_of_a_package_is_recorded_key_by_key(
    program: Path, record: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert record(program, "--untuned", sizes="1000 6000") == 0
    said = capfd.readouterr()
    assert said.out == f"1 of 1 programs ran to their end, 6 new traces in {tmp_path / 'traces'}\n"
    assert "this goes to stderr" in said.err
    found = traces_in(tmp_path / "traces")
    assert {name: len(paths) for name, paths in found.items()} == {"scale": 2, "add_in_place": 2, "double": 2}
    assert {path.parent.name for paths in found.values() for path in paths} == {"toykernels"}

    by_size = {read_trace(path).workload.key["n"]: path for path in found["scale"]}
    small, large = (read_trace(by_size[n]) for n in (1000, 6000))
    assert (len(small.outcomes), len(large.outcomes)) == (4, 6), (
        "its pruning leaves out blocks of 1024 for few elements"
    )
    for config, outcome in large.outcomes.items():
        assert isinstance(outcome, Measurement)
        assert outcome.median_us == pytest.approx(20_000 + config["BLOCK"] + 100 * config["num_warps"], rel=1e-3)
    assert large.static_features.keys() == large.outcomes.keys()
    assert {large.static_features[c]["programs"] for c in large.outcomes} == {47.0, 24.0, 6.0}
    told = read_recorded(by_size[6000])
    assert [told[n] for n in ("package", "version", "path", "module", "qualname", "script", "tuned")] == [
        "toykernels", "1.2", "toykernels/__init__.py", "toykernels", "scale", "calls", True,
    ]  # fmt: skip
    tensor = {"tensor": "float32", "shape": [6000], "stride": [1]}
    assert told["call"] == {
        "args": [tensor, tensor, 6000, 2.0], "kwargs": {}, "grids": [[47], [47], [24], [24], [6], [6]],
    }  # fmt: skip

    untuned = read_trace(found["double"][0])
    assert read_recorded(found["double"][0])["tuned"] is False
    assert (untuned.default["num_warps"], untuned.default["num_stages"], len(untuned.outcomes)) == (8, 3, 20)
    for path in (path for paths in found.values() for path in paths):
        text = gzip.decompress(path.read_bytes()).decode()
        assert not any(words in text for words in ("tl.load", "def scale", "program_id")), "no source of a package"
        assert read_trace(path).workload.program.source == ""


@pytest.mark.thorough
@pytest.mark.parametrize("deaths", ["1", "100"])
def test_a_recording_goes_on_after_a_config_kills_its_process(
    program: Path, record: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: str
) -> None:
    monkeypatch.setenv("TOY_DIES", str(tmp_path / "died"))
    monkeypatch.setenv("TOY_DEATHS", deaths)
    assert record(program) == (0 if deaths == "1" else 1)
    assert (tmp_path / "died").exists()
    found = traces_in(tmp_path / "traces")
    blocks = {c["BLOCK"]: o for c, o in read_trace(found["scale"][0]).outcomes.items() if c["num_warps"] == 2}
    assert isinstance(blocks[128], Measurement)
    assert isinstance(blocks[256], Measurement if deaths == "1" else Failure)


@pytest.mark.thorough
def test_what_was_recorded_is_not_measured_again_and_stays_as_it_is(
    program: Path, record: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert record(program) == 0
    before = {path: path.read_bytes() for paths in traces_in(tmp_path / "traces").values() for path in paths}
    capfd.readouterr()
    assert record(program, sizes="1000 2000") == 0
    assert "2 new traces" in capfd.readouterr().out
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.thorough
def test_failing_programs_are_reported_and_what_was_measured_is_kept(
    program: Path, record: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program.write_text(PROGRAM + "raise ValueError('the program is at fault')\n")
    assert record(program) == 1
    said = capfd.readouterr()
    assert "calls: 2 keys: ValueError: the program is at fault" in said.err
    assert said.out.startswith("0 of 1 programs ran to their end, 2 new traces")
    program.write_text("print('no kernel here')\n")
    assert record(program) == 1
    assert "it launched no autotuned kernel: --untuned records others" in capfd.readouterr().err
    assert record(program, minutes="0.01") == 1
    assert "0 of 1 programs ran to their end" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere.py"], "there is no program 'nowhere.py'"),
        (["matmul", "a.py"], "give either programs or kernels"),
        (["matmul", "--", "3"], "what comes after -- is given to a program: name one"),
    ],
)
def test_what_cannot_be_recorded_is_said_at_once(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--to", str(tmp_path), "--work", str(tmp_path / "work")]
    assert devices.main([*options, *words]) == 2
    assert reason in capsys.readouterr().err


def test_programs_need_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    script = tmp_path / "calls.py"
    script.touch()
    assert devices.main([str(script), "--to", str(tmp_path), "--work", str(tmp_path / "work")]) == 2
    assert "there is no GPU here: what programs launch is recorded on one" in capsys.readouterr().err


def test_devices_without_a_program_of_their_own_help_where_one_runs() -> None:
    programs = Programs(["a", "b", "c"])
    assert [programs.next(device) for device in ("x", "y", "x")] == ["a", "b", "c"]
    programs.end("a")
    assert programs.next("y") == "c"
    programs.end("c")
    assert programs.next("x") == "b"
    programs.end("b")
    assert [programs.next(device) for device in ("x", "y")] == [None, None]


def test_a_program_whose_share_of_the_time_is_up_goes_on_after_the_others() -> None:
    programs = Programs(["a", "b"])
    assert programs.next("x") == "a"
    programs.again("a", "x")
    assert [programs.next("x"), programs.next("y")] == ["b", "a"]
    programs.again("b", "x")
    programs.end("b")
    assert programs.next("x") == "a", "what has come to its end meanwhile is not run again"


def test_a_failure_keeps_its_place_and_reason_and_no_code() -> None:
    message = (
        "CompilationError: at 7:11:\ndef kernel(x):\n    secret = tl.load(x)\n           ^\nValueError('a reason')"
    )
    told = without_source(shortened(Failure(stage="compile", message=message)))
    assert isinstance(told, Failure)
    assert told.message == "CompilationError: at 7:11: ValueError('a reason')"
    told = without_source(Failure(stage="compile", message="CompileTimeAssertionFailure: at 6:4:\n    secret\n    ^"))
    assert isinstance(told, Failure)
    assert told.message == "CompileTimeAssertionFailure: at 6:4:"


@pytest.mark.thorough
def test_a_trace_is_described_again_only_where_its_package_is_unchanged(
    program: Path, record: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record(program, "--untuned") == 0
    paths = [path for found in traces_in(tmp_path / "traces").values() for path in found]
    before = {path: gzip.decompress(path.read_bytes()).decode().splitlines() for path in paths}
    for path, lines in before.items():
        bare = [line.partition(',"described":{')[0].removesuffix("}") + "}" for line in lines[1:]]
        path.write_bytes(gzip.compress("\n".join([lines[0], *bare, ""]).encode()))

    def described(*paths: Path) -> list[str]:
        script = "import sys; from pathlib import Path; from calibration.record.describe import describe_trace as d; "
        script += "print(*(f'{t.described} {t.left}'.strip() for t in map(d, map(Path, sys.argv[1:]))), sep='\\n')"
        command = [sys.executable, "-c", script, *paths]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    assert described(*paths) == [str(len(before[path]) - 1) for path in paths]
    assert {path: gzip.decompress(path.read_bytes()).decode().splitlines() for path in paths} == before
    path = paths[-1]
    about = tmp_path / "site" / "toykernels-1.2.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toykernels\nVersion: 1.3\n")
    assert described(path) == ["0 toykernels is installed in version 1.3, and 1.2 was recorded"]
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toykernels\nVersion: 1.2\n")
    module = tmp_path / "site" / "toykernels" / "__init__.py"
    module.write_text(PACKAGE.replace("tl.load(x_ptr + at", "tl.load(x_ptr + at + 0"))
    assert described(path) == ["0 scale of toykernels is another kernel than was recorded"]
    module.rename(module.with_name("other.py"))
    (left,) = described(path)
    assert left.startswith("0 toykernels 1.2 is not there: toykernels.scale cannot be reached")
