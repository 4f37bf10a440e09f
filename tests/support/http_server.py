"""A web server for tests that ends with its connections."""

from __future__ import annotations

import contextlib
import socket
from http.server import ThreadingHTTPServer
from typing import Any


class LoopbackServer(ThreadingHTTPServer):
    """Closing it ends what clients still hold open, so that none of its threads is left to the tests that follow."""

    daemon_threads = True
    request_queue_size = 64  # with Python's 5, some systems reset one of 16 connections that come at once

    def __init__(self, handler: Any) -> None:
        self._held: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._held.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._held.discard(request)

    def server_close(self) -> None:
        super().server_close()
        for held in list(self._held):
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
