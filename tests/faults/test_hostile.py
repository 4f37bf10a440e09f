"""Data by somebody who means harm: it runs nothing, writes and reads nowhere else, and chooses nothing outside a space."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import anyio.from_thread  # noqa: F401  # what asks a server: its import is not to count against a deadline
import httpx  # noqa: F401
import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement
from fake_server import FakeServer, fake_server
from faults import whole_use
from faults.fuzz import in_time
from faults.ledger import Case, Ledger
from faults.stores import NOBODY, as_nobody, told_by
from recorded import job_of, recording
from terminal import shown_by
from toy import KERNEL

from forecast_autotune.compilers.cpp_compile import CppCompiler
from forecast_autotune.compilers.cpp_recipe import Recipe
from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Forecast, Normal
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.core.outcome import Evidence, Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.errors import AutotuneError, InvalidInputError
from forecast_autotune.evaluation.traces import read_trace, write_trace
from forecast_autotune.language.model import ModelError, Unanswered
from forecast_autotune.language.prompt import Prompt, prompts
from forecast_autotune.language.server import ServedModel
from forecast_autotune.measure.replay import Replay
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.history import History
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.policies import Selective

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x08"


def payloads(canary: Path) -> list[str]:
    """What would create a file, in the words of whatever might run it, or lead elsewhere."""
    touch = f"touch {shlex.quote(str(canary))}"
    return [
        f"; {touch} ;", f"$({touch})", f"`{touch}`", f"x\n{touch}\n", f"' || {touch} || '", f'" && {touch} && "',
        f"| {touch}",
        f"__import__('os').system({touch!r})", f"{{{{ cycler.__init__.__globals__.os.popen({touch!r}).read() }}}}",
        f"{{% for x in ().__class__.__base__.__subclasses__() %}}{{{{ x }}}}{{% endfor %}} ${{{touch}}}",
        f"!!python/object/apply:os.system [{touch!r}]", f"cos\nsystem\n(S'{touch}'\ntR.",
        "'; DROP TABLE decision; --", "x'); ATTACH DATABASE '../../owned' AS owned; --", "load_extension('../../owned.so')",
        "@/etc/passwd", "-fplugin=../../owned.so", "-o ../../owned", "-include/etc/passwd", "-DX=$(id)",
        "-wrapper touch,owned",
        '#include "/etc/passwd"', "file:///etc/passwd", "../../../owned", "/etc/owned", "~/owned", "a\0b", "owned" * 2_000,
        "[red]red[/red] [/nope] [link=file:///etc/passwd]x[/link]", ESCAPES, "%s%n{0.__class__}", "", " ", ".", "..",
    ]  # fmt: skip


def hostile_job(text: str) -> Job:
    """A job all of whose names are a payload."""
    job = a_job(name=text, source=f'#include "/etc/passwd"\n{text}', key={text: text, "n": 1}, features={text: text})
    space = Space([{"BLOCK": block, text or "K": text} for block in (64, 128, 256)])
    hardware = Hardware(kind="cuda", name=text, capability=text, partition=text)
    return replace(job, space=space, hardware=hardware, toolchain=Toolchain(versions={text: text}))


def fill(directory: Path, texts: list[str]) -> None:
    with SqliteStore(directory) as store:
        for text in texts:
            job = hostile_job(text)
            said = Forecast((Normal(0.1, 0.2, 0.5, text), Normal(0.1, 0.2, 0.5, text)), text, 0.1, 10.0)
            store.record_outcome(job, text, job.space[0], a_measurement(), None)
            store.record_outcome(job, text, job.space[1], a_measurement(9.0), said)
            store.record_outcome(job, text + "2", job.space[1], Failure(stage="launch", message=text), said)
            decision = a_decision(job, reason=text, run=text, budget=text, equivalents=(job.space[0],))
            store.record_decision(job, decision)
            store.note_pending(replace(job, toolchain=Toolchain(versions={"other": text})), text)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def on_a_terminal(command: list[str], case: Case, folder: Path) -> tuple[int, str]:
    """A command's exit code and what it shows on a terminal, stdout and stderr together."""
    environment = {**case.environment, "TERM": "xterm", "COLUMNS": "200", "HOME": str(folder)}
    return shown_by([sys.executable, "-m", "forecast_autotune", *command], environment, folder)


