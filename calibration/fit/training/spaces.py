"""What a language model is asked of recorded spaces, and which of them are left out of its training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forecast_autotune.core.hardware import REHEARSAL_KINDS
from forecast_autotune.core.knob_effect import KnobEffect
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.evaluation.recorded_space import RecordedSpace
from forecast_autotune.evaluation.traces import read_trace
from forecast_autotune.features.knob_effects import fitting, mine_knob_effects
from forecast_autotune.language.prompt import Prompt, prompts
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.surrogates.transfer import most_alike

Array = NDArray[np.float64]

WAYS = ("sizes", "kernels", "hardware")


def prompts_of(
    space: RecordedSpace,
    reference: int,
    configs: Sequence[int],
    most_chars: int,
    *,
    known: Sequence[RecordedSpace] = (),
    mined: Sequence[RecordedSpace] = (),
    named: bool = True,
) -> list[Prompt]:
    """What is asked of configs of a space, by their positions.

    A prompt gives what the same configs took on `known` spaces of the same kernel, and what changing single knobs did on
    `mined` ones of any kernel. The space itself may be among them, and is passed over.

    Raises:
        PromptTooLongError: they cannot be made so short.
    """
    job = space.job
    elsewhere = [s.recording for s in known if s.kernel == space.kernel and s.name != space.name]
    recordings = [recording for _, recording in most_alike(job, elsewhere)]
    if not named:
        unnamed = replace(job.hardware, name="")
        recordings = [replace(r, hardware=unnamed) if r.hardware == job.hardware else r for r in recordings]
        job = replace(job, hardware=unnamed)
    asked = [job.space[i] for i in configs]
    effects = knob_effects_for(space, tuple(mined)) if mined else ()
    return prompts(
        job, asked, reference=job.space[reference], knob_effects=effects, recordings=recordings, most_chars=most_chars
    )


@cache
def knob_effects_for(space: RecordedSpace, known: tuple[RecordedSpace, ...]) -> tuple[KnobEffect, ...]:
    """What changing single knobs did in known spaces, this one apart, as far as it bears on this one."""
    effects: list[KnobEffect] = []
    for kernel in sorted({s.kernel for s in known}):
        of_kernel = tuple(s for s in known if s.kernel == kernel)
        effects += _effects_of(tuple(s for s in of_kernel if s is not space))
    return tuple(fitting(effects, space.job))


@cache
def _effects_of(spaces: tuple[RecordedSpace, ...]) -> tuple[KnobEffect, ...]:
    return tuple(mine_knob_effects([s.recording for s in spaces]))


def read_spaces(paths: Iterable[Path]) -> tuple[RecordedSpace, ...]:
    """Traces as spaces, in the order of their names.

    Raises:
        OSError: one cannot be read.
        InvalidInputError: one is no trace, or there are none.
    """
    spaces = tuple(
        RecordedSpace(name=path.name, recording=read_trace(path)) for path in sorted(paths, key=lambda p: p.name)
    )
    if not spaces:
        raise InvalidInputError("no traces to learn from: name some, or record some with 'make record'")
    return spaces


MIN_MEASURED = 4  # configs of a stored space: of fewer there are hardly pairs


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
        if recording.hardware.kind in REHEARSAL_KINDS or measured < MIN_MEASURED:
            continue
        kernel = recording.workload.program.name.rpartition(".")[2]
        name = f"{kernel}.{recording.workload.digest[:8]}.{recording.hardware.name}.{recording.toolchain.digest[:8]}"
        spaces.append(RecordedSpace(name=name, recording=recording))
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
