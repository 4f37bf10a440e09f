"""A run shared with processes on other devices; `distributed/` tests how they tell each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from recorded import job_of
from small_runs import Fixed, Memory, recorded_as

from forecast_autotune.core.budget import Budget
from forecast_autotune.core.config import Config
from forecast_autotune.core.decision import Decision
from forecast_autotune.core.job import Compile, Measure, Recording, Stop, View
from forecast_autotune.core.outcome import Failure
from forecast_autotune.measure.replay import Replay
from forecast_autotune.tuning.loop import tune
from forecast_autotune.tuning.sharing import Helping, Leading, Sharing


class Together:
    """Work sharing in one dict: any number of objects share it, as processes share a store."""

    processes = 2

    def __init__(self, claims: dict[Config, str], name: str) -> None:
        self.all = claims  # by whom; "" once it was tried
        self.name = name
        self.declined = False

    @contextlib.contextmanager
    def lead(self, run: str, most: float, first: Config | None) -> Iterator[None]:
        yield

    def wanted(self) -> bool:
        return not self.declined

    def claim(self, config: Config) -> bool:
        return self.all.setdefault(config, self.name) == self.name

    def tried(self, config: Config) -> None:
        self.all[config] = ""

    def release(self, config: Config) -> None:
        del self.all[config]
        self.declined = True

    def claimed_by_others(self) -> frozenset[Config]:
        return frozenset(c for c, by in self.all.items() if by not in ("", self.name))

    def device(self) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)


FULL = Failure(stage="launch", message="out of memory", transient=True)


class InOrder:
    """Asks for one config, the first not tried, as a policy that ranks them would."""

    def step(self, view: View) -> Compile | Measure | Stop:
        left = [c for c in view.space if c not in view.outcomes and c not in view.under_way]
        return Measure((left[0],)) if left else Stop("all was tried")


def tune_shared(of: Recording, claims: dict[Config, str], store: Memory) -> Decision:
    replay = Replay(of)
    return tune(
        job_of(of),
        compiler=replay,
        surrogate=Fixed(),
        policy=InOrder(),
        measurer=replay,
        store=store,
        budget=Budget("all", clock=replay.clock),
        work_sharing=Together(claims, "this one"),
    ).decision


def test_a_config_another_process_never_finishes_is_skipped() -> None:
    store = Memory()
    decision = tune_shared(recorded_as([100, 90, 80, 50]), {Config({"i": 1}): ""}, store)
    assert [c["i"] for c, _, _ in store.recorded] == [0, 2, 3]
    assert decision.config == Config({"i": 3})


def test_a_helper_releases_what_failed_through_no_fault_and_helps_no_more() -> None:
    claims: dict[Config, str] = {Config({"i": 0}): "the leader"}
    store = Memory(alone=False)
    tune_shared(recorded_as([100, 90, FULL, 50]), claims, store)
    assert [c["i"] for c, _, _ in store.recorded] == [1, 2]
    assert claims == {Config({"i": 0}): "the leader", Config({"i": 1}): ""}


def test_a_helper_passes_over_what_the_leader_tried_to_no_visible_end() -> None:
    claims: dict[Config, str] = {Config({"i": 0}): "", Config({"i": 1}): ""}
    store = Memory(alone=False)
    tune_shared(recorded_as([100, 90, 80, 50]), claims, store)
    assert [c["i"] for c, _, _ in store.recorded] == [2, 3]


def test_a_config_released_while_the_leader_waits_is_tried_by_the_leader() -> None:
    late = Config({"i": 2})

    class GivenBack(Together):
        asked = 0

        def claimed_by_others(self) -> frozenset[Config]:
            self.asked += 1
            if self.asked > 8:
                self.all.pop(late, None) if self.all.get(late) == "a helper" else None
            return super().claimed_by_others()

    of = recorded_as([100, 90, 50])
    replay, store = Replay(of), Memory()
    decision = tune(
        job_of(of),
        compiler=replay,
        surrogate=Fixed(),
        policy=InOrder(),
        measurer=replay,
        store=store,
        budget=Budget("all", clock=replay.clock),
        work_sharing=GivenBack({late: "a helper"}, "the leader"),
    ).decision
    assert decision.config == late


CONFIGS = [Config({"i": i}) for i in range(6)]


def leading(claims: dict[Config, str], store: Memory | None = None) -> Leading:
    return Leading(Together(claims, "this one"), store or Memory(), job_of(recorded_as([1.0] * 6)))


def test_alone_every_config_is_ones_own() -> None:
    alone = Sharing()
    assert alone.claim_batch(CONFIGS, 1) == CONFIGS
    assert (alone.part_of(8), alone.claim(CONFIGS[0]), alone.refresh(), alone.outcomes()) == (8, True, False, {})
    with alone.lead("run", 4, CONFIGS[0]):
        assert not alone.wanted()


def test_a_leader_uses_its_share_of_workers_and_claims_only_what_it_begins() -> None:
    claims = {CONFIGS[1]: "a helper"}
    assert leading(claims).part_of(4) == 2
    assert leading(claims).claim_batch(CONFIGS, 2) == [CONFIGS[0], CONFIGS[2]]
    assert claims == {CONFIGS[1]: "a helper", CONFIGS[0]: "this one", CONFIGS[2]: "this one"}


def test_a_refused_config_is_kept_until_it_is_known_who_has_it() -> None:
    claims = {CONFIGS[1]: "a helper"}
    leader = leading(claims)
    assert not leader.claim(CONFIGS[1])
    assert (leader.refused, leader.claimed) == ({CONFIGS[1]}, frozenset())
    assert leader.refresh()
    assert (leader.refused, leader.claimed) == (set(), {CONFIGS[1]})
    assert not leader.refresh(), "nothing has changed since"


def test_a_leader_settles_a_transient_failure_and_a_helper_releases_it() -> None:
    for kind, left in ((Leading, {CONFIGS[0]: ""}), (Helping, {})):
        claims: dict[Config, str] = {}
        sharing = kind(Together(claims, "this one"), Memory(), job_of(recorded_as([1.0] * 6)))
        sharing.claim(CONFIGS[0])
        sharing.settle(CONFIGS[0], transient=True)
        assert claims == left
