"""The one handle on a worker process: speak to it, wait for it within limits, pause it, kill it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .channel import Channel, Message
from .endings import WorkerDiedError, WorkerMemoryError, WorkerRaisedError, WorkerTimeoutError, died
from .machine import own_bytes, process_ids

START_S = 60.0  # for the first word of a worker; importing torch takes 2 s, from a cold network file system far longer
WATCH_S = 0.1  # between two looks at what a worker takes
MAX_BYTES = 64 << 20  # of an answer: a hostile worker's would fill the caller's memory


class Worker:
    """The caller's handle on one worker process; a context manager that never leaves it running."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._finished = False
        self._exit_code: int | None = None
        self._paused = False
        self.files: list[int] = []  # descriptors that came with the last message; what is not popped is closed
        self.memory_bytes: int | None = None  # what it may hold while an answer is waited for
        self.pid = 0
        self.pid = int(self.receive(START_S)["pid"])

    def send(self, message: Mapping[str, object], files: Sequence[int] = ()) -> None:
        """Send a message; that the worker is gone already shows at the next `receive`."""
        with contextlib.suppress(OSError):
            self._channel.send(message, files)

    def receive(self, timeout_s: float, watch: Callable[[], None] | None = None) -> Message:
        """The worker's next message. While it is waited for, `watch` is called now and then: it may raise.

        Raises:
            WorkerTimeoutError: none came in time, not counting pauses; the worker is still running.
            WorkerMemoryError: it holds more than `memory_bytes`, and is still running.
            WorkerRaisedError: its job raised.
            WorkerDiedError: it ended; the message says how.
        """
        self._await(timeout_s, watch)
        self._close_files()
        message = self._channel.receive(MAX_BYTES)
        self.files = self._channel.files
        if "exit" in message:
            if type(message["exit"]) is not int:
                raise WorkerDiedError(f"it wrote into what is not its own: exit code {str(message['exit'])[:40]}")
            self._finished, self._exit_code = True, message["exit"]
            raise died(self._exit_code)
        if "raised" in message:
            raise WorkerRaisedError(str(message["raised"]))
        return message

    def finish(self, timeout_s: float) -> None:
        """Wait for the worker to end by itself.

        Raises:
            WorkerTimeoutError: it does not.
            WorkerDiedError: it ended by a signal or with an error, which freeing corrupted memory leads to.
        """
        try:
            message = self.receive(timeout_s)
        except WorkerDiedError:
            if self._exit_code == 0:
                return
            raise
        raise WorkerDiedError(f"it goes on where it was to end: {str(message)[:200]}")

    def _await(self, timeout_s: float, watch: Callable[[], None] | None = None) -> None:
        left_s = timeout_s
        pause_s = 5 * WATCH_S if watch is None and self.memory_bytes is None else WATCH_S
        while True:
            began = time.monotonic()
            if self._channel.is_readable(max(0.0, min(left_s, pause_s))):
                return
            if watch is not None:
                watch()
            # Rather than wait for Linux to choose whom to end, or for a machine that swaps. A limit on addresses would not
            # do: CUDA reserves them by the terabyte.
            if self.memory_bytes is not None and (taken := own_bytes(self.pid)) > self.memory_bytes:
                held = f"its process held {taken >> 20} MiB of memory, of {self.memory_bytes >> 20} MiB"
                raise WorkerMemoryError(f"out of memory: {held} that it could have, and was ended")
            if not self._paused:
                left_s -= time.monotonic() - began
            if left_s <= 0:
                raise WorkerTimeoutError(f"ran out of time: no answer within {timeout_s:g} s")

    @property
    def has_ended(self) -> bool:
        """Whether it ended while nothing was asked of it."""
        return self._finished or self._channel.is_readable()

    def pause(self) -> None:
        """Stop the worker, and what it started in its process group, until `resume`; that time is not counted."""
        self._paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on after `pause`."""
        self._paused = False
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if not self._finished:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the worker and every process it started."""
        if not self._finished:  # when its end is known its fork server has ended the rest; its number may be another's
            end_session(self.pid)
            self._finished = True

    def close(self) -> None:
        """End it, and the conversation."""
        try:
            self.kill()
        finally:
            self._close_files()
            self._channel.close()

    def _close_files(self) -> None:
        while self._channel.files:
            os.close(self._channel.files.pop())

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def end_session(leader: int) -> None:
    """Kill a process that leads a session, and all that it started, in whatever group."""
    ended: set[int] = set()
    while new := {leader, *_members_of_session(leader)} - ended:  # one may have started another in between
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= new
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)  # all there is to do where there is no /proc


def _members_of_session(leader: int) -> set[int]:
    members = set()
    for pid in process_ids():
        with contextlib.suppress(OSError, ValueError):
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            # After the command's name in brackets, which may hold anything: state, parent, group, session.
            if int(text.rpartition(")")[2].split()[3]) == leader:
                members.add(pid)
    return members
