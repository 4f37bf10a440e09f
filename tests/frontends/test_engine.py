"""What the front doors share, with nothing behind them that compiles or measures."""

from __future__ import annotations

from typing import Any

import pytest
from contracts.store_contract import a_decision, a_job

from forecast_autotune.core.config import Config
from forecast_autotune.errors import CacheMissError
from forecast_autotune.frontends.engine import Request, decide
from forecast_autotune.settings import Settings
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates.history import History

STRICT = Request(settings=Settings(mode="strict"), budget="16", surrogate=History())


def test_mode_strict_takes_a_stored_decision_only_if_it_is_one_of_the_space() -> None:
    job, idle = a_job(), object()
    acting: Any = {"compiler": idle, "measurer": idle}
    store = SqliteStore.in_memory()
    store.decide(job, a_decision(job, Config({"BLOCK": 99})))
    with pytest.raises(CacheMissError, match="no decision for"):
        decide(job, STRICT, store=store, **acting)
    store.decide(job, a_decision(job, job.space[1]))
    assert decide(job, STRICT, store=store, **acting).config == job.space[1]
