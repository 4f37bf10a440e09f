"""Language model: what a model that has read a program's source says of its configs."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..core.digest import digest
from ..core.forecast import Abstention, Forecast
from ..core.job import Job, Question
from ..core.skill import Skill
from ..errors import MissingExtraError
from ..features.forecast_columns import ForecastTable, Voice
from ..features.knob_matrix import knob_matrix
from ..language.answers import SCHEMA, Bins, from_log_probabilities, from_text
from ..language.model import ANSWER_TOKENS, LanguageModel, ModelError, Unanswered
from ..language.prompt import CHARS, CHARS_PER_TOKEN, Prompt, PromptTooLongError, prompts
from ..language.sources import variant_of
from .answers import LastAnswer, answered, default_us, words
from .corrector import Corrector, Expected
from .transfer import most_alike

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

log = logging.getLogger(__name__)

MOST = 256  # configs of one job that are asked about
KEEP_EVERY = 32  # answers after which they are kept, so that what ends the asking loses few
REST_S = 60.0  # before a model that was in trouble is tried again
DOUBT = 0.5  # what a model says holds by a factor of 1, give or take this: more than trees, which were fitted on times
DEFAULT_SIGMA = 0.03  # of the default against itself: a config measured again differs by 3 %
MOST_NOTED = 20_000  # answers in a process that has no store for them

# Tokens that an answer may take, with what a chat format puts around a prompt.
ANSWER_ROOM = {"logits": 64, "reasoned": 64 + ANSWER_TOKENS}

_Left = tuple[Config, Prompt, str]
"""A config to ask about, the prompt, and the digest under which its answer is kept."""

_BELLS = Forecast.from_bins([1.0] * 8, source="").components


class LanguageModelSurrogate:
    """Forecast by what a language model answers about each config, and correct that by outcomes.

    The model is asked about the configs of a space in which several programs compete (variants, alternative sources), and
    about those of a single program only where nobody else knows them. A config that it was not asked about, and whatever
    goes wrong, is an abstention with its reason; each kind of trouble is warned of once.

    It is asked once in a tuning run, at the first forecast, which the loop makes before it compiles or times anything; and
    when `forecast` returns, nothing is under way any more. So no request ever runs beside a timing.

    Args:
        model: who answers; several surrogates may share it.
        answer: `logits`, the probabilities of one label, or `reasoned`, a text that ends in probabilities.
        seconds: a limit for one job, loading the model included.
    """

    name = "language_model"

    def __init__(self, model: LanguageModel, *, answer: str = "logits", seconds: float = 10.0) -> None:
        self.model = model
        self.answer = answer
        self.seconds = seconds
        notes = _Notes()
        self._memory = _Memory(notes.answers, notes.keep, lambda _job: ())
        self._trouble = _Trouble()
        self._begin()

    def _begin(self) -> None:
        # Each is replaced as a whole, so that threads that share this object at worst compute an answer twice.
        self._asked: tuple[Job, _Asked] | None = None
        self._last = LastAnswer()
        self._correction = Corrector()

    def with_memory(
        self,
        *,
        answers: Callable[[Sequence[str]], Mapping[str, Bins]],
        keep: Callable[[Mapping[str, Bins]], None],
        skills: Callable[[Job], Sequence[Skill]],
        busy: Callable[[], bool] | None = None,
    ) -> LanguageModelSurrogate:
        """The same with answers that outlive the process, and told of skills; each kind of trouble is told once by both.

        While `busy` says that other processes may be timing configs of the job, the model is not asked.
        """
        other = copy(self)
        other._memory = _Memory(answers, keep, skills, busy)
        other._begin()
        return other

    def within(self, seconds: float) -> LanguageModelSurrogate:
        """The same with no more than so many seconds for a job."""
        other = copy(self)
        other.seconds = min(self.seconds, seconds)
        other._begin()
        return other

    def forecast(self, question: Question) -> Sequence[Forecast | Abstention]:
        job = question.job
        known = self._asked
        if known is None or known[0] is not job:
            known = self._asked = (job, self._ask(question))
        asked = known[1]
        if not asked.bins:
            return [Abstention(self.name, asked.missing)] * len(question.configs)
        table = self._last.of(question)
        if table is None:
            table = self._last.keep(question, self._forecast(question, asked))
        return answered(table, job.space, question.configs)

    def _forecast(self, question: Question, asked: _Asked) -> ForecastTable:
        import numpy as np

        space = question.job.space
        rows = np.array([space.index(c) for c in asked.bins], dtype=np.intp)
        shares = np.array([b.probabilities for b in asked.bins.values()])
        here = sum(c in space for c in question.outcomes)
        if here:
            asked.expected = asked.expected or _expected(question.job, rows, shares)
            corrected = self._correction.apply(question.job, asked.expected, question.outcomes)
            speaks = np.zeros(len(space))
            speaks[rows] = speaks[0] = 1.0
            voices = [Voice("", corrected.mean, corrected.sigma, speaks)]
            fail, foretold = corrected.fail, corrected.foretold
        else:
            voices, fail, foretold = _voices(len(space), rows, shares), np.zeros(len(space)), 0.0
        told = [
            self.model.name,
            f"asked about {len(rows)} config{'s' * (len(rows) > 1)}",
            *words(here=here, recordings=0),
        ]
        return ForecastTable(
            voices,
            fail,
            source=f"{self.name} ({', '.join(told)})",
            default_us=default_us(question),
            silent=asked.missing or "it was not asked about",
            foretold=foretold,
        )

    # Asking ---------------------------------------------------------------------------------------------------------

    def _ask(self, question: Question) -> _Asked:
        """What the model answers about a job, now or before; nothing that goes wrong is raised."""
        until = time.monotonic() + self.seconds
        asked = _Asked()
        configs = to_ask(question)
        if not configs:
            alone = len(question.job.space) == 1
            asked.missing = "there is only the default" if alone else "one program, and others know its configs"
        elif self._memory.busy is not None and self._memory.busy():
            asked.missing = "other processes were timing configs of this job: it was not asked beside them"
        elif resting := self._trouble.now():
            asked.missing = resting
        else:
            try:
                self._ask_about(question, configs, asked, until)
            except PromptTooLongError as err:
                self._note(asked, "prompt", f"{err}: give the model a longer context (vLLM: --max-model-len)")
            except (ModelError, MissingExtraError) as err:
                self._note(asked, "model", str(err), rest=True)
            except Exception as err:  # a model may be anything, and so may its answers
                self._note(asked, "failed", f"it failed: {err!r}", rest=True)
        return asked

    def _ask_about(self, question: Question, configs: Sequence[Config], asked: _Asked, until: float) -> None:
        job = question.job
        facts = self.model.open(until=until)
        loaded = time.monotonic()
        room = int((facts.context - ANSWER_ROOM[self.answer]) * CHARS_PER_TOKEN)
        texts = prompts(
            job,
            configs,
            answer=self.answer,
            skills=self._memory.skills(job),
            recordings=[recording for _, recording in most_alike(job, question.recordings)],
            evidence=question.evidence,
            most_chars=min(CHARS, room),
        )
        keys = [digest(facts.identity, self.answer, text.digest) for text in texts]
        kept = self._memory.answers(keys)
        asked.bins = {config: kept[key] for config, key in zip(configs, keys, strict=True) if key in kept}
        left = [one for one in zip(configs, texts, keys, strict=True) if one[0] not in asked.bins]
        before, refused = len(asked.bins), ""
        if left and time.monotonic() < until:
            refused, unread = self._read(left, asked, until)
            if self.answer == "reasoned" and unread and time.monotonic() < until:
                refused = self._read(unread, asked, until, sampled=True)[0] or refused
            left = [one for one in left if one[0] not in asked.bins]
        if not left:
            return
        missing = f"{len(left)} of {len(configs)} prompts have no answer"
        if loaded >= until:
            limit = f"more than the {self.seconds:g} s of FORECAST_AUTOTUNE_ANSWER"
            self._note(
                asked, "loading", f"{missing}: loading it took {limit}; the next run in this process finds it loaded"
            )
        elif time.monotonic() >= until:
            more = f"FORECAST_AUTOTUNE_ANSWER={self.answer},{math.ceil(3 * self.seconds)}s"
            reason = f"{missing} after {self.seconds:g} s: {more} gives more, at most half of a budget's seconds"
            # Who answered nothing in all that time would take as much of each job.
            self._note(asked, "late", reason, rest=len(asked.bins) == before)
        else:
            self._note(asked, "unanswered", f"{missing}: {refused or 'it gave none, and no reason'}")

    def _read(
        self, left: Sequence[_Left], asked: _Asked, until: float, *, sampled: bool = False
    ) -> tuple[str, list[_Left]]:
        """Take in what the model answers until a moment; what came is kept whatever ends it.

        Returns:
            why it last did not answer, and what it answered in another form than it was asked for.
        """
        texts = [text for _, text, _ in left]
        answers: Iterator[tuple[int, Any]]
        parse: Callable[[Any], Bins | Unanswered]
        if self.answer == "logits":
            answers, parse = self.model.log_probabilities(texts, until=until), from_log_probabilities
        else:
            answers = self.model.texts(texts, schema=SCHEMA, until=until, sampled=sampled)
            parse = from_text
        fresh: dict[str, Bins] = {}
        refused, unread = "", []
        try:
            with closing(_closable(answers)) as closable:
                for position, said in closable:
                    found = said if isinstance(said, Unanswered) else parse(said)
                    if isinstance(found, Unanswered):
                        refused = found.reason
                        unread += [] if isinstance(said, Unanswered) else [left[position]]
                        continue
                    config, _, key = left[position]
                    asked.bins[config] = fresh[key] = found
                    if len(fresh) >= KEEP_EVERY:
                        self._memory.keep(fresh)
                        fresh = {}
                    if time.monotonic() >= until:
                        break
        finally:
            if fresh:
                self._memory.keep(fresh)
        return refused, unread

    def _note(self, asked: _Asked, cause: str, reason: str, *, rest: bool = False) -> None:
        """Why configs have no answer: told once for each cause, and with `rest` the reason to ask nothing for a while."""
        asked.missing = reason
        if rest:
            self._trouble.rest(reason)
        if cause not in self._trouble.told:
            self._trouble.told.add(cause)
            name = self.model.name  # with which a reason may begin
            log.warning("language model %s: %s: going on without", name, reason.removeprefix(name).lstrip(": "))


# What to ask about ------------------------------------------------------------------------------------------------------


def to_ask(question: Question, most: int = MOST) -> list[Config]:
    """The configs worth asking a language model about: programs in turn, each one's first config first.

    Any beginning of the list is spread evenly over each program's configs. The default is what all are compared with.
    """
    job = question.job
    programs: dict[str | None, list[Config]] = {}
    for config in job.space:
        if config != job.space.default:
            programs.setdefault(variant_of(config), []).append(config)
    if len({variant_of(job.space.default), *programs}) == 1 and (any(job.described) or question.recordings):
        return []
    in_turn = itertools.zip_longest(*(_spread(configs) for configs in programs.values()))
    return list(itertools.islice((c for turn in in_turn for c in turn if c is not None), most))


def _spread(configs: Sequence[Config]) -> Iterator[Config]:
    """Configs, the first one first, in an order of which any beginning is spread evenly.

    Steps near the golden section of their number; having no factor in common with it, they meet every value of every knob
    of a grid.
    """
    n = len(configs)
    step = next(step for step in itertools.count(round(0.618 * n)) if math.gcd(step, n) == 1)
    return (configs[k * step % n] for k in range(n))


# Bins as bells ----------------------------------------------------------------------------------------------------------


def _voices(size: int, rows: NDArray[np.intp], shares: Array) -> list[Voice]:
    """A bell for each bin, with what is said of some rows of a space; and of the default, that it is as fast as itself."""
    import numpy as np

    voices: list[Voice] = []
    for bell, share in zip(_BELLS, shares.T, strict=True):
        mean, sigma, weight = np.full(size, bell.mean), np.full(size, bell.sigma), np.zeros(size)
        weight[rows] = share
        if not voices:
            mean[0], sigma[0], weight[0] = 0.0, DEFAULT_SIGMA, 1.0
        voices.append(Voice("", mean, sigma, weight))  # without a name, for they are all one surrogate's
    return voices


def _expected(job: Job, rows: NDArray[np.intp], shares: Array) -> Expected:
    """What is expected of every config of a space: as bells where the model was asked, elsewhere like the program's others.

    The latter are not told to anybody. They let outcomes of all configs correct those that are, and be foretold as other
    surrogates foretell them, who know of all.
    """
    import numpy as np

    space = job.space
    centres, widths = np.array([b.mean for b in _BELLS]), np.array([b.sigma for b in _BELLS])
    said = shares @ centres
    spread = np.sqrt(shares @ (centres**2 + widths**2) - said**2)

    def together(some: NDArray[np.bool_]) -> tuple[float, float]:
        return float(said[some].mean()), math.sqrt(float((spread[some] ** 2).mean() + said[some].var()))

    mean, sigma = np.empty(len(space)), np.empty(len(space))
    mean[:], sigma[:] = together(np.ones(rows.size, dtype=bool))
    programs = np.array([variant_of(c) or "" for c in space])
    for program in set(programs[rows]):
        mean[programs == program], sigma[programs == program] = together(programs[rows] == program)
    mean[rows], sigma[rows] = said, spread
    # As wide as the others, though known: an outcome that needs no foretelling must not count as one well foretold.
    mean[0], sigma[0] = 0.0, math.sqrt(float((spread**2).mean()))
    trends = (DOUBT * (mean - np.median(mean)) / sigma)[:, None]
    return Expected(mean, sigma, None, trends, knob_matrix(space).values)


# State ------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Asked:
    """What a model answered about some configs of a job, why others that it was asked about have no answer, and what is
    then expected of all."""

    bins: dict[Config, Bins] = field(default_factory=dict)
    missing: str = ""
    expected: Expected | None = None


@dataclass(frozen=True, slots=True)
class _Memory:
    """What a surrogate is handed: answers kept, where to keep more, skills, and whether this is no time to ask."""

    answers: Callable[[Sequence[str]], Mapping[str, Bins]]
    keep: Callable[[Mapping[str, Bins]], None]
    skills: Callable[[Job], Sequence[Skill]]
    busy: Callable[[], bool] | None = None


class _Notes:
    """Answers kept in the process, where there is no store: replays ask the same again and again."""

    def __init__(self) -> None:
        self._kept: dict[str, Bins] = {}

    def answers(self, digests: Sequence[str]) -> Mapping[str, Bins]:
        return {digest: self._kept[digest] for digest in digests if digest in self._kept}

    def keep(self, answers: Mapping[str, Bins]) -> None:
        self._kept = dict(list({**self._kept, **answers}.items())[-MOST_NOTED:])


class _Trouble:
    """What befell a model in this process: shared by all copies of a surrogate."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self._resting: tuple[float, str] = (-math.inf, "")

    def rest(self, reason: str) -> None:
        self._resting = (time.monotonic() + REST_S, reason)

    def now(self) -> str:
        """Why it is not asked now; empty if it may be."""
        until, reason = self._resting
        return reason if time.monotonic() < until else ""


def _closable(answers: Iterator[tuple[int, Any]]) -> Generator[tuple[int, Any], None, None]:
    """The same as a generator, closing which closes it: so that no request is left under way."""
    yield from answers
