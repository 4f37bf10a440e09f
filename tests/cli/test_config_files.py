"""`export --format` and `import --format`: what a user types and is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from contracts.store_contract import a_job
from moe import SPACE, keep, layer_job

from forecast_autotune.cli import main
from forecast_autotune.core.hardware import Hardware


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a store that knows two batch sizes of a layer, and a kernel of another kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "store"))
    for tokens, best in ((1, SPACE[1]), (64, SPACE[3])):
        keep(tmp_path / "store", layer_job({"M": tokens}), best)
    keep(tmp_path / "store", a_job())
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(words) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


FILE = "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json"


def test_export_says_what_it_wrote_what_it_left_out_and_how_it_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(capsys, "export", "--format", "vllm", "out").splitlines()
    assert lines == [
        f"forecast-autotune: out/{FILE}: measured for 1, 64 tokens (K=4096), the default's config for 16 other batch sizes",
        "forecast-autotune: left out 1 decision, rmsnorm: its configs set no BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, "
        "GROUP_SIZE_M, num_stages, which vllm's kernel needs",
        f"forecast-autotune: they are read under VLLM_TUNED_CONFIG_FOLDER={folder}/out",
    ]
    file = folder / "out" / FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(file.read_text())) == 19
    assert "left out" not in told(capsys, "export", "--format", "vllm", "out", "--kernel", "moe")


def test_a_file_of_the_same_name_is_replaced_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "out").mkdir()
    (folder / "out" / FILE).write_text('{"7": {')
    told(capsys, "export", "--format", "vllm", "out")
    assert "7" not in json.loads((folder / "out" / FILE).read_text())
    assert [file.name for file in (folder / "out").iterdir()] == [FILE]


def test_where_nothing_fits_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    err = told(capsys, "export", "--format", "vllm", "out", "--kernel", "rmsnorm", code=1)
    assert "nothing measured here goes into files of vllm" in err
    err = told(capsys, "export", "--format", "vllm", "out", "--hardware", "H200", "--kernel", "moe", code=1)
    assert "nothing measured here" in err
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["vllm", "sglang", "fla"])
def test_decisions_of_a_cpu_go_into_no_file_and_the_reason_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    keep(folder / "cpu", a_job(hardware=Hardware(kind="cpu", name="AMD EPYC", units=2)))
    err = told(capsys, "export", "--format", name, "out", "--dir", str(folder / "cpu"), code=1)
    assert err.endswith(f"files of {name}: they take decisions that were measured on a GPU, and here are none\n")


def test_a_kernel_that_is_misspelt_is_named_where_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    err = told(capsys, "export", "--format", "vllm", "out", "--kernel", "mo_e", "--hardware", "H100", code=1)
    assert err.endswith(
        "and here are none with 'mo_e' in the name of the kernel and 'H100' in the name of the hardware\n"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--where", "K=1"), "an export without it is whole"),
        (("--kernel", "moe"), "an export without it is whole"),
        (("--format", "fla", "--where", "K=1"), "this format takes none"),
        (("--format", "vllm", "--where", "K"), "accepted is NAME=VALUE"),
        (("--format", "fla", "--hardware", "NVIDIA"), "choose one with --hardware"),
        (("--format", "other"), "invalid choice: 'other'"),
        (("--format", "vllm", "--sources"), "into a folder of this machine"),
    ],
)
def test_what_makes_no_sense_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    assert complaint in told(capsys, "export", "out", *words, code=2)
    assert not (folder / "out").exists()


def test_where_the_folder_is_a_file_its_path_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "out").write_text("")
    err = told(capsys, "export", "--format", "vllm", "out", code=2)
    assert "out" in err
    assert "Errno" not in err


def test_import_takes_files_and_folders_and_clear_forgets_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "export", "--format", "vllm", "out")
    (folder / "out" / "other.json").write_text("no JSON")
    assert told(capsys, "import", "--format", "vllm", "out") == (
        "forecast-autotune: imported 1 config file of vllm, and passed by 1 that are named otherwise\n"
    )
    assert main(["import", "--format", "vllm", f"out/{FILE}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": 1, "passed_by": 0}
    assert "other.json has no name that vllm looks for" in told(
        capsys, "import", "--format", "vllm", "out/other.json", code=2
    )
    assert "there is no folder none" in told(capsys, "import", "--format", "vllm", f"none/{FILE}", code=2)
    assert "removed 1 imported config file" in told(capsys, "clear", "--yes")
    told(capsys, "import", "--dir", "fresh", "--format", "vllm", f"out/{FILE}")
    assert "removed 1 imported config file" in told(capsys, "clear", "--dir", "fresh", "--yes")
    assert "there is no store" in told(capsys, "clear", "--dir", "fresh", "--yes", code=1)


def test_a_path_to_import_that_is_not_there_is_said_to_be_missing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no file missing: " in told(capsys, "import", "--format", "vllm", "missing", code=2)


def test_a_folder_without_files_of_the_format_is_nothing_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "others").mkdir()
    (folder / "others" / "other.json").write_text("{}")
    assert "imported 0 config files of vllm" in told(capsys, "import", "--format", "vllm", "others", code=1)
