"""A model's folder: what tells two states of it apart, and the base model that an adapter belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..core.digest import digest
from .model import ModelError

ADAPTER = "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Low-rank changes to a base model."""

    base: str
    rank: int


def state_of(model: str) -> str:
    """Changes when a file of a folder does: names, sizes and times of modification; empty for what is no folder here."""
    if not model or not Path(model).is_dir():
        return ""
    try:
        files = sorted((f.name, f.stat()) for f in Path(model).iterdir() if f.is_file())
    except OSError:  # not ours to read, or it changes right now
        return ""
    return digest(*(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in files))


def adapter_in(model: str) -> Adapter | None:
    """The adapter that a folder holds, if it holds one.

    Raises:
        ModelError: it does not say what it must.
    """
    path = Path(model) / ADAPTER
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    try:
        config = json.loads(text)
        base = config["base_model_name_or_path"]
        ranks = [config["r"], *(config.get("rank_pattern") or {}).values()]
        if not isinstance(base, str) or not base or not all(isinstance(r, int) and r > 0 for r in ranks):
            raise ValueError(f"base_model_name_or_path is {base!r} and r {ranks!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise ModelError(f"{path} does not describe an adapter of low rank: {err!r}") from None
    return Adapter(base=base, rank=max(ranks))
