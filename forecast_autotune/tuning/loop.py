"""tune(): the one loop. Forecast, choose, compile, measure, decide; it knows protocols and nouns only."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..core.budget import Budget
from ..core.config import Config
from ..core.context import ForecastContext
from ..core.decision import FIRST_RETRY_S, Decision, Resolution
from ..core.forecast import Abstention, Forecast
from ..core.job import Compile, Job, Progress, Stop, View, log2_speedups, reference_us
from ..core.outcome import Evidence, Failure, Measurement, Outcome
from ..core.space import Space
from ..core.text import plain
from ..errors import NoWorkingConfigError
from ..protocols import Compiler, Listener, Measurer, Policy, Store, Surrogate, SurrogateSession, WorkSharing

log = logging.getLogger(__name__)
failures_log = logging.getLogger(f"{__name__}.failures")

SWITCH_MARGIN = 0.02  # the gain below which leaving the default is not worth it (Triton's own choice, triton#9153)
TIE_MARGIN = 0.005  # two medians closer than this are a tie however small their spread
TRUST = 0.8  # an untried config is chosen only when its forecast beats what is known with this probability
FINALISTS = 4  # the best so many are timed again, beside the default
FINAL_ROUNDS, MOST_ROUNDS = 3, 8  # of these; more than the least only while it is open who is the fastest
OTHERS_S = 0.05  # between two looks at what other processes have measured of a shared run
LAST_OTHERS_S = 1.0  # for others to finish their configs of a shared run, beside twice what the longest has taken here
ONE_RUN = 0.5  # octaves by which a single run may be off
LEAST_DOUBT = 0.5  # octaves: no forecast is taken for surer than this where it could end a measurement
SURE = 3.0  # standard deviations
SHOWN_DIGITS = 10  # of a decision's digest; enough for `forecast-autotune show` to tell it from any other
MOST_SHOWN = 300  # characters of what a config that failed has said
FINALIST_WINDOW = 0.05  # and only those within so much of the best: campaigns differ by 3 % (FAIR benchmark hub, A4000)

ELSEWHERE = Failure(stage="timeout", message="another process is trying it")
"""Stands, for a policy, in the place of an outcome that is still to come: it is not to be asked for again."""


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
    shares: WorkSharing | None = None,
    meanwhile: Surrogate | None = None,
    earlier: Decision | None = None,
) -> Resolution:
    """Decide which config of the job's space to run, measuring no more than the budget allows.

    A stored decision is returned at once if it was measured, or if nothing may be measured now. Otherwise what is stored
    seeds the run: a config already tried here is not tried again. Of several processes that miss the same key, one tunes.
    The others wait for nothing: each gets the best that is known, to be asked for again. With `shares`, those on other
    devices measure some of the configs first.

    Args:
        meanwhile: forecasts in place of `surrogate` while another process tunes the key.
        earlier: what this process was given last time, while another one was tuning the key.
    Raises:
        NoWorkingConfigError: the default brings its process down or never ends, and nothing else was found to run.
    """

    def recalled() -> Decision | None:
        if agreed := store.shared_decision(job):
            return agreed
        found = stored(job, store)
        if found is None:
            return None
        if not budget.measures:
            return found
        if budget.all and not set(job.space) <= set(store.outcomes(job)):
            return None  # every config is to be tried, and not every one was
        return found if found.basis == "measured" else None

    if known := recalled():
        return Resolution(store.publish_decision(job, known))
    run = _Run(job, compiler, surrogate, policy, measurer, store, budget, listener, shares)
    if not budget.measures:
        return Resolution(store.publish_decision(job, run.decide_unmeasured()))
    with contextlib.ExitStack() as held:
        if held.enter_context(store.single_flight(job)) and (shares is None or held.enter_context(shares.device())):
            known = recalled()
            return Resolution(store.publish_decision(job, known) if known else run.tune())
    if shares is not None:
        unlimited = Budget("all", clock=budget.clock)  # the budget is the leader's affair
        _Helper(job, compiler, surrogate, policy, measurer, store, unlimited, listener, shares).help()
    if known := recalled():  # it has come to its end meanwhile
        return Resolution(store.publish_decision(job, known))
    try:
        known = earlier or stored(job, store) or _unmeasured(job, compiler, meanwhile or surrogate, measurer, store)
    except NoWorkingConfigError:  # the default breaks, and the other has found nothing yet that could run
        return Resolution(run.tune())
    log.info("%s: another process is tuning it; %s is run meanwhile", job.workload, known.config)
    return Resolution(known, FIRST_RETRY_S)


def _unmeasured(job: Job, compiler: Compiler, surrogate: Surrogate, measurer: Measurer, store: Store) -> Decision:
    """The best that is stored and forecast now, for as long as another process measures; of no run."""
    run = _Run(job, compiler, surrogate, _AnotherTunes(), measurer, store, Budget("0"), None, None)
    return replace(run.decide_unmeasured(), run="")


class _AnotherTunes:
    """A policy that leaves measuring to another process."""

    def step(self, view: View) -> Stop:  # noqa: ARG002  # the protocol's
        return Stop("another process is tuning it")


def stored(job: Job, store: Store) -> Decision | None:
    """The stored decision, if it is one of the job's space: a pack may say anything."""
    found = store.decision(job)
    return found if found is not None and found.config in job.space else None


