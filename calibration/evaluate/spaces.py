"""What the recorded spaces of the suite look like: `python -m calibration spaces [TRACE …] [--json | --markdown]`.

Three parts, from the traces named or all in `calibration/traces`: the suite, a row for each kernel, also of those that
were not recorded; the recorded workloads, a row for each (a kernel at one case on one hardware); and what holds over all
of them: how far repeats agree, how many configs lie near the best, how far the default is from it, and how often and how
much the best variant changes with the size. Times are medians of a config's samples. `--markdown` prints the suite alone,
for the README.

Losses are shares of the best time: 0.05 is 5 % slower. The best is the best of those tried, a sample of most spaces, and
one of the configs near it. A statistic of fewer than two values is left out. Cases are compared within one kernel on one
hardware. Of two variants that are about as fast, either may be best by chance: hence how often no variant is near the best
throughout.

Exit codes: 0 reported, 2 no traces or bad input.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernel_suite.__main__ import described, listed

from forecast_autotune.cli.output import print_facts, print_json, print_table
from forecast_autotune.core.config import Config
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.text import plain
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.scores import spearman
from forecast_autotune.evaluation.traces import read_recorded, read_trace
from forecast_autotune.store import encoding

from ..command import verb_parser
from ..paths import TRACES

VARIANT_KNOBS = ("variant", "source", "ALGORITHM")  # of Triton, CUDA and C++ kernels with several variants
NEAR = (0.01, 0.05, 0.1)  # of the best
CLEAR = 0.02  # of the best: nine of ten configs differ by less from one pass to the next (H200, 2026-11)
BANDS_US = {"below 10 us": (0.0, 10.0), "10 to 100 us": (10.0, 100.0), "above 100 us": (100.0, math.inf)}


# One trace --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is known of a workload: the time of each config that ran, the stage at which each other one failed.

    `again_us` are the times of a second pass, of configs that ran in the first.
    """

    kernel: str
    case: str
    hardware: str
    space: int | None  # configs of the whole space, of which those tried may be a sample
    flops_per_byte: float | None
    default: Config
    times_us: Mapping[Config, float]
    failed: Mapping[Config, str]
    again_us: Mapping[Config, float]
    best: Config = field(init=False)
    best_us: float = field(init=False)

    def __post_init__(self) -> None:
        best = min(self.times_us, key=self.times_us.__getitem__)
        object.__setattr__(self, "best", best)
        object.__setattr__(self, "best_us", self.times_us[best])

    @property
    def default_over_best(self) -> float | None:
        """None where the default failed."""
        return self.times_us[self.default] / self.best_us if self.default in self.times_us else None

    @property
    def repeat_errors(self) -> dict[Config, float]:
        """By how much the second time differs from the first."""
        return {c: abs(us / self.times_us[c] - 1) for c, us in self.again_us.items()}

    def variant(self, config: Config) -> str:
        """The variant that a config is of; a kernel that is a single function is its own only one."""
        return next((str(config[knob]) for knob in VARIANT_KNOBS if knob in config.knobs), self.kernel)

    def regret(self, config: Config) -> float:
        """By how much a config that ran is slower than the best."""
        return self.times_us[config] / self.best_us - 1

    def near(self, share: float) -> list[Config]:
        """The configs that are slower than the best by no more than a share of it."""
        return [c for c, us in self.times_us.items() if us <= self.best_us * (1 + share)]


def read(path: Path) -> Trace:
    """One trace of our own form; what its header does not tell is taken from its names.

    Raises:
        OSError: the file cannot be read.
        InvalidInputError: it is no such trace, or says what makes no sense.
    """
    recording, recorded, what = read_trace(path), read_recorded(path), f"{path}, line 1: recorded"
    times_us = {c: o.median_us for c, o in recording.outcomes.items() if isinstance(o, Measurement)}
    flops, moved = (encoding.optional_number(recorded, name, what) for name in ("flops", "bytes"))
    return Trace(
        kernel=encoding.text_field(recorded, "kernel", what, _kernel(recording)),
        case=encoding.text_field(recorded, "case", what, path.name.partition(".")[0]),
        hardware=recording.hardware.name,
        space=encoding.count_field(recorded, "space", what) if "space" in recorded else None,
        flops_per_byte=flops / moved if flops is not None and moved else None,
        default=recording.default,
        times_us=times_us,
        failed={c: o.stage for c, o in recording.outcomes.items() if isinstance(o, Failure)},
        again_us={c: us for c, us in _second_pass(recorded, what) if c in times_us},
    )


