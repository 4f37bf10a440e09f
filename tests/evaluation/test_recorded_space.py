from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import recording

from forecast_autotune.core.config import Config
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.recorded_space import RecordedSpace, log2_times, read_space
from forecast_autotune.evaluation.traces import write_trace

WHOLE = recording()


def of_times(*times_us: float | None) -> RecordedSpace:
    """A space of configs `i` of these times; None fails."""
    outcomes = {
        Config({"i": i}): Failure(stage="launch", message="no", cost_s=0.1)
        if us is None
        else Measurement(samples_us=(us,), compile_s=0.1, run_s=0.1)
        for i, us in enumerate(times_us)
    }
    return RecordedSpace(recording=replace(WHOLE, default=Config({"i": 0}), outcomes=outcomes))


def test_the_space_is_what_was_recorded_with_the_default_first() -> None:
    default = list(WHOLE.outcomes)[5]
    space = RecordedSpace(recording=replace(WHOLE, default=default)).space
    assert space.default == default
    assert set(space) == set(WHOLE.outcomes)


def test_without_an_outcome_of_the_default_the_first_config_is_the_default() -> None:
    first, *rest = WHOLE.outcomes
    left = replace(WHOLE, default=first, outcomes={c: WHOLE.outcomes[c] for c in rest})
    assert RecordedSpace(recording=left).space.default == rest[0]


def test_the_job_has_a_description_for_each_config_or_none_at_all() -> None:
    some = list(WHOLE.outcomes)[3]
    told = RecordedSpace(recording=replace(WHOLE, static_features={some: {"programs": 4.0}}))
    assert list(told.job.static_features) == [{"programs": 4.0} if c == some else {} for c in told.space]
    assert RecordedSpace(recording=WHOLE).job.static_features == ()


def test_slowdowns_relate_to_the_best_and_are_infinite_for_a_failure() -> None:
    space = of_times(8.0, None, 2.0, 4.0)
    assert [space.slowdown(i) for i in range(4)] == [4.0, math.inf, 1.0, 2.0]
    assert space.default_slowdown == 4.0
    assert space.best_us == 2.0


def test_the_median_config_is_the_middle_one_of_those_that_ran() -> None:
    space = of_times(8.0, None, 2.0, 4.0)
    assert space.median == 3
    assert space.bins(space.median) == [1, 0, 5, 3]


def test_log_times_are_unknown_where_another_recording_lacks_a_config() -> None:
    space = Space([Config({"i": i}) for i in range(4)])
    times = log2_times(of_times(8.0, None).recording, space).tolist()
    assert times[:2] == [3.0, math.inf]
    assert all(map(math.isnan, times[2:]))


@pytest.mark.parametrize("known", [0, 1, 10, 1000])
def test_a_sample_begins_with_the_default_and_repeats_by_its_number(known: int) -> None:
    space = RecordedSpace(recording=WHOLE)
    sample = space.sample(known, 3)
    assert len(sample) == min(known, len(space.space))
    assert list(sample)[:1] == [WHOLE.default][:known]
    assert space.sample(known, 3) == sample
    assert known != 10 or space.sample(known, 4) != sample


def test_a_trace_is_read_once_and_named_after_its_file(tmp_path: Path) -> None:
    path = tmp_path / "bowl.jsonl"
    write_trace(WHOLE, path)
    space = read_space(path)
    assert (space.name, space.kernel, space.hardware) == ("bowl.jsonl", "bowl", WHOLE.hardware.name)
    assert space.recording == WHOLE
    assert read_space(path) is space


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text("[]")
    with pytest.raises(InvalidInputError, match="accepted are"):
        read_space(path)


def test_the_kernel_of_an_extension_has_no_module_before_it() -> None:
    program = replace(WHOLE.workload.program, name="kernel_suite_gemm.gemm")
    named: Recording = replace(WHOLE, workload=replace(WHOLE.workload, program=program))
    assert RecordedSpace(recording=named).kernel == "gemm"
