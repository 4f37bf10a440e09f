"""Many tasks over several processes, each answered as it is done."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def side_by_side(
    do: Callable[[Task], Answer], tasks: Sequence[Task], jobs: int, begin: Callable[[], None] | None = None
) -> Iterator[tuple[Task, Answer]]:
    """Each task with its answer, as they finish; `begin` is run first in each process.

    When nobody asks for more, as after Ctrl-C, what is under way is ended: a search may take minutes, and its process would
    hold back the end of this one.
    """
    from concurrent.futures import ProcessPoolExecutor, as_completed

    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn"), _begin, (begin,))
    try:
        futures = {pool.submit(do, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    pool.shutdown()


def _begin(begin: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if begin is not None:
        begin()
