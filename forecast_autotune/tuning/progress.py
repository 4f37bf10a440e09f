"""Progress of tuning runs for whoever watches: a line while one is under way, and a line for each key tuned.

The lines go where stderr goes, or into a notebook's cell; stdout is never written to. They are shown where the logger
`forecast_autotune.progress` would let a warning through. Nothing here raises, whatever becomes of the stream.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import contextvars
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from ..core.decision import Decision
from ..core.forks import after_fork_in_child
from ..core.job import Job, Progress
from ..core.signal_handlers import raised_by_signal_handler
from .progress_text import TunedKey, closing_line, live_line, summary_line, tuned_key, untried_line
from .screens import Screen, Terminal, screen_for

log = logging.getLogger(__name__)
progress_log = logging.getLogger("forecast_autotune.progress")  # a public name: its level alone counts

FIRST_S = 0.5  # until a run is seen, where its line is redrawn
MAX_LINES = 3  # of keys tuned within `BURST_S`; more make one line together
BURST_S = 10.0
PAUSE_S = 3.0  # without another key, after which the keys that came together are summed up
STOP_S = 1.0  # for the ticking thread to end; longer only where a terminal takes no text

PROCESS_BEGAN_AT = time.time()


class Run:
    """One tuning run under way, and the listener that its loop tells."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.began = time.monotonic()
        self.thread = threading.get_ident()
        self.progress: Progress | None = None
        self.heard_s = 0.0
        self.is_still = False  # something is timed on the cores that a tick would run on

    def __call__(self, progress: Progress) -> None:
        """Show how far the run has come; from a report of timing on, until the next, show nothing."""
        self.progress, self.heard_s = progress, self.elapsed_s
        self.is_still = progress.timing and progress.job.hardware.kind not in ("cuda", "hip")
        _board.hear(self)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def tuned(self, job: Job, decision: Decision, *, measured_here: bool, is_stored: bool) -> None:
        """Put up the closing line of its key.

        A key that another process has measured has none, but for rank 0: it speaks for all ranks of a job. One whose time
        was spent before anything was decided has a line that says so.
        """
        of_the_job = _rank() == 0 and decision.decided_at >= PROCESS_BEGAN_AT and _board.is_news(job)
        if decision.tried and (measured_here or of_the_job):
            seconds = self.elapsed_s if measured_here else decision.spent_s
            _board.close(job, decision, seconds, is_stored)
        elif not decision.rests_on_outcomes and self._time_is_spent:
            _board.say(lambda columns: untried_line(job, decision, seconds=self.elapsed_s, columns=columns))

    @property
    def _time_is_spent(self) -> bool:
        return self.progress is not None and self.heard_s + self.progress.seconds_left <= self.elapsed_s

    def text(self, columns: int | None) -> str:
        """Its line."""
        return live_line(self.name, self.progress, elapsed_s=self.elapsed_s, heard_s=self.heard_s, columns=columns)


@contextlib.contextmanager
def show_progress(name: str) -> Iterator[Run | None]:
    """Show a tuning run while this is held; yields its listener, None where nobody is to see anything.

    Args:
        name: of the kernel, until the loop tells its own.
    """
    if not _is_wanted():
        yield None
        return
    run = Run(name)
    try:
        _board.enter(run)
        yield run
    finally:
        try:
            _board.leave(run)
        except BaseException:
            _board.leave(run)  # a handler of signals has broken that off
            raise


def _is_wanted() -> bool:
    """Whether the log's level lets warnings through, and this process speaks for its job."""
    return progress_log.isEnabledFor(logging.WARNING) and not _rank()


