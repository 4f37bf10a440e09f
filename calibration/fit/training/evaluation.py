"""How well a trained model forecasts spaces it has not seen, beside simpler methods."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import BIN_EDGES_LOG2
from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.evaluation.scores import ForecastScores, against_median, score_forecasts, score_probabilities
from forecast_autotune.protocols import Surrogate
from forecast_autotune.surrogates.learned import Learned
from forecast_autotune.surrogates.roofline import Roofline

from ...rows import is_number
from ..forest import prior_without
from .logits import forecast_pool

Row = dict[str, Any]
MIDDLES = np.array([-2.5, *((a + b) / 2 for a, b in pairwise(BIN_EDGES_LOG2)), 2.5])
"""Log2 speed-up that a bin stands for where configs are ranked."""
MEANS = ("ece", "nll", "crps7", "accuracy", "off_by_one")  # scores of which the mean over spaces is told
TOPS = ("top_1_percent", "top_10_percent", "top_50_percent")  # slowdowns


def evaluate_model(
    model: Any,
    tokenizer: Any,
    spaces: Sequence[RecordedSpace],
    known: Sequence[RecordedSpace],
    *,
    method: str,
    way: str,
    most_chars: int,
    temperature: float | None,
) -> list[Row]:
    """Scores of a model on whole spaces, each config against the space's median one, which the prompt shows.

    The prompt tells, too, what the same configs took in spaces known of the same kernel. With the temperature that the
    model's logits were divided by after training, each space has a second row, as if they had not been.
    """
    rows = []
    for space in spaces:
        places, logits = forecast_pool(
            model, tokenizer, space, reference=space.median, most_chars=most_chars, tokens_at_once=150_000, known=known
        )
        speedups = (space.log2_us[space.median] - space.log2_us)[places]
        for name, scale in ((method, 1.0), (f"{method}, as trained", temperature)):
            if scale is not None:
                p = np.exp(scale * (logits - logits.max(axis=1, keepdims=True)))
                p /= p.sum(axis=1, keepdims=True)
                rows.append(_row(space, name, way, score_probabilities(p, p @ MIDDLES, speedups)))
    return rows


def evaluate_others(spaces: Sequence[RecordedSpace], known: Sequence[RecordedSpace], *, way: str) -> list[Row]:
    """Scores, on the same spaces, of eight equal chances, of the bins' frequencies in the spaces known, and of surrogates.

    `learned` is told of the same kernel what is known of it, and is fitted without the kernel itself. Uniform and
    frequencies rank nothing: their rankings are left blank.
    """
    frequencies = np.bincount([b for s in known for b in s.bins(s.median)], minlength=8).astype(float)
    frequencies /= frequencies.sum()
    rows = []
    for space in spaces:
        speedups = space.log2_us[space.median] - space.log2_us
        for method, p in (("uniform", np.full(8, 1 / 8)), ("bin frequencies", frequencies)):
            table = np.tile(p, (speedups.size, 1))
            scores = score_probabilities(table, np.zeros(speedups.size), speedups)
            rows.append(_row(space, method, way, scores, ranks=False))
        surrogates: dict[str, Surrogate] = {"roofline": Roofline(), "learned": Learned(prior_without(space.kernel))}
        history = [s.recording for s in known if s.kernel == space.kernel]
        for method, surrogate in surrogates.items():
            context = ForecastContext(job=space.job, recordings=history if method == "learned" else ())
            forecasts = surrogate.start(context).predict({}, {})
            measured, reference = against_median(forecasts, space.log2_us.tolist(), default_us=None)
            rows.append(_row(space, method, way, score_forecasts(forecasts, measured, reference=reference)))
    return rows


def _row(space: RecordedSpace, method: str, way: str, scores: ForecastScores, *, ranks: bool = True) -> Row:
    default = float(2.0 ** (space.log2_us[0] - space.log2_us.min()))
    row: Row = {"way": way, "method": method, "space": space.name, "kernel": space.kernel, **asdict(scores)}
    for name in TOPS:
        # Where nothing in the first so many runs, the default is run.
        row[name] = (row[name] or (default if math.isfinite(default) else None)) if ranks else None
    bins = np.bincount(space.bins(space.median), minlength=8) / len(space.job.space)
    row["half_brier_by_frequency"] = 0.5 * float(1.0 - (bins**2).sum())
    return row


def is_row(row: Row) -> bool:
    """Whether an object has what `summary` reads of a row."""
    fifths = row.get("error_by_fifth")
    return (
        isinstance(row.get("way"), str)
        and isinstance(row.get("method"), str)
        and all(is_number(row.get(name)) for name in (*MEANS, "half_brier", "half_brier_by_frequency"))
        and all(name in row and (row[name] is None or is_number(row[name])) for name in ("brier_skill", *TOPS))
        and all(row[name] is None or row[name] > 0 for name in TOPS)
        and isinstance(fifths, list)
        and len(fifths) in (0, 5)
        and all(map(is_number, fifths))
    )


def summary(rows: Sequence[Row]) -> Row:
    """One line of the table: of scores the mean over spaces, of slowdowns the geometric one.

    `skill` sets the mean Brier score against that of always answering each space's own frequencies.
    """
    brier = statistics.fmean(r["half_brier"] for r in rows)
    by_frequency = statistics.fmean(r["half_brier_by_frequency"] for r in rows)
    fifths = [r["error_by_fifth"] for r in rows if r["error_by_fifth"]]
    line: Row = {
        "spaces": len(rows),
        "skill": 1.0 - brier / by_frequency,
        "mean_skill": statistics.fmean(r["brier_skill"] for r in rows if r["brier_skill"] is not None),
        **{name: statistics.fmean(r[name] for r in rows) for name in MEANS},
        "error_by_fifth": [statistics.fmean(column) for column in zip(*fifths, strict=True)],
    }
    for name in TOPS:
        values = [r[name] for r in rows if r[name] is not None]
        line[name] = statistics.geometric_mean(values) if values else None
    return line
