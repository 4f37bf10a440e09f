"""Everything that a store knows around one decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.decision import Decision
from ..core.job import log2_speedups
from ..core.outcome import Outcome
from .decisions import stored_decisions
from .outcomes import newest_of
from .rows import Complain, StoredDecision, StoredOutcome, TuningKey, decision_digest
from .tuning_keys import ids_of

if TYPE_CHECKING:
    import sqlite3

    from .sqlite import SqliteStore


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionDetail:
    """A decision with every config touched under its tuning key, and the decisions it superseded, the newest first."""

    stored: StoredDecision
    default: Config | None  # of the newest run; None where that is not known
    touched: tuple[StoredOutcome, ...] = ()  # the newest outcome of each config, with the first forecast it ever had
    earlier: tuple[StoredDecision, ...] = ()
    log2_speedups: Mapping[Config, float] = field(default_factory=dict)  # measured, against the default


def detail_of(connection: sqlite3.Connection, stored: StoredDecision, complain: Complain) -> DecisionDetail:
    """A decision with all that belongs to it."""
    ids = ids_of(connection, stored.tuning_key)
    touched = tuple(newest_of(connection, ids, complain))
    earlier = stored_decisions(
        connection,
        complain,
        "WHERE workload = ? AND superseded_at IS NOT NULL AND digest = ?",  # the workload has an index
        (ids[0], stored.digest),
    )
    outcomes: dict[Config, Outcome] = {t.config: t.outcome for t in touched}
    default = touched[-1].default if touched else None
    return DecisionDetail(
        stored=stored,
        default=default,
        touched=touched,
        earlier=tuple(earlier),
        log2_speedups=log2_speedups(outcomes, default) if default is not None else {},
    )


def detail_in(store: SqliteStore, tuning_key: TuningKey, decision: Decision, default: Config) -> DecisionDetail:
    """A decision that this process uses, with all that its store, else a pack, knows around it; alone where neither does.

    Args:
        default: that of the decision's space.
    """

    def read(connection: sqlite3.Connection) -> DecisionDetail | None:
        held = _held(connection, tuning_key, decision.space_digest, store.connection.complain)
        if held is None:
            return None
        return detail_of(connection, replace(held, decision=decision), store.connection.complain)

    known = store.connection.run(read) or store.run_on_packs(read)
    return known or DecisionDetail(
        stored=StoredDecision(id=0, tuning_key=tuning_key, decision=decision), default=default
    )


def _held(
    connection: sqlite3.Connection, tuning_key: TuningKey, space_digest: str, complain: Complain
) -> StoredDecision | None:
    """The decision that holds under a tuning key for a space; of power limits that do not compare, that of the key's own."""
    decisions = list(
        stored_decisions(
            connection,
            complain,
            "WHERE superseded_at IS NULL AND digest = ?",
            (decision_digest(tuning_key, space_digest),),
        )
    )
    own = (
        stored for stored in decisions if stored.tuning_key.hardware.power_limit_w == tuning_key.hardware.power_limit_w
    )
    return next(own, decisions[0] if decisions else None)
