"""JobStore: ranks without a common disk come to one decision through their job's key-value store, no collectives."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from ..core.config import Config
from ..core.decision import Decision
from ..core.digest import digest
from ..core.forecast import Abstention, Forecast
from ..core.job import Job, Recording
from ..core.outcome import Outcome
from ..core.user_warnings import warn_once
from ..errors import InvalidInputError, TuningWarning
from ..protocols import Store
from ..store.encoding import (
    decode_decision,
    decode_workload,
    encode_decision,
    encode_workload,
    fields,
    from_text,
    to_text,
)
from ..store.rows import TuningKey
from .job_channel import CALL_S, JobChannel, KeySighting, UnreachableError

log = logging.getLogger(__name__)

FREE = "free"
"""Stands in the place of a claim that its rank released without a decision."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long ranks wait for one another before they act themselves, in seconds. No launch waits for any of it."""

    grace_s: float = 1.0  # for rank 0 to meet the key, before another rank tunes it
    beat_s: float = 1.0  # between two heartbeats of the rank that tunes
    silent_s: float = 10.0  # without a heartbeat, after which another rank takes its place
    call_s: float = CALL_S  # for an answer of the key-value store


class JobStore:
    """A rank's own store, and with it the decisions that all ranks of the job use.

    All ranks use the first decision published for a job: a rank that knows one publishes it, and a rank that comes to
    another one adopts the first. One rank tunes, rank 0 if it meets the key at once, and sends heartbeats; the others wait
    for nothing, and adopt its decision when they ask again. Where measuring is not allowed, all use the first rank's
    forecast. Nobody waits for a rank that never meets a key. Where the key-value store cannot be reached, a rank goes on
    with its own store, with one warning.

    Args:
        own: this rank's store.
        channel: the way to the other ranks.
        measures: whether measuring is allowed. Decisions made without measuring are published apart, so that they do not
            stand in the way once measuring is allowed.
        patience: how long ranks wait for one another.
    """

    def __init__(
        self, own: Store, channel: JobChannel, *, measures: bool = True, patience: Patience | None = None
    ) -> None:
        self.own = own
        self.channel = channel
        self.measures = measures
        self.patience = patience or Patience()
        self._unusable: set[str] = set()  # keys of jobs whose published decision cannot be used
        self._read_at: dict[str, float] = {}  # when this rank, leading at a key, last read whether it is decided

    # This rank's own ------------------------------------------------------------------------------------------------

    def decision(self, job: Job) -> Decision | None:
        """See `Store.decision`; of this rank's own store."""
        return self.own.decision(job)

    def decision_for_any_constexprs(self, job: Job) -> Decision | None:
        """See `Store.decision_for_any_constexprs`; of this rank's own store."""
        return self.own.decision_for_any_constexprs(job)

    def outcomes(self, job: Job) -> Mapping[Config, Outcome]:
        """See `Store.outcomes`."""
        return self.own.outcomes(job)

    def related_recordings(self, job: Job) -> Sequence[Recording]:
        """See `Store.related_recordings`."""
        return self.own.related_recordings(job)

    def record_outcome(
        self, job: Job, run: str, config: Config, outcome: Outcome, forecast: Forecast | Abstention | None
    ) -> None:
        """See `Store.record_outcome`."""
        self.own.record_outcome(job, run, config, outcome, forecast)

    def record_decision(self, job: Job, decision: Decision) -> None:
        """See `Store.record_decision`."""
        self.own.record_decision(job, decision)

    def note_pending(self, job: Job, why: str) -> None:
        """See `Store.note_pending`."""
        self.own.note_pending(job, why)

    # All ranks' ------------------------------------------------------------------------------------------------------

    def shared_decision(self, job: Job) -> Decision | None:
        """The decision published first; a measured one is also kept in this rank's store, for the next job.

        One made for other constexprs is kept for those, and carried over to the job's.

        The rank that leads reads it once a heartbeat, however often it is asked.
        """
        key = self._key(job)
        if key in _led_by_this_thread():
            now = time.monotonic()
            if now - self._read_at.get(key, -math.inf) < self.patience.beat_s:
                return None
            self._read_at[key] = now
        text = self._ask(job, lambda: self.channel.read(f"{key}/decision"))
        if text is None:
            return None
        self.channel.seen.pop(key, None)
        return self._adopt(job, text)

    def publish_decision(self, job: Job, decision: Decision) -> Decision:
        """Publish a decision; returns the one that was first, which is this one where the ranks cannot be reached."""
        key = self._key(job)
        text = to_text({**encode_decision(decision), "workload": encode_workload(job.workload)})
        held = self._ask(job, lambda: self.channel.swap(f"{key}/decision", "", text))
        if held is None or held == text:
            return decision
        return self._adopt(job, held) or decision

    @contextmanager
    def single_flight(self, job: Job) -> Iterator[bool]:
        """Lead the ranks at this job; False, at once, where another rank leads, still may, or has published a decision."""
        key = self._key(job)
        leading = _led_by_this_thread()
        mine = f"{self.channel} (process {os.getpid()} of {_host()}) {uuid.uuid4().hex}"
        led = None if key in leading else self._ask(job, lambda: self._claim(job, mine))
        if led is False:
            yield False
            return
        if led is None:  # this thread leads already, or the others cannot be reached
            with self.own.single_flight(job) as alone:
                yield alone
            return
        leading.add(key)
        process = os.getpid()
        try:
            with self._heartbeat(key, mine), self.own.single_flight(job) as alone:
                yield alone
        finally:
            leading.discard(key)
            self._read_at.pop(key, None)
            if os.getpid() == process:  # else the child of a fork leaves this block too: the claim is its parent's
                self._ask(job, lambda: self.channel.swap(f"{key}/claim", mine, FREE))

    # ----------------------------------------------------------------------------------------------------------------

    def _claim(self, job: Job, mine: str) -> bool:
        """Claim the lead if nobody has it, or if this rank has seen no heartbeat of its holder for long."""
        key, now = self._key(job), time.monotonic()
        if self.channel.read(f"{key}/decision") is not None:
            return False
        claim = self.channel.read(f"{key}/claim") or ""
        seen = self.channel.seen.setdefault(key, KeySighting(first=now, changed=now))
        free = claim in ("", FREE)
        if not free:
            sign = claim, self.channel.add(f"{key}/beat/{_token(claim)}", 0)
            if sign != seen.sign:
                seen.sign, seen.changed = sign, now
            if now - seen.changed <= self.patience.silent_s:
                return False
            log.warning("%s: %s is silent for %.0f s", job.workload, _who(claim), now - seen.changed)
        elif seen.sign is None and self.channel.rank != 0 and now - seen.first < self.patience.grace_s:
            return False  # rank 0 may come yet
        if self.channel.swap(f"{key}/claim", claim, mine) != mine:
            return False
        self.channel.seen.pop(key, None)
        return True

    @contextmanager
    def _heartbeat(self, key: str, mine: str) -> Iterator[None]:
        """Count up while this is held: other ranks see the count change, and need no common clock.

        Where no thread can be started, there is no heartbeat, and after `silent_s` another rank tunes as well.
        """
        over = threading.Event()

        def beat() -> None:
            with suppress(UnreachableError):
                while not over.wait(self.patience.beat_s):
                    self.channel.add(f"{key}/beat/{_token(mine)}", 1)

        thread = threading.Thread(target=beat, name="forecast-autotune-beat", daemon=True)
        try:
            thread.start()
        except RuntimeError as err:
            log.warning("%s: the other ranks will take it for dead: %s", self.channel, err)
        try:
            yield
        finally:
            over.set()
            if thread.ident is not None:
                thread.join(self.channel.call_s)

    def _key(self, job: Job) -> str:
        """What ranks decide together: the same job on the same hardware under the same toolchain.

        Constexprs are left out: one may be the rank itself.
        """
        tuning_key = replace(TuningKey.of(job), workload=job.workload.without_constexprs())
        return digest("measured" if self.measures else "unmeasured", *tuning_key.digests, job.space.digest)

    def _ask(self, job: Job, question: Callable[[], _T]) -> _T | None:
        """The answer; None where the ranks cannot be reached, with one warning."""
        if self._key(job) in self._unusable:
            return None
        try:
            return question()
        except UnreachableError as err:
            warn_once(
                f"the other ranks cannot be reached ({err}): {self.channel} decides by its own store from now on, and "
                "may decide differently. Check that the process that serves the job's key-value store, most often rank 0, "
                "is still running",
                TuningWarning,
            )
            return None

    def _adopt(self, job: Job, text: str) -> Decision | None:
        """A decision that another rank published; None, with a warning, where it is none for this job."""
        what = f"the decision published for {job.workload}"
        try:
            data = fields(from_text(text, what), what)
            decision = decode_decision(data, what)
            decided = decode_workload(data.get("workload"), job.workload.program, f"the workload of {what}")
            if decided.without_constexprs().digest != job.workload.without_constexprs().digest:
                raise InvalidInputError(f"{what} is one for {decided}")
            if decision.space_digest != job.space.digest or decision.config not in job.space:
                raise InvalidInputError(f"{what} is {decision.config}, which is none of this space")
        except InvalidInputError as err:
            self._unusable.add(self._key(job))
            warn_once(f"{err}. It is ignored: {self.channel} decides by its own store", TuningWarning)
            return None
        theirs = replace(job, workload=decided)
        if decision.rests_on_outcomes and self.own.decision(theirs) != decision:
            self.own.record_decision(theirs, decision)
        return decision.carried_over(decided, job.workload)


_LEADING = threading.local()
"""Keys that this thread leads, however many stores it went through."""


def _led_by_this_thread() -> set[str]:
    keys: set[str] = _LEADING.__dict__.setdefault("keys", set())
    return keys


def _token(claim: str) -> str:
    return claim.rpartition(" ")[2]


def _who(claim: str) -> str:
    """A claim as people read it: without its token, and without control characters."""
    return "".join(filter(str.isprintable, claim.rpartition(" ")[0]))[:200] or "a rank to begin"


def _host() -> str:
    import platform

    return platform.node()
