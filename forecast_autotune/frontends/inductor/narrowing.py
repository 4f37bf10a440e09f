"""Which of Inductor's candidates go on to be compiled and timed, and what becomes of the times."""

from __future__ import annotations

import logging
import math
import operator
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...compilers.no_compile import NoCompiler
from ...core.budget import PROCESS_TOTAL, Budget
from ...core.config import Config
from ...core.forecast import Abstention, Forecast
from ...core.fork_safe_lock import fork_safe_lock
from ...core.garbage import no_collection
from ...core.job import Job
from ...core.outcome import Failure, Measurement, Outcome
from ...core.space import Space
from ...core.user_warnings import warn_user
from ...errors import TuningWarning
from ...features.forecast_columns import columns_of
from ...measure.no_measurer import NO_MEASURER
from ...remote.fleet_store import open_store
from ...store.sqlite import SqliteStore
from ..deciding import decide, decide_by_times, first_forecasts, hold_to, is_unread, ranks_decide, recall_once_read
from ..request import Request
from .candidates import Candidates, is_library
from .generated import kernels
from .listed import as_listed, is_extern
from .lowered import Lowered, is_fp8, is_number
from .product_candidates import LAUNCH_US, ProductCandidates
from .rendered import ATTENTION, RenderedCandidates, operation_of, sizes_of
from .request import DEFAULT_BUDGET, knows_libraries, operation_request, product_request
from .stragglers import LEFT_BEHIND, is_left_behind

log = logging.getLogger(__name__)

MIN_CHANCE = 1e-9  # of running: its logarithm is finite
# Times what the library is forecast to take: where the best template is beyond, none is compiled. Of 275 products, those of
# equal n and k left out, 47 % then have none, and 0.1 % is lost by that with a budget of 4 (`calibration fit-products`). Of
# 196 products of fp8 55 % have none, and as much is lost.
FAR_SLOWER = 1.2
# So many times as fast the best of the exhaustive list may be as that of Inductor's own. Where that would not do, the
# exhaustive list is not looked at, which takes ten times as long. Of 688 products drawn at random this decides 148 of 207
# that the exhaustive list leaves to the library, and four more, whose best template is forecast 1.17 times as slow (H200).
EXHAUSTIVE_GAIN = 1.1
MARK = "forecast_autotune"  # in a candidate's annotations: its selection, and its config
DROPPED = "forecast_autotune dropped"  # there: whether it is to be left out of the whole list
MAX_SELECTIONS = 256  # that are remembered
OTHER_RANKS = "this rank has not timed what the ranks decided on, and compiles its own best until the next process:"


@dataclass(slots=True)
class Trial:
    """Candidates of one product that Inductor was left to time, until it has.

    Attributes:
        spent_s: seconds of choosing them, later also of waiting for their compilers and of timing.
        began: when Inductor began to wait for their compilers, by `time.perf_counter`.
        outcomes: of those that were timed.
        left_behind: how many were not, for they compiled far longer than the others.
    """

    candidates: Candidates
    request: Request
    store: SqliteStore
    forecasts: Mapping[Config, Forecast | Abstention]
    model: str
    spent_s: float
    began: float = field(default_factory=time.perf_counter)
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    outcomes: dict[Config, Outcome] = field(default_factory=dict)
    left_behind: int = 0


@dataclass(slots=True)
class Selection:
    """What goes on of one product, and the trial of it where that is several candidates.

    Attributes:
        parameters: by config, in their order; once they are timed, the decided one alone.
        candidate_count: how many candidates there were.
        charged_trial: the trial that decided for a template, against a library that was charged for an epilogue.
        is_new: whether it is decided in this process by what is timed, or before all was read that other machines may have
            decided: caches of graphs know nothing of that yet.
        left_behind: what was left behind for it compiled far longer than the others, by what Inductor calls it.
        times_ms: of what was timed, by config, or by what Inductor calls it where it is none of ours.
    """

    parameters: Mapping[Config, tuple[str, Any]]
    candidate_count: int
    trial: Trial | None = None
    charged_trial: Trial | None = None
    is_new: bool = False
    left_behind: set[str] = field(default_factory=set)
    times_ms: dict[object, float] = field(default_factory=dict)

    @property
    def decided(self) -> Config:
        """What was decided, once there is no trial."""
        return next(iter(self.parameters))


