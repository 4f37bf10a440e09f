from __future__ import annotations

import io
import json
import math
import os
import re
import resource
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from asking import Question, ask
from contracts.store_contract import HARDWARE, SPACE, TOOLCHAIN, a_decision, a_job, a_measurement
from talking import Talking, sure_of

from forecast_autotune.cli import doctor, main
from forecast_autotune.cli._commands import COMMANDS
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention, Forecast, Normal
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.outcome import Failure
from forecast_autotune.errors import MissingExtraError
from forecast_autotune.language import named
from forecast_autotune.language.model import ModelError, Unanswered
from forecast_autotune.store.searches import SearchFile
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.base import StatelessSurrogate
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.surrogates.language_model import LanguageModelSurrogate


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FORECAST_AUTOTUNE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "store"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with SqliteStore(tmp_path / "store") as store:
        for job in (a_job(), a_job(key={"n": 1}), a_job(name="evil[bold]\x1b[31m")):
            store.record_outcome(job, "run-1", SPACE[0], a_measurement(15.0), Abstention("history", "nothing alike"))
            store.record_outcome(
                job, "run-1", SPACE[1], a_measurement(10.0), Forecast.normal(0.4, 0.3, source="roofline")
            )
            store.record_outcome(
                job, "run-1", SPACE[2], Failure(stage="launch", message="too\nlarge", cost_s=0.5), None
            )
            store.record_decision(job, a_decision(job, SPACE[0]))
            store.record_decision(job, a_decision(job, decided_at=time.time()))
    return tmp_path / "store"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(arguments) == code
    told = capsys.readouterr()
    return told.out, told.err


def test_list_prints_one_line_per_decision(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = printed(capsys, "list")
    lines = out.splitlines()
    assert len(lines) == 4
    assert err == ""
    assert "BLOCK=64 num_warps=4" in lines[3]
    assert "1.50x" in lines[3]
    assert "rmsnorm(n=4096)" in lines[3]
    assert "\x1b" not in out
    assert "evil[bold]\\x1b[31m" in lines[1]
    assert printed(capsys, "list", "--kernel", "rms")[0].count("\n") == 3
    assert printed(capsys, "list", "--limit", "1")[0].count("\n") == 2
    assert printed(capsys, "list", "--limit", str(2**63))[0].count("\n") == 4
    assert printed(capsys, "list", "--superseded")[0].count("\n") == 7


def test_a_person_gets_a_page_of_a_long_list_and_a_pipe_gets_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(tmp_path / "store") as store:
        for number in range(60):
            job = a_job(key={"n": number})
            store.record_decision(job, a_decision(job, decided_at=1e9 + number))
    assert printed(capsys, "list")[0].count("\n") == 61
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "300")
    out, err = printed(capsys, "list")
    assert "rmsnorm(n=59)" in out
    assert "rmsnorm(n=10)" in out
    assert "rmsnorm(n=9)" not in out
    assert "the newest 50 of 60; --limit N shows more" in err
    assert printed(capsys, "list", "--limit", "60")[1] == ""
    assert len(json.loads(printed(capsys, "list", "--json")[0])) == 60


def test_list_for_programs_is_json_and_an_empty_result_is_an_empty_list(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(printed(capsys, "list", "--json", "--hardware", "h200")[0])
    assert len(found) == 3
    assert found[-1]["config"] == {"BLOCK": 64, "num_warps": 4}
    assert found[-1]["speedup"] == 1.5
    out, _ = printed(capsys, "list", "--json", "--kernel", "nothing", code=1)
    assert json.loads(out) == []


@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["show", "x"],
        ["stats"],
        ["pending"],
        ["tune-pending", "-m", "x"],
        ["export", "x"],
        ["prune"],
        ["clear"],
    ],
)
def test_without_a_store_nothing_is_found_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    out, err = printed(capsys, *command, code=1)
    assert out == ""
    assert "there is no store at" in err
    assert list(tmp_path.iterdir()) == []


