from __future__ import annotations

import json
import math

import pytest

from forecast_autotune.language.answers import LABELS, Bins, from_log_probabilities, from_text
from forecast_autotune.language.model import Unanswered


def test_log_probabilities_are_renormalised_and_their_sum_is_kept() -> None:
    # As vLLM gives them where the labels have 2 % of what the model might have said.
    shares = [0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.05, 0.05]
    found = from_log_probabilities([math.log(0.02 * s) for s in shares])
    assert isinstance(found, Bins)
    assert found.probabilities == pytest.approx(shares)
    assert found.raw_sum == pytest.approx(0.02)


def test_a_label_held_impossible_has_probability_0() -> None:
    found = from_log_probabilities([0.0, *[-math.inf] * 7])
    assert isinstance(found, Bins)
    assert found.probabilities == (1.0, *[0.0] * 7)


@pytest.mark.parametrize(
    "values", [[math.nan, *[-1.0] * 7], [math.inf, *[-1.0] * 7], [-math.inf] * 8, [-1.0] * 7, [-1.0] * 9, []]
)
def test_what_is_no_distribution_is_unanswered(values: list[float]) -> None:
    assert isinstance(from_log_probabilities(values), Unanswered)


def test_very_small_log_probabilities_do_not_vanish() -> None:
    found = from_log_probabilities([-2000.0, -2000.0, *[-2100.0] * 6])
    assert isinstance(found, Bins)
    assert found.probabilities[:2] == pytest.approx((0.5, 0.5))


def written(**changes: object) -> str:
    return json.dumps({"reasoning": "fewer waves", **dict.fromkeys(LABELS, 10), **changes})


def test_a_reasoned_answer_is_renormalised_and_its_sum_is_kept() -> None:
    found = from_text(written(E=30))
    assert isinstance(found, Bins)
    assert found.probabilities[4] == pytest.approx(0.3)
    assert sum(found.probabilities) == pytest.approx(1.0)
    assert found.raw_sum == pytest.approx(1.0)
    assert from_text(written(E=50)).raw_sum == pytest.approx(1.2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F",
        "the answer is F",
        written()[:-1],
        written() + " and that is that",
        "```json\n" + written() + "\n```",
        json.dumps(list(range(8))),
        json.dumps(dict.fromkeys(LABELS[:7], 10)),
        written(I=5),
        written(A=-1),
        written(A=101),
        written(A="10"),
        written(A=True),
        written(A=None),
        written(A=math.nan),
        written(A=math.inf),
        json.dumps(dict.fromkeys(LABELS, 0)),
        "[" * 100_000,
        "1" * 10_000,
    ],
)
def test_what_is_not_the_form_asked_for_is_unanswered_with_a_reason(text: str) -> None:
    found = from_text(text)
    assert isinstance(found, Unanswered)
    assert found.reason
    assert len(found.reason) < 500
