"""Which recordings may serve as the history of a replayed trace: never the run under test, nor a repeat of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.job import Recording
from ..core.outcome import Measurement
from ..features.hardware_sheets import same_product
from .recorded_space import read_space
from .traces.t4 import UNKNOWN

SAME_RUN = "it is the run under test"
SAME_TASK = "it may be the same workload on the same hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Traces of one kernel: those that may be a trace's history, and those that may not, each with the reason."""

    kept: tuple[Path, ...]
    left_out: Mapping[Path, str]


def history_of(trace: Path, candidates: Sequence[Path]) -> History:
    """Sort candidates into the history of a trace; those of other kernels are ignored.

    Raises:
        OSError: a file cannot be read.
        InvalidInputError: a file is no trace.
    """
    mine = read_space(trace).recording
    kept: list[Path] = []
    left_out: dict[Path, str] = {}
    for path in dict.fromkeys(candidates):
        theirs = read_space(path).recording
        if theirs.workload.program.name != mine.workload.program.name:
            continue
        if path.resolve() == trace.resolve() or _same_run(mine, theirs):
            left_out[path] = SAME_RUN
        elif _same_task(mine, theirs):
            left_out[path] = SAME_TASK
        else:
            kept.append(path)
    return History(kept=tuple(kept), left_out=left_out)


def _same_run(a: Recording, b: Recording) -> bool:
    """Whether one holds the other's times, under any name, key and hardware: over 90 % of the shared ones are equal.

    Equal to a millionth, since units may have been converted. On a coarse clock some times of two runs agree by chance, but
    not nine of ten, sample by sample.
    """
    shared = [
        (mine.samples_us, theirs.samples_us)
        for config, mine in a.outcomes.items()
        if isinstance(mine, Measurement) and isinstance(theirs := b.outcomes.get(config), Measurement)
    ]
    equal = sum(
        len(mine) == len(theirs) and all(math.isclose(m, t, rel_tol=1e-6) for m, t in zip(mine, theirs, strict=True))
        for mine, theirs in shared
    )
    return equal > 0.9 * len(shared)


def _same_task(a: Recording, b: Recording) -> bool:
    """Whether both may be of one workload on one product; what a file does not state may be equal."""
    names = [r.hardware.name for r in (a, b)]
    if UNKNOWN not in names and a.hardware.digest != b.hardware.digest and not same_product(*names):
        return False
    (form, mine), (other_form, theirs) = _stated_workload(a), _stated_workload(b)
    return form != other_form or mine is None or mine == theirs or theirs is None


def _stated_workload(recording: Recording) -> tuple[str, str | None]:
    """The form of a trace, and the digest of its workload; None where this form or this file does not state one.

    A T4 file states none: its name only says what its author called it. Kernel Tuner states none that depends on the config.
    """
    form = recording.toolchain.versions.get("recorded", "").partition(" ")[0]
    size = recording.workload.key.get("problem_size")
    unstated = form == "T4" or (form == "Kernel" and not isinstance(size, (int, list)))
    return form, None if unstated else recording.workload.digest
