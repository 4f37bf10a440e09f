"""`completion` and `--version`: a real bash completes the command by the script; versions are found without imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from forecast_autotune.cli import main
from forecast_autotune.cli._commands import COMMANDS
from forecast_autotune.cli._version import versions
from forecast_autotune.cli.completion import SHELLS

# A shell's own way to ask: the words, which of them is typed, the function that is registered for the command.
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
set -- $(complete -p forecast-autotune)
while [ "$1" != -F ]; do shift; done
"$2"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return told.out


def completed(text: str, folder: Path, *words: str) -> set[str]:
    """What bash offers for the last of these words, typed after the command's name."""
    (folder / "script.bash").write_text(text)
    asked = ["bash", "--norc", "-c", ASK, "bash", "script.bash", "forecast-autotune", *words]
    told = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=True)
    assert told.stderr == ""
    return set(told.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_verbs_options_choices_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script("bash", capsys)
    (tmp_path / "softmax.jsonl").touch()
    (tmp_path / "store").mkdir()
    assert completed(text, tmp_path, "") == set(COMMANDS)
    assert completed(text, tmp_path, "s") == {verb for verb in COMMANDS if verb.startswith("s")}
    assert completed(text, tmp_path, "--v") == {"--version"}
    assert completed(text, tmp_path, "list", "--k") == {"--kernel"}
    assert completed(text, tmp_path, "list", "--dir", "st") == {"store"}
    assert "selective" in completed(text, tmp_path, "replay", "--policy", "")
    assert completed(text, tmp_path, "replay", "soft") == {"softmax.jsonl"}
    assert completed(text, tmp_path, "completion", "") == set(SHELLS)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_s_script_knows_every_verb(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = script(shell, capsys)
    for verb in COMMANDS:
        assert verb in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_without_shtab_the_line_that_installs_it_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("forecast-autotune: ")
    assert "pip install 'forecast-autotune[completion]'" in told.err


def test_the_version_is_printed_by_the_command_and_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out.splitlines()[0] == f"forecast-autotune {version('forecast-autotune')}"
    done = subprocess.run([sys.executable, "-m", "forecast_autotune", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, told.out)


def test_versions_of_what_is_tuned_with_are_found_without_imports() -> None:
    program = (
        "import sys; from forecast_autotune.cli import main; main(['--version']); "
        "print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *_, torch, _, imported = told.stdout.splitlines()
    assert torch == f"torch {version('torch')}"
    assert imported == "[]"


def test_a_build_of_triton_with_another_name_is_told_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"pytorch-triton-rocm": "3.7.1", "forecast-autotune": "0.1.0"}

    def of(name: str) -> str:
        from importlib.metadata import PackageNotFoundError

        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr("importlib.metadata.version", of)
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"triton": ["pytorch-triton-rocm"]})
    assert versions()[:3] == ["forecast-autotune 0.1.0", "pytorch-triton-rocm 3.7.1", "torch not installed"]
