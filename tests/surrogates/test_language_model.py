"""What a language model's answers become, which configs it is asked about, and what happens when it does not answer."""

from __future__ import annotations

import logging
import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from asking import Question, ask, ask_with_density
from contracts.surrogate_contract import SurrogateContract
from recorded import job_of, measurement, question, recording
from talking import Talking, faster_tiles, knob, sure_of

from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention, Forecast, bin_of
from forecast_autotune.core.knob_effect import KnobEffect
from forecast_autotune.core.space import Space
from forecast_autotune.errors import MissingExtraError
from forecast_autotune.features.forecast_columns import ForecastTable, columns_of
from forecast_autotune.language.answers import Bins
from forecast_autotune.language.model import ModelError, Unanswered
from forecast_autotune.language.prompt import Prompt
from forecast_autotune.surrogates import language_model
from forecast_autotune.surrogates.base import WithContext
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.surrogates.history import History
from forecast_autotune.surrogates.language_model import LanguageModelSurrogate, to_ask
from forecast_autotune.surrogates.learned import Learned

FAST, SLOW = sure_of(6), sure_of(1)


def known_elsewhere() -> Question:
    """About one program, of whose configs the launches are described."""
    asked = question(recording())
    return replace(asked, job=replace(asked.job, static_features=[{"programs": 2.0}] * len(asked.job.space)))


def competing(a: int = 30, b: int = 30, **more: Any) -> Question:
    """About two programs, with so many configs each."""
    configs = [{"variant": v, "tile": n} for v, count in (("plain", a), ("split", b)) for n in range(1, count + 1)]
    job = replace(job_of(recording()), space=Space(configs))
    return Question(job=job, **more)


def by_program(prompt: Prompt) -> tuple[float, ...]:
    return FAST if knob(prompt, "variant") == "split" else SLOW


@dataclass
class Memory:
    """What a store does for a surrogate, in a dict."""

    kept: dict[str, Bins] = field(default_factory=dict)
    writes: int = 0
    told: list[KnobEffect] = field(default_factory=list)
    timing: bool = False

    def answers(self, digests: Sequence[str]) -> Mapping[str, Bins]:
        return {d: self.kept[d] for d in digests if d in self.kept}

    def keep_answers(self, answers: Mapping[str, Bins]) -> None:
        self.writes += 1
        self.kept.update(answers)

    def of(self, surrogate: LanguageModelSurrogate) -> WithContext:
        def remember(context: ForecastContext) -> ForecastContext:
            return replace(context, answers=self, knob_effects=lambda: self.told, busy=lambda: self.timing)

        return WithContext(surrogate, remember)


def spoken(answer: Sequence[Forecast | Abstention]) -> list[Forecast]:
    return [f for f in answer if isinstance(f, Forecast)]


def reasons(answer: Sequence[Forecast | Abstention]) -> set[str]:
    return {f.reason for f in answer if isinstance(f, Abstention)}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# The contract -----------------------------------------------------------------------------------------------------------


class TestLanguageModelSurrogate(SurrogateContract):
    def make(self) -> LanguageModelSurrogate:
        return LanguageModelSurrogate(Talking())

    def answerable(self) -> Question:
        return question(recording())

    def unanswerable(self) -> Question:
        return known_elsewhere()


class TestAfterOutcomes(TestLanguageModelSurrogate):
    def answerable(self) -> Question:
        return question(recording(), known=9)


class TestOfPrograms(TestLanguageModelSurrogate):
    def answerable(self) -> Question:
        return competing()


class TestReasoned(TestLanguageModelSurrogate):
    def make(self) -> LanguageModelSurrogate:
        return LanguageModelSurrogate(Talking(), answer="reasoned")


