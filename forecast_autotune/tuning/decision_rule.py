"""From outcomes and forecasts to a decision. Pure: nothing is read, timed, stored or logged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.config import Config
from ..core.decision import Basis, Decision
from ..core.forecast import Abstention, Forecast
from ..core.job import Job, Stop, reference_us
from ..core.outcome import SWITCH_MARGIN, TIE_MARGIN, Failure, Measurement, Outcome
from ..core.space import Space
from ..errors import NoWorkingConfigError

# Where nothing may be measured, the least expected time decides, with two conditions. On the suite, small kernels and
# packages, kernels left out, three models, 43 choices of 3,330 then took over 1.3 times the default's time, at worst 4.4.
WORTH = 0.9  # times what is known: only an expected time below that is worth a choice
FAR_SLOWER, VETO_CHANCE = 1.3, 0.15  # times what is known; the chance of that above which a config is not chosen
# Times what is known: an expected time beyond this counts as this. At 4, what was chosen took 0.6, 0.4 and 1 % longer on
# these three.
SLOWDOWN_CAP = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a run knows when it decides, and what it spent.

    `finals` are the configs timed in turns at the end, empty where that did not happen. `forecasts` stand in the order of
    the job's space.
    """

    job: Job
    outcomes: Mapping[Config, Outcome]
    finals: Mapping[Config, Measurement]
    forecasts: Sequence[Forecast | Abstention]
    tried: Collection[Config]  # by this run
    compiled: int
    budget: str
    spent_s: float
    run: str
    now: float  # seconds since the epoch
    waiting_s: float = 0.0  # see `Decision`
    compiling_s: float = 0.0
    timing_s: float = 0.0
    explored_s: float = 0.0
    saved_s: float = 0.0
    left_behind: int = 0  # configs whose builds nobody waited for
    model: str = ""  # the version of the fitted model that forecast

    @property
    def ran(self) -> dict[Config, Measurement]:
        """The measurements to compare, fastest first: those timed in turns, where there are any.

        A config that was not timed in turns may have been timed while the machine was faster.
        """
        return measured(self.finals or self.outcomes, self.job.space)


@dataclass(frozen=True, slots=True)
class Choice:
    """A config, what it rests on, why it was chosen, and the configs it cannot be told apart from."""

    config: Config
    basis: Basis
    reason: str
    equivalents: tuple[Config, ...] = ()


def decide(findings: Findings, stop: Stop, *, by_forecast: bool = False) -> Decision:
    """Decide on all that is known.

    Args:
        stop: why the run ended; a config that it names is the decision.
        by_forecast: also consider configs that were never run; for where nothing may be measured.
    Raises:
        NoWorkingConfigError: nothing ran, and the default would bring its process down or never end.
    """
    ran, space = findings.ran, findings.job.space
    if findings.left_behind:
        left = f"{findings.left_behind} left behind, whose builds took far longer than the others"
        stop = replace(stop, reason=f"{stop.reason}; {left}")
    choice = choose(findings, stop, by_forecast=by_forecast)
    times_us = {c: m.median_us for c, m in ran.items()}
    return Decision(
        config=choice.config,
        basis=choice.basis,
        reason=choice.reason,
        equivalents=choice.equivalents,
        space_digest=space.digest,
        space_size=len(space),
        budget=findings.budget,
        forecast=sum(isinstance(f, Forecast) for f in findings.forecasts),
        compiled=findings.compiled,
        tried=len(findings.tried),
        failed=sum(isinstance(findings.outcomes[c], Failure) for c in findings.tried),
        known=len(findings.outcomes.keys() - findings.tried),
        spent_s=findings.spent_s,
        waiting_s=findings.waiting_s,
        compiling_s=findings.compiling_s,
        timing_s=findings.timing_s,
        explored_s=findings.explored_s,
        saved_s=findings.saved_s,
        config_us=times_us.get(choice.config),
        default_us=times_us.get(space.default),
        run=findings.run,
        decided_at=findings.now,
        model=findings.model,
    )


def choose(findings: Findings, stop: Stop, *, by_forecast: bool = False) -> Choice:
    """The config to run: the one that `stop` names, else a trusted forecast, else the winner, else the default.

    Args and Raises: as for `decide`.
    """
    ran, space = findings.ran, findings.job.space
    winner = pick_winner(ran, space) if ran and stop.config is None else None
    if by_forecast and stop.config is None:
        trusted = trusted_forecast(findings, None if winner is None else ran[winner.config])
        if trusted is not None:
            config, forecast = trusted
            reason = (
                f"{forecast.source} forecasts {2**forecast.mean:.2f}x the default's speed, "
                f"{forecast.chance_above(0.0):.0%} sure that it is faster; {stop.reason}"
            )
            return Choice(config, "forecast", reason)
    if winner is not None:
        return Choice(winner.config, "measured", f"{winner.reason}; {stop.reason}", winner.equivalents)
    reason = stop.reason
    if findings.outcomes and not ran:
        refuse_if_default_breaks(findings)
        reason = f"{none_ran_text(findings)}; {reason}"
    return Choice(space.default if stop.config is None else stop.config, "default", reason)


