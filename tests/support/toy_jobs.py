"""Jobs for worker processes: they leave a process behind, hang in native code, report their environment, echo."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

import pytest

from forecast_autotune.processes import fork_server
from forecast_autotune.processes.channel import Channel


def allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fork servers that a test starts run jobs of this module."""
    folder = os.path.dirname(__file__)
    start = f"import sys; sys.path.append({folder!r}); import forecast_autotune.processes.serving as serving; "
    first, _, rest = fork_server._START.partition("from {}")
    monkeypatch.setattr(fork_server, "_START", f"{first}{start}serving._PACKAGE = 'toy_jobs'; from {{}}{rest}")


def leave_a_server(channel: Channel, _: dict[str, Any]) -> None:
    """Leave a process of another session, two steps below, and end well when told to."""
    read, write = os.pipe()
    if os.fork() == 0:
        if (server := os.fork()) == 0:
            os.setsid()
            os.write(write, str(os.getpid()).encode())
            time.sleep(300)
            os._exit(0)
        os.waitpid(server, 0)
        os._exit(0)
    channel.send({"server": int(os.read(read, 20))})
    channel.receive()


def hang(channel: Channel, _: dict[str, Any]) -> None:
    """Hang in native code that holds Python's lock, as an endless pass of LLVM does."""
    channel.send({"hangs": True})
    ctypes.PyDLL(None).sleep(300)


def tell_environment(channel: Channel, request: dict[str, Any]) -> None:
    channel.send({"value": os.environ.get(request["name"]), "folder": os.getcwd()})


def echo(channel: Channel, _: dict[str, Any]) -> None:
    sys.stdout.write("printed")
    while True:
        channel.send(channel.receive())
