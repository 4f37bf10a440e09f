"""Knob effects: what changes of one knob did, mined from measured pairs of configs; and those that bear on a job."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.digest import Value
from ..core.job import Job, Recording
from ..core.knob_effect import Condition, KnobEffect, is_number
from ..core.outcome import Failure, Measurement, Outcome
from .knob_roles import VARIANT_KNOBS, roles_by_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Whole = NDArray[np.intp]
    Flags = NDArray[np.bool_]

MOST = 12  # effects that a job is given
MIN_CASES = 3
MAX_CONDITIONS = 2

REACH = 4
"""A value is compared with so many next larger ones of its bucket: a knob of a thousand values would make half a million
pairs. The knobs of real kernels have three to seven values."""

TIE = 0.005  # relative; two times closer than this are one, however small their spread
MATTERS = math.log2(1.1)  # sides of a condition differ at least so much in their effect, or it is not worth the words
SEPARATES = 0.5  # or at least so much in the share of what fails
CHANCE = 0.01  # that a condition no better than a random one is told, for one change
FAILED = 2.0  # octaves that a failure counts for; a language model is told to put one where S is up to 1/4


def mine_knob_effects(recordings: Sequence[Recording]) -> list[KnobEffect]:
    """What each change of one knob did: the most telling first.

    A case is a pair of configs of one recording that differ in one knob, both with the same variant. Cases are kept apart
    by program, hardware and change; a pair that was measured for one workload under several toolchains counts once, as in
    the first of those recordings. The speed-up is a geometric mean over the cases of each workload first, then over
    workloads, so that one with many pairs does not outvote others.

    A change is told in the direction that helps, or the other way where only that one shows that it fails. It is told
    apart under up to two conditions, each on a number of the key or on another knob, where the two sides differ by more
    than a tenth in their effect, or by half in what fails, and where that is no chance: a condition of the key must
    hold between workloads, one of a knob between configs, with a probability below `CHANCE` for the best of all
    conditions that could be told there.
    """
    apart: dict[tuple[str, str, str, str], list[Recording]] = defaultdict(list)
    for recording in recordings:
        program, hardware = recording.workload.program, recording.hardware
        apart[program.name, program.language, str(hardware), hardware.kind].append(recording)
    return sorted(
        (effect for recordings_of_one in apart.values() for effect in _Mine(recordings_of_one).effects()), key=_rank
    )


def fitting(effects: Iterable[KnobEffect], job: Job, most: int = MOST) -> list[KnobEffect]:
    """Those that bear on a job: first of the same program, then of the same hardware, then by how much they say.

    The knobs take turns, so that one with many values does not leave the others unsaid.

    The job has the knob with both values, and its key and its knobs can meet the conditions. Of other programs, only
    changes of knobs whose name tells what they are, a tile or a count of warps, and which are that here.
    """
    program, hardware = job.workload.program, str(job.hardware)
    numbers = key_numbers(job.workload.key)
    values = {knob: _distinct(config.knobs[knob] for config in job.space) for knob in job.space.knobs}
    by_name = roles_by_name(job.space.knobs)
    everywhere = {knob for knob, role in by_name.items() if job.space.roles.get(knob, role) == role}

    def fits(effect: KnobEffect) -> bool:
        values_of_knob = values.get(effect.knob, {})
        if (
            effect.language != program.language
            or not {_typed(effect.before), _typed(effect.after)} <= values_of_knob.keys()
        ):
            return False
        if effect.program != program.name and effect.knob not in everywhere:
            return False
        return all(
            c.holds(numbers) if c.of == "key" else any(c.holds({c.name: v}) for v in values.get(c.name, {}).values())
            for c in effect.conditions
        )

    def nearness(effect: KnobEffect) -> tuple[bool, bool]:
        return effect.program != program.name, effect.hardware != hardware

    turns: Counter[tuple[object, ...]] = Counter()
    ordered = []
    for effect in sorted(filter(fits, effects), key=_rank):
        group = (*nearness(effect), effect.knob)
        ordered.append((nearness(effect), turns[group], effect))
        turns[group] += 1
    # Sorting keeps equals in order.
    return [effect for *_, effect in sorted(ordered, key=lambda ranked: ranked[:2])[:most]]


def key_numbers(key: Mapping[str, object]) -> dict[str, Value]:
    """The numbers of a key by name; an extent of a tensor as `x.shape[1]`. Strides follow from them and are left out."""
    numbers: dict[str, Value] = {}
    for name, entry in key.items():
        if isinstance(entry, Mapping):
            shape = entry.get("shape")
            if isinstance(shape, (list, tuple)):
                numbers |= {f"{name}.shape[{i}]": extent for i, extent in enumerate(shape) if is_number(extent)}
        elif is_number(entry):
            numbers[name] = entry  # type: ignore[assignment]
    return numbers


def _rank(effect: KnobEffect) -> tuple[object, ...]:
    """By how much it says: the size of its effect, less where few cases show it; then the same on every machine."""
    failed = sum(effect.failures.values())
    octaves = abs(math.log2(effect.speedup)) if effect.speedup else 0.0
    says = ((effect.tried - failed) * octaves + failed * FAILED) / (effect.tried + MIN_CASES)
    return -says, str(effect)


def _typed(value: Value) -> tuple[type, Value]:
    return type(value), value  # 1, 1.0 and True are three values of a knob


def _distinct(values: Iterable[Value]) -> dict[tuple[type, Value], Value]:
    return {_typed(value): value for value in values}


# From recordings to effects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cases:
    """Cases of one change, as columns. Of each: for which workload, what else was set, and what the change did."""

    workload: Whole
    config: Whole  # the one before the change; it stands for all other knobs
    gain: Floats  # log2 of time before / time after; not a number where one of the two failed
    noise: Floats  # a gain up to here is none
    failed_before: Whole  # the kind of failure, counted from 1; 0: it ran
    failed_after: Whole

    def take(self, which: Flags) -> _Cases:
        return _Cases(*(getattr(self, column.name)[which] for column in fields(self)))

    def turned(self) -> _Cases:
        """The same cases with the change made the other way."""
        return _Cases(self.workload, self.config, -self.gain, self.noise, self.failed_after, self.failed_before)

    def effect(self) -> float:
        """Mean gain, over the cases of each workload first, then over workloads; not a number where none ran."""
        _, means = _means(self.workload, self.gain)
        return float(means.mean()) if len(means) else math.nan

    def helps(self) -> bool:
        """Whether this is the way to tell the change: it makes things faster, or only so is it seen to fail."""
        before, after = bool(self.failed_before.any()), bool(self.failed_after.any())
        return after if before != after else self.effect() >= 0


def _means(unit: Whole, values: Floats) -> tuple[Whole, Floats]:
    """Units that have a number, and the mean of each one's."""
    import numpy as np

    known = ~np.isnan(values)
    units, place, counts = np.unique(unit[known], return_inverse=True, return_counts=True)
    return units, np.bincount(place, values[known], len(units)) / counts


