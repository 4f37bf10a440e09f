"""`show`: one decision. What was chosen, why, against what, and what had been forecast."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from ._exit_codes import BAD_INPUT, NOTHING, OK
from ._failures import FailuresAlike, failures_alike
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import is_missing, store_of, summary_of, warn_unreadable
from ._words import as_date, as_duration, as_time, as_times, short
from .output import print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from ..core.forecast import Abstention, Forecast
    from ..core.hardware import Hardware
    from ..store.queries import DecisionDetail
    from ..store.rows import StoredOutcome


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "show",
        "One decision: what was chosen, why, what it beat, and what forecasts had said of each config. Of a key that is "
        "decided under several power limits, all of them; with --json, as a list.",
    )
    parser.add_argument(
        "key", metavar="KEY", help="the start of a decision's digest as `list` prints it, or a kernel's name"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the decision that the key names."""
    store = store_of(arguments)
    if is_missing(store):
        return NOTHING
    matches = store.find(arguments.key)
    if not matches:
        warn_unreadable(store)
        say(
            f"no decision starts with {arguments.key!r} and no kernel has that name; 'forecast-autotune list' names them"
        )
        return NOTHING
    # One key decided under power limits that do not compare: its decisions have one digest.
    if len({stored.digest for stored in matches}) > 1:
        say(f"{arguments.key!r} stands for {len(matches)} decisions; give the start of one's digest:")
        for stored in matches[:20]:
            say(f"  {short(stored.digest)}  {stored.place.workload}  on {stored.place.hardware}")
        if len(matches) > 20:
            say(f"  and {len(matches) - 20} more")
        return BAD_INPUT
    details = [store.detail(stored) for stored in matches]
    warn_unreadable(store)
    if arguments.json:
        print_json(_as_json(details[0]) if len(details) == 1 else [_as_json(detail) for detail in details])
        return OK
    for number, detail in enumerate(details):
        if number:
            print()
        _print(detail)
    return OK


def _ranked(detail: DecisionDetail) -> list[StoredOutcome]:
    """Fastest first, then those that failed."""
    return sorted(detail.touched, key=lambda t: -detail.log2_speedups.get(t.config, float("-inf")))


def _print(detail: DecisionDetail) -> None:
    print_facts(list(_facts(detail)))
    if detail.touched:
        _print_failures(detail)
        _print_configs(detail)


def _facts(detail: DecisionDetail) -> Iterator[tuple[str, str]]:
    stored, decision, place = detail.stored, detail.stored.decision, detail.stored.place
    yield "decision", stored.digest
    yield "kernel", f"{place.workload}, {place.workload.program.language}, timed {place.workload.timing}"
    speed = "" if decision.speedup is None else f", {decision.speedup:.2f}x the default's speed"
    times = "" if decision.config_us is None else f" ({as_time(decision.config_us)}{speed})"
    yield "chosen", f"{decision.config}{times}"
    yield "why", f"{decision.basis}: {decision.reason}"
    default = "unknown" if detail.default is None else f"{detail.default} {as_time(decision.default_us)}".strip()
    yield "default", default
    compared = f"{decision.forecast} forecast, {decision.compiled} compiled, {decision.measured} tried"
    yield "compared with", f"{decision.space_size} configs: {compared}, of which {decision.failed} failed"
    yield "cannot be told apart", "; ".join(map(str, decision.equivalents)) or "no other config"
    yield "cost", f"{as_duration(decision.spent_s)} of a budget of {decision.budget}"
    yield "decided", f"{as_date(decision.decided_at)}, run {short(decision.run) or 'unknown'}"
    yield "hardware", f"{place.hardware} {place.hardware.capability}".strip() + _power_limit(place.hardware)
    yield "toolchain", str(place.toolchain)
    yield "recalled", f"by {stored.hits} processes" + (f", last {as_date(stored.hit_at)}" if stored.hit_at else "")
    yield "superseded", f"{len(detail.earlier)} earlier decisions"


def _print_configs(detail: DecisionDetail) -> None:
    """What was forecast and measured of each config; one column more where several surrogates were asked."""
    several = any(_statements(t.forecast) for t in detail.touched)
    who = ("who said what",) if several else ()
    print()
    print_table(
        ("", "config", "forecast", *who, "measured", "time", "source of forecast", "run", "when"),
        [_cells(detail, t, several=several) for t in _ranked(detail)],
        right=("time",),
    )


