"""What tests of `tune` have tuned: a suite of functions that sleep, in which the second config is always the best.

With `SLEEPY_DIES` a file's name, the last config ends its process at `KEY_THAT_KILLS`, as often as `SLEEPY_DEATHS` says;
each time is noted in that file. With `SLEEPY_KILLED` set, a process stops at its third config until there is such a file:
what is to be killed in the middle of a key is then in the middle of it, however late it began.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import forecast_autotune as fa

CONFIGS, BEST = 6, 1
KEYS = range(1, 7)
KEY_THAT_KILLS = 2
WAIT_S = 600.0  # a process of Ray takes minutes to begin on a busy machine

_run: set[int] = set()  # the configs that this process has run


def sleepy(x: torch.Tensor, *, config: int) -> torch.Tensor:
    """Takes 2 ms under one config, and 20 ms or more under the others."""
    kills = os.environ.get("SLEEPY_DIES")
    if kills and config == CONFIGS - 1 and x.numel() == KEY_THAT_KILLS:
        deaths = Path(kills)
        if len(deaths.read_text() if deaths.exists() else "") < int(os.environ["SLEEPY_DEATHS"]):
            with deaths.open("a") as noted:
                noted.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
    _run.add(config)
    if config != BEST and len(_run) >= 3 and (killed := os.environ.get("SLEEPY_KILLED")):
        until = time.monotonic() + WAIT_S
        while not Path(killed).exists() and time.monotonic() < until:
            time.sleep(0.01)
    time.sleep(0.002 if config == BEST else 0.02 + 0.002 * config)
    return x + 1


def tuning_calls() -> dict[str, Callable[[], object]]:
    """A call for each key."""
    configs = [{"config": number} for number in range(CONFIGS)]
    tuned = fa.variants([(sleepy, configs)], key=lambda x: (x.numel(),), name="sleepy", budget="all")
    calls: dict[str, Callable[[], object]] = {f"sleepy/{n}": partial(tuned, torch.ones(n)) for n in KEYS}

    def broken() -> None:
        raise ValueError("this call is wrong")

    return {**calls, "broken": broken}
