"""Mode `online` without its pauses, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from forecast_autotune.core.allowance import PROCESS_ALLOWANCE
from forecast_autotune.frontends.online import learning_threads
from forecast_autotune.frontends.online.at_work import AtWork


@contextmanager
def learning_at_once() -> Iterator[None]:
    """Threads begin with the first call, and work as much as they can; what one test explored is not another one's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning_threads, "QUIET_S", 0.0)
        patch.setattr(AtWork, "share", property(lambda _: 1.0, lambda *_: None))
        PROCESS_ALLOWANCE.reset()
        yield
        learning_threads.learners.end()
