"""A prompt as tokens, for models that run in this process."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from .model import Unanswered


class Tokens:
    """Reads prompts with a tokenizer of transformers; what they quote never becomes one of its special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def of_prompt(self, text: str) -> list[int]:
        """As the model would continue it."""
        return self._plain(text, add_special_tokens=True)

    def of_chat(self, text: str) -> list[int]:
        """As what a user says, in the form that the model was taught; as `of_prompt` where it was taught none."""
        if not self._tokenizer.chat_template:
            return self.of_prompt(text)
        # The text is put in behind the template, whose marks are special tokens where the text's must not be.
        place = uuid.uuid4().hex
        before, _, after = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": place}],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=False,  # the answer's own "reasoning" is the place for it
        ).partition(place)
        frame = [self._tokenizer.encode(part, add_special_tokens=False) for part in (before, after)]
        return [*frame[0], *self._plain(text, add_special_tokens=False), *frame[1]]

    def _plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        encode = self._tokenizer.encode
        try:
            tokens = encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True, verbose=False)
        except (TypeError, ValueError, NotImplementedError):  # not every tokenizer can
            tokens = encode(text, add_special_tokens=add_special_tokens)
        return [int(token) for token in tokens]


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many tokens both begin, less the last few, which other text behind them may change."""
    return max(0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))) - 4)


def too_long(tokens: int, context: int) -> Unanswered:
    """The reason to refuse a prompt that leaves no room for an answer."""
    return Unanswered(f"the prompt has {tokens} tokens, and the model's context ends at {context}")