def _cells(detail: DecisionDetail, touched: StoredOutcome, *, several: bool) -> tuple[str, ...]:
    from ..core.outcome import Failure

    outcome, forecast = touched.outcome, touched.forecast
    if isinstance(outcome, Failure):
        measured, time = f"failed at {outcome.stage}: {outcome.message[:80]}", ""
    else:
        measured, time = as_times(detail.log2_speedups[touched.config]), as_time(outcome.median_us)
    return (
        _mark(detail, touched),
        str(touched.config),
        _forecast_words(forecast),
        *((", ".join(map(str, _statements(forecast))),) if several else ()),
        measured,
        time,
        "" if forecast is None else forecast.source,
        short(touched.run),
        as_date(touched.recorded_at),
    )


def _power_limit(hardware: Hardware) -> str:
    return f", power limit {hardware.power_limit_w} W" if hardware.power_limit_w else ""


def _failures(detail: DecisionDetail) -> list[FailuresAlike]:
    from ..core.outcome import Failure

    return failures_alike((str(t.config), t.outcome) for t in detail.touched if isinstance(t.outcome, Failure))


def _print_failures(detail: DecisionDetail) -> None:
    """What failed by stage, what follows from that, and what to do."""
    if failures := _failures(detail):
        print()
        print_table(
            ("failed at", "configs", "what was said of the first", "what follows", "what to do"),
            [(f.stage, str(f.count), f.message[:200], f.follows, f.advice) for f in failures],
            right=("configs",),
        )


def _mark(detail: DecisionDetail, touched: StoredOutcome) -> str:
    decision = detail.stored.decision
    if touched.config == decision.config:
        return "chosen"
    if touched.config in decision.equivalents:
        return "as good"
    return "default" if touched.config == detail.default else ""


def _forecast_words(forecast: Forecast | Abstention | None) -> str:
    from ..core.forecast import Forecast

    if forecast is None:
        return "none"
    if not isinstance(forecast, Forecast):
        return f"abstained: {forecast.reason}"
    low, high = forecast.mean - forecast.sigma, forecast.mean + forecast.sigma
    failing = f", {forecast.fail_probability:.0%} to fail" if forecast.fail_probability >= 0.005 else ""
    return f"{as_times(forecast.mean)} ({as_times(low)} to {as_times(high)}{failing})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """What one surrogate forecast of a config, in log2 speed-up, and how much it counted."""

    said_by: str
    mean: float
    sigma: float
    weight: float

    def __str__(self) -> str:
        return f"{self.said_by} {as_times(self.mean)} ±{self.sigma:.1f} ({self.weight:.0%})"


def _statements(forecast: Forecast | Abstention | None) -> list[_Statement]:
    """What each surrogate forecast, the one that counts most first; empty where one forecast alone."""
    from ..core.forecast import Forecast

    if not isinstance(forecast, Forecast) or not all(bell.source for bell in forecast.components):
        return []
    statements = []
    for name in dict.fromkeys(bell.source for bell in forecast.components):
        bells = [bell for bell in forecast.components if bell.source == name]
        weight = sum(bell.weight for bell in bells)
        own = Forecast(tuple(replace(b, weight=b.weight / weight if weight else 1 / len(bells)) for b in bells), name)
        statements.append(_Statement(said_by=name, mean=own.mean, sigma=own.sigma, weight=weight))
    return sorted(statements, key=lambda each: -each.weight)


def _as_json(detail: DecisionDetail) -> dict[str, object]:
    from ..store import encoding

    stored, place = detail.stored, detail.stored.place
    return {
        **summary_of(stored),
        "reason": stored.decision.reason,
        "equivalents": [dict(c.knobs) for c in stored.decision.equivalents],
        "default": None if detail.default is None else dict(detail.default.knobs),
        "space": stored.decision.space_digest,
        "budget": stored.decision.budget,
        "forecast": stored.decision.forecast,
        "compiled": stored.decision.compiled,
        "failed": stored.decision.failed,
        "run": stored.decision.run,
        "hit_at": stored.hit_at,
        "language": place.workload.program.language,
        "timing": place.workload.timing,
        "features": dict(place.workload.features),
        "hardware": encoding.encode_hardware(place.hardware),
        "toolchain": encoding.encode_toolchain(place.toolchain),
        "superseded": len(detail.earlier),
        "failures": [asdict(alike) for alike in _failures(detail)],
        "configs": [
            {
                "config": dict(t.config.knobs),
                "forecast": encoding.encode_forecast(t.forecast),
                "who_said_what": [asdict(each) for each in _statements(t.forecast)],
                "outcome": encoding.encode_outcome(t.outcome),
                "log2_speedup": detail.log2_speedups.get(t.config),
                "run": t.run,
                "recorded_at": t.recorded_at,
            }
            for t in _ranked(detail)
        ],
    }
