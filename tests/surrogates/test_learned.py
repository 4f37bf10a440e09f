from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asking import Question, ask
from contracts.surrogate_contract import SurrogateContract
from recorded import HERE, ROLES, job_of, measurement, question, recording, workload
from toy_prior import SURE, UNSURE, believing, following

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.evaluation.recorded_space import read_space
from forecast_autotune.features.forecast_columns import columns_of
from forecast_autotune.surrogates import prior as priors
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.surrogates.by_name import make_surrogate
from forecast_autotune.surrogates.history import History
from forecast_autotune.surrogates.learned import Learned

TRACES = Path(__file__).parents[2] / "calibration" / "traces"
PLAIN = {"block": "p", "tile": "q", "padded": "r"}  # names that tell nothing


def renamed(of: Recording, names: Mapping[str, str]) -> Recording:
    def config(one: Config) -> Config:
        return Config({names.get(knob, knob): value for knob, value in one.knobs.items()})

    return replace(of, default=config(of.default), outcomes={config(c): o for c, o in of.outcomes.items()})


def described(space: Sequence[Config]) -> list[dict[str, float]]:
    return [{"us_bound": float(config["tile"]) * 10.0, "threads": float(config["block"])} for config in space]  # type: ignore[arg-type]


def describing(asked: Question) -> Question:
    return replace(asked, job=replace(asked.job, static_features=described(asked.job.space)))


class _Contract(SurrogateContract):
    def make(self) -> Learned:
        return Learned()

    def unanswerable(self) -> Question:
        return question(renamed(recording(), PLAIN))


class TestLearnedFromRoles(_Contract):
    def answerable(self) -> Question:
        return question(recording(), roles=ROLES)


class TestLearnedFromLaunches(_Contract):
    def answerable(self) -> Question:
        return describing(question(recording()))


class TestLearnedFromOutcomesAlone(_Contract):
    def answerable(self) -> Question:
        return question(renamed(recording(), PLAIN), known=12)


class TestLearnedFromElsewhere(_Contract):
    def answerable(self) -> Question:
        return replace(describing(question(recording(), known=5)), recordings=[recording(n=8192), recording(n=2048)])


def means(surrogate: Learned | History | Blend, asked: Question) -> list[float]:
    answer = ask(surrogate, asked)
    assert all(isinstance(a, Forecast) for a in answer)
    return [a.mean for a in answer if isinstance(a, Forecast)]


def source(surrogate: Learned, asked: Question) -> str:
    (told,) = {f.source for f in ask(surrogate, asked)}
    return told


# What it goes by --------------------------------------------------------------------------------------------------------


def test_described_launches_are_ranked_by_the_trees() -> None:
    space = Space([{"threads": n} for n in (32, 64, 128, 256)])
    told = [{"us_bound": us} for us in (40.0, 10.0, 160.0, 20.0)]
    job = replace(job_of(recording()), space=space, static_features=told)
    learned = Learned(replace(following(), factors=believing({"few_threads": 5.0}).factors))
    found = means(learned, Question(job=job))
    # The 5 octaves for each halving of threads are not heard.
    assert found == pytest.approx([0.0, 2.0, -2.0, 1.0], abs=0.3)
    assert source(learned, Question(job=job)) == "learned (launches described, 1 kernels known)"


def test_roles_are_ranked_by_the_rules() -> None:
    space = Space([{"threads": n, "vec": v} for n in (256, 128, 16) for v in (4, 1)])
    job = replace(job_of(recording()), space=space)
    learned = Learned(believing({"few_threads": 0.25, "idle_lanes": 1.0, "narrow_load": 0.5}))
    asked = Question(job=job)
    # 128 threads lack one octave of what hides latency; 16 lack three, and leave half a warp idle; 1 for 4 is two octaves.
    assert means(learned, asked) == pytest.approx([0.0, -1.0, -0.25, -1.25, -1.75, -2.75], abs=1e-5)
    assert source(learned, asked) == "learned (knob roles)"


