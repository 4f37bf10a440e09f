"""`tune` on a real Ray, of several nodes on this machine with a store each; nodes and processes are killed meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distributed import ray_one_key
from distributed.ray_programs import BEST, KEYS, WAIT_S
from ray_nodes import RayNodes, ray_nodes

from forecast_autotune.core.config import Config
from forecast_autotune.distributed.key_list import ListedKey, write_keys
from forecast_autotune.store.jsonl import Run, decode_entry
from forecast_autotune.store.queries import StoreFile

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("ray"), pytest.mark.timeout(3000)]

PROGRAM = Path(__file__).with_name("ray_programs.py")
LIMIT_S = 900.0


def tune(folder: Path, *words: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run `tune` with a store in a folder: its exit code, what it printed as JSON, and what it said."""
    command = [sys.executable, "-m", "forecast_autotune", "tune", "--json", "--dir", str(folder), *words]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    print(done.stderr)
    return done.returncode, json.loads(done.stdout or "[]"), done.stderr


def decided(folder: Path) -> dict[int, int]:
    """The config that a store has decided for each key."""
    store = StoreFile(folder)
    decisions = store.decisions() if store.exists() else []
    return {
        d.tuning_key.workload.key["key"][0]: int(str(d.decision.config["config"]))  # type: ignore[index]
        for d in decisions
        if d.decision.rests_on_outcomes
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [tmp_path_factory.mktemp(f"node{number}") for number in range(3)]


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a letter for each process that `ray_programs` ended; it ends one."""
    return tmp_path_factory.mktemp("deaths") / "noted"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is there once a node has been killed."""
    return tmp_path_factory.mktemp("nodes") / "killed"


@pytest.fixture(scope="module")
def cluster(folders: Sequence[Path], deaths: Path, killed: Path) -> Iterator[RayNodes]:
    pytest.importorskip("ray")
    told = {"SLEEPY_DIES": str(deaths), "SLEEPY_DEATHS": "1", "SLEEPY_KILLED": str(killed)}
    with ray_nodes(folders, told) as nodes:
        yield nodes


@dataclass(frozen=True, slots=True)
class Tuned:
    """A suite that was tuned on the cluster while a node was killed."""

    gathered: Path
    code: int
    told: list[dict[str, Any]]
    said: str


@pytest.fixture(scope="module")
def tuned(cluster: RayNodes, folders: Sequence[Path], killed: Path, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    gathered = tmp_path_factory.mktemp("gathered") / "all"
    killing = threading.Thread(target=kill_once_it_measures, args=(cluster, 2, folders[2], killed))
    killing.start()
    answer = tune(gathered, "--ray", cluster.address, str(PROGRAM))
    killing.join()
    return Tuned(gathered, *answer)


def test_a_suite_is_tuned_though_a_node_and_a_process_are_killed(tuned: Tuned, deaths: Path) -> None:
    gathered, code, told, said = tuned.gathered, tuned.code, tuned.told, tuned.said
    assert (deaths.read_text(), said.count(" died: ")) == ("x", 1)
    assert code == 1
    assert {each["what"]: each["problem"] for each in told if each["problem"]} == {
        "broken": "ValueError: this call is wrong"
    }
    assert len(told) == len(KEYS) + 1
    assert decided(gathered) == dict.fromkeys(KEYS, BEST)
    assert sum(measured_again(gathered).values()) <= 4, "each death costs the config that was being measured"


def kill_once_it_measures(cluster: RayNodes, number: int, folder: Path, killed: Path) -> None:
    """Kill a node, with what runs on it, in the middle of its first key; all wait for that (`ray_programs`)."""
    store = StoreFile(folder)
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and not (store.exists() and store.stats().measurements):
        time.sleep(0.02)
    cluster.kill(number)
    killed.touch()


def measured_again(folder: Path) -> Counter[str]:
    """By key, how many configs beside the default were measured in more than one run."""
    runs: Counter[tuple[str, Config]] = Counter()
    for line in StoreFile(folder).lines():
        if isinstance(entry := decode_entry(json.loads(line)), Run):
            key = str(entry.tuning_key.workload)
            runs.update((key, o.config) for o in entry.outcomes if o.config != o.default)
    return Counter(key for (key, _), count in runs.items() if count > 1)


def test_a_program_is_run_for_the_keys_of_a_list_alone(
    tuned: Tuned, cluster: RayNodes, folders: Sequence[Path], tmp_path: Path
) -> None:
    gathered, keys = tmp_path / "all", tmp_path / "keys.jsonl"
    listed = [decision.tuning_key for decision in StoreFile(tuned.gathered).decisions()][:2]
    for folder in folders[:2]:
        StoreFile(folder).clear()
    write_keys(
        keys,
        [
            ListedKey(hardware=p.hardware.digest, workload=p.workload.digest, what=str(p.workload), on=p.hardware.name)
            for p in listed
        ],
    )
    code, told, _ = tune(
        gathered, "--ray", cluster.address, "--keys", str(keys), str(PROGRAM.with_name("ray_script.py"))
    )
    assert code == 0
    assert sorted(each["what"] for each in told) == sorted(str(p.workload) for p in listed)
    assert decided(gathered) == {p.workload.key["key"][0]: BEST for p in listed}  # type: ignore[index]
    # A node that knows nothing is told what is known: nothing is measured again.
    for folder in folders[:2]:
        StoreFile(folder).clear()
    code, told, said = tune(
        gathered, "--ray", cluster.address, "--keys", str(keys), str(PROGRAM.with_name("ray_script.py"))
    )
    assert (code, told) == (1, [])
    assert "0 keys to tune" in said


def test_devices_that_are_alike_share_one_large_key_though_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    suite, alone, gathered = PROGRAM.with_name("ray_one_key.py"), tmp_path / "alone", tmp_path / "gathered"
    for name in ("ran", "ran alone"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("ONE_KEY_RAN", str(tmp_path / "ran alone"))
    subprocess.run(
        [sys.executable, suite], env={**os.environ, "FORECAST_AUTOTUNE_DIR": str(alone)}, check=True, timeout=LIMIT_S
    )
    monkeypatch.setenv("ONE_KEY_RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("ONE_KEY_KILLED", str(tmp_path / "killed"))
    with ray_nodes([tmp_path / "node"] * 3) as nodes:
        killing = threading.Thread(target=kill_once_all_measure, args=(nodes, 2, tmp_path))
        killing.start()
        first = tune(gathered, "--ray", nodes.address, str(suite))
        killing.join()
        measured = by_process(tmp_path / "ran")
        second = tune(gathered, "--ray", nodes.address, str(suite))
    for code, told, _ in (first, second):
        assert (code, [(each["what"], each["problem"]) for each in told]) == (0, [("large", "")])
    assert first[2].count(" died: ") == 1
    assert decided(gathered) == decided(alone) == {1: ray_one_key.BEST}
    assert min(measured.values()) >= 2, "each has measured some"
    again = sum(measured_again(gathered).values())
    assert again <= 2, "the config that was being measured, and the best as a finalist"


def by_process(ran: Path) -> Counter[str]:
    """How many configs each process has run."""
    return Counter(path.name.split()[1] for path in ran.iterdir())


def kill_once_all_measure(cluster: RayNodes, number: int, folder: Path) -> None:
    """Kill a node in the middle of a key that all three share; they wait for that (`ray_one_key`)."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and sum(count >= 2 for count in by_process(folder / "ran").values()) < 3:
        time.sleep(0.02)
    cluster.kill(number)
    (folder / "killed").touch()