def _kernel(recording: Recording) -> str:
    """The program's name; an extension of the suite has a module before it."""
    name = recording.workload.program.name
    return name.removeprefix(f"kernel_suite_{name.rpartition('.')[2]}.")


def _second_pass(recorded: Mapping[str, object], what: str) -> Iterator[tuple[Config, float]]:
    for each in encoding.list_field(recorded, "second_pass", what):
        values = encoding.fields(each, f"{what}: second_pass")
        outcome = encoding.decode_outcome(values, f"{what}: second_pass")
        if isinstance(outcome, Measurement):
            yield encoding.decode_config(values.get("config"), f"{what}: second_pass"), outcome.median_us


def read_all(paths: Sequence[Path]) -> list[Trace]:
    """Some traces, ordered by kernel and hardware, or all that were recorded if none is named.

    Raises:
        OSError: a file cannot be read.
        InvalidInputError: there are none, one cannot be understood, or two are of the same workload.
    """
    traces: dict[tuple[str, str, str], tuple[Path, Trace]] = {}
    for path in paths or sorted(TRACES.glob("*.jsonl.gz")):
        trace = read(path)
        key = (trace.kernel, trace.hardware, trace.case)
        if key in traces:
            raise InvalidInputError(
                f"{traces[key][0]} and {path} are both of {trace.kernel}/{trace.case} on {trace.hardware}: name one of them"
            )
        traces[key] = path, trace
    if not traces:
        raise InvalidInputError(
            f"there are no traces in {TRACES}: record some by 'python -m calibration record', or name files"
        )
    return [traces[key][1] for key in sorted(traces)]


# What is reported -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How some values are spread, two at least; between two of them, percentiles are interpolated."""

    count: int
    least: float
    median: float
    p90: float
    most: float


