"""What `make lm-demo` says at its end, and what it leaves behind where it cannot go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from kernel_suite import lm_demo

from forecast_autotune.core.decision import Decision
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space

SPACE = lm_demo.SPACE
FAST, DECIDED, BROKEN, SILENT = SPACE[3:7]
LITTLE_FASTER = Forecast.normal(0.25, 0.05, source="language_model")


def tuned(
    inputs: tuple[Any, ...], builds: Path, store: Path, *, space: Space = SPACE, budget: str, surrogate: str
) -> lm_demo.Tuned:
    """As though a model had held all configs but one for a little faster, and as though one of them did not run."""
    inputs[-1].copy_(lm_demo.KERNEL.reference(*inputs))
    every = budget == "all"
    times_us = dict.fromkeys(SPACE, 90.0) | {SPACE.default: 100.0, DECIDED: 30.0, FAST: 25.0}
    some = space if every else [SPACE.default, DECIDED, BROKEN]
    crash = Failure(stage="launch", message="it crashed")
    said = {**dict.fromkeys(SPACE, LITTLE_FASTER), SILENT: Abstention("language_model", "no answer")}
    return lm_demo.Tuned(
        answers={} if every else said,
        outcomes={
            config: crash if config == BROKEN else Measurement(samples_us=(times_us[config],)) for config in some
        },
        decision=Decision(
            config=FAST if every else DECIDED,
            basis="measured",
            reason="the fastest of those measured",
            space_digest="",
            space_size=len(SPACE),
            budget=budget,
            tried=len(some),
        ),
    )


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is served, built or timed."""
    monkeypatch.setattr(lm_demo, "served", lambda *_: contextlib.nullcontext("http://127.0.0.1:1"))
    monkeypatch.setattr(lm_demo, "tune", tuned)


@pytest.mark.usefixtures("rehearsed")
def test_the_last_line_is_json_of_what_was_forecast_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert lm_demo.main(["--model", "some/folder"]) == 0
    out, err = capsys.readouterr()
    *told, last = out.splitlines()
    assert err == ""
    found = json.loads(last)
    assert list(found) == ["model", "forecasts", "abstentions", "measured", "slowdown_vs_exhaustive"]
    assert found == {
        "model": "some/folder",
        "forecasts": len(SPACE) - 2,  # not the default, and not the one that was abstained from
        "abstentions": 1,
        "measured": 3,
        "slowdown_vs_exhaustive": 30 / 25,
    }
    assert any("100% sure" in line and "measured 3.33x: not so" in line for line in told)
    # Of those forecast, the broken one has no time, and two are far faster than a little.
    assert any(f"right for {len(SPACE) - 5} of {len(SPACE) - 3} configs" in line for line in told)


@pytest.mark.usefixtures("rehearsed")
def test_a_model_that_answers_nothing_is_an_error_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(*args: Any, **keywords: Any) -> lm_demo.Tuned:
        said = {**dict.fromkeys(SPACE, Abstention("language_model", "it is mute")), SPACE.default: LITTLE_FASTER}
        return replace(tuned(*args, **keywords), answers=said)

    monkeypatch.setattr(lm_demo, "tune", silent)
    assert lm_demo.main([]) == 1
    assert capsys.readouterr().err == "make lm-demo: the model answered nothing: it is mute\n"


def test_a_folder_without_a_model_and_a_server_that_ends_are_clear_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lm_demo.main(["--model", str(tmp_path)]) == 1
    assert f"there is no model in {tmp_path}" in capsys.readouterr().err
    (tmp_path / "config.json").touch()
    refuses = tmp_path / "python"
    refuses.write_text("#!/bin/sh\necho no such architecture >&2\n")
    refuses.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(refuses))
    assert lm_demo.main(["--model", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "make lm-demo: vLLM ended; it last said:\nno such architecture\n\n"


@pytest.mark.parametrize("signal_sent", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_ended_leaves_no_server(tmp_path: Path, signal_sent: signal.Signals) -> None:
    (tmp_path / "config.json").touch()
    command = [sys.executable, "-m", "kernel_suite.lm_demo", "--model", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(lm_demo.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stdout is not None
        assert any(line.startswith("vLLM begins to serve") for line in demo.stdout)
        (server,) = psutil.Process(demo.pid).children()
        demo.send_signal(signal_sent)
        _, said = demo.communicate(timeout=200)
    # Python ends itself by the signal, a shell's 130 too, where the interrupt met a text that was executed.
    assert demo.returncode in (130, -signal.SIGINT)
    assert said.strip() == "Ended before its time; the server is stopped."
    assert not server.is_running()
