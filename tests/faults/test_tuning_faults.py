"""Tuning interrupted and crowded: real processes, real signals, the real extension."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from toy import Toy

from forecast_autotune.workers import workshop

SCRIPT = """
    import json, os, sys
    sys.path.insert(0, {tests!r})
    import torch
    import forecast_autotune as fa
    from forecast_autotune.measure.isolated import Isolated
    from toy import Toy
    from pathlib import Path

    tried = []
    measure = Isolated.measure

    def reported(measurer, config, **keywords):
        outcome = measure(measurer, config, **keywords)
        tried.append(config["NUMBER"])
        print(config["NUMBER"], flush=True)
        return outcome

    Isolated.measure = reported
    toy = Toy(Path({builds!r}))
    space = [dict(MODE="slow" if n % 3 else "plain", NUMBER=n) for n in range({variants})]
    module = fa.load_inline(**{{**toy.arguments(), "space": space, "budget": "all", "key": {{"scaled": lambda x, a: 0}}}})
    x = torch.ones(2000)
    print("ready", flush=True)
    assert torch.equal(module.scaled(x, 2.0), 2 * x)
    (decision,) = module.scaled.decisions.values()
    print(json.dumps({{"tried": tried, "config": decision.config.knobs, "run": decision.run}}), flush=True)
"""


def start(toy: Toy, variants: int) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    script = textwrap.dedent(SCRIPT).format(tests=tests, builds=str(toy.builds), variants=variants)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
    return found


def stored_outcomes(folder: Path) -> set[int]:
    import sqlite3

    connection = sqlite3.connect(folder / "store.sqlite3")
    try:
        rows = connection.execute("SELECT config FROM outcome").fetchall()
    finally:
        connection.close()
    return {json.loads(text)["NUMBER"] for (text,) in rows}


def descendants_using(folder: Path) -> list[str]:
    """Processes of this test that are still there: they carry its store folder in their environment."""
    found = []
    own = workshop()._process  # the tests' own workshop may have been started in this test
    ours = {os.getpid(), own.pid if own else 0}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in ours:
            try:
                if f"FORECAST_AUTOTUNE_DIR={folder}".encode() in (entry / "environ").read_bytes():
                    status = (entry / "status").read_text().split("\n")[2]
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append(f"{entry.name} {status} {command[:200]}")
            except OSError:
                continue
    return found


@pytest.mark.timeout(400)
def test_a_tuning_that_is_killed_keeps_what_it_measured_and_the_next_run_finishes_it(
    toy: Toy, own_settings: Path
) -> None:
    list(toy.compiler().compile([toy.config("plain")]))  # the binding, so that the kill falls into tuning, not into it
    reported: set[int] = set()
    for kill_after in (3, 7):
        process = start(toy, variants=12)
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.strip().isdigit():
                    reported.add(int(line))
                    if len(reported) >= kill_after:
                        break
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
        for _ in range(100):
            if not descendants_using(own_settings):
                break
            time.sleep(0.05)
        assert descendants_using(own_settings) == [], "nothing that the killed process started is left"
        # The last one reported may have been killed before it was written; every other one is there.
        assert len(reported - stored_outcomes(own_settings)) <= 1
    kept = stored_outcomes(own_settings)
    last = finish(start(toy, variants=12))
    search = last["tried"][: 12 - len(kept)]
    assert set(search) == set(range(12)) - kept, "what was measured before is not measured again"
    assert last["config"]["MODE"] == "plain"


@pytest.mark.timeout(400)
def test_of_eight_processes_that_miss_one_key_one_tunes_it(toy: Toy, own_settings: Path) -> None:
    list(toy.compiler().compile([toy.config("plain")]))
    crowd = [start(toy, variants=4) for _ in range(8)]
    results = [finish(process) for process in crowd]
    tuned = [r for r in results if r["tried"]]
    assert len(tuned) == 1
    assert len({r["run"] for r in results}) == 1
    assert len({json.dumps(r["config"]) for r in results}) == 1


@pytest.mark.timeout(400)
def test_control_c_ends_a_tuning_at_once_and_keeps_what_was_measured(toy: Toy, own_settings: Path) -> None:
    list(toy.compiler().compile([toy.config("plain")]))
    process = start(toy, variants=40)
    assert process.stdout is not None
    count = 0
    for line in process.stdout:
        count += line.strip().isdigit()
        if count == 3:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err
    assert len(stored_outcomes(own_settings)) >= 2
    for _ in range(100):
        if not descendants_using(own_settings):
            break
        time.sleep(0.05)
    assert descendants_using(own_settings) == []
