"""What a store costs that has grown for years: 10,000 outcomes in `make bench`, a million in `make bench-store`."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forecast_autotune.core.decision import Decision
from forecast_autotune.core.forecast import Forecast
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Program, Workload
from forecast_autotune.measure.sampling import DIGITS
from forecast_autotune.store.database import open_file, transaction
from forecast_autotune.store.decisions import keep_decision
from forecast_autotune.store.outcomes import keep_outcome
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.rows import StoredOutcome, TuningKey
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.store.tuning_keys import keep_tuning_key

pytestmark = pytest.mark.thorough  # speed itself is for `make bench`

OUTCOMES = int(os.environ.get("LARGE_STORE", "10000"))
PER_KEY = 10  # outcomes
SAMPLES = 25  # of an outcome
DAY_S = 86_400.0

SPACE = Space.grid(
    {"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 32, 64, 128], "num_warps": [1, 2, 4, 8], "num_stages": [2, 3, 4]}
)
HARDWARE = [
    Hardware(kind="cuda", name=f"NVIDIA {name}", capability=capability, units=units, memory_gib=80)
    for name, capability, units in (
        ("A100", "8.0", 108),
        ("H100", "9.0", 132),
        ("H200", "9.0", 132),
        ("B200", "10.0", 148),
    )
]
TOOLCHAINS = [
    Toolchain(versions={"triton": f"3.{n}.0", "torch": f"2.{n + 5}.0", "driver": "570.1"}) for n in range(5, 10)
]
KEYS = OUTCOMES // PER_KEY // len(HARDWARE) // len(TOOLCHAINS)
PROGRAMS = max(2, KEYS // 5)


def job(number: int = 0) -> Job:
    """One that is stored, unless the number is too large."""
    source = f"# version {number % PROGRAMS}\n" + "    x = tl.load(ptr + offsets, mask=mask)\n" * 100
    program = Program(name=f"kernel_{number % PROGRAMS // 2}", language="triton", source=source)
    key = {"M": 16 * (number + 1), "N": 4096, "dtypes": "float16,float16"}
    return Job(
        workload=Workload(program=program, key=key, features={"grid": 1024 + number, "aligned": True}),
        space=SPACE,
        hardware=HARDWARE[number % len(HARDWARE)],
        toolchain=TOOLCHAINS[number % len(TOOLCHAINS)],
    )


def build(path: Path) -> None:
    """Row by row as the store writes them, in one transaction: a million outcomes take a minute (two busy cores)."""
    chance = random.Random(1)
    configs = list(SPACE)
    at = time.time() - 30 * DAY_S
    connection = open_file(path, "auto")
    with transaction(connection):
        for number in range(KEYS):
            workload = job(number).workload
            for hardware in HARDWARE:
                for toolchain in TOOLCHAINS:
                    tuning_key = TuningKey(workload=workload, hardware=hardware, toolchain=toolchain)
                    keep_tuning_key(connection, tuning_key, at)
                    run = f"{chance.getrandbits(128):032x}"
                    chosen = [configs[0], *chance.sample(configs[1:], PER_KEY - 1)]
                    for config in chosen:
                        at += 1.0
                        keep_outcome(
                            connection,
                            tuning_key,
                            StoredOutcome(
                                config=config,
                                outcome=an_outcome(chance),
                                forecast=Forecast.normal(chance.gauss(0, 1), 0.4, source="learned"),
                                default=configs[0],
                                run=run,
                                recorded_at=at,
                            ),
                        )
                    keep_decision(
                        connection,
                        tuning_key,
                        Decision(
                            config=chosen[1],
                            basis="measured",
                            reason="1.50x the default's speed, measured; the policy asked for nothing new",
                            space_digest=SPACE.digest,
                            space_size=len(SPACE),
                            budget="16,30s",
                            tried=PER_KEY,
                            spent_s=3.2,
                            config_us=10.0,
                            default_us=15.0,
                            run=run,
                            decided_at=at,
                        ),
                    )
        connection.execute("UPDATE program SET seen_at = 0 WHERE rowid % 2")  # out of use for long
    connection.close()


def an_outcome(chance: random.Random) -> Outcome:
    if chance.random() < 0.05:
        return Failure(
            stage="launch", message="out of resource: shared memory, Required: 270336, Hardware limit: 232448"
        )
    us = chance.lognormvariate(4, 0.5)
    return Measurement(
        samples_us=tuple(round(us * chance.uniform(0.99, 1.01), DIGITS) for _ in range(SAMPLES)),
        compile_s=chance.random(),
        run_s=round(chance.random(), 6),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("large")
    build(found / "store.sqlite3")
    return found


@pytest.fixture(scope="module")
def opened(folder: Path) -> Any:
    with SqliteStore(folder) as store:
        assert store.decision(job()) is not None
        yield store


COMMAND = """
import sys
from pathlib import Path
from forecast_autotune.cli import main
code = main(sys.argv[1:])
# Not what wait4() tells: that begins at what the parent had when it forked.
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(peak, file=sys.stderr)
sys.exit(code)
"""


def command(folder: Path, *words: object) -> float:
    """Run a command as a process; its peak of memory, MiB."""
    line = [sys.executable, "-c", COMMAND, *map(str, words), "--dir", str(folder)]
    done = subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1]) / 1024


@pytest.mark.benchmark(group="large store")
def test_open_and_recall(benchmark: Any, folder: Path) -> None:
    def act() -> None:
        with SqliteStore(folder) as store:
            assert store.decision(job()) is not None

    benchmark.extra_info["file_mib"] = (folder / "store.sqlite3").stat().st_size / 2**20
    benchmark(act)


QUESTIONS: dict[str, Callable[[SqliteStore], Any]] = {
    "recall, a hit": lambda store: store.decision(job(KEYS // 2)),
    "recall, a miss": lambda store: store.decision(job(KEYS + 1)) is None,
    "outcomes of a key": lambda store: store.outcomes(job(KEYS // 2)),
    "related_recordings": lambda store: store.related_recordings(job(KEYS + 1)),
    "calibration_pairs": lambda store: store.calibration_pairs("cuda"),
    "knob_effects": lambda store: store.knob_effects(job(KEYS + 1)) is not None,
}


@pytest.mark.benchmark(group="large store")
@pytest.mark.parametrize("question", QUESTIONS)
def test_ask(benchmark: Any, opened: SqliteStore, question: str) -> None:
    assert benchmark(QUESTIONS[question], opened)


LOOKS: dict[str, Callable[[StoreFile], Any]] = {
    "list, a page": lambda file: file.decisions(limit=50),
    "list, a page of a kernel": lambda file: file.decisions(limit=50, kernel="kernel_0"),
    "show": lambda file: file.detail(file.find(file.decisions(limit=1)[0].digest[:10])[0]),
    "stats": lambda file: file.stats(),
}


@pytest.mark.benchmark(group="large store, commands as functions")
@pytest.mark.parametrize("look", LOOKS)
def test_look(benchmark: Any, folder: Path, look: str) -> None:
    assert benchmark.pedantic(LOOKS[look], args=(StoreFile(folder),), rounds=3)


COMMANDS = {
    "list": ["list", "--limit", "50"],
    "list, all": ["list", "--json"],
    "stats": ["stats"],
    "export": ["export"],
}


@pytest.mark.benchmark(group="large store, commands as processes")
@pytest.mark.parametrize("name", COMMANDS)
def test_command(benchmark: Any, folder: Path, tmp_path: Path, name: str) -> None:
    words: list[object] = [*COMMANDS[name], *([tmp_path / "pack.jsonl"] if name == "export" else [])]
    peak_mib = benchmark.pedantic(command, args=(folder, *words), rounds=1)
    benchmark.extra_info["peak_mib"] = peak_mib
    assert peak_mib < 300, "a command is to take no more room for a larger store"


@pytest.mark.benchmark(group="large store, commands as processes")
@pytest.mark.parametrize("days", [100_000, 90], ids=["nothing", "half of it"])
def test_prune(benchmark: Any, folder: Path, tmp_path: Path, days: int) -> None:
    shutil.copyfile(folder / "store.sqlite3", tmp_path / "store.sqlite3")
    peak_mib = benchmark.pedantic(command, args=(tmp_path, "prune", "--days", days), rounds=1)
    benchmark.extra_info["peak_mib"] = peak_mib
    assert peak_mib < 300
    left = StoreFile(tmp_path).count() / (OUTCOMES / PER_KEY)
    assert left == 1 if days > 90 else 0.3 < left < 0.7


@pytest.mark.benchmark(group="large store, commands as processes")
def test_import(benchmark: Any, folder: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack.jsonl"
    command(folder, "export", pack)
    benchmark.extra_info["peak_mib"] = benchmark.pedantic(command, args=(tmp_path, "import", pack), rounds=1)
    assert StoreFile(tmp_path).count() == OUTCOMES // PER_KEY
