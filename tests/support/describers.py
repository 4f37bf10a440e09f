"""Workers that describe candidates, watched as they start."""

from __future__ import annotations

from typing import Any

import pytest

from forecast_autotune.program_search import without_gpu


def describers_started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, of each such worker that is started, how many candidates it is asked about."""
    started: list[int] = []
    start = without_gpu._server.start

    def counted(*given: Any, **how: Any) -> Any:
        started.append(len(given[1]["loads"]))
        return start(*given, **how)

    monkeypatch.setattr(without_gpu._server, "start", counted)
    return started
