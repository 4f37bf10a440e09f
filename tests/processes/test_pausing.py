"""Workers that stand still for as long as something is timed, and a clock that stands still with them."""

from __future__ import annotations

import threading
import time

from forecast_autotune.processes.pausing import Pausing


def test_the_clock_stands_still_in_a_pause() -> None:
    pausing = Pausing()
    began, clock_began = time.perf_counter(), pausing.clock()
    with pausing.paused():
        within = pausing.clock()
        with pausing.paused():
            time.sleep(0.2)
        assert pausing.clock() == within
    ran_s, all_s = pausing.clock() - clock_began, time.perf_counter() - began
    assert 0 <= ran_s <= all_s - 0.2
    time.sleep(0.01)
    assert pausing.clock() > within


def test_a_thread_knows_whether_it_is_the_one_that_paused() -> None:
    pausing = Pausing()
    seen: list[bool] = []
    with pausing.paused():
        with pausing.paused():
            pass
        other = threading.Thread(target=lambda: seen.append(pausing.is_paused_here))
        other.start()
        other.join()
        seen.append(pausing.is_paused_here)
    assert seen == [False, True]
    assert not pausing.is_paused_here