def test_names_of_a_pack_run_nothing_and_command_no_terminal(tmp_path: Path, faults: Ledger) -> None:
    with faults.case(
        "an imported pack whose names, knobs, hardware, runs and reasons are commands to a shell, SQL, templates, pickle, a "
        "compiler or a terminal",
        tmp_path,
        seen="the names as text, control characters as \\x1b",
    ) as case:
        texts = payloads(case.canary)
        fill(case.folder / "theirs", texts)
        pack = case.folder / "pack.jsonl"
        assert StoreFile(case.folder / "theirs").export(pack) == 3 * len(texts)
        here = case.folder / "here"
        here.mkdir()
        before = files_in(case.folder)
        with case.attempt():
            code, shown = on_a_terminal(["import", str(pack)], case, here)
            assert (code, f"{len(texts)} new decisions" in shown) == (0, True), shown
        store = StoreFile(case.store)
        ours = [stored.digest for stored in store.decisions()]
        assert len(ours) == len(texts)
        commands = [
            ["list", "--superseded"], ["stats"], ["skills"], ["pending"], ["list", "--kernel", ESCAPES], ["show", ESCAPES],
            *(["show", digest] for digest in ours[:: 1 if case.whole else 6]), ["doctor"],
            ["export", str(case.folder / "again.jsonl")], ["import", str(case.folder / ESCAPES)], ["prune", "--days", "0"],
        ]  # fmt: skip
        for command in commands:
            with case.attempt():
                code, shown = on_a_terminal([*command, "--dir", str(case.store)], case, here)
                assert code in (0, 1, 2), (command, shown)
                assert "Traceback" not in shown, shown
                for forbidden in ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\u202e", "\x08"):
                    assert forbidden not in shown, (command, forbidden)
        with case.attempt(), in_time():
            whole_use.tune(case.store)
            with SqliteStore(None, packs=[pack]) as from_pack:
                assert from_pack.decision(hostile_job(texts[0])) is not None
        new = {name for name in files_in(case.folder) - before if not name.startswith("store")}
        assert new == {"again.jsonl"}, "something was written elsewhere"


def test_names_of_a_pack_reach_a_prompt_as_text(tmp_path: Path, faults: Ledger) -> None:
    with faults.case(
        "templates and file names in what a language model's prompt is made of",
        tmp_path,
        seen="nothing; the prompt holds them as text",
    ) as case:
        for text in payloads(case.canary):
            job = hostile_job(text[:1_000])
            with case.attempt(), in_time():
                for answer in ("logits", "reasoned"):
                    (prompt,) = prompts(job, [job.space[1]], answer=answer)
                    assert "root:x:0" not in prompt.text
                    assert "<class '" not in prompt.text, "the classes that a template would list"


PROGRESS = """
import math, sys
from contracts.store_contract import a_job
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.job import Progress
from forecast_autotune.tuning.progress import show_progress
with show_progress("a kernel") as show:
    for text in sys.argv[1:]:
        counts = {"forecast": 1, "compiled": 1, "tried": 1}
        best = {"best": None, "best_speedup": 1.5}
        job = a_job(name=text, hardware=Hardware(kind="cpu", name="a CPU"))
        show(Progress(job=job, doing="timing", limit=math.inf, spent_s=1.0, timing=True, **best, **counts))
"""


def test_a_kernels_name_commands_no_terminal_while_it_is_tuned(tmp_path: Path, faults: Ledger) -> None:
    with faults.case(
        "terminal commands and mark-up in the name of a kernel, while the line of progress is drawn",
        tmp_path,
        seen="the name as text, control characters as \\x1b",
    ) as case:
        texts = [ESCAPES, "[/nope]", "[red]x[/red]", "x\ny"]
        environment = {**case.environment, "TERM": "xterm", "COLUMNS": "200"}
        with case.attempt():
            code, shown = shown_by([sys.executable, "-c", PROGRESS, *texts], environment, case.folder)
            assert code == 0, shown
            assert "[/nope]: timing" in shown
            assert "[red]x[/red]: timing" in shown
            assert "\\x1b]0;owned" in shown
            assert "\x1b]" not in shown


