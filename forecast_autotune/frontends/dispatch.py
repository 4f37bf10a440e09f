"""The one way from a call to a launch: look the key up; on a miss take the tuning lock, decide, and keep an entry.

A front door is an adapter. It makes keys, and a `Tuning` for each call that misses. The dispatcher does the rest.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from sys import intern
from typing import Any, Protocol

from ..core.allowance import PROCESS_ALLOWANCE
from ..core.budget import NOTHING
from ..core.config import Config
from ..core.decision import FIRST_RETRY_S, Decision
from ..core.hardware import Hardware
from ..core.job import Job
from ..core.outcome import Failure
from ..core.signal_handlers import raised_by_signal_handler
from ..core.text import shown
from ..core.user_warnings import SEE_TRACEBACK, warn_user
from ..errors import CacheMissError, InvalidInputError, NoWorkingConfigError, TuningWarning
from ..measure.observers import unobserved, unpack_hook
from ..measure.real_calls import RealCalls
from ..protocols import Compiler, Listener, Store, Surrogate
from ..remote.fleet_store import open_store
from ..settings import Mode, Settings, remote_model_permission
from ..store.details import detail_in
from ..store.explanation.explanation import Explanation
from ..store.frozen import is_frozen
from ..store.rows import TuningKey
from ..store.sqlite import SqliteStore
from ..tuning.progress import Run, show_progress
from .call_tensors import UNDECIDED
from .deciding import decide, learn, untraced
from .key_table import Entry, KeyTable, Provisional, Recent
from .online.at_work import at_work
from .online.learning import Learnable, Learning
from .online.learning_threads import learners
from .online.unhurried import InBackground, RememberingPolicy
from .pending import holds_unmeasured
from .request import Request, make_request, takes_time
from .tuning_lock import tuning_lock

log = logging.getLogger(__name__)

MAX_PAUSE_S = 5.0  # between two look-ups of the decision that another process is making
PAUSE_AFTER_NONE_RAN = 10.0  # times what it took to find that again no config runs: before that is tried once more
NOT_DECIDED = Provisional()  # of an entry that serves one call alone

refusing: Callable[[], None] | None = None
"""Raises, while nothing may be decided; set and reset by `warming.nothing_launched`."""


class Tuning(Protocol):
    """One call to decide for: a front door makes it on a miss, and it is dropped with all it holds afterwards.

    Nothing in it may refer back to it: the caller's tensors would then live until the next full collection.
    """

    default: Any
    """The launcher of the first config, which runs where nothing can be decided."""

    device: str
    """Names the physical device whose processes share the work on one key; empty where they do not."""

    @property
    def job(self) -> Job | None:
        """The decision to make; None where there is only one config, or the call cannot be tuned."""

    @property
    def compiler(self) -> Compiler:
        """Builds the job's configs."""

    def measurer(self) -> AbstractContextManager[Any]:
        """Times the job's configs; asked once, and closed when the decision is made."""

    def launcher(self, config: Config) -> Any:
        """Makes the call under a config of the job."""

    def refused(self, config: Config, measurer: Any) -> Failure | None:
        """Why a config must not run in this process, by a comparison with the default; None where it was compared here."""

    def fallback(self, decision: Decision, *, measured_here: bool) -> tuple[Any, Config] | None:
        """The default's launcher and config, in case the decided config does not run; None where it is known to run."""

    def learnable(self) -> Learnable | None:
        """What to learn the key from its calls by, once this one is over; None where calls must not try configs."""

    def tell_listeners(self, decision: Decision, store: Store, *, measured: int, seconds: float) -> None:
        """Tell whoever listens. `measured` counts the configs timed for this decision."""


