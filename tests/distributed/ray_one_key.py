"""A suite with one call of many configs, each of which sleeps: the seventh is the best."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import forecast_autotune as fa

CONFIGS, BEST = 24, 6
WAIT_S = 600.0  # as in `ray_programs`


def sleepy(x: torch.Tensor, *, config: int) -> torch.Tensor:
    """Takes 4 ms under one config, and 30 ms or more under the others; notes which processes ran it.

    With `ONE_KEY_KILLED` set, a process stops at its second config until there is such a file: what is to be killed in the
    middle of the key is then in the middle of it, however late it began.
    """
    ran, killed = Path(os.environ["ONE_KEY_RAN"]), os.environ.get("ONE_KEY_KILLED")
    (ran / f"{config} {os.getpid()}").touch()
    if killed and config != BEST and len(list(ran.glob(f"* {os.getpid()}"))) >= 2:
        until = time.monotonic() + WAIT_S
        while not Path(killed).exists() and time.monotonic() < until:
            time.sleep(0.01)
    time.sleep(0.004 if config == BEST else 0.03 + 0.001 * config)
    return x + 1


def tuning_calls() -> dict[str, Callable[[], object]]:
    """The call."""
    configs = [{"config": number} for number in range(CONFIGS)]
    tuned = fa.variants([(sleepy, configs)], key=lambda x: (x.numel(),), name="large", budget="all")
    return {"large": partial(tuned, torch.ones(1))}


if __name__ == "__main__":
    for call in tuning_calls().values():
        call()
