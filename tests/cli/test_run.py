"""`run` and `tune-pending` on real programs and the processes they start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import a_decision, a_job

from forecast_autotune.cli import main
from forecast_autotune.cli.run import run_to_its_end
from forecast_autotune.store.sqlite import SqliteStore

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


def test_a_program_and_a_process_it_spawns_are_decided_by_ours() -> None:
    told = command("run", PROGRAM, "1000", "--spawn", "--code", "3")
    assert told.returncode == 3, told.stderr
    assert told.stdout == "rank -: ours launched 2 configs\n"


def test_without_run_the_same_program_has_tritons() -> None:
    told = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=True)
    assert told.stdout == "rank -: Triton's launched 6 configs\n"


@pytest.mark.thorough
def test_every_rank_of_torchrun_has_our_autotune() -> None:
    told = command("run", "-m", "torch.distributed.run", "--nproc-per-node", "2", PROGRAM)
    ranks = sorted(line for line in told.stdout.splitlines() if line.startswith("rank"))
    assert [line[:12] for line in ranks] == ["rank 0: ours", "rank 1: ours"], told.stderr


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
        "print(triton.runtime.Autotuner.run.__code__.co_filename.rpartition('/')[2], "
        "type(triton.__spec__.loader).__name__, 'torch' in __import__('sys').modules)"
    )
    told = command("run", sys.executable, "-c", code)
    assert told.stdout == "install.py SourceFileLoader False\n", told.stderr


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
    assert told.stdout == "rank -: ours launched 6 configs\n"  # the budget of 0 is left aside
    assert "settled: __main__.scale(n=512" in told.stderr
    assert "was not met" in told.stderr
    assert "1 of 2 pending keys settled" in told.stderr
    assert [p["key"]["n"] for p in pending(capsys)] == [600]  # type: ignore[index]

    told = command("tune-pending", "--budget", "2", "--json", PROGRAM, "600")
    assert (told.returncode, json.loads(told.stdout)) == (0, {"pending": 1, "settled": 1, "new": 0, "exit_code": 0})
    assert "rank -: ours launched 2 configs\n" in told.stderr
    assert pending(capsys, code=1) == []
    assert main(["tune-pending", PROGRAM, "600"]) == 0
    assert "no key is pending" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["doctor", "tune-pending"])
def test_ctrl_c_lets_the_program_end_in_its_own_way_and_is_then_reported(tmp_path: Path, verb: str) -> None:
    store, program = tmp_path / "store", tmp_path / "saving.py"
    with SqliteStore(store) as kept:
        kept.note_pending(a_job(), "mode cached")
    program.write_text(
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(1)\n    print('saved', flush=True)\n    sys.exit(3)\n"
        "signal.signal(signal.SIGINT, save)\n"
        "print('ready', file=sys.stderr, flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    start = "import sys; from forecast_autotune.cli import main; sys.exit(main())"
    started = subprocess.Popen(
        [sys.executable, "-c", start, verb, "--dir", str(store), str(program)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert started.stderr is not None
    while (line := started.stderr.readline()) and line != "ready\n":
        pass
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does
    out, err = started.communicate(timeout=120)
    assert "saved" in out + err
    assert ("no process of the program imported Triton" if verb == "doctor" else "0 of 1 pending keys settled") in err
    assert started.returncode == 130


def test_ctrl_c_while_the_program_is_being_started_is_the_programs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        assert run_to_its_end([sys.executable, "-c", "raise SystemExit(3)"], os.environ) == (3, True)
    except KeyboardInterrupt:  # it would end all tests
        pytest.fail("the command was interrupted, not the program")
    assert signal.getsignal(signal.SIGINT) is before


def test_tune_pending_refuses_an_unwritable_store_before_the_program_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(tmp_path / "store") as kept:
        kept.note_pending(a_job(), "mode cached")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # whoever runs tests may write anywhere
    assert main(["tune-pending", "--dir", str(tmp_path / "store"), PROGRAM]) == 2
    assert "cannot be written to: what is tuned would be lost" in capsys.readouterr().err


def test_where_no_key_is_pending_the_json_has_the_same_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SqliteStore(tmp_path / "store") as store:
        store.record_decision(a_job(), a_decision(a_job()))
    assert main(["tune-pending", "--dir", str(tmp_path / "store"), "--json", PROGRAM]) == 0
    assert json.loads(capsys.readouterr().out) == {"pending": 0, "settled": 0, "new": 0, "exit_code": None}


@pytest.mark.parametrize(("names", "told"), [(["inductor.mm"], "None 1"), (["inductor.mm", "scale"], "1 None")])
def test_what_torch_compile_chooses_is_tuned_with_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], names: list[str], told: str
) -> None:
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    monkeypatch.delenv("FORECAST_AUTOTUNE_INDUCTOR", raising=False)
    with SqliteStore(tmp_path / "store") as store:
        for name in names:
            store.note_pending(a_job(name=name), "mode cached")
    program = tmp_path / "program.py"
    program.write_text(
        "from os import environ as e; print(e.get('TORCHDYNAMO_DISABLE'), e.get('FORECAST_AUTOTUNE_INDUCTOR'))"
    )
    assert main(["tune-pending", "--dir", str(tmp_path / "store"), str(program)]) == 1
    out, err = capfd.readouterr()
    assert out.strip() == told
    assert ("which is off while other keys wait" in err) is (len(names) == 2)


def test_a_key_that_ctrl_c_came_before_is_said_to_be_that(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with SqliteStore(tmp_path / "store") as store:
        store.note_pending(a_job(), "mode cached")
    program = tmp_path / "program.py"
    program.write_text("import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(0.2)")
    assert main(["tune-pending", "--dir", str(tmp_path / "store"), str(program)]) == 130
    err = capfd.readouterr().err
    assert "still pending: rmsnorm(n=4096) on NVIDIA H200: Ctrl-C came before it was tuned" in err
    assert "failed" not in err


def test_a_key_of_other_constexprs_that_was_not_met_stays_pending(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small, large = (a_job(key={"n": 1, "given constexprs": {"D": size}}) for size in (64, 512))
    with SqliteStore(tmp_path / "store") as store:
        store.note_pending(small, "mode cached")
        store.note_pending(large, "mode cached")
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from contracts.store_contract import a_decision, a_job\n"
        "from forecast_autotune.store.sqlite import SqliteStore\n"
        "job = a_job(key={'n': 1, 'given constexprs': {'D': 64}})\n"
        f"with SqliteStore({str(tmp_path / 'store')!r}) as store: store.record_decision(job, a_decision(job))\n"
    )
    assert main(["tune-pending", "--dir", str(tmp_path / "store"), str(program)]) == 1
    assert "1 of 2 pending keys settled" in capfd.readouterr().err


# doctor SCRIPT ----------------------------------------------------------------------------------------------------------


def test_doctor_lists_the_tuners_of_a_program_and_of_a_process_it_spawns(tmp_path: Path) -> None:
    told = command("doctor", "--json", PROGRAM, "1000", "--spawn")
    assert told.returncode == 0, told.stderr
    assert "rank -: ours launched 2 configs" in told.stderr
    (row,) = json.loads(told.stdout)
    assert (row["kernel"], row["decided"]) == ("__main__.scale", 1), "the child's `__mp_main__` is the same script"
    assert row["ours"]
    assert row["configs"] == 6
    assert row["tuner"] == "triton.runtime.autotuner.Autotuner"


def test_doctor_says_why_a_tuner_is_not_ours_and_how_a_program_failed(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(
        "import sys, triton\n"
        "from triton.runtime.autotuner import Autotuner\n"
        f"sys.path.insert(0, {str(Path(PROGRAM).parent)!r})\n"
        "import scaling\n"
        "class Deaf(Autotuner):\n"
        "    def run(self, *args, **kwargs): pass\n"
        "kernel = Deaf(scaling.scale.fn, scaling.scale.arg_names, scaling.CONFIGS, ['n'], None, None)\n"
        "print('printed')\n"
        "sys.exit(3)\n"
    )
    told = command("doctor", str(tmp_path / "deaf.py"))
    assert told.returncode == 1
    assert "printed" in told.stderr
    assert "ended with exit code 3" in told.stderr
    lines = told.stdout.splitlines()
    assert [line.split()[:5] for line in lines[1:]] == [
        ["scaling.scale", "__main__.Deaf", "6", "0", "no"],
        ["scaling.scale", "triton.runtime.autotuner.Autotuner", "6", "0", "yes"],
    ]
    assert "Deaf.run launches without Triton's own run" in lines[1]


@pytest.mark.parametrize("arguments", [["-m"], ["no-such-file.py"], ["--bundle", "-", PROGRAM]])
def test_doctor_of_no_program_is_one_message(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    told = capfd.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_doctor_of_a_program_without_a_tuner_says_that(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import triton")
    told = command("doctor", "--json", str(tmp_path / "plain.py"))
    assert (told.returncode, told.stdout) == (1, "[]\n")
    assert "no kernel with a tuner lived in the program" in told.stderr
