"""Serves programs on a simulated GPU, for tests of recording; launches take a time that depends on their config."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from calibration.record import program_worker
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.frontends.triton import recorded_times
from forecast_autotune.frontends.triton.simulated_driver import rehearsal


def outcome(_: Any, kernel: str, values: Any, shown: Any) -> Any:
    """What a launch takes; one block size may end the process, always or once."""
    config = recorded_times.Config({name: values[name] for name in shown})
    marker = os.environ.get("TOY_DIES")
    if marker and values.get("BLOCK") == 256:
        times = Path(marker)
        count = int(times.read_text()) if times.exists() else 0
        if count < int(os.environ["TOY_DEATHS"]):
            times.write_text(str(count + 1))
            os.kill(os.getpid(), signal.SIGKILL)
    block, warps = int(str(values.get("BLOCK", 64))), int(str(values["num_warps"]))
    return config, Measurement(samples_us=(20_000.0 + block + 100.0 * warps,))


if __name__ == "__main__":
    recorded_times.RecordedTimes.outcome = outcome  # type: ignore[method-assign]
    with rehearsal("H200", 1.0):
        program_worker.serve(sys.argv[1])
