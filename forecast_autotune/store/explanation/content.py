"""What an explanation says: the facts of a decision, what failed, and every config that was touched."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.config import Config, split_common
from ...core.decision import Decision
from ...core.figures import as_date, as_duration, as_factor, as_time, as_times, counted, short
from ...core.forecast import Abstention, Forecast
from ...core.layout import Block, Facts, Table
from ...core.outcome import Failure, Measurement
from ...core.text import shortened
from ..details import DecisionDetail
from ..noise import Noise, noise_of
from ..rows import StoredOutcome
from .failures_alike import FailuresAlike, failures_alike
from .statements import statements_of

MAX_OF_MESSAGE = 200  # characters of what was said of a failure; all of it with -v
MAX_OF_VERSION = 32  # and of a tool's version


def blocks_of(detail: DecisionDetail, *, verbose: bool) -> Iterator[Block]:
    """Facts and tables about a decision.

    Args:
        verbose: with who forecast what, each failure's message, and the run that measured.
    """
    yield Facts(list(_facts(detail, verbose=verbose)))
    if failures := failures_of(detail):
        yield _failures(failures, verbose=verbose)
    if detail.touched:
        yield from _configs(detail, verbose=verbose)


def ranked(detail: DecisionDetail) -> list[StoredOutcome]:
    """Fastest first, then those that failed."""
    return sorted(detail.touched, key=lambda t: -detail.log2_speedups.get(t.config, float("-inf")))


def failures_of(detail: DecisionDetail) -> list[FailuresAlike]:
    """What failed, those that failed alike together."""
    return failures_alike((str(t.config), t.outcome) for t in detail.touched if isinstance(t.outcome, Failure))


def noise_at(detail: DecisionDetail) -> Noise | None:
    """How much the samples of its configs vary."""
    return noise_of(t.outcome for t in detail.touched if isinstance(t.outcome, Measurement))


# Facts ------------------------------------------------------------------------------------------------------------------


def _facts(detail: DecisionDetail, *, verbose: bool) -> Iterator[tuple[str, str]]:
    stored, decision, tuning_key = detail.stored, detail.stored.decision, detail.stored.tuning_key
    if stored.id:
        yield "decision", stored.digest
    yield "kernel", f"{tuning_key.workload}, {tuning_key.workload.program.language}, timed {tuning_key.workload.timing}"
    speed = "" if decision.speedup is None else f", {decision.speedup:.2f}x the default's speed"
    time = _time_of(detail, decision.config, decision.config_us)
    yield "chosen", f"{decision.config}" + (f" ({time}{speed})" if time else "")
    yield "why", decision.reason if decision.basis in decision.reason else f"{decision.basis}: {decision.reason}"
    if detail.default is None:
        yield "default", "unknown"
    else:
        time = _time_of(detail, detail.default, decision.default_us)
        yield "default", f"{_in_order(detail, detail.default)}" + (f" ({time})" if time else "")
    compared = f"{decision.forecast} forecast, {decision.compiled} compiled, {decision.tried} tried"
    yield "compared with", f"{decision.space_size} configs: {compared}, of which {decision.failed} failed"
    if verbose or decision.equivalents:
        yield "cannot be told apart", "; ".join(map(str, decision.equivalents)) or "no other config"
    if noise := noise_at(detail):
        yield "noise", str(noise)
    yield "cost", f"{as_duration(decision.spent_s)}; the budget was {decision.budget}"
    if decision.timed_real_calls:
        explored, saved = as_duration(decision.explored_s), as_duration(decision.saved_s)
        yield "real calls", f"lost {explored} to exploring; those that were timed took {saved} less than by the default"
    if verbose:
        yield "spent on", _split(decision) or "unknown"
    yield "decided", f"{as_date(decision.decided_at)}, run {short(decision.run) or 'unknown'}"
    limit = f", power limit {tuning_key.hardware.power_limit_w} W" if tuning_key.hardware.power_limit_w else ""
    if verbose or decision.model:
        yield (
            "forecast by",
            f"model {decision.model}" if decision.model else "no fitted model, or one without a version",
        )
    yield "hardware", f"{tuning_key.hardware} {tuning_key.hardware.capability}".strip() + limit
    versions = tuning_key.toolchain.versions.items()
    most = None if verbose else MAX_OF_VERSION
    yield "toolchain", ", ".join(f"{name} {shortened(version, most)}" for name, version in versions)
    if verbose or stored.hits:
        last = f", last {as_date(stored.hit_at)}" if stored.hit_at else ""
        yield "recalled", f"by {counted(stored.hits, 'process', 'processes')}{last}"
    if verbose or detail.earlier:
        yield "superseded", counted(len(detail.earlier), "earlier decision")


def _split(decision: Decision) -> str:
    """What a run's time was spent on; empty where that was not noted."""
    if not decision.timing_s and not decision.waiting_s:
        return ""
    return (
        f"waiting {as_duration(decision.waiting_s)}, timing {as_duration(decision.timing_s)}, ours "
        f"{as_duration(decision.ours_s)}; compiling took all workers together {as_duration(decision.compiling_s)}"
    )


