"""Which task goes to which device, and what becomes of it when one dies: the plan alone, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import HARDWARE, SPACE, a_decision, a_job, a_measurement

from forecast_autotune.core.job import Job
from forecast_autotune.distributed.key_list import ListedKey
from forecast_autotune.distributed.ray_pool import Member, connect
from forecast_autotune.distributed.ray_tuning import DEATHS, TuningPlan
from forecast_autotune.distributed.suites import calls_of, is_suite
from forecast_autotune.distributed.tuning_worker import encoded
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.store.jsonl import Decided, Run
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.rows import StoredOutcome, TuningKey
from forecast_autotune.store.sqlite import SqliteStore

H200, H100 = HARDWARE, replace(HARDWARE, name="NVIDIA H100", memory_gib=80)


def device(hardware: Any, *, calls: Sequence[str] = ()) -> Member:
    member = Member("node", "host", 0, None)
    member.what = {"hardware": hardware.digest, "name": hardware.name, "calls": list(calls)}
    return member


def plan_of(folder: Path, *, wanted: Sequence[str] | None = (), keys: Sequence[ListedKey] | None = None) -> TuningPlan:
    return TuningPlan(StoreFile(folder), wanted=wanted, keys=keys, say=lambda _: None)


def given(plan: TuningPlan, member: Member) -> Any:
    member.task = plan.next(member)
    return member.task


def keys_of(*workloads: str, hardware: Any = H200) -> list[dict[str, str]]:
    return [
        {"hardware": hardware.digest, "workload": name, "what": name, "on": hardware.name, "why": ""}
        for name in workloads
    ]


def told_of(job: Job) -> list[str]:
    """What a worker tells that has tuned a job."""
    tuning_key = TuningKey.of(job)
    outcome = StoredOutcome(
        config=SPACE[1], outcome=a_measurement(), forecast=None, default=SPACE[0], run="run", recorded_at=1.0
    )
    run = Run(tuning_key=tuning_key, outcomes=(outcome,))
    return encoded([run, Decided(tuning_key=tuning_key, decision=a_decision(job), superseded_at=None)])


def test_devices_of_one_product_share_the_calls_and_each_product_makes_all(tmp_path: Path) -> None:
    plan, names = plan_of(tmp_path), ["a", "b", "c"]
    one, two, other = (device(h, calls=names) for h in (H200, H200, H100))
    assert [given(plan, m)["call"] for m in (one, two, one)] == names
    assert given(plan, two) is None
    assert [given(plan, other)["call"] for _ in names] == names
    assert plan.is_done


def test_a_device_without_a_call_helps_one_that_is_alike_and_has_its_store(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    one, two, three, elsewhere, other = (device(h, calls=["a", "b"]) for h in (H200, H200, H200, H200, H100))
    for member in (one, two, three, other):
        member.what = {**member.what, "store": ["a file"]}
    elsewhere.what = {**elsewhere.what, "store": ["another file"]}
    assert [given(plan, m) for m in (one, two)] == [{"call": "a"}, {"call": "b"}]
    assert given(plan, elsewhere) is None
    assert given(plan, other) == {"call": "a"}, "a decision of its own"
    helping = given(plan, three)
    assert helping == {"call": "a", "helps": True}
    plan.told(three, helping, {"problem": "it is alone with this", "warnings": []})
    plan.ended(three, helping, "")
    assert plan.ended_tasks == []
    assert plan.progress().startswith("0 of 4 done")
    plan.told(two, two.task, {"problem": "", "warnings": []})  # type: ignore[arg-type]
    plan.ended(two, two.task, "")  # type: ignore[arg-type]
    three.task = None
    assert (given(plan, two), given(plan, three)) == ({"call": "a", "helps": True},) * 2
    plan.lost(two, two.task, "the node died")  # type: ignore[arg-type]
    assert given(plan, device(H200, calls=["a", "b"])) is None, "nothing is lost with one that helps"
    plan.lost(one, one.task, "the node died")  # type: ignore[arg-type]
    three.task = None
    assert given(plan, three)["call"] == "a"
    assert "helps" not in three.task  # type: ignore[operator]


def test_a_task_whose_last_helper_dies_is_done_again_as_it_may_have_led(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    one, two = device(H200, calls=["a"]), device(H200, calls=["a"])
    for member in (one, two):
        member.what = {**member.what, "store": ["a file"]}
    task, helping = given(plan, one), given(plan, two)
    plan.told(one, task, {"problem": "", "warnings": []})
    plan.ended(one, task, "")
    one.task = None
    plan.lost(two, helping, "the node died")
    assert plan.progress() == "0 of 1 done"
    again = given(plan, one)
    assert (again["call"], "helps" in again) == ("a", False)
    plan.told(one, again, {"problem": "", "warnings": []})
    plan.ended(one, again, "")
    assert [each.what for each in plan.ended_tasks] == ["a"], "one call is told of once"


def test_helpers_that_die_again_and_again_make_no_failure_of_what_was_done(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    one, two = device(H200, calls=["a"]), device(H200, calls=["a"])
    for member in (one, two):
        member.what = {**member.what, "store": ["a file"]}
    for _ in range(DEATHS):
        task, helping = given(plan, one), given(plan, two)
        plan.told(one, task, {"problem": "", "warnings": []})
        plan.ended(one, task, "")
        one.task = None
        plan.told(two, helping, {"died": "the process that called it was killed by SIGSEGV"})
        plan.ended(two, helping, "")
        two.task = None
    assert plan.is_done
    assert plan.progress() == "1 of 1 done"
    assert [(each.what, each.problem) for each in plan.ended_tasks] == [("a", "")]


def test_a_key_that_was_put_back_is_tuned_once_though_a_helper_dies(tmp_path: Path) -> None:
    plan, one = plan_of(tmp_path, wanted=None), device(H200)
    two = device(H200)
    for member in (one, two):
        member.what = {**member.what, "store": ["a file"]}
    plan.told(one, given(plan, one), {"keys": keys_of("x", "y")})
    plan.ended(one, {}, "")
    task, helping = given(plan, one), given(plan, two)
    assert helping == {**task, "helps": True}
    plan.told(one, task, {"left": [[H200.digest, "x"]], "problem": "", "warnings": []})
    plan.ended(one, task, "")
    one.task = None
    plan.lost(two, helping, "the node died")
    assert plan.progress() == "0 of 2 done"
    assert [given(plan, one)["keys"] for _ in range(2)] == [keys_of("y"), keys_of("x")]
    assert plan.is_done


def test_keys_in_work_at_another_device_are_not_repeated_if_a_helper_dies(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, wanted=None)
    one, two, three = device(H200), device(H200), device(H200)
    for member in (one, two, three):
        member.what = {**member.what, "store": ["a file"]}
    plan.told(one, given(plan, one), {"keys": keys_of("x", "y")})
    plan.ended(one, {}, "")
    task, helping = given(plan, one), given(plan, two)
    plan.told(one, task, {"left": [[H200.digest, "x"]], "problem": "", "warnings": []})
    plan.ended(one, task, "")
    one.task = None
    assert given(plan, three)["keys"] == keys_of("x")
    plan.lost(two, helping, "the node died")
    assert plan.progress() == "0 of 2 done"
    assert given(plan, one)["keys"] == keys_of("y")
    assert plan.is_done


def test_a_call_whose_leader_and_helper_die_is_done_again_only_once(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    one, two, three = (device(H200, calls=["a"]) for _ in range(3))
    for member in (one, two, three):
        member.what = {**member.what, "store": ["a file"]}
    task, helping = given(plan, one), given(plan, two)
    for member, had in ((one, task), (two, helping)):
        member.task = None
        plan.lost(member, had, "the node died")
    assert plan.progress() == "0 of 1 done"
    assert given(plan, three)["call"] == "a"
    assert plan.is_done


def test_keys_of_one_workload_on_two_kinds_of_hardware_are_told_of_apart(tmp_path: Path) -> None:
    plan, member = plan_of(tmp_path, wanted=None), device(H200)
    keys = [*keys_of("x"), *keys_of("x", hardware=H100)]
    plan.told(member, given(plan, member), {"keys": keys})
    for left in ([[H100.digest, "x"]],) * 2:
        plan.told(member, given(plan, member), {"left": left, "problem": "", "warnings": []})
    assert [bool(each.problem) for each in plan.ended_tasks] == [False, True]


def test_h100_and_h200_share_forecasts_and_never_decisions(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    for hardware in (H200, H100):
        member, job = device(hardware, calls=["call"]), a_job(hardware=hardware)
        with SqliteStore(tmp_path) as store:
            assert store.decision(job) is None, "it is another product's"
            assert store.outcomes(job) == {}
            related = [r.hardware.name for r in store.related_recordings(job)]
            assert related == ([] if hardware == H200 else ["NVIDIA H200"]), "it seeds the forecasts"
        task = given(plan, member)
        plan.told(member, task, {"lines": told_of(job)})
        plan.ended(member, task, "")
        with SqliteStore(tmp_path) as store:
            assert store.decision(job) == a_decision(job)
    assert plan.decided == {(h.digest, a_job(hardware=h).workload.digest) for h in (H200, H100)}


def test_who_does_a_dead_devices_task_knows_what_it_has_measured(tmp_path: Path) -> None:
    plan, lines = plan_of(tmp_path), told_of(a_job())
    one, two = device(H200, calls=["a", "b"]), device(H200, calls=["a", "b"])
    task = given(plan, one)
    plan.told(one, task, {"lines": lines})
    plan.lost(one, task, "the node died")
    again = given(plan, two)
    assert (again["call"], again["known"]) == ("a", lines)
    assert given(plan, two)["call"] == "b"


def test_a_task_that_ends_process_after_process_is_given_up(tmp_path: Path) -> None:
    plan, member = plan_of(tmp_path), device(H200, calls=["a"])
    for _ in range(DEATHS):
        plan.told(member, given(plan, member), {"died": "the process that called it was killed by SIGSEGV"})
    assert plan.is_done
    assert given(plan, member) is None
    (ended,) = plan.ended_tasks
    assert "3 processes died of it" in ended.problem


def test_keys_that_were_not_met_get_a_second_chance_and_no_third(tmp_path: Path) -> None:
    plan, member = plan_of(tmp_path, wanted=None), device(H200)
    keys = [
        {"hardware": H200.digest, "workload": f"{n:032x}", "what": f"kernel(n={n})", "on": H200.name, "why": ""}
        for n in range(4)
    ]
    assert given(plan, member) == {}, "the program is run to see what it meets"
    plan.told(member, {}, {"keys": keys})
    left = [[keys[0]["hardware"], keys[0]["workload"]]]
    for expected in (keys, keys[:1]):
        task = given(plan, member)
        assert task["keys"] == expected
        plan.told(member, task, {"left": left, "problem": "", "warnings": []})
    assert plan.is_done
    assert [e.what for e in plan.ended_tasks if e.problem] == ["kernel(n=0)"]
    assert len(plan.ended_tasks) == 4


def test_what_a_worker_tells_is_checked_before_it_is_kept(tmp_path: Path) -> None:
    plan, member = plan_of(tmp_path), device(H200, calls=["a"])
    task = given(plan, member)
    with pytest.raises(InvalidInputError):
        plan.told(member, task, {"lines": [*told_of(a_job()), '{"line": "decision"}']})
    assert not StoreFile(tmp_path).exists()


def test_a_name_that_no_call_has_is_an_error_that_lists_them(tmp_path: Path) -> None:
    member = device(H200, calls=["matmul/small", "matmul/large", "softmax/rows"])
    assert [given(plan, member)["call"] for plan in [plan_of(tmp_path, wanted=["matmul"])] * 2] == member.what["calls"][
        :2
    ]
    with pytest.raises(InvalidInputError, match="no call 'mat': it has matmul/small"):
        given(plan_of(tmp_path, wanted=["mat"]), member)


def test_a_suite_is_told_from_a_program_without_running_it(tmp_path: Path) -> None:
    suite, program = tmp_path / "suite.py", tmp_path / "program.py"
    suite.write_text("raise SystemExit(1)\ndef tuning_calls():\n    return {}\n")
    program.write_text("if True:\n    def tuning_calls(): ...\nraise SystemExit(1)\n")
    assert is_suite(str(suite), module=False)
    assert not is_suite(str(program), module=False)
    assert is_suite("kernel_suite", module=True)
    assert not is_suite("no_such_module.at_all", module=True)
    assert not is_suite(str(tmp_path / "none.py"), module=False)


@pytest.mark.parametrize("body", ["return 3", "return {1: print}", "return {'a': 1}", "raise ValueError('no GPU')"])
def test_a_suite_that_gives_no_calls_is_an_error_that_says_so(tmp_path: Path, body: str) -> None:
    (tmp_path / "suite.py").write_text(f"def tuning_calls():\n    {body}\n")
    with pytest.raises(InvalidInputError, match=r"tuning_calls\(\) must return|no GPU"):
        calls_of(str(tmp_path / "suite.py"), module=False)


def test_progress_counts_each_call_once(tmp_path: Path) -> None:
    plan, names = plan_of(tmp_path), ["a", "b", "c", "d"]
    one, two = device(H200, calls=names), device(H200, calls=names)
    tasks = given(plan, one), given(plan, two)
    for member, task in zip((one, two), tasks, strict=True):
        plan.told(member, task, {"problem": "", "warnings": []})
    assert plan.progress().startswith("2 of 4 done; about ")
    plan.lost(two, given(plan, two), "the node died")
    assert plan.progress().startswith("2 of 4 done")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999999", "no.such.host.invalid:6379"])
def test_an_address_where_no_cluster_is_is_an_error_at_once(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InvalidInputError, match=f"--ray {address}: .*Give HOST:PORT of a Ray cluster"):
        connect(address)
