"""Knob effects are true: planted ones are found with their conditions, noise tells nothing, recordings give theirs."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import HERE, measurement, workload

from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Job, Recording
from forecast_autotune.core.knob_effect import Condition, KnobEffect
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Program
from forecast_autotune.evaluation.traces import read_trace
from forecast_autotune.features.knob_effects import fitting, key_numbers, mine_knob_effects

TOOLCHAIN = Toolchain(versions={"nvcc": "13.0"})
TRACES = Path(__file__).parents[2] / "calibration" / "traces"
GRID = {"warps": (2, 4), "stages": (2, 3), "block": (16, 32, 64), "order": (0, 1)}


def recorded(
    log2_us: Callable[..., float | str],
    key: Mapping[str, object] | None = None,
    knobs: Mapping[str, tuple[Any, ...]] = GRID,
    *,
    noise: float = 0.0,
    **changes: Any,
) -> Recording:
    """Every config of a grid, each with the time that a function of key and knobs gives it, or a failure with its words."""
    key = {"n": 4096} if key is None else key
    rng = random.Random(str(key))
    outcomes: dict[Config, Outcome] = {}
    for values in itertools.product(*knobs.values()):
        config = Config(dict(zip(knobs, values, strict=True)))
        found = log2_us(key, config)
        outcomes[config] = (
            Failure(stage="launch", message=found)
            if isinstance(found, str)
            else measurement(100 * 2 ** (found + rng.gauss(0, noise)), spread=4 * noise + 1e-4)
        )
    return Recording(
        workload=replace(workload(), key=key),
        **{"hardware": HERE, "toolchain": TOOLCHAIN, **changes},
        default=next(iter(outcomes)),
        outcomes=outcomes,
    )


def of(effects: list[KnobEffect], change: str) -> list[KnobEffect]:
    return [effect for effect in effects if effect.change == change]


def job_for(recording: Recording, space: Space | None = None) -> Job:
    return Job(
        workload=recording.workload,
        space=space or Space(recording.outcomes),
        hardware=recording.hardware,
        toolchain=recording.toolchain,
    )


# Planted ----------------------------------------------------------------------------------------------------------------


def test_a_planted_gain_is_reported_once_in_the_direction_that_helps() -> None:
    effects = mine_knob_effects([recorded(lambda _, c: -0.5 * (c["stages"] == 2))])
    (found,) = of(effects, "stages 3 -> 2")
    assert (found.tried, found.faster, found.conditions, found.failures) == (12, 12, (), {})
    assert found.speedup == pytest.approx(2**0.5)
    assert of(effects, "stages 2 -> 3") == []
    assert effects[0] == found
    assert str(found) == "stages 3 -> 2, in bowl (cuda), on A (80 SMs): 1.41x, faster in 12 of 12"


def test_a_threshold_of_the_key_is_found_where_it_was_planted() -> None:
    def log2_us(key: Mapping[str, Any], config: Config) -> float:
        gain = 0.3 if key["n"] >= 4096 else -0.2
        return 0.4 * config["warps"] - gain * (config["stages"] == 3)

    sizes = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    keys = [{"n": n, "m": 1000 + (i * 5) % 8} for i, n in enumerate(sizes)]
    effects = mine_knob_effects([recorded(log2_us, key, noise=0.01) for key in keys])
    (above,) = of(effects, "stages 2 -> 3")
    (below,) = of(effects, "stages 3 -> 2")
    assert [str(c) for c in above.conditions] == ["n >= 4096"]
    assert [str(c) for c in below.conditions] == ["n <= 2048"]
    assert above.speedup == pytest.approx(2**0.3, rel=0.01)
    assert below.speedup == pytest.approx(2**0.2, rel=0.01)
    assert [s.conditions for s in of(effects, "warps 4 -> 2")] == [()]


def test_an_extent_of_a_tensor_is_named_as_one_would_write_it() -> None:
    def key(n: int) -> dict[str, object]:
        return {"x": {"dtype": "float16", "shape": [64, n], "stride": [n, 1]}, "causal": True}

    effects = mine_knob_effects(
        [
            recorded(lambda k, c: (k["x"]["shape"][1] >= 2000) * 0.5 * (c["warps"] == 4), key(n), noise=0.01)
            for n in (500, 1000, 1500, 2000, 3000, 4000)
        ]
    )
    assert {tuple(map(str, s.conditions)) for s in effects if s.knob == "warps"} == {
        ("x.shape[1] >= 2000",),
        ("x.shape[1] <= 1500",),
    }
    assert key_numbers(key(500)) == {"x.shape[0]": 64, "x.shape[1]": 500}


def test_another_knobs_value_is_a_condition_and_variants_are_never_mixed() -> None:
    knobs = {"variant": ("plain", "split_k"), **GRID}

    def log2_us(_: object, config: Config) -> float:
        split = config["variant"] == "split_k"
        return 3.0 * split - (0.4 if split else 0.0) * (config["stages"] == 3)

    effects = mine_knob_effects([recorded(log2_us, knobs=knobs)])
    found = {str(s.conditions[0]): s for s in effects if s.knob == "stages"}
    assert set(found) == {"variant = plain", "variant = split_k"}
    assert found["variant = split_k"].speedup == pytest.approx(2**0.4)
    assert found["variant = plain"].speedup == pytest.approx(1.0)
    assert "variant" not in {s.knob for s in effects}


def test_failures_are_split_by_their_conditions_and_keep_their_first_words() -> None:
    def log2_us(_: object, config: Config) -> float | str:
        if config["block"] == 64 and config["stages"] == 3:
            return f"OutOfResources: out of resource: shared memory, Required: {config['warps']}48, Hardware limit: 9"
        return -0.1 * config["stages"]

    effects = mine_knob_effects([recorded(log2_us, {"n": n}, {**GRID, "pad": (0, 1)}) for n in (1, 2)])
    (runs,) = [s for s in of(effects, "stages 2 -> 3") if not s.failures]
    (fails,) = [s for s in of(effects, "stages 2 -> 3") if s.failures]
    assert [str(c) for c in runs.conditions] == ["block <= 32"]
    assert runs.speedup == pytest.approx(2**0.1)
    assert [str(c) for c in fails.conditions] == ["block = 64"]
    assert (fails.tried, fails.faster, fails.speedup) == (16, 0, None)
    assert fails.failures == {"launch: out of resource: shared memory": 16}
    assert str(fails).endswith("never ran; launch: out of resource: shared memory in 16")


def test_noise_has_no_conditions_and_no_gains() -> None:
    recordings = [recorded(lambda *_: 0.0, {"n": 2**i, "m": 97 * i}, noise=0.01) for i in range(8, 16)]
    effects = mine_knob_effects(recordings)
    assert len(effects) == 1 + 1 + 3 + 1
    assert {s.conditions for s in effects} == {()}
    assert all(s.speedup is not None and abs(math.log2(s.speedup)) < 0.005 for s in effects)
    assert sum(s.faster for s in effects) < 0.08 * sum(s.tried for s in effects)


def test_workloads_differing_by_chance_yield_hardly_any_condition() -> None:
    told = parted = 0
    for seed in range(20):
        rng = random.Random(seed)
        recordings = []
        for n in range(8):
            effect = {(k, v): rng.gauss(0, 0.4) for k, values in GRID.items() for v in values}
            recordings.append(
                recorded(lambda _, c, e=effect: sum(e[k, v] for k, v in c.knobs.items()), {"n": n, "m": n * 5 % 8})
            )
        changes = {(s.knob, *sorted((s.before, s.after)), bool(s.conditions)) for s in mine_knob_effects(recordings)}
        told += len(changes)
        parted += sum(conditioned for *_, conditioned in changes)
    assert told >= 120
    assert parted <= 6


# What counts ------------------------------------------------------------------------------------------------------------


def test_one_workload_with_many_pairs_does_not_outvote_others() -> None:
    many = recorded(lambda _, c: -1.0 * (c["stages"] == 3), {"n": 1})
    few = {"stages": (2, 3)}
    others = [
        recorded(lambda *_: 0.0, {"n": n}, {k: v if k in few else v[:1] for k, v in GRID.items()}) for n in (2, 3)
    ]
    (found,) = of(mine_knob_effects([many, *others]), "stages 2 -> 3")
    assert found.tried == 14
    assert found.speedup == pytest.approx(2 ** (1 / 3))


def test_what_a_broken_file_may_hold_is_no_trouble() -> None:
    known = recorded(lambda *_: 0.0)
    times = dict(zip(known.outcomes, itertools.cycle((1e-300, 1e300)), strict=False))
    odd = {c: Measurement(samples_us=(us,)) for c, us in times.items()}
    assert mine_knob_effects([]) == []
    assert mine_knob_effects([replace(known, outcomes={})]) == []
    assert mine_knob_effects([replace(known, outcomes={Config({}): measurement(1.0)})]) == []
    assert {s.faster for s in mine_knob_effects([replace(known, outcomes=odd)]) if s.knob == "order"} == {12}
    told = mine_knob_effects([recorded(lambda *_: "x" * 100_000 + "A" * 100_000 + ": 7")])
    assert told == []
    shapes = {"x": {"shape": [None, "7", True, 2**80]}, "y": {"shape": 3}, "z": [1, 2], "w": 10**400}
    assert mine_knob_effects([replace(known, workload=replace(known.workload, key=shapes))])


def test_a_change_tried_less_than_three_times_is_not_reported() -> None:
    assert mine_knob_effects([recorded(lambda *_: 0.0, knobs={"a": (1, 2), "b": (1, 2)})]) == []


def test_pairs_are_of_one_recording_and_count_once_for_a_workload() -> None:
    here = recorded(lambda _, c: -0.5 * (c["stages"] == 3))
    again = recorded(lambda _, c: 5 - 0.1 * (c["stages"] == 3), toolchain=Toolchain(versions={"nvcc": "12.0"}))
    (found,) = of(mine_knob_effects([here, again]), "stages 2 -> 3")
    assert (found.tried, found.speedup) == (12, pytest.approx(2**0.5))
    halves = [
        replace(r, outcomes={c: o for c, o in r.outcomes.items() if c["stages"] == s})
        for r, s in ((here, 2), (again, 3))
    ]
    assert [s for s in mine_knob_effects(halves) if s.knob == "stages"] == []


def test_hardware_and_kinds_of_it_are_kept_apart() -> None:
    fast = recorded(lambda _, c: -0.5 * (c["stages"] == 3))
    slow = recorded(lambda _, c: -0.1 * (c["stages"] == 3), hardware=replace(HERE, kind="replay"))
    other = recorded(lambda *_: 0.0, hardware=Hardware(kind="cuda", name="B"))
    found = [
        (s.hardware, round(s.speedup or 0, 2)) for s in mine_knob_effects([fast, slow, other]) if s.knob == "stages"
    ]
    assert sorted(found) == [("A (80 SMs)", 1.07), ("A (80 SMs)", 1.41), ("B", 1.0)]


def test_what_may_have_failed_for_another_cause_is_no_case() -> None:
    known = recorded(lambda _, c: "no memory" if c["stages"] == 3 else 0.0)
    outcomes = {c: replace(o, transient=True) if isinstance(o, Failure) else o for c, o in known.outcomes.items()}
    assert [s.change for s in mine_knob_effects([known]) if s.knob == "stages"] == ["stages 2 -> 3"]
    assert [s for s in mine_knob_effects([replace(known, outcomes=outcomes)]) if s.knob == "stages"] == []


def test_1_and_true_are_two_values_and_recording_order_changes_nothing() -> None:
    knobs = {"flag": (1, True, None), "block": (16, 32, 64), "order": (0, 1)}
    recordings = [recorded(lambda _, c: 0.3 * (c["flag"] is True), {"n": n}, knobs) for n in (1, 2, 3)]
    effects = mine_knob_effects(recordings)
    assert {s.change for s in effects if s.knob == "flag"} == {"flag True -> 1", "flag True -> none", "flag none -> 1"}
    assert mine_knob_effects(recordings[::-1]) == effects


@pytest.mark.parametrize("knobs", [{"k": tuple(range(20_000))}, {k: tuple(range(5)) for k in "abcdef"}])
def test_twenty_thousand_outcomes_take_seconds(knobs: Mapping[str, tuple[int, ...]]) -> None:
    recording = recorded(lambda _, c: 0.1 * hash(c.text) / 2**63, knobs=knobs)
    began = time.process_time()
    mine_knob_effects([recording])
    assert time.process_time() - began < 20  # 1.4 s; what is quadratic takes minutes


# Fitting ----------------------------------------------------------------------------------------------------------------


def an_effect(**changes: Any) -> KnobEffect:
    values: dict[str, Any] = {
        "program": "bowl", "language": "cuda", "hardware": str(HERE), "knob": "stages", "before": 2, "after": 3,
        "tried": 9, "faster": 7, "speedup": 1.12,
    }  # fmt: skip
    return KnobEffect(**{**values, **changes})


JOB = job_for(recorded(lambda *_: 0.0))


def test_own_effects_come_first_then_same_hardware_then_the_most_telling() -> None:
    elsewhere = an_effect(hardware="B", speedup=9.0)
    small, large, rare = an_effect(speedup=1.1), an_effect(speedup=0.5), an_effect(speedup=0.5, tried=3)
    other = an_effect(program="other", speedup=16.0)
    assert fitting([other, elsewhere, small, rare, large], JOB) == [large, rare, small, elsewhere, other]
    assert fitting([small, large], JOB, most=1) == [large]


def test_knobs_take_turns() -> None:
    stages = [an_effect(speedup=s) for s in (4.0, 3.0)]
    warps = an_effect(knob="warps", before=2, after=4, speedup=1.2)
    assert fitting([*stages, warps], JOB) == [stages[0], warps, stages[1]]


@pytest.mark.parametrize(
    "changes",
    [
        {"language": "triton"},
        {"knob": "unroll"},
        {"after": 4},
        {"after": 3.0},
        {"conditions": (Condition(of="key", name="n", relation=">=", value=8192),)},
        {"conditions": (Condition(of="key", name="k", relation=">=", value=1),)},
        {"conditions": (Condition(of="knob", name="block", relation="=", value=128),)},
        {"program": "other", "knob": "order", "before": 0, "after": 1, "language": "c++"},
    ],
)
def test_what_a_job_has_not_does_not_fit_it(changes: dict[str, Any]) -> None:
    assert fitting([an_effect(**changes)], JOB) == []


def test_conditions_that_a_job_meets_fit() -> None:
    key = Condition(of="key", name="n", relation="<=", value=4096)
    knob = Condition(of="knob", name="block", relation=">=", value=64)
    effect = an_effect(conditions=(key, knob))
    assert fitting([effect], JOB) == [effect]


def test_other_programs_give_only_knobs_that_mean_the_same_everywhere() -> None:
    space = Space.grid({"stages": [2, 3], "fold": [0, 1]})
    job = replace(JOB, space=space)
    told, meant_here = an_effect(program="other"), an_effect(program="other", knob="fold", before=0, after=1)
    assert fitting([told, meant_here], job) == [told]
    assert fitting([replace(meant_here, program="bowl")], job) == [replace(meant_here, program="bowl")]
    assert fitting([told], replace(job, space=Space(space, roles={"stages": "unroll"}))) == []


# Measured on a GPU ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured() -> list[Recording]:
    return [read_trace(p) for name in ("matmul", "attention", "swiglu") for p in sorted(TRACES.glob(f"{name}.*.gz"))]


def test_three_of_the_measured_effects_agree_with_the_raw_numbers(measured: list[Recording]) -> None:
    effects = mine_knob_effects(measured)
    cases = [
        ("BM 16 -> 64", "swiglu", "", lambda key, c: True),
        ("num_warps 8 -> 4", "attention", "variant != split_keys", lambda key, c: c["variant"] != "split_keys"),
        (
            "BM 64 -> 128",
            "matmul",
            "BK <= 64, a.shape[0] >= 4096",
            lambda key, c: c["BK"] <= 64 and key["a"]["shape"][0] >= 4096,
        ),
    ]
    for change, name, conditions, holds in cases:
        (effect,) = [
            s
            for s in of(effects, change)
            if s.program == name and ", ".join(sorted(map(str, s.conditions))) == conditions
        ]
        tried, faster, means = 0, 0, []
        for recording in measured:
            if recording.workload.program.name != name:
                continue
            logs = []
            for before, a in recording.outcomes.items():
                after = Config({**before.knobs, effect.knob: effect.after})
                b = recording.outcomes.get(after)
                if before[effect.knob] != effect.before or b is None or not holds(recording.workload.key, before):
                    continue
                assert isinstance(a, Measurement)
                assert isinstance(b, Measurement)
                tried += 1
                noise = max(0.005, 2 * math.hypot(a.relative_error, b.relative_error))
                faster += statistics.median(a.samples_us) / statistics.median(b.samples_us) > 1 + noise
                logs.append(math.log(statistics.median(a.samples_us) / statistics.median(b.samples_us)))
            if logs:
                means.append(statistics.mean(logs))
        assert (effect.tried, effect.faster, dict(effect.failures)) == (tried, faster, {})
        assert effect.speedup == pytest.approx(math.exp(statistics.mean(means)))
        assert tried >= 15


def test_effects_of_a_measured_program_bear_on_its_own_job(measured: list[Recording]) -> None:
    recording = next(r for r in measured if r.workload.program.name == "matmul")
    found = fitting(mine_knob_effects(measured), job_for(recording))
    assert len(found) == 12
    assert {s.program for s in found} == {"matmul"}
    assert {"BM", "BN", "BK", "num_stages", "num_warps"} <= {s.knob for s in found}


def test_a_programs_name_may_be_that_of_two_languages() -> None:
    cuda = recorded(lambda _, c: -0.5 * (c["stages"] == 3))
    program = Program(name="bowl", language="c++", source="")
    plain = replace(cuda, workload=replace(cuda.workload, program=program))
    assert sorted(s.language for s in of(mine_knob_effects([cuda, plain]), "stages 2 -> 3")) == ["c++", "cuda"]
