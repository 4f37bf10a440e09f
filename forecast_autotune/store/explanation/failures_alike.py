"""Configs that failed, in words for a person: what each stage means, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...core.outcome import Failure

_ADVICE = {
    "compile": "take it out of the space, or mend the source for it: the whole of what the compiler said is in its log",
    "resources": "it asks for more than this device has: smaller tiles, fewer stages or fewer warps fit",
    "load": "it was built and cannot be used: look at what its libraries and its initialisers need",
    "launch": "mend it or take it out; a config that is refused for its size alone needs nothing done",
    "check": "it computes something else than the first config: mend it, or say by check= what may differ",
    "timeout": "it ran into a limit, which its message names: one that is right and that slow is not worth choosing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresAlike:
    """Configs that failed at one stage in one way: how many, whose, the first message, what follows and what to do."""

    stage: str
    crashed: bool
    transient: bool
    count: int
    of: tuple[str, ...]  # each once, in order
    message: str
    follows: str
    advice: str


def failures_alike(failures: Iterable[tuple[str, Failure]]) -> list[FailuresAlike]:
    """Group failures by stage and consequence, the most frequent group first.

    Args:
        failures: each with the name of what failed, a config or a kernel.
    """
    groups: dict[tuple[str, bool, bool], list[tuple[str, Failure]]] = {}
    for whose, failure in failures:
        groups.setdefault((failure.stage, failure.crashed, failure.transient), []).append((whose, failure))
    groups_alike = [
        FailuresAlike(
            stage=stage,
            crashed=crashed,
            transient=transient,
            count=len(group),
            of=tuple(dict.fromkeys(whose for whose, _ in group)),
            message=first.message,
            follows=first.follows,
            advice=advice(first),
        )
        for (stage, crashed, transient), group in groups.items()
        for _, first in group[:1]
    ]
    return sorted(groups_alike, key=lambda alike: -alike.count)


def advice(failure: Failure) -> str:
    """What a person can do about a failure."""
    if failure.transient:
        return "see to memory, disk and the call itself, and tune again"
    if failure.crashed and failure.stage in ("launch", "load"):
        return "mend it under a debugger or take it out: it takes the process that runs it down"
    return _ADVICE[failure.stage]
