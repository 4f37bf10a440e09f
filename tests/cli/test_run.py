"""`run` and `tune-pending` on real programs and the processes they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forecast_autotune.cli import main

pytest.importorskip("triton")
pytest.importorskip("torch")

PROGRAM = str(Path(__file__).parent / "programs" / "scaling.py")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton-cache"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "2")
    monkeypatch.delenv("PYTHONPATH", raising=False)


def command(*arguments: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "import sys; from forecast_autotune.cli import main; sys.exit(main())", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_a_program_and_a_process_it_spawns_have_our_autotune() -> None:
    told = command("run", PROGRAM, "1000", "--spawn", "--code", "3")
    assert told.returncode == 3, told.stderr
    assert told.stdout == "rank -: ForecastAutotuner launched 2 configs\n"


def test_without_run_the_same_program_has_tritons() -> None:
    told = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=True)
    assert told.stdout == "rank -: Autotuner launched 6 configs\n"


@pytest.mark.thorough
def test_every_rank_of_torchrun_has_our_autotune() -> None:
    told = command("run", "-m", "torch.distributed.run", "--nproc-per-node", "2", PROGRAM)
    ranks = sorted(line for line in told.stdout.splitlines() if line.startswith("rank"))
    assert [line[:25] for line in ranks] == ["rank 0: ForecastAutotuner", "rank 1: ForecastAutotuner"], told.stderr


def test_a_program_without_triton_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import importlib.util, sys\n"
        "importlib.util.find_spec('triton')\n"
        "print(sys.argv[1:], sys.stdin.read(), [f for f in sys.path if 'forecast_autotune' in f and 'boot' in f])\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('triton', 'torch', 'forecast_autotune')])\n"
        "sys.exit(7)\n"
    )
    told = command("run", str(tmp_path / "plain.py"), "--help", "-m", "--", "x", text="typed")
    assert (told.returncode, told.stderr) == (7, "")
    assert told.stdout == "['--help', '-m', '--', 'x'] typed []\n[]\n"


def test_the_users_own_sitecustomize_and_path_still_hold(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.was_here = __file__\n")
    (tmp_path / "mine.py").write_text("VALUE = 5\n")
    code = "import sys, mine, sitecustomize; print(sys.was_here == sitecustomize.__file__, mine.VALUE)"
    (tmp_path / "main.py").write_text(
        f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {code!r}], text=True, capture_output=True))"
    )
    told = command("run", str(tmp_path / "main.py"), PYTHONPATH=str(tmp_path))
    assert "stdout='True 5\\n', stderr=''" in told.stdout, told.stderr


def test_an_empty_entry_of_the_path_is_the_current_folder_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "scripts" / "main.py").write_text(
        "import sys, helper\nprint([f for f in sys.path if 'lib' not in f])\n"
    )
    monkeypatch.chdir(tmp_path)
    for path in (":/somewhere", "/somewhere:", "/somewhere::/other"):
        environment = {**os.environ, "PYTHONPATH": path}
        plain = subprocess.run(
            [sys.executable, "scripts/main.py"], capture_output=True, text=True, check=True, env=environment
        )
        ours = command("run", "scripts/main.py", PYTHONPATH=path)
        assert (ours.stdout, ours.returncode) == (plain.stdout, 0), ours.stderr


def test_a_folder_is_a_program_only_with_a_main_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sh").mkdir()
    assert command("run", "sh", "-c", "echo trained").stdout == "trained\n"
    (tmp_path / "sh" / "__main__.py").write_text("print('the folder')")
    assert command("run", "sh").stdout == "the folder\n"


def test_asking_whether_triton_is_there_does_not_lose_the_hook() -> None:
    code = (
        "import importlib.util; spec = importlib.util.find_spec('triton'); import triton; "
        "print(triton.autotune.__module__, triton.runtime.autotuner.autotune is triton.autotune, "
        "type(triton.__spec__.loader).__name__, 'torch' in __import__('sys').modules)"
    )
    told = command("run", sys.executable, "-c", code)
    assert told.stdout == "forecast_autotune.frontends.triton.autotune True SourceFileLoader False\n", told.stderr


def test_an_interpreter_without_the_package_says_so_and_goes_on() -> None:
    code = "import sys; sys.modules['forecast_autotune'] = None; import triton; print(triton.__name__)"
    told = command("run", sys.executable, "-c", code)
    assert (told.returncode, told.stdout) == (0, "triton\n")
    assert "are tuned by Triton itself" in told.stderr


@pytest.mark.parametrize("arguments", [["run"], ["run", "-m"], ["run", "no-such-file.py"], ["tune-pending", "nowhere"]])
def test_without_a_program_there_is_one_message(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "give a Python file, -m MODULE, or a command" in told.err


# Pending keys -----------------------------------------------------------------------------------------------------------


def pending(capsys: pytest.CaptureFixture[str], code: int = 0) -> list[dict[str, object]]:
    assert main(["pending", "--json"]) == code
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.thorough
def test_keys_met_without_measuring_are_listed_tuned_and_settled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pending"]) == 1
    assert "there is no store at" in capsys.readouterr().err
    assert command("run", PROGRAM, "512", "600", FORECAST_AUTOTUNE_MODE="cached").returncode == 0
    found = pending(capsys)
    assert [(p["key"]["n"], p["why"], p["met"], p["rehearsal"]) for p in found] == [  # type: ignore[index]
        (600, "mode cached", 1, True),
        (512, "mode cached", 1, True),
    ]
    main(["pending"])
    assert "rehearsed NVIDIA H100 80GB HBM3 (rehearsal)" in capsys.readouterr().out

    told = command("tune-pending", PROGRAM, "512", FORECAST_AUTOTUNE_MODE="cached", FORECAST_AUTOTUNE_BUDGET="0")
    assert told.returncode == 1
    assert told.stdout == "rank -: ForecastAutotuner launched 6 configs\n"  # the budget of 0 is left aside
    assert "settled: __main__.scale(n=512" in told.stderr
    assert "was not met" in told.stderr
    assert "1 of 2 pending keys settled" in told.stderr
    assert [p["key"]["n"] for p in pending(capsys)] == [600]  # type: ignore[index]

    told = command("tune-pending", "--budget", "2", PROGRAM, "600")
    assert (told.returncode, told.stdout) == (0, "rank -: ForecastAutotuner launched 2 configs\n"), told.stderr
    assert pending(capsys, code=1) == []
    assert main(["tune-pending", PROGRAM, "600"]) == 0
    assert "no key is pending" in capsys.readouterr().err
