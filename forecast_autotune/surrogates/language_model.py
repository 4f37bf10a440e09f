"""Language model: what a model that has read a program's source answers about its configs."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..core.context import AnswerMemory, ForecastContext
from ..core.digest import digest
from ..core.forecast import Abstention, Forecast
from ..core.outcome import Evidence, Outcome
from ..core.signal_handlers import raised_by_signal_handler
from ..core.space import Space
from ..errors import MissingExtraError
from ..features.forecast_columns import Component, ForecastTable, median
from ..features.knob_matrix import knob_matrix
from ..language.answers import SCHEMA, Bins, from_log_probabilities, from_text
from ..language.model import ANSWER_TOKENS, LanguageModel, ModelError, Unanswered
from ..language.prompt import CHARS, CHARS_PER_TOKEN, Prompt, PromptTooLongError, prompts
from ..language.sources import variant_of
from ..protocols import SurrogateSession
from .base import BaseSurrogate, Forecasts, OutcomeSession, basis_text, default_us, outcomes_in
from .gp_residual import GPPrior, GPResidual
from .transfer import most_alike

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

log = logging.getLogger(__name__)

MOST = 256  # configs of one job that are asked about
KEEP_EVERY = 32  # answers after which they are kept, so that what ends the asking loses few
REST_S = 60.0  # before a model that was in trouble is tried again
# What a model answers holds by a factor of 1, give or take this: more than trees, which were fitted on times
DOUBT = 0.5
DEFAULT_SIGMA = 0.03  # of the default against itself: a config measured again differs by 3 %
MAX_NOTED = 20_000  # answers in a process that has no store for them

# Tokens that an answer may take, with what a chat format puts around a prompt.
ANSWER_ROOM = {"logits": 64, "reasoned": 64 + ANSWER_TOKENS}

_Left = tuple[Config, Prompt, str]
"""A config to ask about, the prompt, and the digest under which its answer is kept."""

_BELLS = Forecast.from_bins([1.0] * 8, source="").components


class LanguageModelSurrogate(BaseSurrogate):
    """Forecast by what a language model answers about each config, and correct that by outcomes.

    The model is asked about the configs of a space in which several programs compete (variants, alternative sources), and
    about those of a single program only where nobody else knows them. A config that it was not asked about, and whatever
    goes wrong, is an abstention with its reason; each kind of trouble is warned of once.

    It is asked once in a session, at the first `predict`, which the loop calls before it compiles or times anything; and
    when that returns, nothing is under way any more. So no request ever runs beside a timing.

    Args:
        model: who answers; several surrogates may share it.
        answer: `logits`, the probabilities of one label, or `reasoned`, a text that ends in probabilities.
        seconds: a limit for one job, loading the model included; a context may set a shorter one.
    """

    name = "language_model"

    def __init__(self, model: LanguageModel, *, answer: str = "logits", seconds: float = 10.0) -> None:
        self.model = model
        self.answer = answer
        self.seconds = seconds
        # Sessions in several threads share both; each is replaced as a whole, so that at worst one loses a note.
        self._notes = _Notes()
        self._trouble = _Trouble()

    @property
    def asks_model(self) -> bool:
        """Always."""
        return True

    def start(self, context: ForecastContext) -> SurrogateSession:
        """A session that asks the model when it is first asked itself, and no more prompts than have no answer yet."""
        memory = self._notes if context.answers is None else context.answers
        seconds = min(self.seconds, context.ask_limit_s)
        return _Session(context, _Asking(self.model, self.answer, seconds, memory, self._trouble))


@dataclass(frozen=True, slots=True)
class _Asking:
    """Whom a session asks, in which form, for how long, where answers are kept, and what went wrong before."""

    model: LanguageModel
    answer: str
    seconds: float
    memory: AnswerMemory
    trouble: _Trouble


class _Session(OutcomeSession):
    def __init__(self, context: ForecastContext, asking: _Asking) -> None:
        super().__init__(context)
        self._asking = asking
        self._asked: _ModelAnswers | None = None
        self._residual = GPResidual(context.job.space)

    def predict(self, outcomes: Mapping[Config, Outcome], evidence: Mapping[Config, Evidence]) -> Forecasts:
        if self._asked is None:
            self._asked = _ask(self.context, self._asking, evidence)
        return super().predict(outcomes, evidence)

    def predict_from(self, outcomes: Mapping[Config, Outcome]) -> tuple[Forecasts, float | None]:
        import numpy as np

        name, space, asked = LanguageModelSurrogate.name, self.context.job.space, self._asked or _ModelAnswers()
        if not asked.bins:
            return [Abstention(name, asked.missing)] * len(space), None
        rows = np.array([space.index(c) for c in asked.bins], dtype=np.intp)
        shares = np.array([b.probabilities for b in asked.bins.values()])
        own = outcomes_in(space, outcomes)
        if own:
            asked.prior = asked.prior or _prior(space, rows, shares)
            posterior = self._residual.apply(asked.prior, outcomes)
            speaks = np.zeros(len(space))
            speaks[rows] = speaks[0] = 1.0
            components = [Component("", posterior.mean, posterior.sigma, speaks)]
            fail, density = posterior.fail, posterior.loo_log_density
        else:
            components, fail, density = _components(len(space), rows, shares), np.zeros(len(space)), 0.0
        basis = [
            self._asking.model.name,
            f"asked about {len(rows)} config{'s' * (len(rows) > 1)}",
            *basis_text(outcomes=own, recordings=0),
        ]
        table = ForecastTable(
            components,
            fail,
            source=f"{name} ({', '.join(basis)})",
            default_us=default_us(self.context, outcomes),
            silent=asked.missing or "it was not asked about",
        )
        return table, density


# Asking -----------------------------------------------------------------------------------------------------------------


def _ask(context: ForecastContext, asking: _Asking, evidence: Mapping[Config, Evidence]) -> _ModelAnswers:
    """What the model answers about a job, now or before; nothing that goes wrong is raised."""
    until = time.monotonic() + asking.seconds
    asked = _ModelAnswers()
    configs = to_ask(context)
    if not configs:
        alone = len(context.job.space) == 1
        asked.missing = "there is only the default" if alone else "one program, and others know its configs"
    elif context.ask_limit_s <= 0:
        asked.missing = "no model may be asked now"
    elif context.busy():
        asked.missing = "other processes were timing configs of this job: it was not asked beside them"
    elif resting := asking.trouble.now():
        asked.missing = resting
    else:
        try:
            _ask_about(configs, context, asking, evidence, asked, until)
        except PromptTooLongError as err:
            _note(asking, asked, "prompt", f"{err}: give the model a longer context (vLLM: --max-model-len)")
        except (ModelError, MissingExtraError) as err:
            _note(asking, asked, "model", str(err), rest=True)
        except Exception as err:  # a model may be anything, and so may its answers
            if raised_by_signal_handler(err):
                raise
            _note(asking, asked, "failed", f"it failed: {err!r}", rest=True)
    return asked


def _ask_about(
    configs: Sequence[Config],
    context: ForecastContext,
    asking: _Asking,
    evidence: Mapping[Config, Evidence],
    asked: _ModelAnswers,
    until: float,
) -> None:
    """Ask about configs until a moment, and note what has no answer by then, and why."""
    facts = asking.model.open(until=until)
    loaded = time.monotonic()
    room = int((facts.context - ANSWER_ROOM[asking.answer]) * CHARS_PER_TOKEN)
    texts = prompts(
        context.job,
        configs,
        answer=asking.answer,
        knob_effects=context.knob_effects(),
        recordings=[recording for _, recording in most_alike(context.job, context.recordings)],
        evidence=evidence,
        most_chars=min(CHARS, room),
    )
    keys = [digest(facts.identity, asking.answer, text.digest) for text in texts]
    kept = asking.memory.answers(keys)
    asked.bins = {config: kept[key] for config, key in zip(configs, keys, strict=True) if key in kept}
    left = [one for one in zip(configs, texts, keys, strict=True) if one[0] not in asked.bins]
    before, refused = len(asked.bins), ""
    if left and time.monotonic() < until:
        refused, unread = _read(asking, left, asked, until)
        if asking.answer == "reasoned" and unread and time.monotonic() < until:
            refused = _read(asking, unread, asked, until, sampled=True)[0] or refused
        left = [one for one in left if one[0] not in asked.bins]
    if not left:
        return
    missing = f"{len(left)} of {len(configs)} prompts have no answer"
    if loaded >= until:
        limit = f"more than the {asking.seconds:g} s of FORECAST_AUTOTUNE_ANSWER"
        _note(
            asking,
            asked,
            "loading",
            f"{missing}: loading it took {limit}; the next run in this process finds it loaded",
        )
    elif time.monotonic() >= until:
        more = f"FORECAST_AUTOTUNE_ANSWER={asking.answer},{math.ceil(3 * asking.seconds)}s"
        reason = f"{missing} after {asking.seconds:g} s: {more} gives more, at most half of a budget's seconds"
        # Who answered nothing in all that time would take as much of each job.
        _note(asking, asked, "late", reason, rest=len(asked.bins) == before)
    else:
        _note(asking, asked, "unanswered", f"{missing}: {refused or 'it gave none, and no reason'}")


def _read(
    asking: _Asking, left: Sequence[_Left], asked: _ModelAnswers, until: float, *, sampled: bool = False
) -> tuple[str, list[_Left]]:
    """Take in what the model answers until a moment; what came is kept whatever ends it.

    Returns:
        why it last did not answer, and what it answered in another form than it was asked for.
    """
    texts = [text for _, text, _ in left]
    answers: Iterator[tuple[int, Any]]
    parse: Callable[[Any], Bins | Unanswered]
    if asking.answer == "logits":
        answers, parse = asking.model.log_probabilities(texts, until=until), from_log_probabilities
    else:
        answers = asking.model.texts(texts, schema=SCHEMA, until=until, sampled=sampled)
        parse = from_text
    fresh: dict[str, Bins] = {}
    refused, unread = "", []
    try:
        with closing(_closable(answers)) as closable:
            for position, raw in closable:
                bins = raw if isinstance(raw, Unanswered) else parse(raw)
                if isinstance(bins, Unanswered):
                    refused = bins.reason
                    unread += [] if isinstance(raw, Unanswered) else [left[position]]
                    continue
                config, _, key = left[position]
                asked.bins[config] = fresh[key] = bins
                if len(fresh) >= KEEP_EVERY:
                    asking.memory.keep_answers(fresh)
                    fresh = {}
                if time.monotonic() >= until:
                    break
    finally:
        if fresh:
            asking.memory.keep_answers(fresh)
    return refused, unread


def _note(asking: _Asking, asked: _ModelAnswers, cause: str, reason: str, *, rest: bool = False) -> None:
    """Why configs have no answer: warned of once for each cause, and with `rest` why nothing is asked for a while."""
    asked.missing = reason
    if rest:
        asking.trouble.rest(reason)
    if cause not in asking.trouble.warned:
        asking.trouble.warned.add(cause)
        name = asking.model.name  # with which a reason may begin
        log.warning("language model %s: %s: going on without", name, reason.removeprefix(name).lstrip(": "))


# What to ask about ------------------------------------------------------------------------------------------------------


def to_ask(context: ForecastContext, most: int = MOST) -> list[Config]:
    """The configs worth asking a language model about: programs in turn, each one's first config first.

    Any beginning of the list is spread evenly over each program's configs. The default is what all are compared with.
    """
    job = context.job
    programs: dict[str | None, list[Config]] = {}
    for config in job.space:
        if config != job.space.default:
            programs.setdefault(variant_of(config), []).append(config)
    if len({variant_of(job.space.default), *programs}) == 1 and (any(job.static_features) or context.recordings):
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


def _components(size: int, rows: NDArray[np.intp], shares: Array) -> list[Component]:
    """A bell for each bin, with the answers about some rows of a space; and of the default, that it is as fast as itself.

    Args:
        size: configs in the space.
        rows: those asked about, shape `(asked,)`.
        shares: their bins' probabilities, shape `(asked, 8)`.
    """
    import numpy as np

    components: list[Component] = []
    for bell, share in zip(_BELLS, shares.T, strict=True):
        mean, sigma, weight = np.full(size, bell.mean), np.full(size, bell.sigma), np.zeros(size)
        weight[rows] = share
        if not components:
            mean[0], sigma[0], weight[0] = 0.0, DEFAULT_SIGMA, 1.0
        components.append(Component("", mean, sigma, weight))  # without a name, for they are all one surrogate's
    return components


def _prior(space: Space, rows: NDArray[np.intp], shares: Array) -> GPPrior:
    """What is expected of every config: as bells where the model was asked, of others like the same program's asked ones.

    The latter are no forecasts. They let outcomes of all configs correct those that are, and be predicted as by other
    surrogates, who know of all. Arguments as in `_components`.
    """
    import numpy as np

    centres, widths = np.array([b.mean for b in _BELLS]), np.array([b.sigma for b in _BELLS])
    asked_mean = shares @ centres
    asked_sigma = np.sqrt(shares @ (centres**2 + widths**2) - asked_mean**2)

    def pooled(some: NDArray[np.bool_]) -> tuple[float, float]:
        return float(asked_mean[some].mean()), math.sqrt(
            float((asked_sigma[some] ** 2).mean() + asked_mean[some].var())
        )

    mean, sigma = np.empty(len(space)), np.empty(len(space))
    mean[:], sigma[:] = pooled(np.ones(rows.size, dtype=bool))
    programs = np.array([variant_of(c) or "" for c in space])
    for program in set(programs[rows]):
        mean[programs == program], sigma[programs == program] = pooled(programs[rows] == program)
    mean[rows], sigma[rows] = asked_mean, asked_sigma
    # As wide as the others, though known: an outcome that is known beforehand must not count as one well predicted.
    mean[0], sigma[0] = 0.0, math.sqrt(float((asked_sigma**2).mean()))
    basis = (DOUBT * (mean - median(mean)) / sigma)[:, None]
    return GPPrior(mean, sigma, None, basis, knob_matrix(space).values)


# State ------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _ModelAnswers:
    """What a model answered about some configs of a job, why others that it was asked about have no answer, and what is
    then expected of all."""

    bins: dict[Config, Bins] = field(default_factory=dict)
    missing: str = ""
    prior: GPPrior | None = None


class _Notes:
    """Answers kept in the process, where there is no store: replays ask the same again and again."""

    def __init__(self) -> None:
        self._kept: dict[str, Bins] = {}

    def answers(self, digests: Sequence[str]) -> Mapping[str, Bins]:
        kept = self._kept
        return {digest: kept[digest] for digest in digests if digest in kept}

    def keep_answers(self, answers: Mapping[str, Bins]) -> None:
        self._kept = dict(list({**self._kept, **answers}.items())[-MAX_NOTED:])


class _Trouble:
    """What befell a model in this process: shared by all sessions of a surrogate."""

    def __init__(self) -> None:
        self.warned: set[str] = set()
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