def test_a_tagged_role_goes_before_what_the_name_tells() -> None:
    space = Space([{"threads": n} for n in (256, 128, 64)], roles={"threads": "unroll"})
    job = replace(job_of(recording()), space=space)
    answer = ask(Learned(believing({"few_threads": 0.25})), Question(job=job))
    assert all(isinstance(a, Abstention) for a in answer)


def test_with_neither_it_abstains_and_says_why() -> None:
    answer = ask(Learned(), question(renamed(recording(), PLAIN)))
    assert {a.reason for a in answer if isinstance(a, Abstention)} == {
        "no knob's role is known, no launch is described, and nothing was measured"
    }


def test_rules_for_warps_are_not_held_against_a_cpu() -> None:
    asked = question(recording(hardware=Hardware(kind="cpu", name="c", units=16)), roles=ROLES)
    assert all(isinstance(a, Abstention) for a in ask(Learned(), asked))


def test_too_few_described_launches_leave_the_rules() -> None:
    asked = describing(question(recording(), roles=ROLES))
    told = asked.job.static_features
    few = [d if i % 3 == 0 else {} for i, d in enumerate(told)]
    assert "knob roles" in source(Learned(), replace(asked, job=replace(asked.job, static_features=few)))
    most = [d if i % 3 else {} for i, d in enumerate(told)]
    assert "launches described" in source(Learned(), replace(asked, job=replace(asked.job, static_features=most)))


def test_a_config_that_is_not_described_where_most_are_is_likely_refused() -> None:
    asked = describing(question(recording()))
    told = [{} if i == 5 else d for i, d in enumerate(asked.job.static_features)]
    fails = columns_of(ask(Learned(), replace(asked, job=replace(asked.job, static_features=told)))).fail
    assert fails[5] > 0.5 > 0.1 > max(np.delete(fails, 5))


def test_forecasts_by_rules_of_thumb_alone_are_not_grounded() -> None:
    by_rules = question(recording(), roles=ROLES)

    def grounded(asked: Question) -> set[bool]:
        return {f.grounded for surrogate in (Learned(), make_surrogate("auto")) for f in ask(surrogate, asked)}  # type: ignore[union-attr]

    assert grounded(by_rules) == {False}
    assert grounded(question(recording(), known=5, roles=ROLES)) == {True}
    assert grounded(replace(by_rules, recordings=[recording(n=8192)])) == {True}
    assert grounded(describing(by_rules)) == {True}


# What outcomes and recordings change ------------------------------------------------------------------------------------


def test_a_measured_config_is_forecast_at_its_measured_time() -> None:
    whole = recording()
    asked = question(whole, known=12, roles=ROLES)
    answer = dict(zip(asked.job.space, ask(Learned(), asked), strict=True))
    for config, speedup in whole.log2_speedups().items():
        told = answer[config]
        if config in asked.outcomes:
            assert isinstance(told, Forecast)
            assert told.mean == pytest.approx(speedup)
            assert told.sigma < 0.1
    assert "12 outcomes here" in source(Learned(), asked)


def contradicted(sigma: float) -> float:
    """What a rule that makes 16 threads an octave and a half slower than 32 says after outcomes that were all alike."""
    space = Space([{"threads": n, "vec": v} for v in (4, 2, 1) for n in (32, 16, 8)])
    job = replace(job_of(recording()), space=space)
    alike = {c: measurement(100.0) for c in space if c["vec"] == 4}
    learned = Learned(believing({"idle_lanes": 1.5}, sigma))
    ahead = means(learned, Question(job=job))
    assert ahead[space.index(Config({"threads": 8, "vec": 1}))] == pytest.approx(-3.0)
    return means(learned, Question(job=job, outcomes=alike))[space.index(Config({"threads": 8, "vec": 1}))]