@dataclass(slots=True)
class Counts:
    """What was done in this process, for `doctor`."""

    products: int = 0
    candidates: int = 0
    passed_on: int = 0
    recalled: int = 0
    forecast: int = 0
    timed: int = 0

    @property
    def text(self) -> str:
        """What was done, in words."""
        done = (
            f"of {self.candidates} candidates {self.passed_on} went on to Inductor, {self.timed} were timed; "
            f"{self.recalled} operations were decided by what is stored, {self.forecast} by a forecast"
        )
        return "; ".join(filter(None, [done, kernels.text]))


class _OfThread(threading.local):
    """What one thread compiles.

    Attributes:
        ahead: operands of a product, and what was listed for them before its other candidates.
        met_new: whether something in its graph is decided in this process.
    """

    ahead: tuple[Sequence[Any], list[Any]] = (), []
    met_new = False


class Narrowing:
    """Narrows lists and keeps times; one for a process, safe for threads."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.listens = False
        self._lock = fork_safe_lock()
        self._thread = _OfThread()
        self._selections: dict[tuple[object, ...], Selection] = {}  # a model has the same product in each of its layers

    @property
    def selections(self) -> tuple[Selection, ...]:
        """What is remembered of operations that were met in this process, the oldest first."""
        with self._lock:
            return tuple(self._selections.values())

    def narrow_listed(
        self, listed: list[Any], exhaustive: Callable[[], list[Any]], kernel_inputs: Any, op: str
    ) -> list[Any]:
        """The candidates for Inductor to go on with: one where it is decided, else some for it to compile and time.

        Args:
            listed: Inductor's own.
            exhaustive: lists more of the same templates.
        Raises:
            CacheMissError: mode is `strict` and nothing is decided.
        """
        if all(is_extern(candidate) for candidate in listed):
            if listed:  # torch 2.13 lists those of addmm by themselves, ahead of the others
                self._thread.ahead = kernel_inputs.nodes()[-2:], listed
            return listed
        ahead = [] if any(is_extern(candidate) for candidate in listed) else self._listed_ahead(kernel_inputs)
        passed_on = self._narrow_whole([*ahead, *listed], exhaustive, kernel_inputs, op)
        for candidate in ahead:
            candidate.annotations[DROPPED] = candidate not in passed_on
        return [candidate for candidate in passed_on if candidate not in ahead]

    def _listed_ahead(self, kernel_inputs: Any) -> list[Any]:
        """The library's functions that were listed in this thread for the same product before its other candidates."""
        nodes, listed = self._thread.ahead
        self._thread.ahead = (), []
        now = kernel_inputs.nodes()[-2:]
        return listed if len(nodes) == len(now) and all(map(operator.is_, nodes, now)) else []

    def _narrow_whole(
        self, listed: list[Any], exhaustive: Callable[[], list[Any]], kernel_inputs: Any, op: str
    ) -> list[Any]:
        """As `narrow_listed`, of a list that what was listed ahead is part of."""
        if len(listed) < 2:
            return listed
        if any(candidate.params.to_kwargs().get("hint_override") is not None for candidate in listed):
            return listed
        request = product_request(fp8=any(map(is_fp8, kernel_inputs.dtypes())))
        if request.settings.mode == "first":
            return listed[:1]
        lowered = Lowered.of(listed, kernel_inputs, op)

        def select() -> Selection:
            # Of thousands of objects that are made few stay; a collection would look through all of torch's: 0.2 s (H200).
            with no_collection():
                own = ProductCandidates(lowered, listed)
                if _library_is_far_ahead(own, request):
                    self._count(forecast=True)
                    return _selection_of(own, [own.job.space.default], request)
                candidates = ProductCandidates(lowered, listed, exhaustive())
            return self._select(candidates, request)

        selection = self._remembered_selection(lowered, request, select)
        passed_on = {config: as_listed(parameters, listed) for config, parameters in selection.parameters.items()}
        return _annotated(passed_on, selection)

    def narrow_rendered(self, listed: list[Any]) -> list[Any]:
        """Of what Inductor has rendered for a convolution or for flex attention, the candidates for it to go on with.

        Raises:
            CacheMissError: mode is `strict` and nothing is decided.
        """
        if len(listed) < 2 or not (operation := operation_of(listed)):
            return listed
        if not all(map(is_number, sizes_of(listed))):
            return listed
        request = operation_request() if operation in ATTENTION else product_request()
        candidates = RenderedCandidates(operation, listed)
        if request.settings.mode == "first":
            return [listed[candidates.places[candidates.job_without_features.space.default]]]
        digests = candidates.job_without_features.workload.digest, candidates.job_without_features.space.digest
        selection = self._remembered_selection(digests, request, lambda: self._select(candidates, request))
        return _annotated({config: listed[candidates.places[config]] for config in selection.parameters}, selection)

    def _remembered_selection(self, operation: object, request: Request, select: Callable[[], Selection]) -> Selection:
        """What was selected for an equal operation of this process, else what is selected now and remembered; it is counted.

        Args:
            operation: equal for equal operations; hashable.
            select: called where no equal operation was met yet.
        """
        key = (operation, request.settings.mode, request.budget, str(request.settings.dir))
        selection = self._selections.get(key)
        if selection is None:
            selection = select()
            with self._lock:
                self._selections[key] = selection
                while len(self._selections) > MAX_SELECTIONS:
                    del self._selections[next(iter(self._selections))]
        self._thread.met_new = self._thread.met_new or selection.is_new
        with self._lock:
            self.counts.products += 1
            self.counts.candidates += selection.candidate_count
            self.counts.passed_on += len(selection.parameters)
        return selection

    def _select(self, candidates: Candidates, request: Request) -> Selection:
        """What is stored, else the library where that is surely best, else what is forecast, or several to be timed."""
        began = time.perf_counter()
        store, budget, job = open_store(request.settings), Budget(request.budget), candidates.job_without_features
        measures = budget.measures and request.settings.mode != "strict"
        recalled = recall_once_read(job, request, store)
        # Not parsed: a pack may hold a budget's text that this version does not know, which is no error.
        few_were_tried = recalled is not None and measures and budget.all and "all" not in recalled.budget
        if recalled is not None and recalled.rests_on_outcomes and not few_were_tried:
            self._count(recalled=True)
            config = hold_to(job, request, store, recalled).config
            return Selection({config: candidates.parameters[config]}, len(candidates.parameters))
        with no_collection():
            job = candidates.job
        # Ranks time the same candidates whatever each has stored: else one could decide on what another has not compiled.
        informing = open_store(replace(request.settings, mode="forecast")) if ranks_decide(request) else store
        with PROCESS_TOTAL.running():
            forecasts, model = first_forecasts(job, request, informing)
        knows_library = candidates.library_is_foreseen and knows_libraries(request)
        may_be_sure = knows_library and not budget.all and (measures or recalled is None)
        if may_be_sure and times_the_library(job, forecasts, candidates.epilogue_us) > FAR_SLOWER:
            self._count(forecast=True)
            return _selection_of(candidates, [job.space.default], request)
        if not measures:
            job = candidates.unmeasured_job
            decision = decide(job, request, compiler=NoCompiler(), measurer=NO_MEASURER, store=store).decision
            self._count(forecast=True)
            keeps_library = is_library(job.space.default) and not knows_library
            return _selection_of(candidates, [job.space.default if keeps_library else decision.config], request)
        configs = shortlist(candidates, forecasts, _most_templates(candidates, forecasts, budget))
        by_config = dict(zip(job.space, forecasts, strict=True))
        trial = Trial(candidates, request, store, by_config, model, spent_s=time.perf_counter() - began)
        return _selection_of(candidates, configs, request, trial)

    def may_save_graph(self) -> bool:
        """Whether the graph that this thread has compiled may be kept under the name that our choices have in this process.

        Not where something in it was timed here, or a decision for it may still come from elsewhere: that name is of a store
        without it. A process with such a store, one that was cleared say, would find the graph and decide nothing.
        """
        met_new, self._thread.met_new = self._thread.met_new, False
        return not met_new

    @staticmethod
    def without_dropped(listed: list[Any]) -> list[Any]:
        """All that Inductor would time for an operation, without what was listed ahead and is not to go on."""
        return [choice for choice in listed if not getattr(choice, "annotations", {}).get(DROPPED)] or listed

    def _count(self, *, recalled: bool = False, forecast: bool = False) -> None:
        with self._lock:
            self.counts.recalled += recalled
            self.counts.forecast += forecast

    def record_and_decide(self, timings: MutableMapping[Any, float], precompile_s: Mapping[Any, float]) -> None:
        """Store what Inductor timed, each outcome with the forecast before it, and decide by it.

        The times of what was decided against become infinite, for Inductor to do nothing more with it. That of the library
        stays where a template was decided for: Inductor goes on to time that with an epilogue in it, and compares the two.

        Args:
            timings: milliseconds by Inductor's choices, infinite for what did not run.
            precompile_s: seconds that compiling took, of those that were compiled.
        """
        for selection, choices in _by_selection(timings):
            with self._lock:
                trial, selection.trial = selection.trial, None
            if trial is not None:  # else it is the same product in another layer: it was timed, and is kept
                selection.times_ms = {_key_of(choice): ms for choice, ms in timings.items()}
                trial.left_behind = sum(map(is_left_behind, choices.values()))
                for config, choice in choices.items():
                    if is_left_behind(choice):
                        continue
                    outcome = _outcome(timings[choice], (precompile_s or {}).get(choice, 0.0))
                    trial.outcomes[config] = outcome
                    trial.store.record_outcome(
                        trial.candidates.job, trial.run, config, outcome, trial.forecasts.get(config)
                    )
                with self._lock:
                    self.counts.timed += len(trial.outcomes)
                trial.spent_s += time.perf_counter() - trial.began
                self._decide(selection, trial, trial.candidates.epilogue_us)
                if trial.candidates.epilogue_us > 0 and not is_library(selection.decided):
                    selection.charged_trial = trial
                if selection.decided not in choices:
                    warn_user(f"{trial.candidates.job.workload}: {OTHER_RANKS} {selection.decided}", TuningWarning)
            _rule_out_others(timings, choices, selection)

    def time_within_total(self, choices: Sequence[Any], time_them: Callable[[], Any]) -> Any:
        """Have Inductor wait for an operation's compilers and time it: that is spent on tuning, where it is on trial.

        Once the process has spent its total, the library's function goes on, and nothing is waited for or timed. Ranks that
        decide together time all the same.
        """
        selection, ours = next(iter(_by_selection(choices)), (None, {}))
        trial = selection.trial if selection is not None else None
        if selection is None or trial is None:
            return time_them()
        budget = Budget(trial.request.budget, total=PROCESS_TOTAL)
        library = next(filter(is_library, ours), None)
        if library is not None and budget.total_left_s <= 0 and not ranks_decide(trial.request):
            why = f"the total of {budget.limits.total_seconds:g} s for this process is spent"
            trial.store.note_pending(trial.candidates.job, why)
            self._count(forecast=True)
            with self._lock:
                selection.trial, selection.parameters = None, {library: selection.parameters[library]}
                selection.times_ms = {key: 1.0 if key == library else math.inf for key in map(_key_of, choices)}
            return self.known_times_ms(choices)
        with PROCESS_TOTAL.running():
            trial.began = time.perf_counter()
            return time_them()

    @staticmethod
    def known_times_ms(choices: Sequence[Any]) -> dict[Any, float] | None:
        """Milliseconds of those of an operation's choices that were timed in this process, be it in another layer.

        None where none of the choices is on trial, or was.
        """
        for selection, _ in _by_selection(choices):
            return {
                choice: selection.times_ms[key] for choice in choices if (key := _key_of(choice)) in selection.times_ms
            }
        return None

    @staticmethod
    def may_leave_behind(choice: Any) -> bool:
        """Whether a candidate that compiles far longer than others may be left behind: what is timed is ours to choose.

        Not where all are to be timed, nor where ranks decide on what each of them has timed.
        """
        selection, _ = getattr(choice, "annotations", {}).get(MARK, (None, None))
        trial = selection.trial if selection is not None else None
        return trial is not None and not Budget(trial.request.budget).all and not ranks_decide(trial.request)

    def library_is_decided(self, buffer: Any) -> bool:
        """Whether the library is decided for a product, of which Inductor has the choices; they are timed now if need be."""
        if not (selections := _by_selection(buffer.choices)):
            return False
        buffer.choice_timings()
        return all(selection.trial is None and is_library(selection.decided) for selection, _ in selections)

    def decide_unfused(self, buffer: Any) -> None:
        """Decide anew, without a charge for an epilogue, on a product that Inductor fused with nothing."""
        for selection, choices in _by_selection(buffer.choices):
            with self._lock:
                charged_trial, selection.charged_trial = selection.charged_trial, None
            if charged_trial is not None:
                self._decide(selection, charged_trial, 0.0)
            if selection.trial is None:
                _rule_out_others(buffer.choice_timings(), choices, selection)

    def _decide(self, selection: Selection, trial: Trial, saved_us: float) -> None:
        """Decide by what was timed, the library charged for what an epilogue would save, and hold to what ranks decided."""
        job = trial.candidates.job
        outcomes = {
            config: replace(outcome, samples_us=tuple(us + saved_us for us in outcome.samples_us))
            if saved_us and is_library(config) and isinstance(outcome, Measurement)
            else outcome
            for config, outcome in trial.outcomes.items()
        }
        reason = f"Inductor timed {len(outcomes)} of {len(job.space)} candidates"
        if trial.left_behind:
            reason += f"; {trial.left_behind} left behind, whose compilers took far longer than the others'"
        if saved_us:
            reason += f"; of the library's, {saved_us:.1f} us are for an epilogue that a template takes in"
        decision = decide_by_times(
            job,
            trial.store,
            outcomes=outcomes,
            reason=reason,
            forecasts=tuple(trial.forecasts[config] for config in job.space),
            model=trial.model,
            compiled=sum(not is_library(config) for config in outcomes),
            budget=str(trial.request.budget),
            spent_s=trial.spent_s,
            run=trial.run,
        )
        decision = hold_to(job, trial.request, trial.store, decision)
        with self._lock:
            selection.parameters = {decision.config: trial.candidates.parameters[decision.config]}


