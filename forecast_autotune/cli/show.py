"""`show`: one decision. What was chosen, why, against what, and what forecasts had said."""

from __future__ import annotations

import argparse
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
    store = store_of(arguments)
    if is_missing(store):
        return NOTHING
    found = store.find(arguments.key)
    if not found:
        warn_unreadable(store)
        say(
            f"no decision starts with {arguments.key!r} and no kernel has that name; 'forecast-autotune list' names them"
        )
        return NOTHING
    # One key decided under power limits that do not compare: its decisions have one digest.
    if len({stored.digest for stored in found}) > 1:
        say(f"{arguments.key!r} stands for {len(found)} decisions; give the start of one's digest:")
        for stored in found[:20]:
            say(f"  {short(stored.digest)}  {stored.place.workload}  on {stored.place.hardware}")
        if len(found) > 20:
            say(f"  and {len(found) - 20} more")
        return BAD_INPUT
    details = [store.detail(stored) for stored in found]
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
    from ..core.outcome import Failure

    stored, decision, place = detail.stored, detail.stored.decision, detail.stored.place
    speed = "" if decision.speedup is None else f", {decision.speedup:.2f}x the default's speed"
    times = "" if decision.config_us is None else f" ({as_time(decision.config_us)}{speed})"
    compared = f"{decision.forecast} forecast, {decision.compiled} compiled, {decision.measured} tried"
    print_facts(
        [
            ("decision", stored.digest),
            ("kernel", f"{place.workload}, {place.workload.program.language}, timed {place.workload.timing}"),
            ("chosen", f"{decision.config}{times}"),
            ("why", f"{decision.basis}: {decision.reason}"),
            (
                "default",
                "unknown" if detail.default is None else f"{detail.default} {as_time(decision.default_us)}".strip(),
            ),
            ("compared with", f"{decision.space_size} configs: {compared}, of which {decision.failed} failed"),
            ("cannot be told apart", "; ".join(map(str, decision.equivalents)) or "no other config"),
            ("cost", f"{as_duration(decision.spent_s)} of a budget of {decision.budget}"),
            ("decided", f"{as_date(decision.decided_at)}, run {short(decision.run) or 'unknown'}"),
            ("hardware", f"{place.hardware} {place.hardware.capability}".strip() + _power_limit(place.hardware)),
            ("toolchain", str(place.toolchain)),
            ("recalled", f"by {stored.hits} processes" + (f", last {as_date(stored.hit_at)}" if stored.hit_at else "")),
            ("superseded", f"{len(detail.earlier)} earlier decisions"),
        ]
    )
    if not detail.touched:
        return
    _print_failures(detail)
    several = any(_voices(t.forecast) for t in detail.touched)
    print()
    print_table(
        (
            "",
            "config",
            "forecast",
            *(["who said what"] * several),
            "measured",
            "time",
            "source of forecast",
            "run",
            "when",
        ),
        [
            (
                _mark(detail, t),
                str(t.config),
                _forecast_words(t.forecast),
                *([", ".join(map(str, _voices(t.forecast)))] * several),
                f"failed at {t.outcome.stage}: {t.outcome.message[:80]}"
                if isinstance(t.outcome, Failure)
                else as_times(detail.log2_speedups[t.config]),
                "" if isinstance(t.outcome, Failure) else as_time(t.outcome.median_us),
                "" if t.forecast is None else t.forecast.source,
                short(t.run),
                as_date(t.recorded_at),
            )
            for t in _ranked(detail)
        ],
        right=("time",),
    )


def _power_limit(hardware: Hardware) -> str:
    return f", power limit {hardware.power_limit_w} W" if hardware.power_limit_w else ""


def _failures(detail: DecisionDetail) -> list[FailuresAlike]:
    from ..core.outcome import Failure

    return failures_alike((str(t.config), t.outcome) for t in detail.touched if isinstance(t.outcome, Failure))


def _print_failures(detail: DecisionDetail) -> None:
    """What failed by stage, what follows from that, and what to do."""
    if found := _failures(detail):
        print()
        print_table(
            ("failed at", "configs", "what was said of the first", "what follows", "what to do"),
            [(f.stage, str(f.count), f.message[:200], f.follows, f.advice) for f in found],
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
class _VoiceHeard:
    """What one surrogate said of a config, in log2 speed-up, and how much that counted."""

    said_by: str
    mean: float
    sigma: float
    weight: float

    def __str__(self) -> str:
        return f"{self.said_by} {as_times(self.mean)} ±{self.sigma:.1f} ({self.weight:.0%})"


def _voices(forecast: Forecast | Abstention | None) -> list[_VoiceHeard]:
    """Who said what, whoever counts most first; empty where one spoke alone, who is the source."""
    from ..core.forecast import Forecast

    if not isinstance(forecast, Forecast) or not all(bell.source for bell in forecast.components):
        return []
    heard = []
    for name in dict.fromkeys(bell.source for bell in forecast.components):
        bells = [bell for bell in forecast.components if bell.source == name]
        weight = sum(bell.weight for bell in bells)
        own = Forecast(tuple(replace(b, weight=b.weight / weight if weight else 1 / len(bells)) for b in bells), name)
        heard.append(_VoiceHeard(said_by=name, mean=own.mean, sigma=own.sigma, weight=weight))
    return sorted(heard, key=lambda voice: -voice.weight)


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
                "who_said_what": [asdict(voice) for voice in _voices(t.forecast)],
                "outcome": encoding.encode_outcome(t.outcome),
                "log2_speedup": detail.log2_speedups.get(t.config),
                "run": t.run,
                "recorded_at": t.recorded_at,
            }
            for t in _ranked(detail)
        ],
    }