class _Run:
    """The state of one tuning run."""

    def __init__(
        self,
        job: Job,
        compiler: Compiler,
        surrogate: Surrogate,
        policy: Policy,
        measurer: Measurer,
        store: Store,
        budget: Budget,
        listener: Listener | None,
        shares: WorkSharing | None,
    ) -> None:
        self.job = job
        self.space = job.space
        self.compiler = compiler
        self.surrogate = surrogate
        self.session: SurrogateSession | None = None  # started by the first forecast
        self.policy = policy
        self.measurer = measurer
        self.store = store
        self.budget = budget
        self.listener = listener
        self.shares = shares
        self.taken: frozenset[Config] = frozenset()  # by other processes, and not tried yet
        self.refused: set[Config] = set()  # by the shares, though nobody is known to have them
        self.held: Decision | None = None  # by the ranks, since this run has begun
        self.id = uuid.uuid4().hex
        self.outcomes: dict[Config, Outcome] = {}
        self.evidence: dict[Config, Evidence] = {}
        self.forecasts: Sequence[Forecast | Abstention] = ()
        self.ahead: Sequence[Forecast | Abstention] = ()  # the first of these
        self.tried: set[Config] = set()  # by this run
        self.earlier: dict[Config, Measurement] = {}  # stored times that are not brought to this run's scale yet
        self.finals: dict[Config, Measurement] = {}  # configs timed in turns
        self.compiled = 0

    # The three acts -------------------------------------------------------------------------------------------------

    def tune(self) -> Decision:
        with self.budget.total.running():
            stop = self.search()
            if self.measurer.repeatable and self.held is None:
                self.measure_finalists()
        if self.held is not None:
            log.info("%s: other ranks hold to %s, so tuning it ends", self.job.workload, self.held.config)
            return self.held
        if self.budget.total_left_s <= 0 and set(self.outcomes) <= {self.space.default}:
            # What is left to this key is what a budget of 0 is: its default's time alone decides nothing.
            self.store.note_pending(self.job, f"the total of this process was spent (budget {self.budget})")
            decision = self.decide(stop, by_forecast=True)
            basis = "default" if decision.basis == "measured" else decision.basis
            return self.store.publish_decision(self.job, replace(decision, basis=basis, measured=0))
        decision = self.decide(stop)
        self.store.decide(self.job, decision)
        self.tell_failures()
        held_to = self.store.publish_decision(self.job, decision)
        if held_to != decision:
            log.info("%s: other ranks hold to %s already", self.job.workload, held_to.config)
            return held_to
        self.tell("decided")
        log.info("%s: %s (%s)", self.job.workload, decision.config, decision.reason)
        return decision

    def decide_unmeasured(self) -> Decision:
        """Decide on what is stored and forecast. Not stored: measuring later must not find it in its way."""
        self.begin()
        step = self.policy.step(self.view())
        stop = step if isinstance(step, Stop) else Stop("nothing may be measured now")
        return self.decide(stop, by_forecast=not self.budget.measures)

    def search(self) -> Stop:
        """Ask the policy and do what it says until it stops or the budget is gone."""
        self.begin()
        if self.shares is None:
            return self.until_it_stops()
        first = self.space.default if self.space.default not in self.outcomes else None
        with self.shares.lead(self.id, self.budget.configs_left, first):
            stop = self.until_it_stops()
            while self.await_others():  # theirs may change what is worth trying
                stop = self.until_it_stops()
        return stop

    def until_it_stops(self) -> Stop:
        self.refused.clear()
        while True:
            self.learn_from_others()
            step = self.policy.step(self.view())
            if isinstance(step, Stop):
                return step
            if self.over():
                return Stop(f"the budget of {self.budget} is spent")
            self.bring_earlier()
            tried = len(self.tried)
            evident = len(self.evidence)
            refused = len(self.refused)
            if isinstance(step, Compile):
                self.compile(step.configs)
            else:
                self.measure(step.configs)
            if len(self.tried) == tried and len(self.evidence) == evident:
                if self.learn_from_others():
                    continue  # another process was faster
                if self.over():
                    return Stop(f"the budget of {self.budget} is spent")
                if self.shares is not None and len(self.refused) > refused and self.shares.wanted():
                    continue  # with what the policy asks for next
                return Stop("the policy asked for nothing new")
            self.forecast()

    def over(self) -> bool:
        """Whether nothing more is to be tried: the budget is spent, or the ranks hold to a decision by now."""
        if self.budget.exhausted:
            return True  # and what was measured is a decision, whatever the others hold to
        if self.held is None:
            self.held = self.store.shared_decision(self.job)
        return self.held is not None

    # Forecasting ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.budget.start(len(self.space))
        self.outcomes.update((c, o) for c, o in self.store.outcomes(self.job).items() if c in self.space)
        self.earlier = self.measured()
        default = self.outcomes.get(self.space.default)
        if isinstance(default, Failure) and default.crashed:
            self.measurer.spare_default()
        self.recordings = self.store.related_recordings(self.job)
        self.forecast()
        self.ahead = self.forecasts

    def forecast(self) -> None:
        try:
            if self.session is None:
                self.session = self.surrogate.start(ForecastContext(job=self.job, recordings=self.recordings))
            answer = self.session.predict(self.outcomes, self.evidence)
            if len(answer) != len(self.space):
                raise ValueError(f"it answered for {len(answer)} of {len(self.space)} configs")
            if strange := [a for a in answer if not isinstance(a, Forecast | Abstention)]:
                raise TypeError(f"it answered {strange[0]!r}, which is neither a Forecast nor an Abstention")
            self.forecasts = answer
        except Exception as err:  # a surrogate may be anything, a server included; tuning goes on without it
            log.warning("surrogate %s failed (%r): tuning goes on without forecasts", self.surrogate.name, err)
            name, reason = self.surrogate.name, repr(err)
            self.forecasts = [Abstention(name, reason)] * len(self.space)
        self.tell("forecast")

    @property
    def workers(self) -> int:
        """How many configs are built side by side: of a shared run, this process's part."""
        return self.compiler.workers if self.shares is None else max(1, self.compiler.workers // self.shares.processes)

    def view(self) -> View:
        elsewhere = self.taken | self.refused
        return View(
            space=self.space,
            forecasts=self.forecasts,
            outcomes={**dict.fromkeys(elsewhere, ELSEWHERE), **self.outcomes} if elsewhere else self.outcomes,
            evidence=self.evidence,
            configs_left=self.budget.configs_left - len(self.taken),
            seconds_left=self.budget.seconds_left,
            workers=self.workers,
            ahead=self.ahead,
        )

    # Sharing the work -----------------------------------------------------------------------------------------------

    def learn_from_others(self) -> bool:
        """Take in what other processes have tried and are trying; whether that has changed. The budget is for all."""
        if self.shares is None:
            return False
        # In this order: what is tried is recorded first and then no longer taken.
        taken = self.shares.claimed_by_others()
        recorded = self.store.outcomes(self.job)
        found = {c: o for c, o in recorded.items() if c in self.space and c not in self.outcomes}
        changed = bool(found) or taken != self.taken
        self.taken = taken
        self.refused -= taken  # from here on it is known whose they are, and when they are free again
        if found:
            self.outcomes.update(found)
            self.tried.update(found)
            self.budget.tried += len(found)
            self.forecast()
        return changed

    def await_others(self) -> bool:
        """Give others as long as a config takes to finish theirs; whether any of it came or was given up.

        No longer: a helper may itself wait for what this process sends once it has launched.
        """
        known = len(self.outcomes)
        awaited = self.taken
        self.learn_from_others()
        took_s = (o.cost_s for c, o in self.outcomes.items() if c in self.tried and isinstance(o, Measurement))
        most_s = 2 * max(took_s, default=0.0) + LAST_OTHERS_S
        until = time.monotonic() + min(most_s, self.budget.seconds_left)
        while self.taken and len(self.outcomes) == known and awaited <= self.taken and time.monotonic() < until:
            awaited = self.taken
            time.sleep(OTHERS_S)
            self.learn_from_others()
        return len(self.outcomes) > known or not awaited <= self.taken

    def take(self, config: Config) -> bool:
        """Take a config for this process; where that is refused, the policy is not to ask for it again."""
        if self.shares is None or self.shares.claim(config):
            return True
        self.refused.add(config)
        return False

    # Compiling and measuring ----------------------------------------------------------------------------------------

    def default_first(self, configs: Iterable[Config]) -> list[Config]:
        """The configs not tried yet, with the default before all others until something is known of it."""
        default = self.space.default
        chosen = [c for c in dict.fromkeys(configs) if c not in self.outcomes and c in self.space]
        if chosen and default not in self.outcomes:
            chosen = [default, *(c for c in chosen if c != default)]
        return chosen

    def compile(self, configs: Iterable[Config]) -> None:
        """Build configs; where building does not disturb timing, each is timed as soon as it is built."""
        wanted = [c for c in self.default_first(configs) if c not in self.evidence]
        room = self.budget.configs_left - sum(c not in self.outcomes for c in self.evidence)
        wanted = wanted[: int(max(0, min(room, len(wanted))))]
        if self.shares is not None:  # a few at a time: what is taken is nobody else's
            wanted = list(itertools.islice(filter(self.take, wanted), self.workers))
        with contextlib.closing(_closable(self.compiler.compile(wanted))) as building:
            for config, result in building:
                self.compiled += 1
                if isinstance(result, Failure):
                    self.keep(config, result)
                else:
                    self.evidence[config] = result
                self.tell("compiling")
                if self.compiler.beside_timing:
                    self.time(c for c in self.evidence if c not in self.outcomes)
                if self.over():
                    break

    def measure(self, configs: Iterable[Config]) -> None:
        """Time configs, building first those that are not built."""
        chosen = self.default_first(configs)
        if missing := [c for c in chosen if c not in self.evidence]:
            self.compile(missing)
        self.time(chosen)

    def time(self, configs: Iterable[Config]) -> None:
        """Time those of the configs that are built, none before the default is known."""
        for config in self.default_first(configs):
            if self.over():
                return
            if config not in self.evidence:
                if config == self.space.default:
                    return  # still being built
                continue
            outcome = self.measurer.measure(config, hopeless_us=self.hopeless_us(config))
            if isinstance(outcome, Measurement):
                outcome = replace(outcome, compile_s=self.evidence[config].compile_s)
            self.keep(config, outcome)
            self.tell("measuring")

    def hopeless_us(self, config: Config) -> float:
        """A first run longer than this leaves no chance that the config is the fastest: it need not be timed further.

        The forecast of log2(time / best time), a normal, is updated by that one run, read with an error of `ONE_RUN`
        octaves; hopeless is what then lies `SURE` deviations above the best.
        """
        ran = self.measured()
        reference = reference_us(self.outcomes, self.space.default)
        if not ran or reference is None:
            return math.inf
        best_us = next(iter(ran.values())).median_us
        forecast = self.forecasts[self.space.index(config)] if self.forecasts else None
        expected, precision = 0.0, 0.0
        if isinstance(forecast, Forecast):
            expected = math.log2(reference / best_us) - forecast.mean
            precision = 1 / max(forecast.sigma, LEAST_DOUBT) ** 2
        octaves = ONE_RUN**2 * (SURE * math.sqrt(precision + ONE_RUN**-2) - expected * precision)
        return best_us * float(2 ** max(octaves, 1.0))

    def keep(self, config: Config, outcome: Outcome) -> None:
        """Remember an outcome here and, with the forecast before it, in the store."""
        if config not in self.outcomes:  # else a finalist timed again, though perhaps first by an earlier run
            self.tried.add(config)
            self.budget.tried += 1
        doubtful = isinstance(outcome, Failure) and outcome.transient
        timed = isinstance(self.outcomes.get(config), Measurement)
        self.outcomes[config] = outcome
        forecast = self.forecasts[self.space.index(config)] if self.forecasts else None
        if not (doubtful and timed):
            self.store.record(self.job, self.id, config, outcome, forecast)
        if self.shares is not None:
            self.settle(self.shares, config, doubtful=doubtful)
        if isinstance(outcome, Failure):
            told = (outcome.stage, outcome.message, outcome.follows)
            log.info("%s: %s failed at %s: %s; %s", self.job.workload, config, *told)

    def settle(self, shares: WorkSharing, config: Config, *, doubtful: bool) -> None:  # noqa: ARG002  # a helper's
        """Say what became of a config that was taken; one that failed for no fault of its own counts as tried."""
        shares.tried(config)

    # Deciding -------------------------------------------------------------------------------------------------------

    def measured(self) -> dict[Config, Measurement]:
        """Configs that ran, fastest first; equal times in the order of the space."""
        ran = {c: o for c, o in self.outcomes.items() if isinstance(o, Measurement)}
        return _fastest_first(ran, self.space)

    def bring_earlier(self) -> None:
        """Bring the times of earlier runs to the scale of this one: a device is warmer now, or its clock another.

        Their default is timed once more for that; where they have none that ran, the fastest of theirs is.
        """
        if not (self.earlier and self.measurer.repeatable):
            return
        earlier, self.earlier = self.earlier, {}
        anchor = self.space.default if self.space.default in earlier else next(iter(earlier))
        self.compile_again([anchor])
        if anchor not in self.evidence:
            return
        with self.compiler.paused():
            outcome = self.measurer.measure(anchor)
        if isinstance(outcome, Failure):
            self.keep(anchor, outcome)
            return
        before = earlier.pop(anchor)
        self.keep(anchor, replace(outcome, compile_s=before.compile_s))
        for config, measurement in earlier.items():
            self.outcomes[config] = measurement.scaled(outcome.median_us / before.median_us)

    def measure_finalists(self) -> None:
        """Time the best few and the default again, in turns, so that all see the same state of the machine.

        Their new times are brought to the scale of the old ones, by which the default is as fast as it was.
        """
        ran = self.measured()
        if len(ran) < 2 or self.budget.seconds_left <= 0:
            return
        finalists = self.finalists(ran)
        if len(finalists) < 2:
            return  # nothing comes near the best
        self.compile_again([c for c in finalists if c not in self.evidence])
        finalists = [c for c in finalists if c in self.evidence]
        if len(finalists) < 2:
            return
        with self.compiler.paused():
            again = self.measure_in_turns(finalists)
        if not again or len(again) < len(finalists):
            return  # out of time before each had its turn: what is known already is the fairer comparison
        anchor = self.space.default if self.space.default in again else next(iter(again))
        scale = ran[anchor].median_us / again[anchor].median_us
        for config, measurement in again.items():
            first, scaled = ran[config], measurement.scaled(scale)
            self.finals[config] = replace(scaled, compile_s=first.compile_s, run_s=first.run_s + measurement.run_s)
            self.keep(config, self.finals[config])

    def finalists(self, ran: Mapping[Config, Measurement]) -> list[Config]:
        """The best few and the default; of those as good as equal to the best, the first in the space come first."""
        best_us = next(iter(ran.values())).median_us
        tie_us = best_us * (1 + TIE_MARGIN)
        close = [c for c, m in ran.items() if m.median_us * (1 - m.disturbance) <= best_us * (1 + FINALIST_WINDOW)]
        close.sort(key=lambda c: (max(ran[c].median_us, tie_us), self.space.index(c)))
        finalists, default = close[:FINALISTS], self.space.default
        return finalists if default in finalists or default not in ran else [*finalists, default]

    def measure_in_turns(self, finalists: list[Config]) -> dict[Config, Measurement]:
        """Each finalist's samples of all rounds; one that fails leaves the list."""
        again: dict[Config, Measurement] = {}
        for done in range(MOST_ROUNDS):
            if done >= FINAL_ROUNDS and _settled(again):
                break
            for config in list(finalists):
                if self.budget.seconds_left <= 0:
                    break
                outcome = self.measurer.measure(config)
                if isinstance(outcome, Failure):
                    finalists.remove(config)
                    again.pop(config, None)
                    self.keep(config, outcome)
                else:
                    again[config] = again[config].with_more(outcome) if config in again else outcome
                self.tell("measuring finalists")
        return again

    def compile_again(self, configs: Sequence[Config]) -> None:
        """Configs known from an earlier run are compiled here before they are timed beside the new ones."""
        for config, result in self.compiler.compile(configs):
            if isinstance(result, Failure):
                self.keep(config, result)
            else:
                self.evidence[config] = result

    def decide(self, stop: Stop, *, by_forecast: bool = False) -> Decision:
        """Decide on all that is known; `by_forecast`, where nothing may be measured, allows a config that was never run."""
        default = self.space.default
        # Who was not timed in turns may have been timed while the machine was quicker.
        ran = _fastest_first(self.finals, self.space) or self.measured()
        config, basis, reason = default, "default", stop.reason
        equivalents: tuple[Config, ...] = ()
        if stop.config is not None:
            config = stop.config
        elif ran:
            config, reason, equivalents = self.winner(ran)
            basis = "measured"
        trusted = self.trusted_forecast(ran.get(config)) if by_forecast and stop.config is None else None
        if trusted is not None:
            config, forecast = trusted
            basis, equivalents = "forecast", ()
            reason = (
                f"{forecast.source} forecasts {2**forecast.mean:.2f}x the default's speed, "
                f"{forecast.chance_above(0.0):.0%} sure that it is faster; {stop.reason}"
            )
        elif basis == "measured":
            reason = f"{reason}; {stop.reason}"
        elif not ran and self.outcomes:
            reason = f"{self.say_nothing_ran()}; {reason}"
        measured_us = {c: m.median_us for c, m in ran.items()}
        return Decision(
            config=config,
            basis=basis,
            reason=reason,
            equivalents=equivalents,
            space_digest=self.space.digest,
            space_size=len(self.space),
            budget=str(self.budget),
            forecast=sum(isinstance(f, Forecast) for f in self.forecasts),
            compiled=self.compiled,
            measured=len(self.tried),
            failed=sum(isinstance(self.outcomes[c], Failure) for c in self.tried),
            spent_s=self.budget.spent_s,
            config_us=measured_us.get(config),
            default_us=measured_us.get(default),
            run=self.id,
            decided_at=time.time(),
        )

    def winner(self, ran: dict[Config, Measurement]) -> tuple[Config, str, tuple[Config, ...]]:
        """The measured config to run, why, and those it cannot be told apart from.

        The fastest must beat the default by `SWITCH_MARGIN` and beyond twice the combined standard error. Among configs
        tied with the fastest, the one that stands first in the space wins, so that equal evidence always decides alike.
        """
        default = self.space.default
        best, fastest = next(iter(ran.items()))
        tied = [c for c, m in ran.items() if m.median_us <= fastest.median_us * (1 + _noise(m, fastest, TIE_MARGIN))]
        if default in ran:
            gain = ran[default].median_us / fastest.median_us - 1
            needed = _noise(ran[default], fastest, SWITCH_MARGIN)
            if best == default or gain <= needed:
                others = tuple(c for c in tied if c != default)
                return (
                    default,
                    f"no config tried beats the default by more than the noise ({needed:.1%})",
                    others,
                )
        chosen = min(tied, key=self.space.index)
        equivalents = tuple(c for c in tied if c != chosen)
        if default in ran:
            reason = f"{ran[default].median_us / ran[chosen].median_us:.2f}x the default's speed, measured"
        else:
            reason = "the fastest measured; the default does not run here"
        if equivalents:
            reason += f"; first in the space of {len(tied)} that cannot be told apart"
        return chosen, reason, equivalents

    def trusted_forecast(self, best: Measurement | None) -> tuple[Config, Forecast] | None:
        """An untried config whose forecast is good enough to choose it unmeasured, and that forecast; None without one."""
        reference = reference_us(self.outcomes, self.space.default)
        bar = math.log2(reference / best.median_us) if best and reference else 0.0
        bar += math.log2(1 + SWITCH_MARGIN)
        chosen, expected = None, bar
        for config, forecast in zip(self.space, self.forecasts, strict=False):
            if (
                isinstance(forecast, Forecast)
                and config not in self.outcomes
                and forecast.mean > expected
                and forecast.chance_above(bar) >= TRUST
            ):
                chosen, expected = (config, forecast), forecast.mean
        return chosen

    def say_nothing_ran(self) -> str:
        """That every config tried has failed, said to whoever must act on it, and where they did, in words.

        Raises:
            NoWorkingConfigError: the default, launched all the same, would bring its process down or never end.
        """
        failures = {c: o for c, o in self.outcomes.items() if isinstance(o, Failure)}
        stages = ", ".join(
            f"{count} at {stage}" for stage, count in Counter(f.stage for f in failures.values()).items()
        )
        told = f"none of {len(failures)} configs tried runs here ({stages})"
        default = failures.get(self.space.default)
        if default is not None and default.crashed:
            examples = "; ".join(f"{c}: {o.stage}: {o.message}" for c, o in list(failures.items())[:3])
            raise NoWorkingConfigError(
                f"{self.job.workload}: {told}, the default included: {examples}. Run it under a debugger, or set "
                "FORECAST_AUTOTUNE_MODE=first to launch the default anyway."
            )
        why = "" if default is None else f"; it failed: {default.message}"
        log.warning("%s: %s, so the first is launched%s", self.job.workload, told, why)
        return told

    def tell_failures(self) -> None:
        """Say once how many configs failed and why most of them did; loudly, if any did for another reason than its size."""
        failed = {c: o for c, o in self.outcomes.items() if c in self.tried and isinstance(o, Failure)}
        if not failed or not self.measured():  # that none runs is said already
            return
        odd = {c: o for c, o in failed.items() if not o.refused}
        among = odd or failed
        kinds = {c: (o.stage, o.message.partition(":")[0]) for c, o in among.items()}
        kind, count = Counter(kinds.values()).most_common(1)[0]
        first = next(c for c in among if kinds[c] == kind)
        # What the interpreter shows is kept in memory alone, where the command does not see it.
        kept = self.job.hardware.kind != "interpreter"
        failures_log.log(
            logging.WARNING if odd else logging.INFO,
            "%s: %d of %d configs tried failed, %d of them like %s at %s: %s%s",
            self.job.workload,
            len(failed),
            len(self.tried),
            count,
            first,
            failed[first].stage,
            _in_one_line(failed[first].message),
            f"; 'forecast-autotune show {self.job.digest[:SHOWN_DIGITS]}' lists all" if kept else "",
        )

    def tell(self, doing: str) -> None:
        if self.listener is None:
            return
        speedups = log2_speedups(self.outcomes, self.space.default)
        best = max(speedups, key=speedups.__getitem__, default=None)
        self.listener(
            Progress(
                job=self.job,
                doing=doing,
                forecast=len(self.forecasts),
                compiled=self.compiled,
                measured=len(self.tried),
                limit=self.budget.limit if self.budget.limit is not None else len(self.space),
                spent_s=self.budget.spent_s,
                best=best,
                best_speedup=None if best is None else 2 ** speedups[best],
            )
        )


class _Helper(_Run):
    """Measures for a run that another process leads, one config after the other, each by a policy's choice."""

    def help(self) -> None:
        """Try configs that nobody has taken, while there are any: it waits for none."""
        if self.shares is None or not self.shares.wanted():
            return
        with self.shares.device() as free:
            if not free:
                return
            self.begin()
            while self.shares.wanted():
                self.learn_from_others()
                step = self.policy.step(self.view())
                if isinstance(step, Stop):
                    return
                refused = len(self.refused)
                if config := next(filter(self.take, step.configs), None):
                    self.measure([config])
                    self.forecast()
                elif len(self.refused) == refused:
                    return

    def default_first(self, configs: Iterable[Config]) -> list[Config]:
        """The configs not tried yet; the default is the leader's."""
        return [c for c in dict.fromkeys(configs) if c not in self.outcomes and c in self.space]

    def over(self) -> bool:
        """Whether nothing more is to be tried; a single config is, once it was taken."""
        return self.budget.exhausted

    def settle(self, shares: WorkSharing, config: Config, *, doubtful: bool) -> None:
        """Give back what failed for no fault of its own, and help no more in this run.

        The next one would most likely fail too (this device's memory is full), and the whole budget be lost on it.
        """
        if doubtful:
            shares.release(config)
        else:
            shares.tried(config)


def _closable(
    building: Iterator[tuple[Config, Evidence | Failure]],
) -> Generator[tuple[Config, Evidence | Failure], None, None]:
    """The same as a generator, closing which closes it: so building stops when the budget is gone."""
    yield from building


@contextlib.contextmanager
def failures_untold() -> Iterator[None]:
    """Within this no failed configs are told of: those of a recording are nobody's to mend."""
    level = failures_log.level
    failures_log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        failures_log.setLevel(level)


def _in_one_line(message: str) -> str:
    """The first and the last line of a message: a compiler says where in the one and what in the other."""
    lines = message.strip().splitlines() or [message]
    text = " … ".join(dict.fromkeys(plain(line).strip() for line in (lines[0], lines[-1])))
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _fastest_first(ran: Mapping[Config, Measurement], space: Space) -> dict[Config, Measurement]:
    """Measurements by their medians; equal ones in the order of the space."""
    return dict(sorted(ran.items(), key=lambda item: (item[1].median_us, space.index(item[0]))))


def _settled(timed: Mapping[Config, Measurement]) -> bool:
    """Whether every config is either slower than the fastest beyond the noise, or known to be as good as equal to it."""
    best = min(timed.values(), key=lambda m: m.median_us, default=None)
    if best is None:
        return True
    noises = ((m.median_us / best.median_us - 1, _noise(m, best, 0.0)) for m in timed.values() if m is not best)
    return all(gap > noise or noise <= TIE_MARGIN for gap, noise in noises)


def _noise(a: Measurement, b: Measurement, floor: float) -> float:
    """Relative difference below which two medians are the same: twice their combined standard error, at least floor."""
    return max(floor, 2 * math.hypot(a.relative_error, b.relative_error))
