"""A real vLLM server on this CPU, in a process group of its own that does not outlive its test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_S = 240.0  # a machine that others use too takes minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """As the system does when memory runs out: it and its children are gone at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def metric(self, name: str) -> float:
        """What it counts, over all labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as response:  # noqa: S310  # http
            lines = response.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


@contextlib.contextmanager
def vllm_server(model: Path, log: Path, *more: str) -> Iterator[Running]:
    """Serve a model as `tiny` once it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1"]
    command += [
        "--port",
        str(port),
        "--served-model-name",
        "tiny",
        "--dtype",
        "float32",
        "--enforce-eager",
        "--seed",
        "0",
    ]
    command += ["--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}', *more]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    running = Running(url=f"http://127.0.0.1:{port}", process=process)
    try:
        _wait_until_healthy(running, log)
        yield running
    finally:
        running.kill()


def _wait_until_healthy(running: Running, log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        if running.process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"vLLM does not serve:\n{log.read_text(errors='replace')[-3000:]}")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{running.url}/health", timeout=2).close()  # noqa: S310  # http
            return
        time.sleep(0.2)