def spread(values: Iterable[float]) -> Spread | None:
    """None for fewer than two values."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return None
    return Spread(
        count=len(ordered),
        least=ordered[0],
        median=statistics.median(ordered),
        p90=statistics.quantiles(ordered, n=10, method="inclusive")[-1],
        most=ordered[-1],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """A kernel of the suite, and what its traces say of it."""

    kernel: str
    language: str
    variants: tuple[str, ...]
    configs: int
    cases: tuple[str, ...]  # all it has, recorded or not
    flops_per_byte: tuple[float, float] | None  # least and most
    default_over_best: float | None  # geometric mean over its workloads
    default_over_best_range: tuple[float, float] | None
    best_variants: Mapping[str, Mapping[str, str]]  # by hardware and case


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """A kernel at one case on one hardware."""

    kernel: str
    case: str
    hardware: str
    tried: int
    space: int | None
    failed: Mapping[str, int]  # by stage
    best_us: float
    best_variant: str
    best_config: Mapping[str, object]
    default_over_best: float | None
    near: Mapping[str, int]  # configs within so much of the best
    repeats: int  # configs of the second pass
    repeat_error: float | None  # of these, the median share by which the two times differ
    rank_correlation: float | None  # Spearman's, of the two passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How far the two passes agree.

    `pick_loss`: in the second pass, by how much the config that the first one found best is slower than the best.
    """

    errors: Mapping[str, Spread]  # by the time of the first pass
    rank_correlation: Spread | None  # over workloads
    pick_loss: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What changes from one case of a kernel to another, where several were recorded.

    `transfer_loss`: by how much the config that is best at one case is slower than the best at another.
    `single_loss`: by how much the config with the best geometric mean over all cases is slower than the best at each.
    """

    kernels: int  # with several variants that ran
    changing: tuple[str, ...]  # kernels of these in which not one variant is best at all cases
    clearly: tuple[str, ...]  # of these, in which each variant is more than `CLEAR` slower than the best at some case
    pairs: int  # of cases of those kernels
    pairs_differing: float | None  # share
    pairs_clearly: float | None  # share in which each variant is more than `CLEAR` slower at one of the two
    transfer_loss: Spread | None
    transfers_failed: int  # the config fails at the other case
    transfers_untried: int  # it is not in the other's sample
    single_loss: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What holds over all traces."""

    traces: int
    kernels: int
    hardware: tuple[str, ...]
    measurements: int  # configs that ran
    failures: Mapping[str, int]  # by stage
    repeats: Repeats
    near: Mapping[str, Spread]
    default_over_best: Spread | None
    sizes: Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it."""

    suite: tuple[KernelRow, ...]
    workloads: tuple[WorkloadRow, ...]
    summary: Summary


def report(traces: Sequence[Trace]) -> Report:
    """What some traces say, and what the suite holds."""
    return Report(
        suite=tuple(suite_row(described(k), [t for t in traces if t.kernel == k.name]) for k in listed()),
        workloads=tuple(map(workload_row, traces)),
        summary=summary(traces),
    )


def suite_row(kernel: Mapping[str, Any], traces: Sequence[Trace]) -> KernelRow:
    """One kernel as the suite describes it, with its traces."""
    ratios = [t.default_over_best for t in traces if t.default_over_best is not None]
    order = list(kernel["cases"])
    best: dict[str, dict[str, str]] = {}
    for t in sorted(traces, key=lambda t: order.index(t.case) if t.case in order else len(order)):
        best.setdefault(t.hardware, {})[t.case] = t.variant(t.best)
    return KernelRow(
        kernel=kernel["name"],
        language=kernel["language"],
        variants=tuple(v["name"] for v in kernel["variants"]),
        configs=kernel["configs"],
        cases=tuple(order),
        flops_per_byte=_range(t.flops_per_byte for t in traces if t.flops_per_byte is not None),
        default_over_best=statistics.geometric_mean(ratios) if ratios else None,
        default_over_best_range=_range(ratios),
        best_variants=best,
    )


def _range(values: Iterable[float]) -> tuple[float, float] | None:
    listed = list(values)
    return (min(listed), max(listed)) if listed else None


def workload_row(trace: Trace) -> WorkloadRow:
    errors = trace.repeat_errors
    several = spread(errors.values())
    return WorkloadRow(
        kernel=trace.kernel,
        case=trace.case,
        hardware=trace.hardware,
        tried=len(trace.times_us) + len(trace.failed),
        space=trace.space,
        failed=by_stage([trace]),
        best_us=trace.best_us,
        best_variant=trace.variant(trace.best),
        best_config=dict(trace.best.knobs),
        default_over_best=trace.default_over_best,
        near={f"{share:.0%}": len(trace.near(share)) for share in NEAR},
        repeats=len(errors),
        repeat_error=None if several is None else several.median,
        rank_correlation=_rank_correlation(trace),
    )


def by_stage(traces: Iterable[Trace]) -> dict[str, int]:
    """How many configs failed at each stage."""
    return dict(sorted(Counter(stage for t in traces for stage in t.failed.values()).items()))


def _rank_correlation(trace: Trace) -> float | None:
    again = trace.again_us
    return spearman([trace.times_us[c] for c in again], list(again.values()))


def summary(traces: Sequence[Trace]) -> Summary:
    near = {f"{share:.0%}": spread(len(t.near(share)) for t in traces) for share in NEAR}
    return Summary(
        traces=len(traces),
        kernels=len({t.kernel for t in traces}),
        hardware=tuple(sorted({t.hardware for t in traces})),
        measurements=sum(len(t.times_us) for t in traces),
        failures=by_stage(traces),
        repeats=repeats(traces),
        near={name: values for name, values in near.items() if values is not None},
        default_over_best=spread(t.default_over_best for t in traces if t.default_over_best is not None),
        sizes=sizes(traces),
    )


def repeats(traces: Sequence[Trace]) -> Repeats:
    """How far second passes agree with first ones."""
    errors = [(t.times_us[c], error) for t in traces for c, error in t.repeat_errors.items()]
    split = {
        "all": spread(error for _, error in errors),
        **{band: spread(e for us, e in errors if low <= us < high) for band, (low, high) in BANDS_US.items()},
    }
    ranks = (_rank_correlation(t) for t in traces)
    return Repeats(
        errors={band: errors_of for band, errors_of in split.items() if errors_of is not None},
        rank_correlation=spread(rank for rank in ranks if rank is not None),
        pick_loss=spread(_pick_loss(t) for t in traces if len(t.again_us) > 1),
    )


def _pick_loss(trace: Trace) -> float:
    picked = min(trace.again_us, key=trace.times_us.__getitem__)
    return trace.again_us[picked] / min(trace.again_us.values()) - 1


def sizes(traces: Sequence[Trace]) -> Sizes:
    """What changes with the size, kernel by kernel."""
    groups: dict[tuple[str, str], list[Trace]] = {}
    for t in traces:
        groups.setdefault((t.kernel, t.hardware), []).append(t)
    several = [of_one for of_one in groups.values() if len(of_one) > 1]
    choosing = [cases for cases in several if len({t.variant(c) for t in cases for c in t.times_us}) > 1]
    pairs = [pair for cases in choosing for pair in itertools.combinations(cases, 2)]
    several_pairs = len(pairs) > 1
    moves = [(a.best, b) for cases in several for a, b in itertools.permutations(cases, 2)]
    return Sizes(
        kernels=len({cases[0].kernel for cases in choosing}),
        changing=tuple(sorted({cases[0].kernel for cases in choosing if _change(cases)})),
        clearly=tuple(sorted({cases[0].kernel for cases in choosing if _change(cases, CLEAR)})),
        pairs=len(pairs),
        pairs_differing=statistics.mean(map(_change, pairs)) if several_pairs else None,
        pairs_clearly=statistics.mean(_change(pair, CLEAR) for pair in pairs) if several_pairs else None,
        transfer_loss=spread(b.regret(config) for config, b in moves if config in b.times_us),
        transfers_failed=sum(config in b.failed for config, b in moves),
        transfers_untried=sum(config not in b.failed and config not in b.times_us for config, b in moves),
        single_loss=spread(loss for cases in several for loss in _single_losses(cases)),
    )


def _change(cases: Iterable[Trace], share: float = 0.0) -> bool:
    """Whether no variant is within a share of the best at all of some cases."""
    return not set.intersection(*({t.variant(c) for c in t.near(share)} for t in cases))


def _single_losses(cases: Sequence[Trace]) -> list[float]:
    """By how much the config that is best over all cases is slower than the best at each, if one ran at all of them."""
    everywhere = [c for c in cases[0].times_us if all(c in t.times_us for t in cases)]
    if not everywhere:
        return []
    single = min(everywhere, key=lambda c: sum(math.log(t.times_us[c] / t.best_us) for t in cases))
    return [t.regret(single) for t in cases]


# For people -------------------------------------------------------------------------------------------------------------

SUITE_HEAD = ("kernel", "language", "variants", "configs", "flop/byte", "default/best", "best variant")
WORKLOADS_HEAD = (
    *("workload", "hardware", "tried", "failed", "best us", "best variant", "default/best"),
    *(f"within {share:.0%}" for share in NEAR),
    *("repeats", "apart", "rank"),
)
NONE_IS_NEAR = f"no variant is within {CLEAR:.0%} of the best"
RIGHT = ("configs", "tried", "best us", "repeats", "apart", "rank", *WORKLOADS_HEAD[6:10])


def suite_cells(row: KernelRow, best: str) -> tuple[str, ...]:
    """A row of the suite's table, what is not known blank."""
    ratio = _times(row.default_over_best)
    low, high = (_times(end) for end in row.default_over_best_range or (None, None))
    return (
        row.kernel,
        row.language,
        ", ".join(row.variants),
        f"{row.configs}",
        _to(*map(_short, row.flops_per_byte)) if row.flops_per_byte else "",
        ratio if low == high else f"{ratio} ({_to(low, high)})",
        best,
    )


