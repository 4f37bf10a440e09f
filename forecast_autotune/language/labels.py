"""Which token stands for each bin, and what vLLM's answers are read by: what a server and models in this process share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .answers import LABELS
from .model import ModelError, Unanswered

END = "# Forecast\nbin:"
"""How each prompt ends that a label follows (`templates/logits.j2`)."""


def label_tokens(tokens_of: Callable[[str], Sequence[int]], model: str) -> tuple[int, ...]:
    """The token of each label as it follows a prompt, with a space before it or without.

    Raises:
        ModelError: some label is not one token there, or two are the same; names the model and the label.
    """
    end = list(tokens_of(END))
    for lead in (" ", ""):
        label_of: dict[int, str] = {}
        for label in LABELS:
            tokens = list(tokens_of(f"{END}{lead}{label}"))
            if len(tokens) != len(end) + 1 or tokens[:-1] != end or tokens[-1] in label_of:
                trouble = label
                break
            label_of[tokens[-1]] = label
        else:
            return tuple(label_of)
    raise ModelError(
        f"{model}: after a prompt, the label {trouble!r} is not one token of its own, so that its share cannot be read;"
        " let it write its answer, or take another model"
    )


def of_labels(log_probabilities: Mapping[int, object], labels: Sequence[int]) -> tuple[float, ...] | Unanswered:
    """The labels' log-probabilities among those that came back."""
    values: list[float] = []
    for token in labels:
        value = log_probabilities.get(token)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or value > 0:
            return Unanswered(f"the model gave {value!r} as the log-probability of a label")
        values.append(float(value))
    return tuple(values)


def as_json(text: str) -> str:
    """What vLLM's grammars let pass in a JSON string and JSON does not, control characters, as spaces."""
    return text.translate(dict.fromkeys(range(32), " "))
