"""`stats`: what the store holds, what it saved, and how honest the forecasts were."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from . import NOTHING, OK
from ._shared import (
    JSON_HELP,
    Subparsers,
    add_store_argument,
    as_duration,
    is_missing,
    new_parser,
    print_facts,
    print_json,
    store_of,
    tell_unreadable,
)

if TYPE_CHECKING:
    from ..scores import ForecastScores
    from ..store.manage import StoreStats

HOW = """How the figures come about:
  hits    a process recalled a decision that it had not in memory; later calls in the same process are not counted, nor
          are processes that were killed
  saved   by hits: each is worth the seconds that the decision's tuning took; by forecasts: configs of a space that were
          not tried, at the average cost of those that were, compared with trying all
  honest  the first forecast ever made for a config against what was then measured, over the eight speed-up bins"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "stats", f"Size, hits, time saved, how honest the forecasts were.\n\n{HOW}")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..scores import score_pairs

    store = store_of(arguments)
    if is_missing(store):
        return NOTHING
    stats = store.stats()
    tell_unreadable(store)
    scores = score_pairs(stats.pairs) if stats.pairs else None
    if arguments.json:
        shown = {name: getattr(stats, name) for name in stats.__dataclass_fields__ if name not in ("path", "pairs")}
        print_json({"path": str(stats.path), **shown, "honesty": None if scores is None else asdict(scores)})
    else:
        _print(stats, scores)
    return OK


def _print(stats: StoreStats, scores: ForecastScores | None) -> None:
    decisions = sum(stats.decisions.values())
    failures = sum(stats.failures.values())
    facts = [
        ("store", f"{stats.path}, {_size(stats.size_bytes)}, schema {stats.schema}, journal {stats.journal}"),
        ("decisions", f"{decisions}{_by(stats.decisions)}; {stats.superseded} superseded"),
        ("covering", f"{stats.workloads} workloads of {stats.programs} programs on {stats.hardware} kinds of hardware, "
                     f"{stats.toolchains} toolchains"),
        ("outcomes", f"{stats.measurements} measurements, {failures} failures{_by(stats.failures)}"),
        ("forecasts", f"{stats.forecasts} made before an outcome, {stats.abstentions} abstentions"),
        ("hits", str(stats.hits)),
        ("pending", f"{stats.pending} keys wait for being measured" if stats.pending else "nothing"),
        ("spent on tuning", as_duration(stats.spent_s)),
        ("saved", f"{as_duration(stats.saved_by_hits_s)} by hits, {as_duration(stats.saved_by_forecasts_s)} by forecasts"),
    ]  # fmt: skip
    if scores is None:
        facts.append(("honesty", "no forecast can be compared with a measurement yet"))
    else:
        facts += [
            ("honesty", f"{scores.count} compared: right bin {scores.accuracy:.0%}, within one {scores.off_by_one:.0%}"),
            ("", f"half Brier {scores.half_brier:.3f}, CRPS {scores.crps7:.3f}, calibration error {scores.ece:.3f}"
                 + ("" if scores.brier_skill is None else f", skill {scores.brier_skill:+.2f}")),
        ]  # fmt: skip
    print_facts(facts)


def _by(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{count} {name}' for name, count in sorted(counts.items()))})" if counts else ""


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"
