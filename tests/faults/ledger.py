"""What attacks on the tuner cost: each case says what was done, how often, and what was lost, stuck or left behind."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from forecast_autotune.processes.core_slots import own_folder

MARK = "FAULT_CASE"  # in the environment of everything that a case starts
LEAVE_S = 60.0  # for what a killed process started to notice and go

COLUMNS = ("fault", "attempts", "reported", "lost", "stuck", "code run", "left behind", "what the user sees")


@dataclass(slots=True, kw_only=True)
class Row:
    """What became of one case: counts over all its attempts."""

    fault: str
    seen: str
    attempts: int = 0
    outcomes_reported: int = 0  # by a tuning, before anything befell it
    outcomes_lost: int = 0  # of these, not in the store afterwards
    stuck: int = 0  # attempts that had to be ended from outside
    code_run: int = 0  # payloads of hostile data that were executed
    left_behind: int = 0  # processes, held locks, temporary files

    def cells(self) -> tuple[str, ...]:
        counts = (
            self.attempts,
            self.outcomes_reported,
            self.outcomes_lost,
            self.stuck,
            self.code_run,
            self.left_behind,
        )
        return self.fault, *(str(n) for n in counts), self.seen


@dataclass(slots=True, kw_only=True)
class Case:
    """One fault, tried any number of times in a folder of its own, which is looked through when it is over.

    Everything it starts must be given `environment`; a payload of hostile data would create `canary` or a file whose name
    begins like it.
    """

    row: Row
    folder: Path
    whole: bool
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.temporary.mkdir(parents=True)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    @property
    def environment(self) -> dict[str, str]:
        """For child processes: marked, with this case's store and a folder of its own for temporary files."""
        tests = Path(__file__).parents[1]
        paths = [str(tests), str(tests / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {MARK: self.mark, "TMPDIR": str(self.temporary), "FORECAST_AUTOTUNE_DIR": str(self.store)}
        return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(paths)}

    def many(self, *, short: int, whole: int) -> int:
        """How often to try: a few times where CI runs this, as often as stated by `make test-faults`."""
        return whole if self.whole else short

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Count one attempt; one that ends in `subprocess.TimeoutExpired` or `TimeoutError` was stuck."""
        self.row.attempts += 1
        try:
            yield
        except (subprocess.TimeoutExpired, TimeoutError) as err:
            self.row.stuck += 1
            raise AssertionError(f"{self.row.fault}: stuck: {err}") from err

    def kept(self, *, reported: int, lost: int) -> None:
        """Count outcomes that a tuning had reported, and those of them that the store does not hold afterwards."""
        self.row.outcomes_reported += reported
        self.row.outcomes_lost += lost

    def finish(self) -> None:
        """Look for payloads that ran, and for processes (which are killed), held locks and temporary files that are left."""
        self.row.code_run += len(list(self.folder.glob("canary*")))
        left = [*self._processes_left(), *self._locks_held(), *self.files_left()]
        self.row.left_behind += len(left)
        assert not self.row.code_run, f"{self.row.fault}: hostile data was executed"
        assert not left, f"{self.row.fault}: left behind: {left}"

    def _processes_left(self) -> list[str]:
        deadline = time.monotonic() + LEAVE_S
        while (left := marked_processes(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [f"process {pid}: {command}" for pid, command in left.items()]

    def _locks_held(self) -> list[str]:
        """Locks that stay held: a process that ends has lost its environment before its files are closed."""
        deadline = time.monotonic() + LEAVE_S
        locks = [path for path in sorted(self.folder.rglob("*.lock")) if path.is_file()]
        while (held := [path for path in locks if _is_held(path)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"held lock {path}" for path in held]

    def files_left(self) -> list[str]:
        """The folder of locks on cores is shared by all that compile on this machine, and stays."""
        cores = own_folder().name
        found = [path for path in sorted(self.temporary.iterdir()) if path.name != cores]
        return [f"temporary file {path}" for path in found if not (_is_filelocks(path) or _is_tempfiles(path))]


class Ledger:
    """All cases of a test session, and the table and the line of JSON that it ends with."""

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self.rows: list[Row] = []
        self.skipped: dict[str, str] = {}  # faults, or tests, that could not be tried here, and why
        self.figures: list[str] = []  # what was measured meanwhile, a sentence each

    @contextmanager
    def case(self, fault: str, folder: Path, *, seen: str) -> Iterator[Case]:
        """Attack in a folder of its own: `fault` says how, `seen` what a user sees of it; parts of one fault share a row."""
        row = next((r for r in self.rows if r.fault == fault), None)
        if row is None:
            row = Row(fault=fault, seen=seen)
            self.rows.append(row)
        case = Case(row=row, folder=folder / uuid.uuid4().hex[:8], whole=self.whole)
        try:
            yield case
        finally:
            case.finish()

    def table(self) -> str:
        """A Markdown table, a row for each fault; below it what was measured, and what could not be tried."""
        lines = [COLUMNS, ("---",) * len(COLUMNS), *(row.cells() for row in self.rows)]
        table = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join(
            [*table, *self.figures, *(f"not run here: {what} ({why})" for what, why in self.skipped.items())]
        )

    def summary(self) -> str:
        """One line of JSON: sums over all cases."""
        names = ("attempts", "outcomes_lost", "stuck", "code_run", "left_behind")
        counts: list[Mapping[str, int]] = [asdict(row) for row in self.rows]
        return json.dumps({"cases": len(self.rows), **{name: sum(c[name] for c in counts) for name in names}})


def marked_processes(mark: str) -> dict[int, str]:
    """Live processes that carry a case's mark in their environment, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"{MARK}={mark}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue  # dead; its parent has still to ask how it ended
            found[int(entry.name)] = (
                (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
            )
        except OSError:
            continue
    return found


def _is_tempfiles(path: Path) -> bool:
    """Whether `tempfile` was ended as it tried whether the folder can be written to (CPython, `_get_default_tempdir`)."""
    is_its = re.fullmatch(r"[a-z0-9_]{8}", path.name) is not None
    return is_its and path.is_file() and path.read_bytes() in (b"", b"blat")


def _is_filelocks(path: Path) -> bool:
    """Whether it is the folder in which filelock, as it is imported, tries what links can do: not ours to clear away."""
    return (
        path.is_dir()
        and re.fullmatch(r"tmp[a-z0-9_]{8}", path.name) is not None
        and {p.name for p in path.iterdir()} <= {"probe-source", "probe-link"}
    )


def _is_held(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False