@pytest.mark.parametrize("column", ["device", "holder", "config", "job"])
def test_a_stored_process_name_is_never_used_as_a_path(tmp_path: Path, faults: Ledger, column: str) -> None:
    with faults.case(
        "paths in the place of devices, holders and configs that processes share",
        tmp_path,
        seen="nothing; such rows are passed over",
    ) as case:
        for text in payloads(case.canary)[:: 1 if case.whole else 6]:
            with case.attempt(), in_time():
                store = whole_use.fill(case.store)
                connection = sqlite3.connect(store, isolation_level=None)
                if column in ("holder", "job"):
                    connection.execute(f"UPDATE OR IGNORE flight SET {column} = ?", (text,))  # noqa: S608
                connection.execute(f"UPDATE OR IGNORE claim SET {column} = ?, until = 4e9", (text,))  # noqa: S608
                connection.close()
                whole_use.tune(case.store)
                whole_use.look(case.store)
                locks = {str(path.relative_to(case.store / "locks")) for path in (case.store / "locks").rglob("*")}
                assert all(re.fullmatch(r"(open|(device-)?[0-9a-f]{3})\.lock", name) for name in locks), locks
                shutil.rmtree(case.store)
        assert files_in(case.folder) == {"tmp"}


@pytest.mark.parametrize("form", ["trace.jsonl", "x_y_z_T4.json"])
def test_names_of_a_trace_run_nothing(tmp_path: Path, faults: Ledger, form: str) -> None:
    with faults.case(
        "a trace with such names, given to replay", tmp_path, seen="the names as text, or an error with the line"
    ) as case:
        here = case.folder / "here"
        here.mkdir()
        texts = payloads(case.canary)
        for text in texts if case.whole else texts[::5]:
            path = case.folder / form
            if form.startswith("trace"):
                found = recording()
                write_trace(replace(found, hardware=Hardware(kind="cuda", name=text)), path)
            else:
                knob = text or "k"
                results = [
                    {"configuration": {knob: text, "n": n}, "times": {"runtimes": [1.0 + n]}, "invalidity": "correct"}
                    for n in range(4)
                ]
                path.write_text(
                    json.dumps({"metadata": {"timeunit": "ms"}, "results": results, "schema_version": text})
                )
            before = files_in(case.folder)
            with case.attempt():
                command = ["replay", str(path), "--budget", "2", "--seeds", "1", "--surrogate", "roofline"]
                code, shown = on_a_terminal(command, case, here)
                assert code in (0, 2), shown
                assert "Traceback" not in shown, shown
                assert "\x1b]" not in shown
                assert "\x07" not in shown
            assert files_in(case.folder) == before
            assert read_trace(path).outcomes


@pytest.mark.parametrize("knob", ["macro", "flag", "name"])
def test_a_knob_that_a_shell_or_a_compiler_would_obey_is_refused(tmp_path: Path, faults: Ledger, knob: str) -> None:
    with faults.case(
        "shell commands and compiler options as values and names of a C++ kernel's knobs",
        tmp_path,
        seen="an error that names the knob and its value, before anything is built",
    ) as case:
        for text in payloads(case.canary):
            if (knob == "flag" and text.startswith("-")) or not text.strip() or text.isidentifier():
                continue  # a flag of the user's own space is a compiler's option, and an identifier a name like any other
            recipe = Recipe(name="x", cpp_sources=("",), roles={"F": "flag"})
            space = Space([{"macro": {"K": text}, "flag": {"F": text}, "name": {text: 1}}[knob]])
            with case.attempt():
                if knob == "macro" and all(c.isalnum() or c in "_.,:+-*/%=" for c in text):
                    recipe.validate(space)  # a path or a word, which stands as one word behind -DK=
                    continue
                with pytest.raises(InvalidInputError, match=r"knob|flag"):
                    recipe.validate(space)


# Decisions by others -----------------------------------------------------------------------------------------------------


class TimedAgain(Replay):
    """A recording that can be asked twice, as a device can: the last ones in the race are."""

    repeatable = True


def tuned(case: Case, job: Job, found: Any, packs: list[Path] | None = None) -> tuple[Any, Replay]:
    replayed = TimedAgain(found)
    with SqliteStore(case.store, packs=packs or []) as store:
        decision = tune(
            job, compiler=replayed, surrogate=History(), policy=Selective(), measurer=replayed, store=store,
            budget=Budget("8", clock=replayed.clock),
        ).decision  # fmt: skip
    return decision, replayed