def _by_selection(choices: Iterable[Any]) -> list[tuple[Selection, dict[Config, Any]]]:
    """Inductor's choices by their selection, each by its config; those that are not ours are left out."""
    found: dict[int, tuple[Selection, dict[Config, Any]]] = {}
    for choice in choices:
        if (mark := getattr(choice, "annotations", {}).get(MARK)) is not None:
            selection, config = mark
            found.setdefault(id(selection), (selection, {}))[1][config] = choice
    return list(found.values())


def _key_of(choice: Any) -> object:
    """What a choice is known by in equal operations, whose texts may differ: its config, where it is ours."""
    mark = getattr(choice, "annotations", {}).get(MARK)
    return choice.hash_key() if mark is None else mark[1]


def _rule_out_others(timings: MutableMapping[Any, float], choices: Mapping[Config, Any], selection: Selection) -> None:
    """Make the times infinite of what was decided against; not the library's, where a charge for an epilogue did that."""
    if selection.decided not in choices:
        return
    for config, choice in choices.items():
        if config != selection.decided and not (selection.charged_trial is not None and is_library(config)):
            timings[choice] = math.inf


def _selection_of(
    candidates: Candidates, configs: Sequence[Config], request: Request, trial: Trial | None = None
) -> Selection:
    """What goes on where nothing was recalled."""
    parameters = {config: candidates.parameters[config] for config in configs}
    may_come = is_unread(candidates.job_without_features, open_store(request.settings))
    return Selection(parameters, len(candidates.parameters), trial, is_new=trial is not None or may_come)