def _time_of(detail: DecisionDetail, config: Config, median_us: float | None) -> str:
    """A median of the decision's, with the spread that the stored samples of the config have."""
    outcome = next((t.outcome for t in detail.touched if t.config == config), None)
    return as_time(median_us, outcome.relative_spread if isinstance(outcome, Measurement) else None)


def _in_order(detail: DecisionDetail, config: Config) -> Config:
    """The config with its knobs in the order of the chosen one: stored ones stand in that of the alphabet."""
    names = [name for name in detail.stored.decision.config.knobs if name in config.knobs]
    return Config({name: config.knobs[name] for name in (*names, *config.knobs)})


# Tables -----------------------------------------------------------------------------------------------------------------


def _failures(failures: list[FailuresAlike], *, verbose: bool) -> Table:
    """What failed by stage, what follows from that, and what to do."""
    most = None if verbose else MAX_OF_MESSAGE
    return Table(
        ("failed at", "configs", "what was said of the first", "what follows", "what to do"),
        [(f.stage, str(f.count), shortened(f.message, most), f.follows, f.advice) for f in failures],
        right=("configs",),
    )


def _configs(detail: DecisionDetail, *, verbose: bool) -> Iterator[Block]:
    """What was forecast and measured of each config; what all of them set alike stands above.

    Messages that the failures above tell already are left out, unless all is asked for.
    """
    touched = ranked(detail)
    common, configs = split_common([_in_order(detail, t.config) for t in touched])
    if common.knobs:
        yield Facts([("all with", str(common))])
    told = set() if verbose else {alike.message for alike in failures_of(detail)}
    columns = ["", "time", "speed", "forecast", "fails", "config", "message"]
    columns += ["who said what", "source of forecast", "run", "when"] if verbose else []
    rows = []
    for outcome, config in zip(touched, configs, strict=True):
        message = "" if (said := _message(outcome)) in told else said if verbose else shortened(said, MAX_OF_MESSAGE)
        rows.append((*_cells(detail, outcome), str(config), message, *(_more_cells(outcome) if verbose else ())))
    some = [i for i, cells in enumerate(zip(*rows, strict=True)) if any(cells) or not columns[i]]
    yield Table([columns[i] for i in some], [[row[i] for i in some] for row in rows], right=("time", "speed", "fails"))


def _message(touched: StoredOutcome) -> str:
    return touched.outcome.message if isinstance(touched.outcome, Failure) else ""


def _cells(detail: DecisionDetail, touched: StoredOutcome) -> tuple[str, ...]:
    outcome, log2_speedup = touched.outcome, detail.log2_speedups.get(touched.config)
    return (
        _mark(detail, touched),
        f"failed at {outcome.stage}"
        if isinstance(outcome, Failure)
        else as_time(outcome.median_us, outcome.relative_spread),
        "" if log2_speedup is None else as_times(log2_speedup),
        *_forecast_cells(touched.forecast),
    )


def _more_cells(touched: StoredOutcome) -> tuple[str, ...]:
    """What only those see who ask for it."""
    forecast = touched.forecast
    source = "" if forecast is None else forecast.source
    return (
        ", ".join(map(str, statements_of(forecast))),
        f"{source}: {forecast.reason}" if isinstance(forecast, Abstention) else source,
        short(touched.run),
        as_date(touched.recorded_at),
    )


def _mark(detail: DecisionDetail, touched: StoredOutcome) -> str:
    decision = detail.stored.decision
    if touched.config == decision.config:
        return "chosen"
    if touched.config in decision.equivalents:
        return "as good"
    return "default" if touched.config == detail.default else ""


def _forecast_cells(forecast: Forecast | Abstention | None) -> tuple[str, str]:
    """The speed-up that was forecast, with its range of one standard deviation, and the chance of a failure."""
    if not isinstance(forecast, Forecast):
        return "none" if forecast is None else "abstained", ""
    low, high = as_factor(forecast.mean - forecast.sigma), as_factor(forecast.mean + forecast.sigma)
    fails = f"{forecast.fail_probability:.0%}" if forecast.fail_probability >= 0.005 else ""
    return f"{as_times(forecast.mean)} ({low}-{high})", fails