def export_of(case: Case, write: Callable[[SqliteStore], None]) -> Path:
    with SqliteStore(case.folder / "theirs") as store:
        write(store)
    path = case.folder / "theirs.jsonl"
    StoreFile(case.folder / "theirs").export(path)
    return path


@pytest.mark.parametrize("way", ["pack", "import"])
def test_a_decision_for_a_config_of_another_space_is_not_used(tmp_path: Path, faults: Ledger, way: str) -> None:
    with faults.case(
        "a decision by others with the digest of one's own space and a config that is not in it",
        tmp_path,
        seen="nothing; the key is tuned as if it were not there",
    ) as case:
        found = recording()
        job = job_of(found)
        foreign = Config({"block": 64, "tile": "; touch owned", "padded": False})
        pack = export_of(
            case, lambda store: store.record_decision(job, a_decision(job, foreign, decided_at=4e9, equivalents=()))
        )
        with case.attempt(), in_time():
            if way == "import":
                StoreFile(case.store).import_files([pack])
            decision, _ = tuned(case, job, found, [pack] if way == "pack" else None)
        assert decision.config in job.space
        assert decision.basis == "measured"
        assert decision.config != foreign
        assert {s.decision.config for s in StoreFile(case.store).decisions()} <= {foreign, decision.config}


def test_a_false_time_is_caught_where_configs_can_be_timed_again(tmp_path: Path, faults: Ledger) -> None:
    with faults.case(
        "a pack that claims 1e-90 us for the slowest config",
        tmp_path,
        seen="nothing; the config is timed here before it is chosen, and loses",
    ) as case:
        found = recording(failures=False)
        job = job_of(found)
        slowest = max(found.outcomes, key=lambda c: found.outcomes[c].median_us)  # type: ignore[union-attr]
        lie = Measurement(samples_us=(1e-90, 1.01e-90))
        pack = export_of(case, lambda store: store.record_outcome(job, "theirs", slowest, lie, None))
        with case.attempt(), in_time():
            decision, _ = tuned(case, job, found, [pack])
        assert decision.config in job.space
        assert decision.config != slowest, "finalists are timed again here"
        assert decision.config_us is not None
        assert decision.config_us > 1.0


def test_a_whole_decision_is_believed_and_can_be_cleared(tmp_path: Path, faults: Ledger) -> None:
    """What remains of a hostile pack; the README says so."""
    with faults.case(
        "an imported decision for the slowest config of one's own space",
        tmp_path,
        seen="a slow config, named by `list`; `clear --kernel` ends it",
    ) as case:
        found = recording(failures=False)
        job = job_of(found)
        slowest = max(found.outcomes, key=lambda c: found.outcomes[c].median_us)  # type: ignore[union-attr]
        pack = export_of(case, lambda store: store.record_decision(job, a_decision(job, slowest, equivalents=())))
        with case.attempt(), in_time():
            StoreFile(case.store).import_files([pack])
            assert tuned(case, job, found)[0].config == slowest
            StoreFile(case.store).clear(kernel=job.workload.program.name)
            assert tuned(case, job, found)[0].config != slowest


