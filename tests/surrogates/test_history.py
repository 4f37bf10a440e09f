from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from asking import Question, ask
from contracts.surrogate_contract import SurrogateContract
from numpy.typing import NDArray
from recorded import HERE, job_of, question, recording

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.evaluation.scores import score_forecasts
from forecast_autotune.features.forecast_columns import columns_of
from forecast_autotune.protocols import Surrogate
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.surrogates.history import History
from forecast_autotune.surrogates.learned import Learned

TWIN = replace(HERE, name="B")
STRANGER = Hardware(kind="hip", name="C")


class TestHistory(SurrogateContract):
    def make(self) -> History:
        return History()

    def answerable(self) -> Question:
        return question(recording(), known=12)


class TestHistoryFromElsewhere(SurrogateContract):
    def make(self) -> History:
        return History()

    def answerable(self) -> Question:
        return replace(question(recording()), recordings=[recording(hardware=TWIN)])


def forecasts(asked: Question) -> dict[Config, Forecast]:
    answer = ask(History(), asked)
    assert all(isinstance(a, Forecast) for a in answer)
    return {c: a for c, a in zip(asked.job.space, answer, strict=True) if isinstance(a, Forecast)}


def error_of(told: dict[Config, Forecast], truth: Recording) -> float:
    """Mean distance, in log2, of the forecasts from what is true."""
    true = truth.log2_speedups()
    return statistics.fmean(abs(told[c].mean - true[c]) for c in true)


def test_a_measured_config_is_forecast_at_its_measured_time() -> None:
    whole = recording()
    asked = question(whole, known=12)
    told = forecasts(asked)
    for config, speedup in whole.log2_speedups().items():
        if config in asked.outcomes:
            assert told[config].mean == pytest.approx(speedup)
            assert told[config].sigma < 0.1
    failed = [config for config, outcome in asked.outcomes.items() if isinstance(outcome, Failure)]
    assert failed
    assert any(told[config].fail_probability > 0.9 for config in failed)


def test_outcomes_of_this_job_generalise_to_neighbours() -> None:
    whole = recording()
    knowing_little, knowing_more = (error_of(forecasts(question(whole, known=n)), whole) for n in (1, 28))
    assert knowing_more < 0.4 * knowing_little


def test_it_grows_surer_with_what_it_has_seen() -> None:
    sigmas = [
        statistics.fmean(f.sigma for f in forecasts(question(recording(), known=n)).values()) for n in (1, 12, 42)
    ]
    assert sigmas[0] > sigmas[1] > sigmas[2]


def test_its_uncertainty_is_honest() -> None:
    whole = recording()
    asked = question(whole, known=14)
    told = forecasts(asked)
    off = [abs(told[c].mean - s) / told[c].sigma for c, s in whole.log2_speedups().items() if c not in asked.outcomes]
    assert sum(z < 2 for z in off) / len(off) > 0.85


def test_failures_make_their_neighbours_suspect() -> None:
    whole = recording()
    asked = question(whole, known=42)
    told = forecasts(asked)
    unseen = [c for c in whole.outcomes if c not in asked.outcomes]
    failing = statistics.fmean(told[c].fail_probability for c in unseen if isinstance(whole.outcomes[c], Failure))
    running = statistics.fmean(told[c].fail_probability for c in unseen if isinstance(whole.outcomes[c], Measurement))
    assert failing > 2 * running


def test_the_same_program_elsewhere_is_heard_before_anything_is_measured() -> None:
    here, elsewhere = recording(), recording(hardware=TWIN, best_tile=2.3)
    asked = replace(question(here), recordings=[elsewhere])
    true = here.log2_speedups()
    scores = score_forecasts([forecasts(asked)[c] for c in true], [true[c] for c in true])
    assert scores.accuracy > 0.55
    assert scores.brier_skill is not None
    assert scores.brier_skill > 0.2


def test_like_hardware_is_heard_before_unlike() -> None:
    here = recording()
    like, unlike = recording(hardware=TWIN), recording(hardware=STRANGER, best_block=4.5, best_tile=5.0)
    together = forecasts(replace(question(here), recordings=[unlike, like]))
    assert error_of(together, here) < 0.5 * error_of(forecasts(replace(question(here), recordings=[unlike])), here)


def test_recordings_that_disagree_leave_it_less_sure() -> None:
    here, one, other = (
        recording(),
        recording(hardware=TWIN),
        recording(hardware=replace(HERE, name="D"), best_block=5.0),
    )
    agreeing = forecasts(replace(question(here), recordings=[one, one]))
    apart = forecasts(replace(question(here), recordings=[one, other]))
    assert statistics.fmean(f.sigma for f in apart.values()) > statistics.fmean(f.sigma for f in agreeing.values())