def test_a_rule_loses_its_weight_when_the_first_outcomes_contradict_it() -> None:
    assert abs(contradicted(UNSURE)) < 0.75  # a quarter of what it was
    assert abs(contradicted(SURE)) > abs(contradicted(UNSURE)) + 0.2  # by the factor, not by the neighbours alone


def test_outcomes_that_bear_out_one_tree_move_every_forecast_towards_it() -> None:
    by_bound, by_traffic = following("bound", trees=1), following("traffic", high=30.0, trees=1)
    width = by_traffic.feature.shape[1]

    def both(name: str, fill: float) -> np.ndarray:
        rows = [getattr(p, name)[0] for p in (by_bound, by_traffic)]
        return np.stack([np.pad(row, (0, width - row.size), constant_values=fill) for row in rows])

    names = {"feature": -1, "threshold": 0, "left": 0, "right": 0, "value": 0}
    learned = Learned(replace(by_bound, **{name: both(name, fill) for name, fill in names.items()}))
    space = Space([{"way": f"w{i}"} for i in range(12)])
    bounds, traffic = [2.0 ** (i % 4) for i in range(12)], [2.0 ** (20 + i % 3) for i in range(12)]
    told = [{"us_bound": b, "traffic_bytes": t} for b, t in zip(bounds, traffic, strict=True)]
    job = replace(job_of(recording()), space=space, static_features=told)
    ahead = means(learned, Question(job=job))
    assert ahead[11] == pytest.approx((-3.0 - 2.0) / 2, abs=0.3)  # half of what each tree says
    known = {space[i]: measurement(traffic[i] / 1e4) for i in range(8)}
    assert means(learned, Question(job=job, outcomes=known))[11] == pytest.approx(-2.0, abs=0.3)


def test_an_outcome_teaches_configs_alike_in_launch_where_no_knob_tells() -> None:
    space = Space([{"way": f"w{i}"} for i in range(12)])
    told = [{"us_bound": 8.0, "threads": 64.0 if i % 2 else 512.0} for i in range(12)]
    job = replace(job_of(recording()), space=space, static_features=told)
    slow = {space[i]: measurement(100.0 if i % 2 else 300.0) for i in range(6)}
    found = means(Learned(following()), Question(job=job, outcomes=slow))
    assert found[7] - found[6] == pytest.approx(math.log2(3.0), abs=0.3)


@pytest.mark.parametrize("name", ["matmul.square", "softmax.vocabulary", "attention.causal"])
def test_outcomes_bring_forecasts_of_a_recorded_kernel_nearer(name: str) -> None:
    space = read_space(TRACES / f"{name}.NVIDIA_H200.jsonl.gz")
    truth = space.recording.log2_speedups()

    def error(known: int, draw: int) -> float:
        asked = Question(job=space.job, outcomes=space.sample(known, draw))
        answer = zip(space.space, means(Learned(following()), asked), strict=True)
        missed = [truth[c] - mean for c, mean in answer if c in truth and c not in asked.outcomes]
        return statistics.median(abs(m - statistics.median(missed)) for m in missed)

    few, many = (statistics.fmean(error(known, draw) for draw in range(5)) for known in (0, 16))
    assert many < 0.9 * few


def sized(n: int) -> tuple[Recording, list[dict[str, float]]]:
    """A kernel at a size: a bound that turns with the size, and a secret that nobody told the model, the same at both."""
    outcomes, told = {}, []
    for tile in (1, 2, 4, 8, 16, 32, 64, 128):
        for way in ("row", "column", "both"):
            config = Config({"tile": tile, "way": way})
            bound = 8.0 * (tile if n < 1000 else 128 / tile)
            secret = 2.0 ** (1.2 * math.sin(tile) + {"row": 0.0, "column": 1.0, "both": -1.0}[way])
            outcomes[config] = measurement(bound * secret)
            told.append({"us_bound": bound})
    space = list(outcomes)
    found = Recording(
        workload=workload(n),
        hardware=HERE,
        toolchain=recording().toolchain,
        default=space[0],
        outcomes=outcomes,
        static_features=dict(zip(space, told, strict=True)),
    )
    return found, told


