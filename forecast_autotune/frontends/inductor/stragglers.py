"""Candidates of Inductor's that compile far longer than others of the same product: they are left behind.

Inductor waits for every candidate before it times the first. Where a loop is unrolled whole, one tile takes 7 to 9 s to
compile and the next 1.2 (H100, torch 2.11: 8192 x 6144 x 1536 in bf16, 256 x 128 x 64).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any
from weakref import WeakValueDictionary

# So many times what the slowest took, or `LEAST_S` where that is more, it is waited for the next, for each that is left over
# each that has ended: with one of four ended three times as long as with two. Longer where some may queue. Of four tiles
# each for 81 recorded products, compiled anew, 63 are left behind, with which a quarter of the seconds go (Triton 3.6) and
# 0.7 % of speed; 0.35 times at any number leaves 39 behind, costs as much speed, and takes 4 % more seconds.
AT_ONCE, QUEUED, LEAST_S = 0.3, 1.5, 0.7
CACHED_S = 0.2  # what took less may have come from a cache, and tells nothing
# In a choice's annotations: what was left behind of its product and of equal ones.
LEFT_BEHIND = "forecast_autotune left"
# There: whether it may have queued behind other products' candidates.
MAY_HAVE_QUEUED = "forecast_autotune behind"

# Choices of all products, by what is compiled for them.
_compiling: WeakValueDictionary[str, Any] = WeakValueDictionary()


def note_begun(choice: Any) -> None:
    """Note a choice that goes to Inductor's compilers next; functions of libraries do not."""
    if getattr(choice, "bmreq", None) is not None:
        _compiling[choice.kernel_hash_key()] = choice
        choice.annotations[MAY_HAVE_QUEUED] = len(_compiling) > _compilers()


def _compilers() -> int:
    from torch._inductor import config as inductor_config

    return inductor_config.compile_threads or 0


def as_completed_but_stragglers(
    as_completed: Callable[..., Iterator[Any]], may_leave_behind: Callable[[Any], bool]
) -> Any:
    """`as_completed` as Inductor waits with it, which ends early where only stragglers are left.

    `is_left_behind` then knows those, also in an equal product, which Inductor waits for no more; their compilers go on, and
    what they make lies in Inductor's cache.

    Args:
        as_completed: takes futures, each a key to its choice, and seconds; a choice's future returns a pair, of which the
            second is the microseconds that compiling took.
        may_leave_behind: takes a choice; whether it may be left behind. It then has a set as its annotation `LEFT_BEHIND`.
    """

    def completed(futures: Mapping[Future[Any], Any], timeout: float | None = None) -> Iterator[Future[Any]]:
        if not all(map(may_leave_behind, futures.values())):
            for future in as_completed(futures, timeout=timeout):
                _note_done(futures[future])
                yield future
            return
        few = _compilers() < 2 * len(futures)
        may_queue = few or any(each.annotations.get(MAY_HAVE_QUEUED) for each in futures.values())
        until = math.inf if timeout is None else time.monotonic() + timeout
        pending, took_s = set(futures), list[float]()
        while pending:
            patience = patience_s(took_s, len(pending), may_queue=may_queue)
            wait_s = min(patience, until - time.monotonic())
            done, pending = wait(pending, None if wait_s == math.inf else wait_s, FIRST_COMPLETED)
            if not done and wait_s < patience:
                raise TimeoutError(f"{len(pending)} of {len(futures)} candidates are not compiled")
            if not done:
                for future in pending:
                    futures[future].annotations[LEFT_BEHIND].add(futures[future].kernel_hash_key())
                return
            took_s += map(_seconds, done)
            for future in done:
                _note_done(futures[future])
            yield from done

    return completed


def patience_s(took_s: Sequence[float], left: int, *, may_queue: bool) -> float:
    """How long to wait for those that are left once others took so many seconds; infinite as long as these tell nothing."""
    built_s = [seconds for seconds in took_s if seconds >= CACHED_S]
    if not built_s:
        return math.inf
    return (QUEUED if may_queue else AT_ONCE * left / len(built_s)) * max(LEAST_S, *built_s)


def is_left_behind(choice: Any) -> bool:
    """Whether a choice was left behind, or one that it shares a compiler with."""
    left = getattr(choice, "annotations", {}).get(LEFT_BEHIND)
    return left is not None and choice.kernel_hash_key() in left


def wait_after_all(choices: Sequence[Any]) -> None:
    """Have choices that were left behind count as others do: whoever runs them waits for their compilers."""
    for choice in choices:
        choice.annotations[LEFT_BEHIND].clear()


def _note_done(choice: Any) -> None:
    _compiling.pop(choice.kernel_hash_key(), None)


def _seconds(future: Future[Any]) -> float:
    if future.exception() is not None:
        return 0.0
    try:
        return float(future.result()[1]) / 1e6
    except (TypeError, IndexError, ValueError):
        return 0.0