def pick_winner(ran: Mapping[Config, Measurement], space: Space) -> Choice:
    """The measured config to run.

    The fastest must beat the default by `SWITCH_MARGIN` and beyond twice the combined standard error. Among configs tied
    with the fastest, the one that stands first in the space wins, so that equal evidence always gives the same decision.

    Args:
        ran: fastest first, not empty.
    """
    default = space.default
    best, fastest = next(iter(ran.items()))
    tied = [c for c, m in ran.items() if m.median_us <= fastest.median_us * (1 + noise(m, fastest, TIE_MARGIN))]
    if default in ran:
        gain = ran[default].median_us / fastest.median_us - 1
        needed = noise(ran[default], fastest, SWITCH_MARGIN)
        if best == default or gain <= needed:
            reason = f"no config tried beats the default by more than the noise ({needed:.1%})"
            return Choice(default, "measured", reason, tuple(c for c in tied if c != default))
    chosen = min(tied, key=space.index)
    equivalents = tuple(c for c in tied if c != chosen)
    if default in ran:
        reason = f"{ran[default].median_us / ran[chosen].median_us:.2f}x the default's speed, measured"
    else:
        reason = "the fastest measured; the default does not run here"
    if equivalents:
        reason += f"; first in the space of {len(tied)} that cannot be told apart"
    return Choice(chosen, "measured", reason, equivalents)


def trusted_forecast(findings: Findings, best: Measurement | None) -> tuple[Config, Forecast] | None:
    """The untried config with the least expected time that is good enough to choose it unmeasured; None without one.

    Not one that may well be far slower, nor one of which nothing but rules of thumb speaks.

    Args:
        best: what it must beat; without it, the default.
    """
    space = findings.job.space
    reference = reference_us(findings.outcomes, space.default)
    known = best.median_us / reference if best and reference else 1.0
    chosen, least = None, WORTH * known
    for config, forecast in zip(space, findings.forecasts, strict=False):
        if (
            isinstance(forecast, Forecast)
            and forecast.grounded
            and config != space.default
            and config not in findings.outcomes
            and (expected := forecast.expected_time(SLOWDOWN_CAP * known)) < least
            and forecast.chance_slower(FAR_SLOWER * known) <= VETO_CHANCE
        ):
            chosen, least = (config, forecast), expected
    return chosen


def refuse_if_default_breaks(findings: Findings) -> None:
    """Where no config runs, refuse to launch a default that would bring its process down or never end.

    Raises:
        NoWorkingConfigError: it would.
    """
    failures = _failures(findings)
    default = failures.get(findings.job.space.default)
    if default is not None and default.crashed:
        examples = "; ".join(f"{c}: {o.stage}: {o.message}" for c, o in list(failures.items())[:3])
        raise NoWorkingConfigError(
            f"{findings.job.workload}: {none_ran_text(findings)}, the default included: {examples}. Run it under a "
            "debugger, or set FORECAST_AUTOTUNE_MODE=first to launch the default anyway."
        )


def none_ran_text(findings: Findings) -> str:
    """That every config tried has failed, and at which stages."""
    failures = _failures(findings)
    counts = Counter(f.stage for f in failures.values())
    stages = ", ".join(f"{count} at {stage}" for stage, count in counts.items())
    return f"none of {len(failures)} configs tried runs here ({stages})"


def _failures(findings: Findings) -> dict[Config, Failure]:
    return {c: o for c, o in findings.outcomes.items() if isinstance(o, Failure)}


def measured(outcomes: Mapping[Config, Outcome], space: Space) -> dict[Config, Measurement]:
    """The configs that ran, fastest first; equal medians in the order of the space."""
    ran = {c: o for c, o in outcomes.items() if isinstance(o, Measurement)}
    return dict(sorted(ran.items(), key=lambda item: (item[1].median_us, space.index(item[0]))))


def noise(a: Measurement, b: Measurement, floor: float) -> float:
    """Relative difference below which two medians are the same: twice their combined standard error, at least floor."""
    return max(floor, 2 * math.hypot(a.relative_error, b.relative_error))
