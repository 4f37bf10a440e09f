"""What a launch does while another process tunes its key: it waits for nothing, and takes the decision later."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rehearsed import BEST, call, launched, own_triton_cache, playing, tuned

from forecast_autotune.store.sqlite import SqliteStore

LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def surroundings(own_settings: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_triton_cache(tmp_path_factory.getbasetemp() / "triton-cache"):
        yield


@pytest.fixture
def elsewhere() -> Iterator[pytest.MonkeyPatch]:
    """Every key is tuned by another process, until this is undone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "single_flight", lambda *_: contextlib.nullcontext(False))
        yield patch


def call_until(done: Callable[[], bool], kernel: Any) -> None:
    """Call again and again, as a program does, until something has come of it."""
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline
        call(kernel)
        time.sleep(0.01)


def test_while_another_process_tunes_a_key_its_launches_run_the_default(elsewhere: pytest.MonkeyPatch) -> None:
    kernel = tuned(budget="all")
    with playing() as on:
        for _ in range(3):
            call(kernel)
        assert launched(on) == {(64, 4)}
        assert sum(on.launches.values()) == 3


def test_a_key_stays_open_until_the_other_process_has_decided(elsewhere: pytest.MonkeyPatch) -> None:
    kernel = tuned(budget="all")
    with playing() as on:
        call(kernel)
        elsewhere.undo()
        call(tuned(budget="all"))  # as the other process would
        on.launches.clear()
        call_until(lambda: kernel.best_config.kwargs["BLOCK"] == BEST, kernel)
        assert launched(on) <= {(64, 4), (BEST, 4)}, "it measured nothing"


def test_who_finds_a_key_given_up_by_the_other_process_tunes_it(elsewhere: pytest.MonkeyPatch) -> None:
    kernel = tuned(budget="all")
    with playing() as on:
        call(kernel)
        elsewhere.undo()
        call_until(lambda: kernel.best_config.kwargs["BLOCK"] == BEST, kernel)
        assert len(launched(on)) == 4


STAGE = """
    import sys, time
    from pathlib import Path
    from rehearsed import call, playing, tuned

    stage, box = sys.argv[1], Path(sys.argv[2])

    def wait_for(name):
        while not (box / name).exists():
            time.sleep(0.02)

    def bench(launch, quantiles):  # its device waits for what the next stage sends after its own call of the kernel
        if stage == "first":
            (box / "tunes").touch()
            wait_for("sent")
        launch()
        return [1.0] * len(quantiles)

    if stage == "second":
        wait_for("tunes")
    with playing():
        call(tuned(do_bench=bench))
    (box / "sent").touch()
"""


def test_two_pipeline_stages_with_one_store_do_not_hold_each_other_up(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(STAGE)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    stages = [subprocess.Popen([*command, stage, str(tmp_path)], env=environment) for stage in ("first", "second")]
    try:
        assert [stage.wait(timeout=LIMIT_S) for stage in stages] == [0, 0]
    finally:
        for stage in stages:
            stage.kill()
            stage.wait()
