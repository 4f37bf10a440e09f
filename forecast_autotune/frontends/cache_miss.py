"""What the error of mode `strict` says: which key has no decision, what the closest one differs in, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..core.figures import counted
from ..core.job import Job
from ..core.text import plain, shortened
from ..protocols import Store
from ..remote.fleet_store import FleetStore
from ..settings import PREFIX
from ..store.rows import StoredDecision
from ..store.sqlite import SqliteStore

MOST_CHANGES = 3  # named of those in a toolchain
MOST_LETTERS = 60  # of a version or a flag

_REMEDIES = {
    "toolchain": f"{PREFIX}TOOLCHAIN=any",
    "trust": f"',trusted' behind the URL in {PREFIX}REMOTE_STORE",
}
"""By which a decision is taken as it is, in spite of a difference; for other differences there is none."""


def miss_message(job: Job, store: Store, unread: Sequence[str]) -> str:
    """The text of a `CacheMissError`.

    Args:
        store: where no decision for the job is.
        unread: names what may hold one and is not read.
    """
    missed, remedy = f"no decision for {job.workload} on {job.hardware}", f"Tune it once with {PREFIX}MODE=tune"
    closest = _closest(job, store)
    if closest is None:
        missed += ", nor for any other key of it"
    else:
        known, differences = closest
        phrases = ", ".join(differences.values())
        if known.place.workload.key != job.workload.key:
            missed += f"; the nearest key known is {known.place.workload}" + (f", decided {phrases}" if phrases else "")
        else:
            missed += f"; it was decided {phrases}"
            if differences.keys() <= _REMEDIES.keys():
                remedy += f", or take that decision with {' and '.join(_REMEDIES[each] for each in differences)}"
    missed += "".join(f"; {what}, which may have one, is not read" for what in unread)
    return f"{plain(missed)}. {remedy}."


def _closest(job: Job, store: Store) -> tuple[StoredDecision, dict[str, str]] | None:
    """The decision that comes closest to one for the job, and what it differs in; None where there is none to name."""
    if not isinstance(store, SqliteStore):
        return None
    any_toolchain = store.any_toolchain
    known = [(each, _differences(job, each, any_toolchain)) for each in store.related_decisions(job)]
    if isinstance(store, FleetStore):
        trust = {"trust": "by other machines, whose remote store is not trusted"}
        known += [(each, _differences(job, each, any_toolchain) | trust) for each in store.untrusted_decisions(job)]

    def distance(entry: tuple[StoredDecision, dict[str, str]]) -> tuple[bool, int, int]:
        key, differences = entry[0].place.workload.key, entry[1]
        return key != job.workload.key, len(differences), sum(key.get(n) != v for n, v in job.workload.key.items())

    # Without a difference it would have been recalled: its config is none of the space, whatever digest it names.
    misses = [entry for entry in known if entry[1] or entry[0].place.workload.key != job.workload.key]
    return min(misses, key=distance, default=None)


def _differences(job: Job, known: StoredDecision, any_toolchain: bool) -> dict[str, str]:
    """What a decision differs in from one for the job, its key aside, and how that is said."""
    differences = dict(_all_differences(job, known, any_toolchain))
    theirs_w, ours_w = known.place.hardware.power_limit_w, job.hardware.power_limit_w
    if not differences and theirs_w != ours_w:
        return {"power limit": f"under a power limit of {theirs_w} W, here {ours_w} W"}
    return differences


def _all_differences(job: Job, known: StoredDecision, any_toolchain: bool) -> Iterator[tuple[str, str]]:
    """As `_differences`, but for the power limit: small changes of it are none."""
    place, workload = known.place, known.place.workload
    if place.hardware != job.hardware:
        changes = _changes(place.hardware.identity, job.hardware.identity)
        same_name = str(place.hardware) == str(job.hardware)
        yield "hardware", f"on other hardware of that name ({changes})" if same_name else f"on {place.hardware}"
    if workload.program.digest != job.workload.program.digest:
        yield "source", "in another version of its source"
    if (workload.timing, workload.check) != (job.workload.timing, job.workload.check):
        ways = [{"timing": each.timing, "check": each.check} for each in (workload, job.workload)]
        yield "way", f"in another way ({_changes(*ways)})"
    if known.decision.space_digest != job.space.digest:
        yield "space", f"in another space ({counted(known.decision.space_size, 'config')} then, {len(job.space)} now)"
    if place.toolchain.digest != job.toolchain.digest and not any_toolchain:
        yield "toolchain", f"under another toolchain ({_changes(place.toolchain.versions, job.toolchain.versions)})"


def _changes(theirs: Mapping[str, object], ours: Mapping[str, object]) -> str:
    """The first entries that differ, each with its value then and its value here."""
    names = [name for name in ours.keys() | theirs.keys() if theirs.get(name) != ours.get(name)]
    changes = [f"{name} {_brief(theirs.get(name))}, here {_brief(ours.get(name))}" for name in sorted(names)]
    return "; ".join([*changes[:MOST_CHANGES], *(["…"] if len(changes) > MOST_CHANGES else [])])


def _brief(value: object) -> str:
    return shortened(str(value), MOST_LETTERS) if value not in (None, "") else "none"
