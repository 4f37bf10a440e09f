"""What every surrogate promises; subclass it and say how to make one and what it is asked."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace

from recorded import job_of, question, recording

from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.job import Question
from forecast_autotune.core.outcome import Failure
from forecast_autotune.core.space import Space
from forecast_autotune.protocols import Surrogate


class SurrogateContract(ABC):
    @abstractmethod
    def make(self) -> Surrogate: ...

    @abstractmethod
    def answerable(self) -> Question:
        """A question that it does not abstain from."""

    def unanswerable(self) -> Question:
        """A question that nothing is known of."""
        return question(recording())

    def test_it_has_a_name(self) -> None:
        assert self.make().name

    def test_it_answers_for_each_config_in_order(self) -> None:
        asked = self.answerable()
        answer = self.make().forecast(asked)
        assert len(answer) == len(asked.configs)
        assert any(isinstance(a, Forecast) for a in answer)
        backwards = replace(asked, configs=list(reversed(asked.configs)))
        again = self.make().forecast(backwards)
        for one, other in zip(answer, reversed(again), strict=True):
            assert isinstance(one, Forecast) == isinstance(other, Forecast)
            if isinstance(one, Forecast) and isinstance(other, Forecast):
                assert math.isclose(one.mean, other.mean, abs_tol=1e-6)

    def test_its_forecasts_are_proper_distributions(self) -> None:
        for forecast in self.make().forecast(self.answerable()):
            if isinstance(forecast, Forecast):
                assert math.isfinite(forecast.mean)
                assert 0 < forecast.sigma < math.inf
                assert 0 <= forecast.fail_probability <= 1
                assert math.isclose(sum(forecast.bins()), 1.0, abs_tol=1e-9)
                assert math.isclose(sum(c.weight for c in forecast.components), 1.0, abs_tol=1e-9)
                assert forecast.source

    def test_it_abstains_with_a_reason_where_it_knows_nothing(self) -> None:
        answer = self.make().forecast(self.unanswerable())
        assert all(isinstance(a, Abstention) and a.reason and a.source for a in answer)

    def test_equal_questions_get_equal_answers(self) -> None:
        assert list(self.make().forecast(self.answerable())) == list(self.make().forecast(self.answerable()))
        one = self.make()
        assert list(one.forecast(self.answerable())) == list(one.forecast(self.answerable()))

    def test_it_bears_a_space_of_one_config_and_a_default_that_failed(self) -> None:
        whole = recording()
        job = job_of(whole)
        alone = replace(job, space=Space([job.space.default]))
        broken = {job.space.default: Failure(stage="launch", message="no", cost_s=0.1)}
        for asked in (
            Question(job=alone, configs=alone.space),
            Question(job=alone, configs=alone.space, outcomes={job.space.default: whole.outcomes[job.space.default]}),
            Question(job=alone, configs=alone.space, outcomes=broken),
            Question(job=job, configs=job.space, outcomes=broken),
        ):
            assert len(self.make().forecast(asked)) == len(asked.configs)

    def test_it_answers_when_asked_about_no_config(self) -> None:
        assert list(self.make().forecast(replace(self.answerable(), configs=[]))) == []
