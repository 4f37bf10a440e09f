"""A language model for tests: it answers at once and by a rule, or misbehaves in the way that its fields say."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from forecast_autotune.language.model import ModelError, ModelFacts, Unanswered
from forecast_autotune.language.prompt import Prompt

LogProbabilities = tuple[float, ...]


def sure_of(bin_index: int, share: float = 0.9) -> LogProbabilities:
    """Log-probabilities of a bin that gets this share, the others what is left, in equal parts."""
    return tuple(math.log(share if i == bin_index else (1 - share) / 7) for i in range(8))


def knob(prompt: Prompt, name: str) -> str:
    """The value of one of the candidate's knobs, as the prompt states it."""
    found = re.search(rf"knobs: .*?\b{name}=([^,\n]+)", prompt.own)
    return found[1] if found else ""


def faster_tiles(prompt: Prompt) -> LogProbabilities:
    """The larger the tile, the faster."""
    return sure_of(min(7, int(knob(prompt, "tile") or 4)))


@dataclass(eq=False)
class Talking:
    """Answers by `rule`, and keeps the prompts in `asked`, and in `allowed_s` how long each request may take.

    Attributes:
        delay_s: before each answer, and no longer than it may take.
        slow_after: so many answers of each request come without that delay.
        breaks_after: it raises a `ModelError` after so many answers; negative: never.
        ends_after: it stops answering after so many; negative: never.
        interrupt_after: it raises KeyboardInterrupt after so many answers; negative: never.
        loading_s: how long opening it takes, the first time.
        wrong: raised when it is opened.
    """

    rule: Callable[[Prompt], LogProbabilities | Unanswered] = faster_tiles
    delay_s: float = 0.0
    slow_after: int = 0
    breaks_after: int = -1
    ends_after: int = -1
    interrupt_after: int = -1
    loading_s: float = 0.0
    wrong: Exception | None = None
    identity: str = "weights 1"
    context: int = 32_000
    name: str = "a talking model"
    written: Callable[[Prompt], str] | None = None
    asked: list[Prompt] = field(default_factory=list)
    allowed_s: list[float] = field(default_factory=list)
    made: int = 0
    opened: int = 0
    under_way: bool = False

    def open(self, *, until: float) -> ModelFacts:
        self.opened += 1
        if self.wrong is not None:
            raise self.wrong
        time.sleep(self.loading_s)
        self.loading_s = 0.0
        return ModelFacts(identity=self.identity, context=self.context)

    def log_probabilities(
        self, prompts: Sequence[Prompt], *, until: float
    ) -> Iterator[tuple[int, LogProbabilities | Unanswered]]:
        for i in self._each(prompts, until):
            yield i, self.rule(prompts[i])

    def texts(
        self, prompts: Sequence[Prompt], *, schema: dict[str, object], until: float, sampled: bool = False
    ) -> Iterator[tuple[int, str | Unanswered]]:
        write = self.written or (lambda prompt: as_json(self.rule(prompt)))
        for i in self._each(prompts, until):
            yield i, write(prompts[i])

    def close(self) -> None:
        pass

    def _each(self, prompts: Sequence[Prompt], until: float) -> Iterator[int]:
        self.under_way = True
        self.allowed_s.append(until - time.monotonic())
        try:
            for i, prompt in enumerate(prompts):
                if i >= self.slow_after:
                    time.sleep(max(0.0, min(self.delay_s, until - time.monotonic() + 1e-3)))
                if time.monotonic() >= until or i == self.ends_after:
                    return
                if i == self.breaks_after:
                    raise ModelError(f"{self.name}: the server closed the connection")
                if i == self.interrupt_after:
                    raise KeyboardInterrupt
                self.asked.append(prompt)
                yield i
        finally:
            self.under_way = False


def as_json(answer: LogProbabilities | Unanswered) -> str:
    """The same probabilities as a reasoned answer, in percent."""
    assert not isinstance(answer, Unanswered)
    percents = {label: round(100 * math.exp(v)) for label, v in zip("ABCDEFGH", answer, strict=True)}
    return json.dumps({"reasoning": "the tile decides", **percents})


@contextmanager
def named_by_settings(model: Talking) -> Iterator[Talking]:
    """While this is held, every language model that a setting names is this one, as if the process had just begun."""
    from forecast_autotune.surrogates import by_name

    def make(_: str) -> Talking:
        model.made += 1
        return model

    def forget() -> None:
        by_name._model.cache_clear()
        by_name._language_model.cache_clear()

    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_name, "named", make)
        yield model
    forget()