def _annotated(passed_on: Mapping[Config, Any], selection: Selection) -> list[Any]:
    """Inductor's candidates, marked with their selection and their configs where they are to be timed."""
    if selection.trial is not None:
        for config, candidate in passed_on.items():
            candidate.annotations.update({MARK: (selection, config), LEFT_BEHIND: selection.left_behind})
    return list(passed_on.values())


def _most_templates(candidates: Candidates, forecasts: Sequence[Forecast | Abstention], budget: Budget) -> float:
    """How many candidates beside the library's are to be timed at most."""
    if candidates.may_go_on_whole and not any(isinstance(f, Forecast) and f.grounded for f in forecasts):
        return math.inf
    budget.start(len(candidates.job.space))  # a share becomes a count
    return math.inf if budget.all else budget.limit or int(DEFAULT_BUDGET)


def shortlist(candidates: Candidates, forecasts: Sequence[Forecast | Abstention], most: float) -> list[Config]:
    """The externs and the best by the forecasts, `most` configs beside the externs; without externs the first is among them.

    Where nothing is forecast, they are the first that Inductor lists.
    """
    space, externs = candidates.job.space, candidates.externs
    others = [config for config in space if config not in set(externs)]
    promise = promises(space, forecasts)
    ranked = sorted(others, key=lambda config: -promise[config])
    chosen = dict.fromkeys([*externs, *([] if externs else others[:1]), *ranked])
    return list(chosen)[: len(externs) + int(min(most, len(others)))]