class TestOutOfReach(SurrogateContract):
    """Nothing answers; it must still answer for each config, by abstaining."""

    def make(self) -> LanguageModelSurrogate:
        return LanguageModelSurrogate(Talking(wrong=ModelError("nobody listens at 127.0.0.1:1")))

    def answerable(self) -> Question:
        return question(recording())

    def test_it_answers_for_each_config_in_order(self) -> None:
        asked = self.answerable()
        answer = ask(self.make(), asked)
        assert len(answer) == len(asked.job.space)
        assert reasons(answer) == {"nobody listens at 127.0.0.1:1"}


# What it is asked about -------------------------------------------------------------------------------------------------


def test_of_one_program_it_speaks_only_where_nobody_else_knows_its_configs() -> None:
    model = Talking()
    answer = ask(LanguageModelSurrogate(model), known_elsewhere())
    assert reasons(answer) == {"one program, and others know its configs"}
    with_recordings = replace(question(recording()), recordings=[recording(n=8192)])
    assert not spoken(ask(LanguageModelSurrogate(model), with_recordings))
    assert (model.asked, model.opened) == ([], 0)
    assert len(spoken(ask(LanguageModelSurrogate(model), question(recording())))) == 84
    assert len(model.asked) == 83  # the default is what all are compared with


def test_several_programs_take_turns_each_from_its_first_config() -> None:
    asked = competing(40, 10, recordings=[recording()])
    configs = to_ask(asked)
    assert set(configs) == set(asked.job.space[1:])
    assert [c["variant"] for c in configs[:20]] == ["plain", "split"] * 10
    assert [c["tile"] for c in configs[:2]] == [2, 1]


def test_any_prefix_of_the_order_is_even_and_covers_every_knob_value() -> None:
    space = Space.grid({"tile": list(range(1, 65)), "vec": [1, 2, 4, 8], "warps": [1, 2, 4, 8]})
    asked = Question(job=replace(job_of(recording()), space=space))
    for most in (64, 256):
        chosen = to_ask(asked, most)
        assert len(set(chosen)) == most
        at = np.sort([space.index(c) for c in chosen])
        assert np.diff(at).max() < 2.7 * len(space) / most
        for name in ("vec", "warps"):
            counts = [sum(c[name] == v for c in chosen) for v in (1, 2, 4, 8)]
            assert min(counts) >= 0.8 * most / 4


def test_of_a_large_space_it_speaks_of_what_it_was_asked_about_alone() -> None:
    model = Talking(by_program)
    asked = competing(400, 200)
    answer = ask(LanguageModelSurrogate(model), asked)
    assert len(model.asked) == language_model.MOST == 256
    assert len(spoken(answer)) == 257  # and of the default
    assert reasons(answer) == {"it was not asked about"}
    known = columns_of(answer).known
    after = ask(LanguageModelSurrogate(model), replace(asked, outcomes={asked.job.space[0]: measurement(10.0)}))
    assert (columns_of(after).known == known).all()


# What answers become ----------------------------------------------------------------------------------------------------


def test_before_any_outcome_a_forecast_has_the_models_eight_probabilities() -> None:
    shares = (0.02, 0.03, 0.05, 0.1, 0.4, 0.2, 0.15, 0.05)
    model = Talking(lambda prompt: tuple(math.log(0.3 * s) for s in shares))  # of a vocabulary, eight labels get 30 %
    asked = question(recording())
    default, *others = ask(LanguageModelSurrogate(model), asked)
    expected = Forecast.from_bins(shares, source="x")
    for forecast in others:
        assert isinstance(forecast, Forecast)
        assert forecast.mean == pytest.approx(expected.mean)
        assert forecast.sigma == pytest.approx(expected.sigma)
        assert forecast.bins() == pytest.approx(expected.bins())
        assert forecast.source == "language_model (a talking model, asked about 83 configs)"
    assert isinstance(default, Forecast)
    assert (default.mean, default.sigma) == (0.0, pytest.approx(0.03))


