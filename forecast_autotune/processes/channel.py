"""Messages between a caller and its worker: JSON objects over a socket pair, one datagram each.

What is large travels as an open file beside them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .endings import WorkerDiedError, WorkerKilledError, WorkersUnavailableError

_MESSAGE_BYTES = 64 * 1024  # well below the default socket buffer of Linux (208 KiB); what is longer travels as a file
_MAX_FILES = 16
# Datagrams that keep their order and report the other end's death: SEQPACKET on Linux, DGRAM where it is missing (macOS).
_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM

Message = dict[str, Any]


class Channel:
    """One end of a conversation between a caller and its worker."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self.files: list[int] = []  # descriptors that came with the last message; the receiver closes them

    def fileno(self) -> int:
        """The socket's descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        """Send a message, with open files beside it; one that is too long for a datagram travels as a file."""
        data = json.dumps(message).encode()
        if len(data) <= _MESSAGE_BYTES:
            socket.send_fds(self._socket, [data], list(files))
            return
        file = memory_file(len(data), "forecast_autotune_message")
        try:
            os.pwrite(file, data, 0)
            socket.send_fds(self._socket, [json.dumps({"long": len(data)}).encode()], [file, *files])
        finally:
            os.close(file)

    def receive(self, most_bytes: float = math.inf) -> Message:
        """The next message, waited for without end.

        Args:
            most_bytes: of a message; a longer one counts as none.
        Raises:
            WorkerDiedError: the other end is gone, or writes what is no message.
        """
        try:
            try:
                data, self.files, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _MAX_FILES)
            except ConnectionResetError:  # it was closed with a message unread; how the worker ended is still to be had
                data, self.files, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _MAX_FILES)
        except OSError as err:
            raise WorkerKilledError(f"stopped from outside: the connection broke: {err}") from None
        if not data:  # a worker's end is a message; of a fork server's own end, this is all that shows
            raise WorkerKilledError("stopped from outside: the process is gone")
        message = _read_message(data)
        if "long" in message:
            message = _read_message(self._long_data(message["long"], most_bytes))
        return message

    def _long_data(self, length: Any, most_bytes: float) -> bytes:
        """What lies in the file that came first: its sender may have written any length, and sent anything as the file."""
        if not self.files:
            raise WorkerDiedError("it wrote into what is not its own: a long message came without its file")
        file = self.files.pop(0)
        try:
            if type(length) is not int or not 0 <= length <= min(os.fstat(file).st_size, most_bytes):
                raise WorkerDiedError(f"it wrote into what is not its own: no message is {str(length)[:40]} bytes long")
            return os.pread(file, length, 0)
        except OSError as err:
            raise WorkerDiedError(f"it wrote into what is not its own: {err}") from None
        finally:
            os.close(file)

    def is_readable(self, wait_s: float = 0.0) -> bool:
        """Whether a message or the other's end is there to receive, or comes in so many seconds."""
        poll = select.poll()  # select() itself refuses descriptors above 1023
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * wait_s))

    def hang_up(self) -> None:
        """Close it for the other end to see, though a process that this one forked may still hold it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def _read_message(data: bytes) -> Message:
    """What was sent as these bytes.

    Raises:
        WorkerDiedError: they are no message.
    """
    try:
        return dict(json.loads(data))
    except (TypeError, ValueError, RecursionError):
        raise WorkerDiedError(f"it wrote into what is not its own: {data[:40]!r} is no message") from None


def channels() -> tuple[Channel, Channel]:
    """The two ends of a new conversation."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, _KIND)
    return tuple(Channel(socket.socket(fileno=beyond_the_standard_ones(end.detach()))) for end in (ours, theirs))  # type: ignore[return-value]


def beyond_the_standard_ones(descriptor: int) -> int:
    """The same file under a number above 2: in a program that closed its stdout, a new file becomes a child's stdout."""
    if descriptor > 2:
        return descriptor
    import fcntl

    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def memory_file(size: int, name: str) -> int:
    """A descriptor of an anonymous file of `size` bytes, gone with the last process that holds it.

    Raises:
        WorkersUnavailableError: none can be had, so nothing of size can be handed to a worker.
    """
    try:
        if hasattr(os, "memfd_create"):
            descriptor = beyond_the_standard_ones(os.memfd_create(name))
        else:
            import tempfile

            descriptor, path = tempfile.mkstemp(prefix=name)
            os.unlink(path)
        try:
            os.ftruncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as err:
        raise WorkersUnavailableError(f"no file of {size >> 20} MiB can be had for a worker process: {err}") from None
    return descriptor
