"""The moments before and after a call that is timed: of a stream of a device, or of the calling thread."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Event(Protocol):
    """A moment on a device's stream, as torch has it."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds from this moment to a later one."""


class HostEvent:
    """A moment of the calling thread, for calls that are done when they return."""

    def record(self) -> None:
        """Note the moment."""
        self._at_s = time.perf_counter()

    def query(self) -> bool:
        """It is over once it is noted."""
        return True

    def elapsed_time(self, later: HostEvent, /) -> float:
        """Milliseconds from this moment to a later one."""
        return (later._at_s - self._at_s) * 1e3


class StreamEvent:
    """A moment on the current stream of one device, which need not be the current device.

    Args:
        device: its name, such as `cuda:1`.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._device, self._event = device, torch.cuda.Event(enable_timing=True)

    def record(self) -> None:
        """Note the moment, when the stream comes to it."""
        import torch

        self._event.record(torch.cuda.current_stream(self._device))

    def query(self) -> bool:
        """Whether the stream has come to it."""
        return bool(self._event.query())

    def elapsed_time(self, later: StreamEvent, /) -> float:
        """Milliseconds from this moment to a later one."""
        return float(self._event.elapsed_time(later._event))