def test_outcomes_of_this_job_correct_the_models_forecasts() -> None:
    """It takes the slow program for the fast one."""
    asked = competing()
    plain, split = asked.job.space[:30], asked.job.space[30:]
    outcomes = {c: measurement(100.0) for c in plain[:6]} | {c: measurement(400.0) for c in split[:6]}
    session = LanguageModelSurrogate(Talking(by_program)).start(asked.context)
    before = columns_of(session.predict({}, {})).mean
    answer = session.predict(outcomes, {})
    after = columns_of(answer).mean
    assert before[30:].min() > before[:30].max()
    assert after[36:].max() < after[6:30].min()
    assert after[30] == pytest.approx(-2.0)
    assert isinstance(answer, ForecastTable)
    assert answer.default_us == 100.0
    assert "12 outcomes here" in answer.source


def test_it_is_held_to_as_many_outcomes_as_those_who_know_of_all_configs() -> None:
    """Of many outcomes it spoke of three: foretelling three must not look better than foretelling fifty."""
    asked = question(recording(), known=50)
    few, density = ask_with_density(LanguageModelSurrogate(Talking(lambda _: sure_of(4), ends_after=3)), asked)
    _, of_history = ask_with_density(History(), asked)
    assert density is not None
    assert of_history is not None
    assert len(spoken(few)) == 4
    assert density == pytest.approx(of_history, abs=0.3 * abs(of_history) + 10)


def test_a_blend_hears_it_little_at_first_and_by_what_it_has_shown_later() -> None:
    roles = {"block": "threads", "tile": "tile"}
    speedups = {str(c): s for c, s in recording().log2_speedups().items()}

    def knows(prompt: Prompt) -> tuple[float, ...]:
        config = Config(
            {
                "block": int(knob(prompt, "block")),
                "tile": int(knob(prompt, "tile")),
                "padded": knob(prompt, "padded") == "True",
            }
        )
        return sure_of(bin_of(speedups.get(str(config), -math.inf)))

    def guesses(prompt: Prompt) -> tuple[float, ...]:
        return sure_of(zlib.crc32(prompt.own.encode()) % 8)

    def weight(model: Talking, known: int) -> float:
        blend = Blend([History(), Learned(), LanguageModelSurrogate(model)])
        forecast = ask(blend, question(recording(), known=known, roles=roles))[60]
        assert isinstance(forecast, Forecast)
        return sum(b.weight for b in forecast.components if b.source == "language_model")

    assert 0.0 < weight(Talking(knows), 0) == weight(Talking(guesses), 0) < 0.05
    assert weight(Talking(knows), 12) > 0.5
    assert weight(Talking(guesses), 12) < 0.1  # whoever guesses may be right by chance a few times


def test_a_reasoned_answer_is_parsed_and_an_unparsable_one_asked_for_again() -> None:
    tries: dict[str, int] = {}

    def stutters(prompt: Prompt) -> str:
        tries[prompt.own] = tries.get(prompt.own, 0) + 1
        if knob(prompt, "tile") == "8":
            return "I would say F."
        if knob(prompt, "tile") == "6" and tries[prompt.own] == 1:
            return '{"reasoning": "hm", "A": 100'
        return '{"reasoning": "fine", "A": 0, "B": 0, "C": 0, "D": 0, "E": 0, "F": 20, "G": 60, "H": 20}'

    answer = ask(LanguageModelSurrogate(Talking(written=stutters), answer="reasoned"), question(recording()))
    assert len(spoken(answer)) == 84 - 14
    assert sum(tries.values()) == 83 + 14 + 14
    (reason,) = reasons(answer)
    assert "14 of 83 prompts have no answer" in reason
    assert "is no JSON" in reason


# Asked once -------------------------------------------------------------------------------------------------------------