@pytest.mark.parametrize("us", [0.0, -1.0, 1e-300, 1e300, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused_by_its_line(tmp_path: Path, faults: Ledger, us: float) -> None:
    with faults.case(
        "an import that claims 0, negative, 1e-300 or infinite microseconds, or none",
        tmp_path,
        seen="an error with the line; nothing is imported",
    ) as case:
        pack = export_of(
            case, lambda store: store.record_outcome(a_job(), "theirs", SPACE[1], a_measurement(7.25), None)
        )
        pack.write_text(pack.read_text().replace("7.25", json.dumps(us)))
        with case.attempt():
            code, shown = on_a_terminal(["import", str(pack)], case, case.folder)
            assert code == 2
            assert "line 2: " in shown
            assert "nothing of it is taken" in shown
        assert not (case.store / "store.sqlite3").exists()


# Other users of the machine ----------------------------------------------------------------------------------------------


def modes_in(folder: Path) -> dict[str, str]:
    """Files and folders that somebody else may read or write."""
    return {str(p): oct(p.lstat().st_mode) for p in [folder, *folder.rglob("*")] if p.lstat().st_mode & 0o077}


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o022])
def test_everything_that_is_made_is_this_users_alone(tmp_path: Path, faults: Ledger, umask: int) -> None:
    with faults.case(
        "umask 0, which leaves all to all", tmp_path, seen="nothing; files are 0600, folders 0700"
    ) as case:
        before = os.umask(umask)
        try:
            with case.attempt(), in_time():
                whole_use.fill(case.store)
                with SqliteStore(case.store) as store:
                    store.decision(a_job())
                    open_now = modes_in(case.store)  # with its log and index
                out = case.folder / "out"
                out.mkdir(mode=0o700)
                StoreFile(case.store).export(out / "store.jsonl.gz")
                write_trace(recording(), out / "trace.jsonl")
                assert [type(built) for _, built in toy_compiler(case).compile([Config({"MODE": "plain"})])] == [
                    Failure
                ]
                (case.store / "store.sqlite3").write_bytes(b"broken" * 1_000)
                told_by(lambda: whole_use.tune(case.store))
        finally:
            os.umask(before)
        assert list(case.store.glob("*.corrupt-*"))
        made = (case.store, out, case.folder / "builds")
        assert [open_now, *map(modes_in, made)] == [{}] * 4


def a_link_for_the_store(store: Path, victim: Path) -> None:
    store.mkdir(mode=0o700)
    victim.write_bytes(b"")  # where SQLite would begin a database
    (store / "store.sqlite3").symlink_to(victim)


def a_link_for_the_log(store: Path, victim: Path) -> None:
    whole_use.fill(store)
    (store / "store.sqlite3-wal").unlink(missing_ok=True)
    (store / "store.sqlite3-wal").symlink_to(victim)


def a_link_for_each_lock(store: Path, victim: Path) -> None:
    (store / "locks").mkdir(mode=0o700, parents=True)
    for number in range(4096):
        (store / "locks" / f"{number:03x}.lock").symlink_to(victim)
    (store / "locks" / "open.lock").symlink_to(victim)


@pytest.mark.parametrize("plant", [a_link_for_the_store, a_link_for_the_log, a_link_for_each_lock])
def test_links_in_the_stores_folder_lead_to_nothing_that_is_changed(
    tmp_path: Path, faults: Ledger, plant: Callable[[Path, Path], None]
) -> None:
    with faults.case(
        "links to a file of the user's in the place of the store, its log and its locks",
        tmp_path,
        seen="one or two warnings that name the link; tuning goes on, in memory if need be",
    ) as case:
        victim = case.folder / "victim"
        victim.write_bytes(b"precious")
        plant(case.store, victim)
        before = victim.read_bytes()
        with case.attempt(), in_time():
            told = whole_use.tune(case.store)
        assert victim.read_bytes() == before
        assert 1 <= len(told) <= 2 or plant is a_link_for_the_log, told


def test_an_export_takes_the_place_of_a_link_and_not_of_its_target(tmp_path: Path, faults: Ledger) -> None:
    with faults.case("a link in the place of an export's file", tmp_path, seen="nothing; the link is replaced") as case:
        whole_use.fill(case.store)
        victim = case.folder / "victim"
        victim.write_bytes(b"precious")
        (case.folder / "out.jsonl").symlink_to(victim)
        with case.attempt(), in_time():
            StoreFile(case.store).export(case.folder / "out.jsonl")
        assert victim.read_bytes() == b"precious"
        assert not (case.folder / "out.jsonl").is_symlink()


as_root = pytest.mark.skipif(os.getuid() != 0, reason="files of two users can be made by root alone")


