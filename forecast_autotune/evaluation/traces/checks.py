"""Checks that all trace readers share."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.config import Config
from ...errors import InvalidInputError
from ...store import encoding

log = logging.getLogger(__name__)

ACCEPTED = (
    "accepted are this package's traces (JSON lines), T4 JSON and cache files of Kernel Tuner (JSON), each also in gzip"
)


_SHORTEST, _LONGEST = 1e-290, 1e290  # in whatever unit; beyond cannot be calculated with


def decode_times(values: Sequence[object], what: str) -> list[float]:
    """Times out of JSON, in the file's unit.

    Raises:
        InvalidInputError: one is no positive finite number; `what` names whose time it is.
    """
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _SHORTEST < value < _LONGEST:
            raise InvalidInputError(
                f"{what} {str(value)[:60] if isinstance(value, (int, float)) else repr(value)[:60]}: "
                "times are positive and finite; leave the config out, or record it again"
            )
    return [float(value) for value in values]  # type: ignore[arg-type]  # checked just above


def decode_cost(costs: Mapping[str, object], name: str, what: str) -> float:
    """A cost, in the file's unit; 0 where the file does not say.

    Some tuners compute a cost as the rest of a total, which clocks can make slightly negative: that is 0 too.

    Raises:
        InvalidInputError: it is no finite number.
    """
    return 0.0 if costs.get(name) is None else max(0.0, encoding.number_field(costs, name, what))


def check_knobs(config: Config, knobs: Sequence[object], what: str) -> None:
    """Refuse a config that does not set the knobs of its trace.

    Raises:
        InvalidInputError: it sets others; names both.
    """
    if config.knobs.keys() != set(knobs):
        raise InvalidInputError(
            f"{what}: config {config} has the knobs {sorted(config.knobs)}, the trace has {sorted(map(str, knobs))}: "
            "every config of a trace sets the same knobs"
        )


def warn_about_repeated(path: Path, repeated: int) -> None:
    """Warn once of a file that lists configs more than once."""
    if repeated:
        log.warning("%s: %d configs stand there more than once; the first of each is kept", path, repeated)
