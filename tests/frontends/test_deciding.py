"""What the front doors share, with nothing behind them that compiles or measures."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asking import Question, ask
from contracts.store_contract import HARDWARE, SPACE, TOOLCHAIN, a_decision, a_job, a_measurement
from moe import layer_job
from recorded import job_of, measurement, recording
from talking import Talking, knob, named_by_settings, sure_of
from toy_prior import following

from forecast_autotune.core.budget import Budget, BudgetLimits, TotalSpent
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.job import Job, Recording
from forecast_autotune.core.knob_effect import KnobEffect
from forecast_autotune.core.space import Space
from forecast_autotune.distributed.job_channel import JobChannel
from forecast_autotune.distributed.work_sharing import SqliteWorkSharing
from forecast_autotune.errors import CacheMissError, TuningWarning
from forecast_autotune.frontends import deciding, informed
from forecast_autotune.frontends.request import Request, make_request
from forecast_autotune.language.model import ModelError
from forecast_autotune.language.prompt import Prompt
from forecast_autotune.measure.replay import Replay
from forecast_autotune.protocols import SurrogateSession
from forecast_autotune.settings import Settings
from forecast_autotune.store.config_files import VLLM
from forecast_autotune.store.config_files.fused_moe import ROW
from forecast_autotune.store.config_files.imported import import_files
from forecast_autotune.store.decisions import keep_decision
from forecast_autotune.store.outcomes import keep_outcome
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.rows import StoredOutcome, TuningKey
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.store.tuning_keys import keep_tuning_key
from forecast_autotune.surrogates import prior
from forecast_autotune.surrogates.base import BaseSession, StatelessSurrogate, WrappedSurrogate
from forecast_autotune.surrogates.blend import Blend
from forecast_autotune.surrogates.by_name import make_surrogate
from forecast_autotune.surrogates.history import History


def decide(*arguments: Any, **more: Any) -> Decision:
    """A decision that holds."""
    resolution = deciding.decide(*arguments, **more)
    assert resolution.retry_after_s is None
    return resolution.decision


STRICT = Request(settings=Settings(mode="strict"), budget=BudgetLimits.parse("16"), surrogate=History())


def test_mode_strict_takes_a_stored_decision_only_if_the_space_holds_it() -> None:
    job, idle = a_job(), object()
    acting: Any = {"compiler": idle, "measurer": idle}
    store = SqliteStore.in_memory()
    store.record_decision(job, a_decision(job, Config({"BLOCK": 99})))
    with pytest.raises(CacheMissError, match="no decision for"):
        decide(job, STRICT, store=store, **acting)
    with pytest.raises(CacheMissError, match=rf"under another toolchain .* {TUNE}\.$"):
        decide(a_job(toolchain=NEWER), STRICT, store=store, **acting)
    store.record_decision(job, a_decision(job, job.space[1]))
    assert decide(job, STRICT, store=store, **acting).config == job.space[1]


TUNE, ANY = "Tune it once with FORECAST_AUTOTUNE_MODE=tune", "FORECAST_AUTOTUNE_TOOLCHAIN=any"
NEWER = Toolchain(versions={**TOOLCHAIN.versions, "torch": "2.14.0"})
LARGER = Space.grid({"BLOCK": [64, 128, 256, 512], "num_warps": [2, 4]})
OF_SAME_SIZE = Space.grid({"BLOCK": [64, 128, 512], "num_warps": [2, 4]})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"toolchain": NEWER},
            f"it was decided under another toolchain (torch 2.13.0, here 2.14.0). {TUNE}, or take that decision with {ANY}.",
        ),
        ({"space": LARGER}, f"it was decided in another space (6 configs then, 8 now). {TUNE}."),
        ({"space": OF_SAME_SIZE}, f"it was decided in another space (other configs). {TUNE}."),
        ({"source": "def rmsnorm(): pass"}, f"it was decided in another version of its source. {TUNE}."),
        (
            {"hardware": replace(HARDWARE, name="NVIDIA H100")},
            f"no decision for rmsnorm(n=4096) on NVIDIA H100 (132 SMs); it was decided on NVIDIA H200 (132 SMs). {TUNE}.",
        ),
        ({"hardware": replace(HARDWARE, memory_gib=80)}, "on other hardware of that name (memory_gib 141, here 80)"),
        ({"hardware": replace(HARDWARE, power_limit_w=300)}, "under a power limit of 700 W, here 300 W"),
        (
            {"hardware": replace(HARDWARE, power_limit_w=300), "toolchain": NEWER},
            f"under a power limit of 700 W, here 300 W, under another toolchain (torch 2.13.0, here 2.14.0). {TUNE}.",
        ),
        (
            {"hardware": replace(HARDWARE, power_limit_w=650), "toolchain": NEWER},
            f"it was decided under another toolchain (torch 2.13.0, here 2.14.0). {TUNE}, or take that decision with {ANY}.",
        ),
        (
            {"toolchain": NEWER, "space": LARGER},
            f"in another space (6 configs then, 8 now), under another toolchain (torch 2.13.0, here 2.14.0). {TUNE}.",
        ),
        (
            {"key": {"n": 5}, "toolchain": NEWER},
            "the nearest key known is rmsnorm(n=4096), measured under another toolchain",
        ),
        ({"key": {"n": 5}}, f"the nearest key known is rmsnorm(n=4096). {TUNE}."),
        ({"key": {"n": 4096.0}}, f"the nearest key known is rmsnorm(n=4096). {TUNE}."),
        ({"name": "another"}, f"no decision for another(n=4096) on NVIDIA H200 (132 SMs). {TUNE}."),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("packed", [False, True])
def test_mode_strict_names_what_the_closest_decision_differs_in(
    tmp_path: Path, packed: bool, changes: dict[str, Any], said: str
) -> None:
    idle: Any = object()
    with SqliteStore(tmp_path / "tuned") as store:
        for other in (a_job(), a_job(key={"n": 1}, source="older")):
            store.record_outcome(other, "run", SPACE[0], a_measurement(), None)
            store.record_decision(other, a_decision(other))
    StoreFile(tmp_path / "tuned").export(tmp_path / "pack.jsonl")
    asked = SqliteStore(None, packs=[tmp_path / "pack.jsonl"]) if packed else SqliteStore(tmp_path / "tuned")
    with asked, pytest.raises(CacheMissError) as missed:
        decide(a_job(**changes), STRICT, store=asked, compiler=idle, measurer=idle)
    assert said in str(missed.value)


def test_mode_strict_shows_the_flags_that_long_lists_differ_in() -> None:
    idle: Any = object()
    store = SqliteStore.in_memory()
    then, now = (
        a_job(toolchain=Toolchain(versions={"flags": flags(last)})) for last in ("-ffast-math", "-fno-math-errno")
    )
    store.record_decision(then, a_decision(then))
    with pytest.raises(CacheMissError, match=r"\(flags … -ffast-math, here … -fno-math-errno\)"):
        decide(now, STRICT, store=store, compiler=idle, measurer=idle)


def flags(last: str) -> str:
    return f'extra_cflags=["-O3","-march=native","-funroll-loops","-fno-semantic-interposition","{last}"]'


def test_mode_strict_names_the_nearest_of_thousands_of_keys(tmp_path: Path) -> None:
    idle: Any = object()

    def fill(connection: Any) -> None:
        for n in range(1_500):
            job = a_job(key={"n": n, "m": 4096})
            tuning_key = TuningKey.of(job)
            keep_tuning_key(connection, tuning_key, 1e9)
            keep_outcome(connection, tuning_key, outcome)
            keep_decision(connection, tuning_key, a_decision(job, decided_at=1.8e9 + n))

    outcome = StoredOutcome(
        config=SPACE[0], outcome=a_measurement(), forecast=None, default=SPACE.default, run="run", recorded_at=1e9
    )
    with SqliteStore(tmp_path) as store:
        store.connection.write(fill)
        with pytest.raises(CacheMissError, match=r"the nearest key known is rmsnorm\(n=7, m=4096\)\. Tune"):
            decide(a_job(key={"n": 7, "m": 4097}), STRICT, store=store, compiler=idle, measurer=idle)
        edited = a_job(key={"n": 3, "m": 4096}, source="edited")
        with pytest.raises(CacheMissError, match="it was decided in another version of its source"):
            decide(edited, STRICT, store=store, compiler=idle, measurer=idle)
        assert [each.tuning_key.workload.key["n"] for each in store.related_decisions(edited)] == [3]


def test_without_measuring_a_decision_for_other_constexprs_is_taken(tmp_path: Path) -> None:
    recorded = recording()

    def with_size(size: int) -> Job:
        key = {"n": 1, "given constexprs": {"D": size}}
        return replace(job_of(recorded), workload=replace(recorded.workload, key=key))

    def decided(job: Job, mode: str, **more: Any) -> Decision:
        replay = Replay(recorded)
        request = Request(settings=Settings(mode=mode, dir=tmp_path), surrogate=History(), **more)
        return decide(job, request, compiler=replay, measurer=replay, store=store)

    with SqliteStore(tmp_path) as store:
        measures, nothing = {"budget": BudgetLimits.parse("3")}, {"budget": BudgetLimits.parse("0")}
        first = decided(with_size(64), "tune", **measures)
        assert first.tried == 3
        for mode, more in (("strict", measures), ("cached", nothing), ("tune", nothing)):
            taken = decided(with_size(512), mode, **more)
            assert (taken.config, taken.rests_on_outcomes, taken.config_us) == (first.config, False, None)
            assert "decided for D=64" in taken.reason
        assert [p.tuning_key.workload.constexprs["D"] for p in StoreFile(tmp_path).pending()] == [512], "it has no own"
        of_one_call = decided(with_size(512), "tune", **nothing, unmeasured="a graph is captured")
        assert of_one_call.tried == 0, "another call will have the key tuned"
        own = decided(with_size(512), "tune", **measures)
        assert own.run != first.run
        assert decided(with_size(64), "strict", **measures) == first, "its own goes first"
        assert decided(with_size(512), "strict", **measures) == own


def test_what_a_config_file_names_is_tried_before_what_is_forecast(tmp_path: Path) -> None:
    job = layer_job({"M": 8})
    best = job.space[4]
    outcomes = {config: measurement(50.0 if config == best else 100.0) for config in job.space}
    whole = Recording(
        workload=job.workload, hardware=job.hardware, toolchain=job.toolchain, default=job.space[0], outcomes=outcomes
    )
    rows = {"8": {name: best[name] for name in ROW}}
    file = tmp_path / "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json"
    file.write_text(json.dumps(rows))
    for folder, tried in (("without", False), ("with", True)):
        if folder == "with":
            import_files(tmp_path / folder, VLLM, [file])
        replay = Replay(whole)
        request = Request(
            settings=Settings(dir=tmp_path / folder), budget=BudgetLimits.parse("2"), surrogate=_SecondIsBest()
        )
        with SqliteStore(tmp_path / folder) as store:
            decision = decide(job, request, compiler=replay, measurer=replay, store=store)
            assert (best in store.outcomes(job)) is tried
        assert decision.tried == 2
        assert decision.config == (best if tried else job.space[0])


class _SecondIsBest(StatelessSurrogate):
    """Forecasts the config after the default as the best."""

    name = "second"

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
        space = context.job.space
        return [Forecast.normal(1.0 if config == space[1] else -1.0, 0.1, source=self.name) for config in space]


def test_a_broken_shipped_model_is_reported_once_and_tuning_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "prior.json"
    broken.write_text('{"schema": "forecast_autotune.prior", "version": 0}')
    monkeypatch.setattr(prior, "SHIPPED", broken)
    prior._shipped.cache_clear()
    recorded = recording()
    request = Request(settings=Settings(), budget=BudgetLimits.parse("6"), surrogate=make_surrogate("auto"))
    try:
        with SqliteStore(tmp_path / "store") as store:
            for n in (1, 2, 3):
                replay = Replay(recorded)
                job = replace(job_of(recorded), workload=replace(recorded.workload, key={"n": n}))
                assert decide(job, request, compiler=replay, measurer=replay, store=store).tried == 6
    finally:
        prior._shipped.cache_clear()
    (warning,) = [text for text in warnings(caplog) if "surrogate learned" in text]
    assert str(broken) in warning
    assert "make fit" in warning


# A model that is held ---------------------------------------------------------------------------------------------------


def forecasting(held: str, tmp_path: Path) -> tuple[Decision, Decision]:
    """What a held model's forecasts come to where nothing is measured, and where 4 configs are."""
    recorded = recording()
    replay = Replay(recorded)
    acting: Any = {"compiler": replay, "measurer": replay, "store": SqliteStore.in_memory()}
    environment = {"FORECAST_AUTOTUNE_MODEL": held}
    unmeasured = make_request(None, default_budget="4", mode="forecast", environment=environment)
    return (
        decide(job_of(recorded), unmeasured, **acting),
        decide(job_of(recorded), make_request("4", default_budget="4", environment=environment), **acting),
    )


