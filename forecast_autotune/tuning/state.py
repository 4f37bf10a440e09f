"""What one tuning run knows and has spent so far."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass

from ..core.budget import Budget
from ..core.config import Config
from ..core.job import Job, Progress, View, log2_speedups
from ..core.outcome import Evidence, Failure, Measurement, Outcome
from ..protocols import Compiler, Listener, Measurer, Policy, Store, Surrogate
from .decision_rule import Findings, measured
from .forecasting import Forecaster
from .sharing import Sharing
from .spending import Spending

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a front end hands in for a run."""

    compiler: Compiler
    surrogate: Surrogate
    policy: Policy
    measurer: Measurer
    store: Store
    listener: Listener | None = None


class RunState:
    """Outcomes, evidence and forecasts of one run, what it has tried, and its budget.

    Each outcome goes into the store as it comes, with the forecast that preceded it.
    """

    def __init__(self, job: Job, parts: Parts, budget: Budget, sharing: Sharing) -> None:
        self.job = job
        self.space = job.space
        self.store = parts.store
        self.budget = budget
        self.sharing = sharing
        self.forecaster = Forecaster(job, parts.surrogate)
        self.id = uuid.uuid4().hex
        self.outcomes: dict[Config, Outcome] = {}
        self.evidence: dict[Config, Evidence] = {}
        self.under_way: dict[Config, None] = {}  # begun and not tried yet, in that order; what is left behind stays
        self.left_behind: set[Config] = set()  # their builds took too long
        self.tried: set[Config] = set()  # by this run
        self.compiled = 0
        self.build_s: list[float] = []  # what each build of this run took
        self.spending = Spending(budget.clock)
        self.stored_measurements: dict[Config, Measurement] = {}  # stored times that are not on this run's scale yet
        self.finals: dict[Config, Measurement] = {}  # configs timed in turns
        self.drift = 0.0  # of the default: by which share it took longer in turns than at first
        self._listener = parts.listener
        self._measurer = parts.measurer
        self._up_to_date = False  # the forecasts

    def seed(self) -> None:
        """Start the budget, and take in what earlier runs found out about these configs."""
        self.budget.start(len(self.space))
        self.outcomes.update((c, o) for c, o in self.store.outcomes(self.job).items() if c in self.space)
        self.stored_measurements = self.measured()

    @property
    def progress(self) -> tuple[int, int, int]:
        """How many configs were tried, built and left behind; equal after a step that did nothing."""
        return len(self.tried), len(self.evidence), len(self.left_behind)

    @property
    def configs_left(self) -> float:
        """How many configs may still be begun."""
        return self.budget.configs_left - len(self.under_way)

    def is_busy(self, config: Config) -> bool:
        """Whether a config was tried or is under way."""
        return config in self.outcomes or config in self.under_way

    def forecast_first(self) -> None:
        """Make the first forecasts, unless they are made: each outcome is stored with the forecast that preceded it."""
        if not self.forecaster.forecasts:
            self.forecast()

    def forecast(self) -> None:
        """Forecast every config from what is known of this key and of related ones, unless nothing is new since."""
        if self._up_to_date:
            return
        self._up_to_date = True
        self.report("forecasting")
        if self.forecaster.forecasts:
            self.forecaster.update(self.outcomes, self.evidence)
        else:
            self.forecaster.start(self.store.related_recordings(self.job), self.outcomes, self.evidence)

    def keep(self, config: Config, outcome: Outcome) -> None:
        """Remember an outcome, in the store too; a transient failure never replaces a time."""
        if config not in self.outcomes:  # else it is timed again: as a finalist, or to compare with earlier runs
            self.tried.add(config)
            self.budget.tried += 1
        self.under_way.pop(config, None)
        self._up_to_date = False
        transient = isinstance(outcome, Failure) and outcome.transient
        if not (transient and isinstance(self.outcomes.get(config), Measurement)):
            self.outcomes[config] = outcome
            self.store.record_outcome(self.job, self.id, config, outcome, self.forecaster.of(config))
        self.sharing.settle(config, transient=transient)
        if isinstance(outcome, Failure):
            facts = (outcome.stage, outcome.message, outcome.follows)
            log.info("%s: %s failed at %s: %s; %s", self.job.workload, config, *facts)

    def learn_from_others(self) -> bool:
        """Take in what other processes have tried and are trying; whether any of that is new."""
        # In this order: a config that was tried is recorded first, and only then no longer claimed.
        changed = self.sharing.refresh()
        recorded = self.sharing.outcomes()
        new = {c: o for c, o in recorded.items() if c in self.space and c not in self.outcomes}
        if new:
            self.outcomes.update(new)
            self.tried.update(new)
            self.budget.tried += len(new)
            self._up_to_date = False
        return changed or bool(new)

    def measured(self) -> dict[Config, Measurement]:
        """The configs that ran, fastest first."""
        return measured(self.outcomes, self.space)

    def view(self, workers: int) -> View:
        """What the policy may look at.

        Args:
            workers: how many more configs can be compiled at once.
        """
        self.forecast()
        others = (self.sharing.claimed | self.sharing.refused) - self.outcomes.keys()
        return View(
            space=self.space,
            forecasts=self.forecaster.forecasts,
            outcomes=self.outcomes,
            evidence=self.evidence,
            configs_left=self.configs_left - len(self.sharing.claimed),
            seconds_left=self.budget.seconds_left,
            workers=workers,
            initial_forecasts=self.forecaster.initial,
            under_way=tuple({**self.under_way, **dict.fromkeys(others)}),
        )

    def findings(self) -> Findings:
        """What the decision rests on."""
        return Findings(
            job=self.job,
            outcomes=self.outcomes,
            finals=self.finals,
            forecasts=self.forecaster.forecasts,
            tried=self.tried,
            compiled=self.compiled,
            budget=str(self.budget),
            spent_s=self.budget.spent_s,
            waiting_s=self.spending.waiting_s,
            compiling_s=self.spending.compiling_s,
            timing_s=self.spending.timing_s,
            explored_s=self._measurer.explored_s,
            saved_s=max(0.0, self._measurer.saved_s),
            left_behind=len(self.left_behind),
            run=self.id,
            now=time.time(),
            model=self.forecaster.model_version,
        )

    def report(self, doing: str, *, timing: bool = False) -> None:
        """Tell the listener what is done next and how far the run has come; `timing` holds until the next report."""
        if self._listener is None:
            return
        speedups = log2_speedups(self.outcomes, self.space.default)
        best = max(speedups, key=speedups.__getitem__, default=None)
        self._listener(
            Progress(
                job=self.job,
                doing=doing,
                forecast=len(self.forecaster.forecasts),
                compiled=self.compiled,
                tried=len(self.tried),
                limit=self.budget.limit if self.budget.limit is not None else len(self.space),
                spent_s=self.budget.spent_s,
                best=best,
                best_speedup=None if best is None else 2 ** speedups[best],
                seconds_left=self.budget.seconds_left,
                timing=timing,
            )
        )
