"""What people read of tuning runs: a line while one is under way, a line when a key is tuned, one for many keys."""

from __future__ import annotations

import math
import shlex
import statistics
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.config import Config
from ..core.decision import Decision
from ..core.figures import as_duration, short
from ..core.job import Job, Progress
from ..core.space import Space
from ..core.text import plain
from ..core.workload import Workload

MIN_NAME = 7  # characters that stay of a name which is cut
MAX_KEY = 60  # characters of a key


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedKey:
    """A key that was tuned: what its closing line tells, and nothing that the tuning held."""

    name: str
    key: str  # in brackets, as it follows the name; cut where it is long
    digest: str
    config: str
    gain: str
    speedup: float
    tried: int
    space_size: int
    seconds: float
    explored_s: float | None  # by real calls; None where none was timed
    is_stored: bool  # so that `forecast-autotune show` finds it


def tuned_key(job: Job, decision: Decision, *, seconds: float, is_stored: bool) -> TunedKey:
    """What is told of a key once it is decided."""
    name = plain(job.workload.program.name)
    return TunedKey(
        name=name,
        key=_key_text(job.workload),
        digest=short(job.digest),
        config=plain(varying_knobs(decision.config, job.space)),
        gain=_gain(job, decision),
        speedup=decision.speedup or 1.0,
        tried=decision.tried,
        space_size=decision.space_size,
        seconds=seconds,
        explored_s=decision.explored_s if decision.timed_real_calls else None,
        is_stored=is_stored,
    )


def workload_text(workload: Workload) -> str:
    """A workload as warnings name it: in one line, with its key cut where it is long."""
    return plain(workload.program.name) + _key_text(workload)


def _key_text(workload: Workload) -> str:
    """A workload's key in brackets, as it follows the name; cut where it is long."""
    return cut(plain(str(workload).removeprefix(workload.program.name)), MAX_KEY)


def _gain(job: Job, decision: Decision) -> str:
    """What the chosen config gains over the default."""
    if decision.config_us is None:
        return "no config tried runs"
    if decision.basis == "default" or decision.config == job.space.default:
        return "no config tried beats the default"
    return "the default does not run" if decision.speedup is None else as_ratio(decision.speedup)


def live_line(name: str, progress: Progress | None, *, elapsed_s: float, heard_s: float, columns: int | None) -> str:
    """What a run is doing, how far it has come, how long it takes at most, and the best so far.

    Args:
        elapsed_s: since the run began.
        heard_s: the same when `progress` came.
        columns: of the screen; the name is cut to fit.
    """
    if progress is None:
        return cut(fitted(plain(name), f": preparing, {elapsed_s:.0f} s", columns), columns)
    limit = min(progress.limit, len(progress.job.space))
    limit_s = heard_s + progress.seconds_left
    time = f"{elapsed_s:.0f} s" if math.isinf(limit_s) else f"{elapsed_s:.0f} of at most {limit_s:.0f} s"
    if progress.doing == "building" and progress.tried == 0 and elapsed_s >= limit_s + 1:
        time = f"{elapsed_s:.0f} s, beyond its {limit_s:.0f} s for the default's build"
    parts = [progress.doing, f"{progress.tried} of {limit:.0f} tried", time]
    if progress.best_speedup is not None and progress.tried > 1:
        is_default = progress.best == progress.job.space.default
        parts.append("none beats the default yet" if is_default else f"best {as_ratio(progress.best_speedup)}")
    return cut(fitted(plain(progress.job.workload.program.name), plain(": " + ", ".join(parts)), columns), columns)


