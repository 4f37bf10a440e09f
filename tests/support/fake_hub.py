"""A server on loopback that answers what the Hugging Face hub is asked by who reads and writes a model repository of it."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from http_server import LoopbackServer


class FakeHub(LoopbackServer):
    """A repository's files, under one revision by two names; `asked` are the paths of all requests.

    Who brings `token` may write to it, but not to a commit.
    """

    token = "hf_of_the_tests"  # noqa: S105  # nobody's

    def __init__(self, folder: Path, repository: str, revision: str) -> None:
        super().__init__(_Answers)
        self.folder, self.repository = folder, repository
        self.commit = hashlib.sha1(revision.encode(), usedforsecurity=False).hexdigest()
        self.revisions = (revision, self.commit)
        self.asked: list[str] = []
        self.large: dict[str, bytes] = {}  # what was uploaded beside git, by its SHA-256

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server
        hub.asked.append(self.path)
        repository, api, parts = self._parts()
        if repository != hub.repository:
            self._missing("RepoNotFound")
        elif parts[1:2] and parts[1] not in hub.revisions:
            self._missing("RevisionNotFound")
        elif api and parts[:1] in ([], ["revision"]):
            self._json({"id": repository, "sha": hub.commit, "private": False, "siblings": []})
        else:
            self._file(hub.folder / "/".join(parts[2:]), listed=api)

    def do_POST(self) -> None:
        """What is known of some paths; and a commit: which files git takes, where the others go, and the commit itself."""
        hub, text = self.server, self.rfile.read(int(self.headers["Content-Length"])).decode()
        hub.asked.append(self.path)
        repository, api, parts = self._parts()
        if parts[:1] == ["paths-info"]:
            asked = [hub.folder / path for path in parse_qs(text).get("paths", [])]
            self._json([_entry(hub.folder, path) for path in asked if path.exists()])
            return
        body = [json.loads(line) for line in text.splitlines()]
        if self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._answer(b'{"error": "Invalid username or password."}', 401)
        elif repository.removesuffix(".git") != hub.repository:
            self._missing("RepoNotFound")
        elif not api:  # the large files
            objects = [
                {**o, "actions": {"upload": {"href": f"{hub.url}/large/{o['oid']}"}}} for o in body[0]["objects"]
            ]
            self._json({"transfer": "basic", "objects": objects})
        elif parts[0] == "preupload":
            self._json({"files": [_upload_of(f["path"]) for f in body[0]["files"]]})
        elif parts[1] == hub.commit:
            self._answer(b'{"error": "A commit cannot be added to: it is no branch"}', 400)
        else:
            self._commit(body[1:])

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.large[hashlib.sha256(data).hexdigest()] = data
        self._answer(b"")

    def _commit(self, operations: list[dict[str, Any]]) -> None:
        hub = self.server
        for operation in operations:
            value = operation["value"]
            path = hub.folder / value["path"]
            if operation["key"] == "deletedFile":
                if not path.exists():
                    self._missing("EntryNotFound")
                    return
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            large = operation["key"] == "lfsFile"
            path.write_bytes(hub.large[value["oid"]] if large else base64.b64decode(value["content"]))
        self._json({"commitUrl": f"{hub.url}/{hub.repository}/commit/{hub.commit}", "commitOid": hub.commit})

    def _parts(self) -> tuple[str, bool, list[str]]:
        """The repository, whether it is asked by the API, and what follows."""
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        api = parts[:2] == ["api", "models"]
        return "/".join(parts[2:4] if api else parts[:2]), api, parts[4:] if api else parts[2:]

    def _file(self, path: Path, *, listed: bool) -> None:
        if listed and path.is_dir():
            inside = path.rglob("*") if "recursive=true" in self.path.lower() else path.iterdir()
            self._json([_entry(self.server.folder, each) for each in sorted(inside)])
        elif not listed and path.is_file():
            data = path.read_bytes()
            begin, _, end = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            part = data[int(begin) : int(end) + 1 if end else None]
            span = f"bytes {begin}-{int(begin) + len(part) - 1}/{len(data)}"
            known = {"X-Repo-Commit": self.server.commit, "ETag": f'"{_digest(data)}"'}
            self._answer(part, 206 if "Range" in self.headers else 200, **known, **{"Content-Range": span})
        else:
            self._missing("EntryNotFound")

    def _json(self, value: Any) -> None:
        self._answer(json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _missing(self, code: str) -> None:
        self._answer(b'{"error": "not found"}', 404, **{"X-Error-Code": code})

    def _answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _upload_of(path: str) -> dict[str, Any]:
    """Where a file goes that is to be committed: what is packed goes beside git."""
    return {"path": path, "uploadMode": "lfs" if path.endswith(".gz") else "regular", "shouldIgnore": False}


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _entry(folder: Path, path: Path) -> dict[str, Any]:
    """As the hub lists it for who asks for all it knows."""
    named, at = path.relative_to(folder).as_posix(), datetime.fromtimestamp(path.stat().st_mtime, UTC)
    commit = {"id": "0" * 40, "title": "a commit", "date": at.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": named, "lastCommit": commit}
    data = path.read_bytes()
    return {"type": "file", "oid": _digest(data), "size": len(data), "path": named, "lastCommit": commit}


@contextmanager
def fake_hub(folder: Path, repository: str, revision: str) -> Iterator[FakeHub]:
    """A hub that holds a folder as a repository."""
    with FakeHub(folder, repository, revision) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
