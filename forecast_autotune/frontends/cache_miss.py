"""What the error of mode `strict` says: which key has no decision, what the closest one differs in, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ..core.digest import canonical_json
from ..core.figures import counted
from ..core.job import Job
from ..core.text import plain, told_apart
from ..protocols import Store
from ..remote.fleet_store import FleetStore
from ..settings import PREFIX
from ..store.rows import StoredDecision, TuningKey
from ..store.sqlite import SqliteStore
from ..store.tuning_keys import limits_alike

MOST_CHANGES = 3  # named of those in a toolchain
MOST_LETTERS = 60  # of a version or a flag

_REMEDIES = {
    "toolchain": f"{PREFIX}TOOLCHAIN=any",
    "trust": f"',trusted' behind the URL in {PREFIX}REMOTE_STORE",
}
"""By which a decision is taken as it is, in spite of a difference; for other differences there is none."""


def miss_message(job: Job, store: Store, unread: Sequence[str]) -> str:
    """The text of a `CacheMissError`.

    It claims nothing of what was not read, such as other versions of the source in a pack.

    Args:
        store: where no decision for the job is.
        unread: names what may hold one and is not read.
    """
    missed, remedy = f"no decision for {job.workload} on {job.hardware}", f"Tune it once with {PREFIX}MODE=tune"
    if (closest := _closest_decision(job, store)) is not None:
        known, differences = closest
        missed += f"; it was decided {', '.join(differences.values())}"
        if differences.keys() <= _REMEDIES.keys() and known.decision.config in job.space:
            remedy += f", or take that decision with {' and '.join(_REMEDIES[each] for each in differences)}"
    elif (nearest := _nearest_key(job, store)) is not None:
        tuning_key, differences = nearest
        missed += f"; the nearest key known is {tuning_key.workload}"
        missed += f", measured {', '.join(differences.values())}" if differences else ""
    untrusted = isinstance(store, FleetStore) and store.remote is not None and not store.is_trusted
    if untrusted and _REMEDIES["trust"] not in remedy:
        remedy += f", or take what other machines decide with {_REMEDIES['trust']}"
    missed += "".join(f"; {what}, which may have one, is not read" for what in unread)
    return f"{plain(missed)}. {remedy}."


def _closest_decision(job: Job, store: Store) -> tuple[StoredDecision, dict[str, str]] | None:
    """The decision for the job's key that differs in the least, and in what; None where there is none to name."""
    if not isinstance(store, SqliteStore):
        return None
    differences = partial(_differences_of_decision, job, any_toolchain=store.any_toolchain)
    known = [(each, differences(each)) for each in store.related_decisions(job)]
    if isinstance(store, FleetStore):
        trust = {"trust": "by other machines, whose remote store is not trusted"}
        known += [(each, differences(each) | trust) for each in store.untrusted_decisions(job)]
    # Without a difference it would have been recalled: its config is none of the space, whatever digest it names.
    return min((entry for entry in known if entry[1]), key=lambda entry: len(entry[1]), default=None)


def _nearest_key(job: Job, store: Store) -> tuple[TuningKey, dict[str, str]] | None:
    """Where another key like the job's was measured, and what that differs in beside the key; None where none is known."""

    def distance(entry: tuple[TuningKey, dict[str, str]]) -> tuple[int, int]:
        (tuning_key, differences), asked = entry, job.workload.key
        key = tuning_key.workload.key
        return len(differences), sum(canonical_json(key.get(n)) != canonical_json(v) for n, v in asked.items())

    tuning_keys = [TuningKey.of(recording) for recording in store.related_recordings(job)]
    asked = canonical_json(job.workload.key)  # as keys are told apart: to Python, 1, 1.0 and True are equal
    others = [(each, _differences(job, each)) for each in tuning_keys if canonical_json(each.workload.key) != asked]
    return min(others, key=distance, default=None)


def _differences_of_decision(job: Job, known: StoredDecision, *, any_toolchain: bool) -> dict[str, str]:
    """What keeps a decision for the job's key from being taken, and how that is said."""
    differences = _differences(job, known.tuning_key)
    if any_toolchain:
        differences.pop("toolchain", None)
    size, here = known.decision.space_size, len(job.space)
    if known.decision.space_digest != job.space.digest:
        sizes = "other configs" if size == here else f"{counted(size, 'config')} then, {here} now"
        differences = {"space": f"in another space ({sizes})", **differences}
    return differences


def _differences(job: Job, tuning_key: TuningKey) -> dict[str, str]:
    """What a tuning key differs in from the job's, its key aside, and how that is said."""
    workload, theirs, ours = tuning_key.workload, tuning_key.hardware, job.hardware
    differences: dict[str, str] = {}
    if theirs.digest != ours.digest:
        changes = _changes(theirs.identity, ours.identity)
        same_name = str(theirs) == str(ours)
        differences["hardware"] = f"on other hardware of that name ({changes})" if same_name else f"on {theirs}"
    elif not limits_alike(theirs.power_limit_w, ours.power_limit_w):
        limits = f"under a power limit of {theirs.power_limit_w} W, here {ours.power_limit_w} W"
        differences["power limit"] = limits
    if workload.program.digest != job.workload.program.digest:
        differences["source"] = "in another version of its source"
    if (workload.timing, workload.check) != (job.workload.timing, job.workload.check):
        ways = [{"timing": each.timing, "check": each.check} for each in (workload, job.workload)]
        differences["way"] = f"in another way ({_changes(*ways)})"
    if tuning_key.toolchain.digest != job.toolchain.digest:
        changes = _changes(tuning_key.toolchain.versions, job.toolchain.versions)
        differences["toolchain"] = f"under another toolchain ({changes})"
    return differences


def _changes(theirs: Mapping[str, object], ours: Mapping[str, object]) -> str:
    """The first entries that differ, each with its value then and its value here."""
    names = [name for name in ours.keys() | theirs.keys() if theirs.get(name) != ours.get(name)]
    changes = []
    for name in sorted(names):
        values = [str(value) if value not in (None, "") else "none" for value in (theirs.get(name), ours.get(name))]
        changes.append(f"{name} {', here '.join(told_apart(values, MOST_LETTERS))}")
    return "; ".join([*changes[:MOST_CHANGES], *(["…"] if len(changes) > MOST_CHANGES else [])])