def test_it_is_asked_once_in_a_run_before_anything_was_measured() -> None:
    model, asked = Talking(), question(recording())
    session = LanguageModelSurrogate(model).start(asked.context)
    for known in (0, 1, 5, 9):
        assert spoken(session.predict(question(recording(), known=known).outcomes, {}))
        assert len(model.asked) == 83
        assert not model.under_way


def test_an_answer_is_reused_unless_the_model_or_the_form_changes() -> None:
    model, memory = Talking(), Memory()
    first = ask(memory.of(LanguageModelSurrogate(model)), question(recording()))
    again = ask(memory.of(LanguageModelSurrogate(model)), question(recording()))
    assert len(model.asked) == 83
    assert list(first) == list(again)
    retrained = Talking(identity="weights 2")
    ask(memory.of(LanguageModelSurrogate(retrained)), question(recording()))
    assert len(retrained.asked) == 83
    ask(memory.of(LanguageModelSurrogate(model, answer="reasoned")), question(recording()))
    assert len(model.asked) == 166


def test_without_a_store_a_process_remembers_and_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "MAX_NOTED", 83)
    model = Talking()
    surrogate = LanguageModelSurrogate(model)
    for n, asked in ((1, 83), (1, 83), (2, 166), (1, 249)):
        ask(surrogate, question(recording(n=n)))
        assert len(model.asked) == asked


def test_knob_effects_are_in_the_prompt_where_there_is_a_memory() -> None:
    effect = KnobEffect(
        program="bowl", language="cuda", hardware="A", knob="tile", before=1, after=2, tried=9, faster=7, speedup=1.12
    )
    model = Talking()
    ask(Memory(told=[effect]).of(LanguageModelSurrogate(model)), question(recording()))
    assert all(str(effect) in prompt.shared for prompt in model.asked)
    ask(LanguageModelSurrogate(model), question(recording()))
    assert "Measured before" not in model.asked[-1].shared


def test_it_is_not_asked_while_others_may_be_timing() -> None:
    model, memory = Talking(), Memory(timing=True)
    asked = question(recording())
    session = memory.of(LanguageModelSurrogate(model)).start(asked.context)
    (reason,) = reasons(session.predict({}, {}))
    assert "timing" in reason
    memory.timing = False
    assert not spoken(session.predict({asked.job.space[0]: measurement(9.0)}, {}))
    assert (model.opened, model.asked) == (0, [])


@pytest.mark.parametrize("answers", [1, 40])
def test_what_came_before_ctrl_c_is_kept(answers: int) -> None:
    model, memory = Talking(interrupt_after=answers), Memory()
    with pytest.raises(KeyboardInterrupt):
        ask(memory.of(LanguageModelSurrogate(model)), question(recording()))
    assert len(memory.kept) == answers
    assert not model.under_way
    model.interrupt_after = -1
    ask(memory.of(LanguageModelSurrogate(model)), question(recording()))
    assert len(model.asked) == 83


# Trouble ----------------------------------------------------------------------------------------------------------------


def test_a_slow_models_answers_are_used_and_the_next_run_asks_for_the_rest() -> None:
    model, memory = Talking(delay_s=60.0, slow_after=12), Memory()
    surrogate = LanguageModelSurrogate(model, seconds=1.0)
    answer = ask(memory.of(surrogate), question(recording()))
    assert not model.under_way
    first = len(model.asked)
    assert first == 12
    assert len(spoken(answer)) == first + 1
    assert len(memory.kept) == first
    (reason,) = reasons(answer)
    assert "after 1 s: FORECAST_AUTOTUNE_ANSWER=logits,3s gives more" in reason
    ask(memory.of(surrogate), question(recording()))
    assert len({p.own for p in model.asked}) == len(model.asked) > first


def test_a_context_may_shorten_its_time_and_never_lengthens_it() -> None:
    asked = question(recording())
    for own_s, limit_s in ((60.0, 0.2), (0.2, 60.0)):
        model = Talking(delay_s=0.01)
        session = LanguageModelSurrogate(model, seconds=own_s).start(replace(asked.context, ask_limit_s=limit_s))
        (reason,) = reasons(session.predict({}, {}))
        assert "after 0.2 s" in reason
        assert 0 < len(model.asked) < 40


