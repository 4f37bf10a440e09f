"""Sampling: how many times of one config are taken, and which of them are believed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..core.garbage import no_collection
from ..core.timing_limits import IN_FULL, TimingLimits

MIN_SAMPLES, MAX_SAMPLES = 5, 50
# On a device so many samples are enough, taken in no less time, where all but a few of the middle ones lie within `PRECISE`
# of each other, once a config was timed in full and no neighbour seen. On the recorded suite that saves 70 % of the samples
# of kernels over 200 us. For configs near the best, medians then differ by 0.03 % from those of all samples (by 0.7 % for
# one in a hundred), and choices by 0.004 %.
PRECISE_FROM, PRECISE_S, PRECISE = 10, 0.004, 0.01
BATCH = 16  # launches handed to a device at once
EARLY_STOP_SAMPLES = 3  # before an early stop, where samples are so short that one may show a stumble of the host
SHORT_US = 1000.0  # a sample as short as this may show a stumble of the host; a longer one is the device's
# The first sample may be so many times the others: a warm-up (a recorded space on one GPU, each config)
FIRST_FACTOR = 2.0
WINDOW = 0.05  # configs so much slower than the best are timed no further: none of them is a finalist

# When samples count as disturbed by a neighbour's work: the quickest fifth of them ends a share of `DISTURBED` below the
# median. Or, of at least `BIMODAL_FROM` samples, a share of `BIMODAL`, and `BIMODAL_FACTOR` the spread within that fifth:
# then there are two kinds of samples.
DISTURBED, BIMODAL, BIMODAL_FACTOR, BIMODAL_FROM = 0.15, 0.03, 3.0, 20

MAX_BURSTS = 3  # of samples, if none is free of neighbours
AGAIN_FACTOR = 10  # no further burst once all together have taken so many times `timed_s`
DIGITS = 4  # of a sample in microseconds behind the point: no clock tells 0.1 ns, and what lies beyond fills stores


def collect(
    sample: Callable[[int], list[float]],
    timed_s: float,
    limits: TimingLimits = IN_FULL,
    *,
    alone: bool = True,
    precise_s: float = math.inf,
) -> tuple[tuple[float, ...], float]:
    """Take bursts of samples, a few at most, until one shows no neighbour's work.

    Where another process is known to time on the device (not `alone`), one burst is not believed: a neighbour that is busy
    all the time leaves no spread.

    Args:
        precise_s: after so long a burst ends once its samples agree; never on a CPU, where neighbours come and go by the
            millisecond.
    Returns:
        The quietest burst, in microseconds, and the share by which its median may be too long.
    """
    began, most = time.perf_counter(), max(MIN_SAMPLES, round(MAX_SAMPLES * limits.share))
    bursts = [_burst(sample, timed_s, limits, most, precise_s)]
    if len(bursts[0]) < MIN_SAMPLES:
        return bursts[0], 0.0  # timing ended early
    while len(bursts) < MAX_BURSTS and time.perf_counter() - began < AGAIN_FACTOR * timed_s:
        if _quietest(bursts)[1] == 0.0 and (alone or len(bursts) > 1):
            break
        again = replace(limits, early_stop_us=math.inf)
        bursts.append(_burst(sample, timed_s, again, most, precise_s))
    return _quietest(bursts)


def _quietest(bursts: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], float]:
    """The burst with the least median, and by which share of it that lies above the quickest seen; 0 where that is noise."""
    best = min(bursts, key=statistics.median)
    median_us = statistics.median(best)
    quick_us = min(_quick_us(burst) for burst in bursts)
    quickest_us, gap_us = min(best), median_us - quick_us
    two_kinds = len(best) >= BIMODAL_FROM and gap_us > max(
        BIMODAL * median_us, BIMODAL_FACTOR * (_quick_us(best) - quickest_us)
    )
    return best, gap_us / median_us if two_kinds or gap_us > DISTURBED * quick_us else 0.0


def _quick_us(samples_us: Sequence[float]) -> float:
    """Where the quickest fifth ends: that quick it is without neighbours, if a fifth was taken without."""
    return sorted(samples_us)[(len(samples_us) - 1) // 5]


def _burst(
    sample: Callable[[int], list[float]],
    timed_s: float,
    limits: TimingLimits,
    most: int,
    precise_s: float,
) -> tuple[float, ...]:
    """Samples until there are enough of them for the time; fewer where these show that more are useless."""
    with no_collection():
        began = time.perf_counter()
        samples = sample(1)
        while min(samples) > limits.early_stop_us:
            enough = EARLY_STOP_SAMPLES if samples[0] <= SHORT_US else 2
            if len(samples) >= enough or samples[0] > max(FIRST_FACTOR * limits.early_stop_us, SHORT_US):
                return _rounded(samples)
            samples += sample(1)
        each_s = max(time.perf_counter() - began, 1e-6)
        while len(samples) < most:
            spent_s = time.perf_counter() - began
            if len(samples) >= MIN_SAMPLES and (spent_s > timed_s or _slower(samples, limits.best_us)):
                break
            if spent_s > precise_s and _agree(samples):
                break
            fit = int((timed_s - spent_s) / each_s)
            until = most
            if len(samples) < MIN_SAMPLES and limits.best_us != math.inf:
                until = MIN_SAMPLES
            elif len(samples) < PRECISE_FROM < most and PRECISE_FROM * each_s > precise_s:
                until = PRECISE_FROM
            samples += sample(max(1, min(BATCH, fit, until - len(samples))))
    return _rounded(samples)


def _agree(samples_us: Sequence[float]) -> bool:
    """Whether the samples tell their median: those that it lies between (19 times of 20) are as good as equal."""
    count = len(samples_us)
    if count < PRECISE_FROM:
        return False
    ordered, aside = sorted(samples_us), math.floor(count / 2 - math.sqrt(count))
    return ordered[count - 1 - aside] - ordered[aside] <= PRECISE * ordered[count // 2]


def is_steady(samples_us: Sequence[float]) -> bool:
    """Whether no neighbour shows for a tenth of the samples or more, at either end."""
    ordered, aside = sorted(samples_us), len(samples_us) // 10
    return ordered[-1 - aside] <= (1.0 + BIMODAL) * ordered[aside]


def _slower(samples_us: Sequence[float], best_us: float) -> bool:
    """Whether a config is so much slower than the best that no more samples are of use: its quickest fifth lies beyond.

    Far beyond, where there are few samples. On the recorded suite, 16 configs of a space in any order, this takes half of
    the samples. Of the 1,755 configs whose timing it ended one was within 5 % of the best. The median of the samples taken
    is 0.1 % from that of all, in one of twenty 1.5 %.
    """
    return _quick_us(samples_us) > best_us * (1.0 + WINDOW + 1.0 / len(samples_us))


def _rounded(samples_us: Sequence[float]) -> tuple[float, ...]:
    """Times without digits that say nothing; none becomes 0, which is no time."""
    return tuple(max(round(t, DIGITS), 10.0**-DIGITS) for t in samples_us)
