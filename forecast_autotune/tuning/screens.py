"""Where people see progress: a terminal, a notebook's cell, or lines of text in a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..core.signal_handlers import raised_by_signal_handler

ERASED = "\r\x1b[K"  # the terminal's current line


class Screen(Protocol):
    """Shows a live line that is replaced again and again, and lines that stay. It may raise."""

    stream: Any
    """What it writes to."""

    every_s: float
    """How much time passes between two live lines."""

    redraws: bool
    """Whether a live line takes the place of the one before."""

    replaces: bool
    """Whether a line that stays can be replaced by another."""

    @property
    def columns(self) -> int | None:
        """How much fits into a line; None where any length does."""

    def show(self, text: str) -> None:
        """Put up a live line."""

    def say(self, text: str, *, keep: bool = False) -> None:
        """Put up a line that stays, in the place of the live one; `keep` the place for the next one, where it can."""

    def clear(self) -> None:
        """Take the live line down."""


class Terminal:
    """A line at the bottom of a terminal. It gives way while anything else is written through `sys.stderr` or `sys.stdout`.

    Their `write` is ours from the first live line until `clear`, so that a warning begins on a line of its own.
    """

    every_s = 1.0
    redraws = True
    replaces = False

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._lock = threading.RLock()
        self._is_drawn = False
        self._in_line = False  # somebody has begun a line and not ended it
        self._write = stream.write
        self._guarded: dict[int, tuple[Any, Callable[..., object], Callable[..., object]]] = {}  # by id: a stream, its
        # `write`s: ours and theirs

    @property
    def columns(self) -> int:
        """As many as the user says, else the terminal."""
        columns = 0
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(self.stream.fileno()).columns)
        except (OSError, ValueError) as err:
            if raised_by_signal_handler(err):
                raise
        return max(20, columns) if columns > 0 else 80

    def show(self, text: str) -> None:
        """See `Screen`. Nothing is drawn into a line that somebody else has begun."""
        with self._lock:
            self._guard(self.stream)
            if sys.stdout is not self.stream and _is_terminal(sys.stdout):
                self._guard(sys.stdout)
            if not self._in_line:
                self._is_drawn = True
                self._put(f"{ERASED}{text}")

    def say(self, text: str, *, keep: bool = False) -> None:  # noqa: ARG002  # what scrolls away is not replaced
        """See `Screen`."""
        with self._lock:
            before = "\n" if self._in_line else ERASED  # a bar of somebody else's, which comes again
            self._is_drawn = self._in_line = False
            self._put(f"{before}{text}\n")

    def clear(self) -> None:
        """See `Screen`."""
        with self._lock:
            self.release()
            self._erase()
            self._in_line = False

    def release(self) -> None:
        """Give the streams back as they were, and write nothing."""
        for stream, ours, theirs in self._guarded.values():
            try:
                if stream.write is not ours:  # another stands in its place since
                    continue
                with contextlib.suppress(AttributeError, TypeError):
                    del stream.write
                if getattr(stream, "write", None) != theirs:  # a program's own, in the place of its class's
                    stream.write = theirs
            except Exception as err:
                if raised_by_signal_handler(err):
                    raise
        self._guarded = {}

    def _erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._put(ERASED)

    def _put(self, text: str) -> None:
        write(self.stream, self._write, text)

    def _guard(self, stream: Any) -> None:
        if id(stream) in self._guarded:
            return
        theirs = stream.write

        def guarded(*args: Any, **kwargs: Any) -> object:
            if id(stream) not in self._guarded:  # kept by somebody since
                return theirs(*args, **kwargs)
            with self._lock:
                try:
                    self._erase()
                    text = args[0]
                    self._in_line = not text.endswith("\n") if text else self._in_line
                except Exception as err:
                    if raised_by_signal_handler(err):
                        raise
                return theirs(*args, **kwargs)

        try:
            stream.write = guarded
            self._guarded[id(stream)] = stream, guarded, theirs
        except Exception as err:  # a stream of another make
            if raised_by_signal_handler(err):
                raise


class Lines:
    """Lines of text, few: for a pipe, a file, the log of a CI run."""

    every_s = 10.0
    redraws = False
    replaces = False
    columns = None

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def show(self, text: str) -> None:
        """See `Screen`. It stays, as all that is written here."""
        self.say(text)

    def say(self, text: str, *, keep: bool = False) -> None:  # noqa: ARG002
        """See `Screen`."""
        write(self.stream, self.stream.write, f"{text}\n")

    def clear(self) -> None:
        """See `Screen`."""


class Notebook:
    """A line in the output of the cell that runs."""

    every_s = 1.0
    redraws = True
    replaces = True
    columns = None

    def __init__(self, stream: Any, display: Callable[..., Any]) -> None:
        self.stream = stream
        self._display = display
        self._live: Any = None  # the line that is replaced next
        self._kept = ""  # what stays in its place, until another line does

    def show(self, text: str) -> None:
        """See `Screen`."""
        self._live = self._put(self._live, text)

    def say(self, text: str, *, keep: bool = False) -> None:
        """See `Screen`."""
        place = self._put(self._live, text)
        self._live, self._kept = (place, text) if keep else (None, "")

    def clear(self) -> None:
        """See `Screen`."""
        if self._live is not None:
            self._put(self._live, self._kept)
            self._live = self._live if self._kept else None

    def _put(self, handle: Any, text: str) -> Any:
        """Show a text in the place that a handle stands for, a new one without; returns its handle."""
        if handle is None:
            return self._display({"text/plain": text}, raw=True, display_id=True)
        handle.update({"text/plain": text}, raw=True)
        return handle


def screen_for(stream: Any) -> Screen | None:
    """How to show progress to whoever sees a stream; None where nobody does."""
    if (display := _notebook_display()) is not None:
        return Notebook(stream, display)
    if stream is None or getattr(stream, "closed", False):
        return None
    return Terminal(stream) if _is_terminal(stream) else Lines(stream)


def write(stream: Any, put: Callable[[str], object], text: str) -> None:
    """Write to a stream at once, leaving nothing in its buffer: what cannot be written would fail again at exit.

    Args:
        put: its own `write`, for a stream that has no file below it.
    """
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if raw is None:
        put(text)
        stream.flush()
        return
    stream.flush()
    raw.write(text.encode(getattr(stream, "encoding", None) or "utf-8", "backslashreplace"))


def _is_terminal(stream: Any) -> bool:
    """Whether a live line can be drawn there."""
    try:
        return bool(stream.isatty()) and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError) as err:  # the program has none, or has closed it
        if raised_by_signal_handler(err):
            raise
        return False


def _notebook_display() -> Callable[..., Any] | None:
    """`IPython.display.display` where this process is a notebook's kernel. IPython is imported only by who uses it."""
    ipython, module = sys.modules.get("IPython"), sys.modules.get("IPython.display")
    if ipython is None or module is None or getattr(ipython.get_ipython(), "kernel", None) is None:
        return None
    display: Callable[..., Any] = module.display
    return display