def error_of(surrogate: Learned | History, asked: Question, truth: Recording) -> float:
    true = truth.log2_speedups()
    told = dict(zip(asked.job.space, means(surrogate, asked), strict=True))
    off = [told[c] - true[c] for c in true]
    return statistics.fmean(abs(o - statistics.median(off)) for o in off)


def test_recordings_of_other_sizes_carry_what_the_model_missed() -> None:
    here, told = sized(512)
    there, _ = sized(2048)
    job = replace(job_of(here), static_features=told)
    asked = Question(job=job, recordings=[there])
    both = error_of(Learned(following()), asked, here)
    assert both < 0.25
    assert both < 0.3 * error_of(Learned(following()), replace(asked, recordings=()), here)  # the model alone
    assert both < 0.3 * error_of(History(), asked, here)  # looked up alone


def test_a_recording_without_description_is_looked_up() -> None:
    here, told = sized(512)
    same = replace(sized(600)[0], static_features={})
    job = replace(job_of(here), static_features=told)
    asked = Question(job=job, recordings=[same])
    assert error_of(Learned(following()), asked, here) < 0.3
    assert "1 recording from elsewhere" in source(Learned(following()), asked)


def test_a_recording_with_too_few_described_launches_is_looked_up_too() -> None:
    here, told = sized(512)
    there, _ = sized(2048)
    few = replace(there, static_features=dict(list(there.static_features.items())[::4]))
    job = replace(job_of(here, roles={"tile": "threads"}), static_features=told)
    asked = Question(job=job, recordings=[few])
    learned = Learned(replace(following(), factors=believing({"few_threads": 2.0}).factors))
    assert means(learned, asked) == means(learned, replace(asked, recordings=[replace(few, static_features={})]))


def test_an_undescribed_config_of_a_recording_counts_by_its_recorded_time() -> None:
    here, told = sized(512)
    there, _ = sized(2048)
    lost = list(there.outcomes)[4]
    most = replace(there, static_features={c: d for c, d in there.static_features.items() if c != lost})
    job = replace(job_of(here), static_features=told)
    asked = Question(job=job, recordings=[most])
    found = means(Learned(following()), asked)[job.space.index(lost)]
    assert found == pytest.approx(there.log2_speedups()[lost], abs=0.5)


def test_rules_used_for_the_job_are_used_for_a_described_recording_too() -> None:
    here, _ = sized(512)
    there, _ = sized(2048)
    learned = Learned(replace(following(), factors=believing({"few_threads": 0.5}).factors))
    job = job_of(here, roles={"tile": "threads"})
    asked = Question(job=job, recordings=[there])
    bare = replace(asked, recordings=[replace(there, static_features={})])
    assert means(learned, asked) == means(learned, bare)


def test_recordings_of_other_knobs_change_nothing() -> None:
    other = renamed(recording(n=8192), PLAIN)
    assert set(other.outcomes) & set(recording().outcomes) == set()
    for asked in (question(recording(), roles=ROLES), describing(question(recording(), known=3))):
        assert list(ask(Learned(), replace(asked, recordings=[other]))) == list(ask(Learned(), asked))


def test_recordings_of_other_knobs_alone_are_no_knowledge() -> None:
    asked = replace(question(renamed(recording(), PLAIN)), recordings=[recording(n=8192)])
    assert all(isinstance(a, Abstention) for a in ask(Learned(), asked))


def test_a_model_that_says_nothing_is_no_witness_beside_recordings() -> None:
    here, elsewhere = renamed(recording(), PLAIN), renamed(recording(n=8192), PLAIN)
    asked = replace(question(here), recordings=[elsewhere])
    assert source(Learned(), asked) == "learned (1 recording from elsewhere)"
    true = elsewhere.log2_speedups()
    told = dict(zip(asked.job.space, means(Learned(), asked), strict=True))
    assert max(abs(told[c] - s) for c, s in true.items()) < 1e-6


