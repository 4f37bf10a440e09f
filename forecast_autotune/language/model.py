"""What a language model is to the rest: something that answers prompts until a moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from .prompt import Prompt

SAMPLING = 0.7  # temperature of a sampled answer

ANSWER_TOKENS = 2_048
"""Of a written answer, at most, and fewer where the context has no room: 4,000 characters of reasoning and eight numbers."""


class ModelError(Exception):
    """The model answers nothing now: it is not there, broke down or is not fit for this. The message is the reason."""

    @classmethod
    def of(cls, what: str, err: Exception) -> ModelError:
        """What an exception of some library comes to here, in a line: where it has no text, that of its cause."""
        telling: BaseException | None = err
        while telling is not None and not str(telling).strip():
            telling = telling.__cause__ or telling.__context__
        text = "" if telling is None else f": {str(telling).strip().splitlines()[0][:300]}"
        return cls(f"{what}: {type(err).__name__}{text}")


class ModelBusyError(ModelError):
    """The model may answer what it is asked again: it is busy, starts, or was not reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model once it can be asked.

    `identity` changes with whatever changes its answers (weights, adapter, tokenizer), as far as that can be told without
    reading the weights. `context` is how many tokens a prompt and its answer may have together.
    """

    identity: str
    context: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """One prompt without an answer, and why; others may have theirs."""

    reason: str


class LanguageModel(Protocol):
    """Answers prompts. Each call ends by the moment `until` (of `time.monotonic`), then with fewer answers than prompts.

    Nothing is under way any more when an iterator has ended or is closed. Answers come in any order, each with the position
    of its prompt.
    """

    name: str
    """For people: which model, and where it runs."""

    def open(self, *, until: float) -> ModelFacts:
        """Load it, or find it; again is quick. What loads into this process cannot be stopped midway, and may end later.

        Raises:
            ModelError: it is not there, or cannot answer: a bin's label is not one token of it, say.
            MissingExtraError: a package it needs is not installed.
        """

    def log_probabilities(
        self, prompts: Sequence[Prompt], *, until: float
    ) -> Iterator[tuple[int, tuple[float, ...] | Unanswered]]:
        """Of each prompt, the log-probabilities that each of the eight labels follows it, not normalised.

        Raises:
            ModelError: it broke down, and answers no more of them.
        """

    def texts(
        self, prompts: Sequence[Prompt], *, schema: dict[str, object], until: float, sampled: bool = False
    ) -> Iterator[tuple[int, str | Unanswered]]:
        """Of each prompt, what the model writes, held to a JSON schema where the model can be.

        Each word is the likeliest one, so that the same prompt has the same answer; or `sampled`, with a fixed seed, so that
        one whose answer was of no use has another.

        Raises:
            ModelError: it broke down, and answers no more of them.
        """

    def close(self) -> None:
        """Give back what it holds: memory, connections. It can be opened again."""