def test_a_decision_names_the_version_of_the_model_that_forecast(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(prior.prior_text(prior.shipped_prior(), card={"held": True}))
    expected = prior.read_prior(path).version
    assert [d.model for d in forecasting(str(path), tmp_path)] == [expected] * 2
    assert expected != prior.shipped_prior().version


def test_a_decision_names_no_model_that_had_nothing_to_say(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(prior.prior_text(following(), card={}))
    assert [d.model for d in forecasting(str(path), tmp_path)] == ["", ""]


@pytest.mark.parametrize("held", ["3-kernels-00000000", "no/such/model.json", __file__])
def test_no_other_model_answers_for_one_that_is_held_and_not_here(
    tmp_path: Path, held: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.warns(TuningWarning, match="FORECAST_AUTOTUNE_MODEL=.*run their first config"):
        unmeasured, tuned = forecasting(held, tmp_path)
    assert (unmeasured.config, unmeasured.basis) == (recording().default, "default")
    assert (tuned.tried, tuned.model) == (4, "")
    (warning,) = {r.getMessage() for r in caplog.records if r.levelno == logging.WARNING}
    assert f"FORECAST_AUTOTUNE_MODEL={held if '/' not in held else Path(held).absolute()}: " in warning


@pytest.mark.parametrize(("value", "expected"), [("auto", "blend"), ("history", "history"), ("", "roofline")])
def test_the_environment_overrides_a_surrogate_whether_name_or_object(value: str, expected: str) -> None:
    for given in ("roofline", make_surrogate("roofline")):
        environment = {"FORECAST_AUTOTUNE_SURROGATE": value}
        found = make_request(None, default_budget="16", surrogate=given, environment=environment)
        assert found.surrogate.name == expected


# Recalibration ----------------------------------------------------------------------------------------------------------


class TooSure(StatelessSurrogate):
    """Forecasts the same of every config, with a sigma far too small."""

    name = "too sure"

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
        return [Forecast.normal(0.0, 0.02, source=self.name)] * len(context.job.space)


class Stubborn(TooSure):
    recalibrate = False


def with_a_record(directory: Path) -> SqliteStore:
    """A store in which forecasts were wrong by ten sigmas, a hundred times."""
    store = SqliteStore(directory)
    for n in range(25):
        job = a_job(key={"n": n})
        store.record_outcome(job, "run", SPACE[0], a_measurement(10.0), None)
        for config in SPACE[1:5]:
            store.record_outcome(job, "run", config, a_measurement(20.0), Forecast.normal(0.0, 0.1, source="s"))
    return store


def stretches(store: SqliteStore, surrogate: TooSure, mode: str = "tune", budget: str = "4") -> set[float]:
    """By how much the forecasts were stretched that a decision was based on."""
    recorded = recording()
    replay = Replay(recorded)
    request = Request(settings=Settings(mode=mode), budget=BudgetLimits.parse(budget), surrogate=surrogate)
    seen: set[float] = set()
    wrapped = deciding.tune

    def watching(*arguments: Any, surrogate: Any, **rest: Any) -> Any:
        class Watched(WrappedSurrogate):
            def start(self, context: ForecastContext) -> SurrogateSession:
                session = super().start(context)

                class Session(BaseSession):
                    def predict(self, outcomes: Any, evidence: Any) -> Sequence[Forecast | Abstention]:
                        answer = session.predict(outcomes, evidence)
                        seen.update(f.sigma_scale for f in answer if isinstance(f, Forecast))
                        return answer

                return Session(context)

        return wrapped(*arguments, surrogate=Watched(surrogate), **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "tune", watching)
        decide(job_of(recorded), request, compiler=replay, measurer=replay, store=store)
    return seen


def test_live_forecasts_are_as_wide_as_the_stores_record_says(tmp_path: Path) -> None:
    with with_a_record(tmp_path) as store:
        (factor,) = stretches(store, TooSure())
        assert factor == 4.0
        recorded = {f.sigma_scale for f, _ in store.calibration_pairs("cuda") if f.source == "too sure"}
        assert recorded == {4.0}, "what was done to a forecast is kept with it"
        assert stretches(SqliteStore.in_memory(), TooSure()) == {1.0}


@pytest.mark.parametrize(("mode", "factor"), [("tune", 4.0), ("cached", 4.0), ("forecast", 1.0)])
def test_mode_forecast_is_the_only_one_whose_forecasts_no_log_changes(tmp_path: Path, mode: str, factor: float) -> None:
    with with_a_record(tmp_path) as store:
        assert stretches(store, TooSure(), mode, "0") == {factor}


def test_a_surrogate_that_says_so_is_left_alone(tmp_path: Path) -> None:
    with with_a_record(tmp_path) as store:
        assert stretches(store, Stubborn()) == {1.0}


def test_the_record_of_other_hardware_says_nothing(tmp_path: Path) -> None:
    with with_a_record(tmp_path) as store:
        request = Request(settings=Settings(), budget=BudgetLimits.parse("4"), surrogate=TooSure())
        asked = Question(job=a_job())
        for kind, factor in (("cuda", 4.0), ("cpu", 1.0), ("stub", 1.0)):
            (said, *_) = ask(informed._recalibrated(request.surrogate, store, kind), asked)
            assert isinstance(said, Forecast)
            assert said.sigma_scale == factor


def test_pairs_are_read_once_in_many_decisions_and_never_for_a_recall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    pairs = SqliteStore.calibration_pairs

    def counted(self: SqliteStore, kind: str) -> Any:
        reads.append(kind)
        return pairs(self, kind)

    monkeypatch.setattr(SqliteStore, "calibration_pairs", counted)
    monkeypatch.setattr(informed, "RECALIBRATE_EVERY", 3)
    recorded = recording()
    request = Request(settings=Settings(), budget=BudgetLimits.parse("4"), surrogate=TooSure())
    with with_a_record(tmp_path) as store:
        for n in range(4):
            job = job_of(recorded)
            job = replace(job, workload=replace(job.workload, key={"n": n}))
            for _ in range(2):  # the second time it is recalled
                replay = Replay(recorded)
                decide(job, request, compiler=replay, measurer=replay, store=store)
            assert reads == ["cuda"] * (1 + n // 3)
    assert len(StoreFile(tmp_path).decisions()) == 4


# Language models --------------------------------------------------------------------------------------------------------

SERVED = "http://127.0.0.1:9"


def programs() -> Recording:
    """The small recording as that of two programs: blocks up to 64 are one's, the larger the other's."""
    recorded = recording()

    def named(config: Config) -> Config:
        return Config({"variant": "small" if int(config["block"]) <= 64 else "large", **config.knobs})  # type: ignore[arg-type]

    return replace(
        recorded, default=named(recorded.default), outcomes={named(c): o for c, o in recorded.outcomes.items()}
    )


def large_is_fast(prompt: Prompt) -> tuple[float, ...]:
    return sure_of(7 if knob(prompt, "variant") == "large" else 2)


def tuned(
    store: SqliteStore, n: int = 4096, *, budget: str = "6", recorded: Recording | None = None, **settings: Any
) -> Decision:
    """A decision on the two programs, by what the settings name."""
    recorded = programs() if recorded is None else recorded
    replay = Replay(recorded)
    job = replace(job_of(recorded), workload=replace(recorded.workload, key={"n": n}))
    request = make_request(
        budget,
        default_budget="16",
        environment={f"FORECAST_AUTOTUNE_{k.upper()}": v for k, v in ({"surrogate": SERVED} | settings).items()},
    )
    return decide(job, request, compiler=replay, measurer=replay, store=store)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_language_model_named_by_the_settings_joins_the_other_surrogates(tmp_path: Path) -> None:
    with named_by_settings(Talking(large_is_fast)), SqliteStore(tmp_path) as store:
        tuned(store)
        (decision,) = StoreFile(tmp_path).decisions()
        touched = StoreFile(tmp_path).detail(decision).touched
    components = [{b.source for b in t.forecast.components} for t in touched if isinstance(t.forecast, Forecast)]
    assert components
    assert all("language_model" in said for said in components[1:])
    assert "language_model (a talking model" in " ".join(t.forecast.source for t in touched if t.forecast)


def test_where_nobody_else_knows_the_first_pick_is_the_models() -> None:
    recorded = programs()
    plain = {
        Config({"variant": c["variant"], "p": c["block"], "q": c["tile"], "r": c["padded"]}): o
        for c, o in recorded.outcomes.items()
    }
    with named_by_settings(Talking(large_is_fast)):
        store = SqliteStore.in_memory()
        nameless = replace(recorded, outcomes=plain, default=next(iter(plain)))
        tuned(store, budget="2", recorded=nameless)
        tried = list(store.outcomes(replace(job_of(nameless), workload=replace(recorded.workload, key={"n": 4096}))))
    assert [c["variant"] for c in tried] == ["small", "large"]


@pytest.mark.parametrize(
    "model",
    [
        Talking(large_is_fast, delay_s=0.02),
        Talking(large_is_fast, breaks_after=40),
        Talking(large_is_fast, ends_after=41),
        Talking(lambda _: (math.nan,) * 8),
        Talking(lambda _: ("A", None) * 4),  # type: ignore[arg-type, return-value]
        Talking(wrong=ModelError("nobody listens")),
        Talking(wrong=MemoryError()),
    ],
    ids=["slow", "breaks", "half", "nan", "garbage", "gone", "too large"],
)
def test_whatever_a_model_does_tuning_stores_a_decision_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, model: Talking
) -> None:
    began = time.monotonic()
    with named_by_settings(model), SqliteStore(tmp_path) as store:
        for n in (1, 2):
            decision = tuned(store, n, answer="logits,300ms")
            assert (decision.basis, decision.tried) == ("measured", 6)
            assert not model.under_way
    assert time.monotonic() - began < 30.0
    assert len(StoreFile(tmp_path).decisions()) == 2
    (warning,) = [text for text in warnings(caplog) if "language model" in text]
    assert warning.startswith("language model a talking model: ")


def test_another_process_asks_nothing_that_was_answered_before(tmp_path: Path) -> None:
    with named_by_settings(Talking(large_is_fast)) as model, SqliteStore(tmp_path) as store:
        tuned(store, budget="4")
        assert len(model.asked) == 83
    with named_by_settings(Talking(large_is_fast)) as model, SqliteStore(tmp_path) as store:
        assert tuned(store, budget="all").tried > 4
        assert model.opened == 1
        assert model.asked == []
        tuned(store, n=8192, budget="4")
        assert len(model.asked) == 83


def test_ctrl_c_ends_a_call_and_loses_no_answer(tmp_path: Path) -> None:
    with named_by_settings(Talking(large_is_fast, interrupt_after=50)) as model, SqliteStore(tmp_path) as store:
        with pytest.raises(KeyboardInterrupt):
            tuned(store)
        model.interrupt_after = -1
        tuned(store)
        assert len(model.asked) == 83


def test_mode_forecast_rests_on_the_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: object, **__: object) -> Any:
        raise AssertionError("the store was asked")

    with named_by_settings(Talking(large_is_fast)), SqliteStore(tmp_path) as store:
        tuned(store)
        for method in ("answers", "keep_answers", "knob_effects", "calibration_pairs"):
            monkeypatch.setattr(SqliteStore, method, touched)
    with named_by_settings(Talking(large_is_fast)) as model, SqliteStore(tmp_path / "other") as store:
        found = tuned(store, mode="forecast")
        assert (found.tried, found.forecast, len(model.asked)) == (0, 84, 83)
        assert found.basis == "default"  # no launch is described here, and nobody has seen this model be right
        assert tuned(store, mode="forecast").config == found.config


def test_earlier_measurements_are_given_to_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skill = KnobEffect(
        program="bowl", language="cuda", hardware="A", knob="tile", before=1, after=2, tried=9, faster=7, speedup=1.12
    )
    monkeypatch.setattr(SqliteStore, "knob_effects", lambda *_: [skill])
    with named_by_settings(Talking(large_is_fast)) as model, SqliteStore(tmp_path) as store:
        tuned(store)
        assert str(skill) in model.asked[0].shared


def test_a_model_is_made_once_for_all_kernels_and_charged_to_the_budget() -> None:
    with named_by_settings(Talking(large_is_fast, loading_s=0.5)) as model:
        store = SqliteStore.in_memory()
        assert tuned(store, 1, budget="0").spent_s > 0.5
        tuned(store, 2, budget="0")
        assert model.made == 1
        one, other = (make_surrogate(SERVED) for _ in range(2))
        assert isinstance(one, Blend)
        assert isinstance(other, Blend)
        assert one.members[-1] is other.members[-1]
        assert model.opened == 2


def test_of_a_budget_in_seconds_a_model_takes_half_at_most(tmp_path: Path) -> None:
    with named_by_settings(Talking(large_is_fast)) as model, SqliteStore(tmp_path) as store:
        assert tuned(store, budget="60s", answer="logits,100s").tried > 0
    assert model.allowed_s
    assert all(seconds <= 30.0 for seconds in model.allowed_s)


def test_a_model_has_half_of_the_seconds_that_are_left() -> None:
    now_s = [100.0]
    budget = Budget("10s,16", clock=lambda: now_s[0])
    budget.start(84)
    request = make_request("16", default_budget="16", surrogate=History())
    now_s[0] += 2.0
    assert informed.ask_limit_s(request, budget) == 4.0
    assert informed.ask_limit_s(replace(request, unmeasured="a graph is captured"), budget) == 0.0
    assert informed.ask_limit_s(request, Budget("16")) == math.inf


def test_who_helps_another_process_does_not_ask_beside_its_timing(tmp_path: Path) -> None:
    recorded = programs()
    job = job_of(recorded)
    with named_by_settings(Talking(large_is_fast)) as model, SqliteStore(tmp_path) as store:
        shares, leader = (SqliteWorkSharing(store, job, device=device) for device in ("one", "other"))
        surrogate = make_surrogate(SERVED)
        with leader.lead("run", 10, None):
            helping = informed.remembering(surrogate, store, busy=shares.wanted)
            ask(helping, Question(job=job))
            assert model.asked == []
        leading = informed.remembering(surrogate, store, busy=shares.wanted)
        ask(leading, Question(job=job))
        assert len(model.asked) == 83


@pytest.mark.usefixtures("own_settings")
def test_real_calls_heed_limits_on_configs_and_none_of_time_but_0(
    monkeypatch: pytest.MonkeyPatch, set_process_total: Callable[[Any], None]
) -> None:
    spent = TotalSpent(iter([0.0, 60.0]).__next__)
    with spent.running():
        pass
    set_process_total(spent)
    monkeypatch.setattr("forecast_autotune.frontends.request.learners.frozen", False)
    for budget, learns in (("8,30s,total=60s", "8"), ("2s", "16"), ("total=60s", "16"), ("all", "all")):
        assert str(make_request(budget, default_budget="16,30s", mode="online").learns) == learns
    for budget in ("0", "16,0s", "total=0s"):
        assert make_request(budget, default_budget="16,30s", mode="online").learns is None


@pytest.mark.usefixtures("own_settings")
def test_a_rank_that_has_spent_its_total_decides_with_those_that_have_not(
    monkeypatch: pytest.MonkeyPatch, set_process_total: Callable[[Any], None]
) -> None:
    shared = torch.distributed.HashStore()
    spent, unspent = TotalSpent(), TotalSpent()
    monkeypatch.setattr(spent, "_before_s", 60.0)
    job = a_job()
    acting: Any = {"compiler": SimpleNamespace(workers=1), "measurer": SimpleNamespace(explored_s=0.0, saved_s=0.0)}
    decided = []
    monkeypatch.setenv("FORECAST_AUTOTUNE_SYNC", "rank0")
    for rank, total in enumerate((spent, unspent)):
        line = JobChannel(lambda: shared, rank=rank, ranks=2)
        monkeypatch.setattr(deciding, "job_channel", lambda line=line, **_: line)
        set_process_total(total)
        request = make_request("16,total=60s", default_budget="16", surrogate=History())
        decided.append(decide(job, request, store=SqliteStore.in_memory(), **acting))
    assert decided[0] == decided[1]
    assert decided[0].tried == 0
