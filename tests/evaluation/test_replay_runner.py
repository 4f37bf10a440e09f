"""What replays run on; `tests/cli/test_replay.py` has the replays themselves."""

from __future__ import annotations

import pytest
from contracts.store_contract import ReadOnlyStoreContract, a_job
from recorded import recording

from forecast_autotune.evaluation.replay_runner import Given


class TestGiven(ReadOnlyStoreContract):
    @pytest.fixture
    def store(self) -> Given:
        return Given([recording()])


def test_a_store_for_a_replay_holds_what_it_was_given_and_nothing_more() -> None:
    given = Given([recording()])
    assert given.recollect(a_job()) == [recording()]
    assert Given().recollect(a_job()) == ()
