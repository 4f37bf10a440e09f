"""Tune here, run there: decisions are exported to a file, and another process takes them from that pack.

Look at the three commands in `ship`. The first tunes. The second writes a pack, JSON lines to keep in a repository or image.
The third has an empty store and FORECAST_AUTOTUNE_PACKS; in mode `strict` a key that nobody tuned would be an error, so
that nothing is measured there by accident. A decision holds on hardware of the same kind, under the same versions.

Prints what both processes run and where that was decided. Runs on the CPU.
"""

import os
import subprocess
import sys
import tempfile
import time

import torch

import forecast_autotune as fa


def plain(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(0).sqrt()


def built_in(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=0)


def by_product(x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("rc,rc->c", x, x).sqrt()


column_norms = fa.variants([plain, built_in, by_product], key="x", name="column_norms")


def call(who: str) -> None:
    """What a program does that knows nothing of packs."""
    began = time.time()
    column_norms(torch.ones(4096, 256))
    (decision,) = column_norms.decisions.values()
    print(f"{who}: {decision.config}: decided {'now' if decision.decided_at > began else 'elsewhere'}", flush=True)


def ship(folder: str) -> None:
    """The same program twice, with a pack between."""
    pack, python = f"{folder}/decisions.jsonl", [sys.executable, "-W", "error"]
    here = {**os.environ, "FORECAST_AUTOTUNE_DIR": f"{folder}/here"}
    there = {**os.environ, "FORECAST_AUTOTUNE_DIR": f"{folder}/there", "FORECAST_AUTOTUNE_PACKS": pack}
    subprocess.run([*python, __file__, "here"], env=here, check=True)
    subprocess.run([*python, "-m", "forecast_autotune", "export", pack], env=here, check=True)
    subprocess.run([*python, __file__, "there"], env={**there, "FORECAST_AUTOTUNE_MODE": "strict"}, check=True)


if sys.argv[1:]:
    call(sys.argv[1])
else:
    with tempfile.TemporaryDirectory() as folder:
        ship(folder)
