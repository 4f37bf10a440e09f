"""The environment of a program in which Triton's tuners are decided by ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def environment_with(changes: Mapping[str, str | None]) -> dict[str, str]:
    """The environment with these changes, in which Python processes start with our `sitecustomize`."""
    from ..settings import child_environment

    environment = child_environment(changes)
    boot = str(Path(__file__).parents[1] / "boot")
    # An empty entry is the current folder; a path that is empty in whole is none.
    path = environment.get("PYTHONPATH", "")
    others = [folder for folder in path.split(os.pathsep) if folder != boot] if path else []
    return {**environment, "PYTHONPATH": os.pathsep.join([boot, *others])}
