from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from asking import Question, ask, ask_with_density
from contracts.surrogate_contract import SurrogateContract
from recorded import HERE, ROLES, job_of, measurement, question, recording

from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work
from forecast_autotune.surrogates.gaussian_process import DATA
from forecast_autotune.surrogates.roofline import Roofline, least_us


class TestRoofline(SurrogateContract):
    def make(self) -> Roofline:
        return Roofline()

    def answerable(self) -> Question:
        return question(recording(), known=1, roles=ROLES, work=Work(flops=1e9, bytes=1e8))


def forecasts(asked: Question) -> list[Forecast]:
    answer = ask(Roofline(), asked)
    assert all(isinstance(a, Forecast) for a in answer)
    return [a for a in answer if isinstance(a, Forecast)]


def with_default_at(median_us: float) -> Question:
    """1e8 bytes at 1000 GB/s take at least 100 us."""
    asked = question(recording(), work=Work(flops=1e6, bytes=1e8))
    return replace(asked, outcomes={asked.job.space.default: measurement(median_us)})


def test_the_bound_is_the_slower_of_computing_and_moving() -> None:
    job = job_of(recording(), work=Work(flops=4e9, bytes=1e8))
    assert least_us(job) == 4e9 / 20_000e9 * 1e6
    assert least_us(replace(job, work=Work(flops=1.0, bytes=1e8))) == 100.0
    assert least_us(replace(job, work=None)) is None
    assert least_us(replace(job, hardware=Hardware(kind="cuda", name="no sheet"))) is None


def test_little_can_be_gained_over_a_default_near_the_roofline() -> None:
    near, far = forecasts(with_default_at(104.0)), forecasts(with_default_at(3000.0))
    assert max(f.chance_above(0.1) for f in near) < 0.2
    assert min(f.chance_above(0.1) for f in far) > 0.4
    assert max(f.expected_gain(0.0) for f in near) < 0.25 * min(f.expected_gain(0.0) for f in far)


def test_a_default_faster_than_the_roofline_is_no_error() -> None:
    assert all(f.chance_above(0.1) < 0.2 for f in forecasts(with_default_at(50.0)))


def test_it_is_always_unsure_where_the_roofline_is_far() -> None:
    assert all(f.sigma >= 0.8 for f in forecasts(question(recording(), roles=ROLES)))


def test_blocks_smaller_than_a_warp_are_expected_to_be_slower() -> None:
    asked = question(recording(), roles={"block": "threads"})
    by_block: dict[object, list[float]] = {}
    for config, forecast in zip(asked.job.space, forecasts(asked), strict=True):
        by_block.setdefault(config["block"], []).append(forecast.mean)
    assert statistics.fmean(by_block[16]) < statistics.fmean(by_block[128])


def test_tiles_beyond_the_shared_memory_are_suspect() -> None:
    configs = [Config({"M": m, "N": m, "K": 64, "num_warps": 4}) for m in (32, 64, 512)]
    roles = {"M": "tile", "N": "tile", "K": "tile", "num_warps": "threads"}
    job = replace(job_of(recording()), space=Space(configs, roles=roles), hardware=HERE)
    fails = [f.fail_probability for f in forecasts(Question(job=job))]
    assert fails[0] == 0.0
    assert fails[2] > 0.5


def test_every_core_of_a_cpu_is_worth_a_thread() -> None:
    space = Space([{"threads": n} for n in (1, 4, 16, 64)], roles={"threads": "threads"})
    job = replace(job_of(recording()), space=space, hardware=Hardware(kind="cpu", name="c", units=16))
    means = [f.mean for f in forecasts(Question(job=job))]
    assert means.index(max(means)) == 2


def test_it_abstains_without_roles_and_work() -> None:
    for asked in (question(recording(), known=5), question(recording(), work=Work(flops=1e9, bytes=1e9))):
        assert all(isinstance(a, Abstention) for a in ask(Roofline(), asked))


def test_a_source_that_tells_nothing_is_none() -> None:
    job = replace(job_of(recording()), static_features=[{}] * len(recording().outcomes), work=None)
    assert not job.space.roles
    assert all(isinstance(a, Abstention) for a in ask(Roofline(), Question(job=job)))


def test_what_the_source_says_goes_before_what_roles_suggest() -> None:
    space = Space([{"BLOCK": n} for n in (32, 64, 128)], roles={"BLOCK": "tile"})
    described = (
        {"us_bound": 100.0, "threads": 128.0},
        {"us_bound": 50.0, "threads": 128.0},
        {"us_bound": 50.0, "threads": 128.0, "shared_share": 1.2},
    )
    job = replace(job_of(recording()), space=space, static_features=described)
    default, half, too_large = forecasts(Question(job=job))
    assert default.mean == 0.0
    assert half.mean == too_large.mean > 0.4
    assert half.fail_probability < 0.1 < 0.9 < too_large.fail_probability
    assert "kernel source" in half.source


def test_threads_without_work_and_registers_that_spill_cost() -> None:
    space = Space([{"warps": n} for n in (4, 8, 16)])
    plain = {"us_bound": 10.0, "threads": 256.0, "blocks_per_unit": 8.0, "per_thread": 8.0, "registers": 60.0}
    described = (plain, {**plain, "per_thread": 0.25}, {**plain, "registers": 400.0})
    job = replace(job_of(recording()), space=space, static_features=described)
    _, idle, spilling = forecasts(Question(job=job))
    assert idle.mean < -0.2
    assert spilling.mean < -0.5


def test_a_source_that_gives_no_bound_leaves_the_roles() -> None:
    space = Space([{"BLOCK": 32}, {"BLOCK": 64}], roles={"BLOCK": "tile"})
    job = replace(job_of(recording()), space=space, static_features=({"us_bound": 5.0}, {}))
    assert all("knob roles" in f.source for f in forecasts(Question(job=job)))


def test_skill_over_very_many_outcomes_uses_as_many_as_a_gaussian_process() -> None:
    space = Space.grid({"a": list(range(30)), "b": list(range(30))}, roles={"a": "tile"})
    job = replace(job_of(recording()), space=space, static_features=(), work=None)

    def density(count: int) -> float:
        outcomes = {config: measurement(10.0) for config in space[:count]}
        _, density = ask_with_density(Roofline(), Question(job=job, outcomes=outcomes))
        assert density is not None
        return density

    assert density(800) == pytest.approx(density(DATA), rel=0.2)
    assert density(DATA // 2) == pytest.approx(density(DATA) / 2, rel=0.2)