def by_case(row: KernelRow) -> str:
    """The best variant of each case."""
    by_hardware = row.best_variants.items()
    return _by_hardware({name: ", ".join(f"{case}: {v}" for case, v in best.items()) for name, best in by_hardware})


def in_words(row: KernelRow) -> str:
    """The best variants in as few words as say it: `grouped everywhere`, or `split_k at few_rows, else grouped`."""
    return _by_hardware({name: _words(best, row.cases) for name, best in row.best_variants.items()})


def _words(best: Mapping[str, str], cases: Sequence[str]) -> str:
    """`everywhere` and `else` are said only where each case was recorded, `else` only of more than one."""
    at: dict[str, list[str]] = {}
    for case, variant in best.items():
        at.setdefault(variant, []).append(case)
    usual = max(at, key=lambda variant: len(at[variant]))
    whole = set(cases) <= set(best)
    if len(at) == 1 and whole:
        return f"{usual} everywhere"
    rest = f"else {usual}" if whole and len(at[usual]) > 1 else ""
    parts = [f"{v} at {' and '.join(at[v])}" for v in at if not (rest and v == usual)]
    return ", ".join([*parts, rest] if rest else parts)


def _by_hardware(words: Mapping[str, str]) -> str:
    """Hardware is named where there is more than one."""
    return "; ".join(words.values() if len(words) < 2 else (f"{name}: {text}" for name, text in words.items()))


def workload_cells(row: WorkloadRow) -> tuple[str, ...]:
    return (
        f"{row.kernel}/{row.case}",
        row.hardware,
        f"{row.tried}" if row.space is None else f"{row.tried} of {row.space}",
        _counts(row.failed) or "0",
        f"{row.best_us:.2f}",
        row.best_variant,
        _times(row.default_over_best),
        *map(str, row.near.values()),
        f"{row.repeats or ''}",
        "" if row.repeat_error is None else f"{row.repeat_error:.1%}",
        "" if row.rank_correlation is None else f"{row.rank_correlation:.3f}",
    )


