"""Fitted models that decided something here unmeasured: each is kept, so that setting `MODEL` can go back to it."""

from __future__ import annotations

import logging
from pathlib import Path

from ..core.decision import Decision
from ..core.model_names import is_model_version
from ..core.text import error_text
from ..core.user_warnings import warn_user
from ..errors import AutotuneError, TuningWarning
from ..settings import PREFIX, kept_model
from ..store.filesystem import make_folder
from ..store.textfile import write_lines
from ..surrogates.prior import SHIPPED, shipped_prior

log = logging.getLogger(__name__)

_SEEN: set[Path] = set()


def keep_model(folder: Path, decision: Decision) -> None:
    """Keep the shipped model where its forecast has decided; warn if another one did so before, as after an upgrade.

    Keeps nothing where there is no store, and never raises: the decision stands.
    """
    kept = kept_model(folder, decision.model) if decision.basis == "forecast" and decision.model else None
    if kept is None or kept in _SEEN:
        return
    _SEEN.add(kept)
    try:
        if not folder.is_dir() or kept.exists() or decision.model != shipped_prior().version:
            return
        make_folder(kept.parent)
        earlier = [path for path in kept.parent.glob("*.json") if is_model_version(path.stem)]
        write_lines(kept, SHIPPED.read_text(encoding="utf-8").splitlines())
    except (AutotuneError, OSError) as err:
        log.info("the model %s is not kept: %s", decision.model, error_text(err))
        return
    if earlier:
        last = max(earlier, key=lambda path: path.stat().st_mtime).stem
        warn_user(
            f"unmeasured keys are now decided by the model {decision.model}; {last} decided them before. "
            f"{PREFIX}MODEL={last} keeps its answers",
            TuningWarning,
        )
