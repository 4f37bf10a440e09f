"""The tuning loop: recall, forecast, choose, compile, measure, repeat, decide. It knows protocols and nouns only."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..core.budget import Budget
from ..core.config import Config
from ..core.decision import FIRST_RETRY_S, Decision, Resolution
from ..core.job import Compile, Job, Measure, Stop
from ..core.outcome import Failure
from ..errors import NoWorkingConfigError
from ..protocols import Compiler, Listener, Measurer, Policy, Store, Surrogate, WorkSharing
from . import decision_rule
from .earlier_times import rescale_earlier_times
from .ending import Ending
from .failures import report_failures, warn_that_none_ran
from .finalists import Finals
from .helping import await_helpers, help_leader
from .noise import report_noise
from .sharing import Helping, Leading, Sharing
from .state import Parts, RunState
from .trials import Trials

log = logging.getLogger(__name__)


def tune(
    job: Job,
    *,
    compiler: Compiler,
    surrogate: Surrogate,
    policy: Policy,
    measurer: Measurer,
    store: Store,
    budget: Budget,
    listener: Listener | None = None,
    work_sharing: WorkSharing | None = None,
    interim_surrogate: Surrogate | None = None,
    previous_decision: Decision | None = None,
    remote_decision: Callable[[], Decision | None] | None = None,
    patient: bool = False,
) -> Resolution:
    """Decide which config of the job's space to run, measuring no more than the budget allows.

    A stored decision is returned at once if it was measured, or if nothing may be measured now. Otherwise what is stored
    seeds the run: a config already tried here is not tried again. Of several processes that miss the same key, one tunes.
    The others wait for nothing: each gets the best that is known, to be asked for again. With `work_sharing`, those on other
    devices measure some of the configs first.

    Args:
        interim_surrogate: forecasts in place of `surrogate` while another process tunes the key.
        previous_decision: what this process was given last time, while another one was tuning the key.
        remote_decision: gives a decision that another machine has made meanwhile, which ends the run; asked before every
            config.
        patient: nobody waits for the decision, so no build is left behind.
    Raises:
        NoWorkingConfigError: the default brings its process down or never ends, and nothing else was found to run.
    """
    if known := decision_without_run(job, store, budget):
        return Resolution(store.publish_decision(job, known))
    parts = Parts(compiler, surrogate, policy, measurer, store, listener)
    sharing = Sharing() if work_sharing is None else Leading(work_sharing, store, job)
    ending = Ending(
        budget, lambda: store.shared_decision(job) or (remote_decision() if remote_decision is not None else None)
    )
    run = _Run(job, parts, budget, sharing, ending, patient=patient)
    if not budget.measures:
        return Resolution(store.publish_decision(job, run.decide_unmeasured()))
    with contextlib.ExitStack() as held:
        if held.enter_context(store.single_flight(job)) and (
            work_sharing is None or held.enter_context(work_sharing.device())
        ):
            known = decision_without_run(job, store, budget)  # another process may have decided since
            return Resolution(store.publish_decision(job, known) if known else run.tune())
    if work_sharing is not None:
        _help_leader(job, parts, work_sharing, budget.clock)
    if known := decision_without_run(job, store, budget):
        return Resolution(store.publish_decision(job, known))
    return _interim_resolution(run, interim_surrogate or surrogate, previous_decision)


def decision_without_run(job: Job, store: Store, budget: Budget) -> Decision | None:
    """The decision that ends a run before it begins: the one that the ranks hold to, or a stored one that is a hit.

    A budget that measures nothing takes any that is stored; any other budget one whose config was measured; `all` one whose
    every config was tried. None on a miss.
    """
    if shared := store.shared_decision(job):
        return shared
    known = stored(job, store)
    if known is None or not budget.measures:
        return known
    if budget.all and not set(job.space) <= set(store.outcomes(job)):
        return None  # every config is to be tried, and not every one was
    return known if known.basis == "measured" else None


def stored(job: Job, store: Store) -> Decision | None:
    """The stored decision, if it is one of the job's space: a pack may say anything."""
    return _of_space(job, store.decision(job))


def stored_for_any_constexprs(job: Job, store: Store) -> Decision | None:
    """The newest stored decision for the job's key or one that differs in constexprs alone, if it is one of its space."""
    return _of_space(job, store.decision_for_any_constexprs(job))


def _of_space(job: Job, decision: Decision | None) -> Decision | None:
    return decision if decision is not None and decision.config in job.space else None


