"""What every store keeps to: subclass `StoreContract`, and give it a `store` fixture annotated with the store's class.

A store that remembers nothing subclasses `ReadOnlyStoreContract`.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Program, Workload
from forecast_autotune.protocols import Store

SPACE = Space.grid({"BLOCK": [64, 128, 256], "num_warps": [2, 4]})
HARDWARE = Hardware(kind="cuda", name="NVIDIA H200", capability="9.0", units=132, memory_gib=141, power_limit_w=700)
TOOLCHAIN = Toolchain(versions={"triton": "3.9.0", "torch": "2.13.0"})
PROGRAM = Program(name="rmsnorm", language="triton", source="def rmsnorm(x, y):\n    y = x\n")


def a_job(**changes: Any) -> Job:
    """A job; `source`, `name`, `key`, `space`, `hardware`, `toolchain` and `features` say what is special about it."""
    program = Program(
        name=changes.get("name", PROGRAM.name), language="triton", source=changes.get("source", PROGRAM.source)
    )
    return Job(
        workload=Workload(
            program=program, key=changes.get("key", {"n": 4096}), features=changes.get("features", {"grid": 128})
        ),
        space=changes.get("space", SPACE),
        hardware=changes.get("hardware", HARDWARE),
        toolchain=changes.get("toolchain", TOOLCHAIN),
    )


def a_measurement(us: float = 10.0) -> Measurement:
    return Measurement(samples_us=(us, us * 1.01, us * 0.99), compile_s=0.5, run_s=0.1, clock_mhz=1980.0)


def a_decision(job: Job, config: Config | None = None, **changes: Any) -> Decision:
    values: dict[str, Any] = {
        "config": config if config is not None else job.space[1],
        "basis": "measured",
        "reason": "1.50x the default's speed, measured",
        "equivalents": (job.space[2],),
        "space_digest": job.space.digest,
        "space_size": len(job.space),
        "budget": "16,30s",
        "forecast": 6,
        "compiled": 4,
        "tried": 3,
        "failed": 1,
        "spent_s": 2.5,
        "config_us": 10.0,
        "default_us": 15.0,
        "run": "run-1",
        "decided_at": 1_800_000_000.0,
        "model": "15-kernels-0c4f1a2b",
    }
    return Decision(**{**values, **changes})


class ReadOnlyStoreContract:
    """What a store keeps to even where it remembers nothing."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("a subclass gives the store")

    def test_a_job_never_met_has_no_decision_and_no_outcomes(self, store: Store) -> None:
        assert store.decision(a_job(key={"n": 3})) is None
        assert store.outcomes(a_job(key={"n": 3})) == {}
        assert store.decision_for_any_constexprs(a_job(key={"n": 3})) is None

    def test_whatever_is_recorded_decided_or_noted_raises_nothing(self, store: Store) -> None:
        job = a_job()
        store.record_outcome(job, "run-1", SPACE[0], a_measurement(), Abstention("history", "nothing alike"))
        store.record_outcome(job, "run-1", SPACE[1], Failure(stage="launch", message="no"), None)
        store.note_pending(job, "nothing may be measured while a graph is captured")
        store.record_decision(job, a_decision(job))
        assert store.decision(job) in (a_decision(job), None)

    def test_a_job_that_nobody_holds_can_be_held_again_and_again(self, store: Store) -> None:
        for _ in range(2):
            with store.single_flight(a_job()) as alone:
                assert alone


