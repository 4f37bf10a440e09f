"""Storages: folders, memory, and a real server that speaks S3's protocol."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest
from fake_hub import FakeHub, fake_hub
from http_server import LoopbackServer
from s3_server import BUCKET, S3Server, s3_environment, s3_server

from forecast_autotune.errors import InvalidInputError, MissingExtraError, RemoteStoreError
from forecast_autotune.remote.location import MAX_PACKED_BYTES, ListedSegment, Location
from forecast_autotune.remote.segments import name_of

# huggingface_hub's own, where it uploads a large file.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

HARDWARE, OTHER, PROGRAM = "a" * 32, "b" * 32, "c" * 32
DATA = b"what a segment holds"
NAME = name_of(DATA)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["file", "memory", "s3", "hf"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    if request.param == "hf":
        with writable_hub(tmp_path, monkeypatch):
            yield Location("hf://org/name/tuning")
        return
    if request.param == "s3":
        for name, value in s3_environment(request.getfixturevalue("server").url).items():
            monkeypatch.setenv(name, value)
        yield Location(f"s3://{BUCKET}/{tmp_path.name}")
        return
    yield Location(f"{request.param}://{tmp_path}/shared")


@contextmanager
def writable_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with an empty repository, and a token for it; large files go to it by git's protocol, not by the hub's own."""
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    (folder / "repository").mkdir()
    with fake_hub(folder / "repository", "org/name", "main") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", hub.token)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield hub
        assert list(folder.glob("hffs-*")) == [], "a temporary file was left behind"


def test_a_server_that_cannot_be_reached_is_not_taken_for_an_empty_one() -> None:
    pytest.importorskip("aiohttp")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(RemoteStoreError, match="cannot list http://"):
            Location(f"http://127.0.0.1:{taken.getsockname()[1]}/tuning").all_segments()


def test_what_is_written_is_listed_read_and_removed(location: Location) -> None:
    assert location.segments(HARDWARE, PROGRAM) == []
    assert location.hardware() == []
    location.write(HARDWARE, PROGRAM, NAME, DATA)
    location.write(OTHER, PROGRAM, NAME, DATA)
    (found,) = location.segments(HARDWARE, PROGRAM)
    assert (found.hardware, found.program, found.name, found.size) == (HARDWARE, PROGRAM, NAME, len(DATA))
    assert found.at is not None
    assert abs(found.at - time.time()) < 3600
    assert location.hardware() == [HARDWARE, OTHER]
    assert [s.hardware for s in location.all_segments()] == [HARDWARE, OTHER]
    assert list(location.read([found])) == [(found, DATA)]
    location.remove([found, found])
    assert location.segments(HARDWARE, PROGRAM) == []


def test_a_segment_that_somebody_removed_meanwhile_is_left_out(location: Location) -> None:
    location.write(HARDWARE, PROGRAM, NAME, DATA)
    gone = ListedSegment(hardware=HARDWARE, program=PROGRAM, name=name_of(b"gone"), size=4, at=None)
    (found,) = location.segments(HARDWARE, PROGRAM)
    assert list(location.read([gone, found])) == [(found, DATA)]


