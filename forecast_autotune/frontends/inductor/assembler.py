"""One assembler for a process and its compile workers. Importing this module imports no torch.

Inductor's workers take the ptxas that lies in torch, where one does (wheels for CUDA of torch 2.11); the process itself
takes Triton's, as ever. Each version has keys of its own in Triton's cache, so what a worker has compiled is not found
there, and each candidate is compiled once more, one after the other, before it is timed: 8.5 s for two candidates of a
product (H200, Triton 3.6).
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

VARIABLE = "TRITON_PTXAS_PATH"  # of Triton's; workers inherit it, and look in torch where it is not set
OF_TORCH, OF_TRITON = ("torch", "bin/ptxas"), ("triton", "backends/nvidia/bin/ptxas")

_ours = ""


def share_assembler() -> None:
    """Have workers that start from now on take what this process takes, unless somebody has named one."""
    global _ours
    of_torch, of_triton = _file(*OF_TORCH), _file(*OF_TRITON)
    if of_torch and of_triton and VARIABLE not in os.environ:
        os.environ[VARIABLE] = _ours = of_triton


def unshare_assembler() -> None:
    """Undo that; what somebody has named since stays."""
    global _ours
    if _ours and os.environ.get(VARIABLE) == _ours:
        del os.environ[VARIABLE]
    _ours = ""


def _file(package: str, name: str) -> str:
    """A file of a package, by its whole path; empty where there is none."""
    spec = importlib.util.find_spec(package)
    found = (Path(folder, name) for folder in (spec and spec.submodule_search_locations) or ())
    return next((str(path) for path in found if path.is_file()), "")