def test_where_nothing_may_be_waited_for_it_is_not_opened() -> None:
    model, asked = Talking(), question(recording())
    session = LanguageModelSurrogate(model).start(replace(asked.context, ask_limit_s=0.0))
    assert reasons(session.predict({}, {})) == {"no model may be asked now"}
    assert model.opened == 0


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Talking(wrong=ModelError("nobody listens at 127.0.0.1:1")), "nobody listens"),
        (Talking(wrong=MissingExtraError("pip install 'forecast-autotune[server]'")), "pip install"),
        (Talking(wrong=RuntimeError("out of memory")), "out of memory"),
        (Talking(breaks_after=0), "closed the connection"),
        (Talking(ends_after=0), "83 of 83 prompts have no answer: it gave none"),
        (Talking(context=70), "longer context"),
        (Talking(lambda _: (math.nan,) * 8), "no distribution"),
        (Talking(lambda _: (-1.0,) * 7), "7 of 8 log-probabilities"),
        (Talking(lambda _: ("x",) * 8), "failed: TypeError"),  # type: ignore[arg-type, return-value]
        (Talking(lambda _: Unanswered("the prompt has 9,000 tokens, the context 4,096")), "9,000 tokens"),
        (Talking(delay_s=60.0), "83 of 83 prompts have no answer after 0.5 s"),
    ],
)
def test_trouble_is_an_abstention_that_names_it_and_one_warning(
    model: Talking, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    surrogate = LanguageModelSurrogate(model, seconds=0.5 if model.delay_s else 10.0)
    for n in (1, 2, 3):
        answer = ask(Memory().of(surrogate), question(recording(n=n)))
        assert not spoken(answer)
        (said,) = reasons(answer)
        assert reason in said
        assert not model.under_way
    (warning,) = warnings(caplog)
    assert warning.startswith("language model a talking model: ")
    assert reason in warning


def test_half_the_answers_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    model = Talking(breaks_after=40)
    answer = ask(LanguageModelSurrogate(model), question(recording()))
    assert len(spoken(answer)) == 41
    assert reasons(answer) == {"a talking model: the server closed the connection"}
    assert len(warnings(caplog)) == 1


def test_a_model_that_cannot_be_opened_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Talking(wrong=ModelError("nobody listens"))
    surrogate = LanguageModelSurrogate(model)
    for n in (1, 2, 3):
        answer = ask(surrogate, question(recording(n=n)))
    assert model.opened == 1
    assert reasons(answer) == {"nobody listens"}
    model.wrong = None
    now = time.monotonic
    monkeypatch.setattr(language_model.time, "monotonic", lambda: now() + language_model.REST_S)
    assert spoken(ask(surrogate, question(recording(n=4))))


def test_loading_that_takes_all_the_time_leaves_the_model_to_the_next_run(caplog: pytest.LogCaptureFixture) -> None:
    model = Talking(loading_s=2.1)
    surrogate = LanguageModelSurrogate(model, seconds=2.0)
    (reason,) = reasons(ask(surrogate, question(recording(n=1))))
    assert "loading it took more than the 2 s" in reason
    assert model.asked == []
    assert spoken(ask(surrogate, question(recording(n=2))))
    assert len(warnings(caplog)) == 1


def test_answers_may_come_from_an_iterator_that_cannot_be_closed() -> None:
    """Not every iterator is a generator."""

    class Listed(Talking):
        def log_probabilities(self, prompts: Sequence[Prompt], *, until: float) -> Iterator[Any]:
            return iter([(i, faster_tiles(p)) for i, p in enumerate(prompts)])

    assert len(spoken(ask(LanguageModelSurrogate(Listed()), question(recording())))) == 84
