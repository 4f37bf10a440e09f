"""What a run says, once it has decided, about configs that failed."""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections import Counter
from collections.abc import Iterator

from ..core.figures import short
from ..core.outcome import Failure
from ..core.text import plain
from .decision_rule import Findings, none_ran_text
from .noise import noise_log
from .progress_text import workload_text

log = logging.getLogger(__name__)
failures_log = logging.getLogger("forecast_autotune.tuner.failures")  # a public name, whatever this module is called

MAX_SHOWN = 300  # characters of a failure's message
MANY_TRANSIENT = 0.25  # share of the configs tried whose failures may pass, from which on advice is given


def warn_that_none_ran(findings: Findings) -> None:
    """Warn that no config tried runs, so that the default is launched untimed; say why it failed."""
    job, default = findings.job, findings.outcomes.get(findings.job.space.default)
    why = f"; it failed: {default.message}" if isinstance(default, Failure) else ""
    log.warning("%s: %s, so the first is launched%s", workload_text(job.workload), none_ran_text(findings), why)


def report_failures(findings: Findings) -> None:
    """Log once how many of the configs tried failed, and why most of them did.

    A warning, unless every failure is a config too large for the device or one that rules itself out. Nothing where no
    config ran: `warn_that_none_ran` has said it.
    """
    job, tried = findings.job, findings.tried
    failed = {c: o for c, o in findings.outcomes.items() if c in tried and isinstance(o, Failure)}
    if not failed or not findings.ran:
        return
    odd = {c: o for c, o in failed.items() if not o.refused}
    among = odd or failed
    kinds = {c: (o.stage, o.message.partition(":")[0]) for c, o in among.items()}
    kind, count = Counter(kinds.values()).most_common(1)[0]
    first = next(c for c in among if kinds[c] == kind)
    # What the interpreter shows is kept in memory alone, where the command does not see it.
    stored = job.hardware.kind != "interpreter"
    advice = f"; 'forecast-autotune show {short(job.digest)}' lists all" if stored else ""
    if stored and sum(o.transient for o in failed.values()) >= MANY_TRANSIENT * len(tried):
        name = shlex.quote(plain(job.workload.program.name))
        advice += f"; once the cause has passed, 'forecast-autotune clear --kernel {name}' has it tuned anew"
    failures_log.log(
        logging.WARNING if odd else logging.INFO,
        "%s: %d of %d configs tried failed, %d of them like %s at %s: %s%s",
        workload_text(job.workload),
        len(failed),
        len(tried),
        count,
        first,
        failed[first].stage,
        _in_one_line(failed[first].message),
        advice,
    )


@contextlib.contextmanager
def recordings_unreported() -> Iterator[None]:
    """Silence what runs report of failures and of noise while this is held: nobody can mend a recording."""
    loggers = (failures_log, noise_log)
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _in_one_line(message: str) -> str:
    """The first and the last line of a message: compilers put the place in the first and the cause in the last."""
    lines = message.strip().splitlines() or [message]
    text = " … ".join(dict.fromkeys(plain(line).strip() for line in (lines[0], lines[-1])))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