def test_failures_in_other_jobs_raise_the_chance_of_failing() -> None:
    elsewhere = recording(n=8192)
    fails = columns_of(ask(Learned(), replace(question(recording(), roles=ROLES), recordings=[elsewhere]))).fail
    failed = np.array([isinstance(elsewhere.outcomes[c], Failure) for c in job_of(recording()).space])
    assert fails[failed].min() > 0.4 > fails[~failed].max()


def refused_at_another_size() -> tuple[Question, Config]:
    """A job and a recording of another size, where the job's best config was refused before it was described."""
    here, told = sized(512)
    there, _ = sized(2048)
    best = max(truth := here.log2_speedups(), key=truth.__getitem__)
    outcomes = {**there.outcomes, best: Failure(stage="launch", message="too large a block")}
    launches = {c: d for c, d in there.static_features.items() if c != best}
    job = replace(job_of(here), static_features=told)
    return Question(job=job, recordings=[replace(there, outcomes=outcomes, static_features=launches)]), best


def test_a_config_refused_at_another_size_is_not_taken_to_be_slow() -> None:
    asked, best = refused_at_another_size()
    columns = columns_of(ask(Learned(following()), asked))
    place = asked.job.space.index(best)
    assert columns.mean[place] > np.median(columns.mean) + 2.0
    assert columns.fail[place] < 0.1


def test_a_config_refused_here_likely_fails_though_it_ran_at_another_size() -> None:
    asked, _ = refused_at_another_size()
    recorded = asked.recordings[0]
    lost = list(recorded.static_features)[3]
    told = [{} if c == lost else d for c, d in zip(asked.job.space, asked.job.static_features, strict=True)]
    fails = columns_of(ask(Learned(following()), replace(asked, job=replace(asked.job, static_features=told)))).fail
    assert isinstance(recorded.outcomes[lost], Measurement)
    assert fails[asked.job.space.index(lost)] > 0.9


def test_outcomes_that_continue_a_trend_over_sizes_move_every_forecast() -> None:
    space = Space([{"way": f"w{i}"} for i in range(12)])
    told = [{"us_bound": 8.0, "threads": 64.0} for _ in space]

    def at(n: int) -> Recording:
        """From each size to the next, every third config keeps its time, the others take an octave and two longer."""
        sizes = math.log2(n / 1024)
        return Recording(
            workload=workload(n),
            hardware=HERE,
            toolchain=recording().toolchain,
            default=space[0],
            outcomes={c: measurement(100.0 * 2.0 ** (sizes * (i % 3) + i % 2)) for i, c in enumerate(space)},
            static_features=dict(zip(space, told, strict=True)),
        )

    here = at(4096)
    job = replace(job_of(here), static_features=told)
    asked = Question(job=job, outcomes=dict(list(here.outcomes.items())[:2]), recordings=[at(1024), at(2048)])
    found, true = means(Learned(following()), asked), here.log2_speedups()
    # Alone, the nearest one misses 2.
    assert max(abs(mean - true[c]) for c, mean in zip(space, found, strict=True)) < 0.6


# What it bears ----------------------------------------------------------------------------------------------------------


