"""Run Triton kernels of the suite in Triton's interpreter: `TRITON_INTERPRET=1 python interpreted.py CONFIGS NAME-OR-FILE…`.

A program of its own, because Triton settles when a kernel is defined whether it is interpreted. Prints, as JSON, what
each kernel's default, so many further configs and the tuned kernel got wrong at each of its corners.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from kernel_suite import Call, Case, TritonKernel, triton_kernels

SEED = 7
GUARD = 64


def kernel_of(name: str) -> TritonKernel:
    """A kernel of the suite by its name, or the one in the file given."""
    if not name.endswith(".py"):
        return next(kernel for kernel in triton_kernels() if kernel.name == name)
    found = importlib.util.spec_from_file_location(
        f"kernel_suite.{Path(name).stem}", name, submodule_search_locations=[]
    )
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module.KERNEL


def complaint(kernel: TritonKernel, case: Case, launched: Any, knobs: Mapping[str, Any]) -> str | None:
    """What a launch gets wrong: the result, a write beside it, or a write to an input."""
    call = kernel.make_call(case, SEED, "cpu")
    expected = kernel.reference(call)
    guarded = torch.full((call.out.numel() + 2 * GUARD,), 7.0, dtype=call.out.dtype)
    inside = guarded[GUARD:-GUARD].view_as(call.out).copy_(call.out)
    args = tuple(inside if arg is call.out else arg for arg in call.args)
    before = [arg.clone() if torch.is_tensor(arg) and arg is not inside else None for arg in args]
    try:
        Call(args=args, grid=call.grid, out=inside).launch(launched, **knobs)
    except Exception as err:
        return f"{type(err).__name__}: {err}"
    if not bool((guarded[:GUARD] == 7.0).all() and (guarded[-GUARD:] == 7.0).all()):
        return "wrote beside its output"
    if any(old is not None and not torch.equal(arg, old) for arg, old in zip(args, before, strict=True)):
        return "wrote to an input"
    try:
        torch.testing.assert_close(inside, expected, rtol=kernel.rtol, atol=kernel.atol)
    except AssertionError as err:
        return str(err)
    return None


def bench(launch: Callable[[], None], quantiles: Any) -> list[float]:
    launch()
    return [1.0, 1.0, 1.0]


def looked_at(name: str, count: int) -> dict[str, Any]:
    """Where a kernel was looked at, and what was wrong there."""
    kernel = kernel_of(name)
    drawn = random.Random(SEED).sample(kernel.space[1:], count)
    launches = [(str(config), kernel.function, config.knobs) for config in (kernel.space.default, *drawn)]
    launches.append(("tuned", kernel.tuned(configs=kernel.configs()[:2], budget="all", do_bench=bench), {}))
    told = {
        f"{title} at {case.name}": complaint(kernel, case, launched, knobs)
        for title, launched, knobs in launches
        for case in kernel.corners
    }
    return {"checked": list(told), "wrong": {where: what for where, what in told.items() if what}}


if __name__ == "__main__":
    print(json.dumps({name: looked_at(name, int(sys.argv[1])) for name in sys.argv[2:]}))
