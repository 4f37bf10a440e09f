"""Which tokens stand for the bins, and what is read of them."""

from __future__ import annotations

import math

import pytest
from recorded import job_of, recording

from forecast_autotune.language.answers import LABELS
from forecast_autotune.language.labels import END, as_json, label_tokens, of_labels
from forecast_autotune.language.model import ModelError, Unanswered
from forecast_autotune.language.prompt import prompts


def test_prompts_end_as_the_labels_tokens_were_looked_for() -> None:
    job = job_of(recording())
    assert all(p.text.endswith(END) for p in prompts(job, job.space))


def test_a_beginning_token_does_not_matter() -> None:
    assert label_tokens(lambda text: [1, *map(ord, text)], "m") == tuple(map(ord, LABELS))


def test_a_label_that_melts_into_what_stands_before_it_is_none() -> None:
    def melting(text: str) -> list[int]:
        return [ord(c) for c in text.replace(":C", "!").replace(": C", "!")]

    with pytest.raises(ModelError, match="m: after a prompt, the label 'C' is not one token of its own"):
        label_tokens(melting, "m")


def test_two_labels_of_one_token_are_none() -> None:
    with pytest.raises(ModelError, match="label 'B'"):
        label_tokens(lambda text: [7 if c in LABELS else ord(c) for c in text.removeprefix(END)], "m")


def test_a_label_without_any_token_is_none() -> None:
    with pytest.raises(ModelError, match="label 'A'"):
        label_tokens(lambda _: [], "m")


@pytest.mark.parametrize("value", [None, "x", math.nan, math.inf, 0.1, True])
def test_what_is_no_log_probability_is_no_answer(value: object) -> None:
    assert of_labels({1: -1, 2: -math.inf, 3: 0.0}, [1, 2, 3]) == (-1.0, -math.inf, 0.0)
    assert isinstance(of_labels({1: -1.0, 2: value}, [1, 2]), Unanswered)


def test_control_characters_do_not_spoil_json() -> None:
    assert as_json('{"a":\t"b\x00\x1b\nc"}') == '{"a": "b   c"}'