class _Run:
    """One tuning run; its methods stand in the order in which they happen."""

    def __init__(
        self, job: Job, parts: Parts, budget: Budget, sharing: Sharing, ending: Ending, *, patient: bool = False
    ) -> None:
        self.job = job
        self.parts = parts
        self.budget = budget
        self.sharing = sharing
        self.ending = ending
        self.state = RunState(job, parts, budget, sharing)
        self.trials = Trials(self.state, parts.compiler, parts.measurer, ending, patient=patient)
        self.finals = Finals(self.state, self.trials)

    def tune(self) -> Decision:
        """Search, time the finalists, decide, and store the decision."""
        with self.budget.total.running():
            stop = self.search()
            if self.parts.measurer.repeatable and self.ending.shared_decision is None:
                self.finals.measure()
        if (theirs := self.ending.shared_decision) is not None:
            log.info("%s: others have decided for %s, so tuning it ends", self.job.workload, theirs.config)
            return self.parts.store.publish_decision(self.job, theirs)
        if self.budget.total_left_s <= 0 and set(self.state.outcomes) <= {self.job.space.default}:
            return self.leave_pending(stop)
        decision = self.decide(stop)
        self.parts.store.record_decision(self.job, decision)
        report_failures(self.state.findings())
        report_noise(self.state)
        default = self.state.outcomes.get(self.job.space.default)
        if decision.none_ran and isinstance(default, Failure) and default.transient:
            return decision  # a later call is tuned again: no other rank is to hold to this
        theirs = self.parts.store.publish_decision(self.job, decision)
        if theirs != decision:
            log.info("%s: other ranks hold to %s already", self.job.workload, theirs.config)
            return theirs
        self.state.report("decided")
        log.info("%s: %s (%s)", self.job.workload, decision.config, decision.reason)
        return decision

    def search(self) -> Stop:
        """Try configs until the policy stops or the budget is spent; what helpers still add may wake the policy again."""
        self.seed()
        default = self.job.space.default
        first = default if default not in self.state.outcomes else None
        with self.sharing.lead(self.state.id, self.budget.configs_left, first):
            stop = self.repeat_until_stop()
            while await_helpers(self.state):
                stop = self.repeat_until_stop()
        return stop

    def seed(self) -> None:
        """Seed the run with what is stored of this key."""
        self.state.seed()
        default = self.state.outcomes.get(self.job.space.default)
        if isinstance(default, Failure) and default.crashed:
            self.parts.measurer.skip_default()

    def repeat_until_stop(self) -> Stop:
        """Have configs tried for as long as the policy names some and the budget lasts."""
        state, spent = self.state, Stop(f"the budget of {self.budget} is spent")
        self.sharing.refused.clear()
        while True:
            step = self.choose()
            if isinstance(step, Stop):
                return spent if state.under_way.keys() - state.left_behind else step  # those that the end has cut short
            if self.ending.reached() or state.configs_left <= 0:
                return spent
            rescale_earlier_times(state, self.trials)
            before, refused = state.progress, len(self.sharing.refused)
            self.trials.stream(self.choices(step), meanwhile=self.finals.measure_meanwhile)
            if state.progress != before or state.learn_from_others():
                continue  # another process may have been faster
            if self.ending.reached():
                return spent
            if len(self.sharing.refused) <= refused or not self.sharing.wanted():
                return Stop("the policy asked for nothing new")

    def choices(self, step: Compile | Measure | Stop) -> Iterator[Config]:
        """The configs to try, each chosen when it can be begun, on all that is known by then; ends when none is named."""
        while not isinstance(step, Stop):
            chosen = self.trials.claim(step.configs)
            for config in chosen:
                if self.ending.reached():
                    return
                yield config
            if not chosen or self.ending.reached() or self.state.configs_left <= 0:
                return
            step = self.choose()

    def choose(self) -> Compile | Measure | Stop:
        """The policy's next step; at first, where it can be built while the others are forecast, the default."""
        default = self.job.space.default
        if self.trials.workers > 1 and self.sharing.tries_default_first and not self.state.is_busy(default):
            return Compile((default,))
        with self.state.spending.on("choosing"):
            self.state.learn_from_others()
            return self.ask()

    def ask(self) -> Compile | Measure | Stop:
        """What the policy says to all that is known."""
        return self.parts.policy.step(self.state.view(self.trials.idle_workers))

    def decide(self, stop: Stop, *, by_forecast: bool = False) -> Decision:
        """Decide on all that is known; `by_forecast` allows a config that was never run."""
        findings = self.state.findings()
        decision = decision_rule.decide(findings, stop, by_forecast=by_forecast)
        if decision.basis == "default" and findings.outcomes and not findings.ran:
            warn_that_none_ran(findings)
        return decision

    def decide_unmeasured(self, stop: Stop | None = None) -> Decision:
        """Decide on what is stored and forecast. Not stored: measuring later must not find it in its way.

        Args:
            stop: why nothing is measured; without it, the policy says.
        """
        self.seed()
        self.state.forecast()
        if stop is None:
            step = self.ask()
            stop = step if isinstance(step, Stop) else Stop("nothing may be measured now")
        return self.decide(stop, by_forecast=True)

    def leave_pending(self, stop: Stop) -> Decision:
        """Decide as on a budget of 0: the process's total ran out, and the time of the default alone decides nothing."""
        store = self.parts.store
        store.note_pending(self.job, f"the total of this process was spent (budget {self.budget})")
        self.state.forecast()
        decision = self.decide(stop, by_forecast=True)
        basis = "default" if decision.basis == "measured" else decision.basis
        return store.publish_decision(self.job, replace(decision, basis=basis, tried=0))


def _help_leader(job: Job, parts: Parts, work_sharing: WorkSharing, clock: Callable[[], float]) -> None:
    """Help the process that tunes the job, unless another one on this device does already."""
    if not work_sharing.wanted():
        return
    with work_sharing.device() as free:
        if free:
            unlimited = Budget("all", clock=clock)  # the leader keeps to the budget, for all
            run = _Run(job, parts, unlimited, Helping(work_sharing, parts.store, job), Ending(unlimited))
            run.seed()
            help_leader(run.state, run.trials, parts.policy)


def _interim_resolution(run: _Run, surrogate: Surrogate, previous_decision: Decision | None) -> Resolution:
    """The best that is stored or forecast now, for as long as another process tunes the key."""
    job, store = run.job, run.parts.store
    known = previous_decision or stored(job, store)
    if known is None:
        nothing = Budget("0")
        parts = replace(run.parts, surrogate=surrogate, listener=None)
        try:
            known = _Run(job, parts, nothing, Sharing(), Ending(nothing)).decide_unmeasured(
                Stop("another process is tuning it")
            )
        except NoWorkingConfigError:  # the default breaks, and the other process has found nothing yet that could run
            return Resolution(run.tune())
        known = replace(known, run="")
    log.info("%s: another process is tuning it; %s is run meanwhile", job.workload, known.config)
    return Resolution(known, FIRST_RETRY_S)