@as_root
def test_a_store_in_somebody_elses_folder_runs_nothing_of_theirs(open_folder: Path, faults: Ledger) -> None:
    with faults.case(
        "a store's folder that another user owns and has filled",
        open_folder,
        seen="what it says of speeds is believed; name a folder of one's own",
    ) as case:
        case.folder.chmod(0o777)
        as_nobody(lambda: whole_use.fill(case.store) and None)
        case.store.chmod(0o777)
        planted = case.store / "planted.py"
        planted.write_text(f"open({str(case.canary)!r}, 'w')")
        with case.attempt():
            environment = {**case.environment, "PYTHONSAFEPATH": "1"}
            use = [sys.executable, "-m", "faults.whole_use", str(case.store)]
            done = subprocess.run(use, env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr


def planted_build(case: Case, compiler: CppCompiler, config: Config) -> Path:
    """A finished build of a config, as another user would leave it to be loaded."""
    code = f'#include <stdio.h>\n__attribute__((constructor)) void run(void) {{ fopen("{case.canary}", "w"); }}\n'
    source, library = case.folder / "planted.c", case.folder / "planted.so"
    source.write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=200)
    folder = compiler.root / compiler._variant(config).digest
    folder.mkdir(parents=True, mode=0o700)
    library.rename(folder / "toy.so")
    evidence = {"compile_s": 1.0, "code_bytes": 1}
    (folder / "built.json").write_text(
        json.dumps({"library": "../../toy/" + folder.name + "/toy.so", "evidence": evidence})
    )
    return folder


def toy_compiler(case: Case) -> CppCompiler:
    recipe = Recipe(
        name="toy", cpp_sources=("",), kernel_sources=("#error built anew\n" + KERNEL,), functions={"mode": "mode"},
        arguments={"build_directory": str(case.folder / "builds")},
    )  # fmt: skip
    cpu = Hardware(kind="cpu", name="x")
    return CppCompiler(recipe, Toolchain(versions={"c++": "1"}), cpu, case.folder / "builds")


@pytest.mark.parametrize(
    "theirs",
    [
        *(pytest.param(place, marks=as_root) for place in ("library", "folder", "root")),
        *("writable library", "writable folder", "writable root"),
    ],
)
def test_a_library_that_somebody_else_planted_is_not_loaded(
    open_folder: Path, faults: Ledger, theirs: str, caplog: pytest.LogCaptureFixture
) -> None:
    with faults.case(
        "a library in the folder of builds that another user owns, or may write to",
        open_folder,
        seen="one warning that names the folder; the library is built anew, elsewhere if need be",
    ) as case:
        compiler = toy_compiler(case)
        config = Config({"MODE": "plain"})
        folder = planted_build(case, compiler, config)
        place = {"library": folder / "toy.so", "folder": folder, "root": compiler.root}[theirs.split()[-1]]
        if theirs.startswith("writable"):
            place.chmod(0o777)
        else:
            os.chown(place, NOBODY, NOBODY)
        with case.attempt(), in_time(), pytest.raises(AutotuneError, match=r"built anew|others may write"):
            toy_compiler(case).extension(config).function("mode")
        assert str(compiler.root) in caplog.text


def test_a_build_of_ones_own_is_found(tmp_path: Path, faults: Ledger) -> None:
    """So that the tests above refuse for the reason they name."""
    with faults.case(
        "a library in the folder of builds that is one's own", tmp_path, seen="nothing; it is used"
    ) as case:
        compiler = toy_compiler(case)
        config = Config({"MODE": "plain"})
        planted_build(case, compiler, config)
        with case.attempt():
            ((_, evidence),) = toy_compiler(case).compile([config])
            assert isinstance(evidence, Evidence)


# A language model's server -----------------------------------------------------------------------------------------------

Handler = BaseHTTPRequestHandler


def redirect(to: str) -> Callable[[FakeServer, Handler, Any], None]:
    def reply(fake: FakeServer, handler: Handler, _: Any) -> None:
        handler.send_response(302)
        handler.send_header("Location", to or fake.card["elsewhere"])
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return reply


