"""A small HTTP server that speaks as much of vLLM's protocol as we use; a test exchanges replies to break it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from http_server import LoopbackServer

LABELS = {label: 65 + i for i, label in enumerate("ABCDEFGH")}
Reply = Callable[["FakeServer", BaseHTTPRequestHandler, Any], None]


class FakeServer:
    """Each path has a reply, which a test may exchange; requests are kept in `asked`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.closed = threading.Event()  # so that replies that never end do end with the test
        self.replies: dict[str, Reply] = {
            "/v1/models": lambda s, h, _: s.json(h, {"data": [s.card]}),
            "/tokenize": lambda s, h, body: s.tokenize(h, body),
            "/v1/completions": lambda s, h, body: s.json(h, {"choices": s.choices(len(body["prompt"]))}),
            "/v1/chat/completions": lambda s, h, _: s.json(h, {"choices": [{"message": {"content": "said"}}]}),
        }
        self.card: dict[str, Any] = {"id": "fake", "root": "/nowhere", "max_model_len": 1000}
        self.url = ""

    def asks_of(self, path: str) -> list[Any]:
        return [body for asked, body in self.asked if asked == path]

    @staticmethod
    def json(handler: BaseHTTPRequestHandler, value: object, status: int = 200) -> None:
        FakeServer.body(handler, json.dumps(value).encode(), status)

    @staticmethod
    def body(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def tokenize(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        """A token for each character, but one for a space and a letter; chats it has a form for."""
        text = body.get("prompt", "chat")
        tokens = [ord(c) for c in text]
        if text[-2:-1] == " ":
            tokens[-2:] = [tokens[-1]]
        self.json(handler, {"tokens": tokens, "max_model_len": 1000})

    @staticmethod
    def choices(prompts: int) -> list[dict[str, Any]]:
        """For prompt i, label A has log-probability -(1 + i); in reverse order, which must not matter."""
        every = [{f"token_id:{t}": -float(t - 64 + i) for t in LABELS.values()} for i in range(prompts)]
        return [{"index": i, "text": "A", "logprobs": {"top_logprobs": [every[i]]}} for i in reversed(range(prompts))]


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # it would wait 40 ms between head and body

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            fake.asked.append((self.path, body))
            try:
                fake.replies[self.path](fake, self, body)
            except OSError:  # the client has gone
                self.close_connection = True

        do_GET = do_POST = answer  # noqa: N815  # names of the base class

        def log_message(self, *_: object) -> None:
            pass

    with LoopbackServer(Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield fake
        finally:
            fake.closed.set()
            server.shutdown()
            thread.join()
