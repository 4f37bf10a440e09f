"""What the verbs that measure in processes of their own share: a process's answer, and answers kept in a file."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .paths import REPOSITORY
from .rows import Row, append_row, read_rows

LIMIT_S = 600.0  # of one process


class AnswerFile:
    """Answers, in a file of JSON lines if one is named.

    Raises:
        OSError, InvalidInputError: as `read_rows`.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        rows = read_rows(file, _is_answer, cut_off=True) if file is not None and file.exists() else []
        self._found: dict[tuple[str, ...], dict[str, Any]] = {tuple(row["asked"]): row["found"] for row in rows}

    def answer(self, asked: tuple[str, ...], ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was found before, else what is found now; what names a problem is asked for again the next time."""
        if asked not in self._found:
            self._found[asked] = ask()
            if self._file is not None and "problem" not in self._found[asked]:
                append_row(self._file, {"asked": asked, "found": self._found[asked]})
        return self._found[asked]


def _is_answer(row: Row) -> bool:
    asked, found = row.get("asked"), row.get("found")
    return isinstance(asked, list) and all(isinstance(word, str) for word in asked) and isinstance(found, dict)


def answer_of(command: Sequence[str], environment: Mapping[str, str], *, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The last line that a process prints, as JSON; else `problem`, with the last line of its errors."""
    paths = [str(REPOSITORY), environment.get("PYTHONPATH", "")]
    environment = {**environment, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s)
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"problem": f"it took more than {limit_s:.0f} s"}
    except (IndexError, ValueError):
        told = done.stderr.strip().splitlines() or [f"exit code {done.returncode}, and not a word"]
        return {"problem": told[-1][:200]}
    return answer