class FrontDoor(Protocol):
    """A kind of kernel, for the dispatcher: how its calls are described, and what there is to tune in one."""

    @property
    def name(self) -> str:
        """The kernel in warnings: `kernel matmul`."""

    def why_unmeasured(self, call: Any) -> str:
        """Why this very call must be neither timed nor waited for, such as a graph capture; empty where it may."""

    def default(self, call: Any) -> Any:
        """The launcher for a call whose key cannot be decided now."""

    def tuning(self, call: Any, request: Request) -> Tuning:
        """What there is to decide for a call. The caller's own mistakes are raised here."""

    def forget_shortcuts(self) -> None:
        """Have every next call ask the dispatcher."""


def _never(hardware: Hardware) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundDecision:
    """What was decided for a call, and what it rests on.

    Attributes:
        launcher: of the decision's config.
        learnable: what real calls may teach of the key; None where they are to teach nothing.
        measured: how many configs were timed for it in this process.
        is_refused: the config decided on does not run here, and the default took its place.
        retry_after_s: another process decides, and is to be asked again by then.
    """

    job: Job
    store: SqliteStore
    decision: Decision
    launcher: Any
    learnable: Learnable | None
    measured: int
    is_refused: bool
    retry_after_s: float | None

    @property
    def knows_default(self) -> bool:
        """Whether anything is known of the default config."""
        return self.job.space.default in self.store.outcomes(self.job)


