"""ForecastContext: what a surrogate is given when it starts to forecast for a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .job import Job, Recording
from .knob_effect import KnobEffect


class AnswerMemory(Protocol):
    """Answers of language models (`language.answers.Bins`), kept by the digest of the model and the prompt."""

    def answers(self, digests: Sequence[str], /) -> Mapping[str, Any]:
        """The answers that are kept, by digest."""

    def keep_answers(self, answers: Mapping[str, Any], /) -> None:
        """Keep answers for later runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastContext:
    """What is known of a job before its tuning run begins. Nothing of it changes while the run lasts.

    A callable stands where the value costs a look at the store, which only some surrogates need.

    Attributes:
        job: the workload, its space, the hardware and the toolchain.
        recordings: outcomes of the same program at other keys, on other hardware, under another toolchain or in older
            source; of many, the most alike. Outcomes of this very job come with each call of `predict`.
        past_log_density: mean log density of each surrogate's past forecasts on this kind of hardware, nats per outcome, by
            name; a surrogate without a past is missing.
        knob_effects: what single changes of knobs did in earlier runs.
        answers: earlier answers of language models; None where none outlive the process.
        ask_limit_s: seconds that a session may take to ask a language model, loading it included; 0 means that it must
            load, ask and wait for nothing.
        busy: whether another process may be timing configs of this job now; no model is asked beside it.
    """

    job: Job
    recordings: Sequence[Recording] = ()
    past_log_density: Mapping[str, float] = field(default_factory=dict)
    knob_effects: Callable[[], Sequence[KnobEffect]] = tuple
    answers: AnswerMemory | None = None
    ask_limit_s: float = math.inf
    busy: Callable[[], bool] = bool