def closing_line(key: TunedKey, columns: int | None = None) -> str:
    """What was chosen for a key, what it gains and cost. To fit the columns, the key goes, then its kernel's name is cut."""
    cost = as_seconds(key.seconds)
    if key.explored_s is not None:
        cost = f"in real calls, which lost {as_duration(key.explored_s)}"
    text = f": {key.config}, {key.gain}, {key.tried} of {key.space_size} tried, {cost}"
    by_name, by_digest = (f"{text} (forecast-autotune show {which})" for which in (shlex.quote(key.name), key.digest))
    if not key.is_stored:  # kept in memory alone, where the command does not see it
        by_name = by_digest = text
    whole = key.name + key.key + by_name
    if columns is None:
        return whole
    tries = (whole, *(fitted(key.name, rest, columns) for rest in (by_name, by_digest)))
    return next((line for line in tries if cells(line) <= columns), key.name + by_name)


def untried_line(job: Job, decision: Decision, *, seconds: float, columns: int | None = None) -> str:
    """That a key's time was spent before anything was decided, what runs, and that this is not the end of it."""
    config = plain(varying_knobs(decision.config, job.space))
    rest = (
        f": {config}{', the default' if decision.config == job.space.default else ''}, 0 of {decision.space_size} tried, "
        f"{as_seconds(seconds)}: the budget of {decision.budget} was spent first, and the next start tunes"
    )
    name = plain(job.workload.program.name)
    whole = name + _key_text(job.workload) + rest
    return whole if columns is None or cells(whole) <= columns else fitted(name, rest, columns)


def summary_line(keys: Sequence[TunedKey]) -> str:
    """What was tuned, where the keys are too many for a line each."""
    names = dict.fromkeys(key.name for key in keys)
    what = next(iter(names)) if len(names) == 1 else f"{len(names)} kernels"
    gain = math.exp(statistics.fmean(math.log(key.speedup) for key in keys))
    tried = {(key.tried, key.space_size) for key in keys}
    counts = sorted(measured for measured, _ in tried)
    each = f"{counts[0]} to {counts[-1]} tried each"
    if len(tried) == 1:
        each = "{} of {} tried each".format(*next(iter(tried)))
    elif counts[0] == counts[-1]:
        each = f"{counts[0]} tried each"
    text = f"{len(keys)} keys of {what} tuned in {as_seconds(sum(k.seconds for k in keys))}, {each}, "
    if explored_s := [key.explored_s for key in keys if key.explored_s is not None]:
        text = (
            f"{len(keys)} keys of {what} learned from real calls, which lost {as_duration(sum(explored_s))}, {each}, "
        )
    text += f"geometric mean {as_ratio(gain)}" if gain > 1.0 else "no config tried beats the default"
    if not any(key.is_stored for key in keys):
        return text
    which = f" --kernel {shlex.quote(what)}" if len(names) == 1 else ""
    return f"{text} (forecast-autotune list{which})"


def varying_knobs(config: Config, space: Space) -> str:
    """A config by the knobs that differ within its space."""
    first = space.default
    varying = (name for name in space.knobs if any(other[name] != first[name] for other in space))
    shown = " ".join(f"{name}={config[name]}" for name in varying if config[name] is not None)
    return shown or str(config)


def as_ratio(ratio: float) -> str:
    """A speed-up with three digits: 1.80x, 10.3x."""
    return f"{ratio:.{2 if ratio < 9.995 else 1 if ratio < 99.95 else 0}f}x"


def as_seconds(seconds: float) -> str:
    """A time to be read at a glance: 0.4 s, 9 s."""
    return f"{seconds:.1f} s" if seconds < 0.95 else f"{seconds:.0f} s"


def fitted(name: str, rest: str, columns: int | None) -> str:
    """A name and what follows it; to fit the columns, the name goes without its module, then is cut to `MIN_NAME`."""
    if columns is None or cells(name + rest) <= columns:
        return name + rest
    return cut(name.rpartition(".")[2] or name, max(MIN_NAME, columns - cells(rest))) + rest


def cut(text: str, columns: int | None) -> str:
    """A text that ends in three dots where it does not fit the columns."""
    if columns is None:
        return text
    width = kept = 0
    for count, character in enumerate(text, 1):
        width += cells(character)
        if width <= columns - 3:
            kept = count
        if width > columns:
            return f"{text[:kept]}..."
    return text


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
