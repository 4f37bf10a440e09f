"""Which keys are decided on which hardware, and by what: own measurements, other machines', packs, or forecasts alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..core.hardware import REHEARSAL_KINDS, Hardware
from ..core.text import error_text
from ..core.workload import Workload
from ..errors import InvalidInputError
from ..settings import PackUrl, Settings
from ..store.jsonl import Decided, read_entries
from ..store.queries import StoreFile
from ..store.rows import TuningKey
from .exchange import Complain
from .mirror import mirror_folder
from .trees import decided_in_tree, pack_folder

STATES = {
    "measured": "decided by measurements on this hardware, under the toolchain that it runs now",
    "elsewhere": "measured on other hardware, under another toolchain, or by machines that are not trusted",
    "forecast": "met on this hardware, and never measured there",
    "missing": "met on other hardware alone, and measured nowhere",
}
"""What is known of a key on one hardware; the first that fits holds, but a key met here counts as `forecast`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A decision, or a key that waits for one, from any source."""

    tuning_key: TuningKey
    at: float  # seconds since the epoch
    measured: bool
    believed: bool = True  # where it was measured: whether it decides calls here


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCoverage:
    """What is known of a key on one hardware."""

    workload: Workload
    hardware: Hardware
    state: str
    measured_on: tuple[str, ...] = ()  # where, if not here: names of hardware, or what is another there
    at: float = 0.0  # when it was last decided or met anywhere


def known_here(settings: Settings, directory: Path, complain: Complain) -> Iterator[KnownKey]:
    """All that this machine's store, the copies of remote stores and packs know.

    Args:
        directory: the store's folder.
        complain: gets why a pack is left out.
    Raises:
        StoreError: the store cannot be read.
    """
    yield from _of_store(StoreFile(directory))
    if (remote := settings.remote_store) is not None:
        yield from _of_store(StoreFile(mirror_folder(directory, remote.url)), believed=remote.trusted)
    for pack in settings.packs:
        folder = pack_folder(directory, pack) if isinstance(pack, PackUrl) else pack
        if isinstance(pack, PackUrl) and not pack.pinned:
            complain(
                f"pack {pack} is left out: {pack.revision!r} is no commit; 'forecast-autotune doctor' says which it is"
            )
            continue
        try:
            tree = isinstance(pack, PackUrl) or folder.is_dir()
            entries = decided_in_tree(folder, complain) if tree else read_entries(folder)
            yield from (known for entry in entries if isinstance(entry, Decided) for known in _of_decided(entry))
        except (OSError, InvalidInputError) as err:
            complain(f"pack {pack} is left out: {error_text(err)}")


def _of_store(store: StoreFile, *, believed: bool = True) -> Iterator[KnownKey]:
    if not store.exists():
        return
    for stored in store.each_decision():
        at = max(stored.decision.decided_at, stored.hit_at or 0.0)
        yield KnownKey(
            tuning_key=stored.tuning_key, at=at, measured=stored.decision.rests_on_outcomes, believed=believed
        )
    for pending in store.pending():
        yield KnownKey(tuning_key=pending.tuning_key, at=pending.met_at, measured=False)


def _of_decided(entry: Decided) -> Iterator[KnownKey]:
    if entry.superseded_at is None:
        yield KnownKey(
            tuning_key=entry.tuning_key, at=entry.decision.decided_at, measured=entry.decision.rests_on_outcomes
        )


@dataclass(slots=True)
class _Key:
    workload: Workload
    at: float = 0.0
    measured: dict[str, set[str]] = field(default_factory=dict)  # hardware to toolchains under which it is believed
    doubted: set[str] = field(default_factory=set)  # hardware on which others measured it
    met: set[str] = field(default_factory=set)  # hardware


def coverage(known: Iterable[KnownKey]) -> list[KeyCoverage]:
    """Every key on every hardware of its kind that anything is known of, kernel by kernel."""
    keys: dict[str, _Key] = {}
    hardware: dict[str, Hardware] = {}
    newest: dict[tuple[str, str], tuple[float, str]] = {}  # of a hardware and a language: the toolchain in use
    for each in known:
        where, workload = each.tuning_key.hardware, each.tuning_key.workload
        if where.kind in REHEARSAL_KINDS:
            continue
        hardware.setdefault(where.digest, where)
        key = keys.setdefault(workload.digest, _Key(workload))
        key.at = max(key.at, each.at)
        toolchain = each.tuning_key.toolchain.digest
        if each.measured and each.believed:
            key.measured.setdefault(where.digest, set()).add(toolchain)
        elif each.measured:
            key.doubted.add(where.digest)
        else:
            key.met.add(where.digest)
        if each.believed:
            of = where.digest, workload.program.language
            newest[of] = max((each.at, toolchain), newest.get(of, (0.0, "")))
    covered = [
        _covered(key, here, hardware, newest)
        for key in keys.values()
        for here in hardware.values()
        if any(hardware[other].kind == here.kind for other in (*key.measured, *key.doubted, *key.met))
    ]
    return sorted(covered, key=lambda c: (c.workload.program.name, c.workload.digest, c.hardware.name))


def _covered(
    key: _Key, here: Hardware, hardware: dict[str, Hardware], newest: dict[tuple[str, str], tuple[float, str]]
) -> KeyCoverage:
    _, toolchain = newest.get((here.digest, key.workload.program.language), (0.0, ""))
    under = key.measured.get(here.digest, set())
    elsewhere = [hardware[d].name for d in {*key.measured, *key.doubted} if d != here.digest]
    if under:
        elsewhere.append("another toolchain")
    elif here.digest in key.doubted:
        elsewhere.append("machines that are not trusted")
    if toolchain in under:
        state, elsewhere = "measured", []
    elif here.digest in key.met:
        state = "forecast"
    else:
        state = "elsewhere" if elsewhere else "missing"
    return KeyCoverage(
        workload=key.workload, hardware=here, state=state, measured_on=tuple(sorted(set(elsewhere))), at=key.at
    )
