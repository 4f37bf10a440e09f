"""`stats`: what the store holds, what it saved, and how honest the forecasts were."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..core.figures import as_duration, counted
from ..core.text import error_text
from ..errors import AutotuneError, InvalidInputError
from ..features.kernel_kinds import KINDS
from ._exit_codes import NOTHING, OK
from ._parsing import JSON_HELP, Subparsers, add_store_argument, new_parser
from ._store import is_missing, store_of, warn_unreadable
from .output import print_facts, print_json

if TYPE_CHECKING:
    from ..core.sigma_scale import SigmaScale
    from ..evaluation.scores import ForecastScores, TrustScores
    from ..store.stats import StoreStats
    from ..surrogates.lessons import Lessons

HOW = """How the figures come about:
  hits    a process recalled a decision that it had not in memory; later calls in the same process are not counted, nor
          are processes that were killed
  saved   by hits: each is worth the seconds that the decision's tuning took; by forecasts: configs of a space that were
          not tried, then or earlier, at the average cost of those the tuning tried, compared with trying all
  noise   of timings: medians over the configs of the newest outcomes; spread is the standard deviation of a config's
          samples, error that of their median
  honest  the first forecast ever made for a config against what was then measured, over the eight speed-up bins
  model   the fitted one that forecasts, and how honest it was, before anything was measured, on kernels left out of a fit
  correct by how much the sigmas of the next forecasts are stretched, as the newest pairs teach: of those made ahead of
          the default's time, and after it. Where several surrogates spoke, each one's mean log density (nats) at what was
          then measured: the higher, the better"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb and its options."""
    parser = new_parser(
        subparsers,
        "stats",
        f"Size, hits, time saved, how honest the forecasts were.\n\n{HOW}",
        nothing="there is no store yet; --json prints {}",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    add_store_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the figures."""
    from ..evaluation.scores import score_pairs, score_trust
    from ..store.frozen import is_frozen
    from ..surrogates.lessons import lessons_of

    store = store_of(arguments)
    if is_missing(store, {} if arguments.json else None):
        return NOTHING
    stats = store.stats()
    by_kind = store.calibration_pairs_by_kind()
    warn_unreadable(store)
    scores = score_pairs(stats.pairs) if stats.pairs else None
    trust = score_trust([f for f, _ in stats.pairs], [m for _, m in stats.pairs]) if stats.pairs else None
    learned = {kind: lessons_of(pairs) for kind, pairs in by_kind.items()}
    kinds = {
        kind: score_pairs([pair for pair, own in zip(stats.pairs, stats.kinds, strict=True) if own == kind])
        for kind in sorted(set(stats.kinds), key=KINDS.index)
    }
    model, trouble = _model()
    frozen = is_frozen(store.path.parent)
    if arguments.json:
        told_below = ("path", "pairs", "kinds", "noise")
        shown = {name: getattr(stats, name) for name in stats.__dataclass_fields__ if name not in told_below}
        honesty = {**asdict(scores), **asdict(trust)} if scores and trust else None
        corrected = {
            kind: {**_fields(each.sigma_scale), "voices": dict(each.past_log_density)} for kind, each in learned.items()
        }
        shown |= {"honesty_by_kind": {kind: asdict(each) for kind, each in kinds.items()}, "model": model}
        shown["noise"] = {name: asdict(each) for name, each in stats.noise.items()}
        shown |= {"frozen": frozen, "honesty": honesty, "recalibration": corrected}
        print_json({"path": str(stats.path), **shown})
    else:
        _print(stats, scores, trust, kinds, learned, _model_facts(model, trouble), frozen=frozen)
    return OK


def _print(
    stats: StoreStats,
    scores: ForecastScores | None,
    trust: TrustScores | None,
    kinds: Mapping[str, ForecastScores],
    learned: Mapping[str, Lessons],
    model: Sequence[tuple[str, str]],
    *,
    frozen: bool,
) -> None:
    decisions = sum(stats.decisions.values())
    failures = sum(stats.failures.values())
    facts = [
        ("store", f"{stats.path}, {_size(stats.size_bytes)}, schema {stats.schema}, journal {stats.journal}"),
        ("decisions", f"{decisions}{_by(stats.decisions)}; {stats.superseded} superseded"),
        ("covering", f"{counted(stats.workloads, 'workload')} of {counted(stats.programs, 'program')} on {stats.hardware} "
                     f"{'kind' if stats.hardware == 1 else 'kinds'} of hardware, {counted(stats.toolchains, 'toolchain')}"),
        ("outcomes", f"{stats.measurements} measurements, {failures} failures{_by(stats.failures)}"),
        ("forecasts", f"{stats.forecasts} made before an outcome, {stats.abstentions} abstentions"),
        ("hits", str(stats.hits)),
        ("pending", f"{stats.pending} keys wait for being measured" if stats.pending else "nothing"),
        ("answers", f"{stats.answers} of language models" if stats.answers else "none of language models"),
        ("spent on tuning", as_duration(stats.spent_s)),
        ("saved", f"{as_duration(stats.saved_by_hits_s)} by hits, {as_duration(stats.saved_by_forecasts_s)} by forecasts"),
    ]  # fmt: skip
    if frozen:
        facts.append(
            ("frozen", "programs with this store explore nothing; 'forecast-autotune freeze --undo' ends that")
        )
    if stats.explored_s or stats.saved_in_calls_s:
        saved = f"those that were timed took {as_duration(stats.saved_in_calls_s)} less than under the first configs"
        facts.append(("in real calls", f"{as_duration(stats.explored_s)} lost to exploring, {saved}"))
    facts += [("noise", f"{name}: {noise}") for name, noise in stats.noise.items()]
    if scores is None:
        facts.append(("honesty", "no forecast can be compared with a measurement yet"))
    else:
        facts += [
            ("honesty", f"{scores.count} compared: right bin {scores.accuracy:.0%}, within one {scores.off_by_one:.0%}"),
            ("", f"half Brier {scores.half_brier:.3f}, CRPS {scores.crps7:.3f}, calibration error {scores.ece:.3f}"
                 + ("" if scores.brier_skill is None else f", skill {scores.brier_skill:+.2f}")),
        ]  # fmt: skip
    if trust is not None and trust.coverage_50 is not None and trust.coverage_90 is not None:
        facts.append(("", f"{trust.coverage_50:.0%} measured inside the central 50 % of the forecast, "
                          f"{trust.coverage_90:.0%} inside 90 %; {_falling(trust.error_falls)}"))  # fmt: skip
    facts += [("", f"{kind}: {each.count} compared, {_honesty(asdict(each))}") for kind, each in kinds.items()]
    facts += model
    for kind, lessons in learned.items():
        facts.append(("correction", f"{kind}: {_correction_words(lessons.sigma_scale)}"))
        if lessons.past_log_density:
            members = sorted(lessons.past_log_density.items(), key=lambda member: -member[1])
            facts.append(("", "log density of " + ", ".join(f"{name} {score:+.2f}" for name, score in members)))
    print_facts(facts)


def _model() -> tuple[dict[str, Any] | None, str]:
    """The fitted model in use and what its card says of its honesty, or None; and why it, or its card, cannot be read."""
    from ..settings import Settings
    from ..surrogates.prior import SHIPPED, held_prior, shipped_prior

    held = Settings.from_environment().model
    try:
        model = shipped_prior() if held is None else held_prior(held)
    except (AutotuneError, OSError) as err:
        return None, error_text(err)
    path = SHIPPED if held is None or held == model.version else held
    named = {"version": model.version, "path": str(path)}
    try:
        return {**named, "honesty_by_kind": _honesty_by_kind(model.card)}, ""
    except InvalidInputError as err:
        return {**named, "honesty_by_kind": {}}, f"its card does not tell how honest it is: {err}"


def _honesty_by_kind(card: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a model's card says of its honesty; nothing where it is of before there was such an entry.

    Raises:
        InvalidInputError: it is not what `make fit` writes.
    """
    from ..store.encoding import count_field, fields, number_field, optional_number

    by_kind = fields(card.get("honesty_by_kind", {}), "honesty_by_kind")
    for kind, each in by_kind.items():
        what = f"honesty_by_kind of {kind!r}"
        scores = fields(each, what)
        count_field(scores, "kernels", what)
        number_field(scores, "ece", what)
        optional_number(scores, "brier_skill", what)
    return by_kind


def _model_facts(model: Mapping[str, Any] | None, trouble: str) -> list[tuple[str, str]]:
    if model is None:
        return [("model", trouble)]
    facts = [("model", f"{model['version']}, {model['path']}")]
    for kind, each in model["honesty_by_kind"].items():
        facts.append(("", f"{kind}, on {each['kernels']} kernels left out: {_honesty(each)}"))
    return [*facts, ("", trouble)] if trouble else facts


def _honesty(scores: Mapping[str, Any]) -> str:
    skill = "" if scores.get("brier_skill") is None else f"skill {scores['brier_skill']:+.2f}, "
    return f"{skill}calibration error {scores['ece']:.3f}"


def _falling(falls: bool | None) -> str:
    if falls is None:
        return "too few to tell whether errors fall with confidence"
    return "errors fall with confidence" if falls else "errors do not fall with confidence"


def _fields(scale: SigmaScale) -> dict[str, float]:
    """The factors under the names that `--json` has for them."""
    return {
        "ahead": scale.cold,
        "after": scale.warm,
        "ahead_pairs": scale.cold_pairs,
        "after_pairs": scale.warm_pairs,
    }


def _correction_words(scale: SigmaScale) -> str:
    """The factors, and the pairs they rest on."""
    factors = [
        f"{name} x{factor:.2f} ({count} pairs)"
        for name, factor, count in (
            ("ahead", scale.cold, scale.cold_pairs),
            ("after", scale.warm, scale.warm_pairs),
        )
        if count
    ]
    return "sigma " + ", ".join(factors) if factors else "none yet: what was forecast did not run"


def _by(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{count} {name}' for name, count in sorted(counts.items()))})" if counts else ""


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"
