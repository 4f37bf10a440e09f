"""All that a user does with a store: what tuning asks of it, and every command that looks at it or changes it."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from pathlib import Path

from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.cli import main
from forecast_autotune.core.forecast import Abstention, Forecast, Normal
from forecast_autotune.core.outcome import Failure
from forecast_autotune.distributed.work_sharing import SqliteWorkSharing
from forecast_autotune.errors import StoreWarning
from forecast_autotune.language.answers import Bins
from forecast_autotune.store.rows import TuningKey, decision_digest
from forecast_autotune.store.sqlite import SqliteStore

JOB = a_job(key={"n": 1})
ONE = decision_digest(TuningKey.of(JOB), SPACE.digest)
ANSWERS = {"a" * 32: Bins(probabilities=(0.125,) * 8, raw_sum=1.0)}


def fill(directory: Path) -> Path:
    """A store with something in each of its tables."""
    with SqliteStore(directory) as store:
        for key in (1, 2):
            job = a_job(key={"n": key})
            store.record_outcome(job, "run-1", SPACE[0], a_measurement(), Abstention("roofline", "knows nothing"))
            for number in (1, 2):
                said = Forecast((Normal(0.5, 0.3, 0.6, "a"), Normal(0.0, 0.3, 0.4, "b")), "blend", 0.1, 10.0)
                store.record_outcome(job, "run-1", SPACE[number], a_measurement(8.0 + number), said)
            store.record_outcome(job, "run-1", SPACE[3], Failure(stage="launch", message="too many resources"), None)
            store.record_decision(job, a_decision(job))
            store.record_decision(job, a_decision(job, SPACE[3]))
        store.note_pending(a_job(key={"n": 3}), "nothing may be measured")
        store.keep_answers(ANSWERS)
        with SqliteWorkSharing(store, JOB, device="device").lead("run-1", 4, SPACE[0]):
            pass
    return directory / "store.sqlite3"


def tune(directory: Path, *, any_toolchain: bool = False) -> list[str]:
    """Ask and tell a store all that tuning does. Nothing may be raised, and what is told now must be known afterwards.

    Returns:
        the warnings it gave.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with SqliteStore(directory, toolchain="any" if any_toolchain else "exact") as store:
            for key in (1, 2):
                job = a_job(key={"n": key})
                store.decision(job)
                store.outcomes(job)
            store.related_recordings(a_job(key={"n": 5}))
            store.knob_effects(a_job(key={"n": 5}))
            store.calibration_pairs("cuda")
            store.answers([*ANSWERS])
            sharing = SqliteWorkSharing(store, JOB, device="device")
            sharing.wanted()
            sharing.claimed_by_others()
            with store.single_flight(JOB) as alone:
                assert alone
                with sharing.lead("run-2", 4, SPACE[0]):
                    sharing.claim(SPACE[1])
                    sharing.tried(SPACE[1])
            store.keep_answers(ANSWERS)
            store.note_pending(a_job(key={"n": 4}), "nothing may be measured")
            job = JOB
            store.record_outcome(job, "run-2", SPACE[4], a_measurement(7.0), None)
            store.record_decision(job, a_decision(job, SPACE[4], decided_at=1_900_000_000.0))
            if SPACE[4] not in store.outcomes(job):  # the damage was met only now, and the file set aside with this row
                assert told
                store.record_outcome(job, "run-2", SPACE[4], a_measurement(7.0), None)
            assert store.outcomes(job)[SPACE[4]] == a_measurement(7.0)
            kept = store.decision(job)
            assert kept is not None
            assert kept.config == SPACE[4]
    assert all(issubclass(w.category, StoreWarning) for w in told), [str(w.message) for w in told]
    return [str(w.message) for w in told]


COMMANDS = (
    ("list", "--superseded"),
    ("list", "--json"),
    ("show", ONE),
    ("show", ONE, "--json"),
    ("skills",),
    ("stats",),
    ("stats", "--json"),
    ("pending",),
    ("prune",),
)


def look(directory: Path) -> str:
    """Run every command on a store; returns what they printed. Each ends with one of its exit codes."""
    printed = ""
    exported = directory.parent / f"{directory.name}.jsonl"
    commands = [*COMMANDS[:-1], ("export", str(exported)), COMMANDS[-1]]
    for command in commands:
        code, out, err = run_command([*command, "--dir", str(directory)])
        assert code in (0, 1, 2), (command, code)
        assert "Traceback" not in err, (command, err)
        if "--json" in command and code == 0:
            json.loads(out, parse_constant=_refuse)
        printed += out + err
    exported.unlink(missing_ok=True)
    return printed


def run_command(arguments: list[str]) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


if __name__ == "__main__":
    found = tune(Path(sys.argv[1]))
    print(json.dumps(found))
    look(Path(sys.argv[1]))
