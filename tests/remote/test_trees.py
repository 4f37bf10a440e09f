"""Packs as trees: written by `export`, read from a folder and from a server, pinned, damaged and hostile."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from contracts.store_contract import HARDWARE, SPACE, StoreContract, a_decision, a_job, a_measurement
from fake_hub import fake_hub
from faults.stores import in_child, told_by
from http_server import LoopbackServer
from s3_server import BUCKET, S3Server, s3_environment, s3_server

from forecast_autotune.cli import main
from forecast_autotune.core.hardware import REHEARSAL_KINDS
from forecast_autotune.core.job import Job
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.remote.fleet_store import FleetStore, open_store
from forecast_autotune.remote.segments import name_of
from forecast_autotune.remote.trees import CARD, MANIFEST, pack_folder, read_manifest
from forecast_autotune.settings import PackUrl, Settings
from forecast_autotune.store.sqlite import SqliteStore

LIMIT_S = 60.0
HOSTILE = "gelu|</td><script>`touch owned`\x1b[2J"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """The folder of a store that has decided for three kernels, one of them on another GPU."""
    jobs = [
        *(a_job(key={"n": n}) for n in range(3)),
        a_job(name=HOSTILE),
        a_job(name="h100", hardware=replace(HARDWARE, name="NVIDIA H100")),
    ]
    with SqliteStore(tmp_path / "tuned") as store:
        for job in jobs:
            for number, us in ((0, 15.0), (1, 10.0)):
                store.record_outcome(job, "run", SPACE[number], a_measurement(us), None)
            store.record_decision(job, a_decision(job, decided_at=time.time()))
    return tmp_path / "tuned"


def export(store: Path, target: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What FORECAST_AUTOTUNE_PACKS takes of a tree that the command has written."""
    assert main(["export", target, "--dir", str(store), *words]) == 0
    return capsys.readouterr().out.strip()


def used(folder: Path, packs: str, **options: Any) -> FleetStore:
    settings = Settings.from_environment({"FORECAST_AUTOTUNE_PACKS": packs})
    return FleetStore(folder, None, packs=settings.packs, **{"apart": False, **options})


def heard(store: FleetStore, job: Job) -> Any:
    store.decision(job)
    assert all(sync.finish(LIMIT_S) for sync in store.syncs)
    return store.decision(job)


