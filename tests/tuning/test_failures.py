"""What a run says of configs that failed."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from recorded import job_of
from small_runs import Memory, decide, recorded_as

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure
from forecast_autotune.tuning.failures import recordings_unreported

WRONG = Failure(stage="check", message="out: 3 of 4096 elements differ", cost_s=0.1)
TOO_LARGE = Failure(stage="launch", message="OutOfResources: shared memory, Required: 300000", cost_s=0.1)
ODD = Failure(stage="compile", message="CompilationError: at 4:21:\ndef f(x):\n    ^\nNameError('y')", cost_s=0.1)


def loud(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize(("failure", "reason"), [(WRONG, "check: out: 3 of"), (ODD, "at 4:21: … NameError('y')")])
def test_configs_that_fail_oddly_are_named_in_one_warning(
    caplog: pytest.LogCaptureFixture, failure: Failure, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    of = recorded_as([100, failure, TOO_LARGE, TOO_LARGE, 80, failure])
    decide(of)
    (warning,) = loud(caplog)
    assert "4 of 6 configs tried failed, 2 of them like i=1 at" in warning
    assert reason in warning
    assert "\n" not in warning
    assert f"forecast-autotune show {job_of(of).digest[:10]}" in warning


@pytest.mark.parametrize("times_us", [[100, WRONG, 80], [WRONG, WRONG]], ids=["some failed", "none ran"])
def test_a_long_key_is_cut(times_us: list[float | Failure], caplog: pytest.LogCaptureFixture) -> None:
    of = recorded_as(times_us)
    decide(replace(of, workload=replace(of.workload, key={"xs": list(range(10_000))})))
    (warning,) = loud(caplog)
    assert warning.startswith(f"{of.workload.program.name}(xs=[0, 1, 2, ")
    assert len(warning) < 400


@pytest.mark.parametrize("failing", [1, 2])
def test_a_warning_says_how_to_tune_again_where_many_failed_in_passing(
    failing: int, caplog: pytest.LogCaptureFixture
) -> None:
    full = Failure(stage="compile", message="OSError: No space left on device", transient=True)
    of = recorded_as([100, *[full] * failing, *[90] * (6 - failing)])
    decide(of)
    (warning,) = loud(caplog)
    name = of.workload.program.name
    assert (f"'forecast-autotune clear --kernel {name}' has it tuned anew" in warning) == (failing == 2), "of seven"


def test_configs_that_are_only_too_large_are_logged_quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assertion = Failure(stage="compile", message="CompileTimeAssertionFailure: at 2:4:\nno 128")
    not_for_these = Failure(stage="launch", message="InvalidInputError: rows of at most 4096")
    decide(recorded_as([100, TOO_LARGE, 80, TOO_LARGE, assertion, not_for_these]))
    assert loud(caplog) == []
    assert any("4 of 6 configs tried failed, 2 of them like i=1 at launch" in r.getMessage() for r in caplog.records)


def test_failures_of_an_earlier_run_are_not_reported_again(caplog: pytest.LogCaptureFixture) -> None:
    decide(recorded_as([100, WRONG, 80]), store=Memory(known={Config({"i": 1}): WRONG}))
    assert loud(caplog) == []


def test_the_logger_of_failures_keeps_its_public_name(caplog: pytest.LogCaptureFixture) -> None:
    decide(recorded_as([100, WRONG, 80]))
    assert [r.name for r in caplog.records if r.levelno >= logging.WARNING] == ["forecast_autotune.tuner.failures"]


def test_failures_of_a_recording_go_unreported(caplog: pytest.LogCaptureFixture) -> None:
    with recordings_unreported():
        decide(recorded_as([100, WRONG, 80]))
    assert loud(caplog) == []
    decide(recorded_as([100, WRONG, 80]))
    assert len(loud(caplog)) == 1