def test_outcomes_of_this_job_correct_those_of_other_jobs() -> None:
    here, misleading = recording(), recording(hardware=STRANGER, best_block=4.5, best_tile=5.0)
    told = [error_of(forecasts(replace(question(here, known=n), recordings=[misleading])), here) for n in (0, 28)]
    assert told[1] < 0.5 * told[0]


def test_another_size_is_surer_than_other_hardware_before_any_outcome() -> None:
    def sigma(known: int, other: Recording) -> float:
        asked = replace(question(recording(), known=known), recordings=[other])
        untried = [f.sigma for c, f in forecasts(asked).items() if c not in asked.outcomes]
        return statistics.median(untried)

    size, product = recording(n=8192), recording(hardware=replace(HERE, name="D"))
    assert sigma(0, size) < 0.7 * sigma(0, product)
    assert sigma(0, size) == pytest.approx(sigma(0, recording(n=1 << 20)))  # however far the sizes are apart
    edited = replace(
        size, workload=replace(size.workload, program=replace(size.workload.program, source="another text"))
    )
    assert sigma(0, edited) > 1.2 * sigma(0, size)


@pytest.mark.parametrize("surrogate", [History(), Learned(), Blend([History(), Learned()])], ids=lambda s: s.name)
def test_forecasts_by_other_hardware_follow_the_one_that_does_well_here(surrogate: Surrogate) -> None:
    def by_other_hardware(known: int, recordings: Sequence[Recording]) -> NDArray[np.float64] | None:
        asked = replace(question(here, known=known), recordings=recordings)
        return columns_of(ask(surrogate, asked)).by_other_hardware

    def error(told: NDArray[np.float64] | None) -> float:
        assert told is not None
        return statistics.fmean(abs(told[space.index(c)] - speedup) for c, speedup in true.items())

    here = recording(failures=False)
    true, space = here.log2_speedups(), question(here).job.space
    misleading = recording(hardware=TWIN, best_block=4.5, best_tile=5.0, failures=False)
    right = recording(hardware=STRANGER, failures=False)
    assert by_other_hardware(12, []) is None
    assert by_other_hardware(12, [right, recording(n=8192)]) is None, "one is of the same hardware"
    alone = by_other_hardware(0, [misleading])
    assert alone == pytest.approx(by_other_hardware(12, [misleading])), "no outcome of a similar config bends it"
    assert error(by_other_hardware(12, [misleading, right])) < 0.5 * error(by_other_hardware(0, [misleading, right]))


def test_a_recording_of_a_few_configs_speaks_for_their_neighbours_too() -> None:
    here, elsewhere = recording(), recording(hardware=TWIN)
    few = replace(elsewhere, outcomes=dict(list(elsewhere.outcomes.items())[::3]))
    asked = replace(question(here), recordings=[few])
    assert error_of(forecasts(asked), here) < 0.35


def test_failures_in_other_jobs_raise_the_chance_of_failing() -> None:
    here, elsewhere = recording(failures=False), recording(hardware=TWIN)
    told = forecasts(replace(question(here), recordings=[elsewhere]))
    for config, outcome in elsewhere.outcomes.items():
        assert (told[config].fail_probability > 0.4) == isinstance(outcome, Failure)


def test_a_recording_of_another_space_is_no_knowledge() -> None:
    other = replace(recording(), outcomes={Config({"z": 1}): recording().outcomes[recording().default]})
    answer = ask(History(), replace(question(recording()), recordings=[other]))
    assert all(isinstance(a, Abstention) for a in answer)


def test_text_and_boolean_and_missing_knobs_are_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    base = recording()
    measured = next(o for o in base.outcomes.values() if isinstance(o, Measurement))
    configs = [
        Config({"order": order, "flag": flag, "limit": limit, "level": level})
        for order in ("ijk", "kij", "jik")
        for flag in (True, False)
        for limit in (None, 64, 128)
        for level in ("-O2", "-O3")
    ]
    outcomes = {
        c: replace(measured, samples_us=tuple(s * (3.0 if c["order"] == "ijk" else 1.0) for s in measured.samples_us))
        for c in configs
    }
    job = replace(job_of(base), space=Space(configs))
    told = ask(History(), Question(job=job, outcomes=dict(list(outcomes.items())[::2])))
    means = {c: f.mean for c, f in zip(job.space, told, strict=True) if isinstance(f, Forecast)}
    assert len(means) == len(configs)
    slow = [m for c, m in means.items() if c["order"] == "ijk"]
    fast = [m for c, m in means.items() if c["order"] != "ijk"]
    assert max(slow) < min(fast)


def test_its_source_says_what_it_rests_on() -> None:
    asked = replace(question(recording(), known=3), recordings=[recording(hardware=TWIN)])
    assert {f.source for f in forecasts(asked).values()} == {"history (3 outcomes here, 1 recording from elsewhere)"}