def odd_questions() -> dict[str, Question]:
    whole, broken = recording(), Failure(stage="launch", message="no")
    plain = question(whole, known=5, roles=ROLES)
    job, space = plain.job, plain.job.space
    told = described(space)
    alone = Space([space.default])
    return {
        "default failed": replace(plain, outcomes={space.default: broken}),
        "all failed": replace(plain, outcomes=dict.fromkeys(list(space)[:9], broken)),
        "default unknown": replace(plain, outcomes={space[3]: whole.outcomes[space[3]]}),
        "default not described": replace(plain, job=replace(job, static_features=[{}, *told[1:]])),
        "nothing but the default described": replace(plain, job=replace(job, static_features=[told[0], *[{}] * 83])),
        "zeros": replace(plain, job=replace(job, static_features=[dict.fromkeys(d, 0.0) for d in told])),
        "strange numbers": replace(
            plain, job=replace(job, static_features=[{"us_bound": 1e300, "threads": -1.0}] * 84)
        ),
        "names nobody knows": replace(plain, job=replace(job, static_features=[{"mood": 3.0}] * 84)),
        "outcomes of other configs": replace(plain, outcomes={Config({"z": 1}): measurement(3.0)}),
        "a recording in which nothing ran": replace(
            plain, recordings=[replace(whole, outcomes=dict.fromkeys(whole.outcomes, broken))]
        ),
        "a recording without the default": replace(
            plain, recordings=[replace(whole, outcomes=dict(list(whole.outcomes.items())[40:]))]
        ),
        "a space of one": Question(job=replace(job, space=alone), recordings=[whole]),
        "a described space of one": Question(job=replace(job, space=alone, static_features=told[:1])),
    }


@pytest.mark.parametrize("what", odd_questions())
def test_forecasts_are_finite_numbers_whatever_the_features(what: str) -> None:
    asked = odd_questions()[what]
    found = columns_of(ask(Learned(), asked))
    for column in (found.mean, found.sigma, found.fail):
        assert np.isfinite(column).all()
    assert (found.sigma > 0).all()
    assert ((found.fail >= 0) & (found.fail <= 1)).all()


def test_ten_thousand_described_configs_are_forecast() -> None:
    space = Space.grid({"block": [2**i for i in range(10)], "tile": list(range(1, 101)), "unroll": list(range(1, 11))})
    job = replace(job_of(recording()), space=space, static_features=described(space))
    outcomes = {c: measurement(10.0 + i) for i, c in enumerate(space[::1000])}
    answer = ask(Learned(), Question(job=job, outcomes=outcomes))
    assert len(answer) == 10_000
    assert np.isfinite(columns_of(answer).mean).all()


def test_two_jobs_of_one_space_may_give_its_knobs_other_roles() -> None:
    learned = Learned()
    for roles in (ROLES, {"block": "algorithm", "tile": "algorithm"}, {"tile": "threads"}):
        assert len(ask(learned, question(recording(), known=9, roles=roles))) == 84


def test_more_outcomes_make_a_session_forecast_again() -> None:
    whole = recording()
    asked = question(whole, known=4, roles=ROLES)
    growing = dict(asked.outcomes)
    session = Learned().start(asked.context)
    before = list(session.predict(growing, {}))
    config = next(c for c, o in whole.outcomes.items() if c not in growing and isinstance(o, Measurement))
    growing[config] = whole.outcomes[config]
    after = session.predict(growing, {})
    assert list(after) != before
    assert list(after) == list(ask(Learned(), replace(asked, outcomes=growing)))


# A shipped model that cannot be read ------------------------------------------------------------------------------------


@pytest.fixture
def broken_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "prior.json"
    path.write_text("{")
    monkeypatch.setattr(priors, "SHIPPED", path)
    priors._shipped.cache_clear()
    yield path
    priors._shipped.cache_clear()


def test_a_blend_continues_without_a_broken_shipped_model_and_warns_once(
    broken_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    blend = Blend([History(), Learned()])
    for known in (4, 5, 6):
        asked = question(recording(), known=known, roles=ROLES)
        assert means(blend, asked) == means(History(), asked)
    (warning,) = caplog.records
    assert str(broken_model) in warning.getMessage()
    assert "make fit" in warning.getMessage()
    assert blend.fitted_on == ()


def test_a_model_that_cannot_be_read_is_read_once(broken_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    real = priors.read_prior
    monkeypatch.setattr(priors, "read_prior", lambda path: (read.append(path), real(path))[1])
    for _ in range(3):
        with pytest.raises(priors.InvalidInputError, match="make fit"):
            ask(Learned(), question(recording(), roles=ROLES))
    assert read == [broken_model]
