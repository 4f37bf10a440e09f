"""The threads in which keys are learned: each runs the tuning loop for one key.

The loop asks for configs to be compiled in the background and for times, which `measure.real_calls` takes from the calls
that come anyway. Of all these threads one works at a time; the others wait, for a compiler or for calls.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from operator import attrgetter

from ...core.forks import after_fork_in_child
from ...measure.real_calls import LearningEndedError
from .at_work import at_work
from .learning import Learning

log = logging.getLogger(__name__)

QUIET_S = 0.5  # after the first call of the newest key: a program's first step meets key after key, and needs the CPU
MAX_QUIET_S = 30.0  # threads wait for that
MAX_THREADS = 128  # keys that are learned at once; further ones wait for the end of one
MAX_WAITING = 1024  # of 17 KB each
LEAVE_S = 2.0  # for threads to end with the process
# Without a call, after which a key is learned another time: where others wait for a thread, and in any case, for its kernel
# may be gone.
IDLE_S, GONE_S = 5.0, 60.0


class Learners:
    """The threads of this process that learn keys."""

    def __init__(self) -> None:
        self._reset()
        self._met_at = 0.0

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[Learning, threading.Thread] = {}
        self._waiting: list[Learning] = []
        self._known: weakref.WeakSet[Learning] = weakref.WeakSet()
        self._making_way = 0  # keys whose threads are about to end for that
        self._registered = False
        self.frozen = False

    def start(self, learning: Learning) -> None:
        """Learn a key, now or when there is room."""
        with self._lock:
            self._met_at = time.monotonic()
            if not self._registered:
                self._registered = True
                atexit.register(self.end)  # after the pool's: what begins last ends first
            self._known.add(learning)
            self._waiting.append(learning)
        self._fill()

    def _fill(self) -> None:
        """Begin as many threads as may be, for the keys called last; of those that wait too many or too long make way."""
        with self._lock:
            waiting = [learning for learning in self._waiting if not learning.calls.over]
            waiting.sort(key=attrgetter("called_at"))
            while waiting and len(self._threads) < MAX_THREADS and self._begin(waiting.pop()):
                pass
            gone_at = time.monotonic() - GONE_S
            self._waiting = [learning for learning in waiting[-MAX_WAITING:] if learning.called_at > gone_at]
            leaving = waiting[: len(waiting) - len(self._waiting)]
        for learning in leaving:
            learning.end(makes_way=True)

    def _begin(self, learning: Learning) -> bool:
        """Begin a thread; False where there can be none. Called under the lock."""
        thread = threading.Thread(target=self._learn, args=(learning,), name="forecast_autotune-learn", daemon=True)
        self._threads[learning] = thread
        try:
            thread.start()
        except RuntimeError as err:  # the process ends, or may have no more threads
            log.info("a key is not learned: %s", err)
            del self._threads[learning]
            return False
        return True

    def _learn(self, learning: Learning) -> None:
        try:
            at_work.enter()  # it takes a number: the first key is the first to be worked on
            at_work.leave()
            self._await_quiet(learning)
            at_work.enter()
            learning.decide()
        except LearningEndedError:
            pass
        except BaseException as err:  # in a thread: whoever calls the kernel goes on with the best that is known
            log.warning("learning a key from its calls ended: %s: %s", type(err).__name__, err, exc_info=True)
        finally:
            learning.end()
            at_work.leave()
            with self._lock:
                self._threads.pop(learning, None)
                self._making_way -= learning.calls.made_way
            self._fill()

    def makes_way(self, idle_s: float) -> bool:
        """Whether a key is to be learned another time that was not called for so many seconds; its thread then ends."""
        with self._lock:
            is_wanted = len(self._waiting) > self._making_way
            if idle_s < IDLE_S or (idle_s < GONE_S and not is_wanted):
                return False
            self._making_way += 1
            return True

    def _await_quiet(self, learning: Learning) -> None:
        """Wait until every key that was met has been launched, and no new one was met for a while."""
        ends = time.monotonic() + MAX_QUIET_S
        while not (learning.calls.over or at_work.over.is_set()) and (now := time.monotonic()) < ends:
            if now >= self._met_at + QUIET_S:
                with self._lock:
                    known = list(self._known)
                if all(each.calls.is_met for each in known):
                    return
                self._met_at = now
            at_work.over.wait(min(self._met_at + QUIET_S, ends) - now)

    def end(self) -> None:
        """Learn nothing more: every undecided key stays with the best that is known."""
        with self._lock:
            self._waiting.clear()
            threads = list(self._threads.values())
            known = list(self._known)
        for learning in known:
            learning.calls.end()
        at_work.over.set()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(LEAVE_S)

    def freeze(self) -> None:
        """Learn nothing more, of keys that are met later either."""
        self.frozen = True
        self.end()

    def after_fork_in_child(self) -> None:
        """The threads are the parent's: its keys are learned there."""
        known, frozen = list(self._known), self.frozen
        self._reset()
        self.frozen = frozen
        at_work.reset()
        for learning in known:
            learning.calls.after_fork_in_child()


learners = Learners()
after_fork_in_child(learners.after_fork_in_child)


def freeze() -> None:
    """End exploring in this process: in mode `online`, no call tries a config from now on.

    Keys that are decided keep their decision, all others run the best known config. What was timed is stored. Ends within
    a few seconds, also while configs compile; `forecast-autotune freeze` does the same for all programs with a store.
    """
    learners.freeze()