class Dispatcher:
    """The decisions of one kernel by key, and the way to a missing one.

    Args:
        door: the kind of kernel.
        default_budget: where neither the code nor the environment names one.
        budget, mode, surrogate, shard: as the code gives them; the environment overrides all but `shard`.
        times_mean_nothing: whether times on some hardware say nothing to a later process; they are kept in memory.
    Raises:
        InvalidInputError: one of these does not parse.
    """

    def __init__(
        self,
        door: FrontDoor,
        *,
        default_budget: str,
        budget: str | int | None = None,
        mode: Mode | None = None,
        surrogate: str | Surrogate | None = None,
        shard: bool = False,
        times_mean_nothing: Callable[[Hardware], bool] = _never,
    ) -> None:
        self._door, self._times_mean_nothing = door, times_mean_nothing
        self._options: dict[str, Any] = {
            "budget": budget,
            "default_budget": default_budget,
            "mode": mode,
            "surrogate": surrogate,
            "shard": shard,
        }
        make_request(**self._options, environment=remote_model_permission())  # do they parse?
        self.table = KeyTable(door.forget_shortcuts)
        self.decisions: dict[Any, Decision] = Recent()
        self._best_so_far: dict[Any, Decision] = Recent()  # of keys that are learned, or were until that ended
        # Where each of them was kept.
        self._stored: dict[Any, tuple[TuningKey, Config, weakref.ref[SqliteStore]]] = Recent()
        self._memory: SqliteStore | None = None
        self._configs: dict[Config, Config] = {}  # of decisions, each once

    def copy(self, door: FrontDoor) -> Dispatcher:
        """Another one with the same options and entries, for a kernel that was copied."""
        made = Dispatcher(door, **self._options, times_mean_nothing=self._times_mean_nothing)
        made.table.update(self.table)
        made.decisions.update(self.decisions)
        made._best_so_far.update(self._best_so_far)
        made._stored.update(self._stored)
        return made

    def request(self, **changes: Any) -> Request:
        """How a decision is to be made now: the code's options and the environment's, as one request.

        Raises:
            InvalidInputError: a setting does not parse.
        """
        return make_request(**{**self._options, **changes})

    def why_unmeasured(self, call: Any) -> str:
        """See `FrontDoor`."""
        return self._door.why_unmeasured(call)

    def entry(self, key: Hashable, call: Any) -> Entry:
        """The entry for a call's key, decided now if it is still open.

        While another thread measures, nobody waits: the call runs what the key ran before, else the default, and the key
        stays open.

        Args:
            key: as it is looked up.
            call: as the front door takes it.
        Raises:
            AutotuneError: mode is `strict` and nothing is stored, no config works, or the call is a mistake.
        """
        if refusing is not None:
            refusing()
        unmeasured = self._door.why_unmeasured(call)
        entry = self.table.get(key)
        if entry is not None and _serves(entry, unmeasured):
            return entry
        with tuning_lock.held_unless_slow() as locked:
            before = self.table.get(key)
            if before is not None and _serves(before, unmeasured):
                return before
            if not locked:
                return before or Entry(
                    launcher=untraced(self._door.default)(call), awaits_measuring=True, provisional=NOT_DECIDED
                )
            version = self.table.version
            entry = untraced(self._decide)(key, call, unmeasured, before)
            if entry.awaits_measuring:
                holds_unmeasured(self)
            if not self.table.add(key, entry, version=version):
                entry.provisional = NOT_DECIDED  # chosen among configs that were assigned away meanwhile
                entry.learning = None
            if entry.learning is not None:
                learners.start(entry.learning)
            return entry

    def _decide(self, key: Hashable, call: Any, unmeasured: str, before: Entry | None) -> Entry:
        request = self._request_for(unmeasured)
        began = time.perf_counter()
        with unobserved(), show_progress(self._door.name) if takes_time(request) else nullcontext() as watched:
            tuning = self._door.tuning(call, request)
            provisional = Provisional(why=unmeasured) if unmeasured else None
            undecided = Entry(launcher=tuning.default, awaits_measuring=True, provisional=provisional)
            if request.settings.mode == "first" or unmeasured in UNDECIDED:
                return undecided
            try:
                previous = self.decisions.get(key) if _awaits_another_process(before) else None
                found = self._find(tuning, request, unmeasured, previous, watched)
            except (CacheMissError, InvalidInputError, NoWorkingConfigError):
                raise
            except Exception as err:
                if raised_by_signal_handler(err):
                    raise
                log.debug("tuning failed", exc_info=True)
                why = f"{type(err).__name__}: {err}; {SEE_TRACEBACK}"
                self._warn(f"{self._door.name} is not tuned, its first config is run: {why}")
                return undecided
            if found is None:
                return undecided
            if watched is not None and not found.is_refused and found.retry_after_s is None:
                self._tell(watched, found.job, found.decision, found.store, measured_here=found.measured > 0)
        decision = found.decision
        if decision.rests_on_outcomes or not unmeasured:  # else it is what this call makes do with, not the key's
            self._keep(key, decision, found.job, found.store)
        took_s = time.perf_counter() - began
        tuning.tell_listeners(decision, found.store, measured=found.measured, seconds=took_s)
        if found.retry_after_s is not None:
            provisional = _look_later(found.retry_after_s, before)
        elif request.budget.measures and decision.none_ran and not found.knows_default:
            provisional = _try_again(before, took_s)
        elif not decision.awaits_measuring:
            provisional = None
        entry = Entry(
            launcher=found.launcher,
            awaits_measuring=decision.awaits_measuring,
            provisional=provisional,
            fallback=tuning.fallback(decision, measured_here=found.measured > 0),
        )
        if found.learnable is not None and found.retry_after_s is None:
            entry.provisional = Provisional()
            entry.learning = self._learning(key, entry, found, found.learnable, request)
        return entry

    def _request_for(self, unmeasured: str) -> Request:
        """How a call's decision is to be made, which may not measure where there is a reason."""
        request = self.request()
        if unmeasured:
            request = replace(request, budget=NOTHING, unmeasured=unmeasured)
        if unpack_hook() is not None:
            request = replace(request, learns=None)
        return request

    def _find(
        self,
        tuning: Tuning,
        request: Request,
        unmeasured: str,
        previous: Decision | None,
        listener: Listener | None,
    ) -> _FoundDecision | None:
        """The decision for a call, and a launcher that runs as far as that is known; None where there is no job."""
        if (job := tuning.job) is None:
            return None
        store = self.store(job.hardware, request.settings)
        with tuning.measurer() as measurer, tuning_lock.slow(takes_time(request)):
            resolution = decide(
                job,
                request,
                compiler=tuning.compiler,
                measurer=measurer,
                store=store,
                listener=listener,
                device=tuning.device,
                previous_decision=previous,
            )
            decision, measured = resolution.decision, int(measurer.measured)
            may_compare = not unmeasured and decision.config != job.space.default
            failure = tuning.refused(decision.config, measurer) if may_compare else None
            if failure is not None:
                chosen_by = "was measured in another process" if measured else _source(decision)
                decision = self._refuse(job, decision, failure, store, chosen_by)
        may_learn = request.learns is not None and not unmeasured
        learnable = tuning.learnable() if may_learn and decision.awaits_measuring else None
        if learnable is not None and learnable.compares and not decision.rests_on_outcomes:
            decision = _by_default(decision, job.space.default, "nothing else was compared with it yet")
        return _FoundDecision(
            job=job,
            store=store,
            decision=self._slim(decision),
            launcher=tuning.launcher(decision.config),
            learnable=learnable,
            measured=measured,
            is_refused=failure is not None,
            retry_after_s=resolution.retry_after_s,
        )

    def _keep(self, key: Hashable, decision: Decision, job: Job, store: SqliteStore) -> None:
        self._best_so_far.pop(key, None)
        self.decisions[key] = decision
        self._stored[key] = TuningKey.of(job), job.space.default, weakref.ref(store)

    @staticmethod
    def _tell(watched: Run, job: Job, decision: Decision, store: SqliteStore, *, measured_here: bool) -> None:
        watched.tuned(job, decision, measured_here=measured_here, is_stored=not store.connection.in_memory)

    def _learning(
        self, key: Hashable, entry: Entry, found: _FoundDecision, learnable: Learnable, request: Request
    ) -> Learning:
        """What the calls of a key teach, which is launched on the config found meanwhile."""
        at_work.share = request.settings.online_cpu
        observed = RememberingPolicy(lambda: not is_frozen(request.settings.dir))
        calls = RealCalls(
            incumbent=found.decision.config,
            default=found.job.space.default,
            allowance=PROCESS_ALLOWANCE,
            share=request.settings.online_cost,
            new_event=learnable.new_event,
            on_host=learnable.on_host,
            keep_busy=learnable.keep_busy,
            is_idle=learnable.may_compare,
            may_compare=learnable.may_compare if learnable.compares else None,
            load=learnable.load,
            expected=observed.expected,
            waiting=at_work.left,
            makes_way=learners.makes_way,
            on_wanted=self._forget_shortcuts,
            on_better=lambda: self._note_best(key, entry, calls),
        )
        return Learning(
            calls,
            learnable.launcher,
            learnable.compared,
            learnable.is_built_for,
            partial(self._learn, key, entry, found.job, found.store, learnable, request, calls, observed),
            partial(self.settle, entry),
        )

    def _learn(
        self,
        key: Hashable,
        entry: Entry,
        job: Job,
        store: SqliteStore,
        learnable: Learnable,
        request: Request,
        calls: RealCalls,
        observed: RememberingPolicy,
    ) -> None:
        """Decide a key by its calls, for which this waits, and have its entry run the decision."""
        began, pause_s = time.perf_counter(), FIRST_RETRY_S
        compiler = InBackground(learnable.compiler, job.space.default, calls)
        once = partial(learn, job, request, compiler=compiler, calls=calls, observed=observed, store=store)
        while (resolution := once()).retry_after_s is not None:
            calls.rest(pause_s)  # another process or rank learns it
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        decision = self._slim(resolution.decision)
        for other, load in learnable.for_other_calls():
            _compile_ahead(decision.config, InBackground(other, job.space.default, calls), load)
        with self.table.lock:
            if self.table.peek(key) is not entry:  # configs were assigned away, or the program put one in
                return
            self._keep(key, decision, job, store)
            entry.launcher, entry.awaits_measuring = learnable.launcher(decision.config), decision.awaits_measuring
            entry.provisional = entry.learning = None
            self._door.forget_shortcuts()
        calls.end()  # not before: a call that finds it over leaves the key undecided
        with show_progress(self._door.name) as watched:
            if watched is not None:
                self._tell(watched, job, decision, store, measured_here=calls.measured > 0)
        learnable.tell_listeners(decision, store, seconds=time.perf_counter() - began)

    def _note_best(self, key: Hashable, entry: Entry, calls: RealCalls) -> None:
        """Have `explain` name what the calls of a key run that is still learned; `decisions` hold what is decided."""
        with self.table.lock:
            before = self.decisions.get(key)
            if before is None or self.table.peek(key) is not entry:
                return
            self._best_so_far[key] = replace(
                before,
                config=calls.incumbent,
                basis="measured",
                reason=f"the best of {calls.measured} that real calls have told of; the key is not decided",
                tried=calls.measured,
                config_us=calls.times.incumbent_us,
                default_us=calls.times.default_us,
            )

    def _forget_shortcuts(self) -> None:
        with self.table.lock:
            self._door.forget_shortcuts()

    def settle(self, entry: Entry) -> None:
        """Have calls of a key that is learned no more run the best known; one that made way is decided anew at its next."""
        with self.table.lock:
            learning, entry.learning = entry.learning, None
            if learning is not None:
                entry.launcher = learning.best()
                entry.provisional = Provisional(look_at=-math.inf) if learning.calls.made_way else None

    def _refuse(self, job: Job, decision: Decision, failure: Failure, store: Store, chosen_by: str) -> Decision:
        """The default in the place of a config that does not work in this process, where it was not measured."""
        store.record_outcome(job, decision.run, decision.config, replace(failure, transient=True), None)
        why = f"{'' if failure.stage == 'check' else 'it does not run: '}{failure.message}"
        self._warn(f"{self._door.name} runs its first config, not {decision.config}, which {chosen_by}: {why}")
        return _by_default(decision, job.space.default, f"{decision.config} {chosen_by}, but {why}")

    def run(self, key: Hashable, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call by the `call` of an entry's launcher.

        Where a config raises that this process has not run before, and the default does not, the default stays.

        Raises:
            Exception: what the call raises, under the default too.
        """
        fallback = entry.fallback
        if fallback is None:
            return entry.launcher.call(*args, **kwargs)
        try:
            result = entry.launcher.call(*args, **kwargs)
        except Exception as err:
            if raised_by_signal_handler(err):
                raise
            result = fallback[0].call(*args, **kwargs)  # where this raises too, it is the call, and the choice stays
            self.fall_back(key, entry, err)
            return result
        entry.fallback = None
        return result

    def _slim(self, decision: Decision) -> Decision:
        """The same decision, sharing configs and texts with others: thousands of keys have few of them."""
        same = self._configs.setdefault
        return replace(
            decision,
            config=same(decision.config, decision.config),
            equivalents=tuple(same(c, c) for c in decision.equivalents),
            reason=intern(decision.reason),
            space_digest=intern(decision.space_digest),
            budget=intern(decision.budget),
        )

    def fall_back(self, key: Hashable, entry: Entry, err: BaseException) -> None:
        """Put the default in the place of a config that does not run, and warn, once for a key."""
        with self.table.lock:  # not the tuning lock: another thread may be busy measuring
            if entry.fallback is None:
                return
            instead, default = entry.fallback
            decision = self.decisions.get(key)
            chosen = "another" if decision is None else decision.config
            why = f"the config chosen does not run: {type(err).__name__}: {err}"
            if decision is not None:
                self.decisions[key] = _by_default(decision, default, why)
                self._best_so_far.pop(key, None)
                if key in self._stored:  # a program may put decisions of its own into `decisions`
                    self._stored[key] = self._stored.pop(key)  # they leave these tables together
            entry.launcher, entry.fallback = instead, None
            self._door.forget_shortcuts()
        self._warn(
            f"{self._door.name} runs its first config, not {chosen}, which {_source(decision)} and which does not run: "
            f"{type(err).__name__}: {err}"
        )

    def forget_unmeasured(self) -> None:
        """Decide keys again, at their next call, that were decided without a measurement."""
        with tuning_lock.held():
            for key, entry in self.table.items():
                if entry.awaits_measuring:
                    self.decisions.pop(key, None)
                    self._best_so_far.pop(key, None)
                    self._stored.pop(key, None)
                    self.table.pop(key)

    def explain(self, key: Hashable | None = None) -> Explanation:
        """Why calls of a key run what they run.

        Args:
            key: one of `decisions`; None for the one decided last.
        Raises:
            InvalidInputError: nothing is decided for it.
        """
        decided = dict(self.decisions)
        if not decided:
            raise InvalidInputError(
                f"{self._door.name} has decided nothing in this process: call it first, in a mode other than first, and "
                "outside of what torch.compile traces, where nothing is measured; 'forecast-autotune list' and 'show' print "
                "what earlier processes decided, 'pending' what is still to be measured"
            )
        if key is None:
            key = next(reversed(decided))
        if key not in decided or key not in self._stored:
            raise InvalidInputError(
                f"{self._door.name} has decided nothing for {shown(key)}: .decisions holds its last {len(decided)} keys"
            )
        tuning_key, default, kept = self._stored[key]
        store = kept() or SqliteStore.in_memory()  # one that is gone, of mode forecast, knew no more than the decision
        return Explanation((detail_in(store, tuning_key, self._best_so_far.get(key) or decided[key], default),))

    def store(self, hardware: Hardware, settings: Settings) -> SqliteStore:
        """The user's store; one in memory, of this kernel alone, where times mean nothing to a later process."""
        if not self._times_mean_nothing(hardware):
            return open_store(settings)
        if self._memory is None:
            self._memory = SqliteStore.in_memory()
        return self._memory

    def _warn(self, text: str) -> None:
        warn_user(text, TuningWarning)


def _compile_ahead(config: Config, compiler: InBackground, load: Callable[[Config], None]) -> None:
    """Compile and load a config for calls that will run it."""
    try:
        for _ in compiler.compile([config]):
            load(config)
    except Exception as err:  # these calls compile it themselves, or raise
        log.debug("%s is not compiled ahead for other calls: %s", config, err)


def _source(decision: Decision | None) -> str:
    return "a forecast chose" if decision is None or decision.basis == "forecast" else "was recalled"


def _by_default(decision: Decision, default: Config, why: str) -> Decision:
    """A decision with its config replaced by the default."""
    return replace(decision, config=default, config_us=decision.default_us, basis="default", reason=why)


def _serves(entry: Entry, unmeasured: str) -> bool:
    """Whether a call may run an entry as it is now."""
    provisional = entry.provisional
    if provisional is None or unmeasured:
        return True
    return not provisional.why and time.monotonic() < provisional.look_at


def _awaits_another_process(entry: Entry | None) -> bool:
    return entry is not None and entry.provisional is not None and entry.provisional.awaits == "another process"


def _try_again(before: Entry | None, took_s: float) -> Provisional:
    """When to tune a key again of which no config ran, for a cause that may pass: at the next call, then more rarely.

    Args:
        took_s: what it took to find that out.
    """
    pause_s, earlier = 0.0, None if before is None else before.provisional
    if earlier is not None and earlier.awaits == "a config that runs":
        pause_s = max(PAUSE_AFTER_NONE_RAN * took_s, 2 * earlier.pause_s)
    return Provisional(look_at=time.monotonic() + pause_s, awaits="a config that runs", pause_s=pause_s)


def _look_later(retry_after_s: float, before: Entry | None) -> Provisional:
    """When to look for another process's decision: the pause doubles each time."""
    pause_s = retry_after_s
    if before is not None and before.provisional is not None:
        pause_s = min(MAX_PAUSE_S, max(pause_s, 2 * before.provisional.pause_s))
    return Provisional(look_at=time.monotonic() + pause_s, awaits="another process", pause_s=pause_s)
