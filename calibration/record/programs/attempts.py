"""What the programs share: tensors of one device, and calls of which one may fail while the others go on."""

from __future__ import annotations

import math
import re
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from calibration.paths import REPOSITORY

DEVICE = "cuda"


_seen: Counter[str] = Counter()  # attempts of this round, by their labels without numbers
_round = 0


def in_rounds(program: Callable[[], None]) -> None:
    """Run a program's attempts: first one of every kind, then the second of every kind, and so on.

    So a recording that ends early has something of every kernel. Attempts are of one kind if their labels differ in numbers
    only. The program is called once for each round.
    """
    global _round
    _round = 0
    while True:
        _seen.clear()
        program()
        _round += 1
        if _round >= max(_seen.values(), default=0):
            return


def attempt(label: str, call: Callable[[], Any]) -> None:
    """Make a call, if it is its kind's turn. One that fails prints a line; a device that no longer answers ends the program.

    Attempts within attempts are not made in every round.
    """
    kind = re.sub(r"\d+", "", label)
    _seen[kind] += 1
    if _seen[kind] != _round + 1:
        return
    try:
        call()
        torch.cuda.synchronize()
    except Exception as err:
        reason = str(err).strip().splitlines() or [""]
        print(f"{label}: {type(err).__name__}: {reason[0][:200]}", file=sys.stderr, flush=True)
        if "CUDA error" in str(err):
            sys.exit(f"{label}: the device is lost: {reason[0][:200]}")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype).requires_grad_(grad)


def scaled(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normally distributed weights of a layer, whose products stay near one."""
    return (torch.randn(*shape, device=DEVICE, dtype=torch.float32) / math.sqrt(shape[-1])).to(dtype)


def indices(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Whole numbers from 0 to below `high`."""
    return torch.randint(0, high, shape, device=DEVICE, dtype=dtype)


def backward(output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
    """Run the backward pass with a gradient of ones for the first output."""
    first = output[0] if isinstance(output, tuple) else output
    first.backward(torch.ones_like(first))


def without_init(package: str) -> None:
    """Let modules of a package be imported without its `__init__`, which asks for compiled extensions."""
    for folder in sys.path:
        if (Path(folder) / package.replace(".", "/")).is_dir():
            module = types.ModuleType(package)
            module.__path__ = [str(Path(folder) / package.replace(".", "/"))]
            sys.modules[package] = module
            return
    raise ModuleNotFoundError(package)


def stand_in(name: str, **members: Any) -> None:
    """A module of this name with nothing but these members, for what a kernel's module imports and does not need."""
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(members)


def on_path(*folders: str) -> None:
    """Put folders of unpacked packages, relative to `.gpu/packages`, before everything else that can be imported."""
    for folder in folders:
        sys.path.insert(0, str((REPOSITORY / ".gpu/packages" / folder).resolve()))