class TestWithATreeBehindIt(StoreContract):
    """What a tree says of another program changes nothing."""

    @pytest.fixture
    def store(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[FleetStore]:
        with SqliteStore(tmp_path / "tuned") as other:
            other.record_decision(a_job(name=HOSTILE), a_decision(a_job(), decided_at=time.time()))
        pack = export(tmp_path / "tuned", f"{tmp_path}/tree/", capsys)
        with used(tmp_path / "own", pack) as store:
            yield store
            assert store.decision(a_job(name=HOSTILE)) is not None


def test_a_tree_in_a_folder_decides_at_the_first_call_and_needs_no_network(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with used(tmp_path / "own", export(tuned, f"{tmp_path}/tree/", capsys)) as store:
        assert store.syncs == []
        assert store.decision(a_job(key={"n": 2})).config == SPACE[1]  # type: ignore[union-attr]
        assert set(store.outcomes(a_job(key={"n": 2}))) == {SPACE[0], SPACE[1]}
        assert len(store.related_recordings(a_job(key={"n": 7}))) == 3
        assert store.decision(a_job(name="h100")) is None
        assert [r.hardware.name for r in store.related_recordings(a_job(name="h100"))] == ["NVIDIA H100"]
        assert in_child(lambda: store.decision(a_job(key={"n": 1})) is not None)


def test_a_folder_that_is_no_pack_is_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir()
    with used(tmp_path / "own", str(tmp_path / "packs")) as store:
        _, warned = told_by(lambda: [store.decision(a_job(name=name)) for name in ("one", "two")])
    assert warned == [
        f"pack {tmp_path}/packs is left out: there is no file {tmp_path}/packs/manifest.json: look at its spelling, or give "
        "its whole path"
    ]


def test_a_damaged_tree_beside_a_folder_that_is_no_pack_is_warned_of(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    tree = export(tuned, f"{tmp_path}/tree/", capsys)
    for segment in (tmp_path / "tree").rglob("*.gz"):
        segment.write_bytes(b"broken")
    with used(tmp_path / "own", f"{tmp_path}/empty:{tree}") as store:
        found, warned = told_by(lambda: [store.decision(a_job(key={"n": n})) for n in range(2)])
    assert found == [None, None]
    assert [f"pack {tmp_path}/{name} " in text for name, text in zip(("empty", "tree"), warned, strict=True)] == [
        True,
        True,
    ]


def test_the_card_says_what_is_in_it_and_no_name_is_mark_up(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(tuned, f"{tmp_path}/tree/", capsys)
    card = (tmp_path / "tree" / CARD).read_text()
    assert "- NVIDIA H100" in card
    assert "- NVIDIA H200" in card
    assert "triton 3.9.0" in card
    assert "| rmsnorm | NVIDIA H200 (132 SMs) | 3 | 1.50 | 1.50 |" in card
    assert "<script" not in card.replace("\\<", "")
    assert "\x1b" not in card
    everything = b"".join(p.read_bytes() for p in (tmp_path / "tree").rglob("*.gz"))
    assert b"def rmsnorm" not in __import__("gzip").decompress(everything)


@pytest.mark.parametrize("folder", ["my pack", "paquet-é", "a#b", "50%", "what?"])
def test_a_tree_lies_in_the_folder_of_the_name_that_is_printed(
    tmp_path: Path, tuned: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = export(tuned, f"{tmp_path}/{folder}/", capsys)
    assert (Path(pack) / MANIFEST).exists()
    with used(tmp_path / "own", pack) as store:
        assert store.decision(a_job(key={"n": 2})) is not None


def test_rehearsals_alone_go_into_no_tree_and_leave_the_one_that_is_there(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SqliteStore(tmp_path / "rehearsed") as store:
        job = replace(a_job(), hardware=replace(HARDWARE, kind=REHEARSAL_KINDS[0]))
        store.record_decision(job, a_decision(job, decided_at=time.time()))
    assert main(["export", f"{tmp_path}/new/", "--dir", str(tmp_path / "rehearsed")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "decisions of rehearsals" in err
    assert not (tmp_path / "new" / MANIFEST).exists()
    pack = export(tuned, f"{tmp_path}/tree/", capsys)
    assert main(["export", f"{tmp_path}/tree/", "--dir", str(tmp_path / "rehearsed")]) == 1
    with used(tmp_path / "own", pack) as store:
        assert store.decision(a_job(key={"n": 2})) is not None


@pytest.mark.parametrize("target", ["-", "a:b/", "file://a/b/"])
def test_where_no_export_can_lie_is_refused(
    tmp_path: Path, tuned: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main(["export", target, "--dir", str(tuned)]) == 2
    assert sorted(tmp_path.iterdir()) == before


def test_other_files_are_not_written_over(tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / CARD).write_text("mine")
    assert main(["export", f"{tmp_path}/project/", "--dir", str(tuned)]) == 2
    assert "holds other files (README.md): name a new folder" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "project").iterdir()] == [CARD]


def test_own_decisions_go_before_a_pack(tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = a_job(key={"n": 2})
    with used(tmp_path / "own", export(tuned, f"{tmp_path}/tree/", capsys)) as store:
        store.record_decision(job, a_decision(job, SPACE[3], decided_at=1.0))
        assert store.decision(job).config == SPACE[3]  # type: ignore[union-attr]


@pytest.fixture(params=["s3", "file", "http"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """Where to write a tree, and where to read it; a plain web server lists no folders for anybody."""
    for name, value in s3_environment(server.url).items():
        monkeypatch.setenv(name, value)
    shared = tmp_path / "shared"
    if request.param != "http":
        address = f"s3://{BUCKET}/{tmp_path.name}" if request.param == "s3" else f"file://{shared}"
        yield address, address
        return

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    web = LoopbackServer(partial(Quiet, directory=str(shared)))
    thread = Thread(target=web.serve_forever, daemon=True)
    thread.start()
    yield f"file://{shared}", f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    web.server_close()
    thread.join()


def test_a_pinned_tree_behind_a_url_is_copied_and_then_needs_no_network(
    url: tuple[str, str],
    tmp_path: Path,
    tuned: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, read_at = url
    named = export(tuned, there, capsys)
    pack = named.replace(there, read_at)
    with used(tmp_path / "own", pack, apart=True) as store:
        assert heard(store, a_job(key={"n": 2})).config == SPACE[1]
        assert heard(store, a_job(name=HOSTILE)) is not None
    for variable in ("AWS_ENDPOINT_URL", "HTTP_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")  # nobody is there
    shutil.rmtree(tmp_path / "shared", ignore_errors=True)
    with used(tmp_path / "own", pack) as later:
        assert later.decision(a_job(key={"n": 2})).config == SPACE[1]  # type: ignore[union-attr]


@pytest.mark.thorough
def test_a_tree_on_a_hub_is_read_at_its_revision_and_then_needs_no_network(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By huggingface_hub itself; only the server is not the hub's."""
    pytest.importorskip("huggingface_hub")
    export(tuned, f"{tmp_path}/tree/", capsys)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    with fake_hub(tmp_path / "tree", "org/name", "v1") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with used(tmp_path / "own", f"hf://org/name@{hub.commit}", apart=True) as store:
            assert heard(store, a_job(key={"n": 2})).config == SPACE[1]
        assert any(path.startswith(f"/org/name/resolve/{hub.commit}/{MANIFEST}") for path in hub.asked)
        for wrong, said in (("org/name@" + "0" * 40, "revision"), (f"org/another@{hub.commit}", "repository")):
            with used(tmp_path / wrong, f"hf://{wrong}", apart=True) as store:
                found, told = told_by(partial(heard_in_vain, store))
            assert found is None
            assert len(told) == 1
            assert f"{said} not found" in told[0].lower()
    with used(tmp_path / "own", f"hf://org/name@{hub.commit}") as later:  # the hub is gone
        assert later.decision(a_job(key={"n": 2})).config == SPACE[1]  # type: ignore[union-attr]


def test_a_branch_of_a_hub_is_not_believed_and_its_commit_is_told(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    export(tuned, f"{tmp_path}/tree/", capsys)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    moving, own = PackUrl(url="hf://org/name@main"), tmp_path / "own"
    shutil.copytree(tmp_path / "tree", pack_folder(own, moving))  # as one that was copied once
    with fake_hub(tmp_path / "tree", "org/name", "main") as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", str(moving))
        with used(own, str(moving)) as store:
            found, told = told_by(lambda: heard_in_vain(store))
        assert found is None
        assert len(told) == 1
        assert "'main' is a branch or a tag, which may name something else tomorrow" in told[0]
        assert f"hf://org/name@{hub.commit} now" in told[0]
        main(["doctor", "--json"])
        (finding,) = (f for f in json.loads(capsys.readouterr().out) if f["check"] == "pack")
        assert finding["status"] == "problem"
        assert hub.commit in finding["found"]
        main(["coverage", "--json", "--dir", str(own)])
        answered = capsys.readouterr()
        assert json.loads(answered.out or "[]") == []
        assert "'main' is no commit" in answered.err


@pytest.mark.parametrize(
    ("text", "revision", "pinned"),
    [
        ("hf://org/name@main", "main", False),
        (f"hf://org/name@{'a' * 40}", "a" * 40, True),
        (f"hf://datasets/org/name@{'a' * 40}/packs", "a" * 40, True),
        (f"hf://org/name@{'a' * 39}", "a" * 39, False),
        (f"hf://org/name@main/of@{'a' * 40}", "main", False),
        ("hf://org/name@refs/pr/1/packs", "refs/pr/1", False),
        (f"hf://org/name@main#{'a' * 64}", "main", True),
        (f"s3://bucket/of@{'a' * 40}#{'a' * 64}", "", True),
    ],
)
def test_only_a_commit_or_our_own_digest_pins_a_pack(text: str, revision: str, pinned: bool) -> None:
    pack = PackUrl.parse(text)
    assert (pack.revision, pack.pinned) == (revision, pinned)


def test_a_tree_that_is_not_the_pinned_one_is_refused(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = export(tuned, f"file://{tmp_path}/shared", capsys)
    manifest = tmp_path / "shared" / MANIFEST
    manifest.write_text(manifest.read_text() + " ")
    with used(tmp_path / "own", pack) as store:
        found, told = told_by(lambda: heard_in_vain(store))
    assert found is None
    assert len(told) == 1
    assert "it was changed, or is cut off" in told[0]
    assert "pack at file://" in told[0]


def heard_in_vain(store: FleetStore) -> Any:
    store.decision(a_job(key={"n": 2}))
    assert not store.syncs[0].finish(LIMIT_S)
    return store.decision(a_job(key={"n": 2}))


def test_a_segment_of_a_tree_that_was_changed_is_left_out(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = export(tuned, f"file://{tmp_path}/shared", capsys)
    for segment in (tmp_path / "shared").rglob("*.gz"):
        segment.write_bytes(segment.read_bytes()[:-1])
    with used(tmp_path / "own", pack) as store:
        found, told = told_by(lambda: heard_in_vain(store))
        assert found is None
        assert len(told) == 1
        assert "cut off or was changed" in told[0]
    with used(tmp_path / "other", f"{tmp_path}/shared") as store:
        found, told = told_by(lambda: store.decision(a_job(key={"n": 2})))
        assert found is None
        assert len(told) == 1
        assert "does not hold what it is named by" in told[0]


def test_a_tree_that_lacks_a_segment_is_warned_of_and_the_rest_is_used(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a copy that broke off, or from a web server that refuses a file."""
    with SqliteStore(tuned) as store:  # the program's second segment
        job = a_job(hardware=replace(HARDWARE, name="NVIDIA H100"))
        store.record_decision(job, a_decision(job, decided_at=time.time()))
    pinned = export(tuned, f"file://{tmp_path}/shared", capsys)
    for segment in read_manifest((tmp_path / "shared" / MANIFEST).read_bytes(), MANIFEST):
        if (segment.hardware, segment.program) == (job.hardware.digest, job.workload.program.digest):
            (tmp_path / "shared" / segment.path).unlink()
            gone = segment.path
    with used(tmp_path / "own", pinned) as store:
        found, told = told_by(lambda: heard(store, a_job(key={"n": 2})))
        assert found.config == SPACE[1]
    assert len(told) == 1
    assert (
        f"pack file://{tmp_path}/shared lacks 1 segment of rmsnorm, the first {gone}: copy the pack there again"
        in told[0]
    )
    with used(tmp_path / "other", f"{tmp_path}/shared") as store:
        found, told = told_by(lambda: [store.decision(a_job(key={"n": n})) for n in range(2)])
    assert None not in found
    assert len(told) == 1
    assert f"a segment of pack {tmp_path}/shared is left out: {gone} is missing, copy the pack there again" in told[0]
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", f"{tmp_path}/shared")
    assert main(["doctor", "--json"]) == 1
    (finding,) = (f for f in json.loads(capsys.readouterr().out) if f["check"] == "pack")
    assert finding["status"] == "problem"
    assert finding["found"] == f"{tmp_path}/shared lacks 1 of 4 segments, the first {gone}"


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "v1/../x", "/etc/passwd", 7, f"v1/{'a' * 32}/{'b' * 32}/{'c' * 31}.jsonl.gz"]
)
def test_a_manifest_that_names_anything_but_segments_is_refused(path: object) -> None:
    text = json.dumps({"schema": "forecast_autotune.pack", "version": 1, "segments": [path]})
    with pytest.raises(InvalidInputError, match="which is no segment's path"):
        read_manifest(text.encode(), "manifest")
    for broken in (b"", b"\xff", b"[]", b'{"schema": "other"}', b'{"schema": "forecast_autotune.pack", "version": 2}'):
        with pytest.raises(InvalidInputError):
            read_manifest(broken, "manifest")


@pytest.mark.parametrize(
    "text",
    [
        "s3://team/pack",
        "hf://org/name",
        f"s3://team/pack#{'a' * 63}",
        "https://x/y#main",
        "http://host:8080",
        "http://host:8080/x",
        "hf://org/name@",
        f"hf://org/name/of@{'a' * 40}",
    ],
)
def test_a_url_that_is_not_pinned_is_an_error_that_says_how(text: str) -> None:
    for packs in (text, f"/a.jsonl:{text} : /b"):
        with pytest.raises(InvalidInputError, match=f"FORECAST_AUTOTUNE_PACKS=.*{re.escape(text)}' is no .*URL#DIGEST"):
            Settings.from_environment({"FORECAST_AUTOTUNE_PACKS": packs})


def test_paths_and_urls_stand_beside_each_other() -> None:
    pin = "a" * 64
    texts = ["/a.jsonl", f"s3://team/pack#{pin}", f"http://host:8080/x#{pin}", "hf://org/name@v1", "/b"]
    packs = Settings.from_environment({"FORECAST_AUTOTUNE_PACKS": ":".join(texts)}).packs
    assert packs == (
        Path("/a.jsonl"),
        PackUrl(url="s3://team/pack", digest=pin),
        PackUrl(url="http://host:8080/x", digest=pin),
        PackUrl(url="hf://org/name@v1"),
        Path("/b"),
    )
    assert ":".join(map(str, packs)) == ":".join(texts)


def test_the_settings_open_a_store_with_trees_and_doctor_looks_at_them(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = export(tuned, f"{tmp_path}/tree/", capsys)
    pinned = export(tuned, f"file://{tmp_path}/tree", capsys, "--sources")
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", f"{tree}:{pinned}:file://{tmp_path}/none#{'a' * 64}")
    assert isinstance(open_store(Settings.from_environment()), FleetStore)
    main(["doctor", "--json"])
    findings = [f for f in json.loads(capsys.readouterr().out) if f["check"] == "pack"]
    assert [f["status"] for f in findings] == ["ok", "ok", "problem"]


def test_a_tree_written_again_over_an_older_one_is_the_newer(
    tmp_path: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = export(tuned, f"file://{tmp_path}/shared", capsys)
    assert export(tuned, f"file://{tmp_path}/shared", capsys) == first, "the same store makes the same tree"
    with SqliteStore(tuned) as store:
        store.record_decision(a_job(key={"n": 2}), a_decision(a_job(), SPACE[3], decided_at=time.time() + 1))
    second = export(tuned, f"file://{tmp_path}/shared", capsys)
    assert first != second
    with used(tmp_path / "own", second) as later:
        assert heard(later, a_job(key={"n": 2})).config == SPACE[3]


def test_fsspec_is_not_imported_where_nothing_is_shared() -> None:
    program = (
        "import sys; from forecast_autotune.remote.fleet_store import open_store; "
        "from forecast_autotune.settings import Settings; open_store(Settings.from_environment({})); "
        "print([name for name in ('s3fs', 'botocore', 'aiohttp') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
    assert name_of(b"") != name_of(b"x")
