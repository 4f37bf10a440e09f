"""A server that is killed while it is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Running, vllm_server

from forecast_autotune.language.model import ModelError
from forecast_autotune.language.prompt import Prompt
from forecast_autotune.language.server import ServedModel


@pytest.fixture
def mortal(base: Path) -> Iterator[Running]:
    with vllm_server(base, base.with_name("mortal.log")) as running:
        yield running


def test_a_server_killed_between_answers_is_an_error_in_time(mortal: Running) -> None:
    model = ServedModel(mortal.url)
    model.open(until=time.monotonic() + 60)
    asked = [Prompt("", f"{i} kernel " * 400 + "# Forecast\nbin:") for i in range(400)]
    answering = model.log_probabilities(asked, until=time.monotonic() + 300)
    answered = [next(answering) for _ in range(40)]  # of the second batch, so that more is under way
    mortal.kill()
    began = time.monotonic()
    with pytest.raises(ModelError, match="cannot be asked"):
        answered += answering
    assert time.monotonic() - began < 60
    assert len({i for i, _ in answered}) == len(answered) >= 40
    with pytest.raises(ModelError, match="cannot be asked"):
        model.open(until=time.monotonic() + 5)