class StoreContract(ReadOnlyStoreContract):
    """What a store keeps to that remembers."""

    def test_a_transient_failure_counts_against_a_config_only_when_it_repeats(self, store: Store) -> None:
        job = a_job()
        failure = Failure(stage="launch", message="CUDA out of memory", transient=True)
        for run, known in (("one", False), ("two", True)):
            store.record_outcome(job, run, job.space[1], failure, None)
            assert (job.space[1] in store.outcomes(job)) is known
        store.record_outcome(job, "three", job.space[1], a_measurement(), None)
        assert isinstance(store.outcomes(job)[job.space[1]], Measurement)

    def test_a_transient_failure_never_replaces_a_time_nor_blocks_the_default(self, store: Store) -> None:
        job = a_job()
        failure = Failure(stage="launch", message="CUDA out of memory", transient=True)
        store.record_outcome(job, "one", job.space[1], a_measurement(), None)
        for run in ("two", "three", "four"):
            store.record_outcome(job, run, job.space[1], failure, None)
            store.record_outcome(job, run, job.space.default, failure, None)
        assert store.outcomes(job) == {job.space[1]: a_measurement()}

    @pytest.mark.parametrize(
        ("stage", "message"),
        [("compile", "TypeError: missing a required argument"), ("launch", "CUDA out of memory")],
    )
    def test_runs_in_which_the_default_failed_tell_nothing_of_the_others(
        self, store: Store, stage: str, message: str
    ) -> None:
        job = a_job()
        failure = Failure(stage=stage, message=message, transient=True)
        for run in ("one", "two", "three"):
            store.record_outcome(job, run, job.space[1], failure, None)  # built beside the default, and done before it
            store.record_outcome(job, run, job.space.default, failure, None)
        assert store.outcomes(job) == {}
        for run in ("four", "five"):
            store.record_outcome(job, run, job.space[1], failure, None)
        assert store.outcomes(job) == {job.space[1]: failure}

    def test_an_empty_store_knows_nothing(self, store: Store) -> None:
        assert store.decision(a_job()) is None
        assert store.outcomes(a_job()) == {}
        assert list(store.related_recordings(a_job())) == []

    def test_a_decision_comes_back_as_it_was(self, store: Store) -> None:
        store.record_decision(a_job(), a_decision(a_job()))
        assert store.decision(a_job()) == a_decision(a_job())

    def test_a_newer_decision_supersedes_whatever_the_clock_says(self, store: Store) -> None:
        store.record_decision(a_job(), a_decision(a_job()))
        later = a_decision(a_job(), SPACE[3], decided_at=1_700_000_000.0)
        store.record_decision(a_job(), later)
        assert store.decision(a_job()) == later

    @pytest.mark.parametrize(
        "change",
        [
            {"key": {"n": 8192}},
            {"source": "def rmsnorm(x, y):\n    y = x * 1\n"},
            {"name": "layernorm"},
            {"hardware": Hardware(kind="cuda", name="NVIDIA H100", capability="9.0", units=132)},
            {"hardware": Hardware(kind="stub", name="NVIDIA H200", capability="9.0", units=132)},
            {"toolchain": Toolchain(versions={"triton": "3.8.0", "torch": "2.13.0"})},
            {"space": Space(SPACE[:4])},
            {"space": Space(SPACE, default=SPACE[1])},
        ],
    )
    def test_a_decision_holds_only_for_its_key_hardware_toolchain_and_space(
        self, store: Store, change: dict[str, Any]
    ) -> None:
        store.record_decision(a_job(), a_decision(a_job()))
        assert store.decision(a_job(**change)) is None

    def test_the_newest_decision_carries_over_where_only_constexprs_differ(self, store: Store) -> None:
        for when, (size, config) in enumerate({64: SPACE[1], 128: SPACE[2]}.items()):
            job = a_job(key={"n": 1, "given constexprs": {"D": size}})
            store.record_decision(job, a_decision(job, config, decided_at=1_800_000_000.0 + when))
        asked = {"n": 1, "given constexprs": {"D": 512}}
        assert store.decision(a_job(key=asked)) is None
        found = store.decision_for_any_constexprs(a_job(key=asked))
        assert found is not None
        assert (found.config, found.basis, found.tried) == (SPACE[2], "forecast", False)
        assert (found.speedup, found.config_us, found.run) == (None, None, "")
        assert found.reason.startswith("decided for D=128")
        own = store.decision_for_any_constexprs(job)
        assert own == store.decision(job), "nothing is carried over to the key it was made for"
        assert store.decision_for_any_constexprs(a_job(key={"n": 1})) is None
        other_toolchain = Toolchain(versions={"triton": "3.8.0"})
        for job in (
            a_job(key={**asked, "n": 2}),
            a_job(key={**asked, "n": True}),
            a_job(key=asked, source="def rmsnorm(x, y):\n    y = x * 1\n"),
            a_job(key=asked, toolchain=other_toolchain),
            a_job(key=asked, space=Space(SPACE[:4])),
            a_job(key=asked, hardware=replace(HARDWARE, power_limit_w=400)),
        ):
            assert store.decision_for_any_constexprs(job) is None

    @pytest.mark.parametrize(
        ("limit_w", "holds"),
        [(700, True), (699, True), (630, True), (770, True), (0, True), (620, False), (800, False)],
    )
    def test_a_decision_under_a_power_limit_more_than_a_tenth_away_is_a_prior(
        self, store: Store, limit_w: int, holds: bool
    ) -> None:
        store.record_outcome(a_job(), "run-1", SPACE[1], a_measurement(), None)
        store.record_decision(a_job(), a_decision(a_job()))
        here = a_job(hardware=replace(HARDWARE, power_limit_w=limit_w))
        assert (store.decision(here) is not None) is holds
        assert (SPACE[1] in store.outcomes(here)) is holds
        assert [r.hardware.power_limit_w for r in store.related_recordings(here)] == ([] if holds else [700])

    def test_decisions_under_far_power_limits_hold_beside_each_other(self, store: Store) -> None:
        jobs = [a_job(hardware=replace(HARDWARE, power_limit_w=limit_w)) for limit_w in (700, 500, 690)]
        for job, config in zip(jobs, SPACE[1:4], strict=True):
            store.record_decision(job, a_decision(job, config))
        found = [store.decision(job) for job in jobs]
        assert [d.config for d in found if d] == [SPACE[3], SPACE[2], SPACE[3]]

    def test_features_and_the_roofline_sheet_are_no_part_of_the_key(self, store: Store) -> None:
        store.record_decision(a_job(), a_decision(a_job()))
        sheet = Hardware(**{**HARDWARE.identity, "bandwidth_gb_per_s": 4800.0})  # type: ignore[arg-type]
        assert store.decision(a_job(features={"grid": 1}, hardware=sheet)) is not None

    def test_the_newest_outcome_of_each_config_comes_back(self, store: Store) -> None:
        failure = Failure(stage="resources", message="needs 300 KiB", cost_s=0.25, crashed=True)
        store.record_outcome(a_job(), "run-1", SPACE[0], a_measurement(20.0), None)
        store.record_outcome(a_job(), "run-1", SPACE[1], failure, Forecast.normal(0.5, 0.2, source="roofline"))
        store.record_outcome(a_job(), "run-2", SPACE[0], a_measurement(30.0), Abstention("history", "nothing alike"))
        assert store.outcomes(a_job()) == {SPACE[0]: a_measurement(30.0), SPACE[1]: failure}

    def test_a_later_outcome_of_the_same_run_replaces_the_earlier(self, store: Store) -> None:
        for us in (20.0, 10.0):
            store.record_outcome(a_job(), "run-1", SPACE[0], a_measurement(us), None)
        assert store.outcomes(a_job()) == {SPACE[0]: a_measurement(10.0)}

    def test_times_of_several_runs_are_scaled_to_the_newest_default(self, store: Store) -> None:
        job = a_job()
        for run, slow in (("one", 1.0), ("two", 1.25)):
            store.record_outcome(job, run, job.space.default, a_measurement(10.0 * slow), None)
            store.record_outcome(job, run, job.space[1 if run == "one" else 2], a_measurement(8.0 * slow), None)
        times = {c: o.median_us for c, o in store.outcomes(job).items() if isinstance(o, Measurement)}
        assert times == {job.space.default: 12.5, job.space[1]: pytest.approx(10.0), job.space[2]: 10.0}

    def test_outcomes_survive_a_change_of_the_space(self, store: Store) -> None:
        store.record_outcome(a_job(), "run-1", SPACE[0], a_measurement(), None)
        wider = Space([*SPACE, Config({"BLOCK": 512, "num_warps": 8})])
        assert store.outcomes(a_job(space=wider)) == {SPACE[0]: a_measurement()}

    def test_values_that_look_alike_stay_apart(self, store: Store) -> None:
        configs = [Config({"x": v}) for v in (1, 1.0, True, "1", None)]
        job = a_job(space=Space(configs))
        for number, config in enumerate(configs):
            store.record_outcome(job, "run", config, a_measurement(10.0 + number), None)
        assert store.outcomes(job) == {c: a_measurement(10.0 + n) for n, c in enumerate(configs)}
        assert [type(c["x"]) for c in store.outcomes(job)] == [type(c["x"]) for c in configs]

    def test_text_of_any_kind_is_kept(self, store: Store) -> None:
        message = "é\x00\x1b[31m line\nbreak \U0001f600 \udcff"  # a compiler's bytes that were no UTF-8 among them
        job = a_job(source="# naïve ∑\n", key={"dtype": 'float32["]'})
        store.record_outcome(job, "run", SPACE[0], Failure(stage="compile", message=message), None)
        assert store.outcomes(job) == {SPACE[0]: Failure(stage="compile", message=message)}

    def test_related_recordings_are_the_programs_elsewhere_and_not_this_jobs(self, store: Store) -> None:
        elsewhere = {
            "key": a_job(key={"n": 1}),
            "hardware": a_job(hardware=Hardware(kind="cuda", name="NVIDIA A100", units=108)),
            "toolchain": a_job(toolchain=Toolchain(versions={"triton": "3.7.0"})),
            "source": a_job(source="def rmsnorm(x): pass"),
        }
        for job in (a_job(), *elsewhere.values(), a_job(name="layernorm")):
            store.record_outcome(job, "run", job.space[2], a_measurement(), None)
            store.record_outcome(job, "run", job.space[0], a_measurement(20.0), None)
        found = {
            (r.workload.digest, r.hardware.digest, r.toolchain.digest): r for r in store.related_recordings(a_job())
        }
        assert set(found) == {(j.workload.digest, j.hardware.digest, j.toolchain.digest) for j in elsewhere.values()}
        for recording in found.values():
            assert recording.default == SPACE[0]
            assert recording.outcomes == {SPACE[0]: a_measurement(20.0), SPACE[2]: a_measurement()}
            assert recording.workload.features == {"grid": 128}
            assert recording.log2_speedups()[SPACE[2]] == pytest.approx(1.0)

    def test_features_of_configs_are_recalled_with_their_outcomes(self, store: Store) -> None:
        told = [{"n": float(n), "bytes": 1234567.0 * n} for n in range(len(SPACE))]
        for described in (told, [{}] * len(SPACE)):  # a later job may say nothing
            job = replace(a_job(key={"n": 1}), static_features=described)
            for config in SPACE[1:3]:
                store.record_outcome(job, "run", config, a_measurement(), None)
        store.record_outcome(replace(a_job(key={"n": 1}), static_features=()), "run", SPACE[3], a_measurement(), None)
        (recording,) = store.related_recordings(a_job())
        assert recording.outcomes.keys() == set(SPACE[1:4])
        assert recording.static_features == {SPACE[1]: {"n": 1, "bytes": 1234570}, SPACE[2]: {"n": 2, "bytes": 2469130}}

    def test_a_rehearsal_teaches_nothing_about_a_device(self, store: Store) -> None:
        rehearsal = Hardware(kind="replay", name="NVIDIA H200")
        store.record_outcome(a_job(hardware=rehearsal), "run", SPACE[0], a_measurement(), None)
        assert list(store.related_recordings(a_job())) == []
        assert len(store.related_recordings(a_job(hardware=rehearsal, key={"n": 2}))) == 1

    def test_a_value_that_cannot_be_written_is_reported_and_skipped(self, store: Store) -> None:
        with pytest.warns(UserWarning, match="cannot read or keep"):
            store.record_outcome(
                a_job(), "run", SPACE[0], Failure(stage="launch", message="", cost_s=float("nan")), None
            )
        store.record_outcome(a_job(), "run", SPACE[1], a_measurement(), None)
        assert store.outcomes(a_job()) == {SPACE[1]: a_measurement()}

    def test_one_thread_flies_and_the_others_hear_so_at_once(self, store: Store) -> None:
        heard: list[bool] = []

        def fly() -> None:
            with store.single_flight(a_job()) as alone:
                heard.append(alone)

        with store.single_flight(a_job()) as alone:
            assert alone
            threads = [threading.Thread(target=fly) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert heard == [False] * 4
        fly()
        assert heard[-1]

    def test_a_flight_inside_a_flight_does_not_wait_for_itself(self, store: Store) -> None:
        with store.single_flight(a_job()) as outer, store.single_flight(a_job()) as inner:
            assert outer
            assert inner

    def test_two_threads_use_one_store(self, store: Store) -> None:
        errors: list[BaseException] = []

        def work(run: str) -> None:
            try:
                for number in range(30):
                    store.record_outcome(a_job(key={"n": number}), run, SPACE[0], a_measurement(), None)
                    assert store.outcomes(a_job(key={"n": number}))
            except BaseException as err:
                errors.append(err)

        threads = [threading.Thread(target=work, args=(run,)) for run in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert all(store.outcomes(a_job(key={"n": number})) for number in range(30))
