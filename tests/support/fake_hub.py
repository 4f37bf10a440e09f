"""A server on loopback that answers what the Hugging Face hub is asked by who reads one model repository of it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class FakeHub(ThreadingHTTPServer):
    """A repository's files, under one revision by two names; `asked` are the paths of all requests."""

    def __init__(self, folder: Path, repository: str, revision: str) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.folder, self.repository = folder, repository
        self.commit = hashlib.sha1(revision.encode(), usedforsecurity=False).hexdigest()
        self.revisions = (revision, self.commit)
        self.asked: list[str] = []

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
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        api = parts[:2] == ["api", "models"]
        repository, parts = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        if repository != hub.repository:
            self._missing("RepoNotFound")
        elif parts[1:2] and parts[1] not in hub.revisions:
            self._missing("RevisionNotFound")
        elif api and parts[:1] in ([], ["revision"]):
            self._json({"id": repository, "sha": hub.commit, "private": False, "siblings": []})
        else:
            self._file(hub.folder / "/".join(parts[2:]), listed=api)

    def _file(self, path: Path, *, listed: bool) -> None:
        if listed and path.is_dir():
            self._json([_entry(self.server.folder, each) for each in sorted(path.iterdir())])
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


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _entry(folder: Path, path: Path) -> dict[str, Any]:
    named = path.relative_to(folder).as_posix()
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": named}
    data = path.read_bytes()
    return {"type": "file", "oid": _digest(data), "size": len(data), "path": named}


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