def endless(fake: FakeServer, handler: Handler, _: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while not fake.closed.is_set():
        handler.wfile.write(b"[" * 65536)


def drip(fake: FakeServer, handler: Handler, _: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
    while not fake.closed.wait(0.05):
        handler.wfile.write(b" ")


BOMB = gzip.compress(b"[" * 2**26, 1)


def bomb(_: FakeServer, handler: Handler, __: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", str(len(BOMB)))
    handler.end_headers()
    handler.wfile.write(BOMB)


def headers(_: FakeServer, handler: Handler, __: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: a\r\n\x00\x1b]0;owned\x07: b\r\nContent-Length: -1\r\n\r\n{}")


def says(value: object) -> Callable[[FakeServer, Handler, Any], None]:
    return lambda _, handler, __: FakeServer.body(
        handler, value if isinstance(value, bytes) else json.dumps(value).encode()
    )


SERVERS: dict[str, Callable[[FakeServer, Handler, Any], None]] = {
    "a redirect to a file": redirect("file:///etc/passwd"),
    "a redirect to another host": redirect(""),
    "a redirect to itself": redirect("/v1/models"),
    "a body without end": endless,
    "a body that drips": drip,
    "a gzip bomb": bomb,
    "headers that are none": headers,
    "a page of HTML": says(b"<html><script>alert(1)</script>\x1b]0;owned\x07</html>"),
    "nesting": says(b"[" * 1_000_000),
    "nesting that just parses": says(b"[" * 900 + b"]" * 900),
    "a pickle": says(b"\x80\x04\x95cos\nsystem\n(S'true'\ntR."),
    "a number without end": says(b'{"choices": ' + b"9" * 5_000 + b"}"),
    "answers to other prompts": says({"choices": [{"index": 7, "logprobs": {"top_logprobs": [{}]}}]}),
    "an answer twice": says({"choices": [{"index": 0}, {"index": 0}, {"index": -1}, {"index": True}, {"index": "0"}]}),
    "no numbers": says({"choices": [{"index": 0, "logprobs": {"top_logprobs": [{"token_id:65": "0"}]}}]}),
    "a model that is a path": says({"data": [{"id": "../../etc/passwd", "root": "/etc", "max_model_len": 10**400}]}),
    "tokens that are none": says({"tokens": [10**400, -1], "max_model_len": 10**400}),
    "terminal commands": says({"data": [{"id": ESCAPES}], "error": {"message": ESCAPES}}),
}

SAID = {
    "a redirect to a file": "answers with a redirect (302), which is not followed",
    "a redirect to another host": "answers with a redirect (302), which is not followed",
    "a redirect to itself": "answers with a redirect (302), which is not followed",
    "a body without end": "sent more than 8 MiB in answer to",
    "a body that drips": "did not answer in time",
    "a gzip bomb": "answers with what is no JSON",
    "a page of HTML": "answers with what is no JSON",
    "nesting": "answers with what is no JSON",
    "a pickle": "answers with what is no JSON",
    "a number without end": "answers with what is no JSON",
    "headers that are none": "cannot be asked",
}


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


@pytest.mark.parametrize("kind", SERVERS)
def test_a_hostile_server_gets_no_more_than_an_abstention(
    tmp_path: Path, faults: Ledger, fake: FakeServer, kind: str
) -> None:
    with faults.case(
        "a model's server that redirects, never ends, drips, packs bombs, nests, or answers what was not asked",
        tmp_path,
        seen="a line of the log; tuning goes on without the model",
    ) as case:
        job = a_job()
        asked = prompts(job, list(job.space)[1:3])
        with fake_server() as elsewhere:
            fake.card["elsewhere"] = f"{elsewhere.url}/v1/models"
            within_s = 2.0 if kind == "a body that drips" else 20.0  # that one alone goes on until it is over
            attack_server(case, fake, SERVERS[kind], SAID.get(kind, ""), asked, within_s)
            assert elsewhere.asked == []


def attack_server(
    case: Case,
    fake: FakeServer,
    reply: Callable[[FakeServer, Handler, Any], None],
    expected: str,
    asked: list[Prompt],
    within_s: float,
) -> None:
    """Ask a server that replies so to one kind of question after the other; `expected` is why it is then not asked."""
    for path in [*fake.replies]:
        before, fake.replies[path] = fake.replies[path], reply
        with case.attempt(), in_time():
            served = ServedModel(fake.url)
            said: list[Any] = []
            try:
                served.open(until=time.monotonic() + within_s)
                for answers in (
                    served.log_probabilities(asked, until=time.monotonic() + within_s),
                    served.texts(asked, schema={}, until=time.monotonic() + within_s),
                ):
                    said += [answer for _, answer in answers]
            except ModelError as err:
                said.append(Unanswered(str(err)))
            finally:
                served.close()
            for one in said:
                if isinstance(one, Unanswered):
                    assert one.reason.isprintable(), one.reason
                    assert "root:x:0" not in one.reason
                    assert len(one.reason) < 1_000
            if path == "/v1/models" and expected:
                assert expected in said[0].reason
        fake.replies[path] = before