def _library_is_far_ahead(own: ProductCandidates, request: Request) -> bool:
    """Whether the library is as good as decided by what Inductor lists itself, for a product of which nothing is stored."""
    if (
        not own.library_is_foreseen
        or not knows_libraries(request)
        or Budget(request.budget).all
        or ranks_decide(request)
    ):
        return False
    store, job = open_store(request.settings), own.job_without_features
    if recall_once_read(job, request, store) is not None or store.outcomes(job):
        return False
    with PROCESS_TOTAL.running():
        forecasts, _ = first_forecasts(own.job, request, store)
    return times_the_library(own.job, forecasts, own.epilogue_us) > FAR_SLOWER * EXHAUSTIVE_GAIN


def times_the_library(job: Job, forecasts: Sequence[Forecast | Abstention], epilogue_us: float = 0.0) -> float:
    """How many times as long as the library the best of the templates is forecast to take; 0 where that is not told.

    Args:
        epilogue_us: what a template may save by taking in an epilogue.
    """
    import numpy as np

    mean = columns_of(forecasts).mean
    index = job.space.index(job.space.default)
    templates = np.array([not is_library(config) for config in job.space])
    if templates[index] or np.isnan(mean[index]) or not (templates & ~np.isnan(mean)).any():
        return 0.0
    library_us = LAUNCH_US + job.static_features[index].get("us_bound", 0.0)  # at least
    saved = math.log2(1.0 + epilogue_us / library_us)
    return float(2.0 ** (mean[index] - saved - np.nanmax(mean[templates])))


def promises(space: Space, forecasts: Sequence[Forecast | Abstention]) -> dict[Config, float]:
    """Expected log2 speed-up of each config, less the more often it may fail; minus infinity where nothing is forecast."""
    import numpy as np

    columns = columns_of(forecasts)
    promise = columns.mean + np.log2(np.maximum(1.0 - columns.fail, MIN_CHANCE))
    return dict(zip(space, np.nan_to_num(promise, nan=-np.inf).tolist(), strict=True))


def _outcome(ms: float, compile_s: float) -> Outcome:
    if math.isfinite(ms) and ms > 0:
        return Measurement(samples_us=(ms * 1e3,), compile_s=compile_s)
    return Failure(stage="launch", message="Inductor could not time it", cost_s=compile_s, transient=True)
