"""Times of earlier runs come to the scale of this one."""

from __future__ import annotations

import pytest
from recorded import measurement
from small_runs import FAILED, Memory, Noisy, recorded_as, tuned_by

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Outcome


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
def test_times_of_an_earlier_run_are_brought_to_this_one_by_its_default(factor: float) -> None:
    of = recorded_as([150, 100, 90, 110, 95])
    earlier = {Config({"i": i}): measurement(t * factor) for i, t in enumerate([150, 100, 90])}
    measurer = Noisy(of, 0.0001)
    decision = tuned_by(of, measurer, store=Memory(known=dict(earlier)))
    assert decision.config == Config({"i": 2})
    assert decision.tried == 2, "timing the default again takes none of the budget"
    assert [c["i"] for c, _ in measurer.asked[:3]] == [0, 3, 4]


def test_a_decision_counts_what_earlier_runs_knew_apart_from_what_it_tried() -> None:
    of = recorded_as([150, 100, 90, 110, 95])
    earlier = {Config({"i": i}): measurement(t) for i, t in enumerate([150, 100, 90])}
    decision = tuned_by(of, Noisy(of, 0.0001), store=Memory(known=dict(earlier)))
    assert (decision.tried, decision.known, decision.space_size) == (2, 3, 5)


def test_without_a_working_default_the_fastest_scales_earlier_times() -> None:
    of = recorded_as([150, 100, 90, 110, 95])
    known: dict[Config, Outcome] = {Config({"i": 0}): FAILED}
    known |= {Config({"i": i}): measurement(t * 2) for i, t in ((1, 100), (2, 90))}
    assert tuned_by(of, Noisy(of, 0.0001), store=Memory(known=known)).config == Config({"i": 2})
