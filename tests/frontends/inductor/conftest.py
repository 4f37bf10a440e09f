"""Inductor without a GPU, for the tests of its candidates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rehearsed_inductor import Timed, rehearsed_inductor


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Timed]:
    """Our choices installed, and what Inductor would have timed."""
    with rehearsed_inductor(monkeypatch, tmp_path) as stands_in:
        yield stands_in
