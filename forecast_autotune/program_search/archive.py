"""Archive: what one search has tried, so that it goes on where it was. Only what was measured, or failed, enters it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.digest import digest
from ..core.forecast import Abstention
from ..core.hardware import Hardware, Toolchain
from ..errors import InvalidInputError, StoreError
from ..store import encoding
from ..store.searches import SearchFile
from .candidate import Candidate, TriedCandidate
from .task import SearchTask

if TYPE_CHECKING:
    from .skills import StepSkill


class Archive:
    """What was tried for one task, on one hardware under one toolchain, in its order.

    Rows are on the disk before the next round is begun: whatever ends the search, at most one is measured twice.

    Args:
        folder: the store's.
        task, hardware, toolchain: what the search is for.
    Raises:
        StoreError: the archive cannot be read.
    """

    def __init__(self, folder: Path, task: SearchTask, hardware: Hardware, toolchain: Toolchain) -> None:
        self._file = SearchFile(folder)
        self.search = digest(task.digest, hardware.digest, toolchain.digest)
        self._about = {
            "task": task.name, "language": task.language, "sizes": {n: dict(s) for n, s in task.sizes.items()},
            "hardware": str(hardware), "toolchain": dict(toolchain.versions),
        }  # fmt: skip
        self._tried: dict[str, TriedCandidate] = {}
        for name, row in self._file.rows(self.search):
            try:
                tried = _decode(row)
            except InvalidInputError as err:
                raise StoreError(
                    f"{self._file.path} holds a candidate that cannot be read ({err}): move the file away"
                ) from None
            if tried.candidate.digest != name:
                raise StoreError(f"{self._file.path} holds a candidate {name} that is another one: move the file away")
            self._tried[name] = tried

    def add(self, tried: TriedCandidate) -> None:
        """Keep what became of a candidate.

        Raises:
            StoreError: it cannot be written down; then the search must not go on.
        """
        if not self._tried:
            self._file.begin(self.search, self._about)
        self._file.add(self.search, tried.candidate.digest, _encode(tried))
        self._tried[tried.candidate.digest] = tried

    def learn(self, skill: StepSkill) -> None:
        """Keep a skill that this search taught.

        Raises:
            StoreError: it cannot be written down.
        """
        self._file.learn(self.search, skill.digest, skill.as_json())

    def __iter__(self) -> Iterator[TriedCandidate]:
        return iter(self._tried.values())

    def __len__(self) -> int:
        return len(self._tried)

    def __contains__(self, candidate: object) -> bool:
        return isinstance(candidate, Candidate) and candidate.digest in self._tried


def _encode(tried: TriedCandidate) -> dict[str, object]:
    one = tried.candidate
    return {
        "source": one.source,
        "language": one.language,
        "variant": one.variant,
        "config": encoding.encode_config(one.config),
        "proposer": one.proposer,
        "parents": list(one.parents),
        "steps": list(one.steps),
        "by_rules": one.by_rules,
        "outcome": encoding.encode_outcome(tried.outcome),
        "forecast": encoding.encode_forecast(tried.forecast),
        "chosen": tried.chosen,
        "times_us": dict(tried.times_us),
        "code": tried.code,
    }


def _decode(row: Mapping[str, object]) -> TriedCandidate:
    def texts(name: str) -> tuple[str, ...]:
        return tuple(str(text) for text in encoding.list_field(row, name, "candidate"))

    forecast = encoding.decode_forecast(row.get("forecast"))
    times = encoding.fields(row.get("times_us"), "times_us")
    return TriedCandidate(
        candidate=Candidate(
            source=encoding.text_field(row, "source", "candidate"),
            language=encoding.text_field(row, "language", "candidate"),
            variant=encoding.text_field(row, "variant", "candidate"),
            config=encoding.decode_config(row.get("config")),
            proposer=encoding.text_field(row, "proposer", "candidate"),
            parents=texts("parents"),
            steps=texts("steps"),
            by_rules=row.get("by_rules") is True,
        ),
        outcome=encoding.decode_outcome(row.get("outcome")),
        forecast=None if isinstance(forecast, Abstention) else forecast,
        chosen=encoding.text_field(row, "chosen", "candidate"),
        times_us={name: encoding.number_field(times, name, "times_us") for name in times},
        code=encoding.text_field(row, "code", "candidate"),
    )
