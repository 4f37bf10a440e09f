"""The one way from a call to a launch: what is decided for its key, else whose turn it is, a request, a decision.

A front door is an adapter: it makes keys, and a `Tuning` for a call whose key nothing is decided for. All else is here.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from sys import intern
from typing import Any, Protocol

from ..core.budget import BudgetLimits
from ..core.config import Config
from ..core.decision import Decision
from ..core.hardware import Hardware
from ..core.job import Job
from ..core.outcome import Failure
from ..core.workload import Work
from ..errors import CacheMissError, InvalidInputError, NoWorkingConfigError, TuningWarning
from ..protocols import Compiler, Store, Surrogate
from ..settings import Settings
from ..store.sqlite import SqliteStore
from .engine import Request, decide, make_store, request, takes_time, untraced
from .key_table import Entry, KeyTable, Provisional, Recent
from .pending import holds_unmeasured, is_unmeasured
from .simulated_driver import current_rehearsal
from .turn import turn

log = logging.getLogger(__name__)

MOST_PAUSE_S = 5.0  # between two looks for the decision of another process that tunes a key
NOT_DECIDED = Provisional()  # of an entry that serves one call and is not kept


class Tuning(Protocol):
    """What there is to decide for one call: made by a front door for a miss, dropped with all it holds when that is over.

    Nothing here may refer back to it, else the caller's tensors would live until the next full collection.
    """

    default: Any
    """What runs where nothing can be decided: the launcher of the first config."""

    device: str
    """Identifies the physical device where the work on one key is shared among processes; else empty."""

    @property
    def job(self) -> Job | None:
        """The decision to make; None where there is but one config."""

    @property
    def compiler(self) -> Compiler:
        """What builds its configs."""

    def measurer(self) -> AbstractContextManager[Any]:
        """What times its configs; asked once."""

    def launcher(self, config: Config) -> Any:
        """What makes a call under a config of the job."""

    def refused(self, config: Config, measurer: Any) -> Failure | None:
        """Why a config that this process has not run must not be used, by a run of it beside the default."""

    def fallback(self, decision: Decision, *, measured_here: bool) -> tuple[Any, Config] | None:
        """The default's launcher and config, should the decided config not run; None where that is known to run."""

    def decided(self, decision: Decision, store: Store, *, measured: int, seconds: float) -> None:
        """Tell whoever listens; `measured` counts the configs that this run was to time."""


class FrontDoor(Protocol):
    """A kind of kernel: how it is called and what is tuned of it."""

    @property
    def name(self) -> str:
        """What warnings call it, as in `kernel matmul`."""

    def why_unmeasured(self, call: Any) -> str:
        """Why this very call must be neither timed nor waited for; empty where it may."""

    def default(self, call: Any) -> Any:
        """What runs a call whose key cannot be decided now."""

    def tuning(self, call: Any, how: Request) -> Tuning:
        """What there is to decide for a call. What is the caller's own mistake is raised here."""

    def forget_shortcuts(self) -> None:
        """Have every next call ask the dispatcher."""


