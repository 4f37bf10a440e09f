"""What every surrogate promises; subclass it and say how to make one and what it is asked."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from asking import Question, ask
from recorded import job_of, question, recording

from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.outcome import Failure
from forecast_autotune.core.space import Space
from forecast_autotune.protocols import Surrogate


class SurrogateContract(ABC):
    @abstractmethod
    def make(self) -> Surrogate: ...

    @abstractmethod
    def answerable(self) -> Question:
        """A question that it does not abstain from."""

    def unanswerable(self) -> Question | None:
        """A question that nothing is known of; None for a surrogate that always forecasts."""
        return question(recording())

    def test_it_says_what_tuning_asks_of_it(self) -> None:
        surrogate = self.make()
        assert surrogate.name
        assert isinstance(surrogate.recalibrate, bool)
        assert isinstance(surrogate.asks_model, bool)
        assert all(isinstance(name, str) for name in surrogate.fitted_on)

    def test_it_answers_for_each_config_in_order(self) -> None:
        asked = self.answerable()
        answer = ask(self.make(), asked)
        assert len(answer) == len(asked.configs)
        assert any(isinstance(a, Forecast) for a in answer)
        backwards = Space(list(reversed(asked.configs)), default=asked.job.space.default, roles=asked.job.space.roles)
        described = dict(zip(asked.configs, asked.job.static_features, strict=False))
        job = replace(asked.job, space=backwards, static_features=[described[c] for c in backwards if c in described])
        again = dict(zip(backwards, ask(self.make(), replace(asked, job=job)), strict=True))
        for config, one in zip(asked.configs, answer, strict=True):
            other = again[config]
            assert isinstance(one, Forecast) == isinstance(other, Forecast)
            if isinstance(one, Forecast) and isinstance(other, Forecast):
                assert math.isclose(one.mean, other.mean, abs_tol=1e-3)

    def test_its_forecasts_are_proper_distributions(self) -> None:
        for forecast in ask(self.make(), self.answerable()):
            if isinstance(forecast, Forecast):
                assert math.isfinite(forecast.mean)
                assert 0 < forecast.sigma < math.inf
                assert 0 <= forecast.fail_probability <= 1
                assert math.isclose(sum(forecast.bins()), 1.0, abs_tol=1e-9)
                assert math.isclose(sum(c.weight for c in forecast.components), 1.0, abs_tol=1e-9)
                assert forecast.source

    def test_it_abstains_with_a_reason_where_it_knows_nothing(self) -> None:
        asked = self.unanswerable()
        if asked is not None:
            assert all(isinstance(a, Abstention) and a.reason and a.source for a in ask(self.make(), asked))

    def test_equal_questions_get_equal_answers(self) -> None:
        asked = self.answerable()
        first = list(ask(self.make(), asked))
        one = self.make()
        assert list(ask(one, asked)) == first
        assert list(ask(one, self.answerable())) == first
        session = one.start(asked.context)
        assert [list(session.predict(asked.outcomes, asked.evidence)) for _ in range(2)] == [first, first]

    def test_a_session_learns_from_outcomes_that_its_caller_adds(self) -> None:
        asked = self.answerable()
        outcomes = dict(list(asked.outcomes.items())[:1])
        session = self.make().start(asked.context)
        session.predict(outcomes, {})
        outcomes.update(asked.outcomes)
        assert alike(session.predict(outcomes, {}), ask(self.make(), asked))

    def test_sessions_of_one_surrogate_do_not_disturb_each_other(self) -> None:
        one, asked = self.make(), self.answerable()
        other = replace(asked, outcomes={})
        sessions = [one.start(q.context) for q in (asked, other)]
        with ThreadPoolExecutor(2) as threads:
            answers = [
                threads.submit(session.predict, q.outcomes, q.evidence)
                for session, q in zip(sessions, (asked, other), strict=True)
            ]
        for answer, q in zip(answers, (asked, other), strict=True):
            assert alike(answer.result(), ask(self.make(), q))

    def test_how_well_it_forecast_the_outcomes_is_a_number_or_not_known(self) -> None:
        asked = self.answerable()
        session = self.make().start(asked.context)
        session.predict(asked.outcomes, asked.evidence)
        assert session.loo_log_density is None or math.isfinite(session.loo_log_density)

    def test_it_bears_a_space_of_one_config_and_a_default_that_failed(self) -> None:
        whole = recording()
        job = job_of(whole)
        alone = replace(job, space=Space([job.space.default]))
        broken = {job.space.default: Failure(stage="launch", message="no", cost_s=0.1)}
        for asked in (
            Question(job=alone),
            Question(job=alone, outcomes={job.space.default: whole.outcomes[job.space.default]}),
            Question(job=alone, outcomes=broken),
            Question(job=job, outcomes=broken),
        ):
            assert len(ask(self.make(), asked)) == len(asked.configs)


def alike(one: Sequence[Forecast | Abstention], other: Sequence[Forecast | Abstention]) -> bool:
    """Whether two answers are the same up to rounding."""
    return len(one) == len(other) and all(
        (
            isinstance(a, Forecast)
            and isinstance(b, Forecast)
            and math.isclose(a.mean, b.mean, abs_tol=1e-6)
            and math.isclose(a.sigma, b.sigma, rel_tol=1e-6)
        )
        or a == b
        for a, b in zip(one, other, strict=True)
    )