class _Mine:
    """Recordings of one program on one hardware, and what is dug out of them."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.program = recordings[0].workload.program
        self.hardware = str(recordings[0].hardware)
        self.results: dict[tuple[int, int], tuple[float, float, int]] = {}  # by recording and config; see `_result_of`
        self.workload_of: list[int] = []  # of each recording
        self.kinds: dict[str, int] = {}  # of failures, counted from 1
        workloads: dict[str, int] = {}
        keys: list[dict[str, Value]] = []
        configs: dict[Config, int] = {}
        for number, recording in enumerate(recordings):
            workload = workloads.setdefault(recording.workload.digest, len(workloads))
            self.workload_of.append(workload)
            if workload == len(keys):
                keys.append(key_numbers(recording.workload.key))
            for config, outcome in recording.outcomes.items():
                if not (isinstance(outcome, Failure) and outcome.transient):  # the cause may have been another
                    self.results[number, configs.setdefault(config, len(configs))] = self._result_of(outcome)
        self.configs = list(configs)
        self.of_keys = _Splits("key", keys, least=2)
        self.of_knobs = _Splits("knob", [config.knobs for config in configs], least=MIN_CASES)

    def effects(self) -> Iterator[KnobEffect]:
        kinds = list(self.kinds)
        for knob, *values, cases_of_change in self._changes():
            for cases, conditions in self._apart(knob, cases_of_change, ()):
                helps = cases.helps()
                shown = cases if helps else cases.turned()
                tried = int((shown.failed_before == 0).sum())
                if tried < MIN_CASES:
                    continue
                effect = shown.effect()
                failures = Counter(kinds[kind - 1] for kind in shown.failed_after if kind)
                yield KnobEffect(
                    program=self.program.name,
                    language=self.program.language,
                    hardware=self.hardware,
                    knob=knob,
                    before=values[not helps],
                    after=values[helps],
                    conditions=conditions,
                    tried=tried,
                    faster=int((shown.gain > shown.noise).sum()),
                    speedup=None if math.isnan(effect) else 2.0 ** min(effect, 1e3),  # a file may hold any times
                    failures=dict(sorted(failures.items(), key=lambda kind: (-kind[1], kind[0]))),
                )

    def _changes(self) -> Iterator[tuple[str, Value, Value, _Cases]]:
        """Each change that was met often enough, from one value of a knob to a larger one, and its cases."""
        import numpy as np

        names, settings, equals = self._settings()
        order = sorted(range(len(names)), key=lambda setting: (names[setting][0], *_value_order(names[setting][1])))
        rank = {setting: place for place, setting in enumerate(order)}
        buckets: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # by what is equal, and recording
        for recording, config in self.results:
            for setting, equal in zip(settings[config], equals[config], strict=True):
                buckets[equal, recording].append((rank[setting], config))
        rows: dict[tuple[int, int], dict[tuple[int, int], tuple[float, ...]]] = defaultdict(dict)
        for (_, recording), bucket in buckets.items():
            bucket.sort()
            for place, (before, config) in enumerate(bucket):
                log2_us, error, failed = self.results[recording, config]
                for after, other in bucket[place + 1 : place + 1 + REACH]:
                    log2_after_us, error_after, failed_after = self.results[recording, other]
                    if not (failed and failed_after):
                        noise = math.log2(1 + max(TIE, 2 * math.hypot(error, error_after)))
                        row = (log2_us - log2_after_us, noise, failed, failed_after)
                        rows[before, after].setdefault((self.workload_of[recording], config), row)
        for before, after in sorted(rows):
            if len(rows[before, after]) >= MIN_CASES:
                workload, configs = zip(*rows[before, after], strict=True)
                gains, noises, failed_first, failed_then = zip(*rows[before, after].values(), strict=True)
                cases = _Cases(
                    workload=np.array(workload, np.intp),
                    config=np.array(configs, np.intp),
                    gain=np.array(gains, np.float64),
                    noise=np.array(noises, np.float64),
                    failed_before=np.array(failed_first, np.intp),
                    failed_after=np.array(failed_then, np.intp),
                )
                (knob, value), (_, other_value) = names[order[before]], names[order[after]]
                yield knob, value, other_value, cases

    def _settings(self) -> tuple[list[tuple[str, Value]], list[list[int]], list[list[int]]]:
        """Knobs with a value, each numbered; of each config, those that may change, and what then stays equal, numbered."""
        numbers: dict[tuple[str, type, Value], int] = {}
        equal: dict[tuple[int, ...], int] = {}
        settings, equals = [], []
        for config in self.configs:
            row = [numbers.setdefault((knob, *_typed(value)), len(numbers)) for knob, value in config.knobs.items()]
            free = [i for i, knob in enumerate(config.knobs) if not _names_variant(config, knob)]
            settings.append([row[i] for i in free])
            equals.append([equal.setdefault(tuple(sorted(row[:i] + row[i + 1 :])), len(equal)) for i in free])
        return [(knob, value) for knob, _, value in numbers], settings, equals

    def _result_of(self, outcome: Outcome) -> tuple[float, float, int]:
        """Log2 of a time and its relative error; or, behind them, the kind of a failure."""
        if isinstance(outcome, Measurement):
            return math.log2(outcome.median_us), outcome.relative_error, 0
        return math.nan, 0.0, self.kinds.setdefault(kind_of_failure(outcome), len(self.kinds) + 1)

    def _apart(
        self, knob: str, cases: _Cases, conditions: tuple[Condition, ...]
    ) -> Iterator[tuple[_Cases, tuple[Condition, ...]]]:
        """The cases, parted by the conditions that matter to them."""
        if len(conditions) == MAX_CONDITIONS:
            yield cases, conditions
            return
        ways = [(self.of_keys, cases.workload), (self.of_knobs, cases.config)]
        parts = [(*splits.best(unit, cases, but=knob), splits, unit) for splits, unit in ways]
        log_chance, split, splits, unit = min(parts, key=lambda part: part[0])
        if log_chance > math.log(CHANCE):
            yield cases, conditions
            return
        inside = splits.masks[split][unit]
        for side in (inside, ~inside):
            added = splits.condition(split, unit[side])
            kept = tuple(c for c in conditions if not _implied(c, added))
            yield from self._apart(knob, cases.take(side), (*kept, added))


def _names_variant(config: Config, knob: str) -> bool:
    return knob in VARIANT_KNOBS and isinstance(config.knobs[knob], str)


def _implied(condition: Condition, by: Condition) -> bool:
    """Whether a condition says nothing beside a later one, which was found among the cases it left."""
    return (condition.of, condition.name) == (by.of, by.name) and by.relation in ("=", condition.relation)


def _value_order(value: Value) -> tuple[int, float, str, str]:
    """None, then numbers, then text."""
    if isinstance(value, (int, float)):
        return 1, value, type(value).__name__, ""
    return (0, 0.0, "", "") if value is None else (2, 0.0, "", value)


_NUMBER = re.compile(r"\b\d[\w.]*")
_RAISED = re.compile(r"^(?:\w+\.)*[A-Z][a-z]+(?:[A-Z][a-z]*)+: ")  # the type of an exception, before its message


def kind_of_failure(failure: Failure) -> str:
    """The stage and the first words of a failure, every number as N: most messages tell how much was too much."""
    beginning = re.split(r"[,;(\n]|\. ", _RAISED.sub("", failure.message), maxsplit=1)[0]
    words = re.findall(r"[\w'.:-]+", _NUMBER.sub("N", beginning))
    return f"{failure.stage}: {' '.join(words[:6]).rstrip(':.')}" if words else failure.stage


# Conditions -------------------------------------------------------------------------------------------------------------


class _Splits:
    """All ways to part units, workloads or configs, in two by one of their numbers or values.

    Args:
        of: what conditions are of, `key` or `knob`.
        units: the values of each unit by name.
        least: so many units make a side; with fewer, what holds between sides may be any one unit's own.
    """

    def __init__(self, of: str, units: Sequence[Mapping[str, Value]], *, least: int) -> None:
        import numpy as np

        self.of, self.units, self.least = of, units, least
        self.names: list[str] = []
        self.values: list[Value] = []
        self.ordered: list[bool] = []  # by a threshold; otherwise by being this value
        masks, known = [], []
        met: set[bytes] = set()
        for name in dict.fromkeys(name for unit in units for name in unit):
            column = [unit.get(name) for unit in units]
            distinct = sorted(_distinct(column).values(), key=_value_order)  # None, if it is among them, comes first
            place = {_typed(value): i for i, value in enumerate(distinct)}
            places = np.array([place[_typed(value)] for value in column])
            given = [value for value in distinct if value is not None]
            ordered = all(is_number(value) for value in given)
            there = np.array([value is not None or not ordered for value in distinct])[places]
            for value in _spread(given[1:]) if ordered else _spread(given):
                condition = Condition(of=of, name=name, relation=">=" if ordered else "=", value=value)
                mask = np.array([condition.holds({name: other}) for other in distinct])[places]
                if mask.all() or not met.isdisjoint((mask.tobytes(), (~mask).tobytes())):
                    continue
                met.add(mask.tobytes())
                self.names.append(name)
                self.values.append(value)
                self.ordered.append(ordered)
                masks.append(mask)
                known.append(there)
        self.masks: Flags = np.array(masks, np.bool_).reshape(len(masks), len(units))
        self.known: Flags = np.array(known, np.bool_).reshape(len(masks), len(units))

    def condition(self, split: int, units: Whole) -> Condition:
        """What the units on one side of a split have in common."""
        name, value = self.names[split], self.values[split]
        values = sorted(_distinct(self.units[u].get(name) for u in units).values(), key=_value_order)
        inside = bool(self.masks[split][units[0]])
        if self.of == "knob" and len(values) == 1:
            return Condition(of=self.of, name=name, relation="=", value=values[0])
        if not self.ordered[split]:
            return Condition(of=self.of, name=name, relation="!=", value=value)
        return Condition(of=self.of, name=name, relation=">=" if inside else "<=", value=values[0 if inside else -1])

    def best(self, unit: Whole, cases: _Cases, *, but: str) -> tuple[float, int]:
        """The split with the least chance to have come about by itself: log of that chance, and which; 0.0 without any.

        Args:
            unit: that of each case.
            but: a name that is left out, of the knob that changes.
        """
        import numpy as np

        units, counts = np.unique(unit, return_counts=True)
        inside = self.masks[:, units] @ counts
        fit = (inside >= MIN_CASES) & (len(unit) - inside >= MIN_CASES) & self.known[:, units].all(axis=1)
        if self.of == "knob":
            fit &= np.array([name != but for name in self.names], np.bool_)
        rows = np.flatnonzero(fit)
        if not len(rows):
            return 0.0, 0
        failed, ran = cases.failed_after, cases.failed_before == 0
        if (cases.failed_before > 0).sum() > (failed > 0).sum():
            failed, ran = cases.failed_before, cases.failed_after == 0
        return min(
            self._by_effect(rows, *_means(unit, cases.gain)),
            self._by_failures(rows, *_means(unit[ran], (failed[ran] > 0).astype(np.float64))),
        )

    def _by_effect(self, rows: Whole, units: Whole, gains: Floats) -> tuple[float, int]:
        """By the mean gain of each unit: Student's t-test of the two sides' means."""
        import numpy as np

        count, rows, masks, inside = self._sides(rows, units)
        if not len(rows):
            return 0.0, 0
        sums = masks @ gains
        apart = np.abs(sums / inside - (gains.sum() - sums) / (count - inside))
        between = np.where(apart >= MATTERS, inside * (count - inside) / count * apart**2, 0.0)
        best = int(np.argmax(between))
        within = ((gains - gains.mean()) ** 2).sum() - between[best]
        within = max(within, 0.0) + count * math.log2(1 + TIE) ** 2  # nothing is known closer than a tie
        freedom = count - 2
        # Wallace's approximation (1959) of t by a normal deviate, good to 0.1 % of it.
        z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(between[best] / within))
        return _log_tails(z) + math.log(len(rows)), int(rows[best])

    def _by_failures(self, rows: Whole, units: Whole, shares: Floats) -> tuple[float, int]:
        """By whether a unit most often fails: Fisher's exact test."""
        import numpy as np

        failing = shares >= 0.5
        count, failed = len(units), int(failing.sum())
        if not 0 < failed < count:
            return 0.0, 0
        count, rows, masks, inside = self._sides(rows, units)
        failing_inside = masks @ failing.astype(np.float64)
        apart = np.abs(failing_inside / inside - (failed - failing_inside) / (count - inside))
        tests = [
            (_log_fisher(count, failed, int(n), int(k)) + math.log(len(rows)), int(row))
            for row, n, k in zip(
                rows[apart >= SEPARATES], inside[apart >= SEPARATES], failing_inside[apart >= SEPARATES], strict=True
            )
        ]
        return min(tests, default=(0.0, 0))

    def _sides(self, rows: Whole, units: Whole) -> tuple[int, Whole, Floats, Floats]:
        """How many units there are; and the splits with enough of them on each side, as 0 and 1, with how many have 1."""
        import numpy as np

        masks = self.masks[np.ix_(rows, units)].astype(np.float64)
        inside = masks.sum(axis=1)
        fit = (inside >= self.least) & (len(units) - inside >= self.least)
        return len(units), rows[fit], masks[fit], inside[fit]


def _spread(values: Sequence[Value], most: int = 16) -> Sequence[Value]:
    """The values, or so many of them from first to last."""
    return values if len(values) <= most else [values[i * len(values) // most] for i in range(most)]


def _log_tails(z: float) -> float:
    """Log of the probability that a normal deviate lies at least so far out, on either side."""
    x = z / math.sqrt(2)
    return math.log(math.erfc(x)) if x < 20 else -x * x - math.log(x * math.sqrt(math.pi))  # erfc is 0 from 27 on


def _log_fisher(count: int, failed: int, inside: int, failing: int) -> float:
    """Log of twice the probability that so many or more of those that failed lie on the side with more than its share."""
    if failing * count < failed * inside:
        inside, failing = count - inside, failed - failing

    def log_ways(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    tail = [log_ways(failed, k) + log_ways(count - failed, inside - k) for k in range(failing, min(failed, inside) + 1)]
    return math.log(2 * math.fsum(math.exp(t - tail[0]) for t in tail)) + tail[0] - log_ways(count, inside)