class Dispatcher:
    """What the calls of one kernel run: decisions by key, and how a missing one is made.

    Args:
        door: the kind of kernel.
        default_budget: where neither the code nor the environment names one.
        budget, mode, surrogate, shard: what the code says; the environment overrides all but `shard`.
    Raises:
        InvalidInputError: one of these does not parse.
    """

    def __init__(
        self,
        door: FrontDoor,
        *,
        default_budget: str,
        budget: str | int | None = None,
        mode: str | None = None,
        surrogate: str | Surrogate | None = None,
        shard: bool = False,
    ) -> None:
        self._door = door
        self._options: dict[str, Any] = {
            "budget": budget,
            "default_budget": default_budget,
            "mode": mode,
            "surrogate": surrogate,
            "shard": shard,
        }
        BudgetLimits.parse(request(**self._options, environment={}).budget)  # does it parse?
        self.table = KeyTable(door.forget_shortcuts)
        self.decisions: dict[Any, Decision] = Recent()
        self._memory: Store | None = None
        self._configs: dict[Config, Config] = {}  # of decisions, each once

    def copy(self, door: FrontDoor) -> Dispatcher:
        """Another one with the same options and entries, for a kernel that was copied."""
        made = Dispatcher(door, **self._options)
        made.table.update(self.table)
        made.decisions.update(self.decisions)
        return made

    def request(self, **changes: Any) -> Request:
        """How a decision is to be made now.

        Raises:
            InvalidInputError: a setting does not parse.
        """
        return request(**{**self._options, **changes})

    def entry(self, key: Hashable, call: Any) -> Entry:
        """What a call of a key runs, decided now if that is still to be done.

        Nobody waits for what takes long: while another thread measures it is the default, and the key stays open.
        """
        unmeasured = self._door.why_unmeasured(call)
        entry = self.table.get(key)
        if entry is not None and _serves(entry, unmeasured):
            return entry
        with turn.unless_it_takes_time() as ours:
            before = self.table.get(key)
            if before is not None and _serves(before, unmeasured):
                return before
            if not ours:
                return before or Entry(
                    launcher=untraced(self._door.default)(call), measured=False, provisional=NOT_DECIDED
                )
            version = self.table.version
            entry = untraced(self._decide)(key, call, unmeasured, before)
            if not entry.measured:
                holds_unmeasured(self)
            if not self.table.add(key, entry, version=version):
                entry.provisional = NOT_DECIDED  # chosen among configs that were assigned away meanwhile
            return entry

    def _decide(self, key: Hashable, call: Any, unmeasured: str, before: Entry | None) -> Entry:
        how = self.request()
        if unmeasured:
            how = replace(how, budget="0", unmeasured=unmeasured)
        began = time.perf_counter()
        tuning = self._door.tuning(call, how)
        provisional = Provisional(why=unmeasured) if unmeasured else None
        undecided = Entry(launcher=tuning.default, measured=False, provisional=provisional)
        if how.settings.mode == "first":
            return undecided
        try:
            if (job := tuning.job) is None:
                return undecided
            store = self.store(job.hardware, how.settings)
            with tuning.measurer() as measurer, turn.taking_time(takes_time(how)):
                resolution = decide(
                    job,
                    how,
                    compiler=tuning.compiler,
                    measurer=measurer,
                    store=store,
                    device=tuning.device,
                    earlier=self.decisions.get(key) if _awaits_another_process(before) else None,
                )
                decision, measured = resolution.decision, int(measurer.measured)
                untried = not (measured or unmeasured) and decision.config != job.space.default
                if untried and (failure := tuning.refused(decision.config, measurer)) is not None:
                    decision = self._refuse(job, decision, failure, store)
            launcher = tuning.launcher(decision.config)
        except (CacheMissError, InvalidInputError, NoWorkingConfigError):
            raise
        except Exception as err:
            log.debug("tuning failed", exc_info=True)
            self._warn(f"{self._door.name} is not tuned, its first config is run: {type(err).__name__}: {err}")
            return undecided
        decision = self._slim(decision)
        if decision.tried or not unmeasured:  # else it is no decision of the key's, but what this call makes do with
            self.decisions[key] = decision
        tuning.decided(decision, store, measured=measured, seconds=time.perf_counter() - began)
        is_measured = not is_unmeasured(decision)
        if resolution.retry_after_s is not None:
            provisional = _look_later(resolution.retry_after_s, before)
        elif is_measured:
            provisional = None
        return Entry(
            launcher=launcher,
            measured=is_measured,
            provisional=provisional,
            fallback=tuning.fallback(decision, measured_here=measured > 0),
        )

    def _refuse(self, job: Job, decision: Decision, failure: Failure, store: Store) -> Decision:
        """The default in the place of a choice that was recalled or forecast and proved wrong in this process."""
        store.record(job, decision.run, decision.config, replace(failure, transient=True), None)
        why = f"{'' if failure.stage == 'check' else 'it does not run: '}{failure.message}"
        self._warn(f"{self._door.name} runs its first config, not {decision.config}, which {_source(decision)}: {why}")
        return _by_default(decision, job.space.default, f"{decision.config} {_source(decision)}, but {why}")

    def run(self, key: Hashable, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call by an entry's launcher, whose attribute `call` does that.

        Where a choice raises that this process has not run before, and the default does not, that is kept.
        """
        fallback = entry.fallback
        if fallback is None:
            return entry.launcher.call(*args, **kwargs)
        try:
            result = entry.launcher.call(*args, **kwargs)
        except Exception as err:
            result = fallback[0].call(*args, **kwargs)  # where this raises too, it is the call, and the choice stays
            self.fall_back(key, entry, err)
            return result
        entry.fallback = None
        return result

    def _slim(self, decision: Decision) -> Decision:
        """The same, holding what others hold already: thousands of keys have few configs and reasons."""
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
        """Put the default in the place of a config that does not run, and say so, once for a key."""
        with self.table.lock:  # not one's turn to decide: another thread may be busy measuring
            if entry.fallback is None:
                return
            instead, default = entry.fallback
            decision = self.decisions.get(key)
            chosen = "another" if decision is None else decision.config
            why = f"the config chosen does not run: {type(err).__name__}: {err}"
            if decision is not None:
                self.decisions[key] = _by_default(decision, default, why)
            entry.launcher, entry.fallback = instead, None
            self._door.forget_shortcuts()
        self._warn(
            f"{self._door.name} runs its first config, not {chosen}, which {_source(decision)} and which does not run: "
            f"{type(err).__name__}: {err}"
        )

    def forget_unmeasured(self) -> None:
        """Decide again, when they are next met, keys whose decision measuring had no say in."""
        with turn.taken():
            for key, entry in self.table.items():
                if not entry.measured:
                    self.decisions.pop(key, None)
                    self.table.pop(key)

    def store(self, hardware: Hardware, settings: Settings) -> Store:
        """The user's store; one of this kernel's own in memory where times mean nothing to anybody later."""
        if hardware.kind not in ("interpreter", "stub") or current_rehearsal() is not None:
            return make_store(settings)
        if self._memory is None:
            self._memory = SqliteStore.in_memory()
        return self._memory

    def _warn(self, text: str) -> None:
        warnings.warn(text, TuningWarning, stacklevel=6)


def _source(decision: Decision | None) -> str:
    return "a forecast chose" if decision is None or decision.basis == "forecast" else "was recalled"


def _by_default(decision: Decision, default: Config, why: str) -> Decision:
    """A decision with the default in the place of its config."""
    return replace(decision, config=default, config_us=decision.default_us, basis="default", reason=why)


def work_of_call(work: Callable[..., Any] | None, values: Any, name: str) -> Work | None:
    """What `work=` of the user's says of a call: `Work`, or a pair of flops and bytes; None where it says nothing."""
    if work is None:
        return None
    try:
        answer = work(*values)
        return answer if isinstance(answer, Work) else Work(flops=float(answer[0]), bytes=float(answer[1]))
    except Exception as err:
        warnings.warn(f"work= of {name} failed ({err!r}): forecast without it", TuningWarning, stacklevel=6)
        return None


def _serves(entry: Entry, unmeasured: str) -> bool:
    """Whether an entry says all there is to say for a call now."""
    provisional = entry.provisional
    if provisional is None or unmeasured:
        return True
    return not provisional.why and time.monotonic() < provisional.look_at


def _awaits_another_process(entry: Entry | None) -> bool:
    return entry is not None and entry.provisional is not None and math.isfinite(entry.provisional.look_at)


def _look_later(retry_after_s: float, before: Entry | None) -> Provisional:
    """When to look for another process's decision: later each time."""
    pause_s = retry_after_s
    if before is not None and before.provisional is not None:
        pause_s = min(MOST_PAUSE_S, max(pause_s, 2 * before.provisional.pause_s))
    return Provisional(look_at=time.monotonic() + pause_s, pause_s=pause_s)