def test_a_file_is_read_as_far_as_the_limit(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    location.write(HARDWARE, PROGRAM, NAME, DATA)
    location.write_file("beside", DATA)
    listing = location.segments(HARDWARE, PROGRAM)
    monkeypatch.setattr("forecast_autotune.remote.location.MAX_PACKED_BYTES", 4)
    assert location.read_file("beside", len(DATA)) == DATA
    if location.url.startswith("s3"):  # rclone sends a part with the checksum of the whole, which s3fs refuses
        with pytest.raises(RemoteStoreError, match="FlexibleChecksumError"):
            list(location.read(listing))
        return
    assert [data for _, data in location.read(listing)] == [DATA[:5]]
    with pytest.raises(InvalidInputError, match="beside has more than 4 bytes: it is not read"):
        location.read_file("beside", 4)


def test_a_web_server_whose_answers_never_end_is_read_to_the_limit() -> None:
    pytest.importorskip("aiohttp")
    asked = []

    class Endless(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # who asks has had enough
                while True:
                    self.wfile.write(bytes(2**20))

    listed = ListedSegment(hardware=HARDWARE, program=PROGRAM, name=NAME, size=0, at=None)
    with LoopbackServer(Endless) as web:
        thread = Thread(target=web.serve_forever, daemon=True)
        thread.start()
        location = Location(f"http://127.0.0.1:{web.server_port}/pack")
        with pytest.raises(InvalidInputError, match="manifest has more than 1000 bytes"):
            location.read_file("manifest", 1000)
        assert [len(data) for _, data in location.read([listed])] == [MAX_PACKED_BYTES + 1]
        web.shutdown()
        thread.join()
    assert asked == ["/pack/manifest", f"/pack/{listed.path}"], "each is asked for once"


@pytest.mark.parametrize("folder", ["team[1]", "what*", "of?", "{a}"])
def test_a_folder_is_no_pattern_whatever_its_name(tmp_path: Path, folder: str) -> None:
    location = Location(f"file://{tmp_path}/{folder}")
    location.write(HARDWARE, PROGRAM, NAME, DATA)
    assert [data for _, data in location.read(location.segments(HARDWARE, PROGRAM))] == [DATA]
    assert [data for _, data in location.read(location.all_segments())] == [DATA]


def test_files_that_are_no_segments_are_passed_over(location: Location) -> None:
    for name in ("README.md", "x.jsonl.gz", NAME.upper()):
        location.write(HARDWARE, PROGRAM, name, b"hello")
    location.write("not a digest", PROGRAM, NAME, b"hello")
    assert location.segments(HARDWARE, PROGRAM) == []
    assert location.all_segments() == []
    assert location.hardware() == [HARDWARE]


def test_what_another_machine_has_written_since_is_seen(location: Location) -> None:
    other = Location(location.url)
    assert location.segments(HARDWARE, PROGRAM) == []
    other.write(HARDWARE, PROGRAM, NAME, DATA)
    assert len(location.segments(HARDWARE, PROGRAM)) == 1


def test_wrong_credentials_and_buckets_are_errors_that_say_what_to_do(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment(server.url).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RemoteStoreError, match=r"cannot write to s3://nowhere.*look at its spelling"):
        Location("s3://nowhere/tuning").write(HARDWARE, PROGRAM, NAME, DATA)
    assert not (server.folder / "nowhere").exists(), "a bucket was made that nobody asked for"
    with pytest.raises(RemoteStoreError, match=r"cannot list s3://nowhere.*look at its spelling"):
        Location("s3://nowhere/tuning").segments(HARDWARE, PROGRAM)
    assert Location(f"s3://{BUCKET}/nothing-yet").segments(HARDWARE, PROGRAM) == []
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(RemoteStoreError, match="look at its permissions, and at the credentials"):
        Location(f"s3://{BUCKET}/tuning").segments(HARDWARE, PROGRAM)


def test_a_hub_that_does_not_let_one_write_or_read_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with writable_hub(tmp_path, monkeypatch) as hub:
        monkeypatch.setenv("HF_TOKEN", "hf_another")
        assert Location("hf://org/name").segments(HARDWARE, PROGRAM) == []
        with pytest.raises(
            RemoteStoreError, match=r"cannot write to hf://org/name .*401(.|\n)*look at its permissions"
        ):
            Location("hf://org/name").write(HARDWARE, PROGRAM, NAME, DATA)
        monkeypatch.setenv("HF_TOKEN", hub.token)
        with pytest.raises(RemoteStoreError, match=r"cannot write to hf://org/name@(.|\n)*it is no branch"):
            Location(f"hf://org/name@{hub.commit}").write(HARDWARE, PROGRAM, NAME, DATA)
        for wrong, said in (("hf://org/another", "repository not found"), ("hf://org/name@v2", "revision not found")):
            with pytest.raises(RemoteStoreError, match=f"cannot list {wrong}.*{said}"):
                Location(wrong).segments(HARDWARE, PROGRAM)
        Location("hf://org/name").write(HARDWARE, PROGRAM, NAME, DATA)
        assert [len(path.read_bytes()) for path in hub.folder.rglob(NAME)] == [len(DATA)]
    assert capfd.readouterr().err == "", "a bar of progress in a terminal that is the user's"


def test_a_folder_without_permission_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RemoteStoreError, match="cannot write to file://"):
        Location(f"file://{tmp_path}/file").write(HARDWARE, PROGRAM, NAME, DATA)


def test_a_storage_that_is_unknown_or_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="Protocol not known: nothing"):
        Location("nothing://here").hardware()
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match="pip install gcsfs"):
        Location("gs://bucket/tuning").hardware()


def test_a_password_in_a_url_is_not_shown() -> None:
    assert Location("ftp://me:secret@host/x?token=1").shown == "ftp://…@host/x?…"
