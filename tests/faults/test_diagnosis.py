"""After a fault: what the log, `show`, `doctor` and its bundle tell a person, and what they must not."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch
from contracts.store_contract import a_decision, a_job, a_measurement
from faults.ledger import Case, Ledger
from recorded import job_of, measurement, recording

import forecast_autotune as fa
from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import STAGES, Failure
from forecast_autotune.core.space import Space
from forecast_autotune.measure.replay import Replay
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.history import History
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.policies import Exhaustive

WAYS = [(stage, crashed, transient) for stage in STAGES for crashed, transient in ((0, 0), (1, 0), (0, 1))]


NODE = "quillback-17"  # invented: no other word holds it, as one may hold the name of the machine this runs on


def command(case: Case, *arguments: str, store: Path | None = None, **environment: str) -> tuple[int, str, str]:
    """What `forecast-autotune` ends with and prints, as a process of its own on a machine called `NODE`."""
    program = (
        f"import platform, sys; platform.node = lambda: {NODE!r};"
        " from forecast_autotune.cli import main; sys.exit(main())"
    )
    made = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**case.environment, "FORECAST_AUTOTUNE_DIR": str(store or case.store), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in made.stderr, made.stderr
    return made.returncode, made.stdout, made.stderr


# The log ----------------------------------------------------------------------------------------------------------------


def test_each_failure_is_one_line_that_says_what_follows(
    faults: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with faults.case(
        "a config that fails, at each stage and in each way",
        tmp_path,
        seen="one line in the log: config, stage, what was said, what follows; and one warning at the end of the run",
    ) as case:
        outcomes: dict[Config, Any] = {Config({"i": 0}): measurement(10.0)}
        for i, (stage, crashed, transient) in enumerate(WAYS, start=1):
            outcomes[Config({"i": i})] = Failure(
                stage=stage, message=f"words {i}.", crashed=bool(crashed), transient=bool(transient)
            )
        from dataclasses import replace

        of = replace(recording(), default=Config({"i": 0}), outcomes=outcomes)
        replay = Replay(of)
        caplog.set_level(logging.DEBUG, "forecast_autotune")
        with case.attempt(), SqliteStore(case.store) as store:
            tune(
                job_of(of), compiler=replay, surrogate=History(), policy=Exhaustive(), measurer=replay, store=store,
                budget=Budget("all", clock=replay.clock),
            )  # fmt: skip
            lost = len(WAYS) + 1 - len({r.config for r in _rows(store, job_of(of))})
        case.kept(reported=len(WAYS) + 1, lost=lost)
        for i, (stage, crashed, transient) in enumerate(WAYS, start=1):
            (line,) = [r for r in caplog.records if f"i={i} failed at" in r.getMessage()]
            said = line.getMessage()
            assert line.levelno == logging.INFO
            assert f"i={i} failed at {stage}: words {i}.;" in said
            assert ("the next run that tunes the key tries it again" in said) == bool(transient)
            assert ("never run in the caller's process" in said) == bool(crashed)
        (warning,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert f"{len(WAYS)} of {len(WAYS) + 1} configs tried failed" in warning, "one line for all of a run"


def _rows(store: SqliteStore, job: Any) -> list[Any]:
    from forecast_autotune.store.queries import StoreFile

    assert store.directory is not None
    decision = StoreFile(store.directory).find(job.workload.program.name)[0]
    return list(StoreFile(store.directory).detail(decision).touched)


def test_where_nothing_runs_the_user_gets_one_warning_and_the_calls_error(
    faults: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with faults.case(
        "every config of a kernel fails",
        tmp_path,
        seen="the call raises what it raises untuned; one warning; show and doctor name stages, words and what to do",
    ) as case:
        monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(case.store))

        def broken(x: torch.Tensor) -> torch.Tensor:
            raise ValueError("the first is broken")

        def as_broken(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("and so is the second")

        function = fa.variants([broken, as_broken], name="all_broken")
        with case.attempt(), pytest.raises(ValueError, match="the first is broken"):
            function(torch.ones(3))
        told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "none of" in r.getMessage()]
        assert len(told) == 1
        assert "none of 2 configs tried runs here (2 at launch), so the first is launched" in told[0]
        assert "the first is broken" in told[0]
        (decision,) = function.decisions.values()
        assert (decision.basis, decision.failed) == ("default", 2)
        code, shown, _ = command(case, "show", "all_broken")
        assert code == 0
        assert "none of 2 configs tried runs here (2 at launch)" in shown
        assert "the first is broken" in shown
        assert "the next run that tunes the key tries it again" in shown
        code, shown, _ = command(case, "doctor")
        assert code == 1
        assert re.search(r"decision +problem +all_broken.*the first config is run, none of 2 configs.*show ", shown)


# show and doctor --------------------------------------------------------------------------------------------------------


def failed_store(folder: Path) -> None:
    """A store with a decision, and a failure of every kind beside it."""
    space = Space([{"i": i} for i in range(len(WAYS) + 2)])
    with SqliteStore(folder) as store:
        job = a_job(space=space)
        store.record_outcome(job, "run", space[0], a_measurement(10.0), None)
        for config, (stage, crashed, transient) in zip(list(space)[2:], WAYS, strict=True):
            failure = Failure(stage=stage, message="words", crashed=bool(crashed), transient=bool(transient))
            store.record_outcome(job, "run", config, failure, None)
        store.record_decision(job, a_decision(job, space[0]))


def test_show_says_of_each_stage_what_follows_and_what_to_do(faults: Ledger, tmp_path: Path) -> None:
    with faults.case(
        "a config that fails, at each stage and in each way",
        tmp_path,
        seen="one line in the log: config, stage, what was said, what follows; and one warning at the end of the run",
    ) as case:
        failed_store(case.store)
        with case.attempt():
            code, shown, _ = command(case, "show", "rmsnorm")
        assert code == 0
        for stage, crashed, transient in WAYS:
            (line,) = [
                text
                for text in shown.splitlines()
                if text.startswith(f"{stage} ")
                and ("never run in the caller's" in text) == bool(crashed)
                and ("the next run that tunes" in text) == bool(transient)
            ]
            advice = {"resources": "smaller tiles", "timeout": "its message names", "compile": "log", "check": "check="}
            if not crashed and not transient and stage in advice:
                assert advice[stage] in line
            if transient:
                assert "memory, disk and the call" in line
        with case.attempt():
            code, shown, _ = command(case, "show", "rmsnorm", "--json")
        assert {(f["stage"], f["crashed"], f["transient"]) for f in json.loads(shown)["failures"]} == {
            (stage, bool(crashed), bool(transient)) for stage, crashed, transient in WAYS
        }


def test_doctor_tells_what_lies_about_a_store_and_who_holds_a_lock(faults: Ledger, tmp_path: Path) -> None:
    with faults.case(
        "a store with failures, pending keys, one set aside, a held lock, a builds folder others may write to",
        tmp_path,
        seen="doctor has a line for each, with what to do",
    ) as case:
        failed_store(case.store)
        with SqliteStore(case.store) as store:
            store.note_pending(a_job(key={"n": 7}), "mode cached")
        (case.store / "store.sqlite3.corrupt-1").write_text("broken")
        builds = case.store / "builds"
        builds.mkdir()
        builds.chmod(0o777)
        (case.store / "locks").mkdir(exist_ok=True)
        with filelock.FileLock(case.store / "locks" / "123.lock"), case.attempt():
            code, said, _ = command(case, "doctor", "--json")
        assert code == 1
        found = {(f["check"], f["status"]): f for f in json.loads(said)}
        assert "1 keys wait" in found["pending", "note"]["found"]
        assert "tune-pending" in found["pending", "note"]["advice"]
        assert "1 held by live processes" in found["locks", "note"]["found"]
        assert "others may write to" in found["builds", "problem"]["found"]
        assert "set aside as broken" in said
        assert sum(f["check"] == "failures" for f in json.loads(said)) == len(WAYS)
        with case.attempt():
            _, said, _ = command(case, "doctor", "--json")
        assert "held by live processes" not in said


# The bundle -------------------------------------------------------------------------------------------------------------

SECRET = "hunter2hunter2"  # noqa: S105  # planted
OTHER_SECRET = "letmein_please"  # noqa: S105  # in a variable that says so
URL_SECRET = "sesame_open"  # noqa: S105  # in addresses alone
DB_SECRET = "hunter2 of the database"  # noqa: S105  # in variables that say so
TOKEN = "ghp_1234567890abcdefABCDEF1234567890abcd"  # noqa: S105
MESSAGES = (  # each with what must not leave of it; where that is nothing, all of it leaves
    (f"curl: Authorization: Bearer {OTHER_SECRET} failed", ("Bearer", "letmein")),
    ("curl: Authorization: Bearer abcdefghijkl failed", ("abcdefghijkl",)),
    ("login with pwd=hunter3secret", ("hunter3",)),
    ("mysql --password hunter3secret failed", ("hunter3",)),
    ("password: correct horse battery staple", ("correct", "horse", "battery")),
    (f"{DB_SECRET} is refused", ("database",)),
    ("key sk-abcdefghijklmnopqrst is bad", ("abcdefghij",)),
    (f"found {TOKEN}", ("ghp_12", "567890")),
    ("nvcc -DKEY=AKIAIOSFODNN7EXAMPLE failed", ("AKIA",)),
    ("AKIAIOSFODNN7EXAMPLE is unknown", ("AKIA",)),
    ("../../acme_secret/kernel.cu:12: error", ("acme", "kernel.cu")),
    ("cannot open /srv/Project Zeus/odin kernel.py", ("Zeus", "odin")),
    ("mail to alice@corp.example.com failed", ("alice", "corp")),
    (f"server {NODE}.zeus.example.org is down", ("quillback", "zeus")),
    ("s3://a-bucket/y?X-Amz-Signature=abcdef said no", ("a-bucket", "abcdef")),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", ()),
    ("OutOfResources: out of resource: shared memory, Required: 294912, Hardware limit: 232448", ()),
)
KNOBS = {
    "FLAG": "-DKEY=AKIAIOSFODNN7EXAMPLE",
    "WORD": "AKIAIOSFODNN7EXAMPLE",
    "API_TOKEN": "letmein",
    "LONG": TOKEN,
    "SENTENCE": "correct horse battery",
    "PATH": "../../acme_secret/inc",
    TOKEN: 1,
    "DTYPE": "bfloat16",
    "BLOCK": 128,
    "FAST": True,
}
SOURCE = f"""
static_assert(sizeof(int) == 5, "{SECRET} is in a message");
int of_the_{SECRET} = {SECRET}_undeclared;
#error {SECRET} is told by the preprocessor
"""


@pytest.fixture(scope="module")
def compilers_words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a real compiler says of a source that holds a secret, line by line."""
    folder = tmp_path_factory.mktemp("secret")
    (folder / "kernel_0.cpp").write_text(SOURCE)
    command = ["c++", "-c", str(folder / "kernel_0.cpp"), "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False).stderr
    assert SECRET in said
    return [line for line in said.splitlines() if SECRET in line]


@pytest.fixture
def planted(compilers_words: list[str], tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A home folder with a store in it, whose every corner holds the secret, and an environment that does."""
    home = tmp_path / "home" / "smith_the_user"
    folder = home / "cache"
    messages = [
        *compilers_words,
        f"CompilationError: at 3:11:\ndef kernel(x):\n    {SECRET}",
        f"RuntimeError: cannot open {home}/{SECRET}/file.bin",
        f"RuntimeError: https://smith:{URL_SECRET}@host.example/{URL_SECRET}?key={URL_SECRET} said no",
        f"RuntimeError: API_TOKEN={SECRET} is refused",
        f"RuntimeError: {OTHER_SECRET} is refused",
        f"CalledProcessError: Command '['/usr/bin/c++', '-D{SECRET}']' returned 1",
        *(message for message, _ in MESSAGES),
    ]
    with SqliteStore(folder) as store:
        for number, message in enumerate(messages):
            space = Space([{**KNOBS, "INCLUDE": f"-I{home}/include", "i": i} for i in range(3)])
            job = a_job(key={"n": number, "secret": SECRET}, source=SOURCE, space=space)
            store.record_outcome(job, "run", space[1], Failure(stage="compile", message=message), None)
            decision = a_decision(
                job, space[0], basis="default", config_us=None, failed=1, reason=message, budget=message
            )
            store.record_decision(job, decision)
    environment = {
        "HOME": str(home),
        "USER": "smith_the_user",
        "LOGNAME": "smith_the_user",
        "SOME_API_KEY": OTHER_SECRET,
        "DB_PWD": DB_SECRET,
        "FORECAST_AUTOTUNE_SURROGATE": "http://127.0.0.1:9#a-model",
        "FORECAST_AUTOTUNE_BUGDET": SECRET,
        "FORECAST_AUTOTUNE_PACKS": f"{home}/pack.jsonl",
    }
    (home / "pack.jsonl").write_text(f'{{"kind": "{SECRET}"}}\n')
    yield folder, environment
    shutil.rmtree(home)


def test_a_bundle_holds_no_secret(faults: Ledger, tmp_path: Path, planted: tuple[Path, dict[str, str]]) -> None:
    with faults.case(
        "secrets planted in addresses, variables, sources, messages, reasons, knobs, paths; then doctor --bundle",
        tmp_path,
        seen="a file of this user's alone that holds none of them, and says what it holds",
    ) as case:
        store, environment = planted
        target = case.folder / "bundle.json"
        with case.attempt():
            code, out, err = command(case, "doctor", "--bundle", str(target), store=store, **environment)
        assert code == 0, err
        assert not out
        assert "versions, settings, hardware" in err
        assert target.stat().st_mode & 0o777 == 0o600
        text = target.read_text()
        told = json.loads(text)
        text = json.dumps({part: value for part, value in told.items() if part != "contents"}, ensure_ascii=False)
        planted_words = [word for _, words in MESSAGES for word in words]
        always = (SECRET, OTHER_SECRET, URL_SECRET, "smith", "letmein", str(tmp_path), "is in a message")
        for word in (*always, *planted_words):
            assert word not in text, (word, text[max(0, text.find(word) - 300) :][:400])
        assert "read it before you send it" in told["contents"]
        assert told["versions"]["torch"] == version("torch")  # as it is installed: a build may add to it
        assert told["settings"]["surrogate"] == "http://127.0.0.1:9"
        assert told["unknown_settings"] == ["FORECAST_AUTOTUNE_BUGDET"]
        assert told["store"]["path"] == "~/…"
        failures = told["store"]["failures"]
        assert len(failures) == len(told["store"]["decisions"]) >= 8
        for failure in failures:
            assert (failure["program"], failure["stage"]) == ("rmsnorm", "compile")
            shown = {
                knob: value for knob, value in failure["config"].items() if value != "…" and knob not in ("…", "i")
            }
            assert shown == {"DTYPE": "bfloat16", "BLOCK": 128, "FAST": True}
        for message in (message for message, words in MESSAGES if not words):
            assert [f["message"] for f in failures].count(message) == 1
            assert [d["reason"] for d in told["store"]["decisions"]].count(message) == 1


def test_a_bundle_is_never_written_over_anything(faults: Ledger, tmp_path: Path) -> None:
    with faults.case(
        "doctor --bundle onto a file, a link, a folder, or where there is none",
        tmp_path,
        seen="exit code 2 and a sentence; what stands there is untouched",
    ) as case:
        kept = case.folder / "kept.json"
        kept.write_text("mine")
        link = case.folder / "link.json"
        link.symlink_to(kept)
        dangling = case.folder / "dangling.json"
        dangling.symlink_to(case.folder / "elsewhere.json")
        for target in (kept, link, dangling, case.folder, case.folder / "none" / "bundle.json"):
            with case.attempt():
                code, _, err = command(case, "doctor", "--bundle", str(target))
            assert code == 2
            assert err.count("\n") == 1, err
        assert kept.read_text() == "mine"
        assert not (case.folder / "elsewhere.json").exists()


def test_a_bundle_is_made_whatever_is_broken(faults: Ledger, tmp_path: Path) -> None:
    with faults.case(
        "doctor --bundle where the store is broken, torch is missing, or a setting does not parse",
        tmp_path,
        seen="a bundle all the same, in which the broken part says so",
    ) as case:
        failed_store(case.store)
        broken = case.folder / "broken"
        broken.mkdir()
        (broken / "store.sqlite3").write_bytes(os.urandom(5000))
        without = case.folder / "without" / "torch"
        without.mkdir(parents=True)
        (without / "__init__.py").write_text("raise ImportError('no torch here')")
        path = f"{without.parent}{os.pathsep}{case.environment['PYTHONPATH']}"
        for environment, where, says in (
            ({"FORECAST_AUTOTUNE_DIR": str(broken)}, "store", "cannot be used"),
            ({"PYTHONPATH": path}, "findings", "no torch here"),
            ({"FORECAST_AUTOTUNE_MODE": "fast"}, "settings", "accepted are tune"),
        ):
            with case.attempt():
                code, out, err = command(
                    case, "doctor", "--bundle", "-", store=Path(environment.pop("FORECAST_AUTOTUNE_DIR", case.store)),
                    **environment,
                )  # fmt: skip
            assert code == 0, err
            told = json.loads(out)
            assert says in json.dumps(told[where], ensure_ascii=False), told[where]
            assert told["versions"]["python"]
            assert told["hardware"]
            assert told["store"]["path"]
