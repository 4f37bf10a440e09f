"""Programs that a language model writes, behind a server of OpenAI's protocol: a whole text, or strict replacements
in one."""

from __future__ import annotations

import difflib
import logging
import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace

from ...core.model_names import parse_model_name
from ...core.outcome import Failure
from ...errors import InvalidInputError
from ...language.model import ModelBusyError, ModelError, Unanswered
from ...language.prompt import quoted
from ...language.server import ServedModel, WrittenAnswer
from ...settings import Settings, check_surrogate
from ..budget import AnswerTally, SearchBudget
from ..candidate import Candidate, TriedCandidate
from ..steps import model_label
from .base import SearchView

log = logging.getLogger(__name__)

ANSWER_S = 180.0  # that a turn waits for its answers
ANSWER_TOKENS = 8_192
TEXTLESS = 8  # answers in a row that cost tokens and have no text, after which a model is asked no more
# Programs cost tokens: of so many that are wanted one is asked for, and so many in one turn at most.
SPARING, ASKED = 4, 16
MAX_SOURCE = 60_000  # characters of a parent that a prompt holds
MAX_SKILLS = 4
MAX_SHOWN = 4_000  # characters of a sibling's difference, and of a failure's message

_BLOCK = re.compile(r"^<{7} SEARCH[ \t]*\n(.*?)^={7}[ \t]*\n(.*?)^>{7} REPLACE[ \t]*$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"^(?:<{7} SEARCH|>{7} REPLACE)", re.MULTILINE)
_FENCED = re.compile(r"^```[\w+#-]*[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)

_FORM = """Answer in one of two forms, and with nothing else that looks like it.
Either the whole new text in one block:
```
...
```
Or one replacement or several, of text that stands exactly once in the program, copied with all its blanks:
<<<<<<< SEARCH
...
=======
...
>>>>>>> REPLACE
"""


class AnswerError(ValueError):
    """An answer has neither form, or replaces what is not there once; the message says what."""


def program_of(answer: str, parent: str) -> str:
    """The program that an answer makes of a parent.

    Raises:
        AnswerError: it has neither form, a text to be replaced does not stand in the parent exactly once, or it cannot be
            written to a file. The message begins with a noun and what is wrong with it, then a colon where more follows.
    """
    try:
        answer.encode()
    except UnicodeEncodeError as err:
        raise AnswerError(f"half of a character: {err.reason}") from None
    if _MARK.search(answer):
        return _replaced(answer, parent)
    blocks = _FENCED.findall(answer)
    if len(blocks) != 1:
        raise AnswerError(f"{len(blocks)} blocks of code and no replacement: one block is the whole program")
    text = str(blocks[0])
    if not text.strip():
        raise AnswerError("an empty block of code")
    return text


def _kind_of(err: ModelError) -> str:
    """An error without the numbers that a server names in it, such as when to ask again."""
    head, separator, told = str(err).partition(": ")
    return f"{head}{separator}{re.sub('[0-9]+', '…', told)}"


def _replaced(answer: str, parent: str) -> str:
    blocks = _BLOCK.findall(answer)
    if len(_MARK.findall(answer)) != 2 * len(blocks):
        raise AnswerError("a replacement that is not whole: SEARCH, =======, REPLACE")
    text = parent
    for old, new in blocks:
        if not old.strip():
            raise AnswerError("a replacement of nothing")
        if (found := text.count(old)) != 1:
            raise AnswerError(
                f"a replacement of what stands in the program {found} times, and must once: {old.strip()[:100]!r}"
            )
        text = text.replace(old, new)
    return text


class ModelProposer:
    """A model that writes programs.

    Args:
        name: of this proposer, the server's URL.
        model: who is asked.
        budget: whose tokens it spends.
    """

    def __init__(self, name: str, model: ServedModel, budget: SearchBudget) -> None:
        self.name = name
        self._model, self._budget = model, budget
        self.trouble = ""
        self._broken = ""  # why its server cannot be asked, and will not be
        self._at_once = ASKED  # answers that are asked for in one turn
        self._was_answered = False
        self._textless = 0  # answers in a row
        self._most_tokens = 0  # of an answer so far
        self._refused: dict[str, str] = {}  # by parent: why the last answer for it was no program

    @classmethod
    def named(cls, url: str, settings: Settings, budget: SearchBudget) -> ModelProposer:
        """The proposer that a URL names.

        Raises:
            InvalidInputError: it names none, or a server of another machine that may not be asked.
        """
        check_surrogate(url, "proposer", remote_model=settings.remote_model)
        parsed = parse_model_name(url)
        if parsed.runs != "server":
            raise InvalidInputError(f"proposer {url!r}: a model that writes programs is named by its server's URL")
        return cls(url, ServedModel(parsed.url, model=parsed.model), budget)

    @property
    def ended(self) -> str:
        """See `why_nothing`: it cannot be asked, or what is left of the tokens is less than its dearest answer took."""
        if self._tokens_left < (self._most_tokens or 1):
            return f"its {self._budget.tokens:.0f} tokens are spent"
        return self._broken

    def propose(self, view: SearchView, n: int) -> Sequence[Candidate]:
        """See `Proposer`. A server that is gone has proposed nothing, with one warning."""
        draw = view.draw(self.name)
        parents = [view.parent(draw) for _ in range(min(math.ceil(n / SPARING), self._at_once))]
        found: dict[str, Candidate] = {}
        prompts = [self._prompt(view, parent) for parent in parents]
        for position, text in self._asked(prompts):
            made = self._child(parents[position], text)
            if made is None:
                continue
            if made.digest in view.known or made.digest in found:
                self._tally.unused["repeating a program, comments aside"] += 1
            else:
                found[made.digest] = made
        return list(found.values())

    def repair(self, view: SearchView, failed: TriedCandidate) -> Candidate | None:
        """See `Proposer`: it is shown what failed, and why."""
        prompt = self._prompt(view, failed.candidate, failed)
        for _, text in self._asked([prompt]):
            return self._child(failed.candidate, text)
        return None

    def _asked(self, prompts: Sequence[str]) -> list[tuple[int, str]]:
        """Texts by the position of their prompt, as far as tokens and time go."""
        had_trouble, self.trouble = bool(self.trouble), ""
        prompts = prompts[: self._affordable(len(prompts))]
        if not prompts:
            return []
        self._tally.asked += len(prompts)
        answers, errors = self._answers_to(prompts)
        self._was_answered = self._was_answered or bool(answers)
        texts = [(position, text) for position, answer in answers if (text := self._counted(answer)) is not None]
        if errors and not answers:
            self._note_error(errors, is_known=had_trouble)
        if self._textless >= TEXTLESS:
            log.warning(
                "%s is asked no more: its last %d answers cost tokens and had no text", self.name, self._textless
            )
        return sorted(texts)

    def _answers_to(self, prompts: Sequence[str]) -> tuple[list[tuple[int, WrittenAnswer]], list[ModelError]]:
        """What is answered in time, by the position of the prompt, and what went wrong; what is missing is counted."""
        until = time.monotonic() + max(1.0, min(ANSWER_S, self._budget.seconds_left))
        answers: list[tuple[int, WrittenAnswer]] = []
        errors: list[ModelError] = []
        missing, why = len(prompts), "not there in time"
        try:
            for position, answer in self._model.written(prompts, until=until, most_tokens=ANSWER_TOKENS):
                missing -= 1
                if isinstance(answer, ModelError):
                    errors.append(answer)
                    self._tally.unused[f"missing ({_kind_of(answer)})"] += 1
                else:
                    answers.append((position, answer))
            if any(isinstance(err, ModelBusyError) for err in errors):
                self._at_once = max(1, len(answers))
            elif len(prompts) == self._at_once:
                self._at_once = min(ASKED, 2 * self._at_once)
        except ModelError as err:  # none was asked
            errors, why = [err], _kind_of(err)
        if missing:
            self._tally.unused[f"missing ({why})"] += missing
        return answers, errors

    def _counted(self, answer: WrittenAnswer) -> str | None:
        """An answer's text, once its tokens are counted; None where it has none."""
        self._budget.tokens_used += answer.tokens
        self._most_tokens = max(self._most_tokens, answer.tokens)
        if not isinstance(answer.text, Unanswered):
            self._textless = 0
            return answer.text
        log.info("%s: %s", self.name, answer.text.reason)
        self._tally.unused[f"without text ({answer.text.reason})"] += 1
        self._textless += answer.tokens > 0  # a prompt that was refused cost none
        return None

    def _note_error(self, errors: Sequence[ModelError], *, is_known: bool) -> None:
        """No request was answered: say whether it may be asked again, with one warning.

        Whoever has answered before may be: a gateway speaks for a server that starts anew.
        """
        busy = next((err for err in errors if isinstance(err, ModelBusyError)), None)
        if busy is not None or self._was_answered:
            self.trouble = str(busy or errors[0])
            if not is_known:
                log.warning(
                    "%s writes nothing: %s. The search goes on without it while that lasts", self.name, self.trouble
                )
        else:
            self._broken = f"the server could not be asked: {errors[0]}"
            log.warning("%s is asked no more: %s", self.name, errors[0])

    def _affordable(self, wanted: int) -> int:
        """How many answers may be asked for at once, should each cost what the dearest did.

        Where tokens are limited and no cost is known, one.
        """
        if self.ended or self._textless >= TEXTLESS:
            return 0
        if self._tokens_left == math.inf:
            return wanted
        return min(wanted, int(self._tokens_left / self._most_tokens)) if self._most_tokens else 1

    @property
    def _tokens_left(self) -> float:
        return self._budget.tokens - self._budget.tokens_used

    @property
    def _tally(self) -> AnswerTally:
        return self._budget.answers[self.name]

    def _child(self, parent: Candidate, answer: str) -> Candidate | None:
        try:
            source = program_of(answer, parent.source)
        except AnswerError as err:
            self._refused[parent.digest] = str(err)
            log.info("%s: an answer is no program: %s", self.name, err)
            self._tally.unused[f"with {str(err).partition(':')[0]}"] += 1
            return None
        self._refused.pop(parent.digest, None)
        return replace(
            parent,
            source=source,
            proposer=self.name,
            parents=(parent.digest,),
            steps=(*parent.steps, model_label(_headline(answer))),
            by_rules=False,
        )

    def _prompt(self, view: SearchView, parent: Candidate, failed: TriedCandidate | None = None) -> str:
        """Task, parent with its times, two siblings, skills that fit, the last failure.

        Texts of others stand indented and without chats' marks.
        """
        task = view.task
        language = {
            "triton": "Triton, in Python",
            "c++": "C++, for one thread of a CPU",
            "cuda": "CUDA C++, built by nvcc",
        }.get(task.language, task.language)
        parts = [
            f"Make this program faster. It is in {language}. It must compute the same, in the same precision, for "
            f"all sizes, and "
            "call no library to compute for it. Names, arguments and outputs of its functions stay as they are.",
            f"Its knobs, set from outside: {parent.config}",
            *_times(view, parent),
            "The program:\n" + _indented(parent.source[:MAX_SOURCE]),
            *_siblings(view, parent),
            *_skills(view, parent),
        ]
        failure = failed or view.last_failure
        if isinstance(of := None if failure is None else failure.outcome, Failure):
            whose = "This program" if failed is not None else "An earlier try"
            parts.append(f"{whose} failed at the stage '{of.stage}':\n" + _indented(of.message[:MAX_SHOWN]))
        if why := self._refused.get(parent.digest):
            parts.append("An earlier answer was no use: " + quoted(why))
        return "\n\n".join([*parts, _FORM])


def _times(view: SearchView, parent: Candidate) -> list[str]:
    of = next((t for t in view.ran if t.candidate.digest == parent.digest), None)
    if of is None:
        return []
    slowest_first = sorted(of.times_us.items(), key=lambda item: -item[1])
    told = ", ".join(f"{us:.4g} us at {name} ({dict(view.task.sizes.get(name, {}))})" for name, us in slowest_first)
    return [f"It takes {told}."]


def _siblings(view: SearchView, parent: Candidate) -> list[str]:
    """What a faster and a slower program changed, as differences from the parent."""
    own = next((t.time_us for t in view.ran if t.candidate.digest == parent.digest), None) or math.inf
    others = [t for t in view.ran if t.candidate.source != parent.source and t.time_us]
    faster = next((t for t in reversed(others) if (t.time_us or 0) < own), None)
    slower = next((t for t in others if (t.time_us or 0) >= own), None)
    told = []
    for which, one in (("faster", faster), ("slower", slower)):
        if one is not None:
            lines = difflib.unified_diff(
                parent.source.splitlines(), one.candidate.source.splitlines(), lineterm="", n=1
            )
            text = _indented("\n".join(list(lines)[2:])[:MAX_SHOWN])
            told.append(f"With this change it was {which}, {one.time_us:.4g} us on average:\n{text}")
    return told


def _skills(view: SearchView, parent: Candidate) -> list[str]:
    """What helped in earlier searches, as measured, and may here."""
    told = [
        f"{quoted(str(skill))}" + (f"\n{_indented(skill.difference)}" if skill.difference else "")
        for skill in view.fitting(parent)[:MAX_SKILLS]
    ]
    return (
        ["Steps that made programs faster, each measured with it and without it:\n" + "\n".join(told)] if told else []
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in quoted(text).splitlines())


def _headline(answer: str) -> str:
    """The first words of an answer that are none of its program, in a line fit for a terminal."""
    words = _FENCED.sub(" ", _BLOCK.sub(" ", answer))
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())[:80] or "rewritten"
