"""Recorded times of kernels: which outcome a launch on the simulated driver plays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.config import Config
from ...core.job import Recording
from ...core.outcome import Failure, Measurement, Outcome
from ...errors import InvalidInputError

Times = float | Mapping[Config, float] | Recording | Sequence[Recording] | Mapping[str, Any]
"""Microseconds: one for every launch; by config; a recording, or one for each key; or any of these by kernel name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Recorded outcomes of one kernel at one key."""

    key: Mapping[str, object]  # arguments it holds for; empty where it holds for all
    outcomes: Mapping[Config, Outcome]
    knobs: tuple[str, ...]


class RecordedTimes:
    """Outcomes by kernel, config and key.

    Args:
        times: see `Times`; None where nothing is launched.
    Raises:
        InvalidInputError: times that are none.
    """

    def __init__(self, times: Times | None) -> None:
        self._by_call: dict[tuple[str, tuple[object, ...]], tuple[Config, Outcome]] = {}
        self._constant_us: dict[str, float] = {}
        self._tables: dict[str, list[_Table]] = {}
        self._add("", times)

    def outcome(self, kernel: str, values: Mapping[str, object], shown: Sequence[str] = ()) -> tuple[Config, Outcome]:
        """The config that a launch runs, with its recorded outcome.

        Args:
            kernel: by name.
            values: arguments and options of the launch by name.
            shown: names that make up the config where no recording names its knobs.
        Raises:
            InvalidInputError: nothing is recorded for it.
        """
        tables = [*self._tables.get(kernel, ()), *self._tables.get("", ())]
        names = dict.fromkeys(name for table in tables for name in (*table.knobs, *table.key)) or shown
        call = (kernel, tuple(value if is_scalar(value := values.get(name)) else None for name in names))
        known = self._by_call.get(call)  # a benchmark launches the same thousands of times: 1 us instead of 15
        if known is None:
            known = self._by_call[call] = self._recorded(kernel, values, tables, shown)
        return known

    def _recorded(
        self, kernel: str, values: Mapping[str, object], tables: Sequence[_Table], shown: Sequence[str]
    ) -> tuple[Config, Outcome]:
        for table in tables:
            if any(name in values and values[name] != held for name, held in table.key.items() if is_scalar(held)):
                continue
            if any(knob not in values for knob in table.knobs):
                continue
            config = Config({knob: values[knob] for knob in table.knobs})  # type: ignore[misc]
            if (outcome := table.outcomes.get(config)) is not None:
                return config, outcome
        knobs = dict.fromkeys(knob for table in tables for knob in table.knobs)
        config = Config({name: values[name] for name in knobs or shown if is_scalar(values.get(name))})  # type: ignore[misc]
        constant = self._constant_us.get(kernel, self._constant_us.get(""))
        if constant is not None:
            return config, Measurement(samples_us=(constant,))
        count = sum(len(table.outcomes) for table in tables)
        raise InvalidInputError(
            f"rehearsal: no time is recorded for kernel {kernel!r} with {config} ({count} configs are recorded for it): "
            "give times= this config, or take it out of the space"
        )

    def _add(self, kernel: str, times: Times | None) -> None:
        if times is None:
            return
        if isinstance(times, (int, float)):
            if not times > 0:
                raise InvalidInputError(f"rehearsal: a launch lasts {times!r} us: times are positive microseconds")
            self._constant_us[kernel] = float(times)
        elif isinstance(times, Recording):
            knobs = tuple(times.default.knobs)
            table = _Table(key=_arguments(times.workload.key), outcomes=times.outcomes, knobs=knobs)
            self._tables.setdefault(kernel or times.workload.program.name, []).append(table)
        elif isinstance(times, Mapping):
            named = {name: value for name, value in times.items() if isinstance(name, str)}
            for name, value in named.items():
                self._add(name, value)
            configs = {config: value for config, value in times.items() if isinstance(config, Config)}
            if len(named) + len(configs) != len(times):
                odd = next(key for key in times if not isinstance(key, (str, Config)))
                raise InvalidInputError(f"rehearsal: times by {odd!r}: its keys are Configs, or names of kernels")
            by_knobs: dict[tuple[str, ...], dict[Config, Outcome]] = {}
            for config, value in configs.items():
                outcome = (
                    value if isinstance(value, (Measurement, Failure)) else Measurement(samples_us=(float(value),))
                )
                by_knobs.setdefault(tuple(config.knobs), {})[config] = outcome
            for knobs, outcomes in by_knobs.items():
                self._tables.setdefault(kernel, []).append(_Table(key={}, outcomes=outcomes, knobs=knobs))
        else:
            for recording in times:
                self._add(kernel, recording)


def _arguments(key: Mapping[str, object]) -> dict[str, object]:
    """The arguments that a stored key names, its constexprs among them."""
    constexprs = key.get("given constexprs")
    return {**key, **(constexprs if isinstance(constexprs, Mapping) else {})}


def is_scalar(value: object) -> bool:
    """Whether it is a finite number, text, a truth value or None: what a recording names configs by."""
    return isinstance(value, (bool, int, str, type(None))) or (isinstance(value, float) and math.isfinite(value))
