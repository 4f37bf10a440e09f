"""What replays run on; `tests/cli/test_replay.py` has the replays themselves."""

from __future__ import annotations

import pytest
from contracts.store_contract import ReadOnlyStoreContract, a_job
from recorded import recording

from forecast_autotune.evaluation.replay_runner import HistoryStore


class TestHistoryStore(ReadOnlyStoreContract):
    @pytest.fixture
    def store(self) -> HistoryStore:
        return HistoryStore([recording()])


def test_a_store_for_a_replay_holds_what_it_was_given_and_nothing_more() -> None:
    given = HistoryStore([recording()])
    assert given.related_recordings(a_job()) == [recording()]
    assert HistoryStore().related_recordings(a_job()) == ()