def test_show_says_what_was_chosen_why_and_against_what(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = (d for d in json.loads(printed(capsys, "list", "--json")[0]) if d["key"] == {"n": 1})
    out, _ = printed(capsys, "show", found["decision"][:10])
    for told in (
        "BLOCK=64 num_warps=4 (10 ±0.15 us, 1.50x the default's speed)",
        " 1.50x the default's speed, measured",
        "6 configs: 6 forecast, 4 compiled, 3 tried, of which 1 failed",
        "NVIDIA H200 (132 SMs) 9.0",
        "triton 3.9.0, torch 2.13.0",
        "2.5 s; the budget was 16,30s",
        "1.32x (1.07-1.62)",
        "failed at launch",
        "too large",
        "abstained",
        "samples of one config vary by 1.5 %",
        "1 earlier decision\n",
    ):
        assert told in out
    shown = json.loads(printed(capsys, "show", found["decision"], "--json")[0])
    assert [c["log2_speedup"] for c in shown["configs"]] == [pytest.approx(0.585, abs=1e-3), 0.0, None]
    assert shown["hardware"]["name"] == "NVIDIA H200"
    assert shown["configs"][2]["outcome"]["stage"] == "launch"


def test_show_names_the_sources_to_those_who_ask_for_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learned, history = Normal(math.log2(1.31), 0.4, 0.62, "learned"), Normal(math.log2(1.05), 0.8, 0.38, "history")
    halves = tuple(replace(learned, mean=mean, sigma=0.1, weight=0.25) for mean in (-1.0, 1.0))
    with SqliteStore(tmp_path / "store") as store:
        job = a_job()
        for config, bells in zip(SPACE, ((history, learned), (*halves, replace(history, weight=0.5))), strict=False):
            store.record_outcome(job, "run-1", config, a_measurement(10.0), Forecast(bells, "history and learned"))
        store.record_outcome(job, "run-1", SPACE[2], a_measurement(12.0), Forecast.normal(0.4, 0.3, source="roofline"))
        store.record_decision(job, a_decision(job, SPACE[0]))
    assert "who said what" not in printed(capsys, "show", "rmsnorm")[0]
    out, _ = printed(capsys, "show", "rmsnorm", "-v")
    assert "learned 1.31x ±0.4 (62%), history 1.05x ±0.8 (38%)" in out
    assert "learned 1.00x ±1.0 (50%), history 1.05x ±0.8 (50%)" in out
    assert "who said what" in out
    found = {str(c["config"]): c for c in json.loads(printed(capsys, "show", "rmsnorm", "--json")[0])["configs"]}
    first, _, alone = (found[str(dict(config.knobs))] for config in SPACE[:3])
    assert first["who_said_what"] == [
        {"said_by": "learned", "mean": pytest.approx(math.log2(1.31)), "sigma": 0.4, "weight": 0.62},
        {"said_by": "history", "mean": pytest.approx(math.log2(1.05)), "sigma": 0.8, "weight": 0.38},
    ]
    assert first["forecast"]["said_by"] == ["history", "learned"]
    assert alone["who_said_what"] == []


def test_where_each_forecast_has_one_source_show_has_no_column_for_more(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = (d for d in json.loads(printed(capsys, "list", "--json")[0]) if d["key"] == {"n": 1})
    out, _ = printed(capsys, "show", found["decision"], "--verbose")
    assert "who said what" not in out
    assert "history: nothing alike" in out


def test_a_key_decided_under_several_power_limits_is_shown_under_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SqliteStore(tmp_path / "store") as store:
        for limit_w, config in ((700, SPACE[0]), (400, SPACE[1])):
            job = a_job(hardware=replace(HARDWARE, power_limit_w=limit_w))
            store.record_outcome(job, "run-1", config, a_measurement(), None)
            store.record_decision(job, a_decision(job, config))
    first, second = json.loads(printed(capsys, "list", "--json")[0])
    assert {d["power_limit_w"] for d in (first, second)} == {400, 700}
    out, err = printed(capsys, "show", first["decision"])
    assert err == ""
    assert "power limit 400 W" in out
    assert "power limit 700 W" in out
    both = json.loads(printed(capsys, "show", first["decision"], "--json")[0])
    assert {d["hardware"]["power_limit_w"] for d in both} == {400, 700}


def test_show_prints_the_newest_of_several_keys_and_lists_them_all(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = printed(capsys, "show", "rmsnorm")
    assert "rmsnorm(n=1)" in out
    assert "rmsnorm(n=4096)" not in out
    assert "2 decisions, and the newest is shown" in err
    assert "rmsnorm(n=1)" in err
    assert "rmsnorm(n=4096)" in err
    assert "no decision starts with" in printed(capsys, "show", "softmax", code=1)[1]


def test_stats_for_people_and_for_programs(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = printed(capsys, "stats")
    assert "3 (3 measured); 3 superseded" in out
    assert "6 measurements, 3 failures (3 launch)" in out
    found = json.loads(printed(capsys, "stats", "--json")[0])
    assert found["decisions"] == {"measured": 3}
    assert found["honesty"]["count"] == 3
    assert found["journal"] == "wal"


def test_export_clear_and_import_bring_everything_back(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = printed(capsys, "list", "--json")[0]
    assert printed(capsys, "export", str(tmp_path / "out.jsonl"))[0] == ""
    printed(capsys, "clear", "--yes")
    printed(capsys, "list", code=1)
    assert "9 new outcomes and 6 new decisions" in printed(capsys, "import", str(tmp_path / "out.jsonl"))[1]
    assert printed(capsys, "list", "--json")[0] == before
    assert "3 decisions" in printed(capsys, "prune")[1]
    printed(capsys, "clear", "--yes", "--kernel", "nothing", code=1)


def test_import_prune_and_freeze_say_what_they_did_as_json(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def done(*words: str, code: int = 0) -> dict[str, Any]:
        out = printed(capsys, *words, "--json", code=code)[0]
        assert out.count("\n") == 1
        return dict(json.loads(out))

    printed(capsys, "export", str(tmp_path / "out.jsonl"))
    assert done("import", str(tmp_path / "out.jsonl")) == {"outcomes": 0, "decisions": 0}
    assert done("import", str(tmp_path / "out.jsonl"), "--dir", str(tmp_path / "x")) == {"outcomes": 9, "decisions": 6}
    removed = {"decisions": 3, "outcomes": 0, "programs": 0, "pending": 0, "answers": 0, "builds": 0, "build_bytes": 0}
    assert done("prune") == removed
    assert done("prune", "--dir", str(tmp_path / "none"), code=1) == {}
    assert done("freeze") == {"frozen": True, "changed": True}
    assert done("freeze") == {"frozen": True, "changed": False}
    assert done("freeze", "--undo") == {"frozen": False, "changed": True}


def test_freeze_says_where_there_is_no_store_yet(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["freeze"], ["freeze", "--undo"]):
        assert "no store" not in printed(capsys, *words)[1]
        said = printed(capsys, *words, "--dir", str(tmp_path / "misspelt"))[1]
        assert f"{tmp_path / 'misspelt'} " in said
        assert said.endswith("; there is no store there yet\n")


def test_stats_and_doctor_say_that_a_store_is_frozen_and_clear_ends_it(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_said() -> list[bool]:
        stats, as_json = printed(capsys, "stats")[0], json.loads(printed(capsys, "stats", "--json")[0])
        findings = [finding.found for finding in doctor.check_frozen(None)]
        assert findings in ([], [f"programs with the store in {store} explore nothing"])
        return ["explore nothing" in stats, as_json["frozen"], bool(findings)]

    assert is_said() == [False] * 3
    printed(capsys, "freeze")
    assert is_said() == [True] * 3
    main(["doctor"])
    assert "freeze --undo" in capsys.readouterr().out
    printed(capsys, "clear", "--yes", "--kernel", "rmsnorm")
    assert is_said() == [True] * 3
    assert f"programs with the store in {store} may explore again\n" in printed(capsys, "clear", "--yes")[1]
    assert is_said() == [False] * 3


def test_clear_ends_a_freeze_where_there_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "freeze")
    assert "may explore again\n" in printed(capsys, "clear", "--yes")[1]
    assert not (tmp_path / "store" / "frozen").exists()
    printed(capsys, "clear", "--yes", code=1)


def test_clear_removes_the_archive_of_searches_unless_a_kernel_is_named(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searches = SearchFile(store)
    searches.begin("a", {"kernel": "rmsnorm"})
    searches.add("a", "b", {"source": "a whole program"})
    assert "searches" not in printed(capsys, "clear", "--yes", "--kernel", "rmsnorm")[1]
    assert len(searches.rows("a")) == 1
    assert "removed the archive of 1 search\n" in printed(capsys, "clear", "--yes")[1]
    assert not searches.path.exists()
    assert "search" not in printed(capsys, "clear", "--yes")[1]


def test_clear_removes_an_archive_of_searches_where_nothing_was_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searches = SearchFile(tmp_path / "store")
    searches.begin("a", {"kernel": "rmsnorm"})
    printed(capsys, "clear", "--yes", "--kernel", "rmsnorm", code=1)
    assert "removed the archive of 1 search\n" in printed(capsys, "clear", "--yes")[1]
    assert not searches.path.exists()


def test_clear_removes_nothing_where_the_store_cannot_be_used(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SearchFile(store).begin("a", {})
    imported = store / "config_files" / "vllm" / "file.json"
    imported.parent.mkdir(parents=True)
    imported.touch()
    with closing(sqlite3.connect(store / "store.sqlite3")) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert "has schema 99" in printed(capsys, "clear", "--yes", code=2)[1]
    assert imported.exists()
    assert SearchFile(store).path.exists()


@pytest.mark.parametrize(("words", "verb"), [(["clear", "--json"], "clear"), (["skills", "x"], "skills")])
def test_words_that_a_verb_does_not_take_are_told_with_its_own_usage(
    words: list[str], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed(capsys, *words, code=2)[1]
    assert told.startswith(f"usage: forecast-autotune {verb} [-h]")
    assert f"unrecognized arguments: {words[1]}" in told


@pytest.mark.parametrize("typed", ["norm", "RMSNorm", "rmsnrom"])
def test_clear_of_an_unknown_kernel_names_the_nearest_and_asks_nothing(
    store: Path, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    said = printed(capsys, "clear", "--kernel", typed, code=1)[1]
    path = store / "store.sqlite3"
    assert said == f"forecast-autotune: there is no kernel {typed!r} in {path}; did you mean rmsnorm?\n"


def test_clear_removes_nothing_where_there_is_no_terminal_to_ask_at(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = printed(capsys, "list", "--json")[0]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert "there is no terminal to ask at: add --yes" in printed(capsys, "clear", code=2)[1]
    assert printed(capsys, "list", "--json")[0] == before


def test_where_nothing_is_found_decisions_elsewhere_are_pointed_to(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", str(tmp_path / "pack"))
    wanted = "; decisions of FORECAST_AUTOTUNE_PACKS are not listed: kernel.explain() shows them"
    for command in (["list", "--kernel", "xyz"], ["show", "xyz"], ["list", "--dir", str(tmp_path / "none")]):
        assert wanted in printed(capsys, *command, code=1)[1]
    assert "are not listed" not in printed(capsys, "list")[1]


def test_hardware_that_is_not_there_is_answered_with_the_nearest(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = printed(capsys, "list", "--hardware", "H20O", code=1)[1]
    assert said.endswith("no decision matches: there is no hardware 'H20O', but NVIDIA H200\n")
    assert printed(capsys, "list", "--hardware", "h200", "--kernel", "xyz", code=1)[1].endswith("no decision matches\n")


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["nonsense"],
        ["list", "--limit", "0"],
        ["list", "--limit", "x"],
        ["import", "nowhere.jsonl"],
        ["prune", "--days", "-1"],
        ["export", "/no/such/folder/x"],
    ],
)
def test_bad_input_ends_with_two_and_one_message(
    store: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    out, err = printed(capsys, *command, code=2)
    assert out == ""
    assert "Traceback" not in err
    assert "forecast-autotune" in err


def test_a_broken_store_is_bad_input(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "store.sqlite3").write_bytes(b"nonsense" * 1000)
    assert "cannot be used" in printed(capsys, "list", code=2)[1]


def test_another_folder_can_be_named(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.rename(tmp_path / "elsewhere")
    printed(capsys, "list", code=1)
    assert printed(capsys, "list", "--dir", str(tmp_path / "elsewhere"))[0].count("\n") == 4


def test_help_names_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = printed(capsys, "--help")
    assert set(COMMANDS) <= {line.split()[0] for line in out.splitlines() if line.startswith("    ")}
    assert "exit codes" in out
    for command in COMMANDS:
        assert "exit codes" in printed(capsys, command, "--help")[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["freeze"], None),
        (["import"], "with --format: no file in the folders has a name that the format looks for"),
        (["coverage"], "no key is known, or one is not measured"),
        (["show"], "no decision is called KEY; --json prints {}"),
        (["remote", "compact"], None),
        (["remote", "withdraw"], "nothing here is called KEY; --json prints []"),
    ],
)
def test_help_of_a_verb_says_when_exit_code_1_comes(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str | None
) -> None:
    lines = printed(capsys, *words, "--help")[0].partition("exit codes:\n")[2].splitlines()
    codes = dict(line.split(maxsplit=1) for line in lines)
    assert codes.get("1") == says
    assert codes["130"] == "ended by Ctrl-C"


def test_list_is_quick_and_imports_neither_torch_nor_numpy(store: Path) -> None:
    code = (
        "import sys; from forecast_autotune.cli import main; main(['list']);"
        "print(sorted({'torch', 'triton', 'numpy', 'forecast_autotune.cli.doctor'} & set(sys.modules)))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "[]"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 3  # 0.2 s on a quiet core


def test_a_reader_that_leaves_is_no_error(store: Path) -> None:
    with SqliteStore(store) as opened:
        for number in range(300):
            opened.record_decision(a_job(key={"n": number}), a_decision(a_job(key={"n": number})))
    command = (
        f"'{sys.executable}' -c 'from forecast_autotune.cli import main; main([\"list\", \"--json\"])' | head -c 10"
    )
    told = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def test_a_closed_pipe_behind_stderr_changes_no_exit_code(store: Path) -> None:
    for words, code in (("pending", 1), ("show nothing-of-that-name", 1), ("tune", 2)):
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", "forecast_autotune", *words.split()]
        assert subprocess.run(command, stderr=writing, check=False).returncode == code, words
        os.close(writing)


@pytest.mark.parametrize("verb", ["list", "stats --json", "show evil", "pending --json", "clear --yes"])
def test_streams_that_the_caller_closed_change_no_exit_code(store: Path, verb: str) -> None:
    quiet = f"'{sys.executable}' -m forecast_autotune {verb}"
    expected = 1 if "pending" in verb else 0  # nothing is pending
    told = subprocess.run(["sh", "-c", f"{quiet} <&- >&-"], capture_output=True, text=True, check=False)
    assert "Traceback" not in told.stderr
    assert told.returncode == expected
    if not verb.startswith("clear"):
        assert subprocess.run(["sh", "-c", f"{quiet} <&- >&- 2>&-"], check=False).returncode == expected


@pytest.mark.parametrize("known", [0, 1])
def test_show_lists_a_language_model_as_one_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], known: int
) -> None:
    """Before any outcome it is eight bells, one for each bin."""
    job = a_job()
    asked = Question(job=job, outcomes={SPACE[0]: a_measurement(15.0)} if known else {})
    alone = LanguageModelSurrogate(Talking(lambda _: sure_of(6)))
    for surrogate, bells in ((alone, 8 if not known else 1), (Blend([alone, Always()]), 2)):
        forecast = ask(surrogate, asked)[1]
        assert isinstance(forecast, Forecast)
        assert len(forecast.components) == bells
        with SqliteStore(tmp_path / "store") as opened:
            opened.record_outcome(job, "run-1", SPACE[1], a_measurement(10.0), forecast)
            opened.record_decision(job, a_decision(job, SPACE[1]))
        (config,) = json.loads(printed(capsys, "show", "rmsnorm", "--json")[0])["configs"]
        said = {voice["said_by"] for voice in config["who_said_what"]}
        assert said == (set() if surrogate is alone else {"language_model", "always"})
        printed(capsys, "clear", "--kernel", "rmsnorm", "--yes")


class Always(StatelessSurrogate):
    name = "always"

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> list[Forecast]:
        return [Forecast.normal(0.1, 0.5, source=self.name)] * len(context.job.space)


# doctor -----------------------------------------------------------------------------------------------------------------


def statuses(findings: list[doctor.Finding]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in findings:
        found.setdefault(finding.check, []).append(finding.status)
    return found


def test_doctor_checks_everything_and_prints_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    findings = [doctor.Finding(**f) for f in json.loads(capsys.readouterr().out)]
    found = statuses(findings)
    assert found.keys() >= {
        "settings",
        "compiler",
        "nvcc",
        "ninja",
        "torch",
        "triton",
        "cpu",
        "gpu",
        "filesystem",
        "store",
    }
    assert found["store"] == found["settings"] == ["ok"]
    assert all(f.advice for f in findings if f.status == "problem")
    assert code == (1 if any(f.status == "problem" for f in findings) else 0)
    assert all(isinstance(v, str) for f in findings for v in asdict(f).values())


def test_doctor_shows_the_total_of_a_budget_and_what_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "total=120s")
    (found,) = doctor.check_settings()
    assert found.status == "ok"
    assert found.found.startswith("budget=total=120s,")
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "total=120")
    (found,) = doctor.check_settings()
    assert found.status == "problem"
    assert "16,30s,total=120s" in found.found


def test_doctor_goes_on_where_a_lock_is_a_pipe_and_a_date_is_none(store: Path, tmp_path: Path) -> None:
    os.mkfifo(store / "locks" / "123.lock")  # opening it would wait for somebody who writes
    assert list(doctor.check_locks(tmp_path / "store")) == []
    connection = sqlite3.connect(store / "store.sqlite3")
    connection.execute("UPDATE outcome SET recorded_at = 'soon' WHERE id = (SELECT max(id) FROM outcome)")
    connection.commit()
    connection.close()
    (found,) = [f for f in doctor.check_store(tmp_path / "store") if f.check == "failures"]
    assert found.found.startswith("2 at launch")


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_doctor_says_that_a_file_stands_where_the_store_is_to_be(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("hi")
    (found,) = [f for f in doctor.check_store(tmp_path / folder) if f.check == "store"]
    assert (found.status, found.found) == ("problem", f"{tmp_path}/file is a file, and a store is a folder")


def test_pending_says_what_keys_that_look_alike_differ_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = Toolchain(versions={**TOOLCHAIN.versions, "torch": "2.14.0"})
    alone, *namesakes = (a_job(key={"n": 1}), a_job(source="edited"), a_job(), a_job(toolchain=newer))
    with SqliteStore(tmp_path) as opened:
        opened.note_pending(alone, "mode cached")
    assert "differs by" not in printed(capsys, "pending", "--dir", str(tmp_path))[0]
    with SqliteStore(tmp_path) as opened:
        for job in namesakes:
            opened.note_pending(job, "mode cached")
    lines = {line.split()[0]: line for line in printed(capsys, "pending", "--dir", str(tmp_path))[0].splitlines()}
    for job in namesakes:
        versions = job.toolchain.versions["torch"]
        assert f"source {job.workload.program.digest[:10]}, torch {versions}" in lines[job.digest[:10]]
    assert "source" not in lines[alone.digest[:10]]
    programs = {
        found["program"] for found in json.loads(printed(capsys, "pending", "--dir", str(tmp_path), "--json")[0])
    }
    assert programs == {job.workload.program.digest for job in namesakes}


def test_pending_shows_what_long_flags_differ_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SqliteStore(tmp_path) as opened:
        for last in ("-ffast-math", "-fno-math-errno"):
            flags = f'extra_cflags=["-O3","-march=native","-funroll-loops","-fno-semantic-interposition","{last}"]'
            opened.note_pending(a_job(toolchain=Toolchain(versions={"flags": flags})), "mode cached")
    out = printed(capsys, "pending", "--dir", str(tmp_path))[0]
    assert "flags … -ffast-math " in out
    assert "flags … -fno-math-errno " in out


def test_doctor_finds_a_misspelt_setting_and_says_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUGDET", "16")
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "fast")
    wrong = [f for f in doctor.check_settings() if f.status == "problem"]
    assert ["FORECAST_AUTOTUNE_BUDGET" in f.advice for f in wrong] == [True, False]
    assert "'fast'" in wrong[1].found
    assert "tune, online, cached" in wrong[1].found


def asked_by_doctor(monkeypatch: pytest.MonkeyPatch, model: Talking, **settings: str) -> list[doctor.Finding]:
    monkeypatch.setattr(named, "named", lambda _: model)
    for name, value in ({"SURROGATE": "http://127.0.0.1:9"} | settings).items():
        monkeypatch.setenv(f"FORECAST_AUTOTUNE_{name}", value)
    return [f for f in doctor._safely("language model", doctor.check_language_model) if f.check == "language model"]


def test_doctor_asks_a_language_model_and_says_how_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(doctor.check_language_model()) == []
    (finding,) = asked_by_doctor(monkeypatch, Talking(lambda _: sure_of(3)))
    assert finding.status == "ok"
    assert re.search(r"a talking model: opened in \d\.\d s, a prompt answered in \d\.\d s", finding.found)
    (finding,) = asked_by_doctor(monkeypatch, Talking(lambda _: sure_of(3), loading_s=0.2), ANSWER="logits,100ms")
    assert finding.status == "note"
    assert "FORECAST_AUTOTUNE_ANSWER=logits,0.1s is less than it takes to open it" in finding.advice
    (ok,) = [f for f in doctor.check_settings() if f.status == "ok"]
    assert "surrogate=http://127.0.0.1:9, answer=logits,0.1s, remote_model=0" in ok.found


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Talking(wrong=ModelError("nobody listens")), "nobody listens"),
        (Talking(wrong=MissingExtraError("pip install vllm")), "pip install vllm"),
        (Talking(wrong=RuntimeError("a bug")), "RuntimeError: a bug"),
        (Talking(breaks_after=0), "closed the connection"),
        (Talking(ends_after=0), "it gave no answer in 5 s"),
        (Talking(lambda _: (float("nan"),) * 8), "no distribution"),
        (Talking(lambda _: Unanswered("it has no labels")), "it has no labels"),
    ],
)
def test_doctor_finds_a_language_model_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, model: Talking, reason: str
) -> None:
    (finding,) = asked_by_doctor(monkeypatch, model)
    assert finding.status == "problem"
    assert reason in finding.found
    assert finding.advice


def test_doctor_finds_two_distributions_that_bring_triton() -> None:
    finding = doctor.triton_finding({"pytorch-triton-rocm": "3.9.0", "triton": "3.9.0"})
    assert finding.status == "problem"
    assert "pip uninstall -y pytorch-triton-rocm triton, then install again pytorch-triton-rocm" in finding.advice
    assert doctor.triton_finding({"triton": "3.9.0"}).status == "ok"
    assert doctor.triton_finding({}).status == "note"


def test_doctor_finds_a_broken_store_and_one_set_aside(store: Path) -> None:
    (store / "store.sqlite3.corrupt-20260101-000000").touch()
    (store / "store.sqlite3.corrupt-20260101-000000-wal").touch()
    assert statuses(list(doctor.check_store(store)))["store"] == ["note", "ok"]
    (store / "store.sqlite3").chmod(0o666)
    assert statuses(list(doctor.check_store(store)))["store"] == ["problem", "note", "ok"]
    (store / "store.sqlite3").write_bytes(b"nonsense" * 1000)
    assert statuses(list(doctor.check_store(store)))["store"] == ["problem"]


def test_doctor_finds_a_pack_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", str(tmp_path / "missing.jsonl"))
    assert statuses(list(doctor.check_settings()))["pack"] == ["problem"]


def test_a_check_that_fails_does_not_hide_the_others() -> None:
    def broken() -> list[doctor.Finding]:
        raise ImportError("libcudart.so.13")

    (finding,) = doctor._safely("torch", broken)
    assert finding.status == "problem"
    assert "libcudart.so.13" in finding.found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["list", "--limit", "x"], "'x': give a whole number of at least 1"),
        (["prune", "--days", "x"], "'x': give a number of days, such as 30"),
        (["prune", "--days", "-1"], "'-1': give a number of days, such as 30"),
        (["replay", "--seeds", "0", "trace"], "'0': give a whole number of at least 1"),
    ],
)
def test_a_wrong_number_is_told_what_is_accepted(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


def test_a_module_that_is_not_there_is_named_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "store"))
    assert main(["tune", "-m", "nosuch.thing"]) == 2
    assert "there is no module 'nosuch.thing': look at its spelling, and at PYTHONPATH" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forecast_autotune.distributed.suites import is_suite

    (tmp_path / "my_suite_of_calls.py").write_text("def tuning_calls():\n    return {}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert is_suite("my_suite_of_calls", module=True)
    assert not is_suite("nosuch.thing", module=True)


@pytest.mark.parametrize(
    ("setting", "value", "rows"),
    [("BUDGET", "abc", ["settings"]), ("MODEL", "/nowhere/model.json", ["model"])],
)
def test_doctor_names_a_mistake_once(
    setting: str, value: str, rows: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"FORECAST_AUTOTUNE_{setting}", value)
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    findings = found["findings"] if isinstance(found, dict) else found
    problems = [each for each in findings if each["status"] == "problem"]
    assert [each["check"] for each in problems] == rows
    assert "Errno" not in problems[0]["found"]
