"""Configs that hang, ended soon, while all others have as long as users give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.measure.base import Attempt
from forecast_autotune.measure.isolated import Isolated

SOON_S = 0.5


def end_soon(hangs: Callable[[Config], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each run of such configs in a child half a second."""
    attempt = Isolated.attempt

    @contextmanager
    def attempted(measurer: Isolated, config: Config) -> Iterator[Attempt]:
        with pytest.MonkeyPatch.context() as patch:
            if hangs(config):
                patch.setattr(measurer, "_timeout_s", SOON_S)
            with attempt(measurer, config) as made:
                yield made

    monkeypatch.setattr(Isolated, "attempt", attempted)
