"""A language model's answer as the eight speed-up bins."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .model import Unanswered

LABELS = ("A", "B", "C", "D", "E", "F", "G", "H")
"""One for each bin, the slowest first: S up to 1/4, 1/2, 0.71, 1, 1.41, 2, 4, and above 4."""

REASONING_CHARS = 4_000
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string", "maxLength": REASONING_CHARS},
        **{label: {"type": "integer", "minimum": 0, "maximum": 100} for label in LABELS},
    },
    "required": ["reasoning", *LABELS],
    "additionalProperties": False,
}
"""What a reasoned answer must be: the reasoning, then percent for each bin. Whole numbers, for a model that is held to
`number` alone may write hundreds of digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Eight probabilities that sum to 1, and what they summed to before."""

    probabilities: tuple[float, ...]
    raw_sum: float


def from_log_probabilities(values: Sequence[float]) -> Bins | Unanswered:
    """The forecast that eight log-probabilities stand for, renormalised."""
    if len(values) != len(LABELS):
        return Unanswered(f"the model gave {len(values)} of {len(LABELS)} log-probabilities")
    if any(math.isnan(v) or v == math.inf for v in values) or max(values) == -math.inf:
        return Unanswered(f"the model's log-probabilities are {[float(v) for v in values]}: no distribution")
    highest = max(values)
    shares = [math.exp(v - highest) for v in values]
    total = sum(shares)
    return Bins(probabilities=tuple(s / total for s in shares), raw_sum=math.exp(min(highest, 0.0)) * total)


def from_text(text: str) -> Bins | Unanswered:
    """The forecast in a reasoned answer: a JSON object as `SCHEMA` says, nothing before and nothing behind it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as err:
        return Unanswered(f"the answer is no JSON ({err}): it starts with {text[:60]!r}")
    if not isinstance(value, dict) or set(value) - {"reasoning"} != set(LABELS):
        return Unanswered(f"the answer does not have the keys {', '.join(LABELS)}: it starts with {text[:60]!r}")
    numbers = [value[label] for label in LABELS]
    if any(isinstance(n, bool) or not isinstance(n, (int, float)) or not 0 <= n <= 100 for n in numbers):
        return Unanswered(f"the answer's numbers are {numbers!r}: each is a percentage from 0 to 100")
    total = math.fsum(numbers)
    if total <= 0:
        return Unanswered("the answer gives every bin 0 percent")
    return Bins(probabilities=tuple(n / total for n in numbers), raw_sum=total / 100.0)