def _rank() -> int | None:
    """This process's rank, as torchrun tells it; None without one."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """A method that raises nothing of its own: a closed stream, a broken pipe, no thread to be had."""

    def harmless(*args: object) -> None:
        try:
            method(*args)
        except Exception as err:
            if raised_by_signal_handler(err):
                raise
            log.debug("progress is not shown", exc_info=True)

    return harmless


class _Board:
    """The runs under way in this process, and the one place where all of them are shown.

    A thread ticks while a run is under way; while a config is timed on the CPU there is none. What a run's own thread
    reports is shown by that thread, if it is time.
    """

    def __init__(self) -> None:
        self._control = threading.RLock()  # before `_drawing`, where both are held
        self._drawing = threading.RLock()
        self._runs: tuple[Run, ...] = ()
        self._screen: Screen | None = None
        self._drawn = 0.0  # when a live line was put up last
        self._keys: list[TunedKey] = []  # closed one soon after the other
        self._closed: list[float] = []  # when
        self._shown: set[str] = set()  # digests of keys that have had their line
        self._is_burst = False  # of so many that they make one line together
        self._ticker: _Ticker | None = None

    @_harmless
    def enter(self, run: Run) -> None:
        """Begin to show a run."""
        with self._control:
            self._runs += (run,)
            self._choose_ticker()

    @_harmless
    def leave(self, run: Run) -> None:
        """Show a run no more."""
        with self._control:
            self._runs = tuple(each for each in self._runs if each is not run)
            self._choose_ticker()
            with self._drawing:
                if not self._runs and self._screen is not None:
                    self._screen.clear()

    @_harmless
    def hear(self, run: Run) -> None:
        """Show what a run reports, if it is time; before it keeps still, as it may do so for long, at once."""
        with self._control:
            self._choose_ticker()
        with self._drawing:
            screen = self._current_screen()
            if screen is not None and ((run.is_still and screen.redraws) or self._wait_s(screen) <= 0):
                self._draw(screen)

    def is_news(self, job: Job) -> bool:
        """Whether a key had no line yet."""
        return job.digest not in self._shown

    @_harmless
    def close(self, job: Job, decision: Decision, seconds: float, is_stored: bool) -> None:
        """Put up the line of a key that was tuned, or count it to the many that have one line together."""
        key, now = tuned_key(job, decision, seconds=seconds, is_stored=is_stored), time.monotonic()
        with self._drawing:
            self._shown.add(job.digest)
            screen = self._current_screen()
            if screen is None:
                return
            if not self._is_burst:
                recent = [i for i, closed in enumerate(self._closed) if now - closed <= BURST_S]
                self._keys, self._closed = [self._keys[i] for i in recent], [self._closed[i] for i in recent]
            self._keys.append(key)
            self._closed.append(now)
            self._is_burst |= len(self._keys) > MAX_LINES
            if not self._is_burst:
                screen.say(closing_line(key, screen.columns))
            elif screen.replaces:
                screen.say(summary_line(self._keys), keep=True)

    @_harmless
    def say(self, line: Callable[[int | None], str]) -> None:
        """Put up a line that stays, made for the columns that there are."""
        with self._drawing:
            screen = self._current_screen()
            if screen is not None:
                screen.say(line(screen.columns))

    @_harmless
    def sum_up(self) -> None:
        """Put up the line of many keys, if there is one to come."""
        with self._drawing:
            keys, self._keys, self._closed = self._keys, [], []
            is_burst, self._is_burst = self._is_burst, False
            screen = self._current_screen()
            if is_burst and screen is not None:
                screen.say(summary_line(keys))

    @_harmless
    def tick(self) -> None:
        """Draw the line of the run that began last, if it is time."""
        with self._drawing:
            screen = self._current_screen()
            if screen is not None and self._wait_s(screen) <= 0:
                self._draw(screen)

    @_harmless
    def finish(self) -> None:
        """Leave the terminal as it should be when the program ends."""
        with self._control:
            self._runs = ()
            self._stop_ticker()
        self.sum_up()
        with self._drawing:
            if self._screen is not None:
                self._screen.clear()

    def after_fork_in_child(self) -> None:
        """Begin anew in the child of a fork, whose threads and locks are gone, and whose parent has the screen."""
        screen = self._screen
        self.__init__()  # type: ignore[misc]
        if isinstance(screen, Terminal):
            screen.release()

    def wait_s(self) -> float:
        """How long until something is to be put up."""
        if not self._runs:
            return PAUSE_S
        screen = self._screen
        return 1.0 if screen is None else max(0.01, self._wait_s(screen))

    def _wait_s(self, screen: Screen) -> float:
        runs = self._runs
        if not runs:
            return PAUSE_S
        first_s = FIRST_S if screen.redraws else screen.every_s
        return max(runs[0].began + first_s, self._drawn + screen.every_s) - time.monotonic()

    def _draw(self, screen: Screen) -> None:
        if self._runs:
            self._drawn = time.monotonic()
            screen.show(self._runs[-1].text(None if screen.columns is None else screen.columns - 1))

    def _current_screen(self) -> Screen | None:
        """The screen of what `sys.stderr` is now."""
        if self._screen is None or self._screen.stream is not sys.stderr:
            if self._screen is not None:
                self._screen.clear()
            self._screen = screen_for(sys.stderr)
        return self._screen

    def _choose_ticker(self) -> None:
        """Have a thread that ticks, one that sums up after a pause, or none."""
        wanted = self._wanted_action()
        if self._ticker is not None and self._ticker.action == wanted and not self._ticker.has_ended:
            return
        self._stop_ticker()
        with self._drawing:
            is_seen = self._current_screen() is not None
        if wanted is not None and is_seen:
            self._ticker = _Ticker(self, wanted, again=bool(self._runs))
            self._ticker.start()

    def _wanted_action(self) -> Callable[[], None] | None:
        if not self._runs:
            return self.sum_up if self._is_burst else None
        still = {run.thread: run.is_still for run in self._runs}  # a run within another's timing spoils that anyway
        return None if any(still.values()) else self.tick

    def _stop_ticker(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None  # not before: a handler of signals may break that off


class _Ticker(threading.Thread):
    """Waits, and acts; `again` and again, until it is told to stop."""

    def __init__(self, board: _Board, action: Callable[[], None], *, again: bool) -> None:
        super().__init__(name="forecast_autotune_progress", daemon=True)
        self.action = action
        self._board = board
        self._again = again
        self._begun = threading.Event()
        self._stopped = threading.Event()
        self._context = contextvars.copy_context()  # in which a notebook's cell stands

    def start(self) -> None:
        """Have it begin soon; beside busy threads that takes milliseconds, and each config timed on the CPU would wait.

        Another thread starts it: handlers of signals run in the main one, and what they raise would leave `Thread.start`
        half done.
        """
        try:
            _thread.start_new_thread(self._start_whole, ())
        except RuntimeError:  # no thread to be had
            self._begun.set()
            raise

    def _start_whole(self) -> None:
        try:
            if not self._stopped.is_set():
                super().start()
        except RuntimeError:
            log.debug("no thread to be had", exc_info=True)
        finally:
            self._begun.set()

    @property
    def has_ended(self) -> bool:
        """Whether it acts no more, or could not begin."""
        return self._begun.is_set() and not self.is_alive()

    def run(self) -> None:
        """Wait and act."""
        while not self._stopped.wait(self._board.wait_s()):
            self._context.run(self.action)
            if not self._again:
                break
        self._context = contextvars.Context()  # the board keeps a thread that has ended, but nothing of a caller's

    def stop(self) -> None:
        """Have it end; once this returns, it wakes no more."""
        self._stopped.set()
        if self is not threading.current_thread():
            self._begun.wait(STOP_S)
            if self.is_alive():
                self.join(STOP_S)


_board = _Board()
atexit.register(_board.finish)
after_fork_in_child(_board.after_fork_in_child)
