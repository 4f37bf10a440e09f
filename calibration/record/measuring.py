"""What recordings share: a surrogate that says nothing, configs that end their process, outcomes without their noise."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.measure.base import BaseMeasurer
from forecast_autotune.surrogates.base import StatelessSurrogate

LETHAL = Failure(stage="launch", message="it ended the process that measured it, more than once", crashed=True)

TIMED_MS = 30.0
"""For how long a config of a short list is timed, where nothing is to be read off the spread: 5 samples at least."""

KEPT_SAMPLES = 16
"""Of a config of a short list, in a trace: they tell the median to the noise of the clock."""


class Silent(StatelessSurrogate):
    """A surrogate that forecasts nothing: every config is measured anyway."""

    name = "silent"

    def forecast(self, context: ForecastContext, *_: object) -> Sequence[Abstention]:
        return [Abstention(self.name, "everything is measured")] * len(context.job.space)


@contextlib.contextmanager
def noting_in(path: Path, lethal: frozenset[Config] = frozenset()) -> Iterator[None]:
    """Write into a file which config is being measured, so that it is known if the process dies of it.

    Those that are `lethal` are not measured any more.
    """
    measure = BaseMeasurer.measure
    left = path.read_text().splitlines() if path.exists() else []
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def noted(measurer: BaseMeasurer, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        if config in lethal:
            return LETHAL
        line = json.dumps(dict(config.knobs))
        path.write_text("\n".join([*left, line]))
        try:
            return measure(measurer, config, limits)
        finally:
            left[:] = [other for other in left if other != line]
            path.write_text("\n".join(left))

    BaseMeasurer.measure = noted  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        BaseMeasurer.measure = measure  # type: ignore[method-assign]


def lethal_in(path: Path) -> frozenset[Config]:
    """The configs that were being measured when a process ended, by the file that `noting_in` wrote, more than once.

    Once may be for another reason: the recording was stopped, or memory was short.
    """
    if not path.exists():
        return frozenset()
    lines = path.read_text().splitlines()
    return frozenset(Config(json.loads(line)) for line in lines if lines.count(line) > 1)


def rounded(outcome: Outcome) -> Outcome:
    """Times to a nanosecond, costs to a millisecond: what lies below is noise, and most of a file's size."""
    if not isinstance(outcome, Measurement):
        return replace(outcome, cost_s=round(outcome.cost_s, 3))
    return replace(
        outcome,
        samples_us=tuple(max(round(s, 3), 0.001) for s in outcome.samples_us),
        compile_s=round(outcome.compile_s, 3),
        run_s=round(outcome.run_s, 3),
    )


def shortened(outcome: Outcome) -> Outcome:
    """An outcome of a short list: some of its samples, evenly over the time it was timed, to four digits."""
    outcome = rounded(outcome)
    if not isinstance(outcome, Measurement):
        return outcome
    samples, count = outcome.samples_us, min(len(outcome.samples_us), KEPT_SAMPLES)
    kept = (samples[i * len(samples) // count] for i in range(count))
    return replace(outcome, samples_us=tuple(float(f"{us:.4g}") for us in kept))