def summary_facts(summary: Summary) -> Iterator[tuple[str, str]]:
    """A name and what there is to say of it, for all that can be said."""
    again, by_size = summary.repeats, summary.sizes
    yield "traces", f"{summary.traces} of {summary.kernels} kernels on {', '.join(summary.hardware)}"
    yield (
        "configs",
        f"{summary.measurements} ran, {sum(summary.failures.values())} failed" + _within(_counts(summary.failures)),
    )
    for band, errors in again.errors.items():
        name = "repeats" if band == "all" else f"  {band}"
        yield name, f"{errors.median:.1%} apart in the median, {errors.p90:.1%} at p90, of {errors.count} configs"
    if (ranks := again.rank_correlation) is not None:
        yield (
            "  rank correlation",
            f"{ranks.median:.3f} in the median, {ranks.least:.3f} at least, of {ranks.count} workloads",
        )
    if again.pick_loss is not None:
        yield "  picked by one pass", f"in the other {_loss(again.pick_loss)}, of {again.pick_loss.count} workloads"
    for share, counts in summary.near.items():
        text = f"{counts.median:g} of those tried in the median of {counts.count} workloads"
        yield f"within {share} of the best", f"{text}, {counts.least:g} to {counts.most:g}"
    if (default := summary.default_over_best) is not None:
        text = f"{default.median:.2f} in the median, {default.p90:.2f} at p90, {default.most:.2f} at worst"
        yield "default/best", f"{text}, of {default.count} workloads"
    if by_size.kernels:
        names = _within(", ".join(by_size.changing))
        text = f"in {len(by_size.changing)} of {by_size.kernels} kernels with several cases{names}"
        yield "best variant changes", f"{text}; in {len(by_size.clearly)} {NONE_IS_NEAR} of all"
    if by_size.pairs_differing is not None and by_size.pairs_clearly is not None:
        text = f"in {by_size.pairs_differing:.0%} of {by_size.pairs} pairs"
        yield "  between two cases", f"{text}; in {by_size.pairs_clearly:.0%} {NONE_IS_NEAR} of both"
    if (moved := by_size.transfer_loss) is not None:
        more = {"it fails": by_size.transfers_failed, "it was not tried": by_size.transfers_untried}
        others = "".join(f"; in {count} more {what}" for what, count in more.items() if count)
        yield "best of another case", f"{_loss(moved)}, of {moved.count} moves{others}"
    if by_size.single_loss is not None:
        yield "one config for all cases", f"{_loss(by_size.single_loss)}, of {by_size.single_loss.count} workloads"


def _loss(loss: Spread) -> str:
    return f"{loss.median:.1%} slower in the median, {loss.most:.1%} at worst"


def _within(text: str) -> str:
    return f" ({text})" if text else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _to(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def markdown(rows: Iterable[KernelRow]) -> str:
    """The suite as a table for the README."""
    lines: list[tuple[str, ...]] = [SUITE_HEAD, ("---",) * len(SUITE_HEAD)]
    lines += [suite_cells(row, in_words(row)) for row in rows]
    return "\n".join("| " + " | ".join(plain(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def known(value: Any) -> Any:
    """A report as JSON values, without what is not known."""
    if isinstance(value, Mapping):
        return {name: known(each) for name, each in value.items() if each is not None}
    return [known(each) for each in value] if isinstance(value, (list, tuple)) else value


def show(report: Report) -> None:
    print_table(SUITE_HEAD, [suite_cells(row, by_case(row)) for row in report.suite], right=RIGHT)
    print()
    print_table(WORKLOADS_HEAD, [workload_cells(row) for row in report.workloads], right=RIGHT)
    print()
    print_facts(list(summary_facts(report.summary)))


def main(words: Sequence[str] | None = None) -> int:
    """Read, and print what was asked for."""
    parser = verb_parser("spaces", __doc__)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE", help=f"default: all in {TRACES}")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all of it as one JSON value")
    form.add_argument("--markdown", action="store_true", help="the suite as a table for the README")
    given = parser.parse_args(words)
    try:
        answer = report(read_all(given.traces))
    except (InvalidInputError, OSError) as err:
        print(f"spaces: {err}", file=sys.stderr)
        return 2
    if given.json:
        print_json(known(asdict(answer)))
    elif given.markdown:
        print(markdown(answer.suite))
    else:
        show(answer)
    return 0
