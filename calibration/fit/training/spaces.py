"""Recorded spaces as what a language model learns from and is evaluated on, and which of them are left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forecast_autotune.core.forecast import bin_of
from forecast_autotune.core.hardware import REHEARSAL_KINDS
from forecast_autotune.core.job import Job, Recording
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.skill import Skill
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.trace import read_trace
from forecast_autotune.language.prompt import Prompt, prompts
from forecast_autotune.language.skills import fitting, skills_of
from forecast_autotune.measure.replay import Replay
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.surrogates.transfer import most_alike

Array = NDArray[np.float64]

WAYS = ("sizes", "kernels", "hardware")


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedSpace:
    """A recorded space: every pair of its configs is a labelled example.

    `log2_us` is the time of each config in the space's order, infinite where it failed.
    """

    name: str
    kernel: str
    recording: Recording = field(repr=False)

    @cached_property
    def job(self) -> Job:
        return Replay(self.recording).job

    @cached_property
    def log2_us(self) -> Array:
        outcomes = (self.recording.outcomes[c] for c in self.job.space)
        return np.array([math.log2(o.median_us) if isinstance(o, Measurement) else math.inf for o in outcomes])

    @cached_property
    def median(self) -> int:
        """Position of the config with the median time of those that ran."""
        ran = np.flatnonzero(np.isfinite(self.log2_us))
        return int(ran[np.argsort(self.log2_us[ran], kind="stable")[len(ran) // 2]])

    def bins(self, reference: int) -> list[int]:
        """The bin of each config's speed-up over one that ran; of one that failed, the slowest."""
        return [bin_of(float(s)) for s in self.log2_us[reference] - self.log2_us]

    def prompts(
        self,
        reference: int,
        configs: Sequence[int],
        most_chars: int,
        *,
        known: Sequence[RecordedSpace] = (),
        skilled: Sequence[RecordedSpace] = (),
        named: bool = True,
    ) -> list[Prompt]:
        """What is asked of configs, by their positions.

        Of `known` spaces of the same kernel it is told what the same configs took; of `skilled` ones, of any kernel, what
        changing single knobs did. This space itself may be among them, and is passed over.

        Raises:
            PromptTooLongError: they cannot be made so short.
        """
        job = self.job
        elsewhere = [s.recording for s in known if s.kernel == self.kernel and s.name != self.name]
        recordings = [recording for _, recording in most_alike(job, elsewhere)]
        if not named:
            unnamed = replace(job.hardware, name="")
            recordings = [replace(r, hardware=unnamed) if r.hardware == job.hardware else r for r in recordings]
            job = replace(job, hardware=unnamed)
        asked = [job.space[i] for i in configs]
        skills = skills_for(self, tuple(skilled)) if skilled else ()
        return prompts(
            job, asked, reference=job.space[reference], skills=skills, recordings=recordings, most_chars=most_chars
        )

    @property
    def hardware(self) -> str:
        return self.recording.hardware.name


@cache
def skills_for(space: RecordedSpace, known: tuple[RecordedSpace, ...]) -> tuple[Skill, ...]:
    """What changing single knobs did in known spaces, this one apart, as far as it bears on this one."""
    skills: list[Skill] = []
    for kernel in sorted({s.kernel for s in known}):
        of_kernel = tuple(s for s in known if s.kernel == kernel)
        skills += _skills(tuple(s for s in of_kernel if s is not space))
    return tuple(fitting(skills, space.job))


@cache
def _skills(spaces: tuple[RecordedSpace, ...]) -> tuple[Skill, ...]:
    return tuple(skills_of([s.recording for s in spaces]))


def read_spaces(paths: Iterable[Path]) -> tuple[RecordedSpace, ...]:
    """Traces as spaces, in the order of their names.

    Raises:
        OSError: one cannot be read.
        InvalidInputError: one is no trace, or there are none.
    """
    spaces = []
    for path in sorted(paths, key=lambda p: p.name):
        recording = read_trace(path)
        kernel = recording.workload.program.name.rpartition(".")[2]  # an extension has a module before its name
        spaces.append(RecordedSpace(name=path.name, kernel=kernel, recording=recording))
    if not spaces:
        raise InvalidInputError("no traces to learn from: name some, or record some with 'make record'")
    return tuple(spaces)


LEAST_MEASURED = 4  # configs of a stored space: of fewer there are hardly pairs


def stored_spaces(folder: Path) -> tuple[RecordedSpace, ...]:
    """What a store holds of real hardware, each key of a program on one product a space; empty where there is no store.

    Raises:
        StoreError: it cannot be read.
    """
    store = StoreFile(folder)
    if not store.exists():
        return ()
    spaces = []
    for recording in store.recordings():
        measured = sum(isinstance(o, Measurement) for o in recording.outcomes.values())
        if recording.hardware.kind in REHEARSAL_KINDS or measured < LEAST_MEASURED:
            continue
        kernel = recording.workload.program.name.rpartition(".")[2]
        name = f"{kernel}.{recording.workload.digest[:8]}.{recording.hardware.name}.{recording.toolchain.digest[:8]}"
        spaces.append(RecordedSpace(name=name, kernel=kernel, recording=recording))
    return tuple(sorted(spaces, key=lambda s: s.name))


def left_out(spaces: Sequence[RecordedSpace], way: str, fold: int, folds: int) -> frozenset[str]:
    """Names of the spaces that are left out in one of several rounds, so that nothing of them is learned.

    By `sizes`: of every kernel with several on one hardware, each size in one round. By `kernels`, or by `hardware`: with
    all their sizes, each in one round, dealt out in alphabetical order.

    Raises:
        InvalidInputError: an unknown way, or a round that leaves out nothing or all.
    """
    if way not in WAYS:
        raise InvalidInputError(f"leave out by {way!r}: accepted are {', '.join(WAYS)}")
    if way == "sizes":
        out = set()
        for of in {(s.kernel, s.hardware) for s in spaces}:
            sizes = sorted(s.name for s in spaces if (s.kernel, s.hardware) == of)
            if len(sizes) > 1:
                out |= {name for place, name in enumerate(sizes) if place % folds == fold}
    else:
        by = {s.name: s.kernel if way == "kernels" else s.hardware for s in spaces}
        groups = sorted(set(by.values()))
        out = {name for name, group in by.items() if groups.index(group) % folds == fold}
    if not out or len(out) == len(spaces):
        raise InvalidInputError(
            f"round {fold} of {folds} by {way} leaves out {len(out)} of {len(spaces)} spaces: give another round"
        )
    return frozenset(out)


def held_back(spaces: Sequence[RecordedSpace], way: str, share: float) -> frozenset[str]:
    """Names of spaces to choose the number of steps and the temperature on, so that those left out choose nothing.

    They are of the kind that is left out: single spaces, or some kernels whole, evenly dealt. Of hardware there is none to
    spare: then all is learned from, to the last step.
    """
    if way == "hardware":
        return frozenset()
    if way == "kernels":
        kernels = sorted({s.kernel for s in spaces})
        chosen = set(kernels[:: max(2, round(1 / share))])
        return frozenset(s.name for s in spaces if s.kernel in chosen)
    names = sorted(s.name for s in spaces)
    every = max(2, round(1 / share))
    return frozenset(names[every // 2 :: every])
