"""Giving way to others for the CPU, also where the kernel shares it among sessions first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forecast_autotune.processes.machine import give_way

GROUP = Path("/proc/self/autogroup")


@pytest.mark.parametrize("leads", [True, False])
def test_a_session_gives_way_as_a_whole_if_it_is_the_process_s_own(leads: bool) -> None:
    program = (
        "import os\n"
        f"from {give_way.__module__} import give_way\n"
        "give_way(7)\n"
        f"group = open({str(GROUP)!r}).read() if os.path.exists({str(GROUP)!r}) else ''\n"
        "print(os.nice(0), *group.split()[-1:])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], start_new_session=leads, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert told[0] == "7"
    enabled = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if not enabled.exists() or enabled.read_text().strip() != "1":
        pytest.skip("this kernel shares the CPU among processes alone")
    ours = GROUP.read_text().split()[-1:]  # nothing where no session was begun since the machine was
    assert told[1:] == (["7"] if leads else ours)
