"""Many tasks over several processes, each answered as it is done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from ..errors import WorkerError
from .serving import signal_at_death_of_parent

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def side_by_side(
    do: Callable[[Task], Answer], tasks: Sequence[Task], jobs: int, begin: Callable[[], None] | None = None
) -> Iterator[tuple[Task, Answer]]:
    """Each task with its answer, as they finish; `begin` is run first in each process.

    Where a process dies, as by the kernel when memory is gone, all that is not done begins again in new ones.

    Raises:
        WorkerError: processes die twice in a row before any of what is left is done.
    """
    left, died = list(tasks), 0
    while left:
        done: set[int] = set()
        try:
            for place, answer in _in_one_pool(do, left, jobs, begin):
                done.add(place)
                yield left[place], answer
        except BrokenProcessPool as err:
            left = [task for place, task in enumerate(left) if place not in done]
            died = 0 if done else died + 1
            if died == 2:
                raise WorkerError(
                    f"worker processes died twice in a row with {len(left)} of {len(tasks)} tasks to do. If memory is short "
                    "(dmesg would tell of it), run fewer side by side with --jobs"
                ) from err
            print(f"a worker process died: {len(left)} of {len(tasks)} tasks begin again", file=sys.stderr)
        else:
            return


def _in_one_pool(
    do: Callable[[Task], Answer], tasks: Sequence[Task], jobs: int, begin: Callable[[], None] | None
) -> Iterator[tuple[int, Answer]]:
    """The place of each task with its answer, as they finish.

    When nobody asks for more, as after Ctrl-C, what is under way is ended: a search may take minutes, and its process would
    hold back the end of this one.
    """
    from concurrent.futures import ProcessPoolExecutor, as_completed

    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), multiprocessing.get_context("spawn"), _begin, (os.getpid(), begin)
    )
    try:
        try:
            futures = {pool.submit(do, task): place for place, task in enumerate(tasks)}
        except (OSError, ValueError) as err:  # one died while another was started: the pool has closed its pipes
            raise BrokenProcessPool(f"a worker process could not be started: {err}") from err
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    pool.shutdown()


def _begin(parent: int, begin: Callable[[], None] | None) -> None:
    def leave_with_parent(*_: object) -> None:
        if os.getppid() != parent:  # else only the thread has ended that started this process
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGHUP, leave_with_parent)
    signal_at_death_of_parent(signal.SIGHUP)
    leave_with_parent()
    if begin is not None:
        begin()
