"""A decision for programs: the fields of `list --json` and `show --json`, which keep their names."""

from __future__ import annotations

from dataclasses import asdict

from .. import encoding
from ..details import DecisionDetail
from ..rows import StoredDecision
from .content import failures_of, noise_at, ranked
from .statements import statements_of


def summary_of(stored: StoredDecision) -> dict[str, object]:
    """A decision in a list."""
    decision = stored.decision
    return {
        "decision": stored.digest if stored.id else None,
        "kernel": stored.tuning_key.workload.program.name,
        "key": dict(stored.tuning_key.workload.key),
        "hardware": stored.tuning_key.hardware.name,
        "power_limit_w": stored.tuning_key.hardware.power_limit_w,
        "config": dict(decision.config.knobs),
        "basis": decision.basis,
        "speedup": decision.speedup,
        "config_us": decision.config_us,
        "default_us": decision.default_us,
        "measured": decision.tried,
        "space_size": decision.space_size,
        "spent_s": decision.spent_s,
        "hits": stored.hits,
        "decided_at": decision.decided_at,
    }


def json_of(detail: DecisionDetail) -> dict[str, object]:
    """A decision with all that is known around it."""
    stored, tuning_key = detail.stored, detail.stored.tuning_key
    noise = noise_at(detail)
    return {
        **summary_of(stored),
        "reason": stored.decision.reason,
        "equivalents": [dict(c.knobs) for c in stored.decision.equivalents],
        "default": None if detail.default is None else dict(detail.default.knobs),
        "space": stored.decision.space_digest,
        "budget": stored.decision.budget,
        "waiting_s": stored.decision.waiting_s,
        "compiling_s": stored.decision.compiling_s,
        "timing_s": stored.decision.timing_s,
        "ours_s": stored.decision.ours_s,
        "explored_s": stored.decision.explored_s,
        "saved_s": stored.decision.saved_s,
        "forecast": stored.decision.forecast,
        "compiled": stored.decision.compiled,
        "failed": stored.decision.failed,
        "run": stored.decision.run,
        "model": stored.decision.model or None,
        "hit_at": stored.hit_at,
        "language": tuning_key.workload.program.language,
        "timing": tuning_key.workload.timing,
        "features": dict(tuning_key.workload.features),
        "hardware": encoding.encode_hardware(tuning_key.hardware),
        "toolchain": encoding.encode_toolchain(tuning_key.toolchain),
        "superseded": len(detail.earlier),
        "noise": None if noise is None else asdict(noise),
        "failures": [asdict(alike) for alike in failures_of(detail)],
        "configs": [
            {
                "config": dict(t.config.knobs),
                "forecast": encoding.encode_forecast(t.forecast),
                "who_said_what": [asdict(each) for each in statements_of(t.forecast)],
                "outcome": encoding.encode_outcome(t.outcome),
                "log2_speedup": detail.log2_speedups.get(t.config),
                "run": t.run,
                "recorded_at": t.recorded_at,
            }
            for t in ranked(detail)
        ],
    }
