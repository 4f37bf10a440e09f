"""What a run says of a machine whose times cannot be relied on."""

from __future__ import annotations

import logging
import statistics

from ..core.outcome import Measurement
from .progress_text import workload_text
from .state import RunState

noise_log = logging.getLogger("forecast_autotune.tuner.noise")  # a public name, like that of failures

# Of 15,275 measurements on an idle H200 (89 recorded spaces, 2026) half vary by less than 0.8 %, one in a thousand by more
# than 15 % and one by more than 20 %; on two cores that others use too (EPYC, gemm_few_rows), one in five.
NOISY = 0.2
MIN_SAMPLES = 5  # fewer show no spread

_warned_of: list[str] = []  # the key whose noise this process has reported


def report_noise(state: RunState) -> None:
    """Warn, once in a process, that the default's own times vary so much that small gains mean nothing.

    They vary within one measurement, or between the first one and the finals. In Triton's interpreter nobody cares.
    """
    default = state.outcomes.get(state.space.default)
    fresh = state.space.default in state.tried or state.space.default in state.finals
    if _warned_of or not fresh or not isinstance(default, Measurement) or state.job.hardware.kind == "interpreter":
        return
    spread, drift = spread_of(default.samples_us), abs(state.drift)
    if max(spread, drift) < NOISY:
        return
    _warned_of.append(workload_text(state.job.workload))
    facts = []
    if spread >= NOISY:
        low, _, high = statistics.quantiles(default.samples_us, n=4, method="inclusive")
        facts.append(f"half of {len(default.samples_us)} samples lie between {low:,.1f} and {high:,.1f} us")
    if drift >= NOISY:
        facts.append(f"timed again at the end it took {state.drift:+.0%}")
    noise_log.warning(
        "%s: times of the default vary by %s %% on this machine (%s): choices below that are luck. Let nothing else "
        "run while it tunes; this is said once",
        workload_text(state.job.workload),
        f"{100 * max(spread, drift):,.0f}",
        ", ".join(facts),
    )


def spread_of(samples_us: tuple[float, ...]) -> float:
    """The range in which the middle half of some samples lies, as a share of their median; 0 where they are too few."""
    if len(samples_us) < MIN_SAMPLES:
        return 0.0
    low, median, high = statistics.quantiles(samples_us, n=4, method="inclusive")
    return (high - low) / median
