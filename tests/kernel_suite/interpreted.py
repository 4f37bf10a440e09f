"""Run Triton kernels of the suite in Triton's interpreter: `TRITON_INTERPRET=1 python interpreted.py CONFIGS NAME-OR-FILE…`.

A program of its own, because Triton settles when a kernel is defined whether it is interpreted. Prints, as JSON, what
each kernel's default and so many further configs got wrong at each of its corners, and the tuned kernel at one of them; of
no further configs, the default alone. Of a kernel with variants, each variant's default at each corner, and so many further
configs at one corner each. Where the first word is `all:` and the number, all of them are looked at at each corner.
`NAME.KERNEL` is the single function of a kernel that has variants too, and
`NAME-OR-FILE@CORNER` looks at one corner alone, and `NAME:FILE` takes the file for a module in the folder of that kernel.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from kernel_suite import (
    Call,
    Case,
    Output,
    SuiteKernel,
    TritonKernel,
    Variant,
    small_kernels,
    suite_kernels,
    triton_kernels,
)

from forecast_autotune.core.config import Config
from forecast_autotune.errors import InvalidInputError

SEED = 7
GUARD = 64


def kernel_of(name: str) -> TritonKernel | SuiteKernel:
    """A kernel of the suite by its name, or the one in the file given."""
    if name.endswith(".KERNEL"):
        return next(
            kernel for kernel in (*triton_kernels(), *small_kernels()) if kernel.name == name.removesuffix(".KERNEL")
        )
    if not name.endswith(".py"):
        several = (kernel for kernel in suite_kernels() if kernel.name == name)
        return next(several, None) or kernel_of(f"{name}.KERNEL")
    folder, _, file = name.rpartition(":")
    stem, within = Path(file).stem, f"{folder}." if folder else ""
    found = importlib.util.spec_from_file_location(
        f"kernel_suite.{within}{stem}", file, submodule_search_locations=None if folder else []
    )
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module.VARIANTS if hasattr(module, "VARIANTS") else module.KERNEL


def complaint(kernel: TritonKernel, case: Case, launched: Any, knobs: Mapping[str, Any]) -> str | None:
    """What a launch gets wrong: a result, a write beside it, or a write to an input."""
    call = kernel.make_call(case, SEED, "cpu")
    expected = kernel.reference(call)
    inside, around = zip(*map(guarded, call.outs), strict=True)
    copies = {id(out): copy for out, copy in zip(call.outs, inside, strict=True)}
    args = tuple(copies.get(id(arg), arg) for arg in call.args)
    before = [arg.clone() if torch.is_tensor(arg) and id(arg) in map(id, call.args) else None for arg in args]
    try:
        Call(args=args, grid=call.grid, outs=inside).launch(launched, **knobs)
    except Exception as err:
        return f"{type(err).__name__}: {err}"
    if not all(bool((whole[:GUARD] == 7).all() and (whole[-GUARD:] == 7).all()) for whole in around):
        return "wrote beside an output"
    if any(old is not None and not same(arg, old) for arg, old in zip(args, before, strict=True)):
        return "wrote to an input"
    try:
        torch.testing.assert_close(inside, expected, rtol=kernel.rtol, atol=kernel.atol)
    except AssertionError as err:
        return str(err)
    return None


def bench(launch: Callable[[], None], quantiles: Any) -> list[float]:
    launch()
    return [1.0, 1.0, 1.0]


def guarded(tensor: Any) -> tuple[Any, Any]:
    """A copy of a tensor between two rows of sevens, and what holds all three."""
    around = torch.full((tensor.numel() + 2 * GUARD,), 7.0, dtype=tensor.dtype)
    return around[GUARD:-GUARD].view_as(tensor).copy_(tensor), around


def same(a: Any, b: Any) -> bool:
    """Equal bit by bit: torch compares float8 no other way, and NaN is no reason to complain."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def tolerance(kernel: SuiteKernel, output: Output, dtype: torch.dtype) -> float:
    """By how much of itself a result may be off here, where a GPU may be off by more, or another format."""
    if kernel.name == "fp8_quant":
        return min(output.rtol, 1e-6)  # no corner leaves anything to round
    if dtype == torch.float16 and output.rtol == 2**-7:  # a unit in bfloat16's last place
        return 2**-10
    return output.rtol


def complaint_about(kernel: SuiteKernel, variant: Variant, config: Config, case: Case) -> str | None:
    """What a variant gets wrong: a result, a write beside it, or a write to an input; "refused" where it says so itself."""
    args = kernel.make_inputs(case, SEED, "cpu")
    inputs, outs = args[: -len(kernel.outputs)], kernel.outs(args)
    expected = kernel.reference(*inputs, *outs)
    inside, around = zip(*map(guarded, outs), strict=True)
    before = [arg.clone() if torch.is_tensor(arg) else None for arg in inputs]
    try:
        variant.launch(*inputs, *inside, **config.knobs)
    except InvalidInputError as err:
        return f"refused: {err}" if config != variant.space.default else str(err)
    except Exception as err:
        return f"{type(err).__name__}: {err}"
    for whole in around:
        if not bool((whole[:GUARD].float() == 7.0).all() and (whole[-GUARD:].float() == 7.0).all()):
            return "wrote beside its output"
    if any(old is not None and not same(arg, old) for arg, old in zip(inputs, before, strict=True)):
        return "wrote to an input"
    for output, *pair in zip(kernel.outputs, inside, expected, strict=True):
        # Float8 by way of float32, which holds all of it: torch compares no float8.
        found, wanted = (t.float() if t.dtype.itemsize == 1 else t for t in pair)
        if not torch.allclose(found, wanted, rtol=tolerance(kernel, output, pair[0].dtype), atol=output.atol):
            far = (found - wanted).abs().max()
            return f"{output.name} is off by {far} at most, where it reaches {wanted.abs().max()}"
    return None


def variants_looked_at(kernel: SuiteKernel, count: str) -> dict[str, Any]:
    """As `looked_at`; a config of a variant goes by the variant's name and its own."""
    everywhere, draw = count.startswith("all:"), random.Random(SEED)
    told = {}
    for variant in kernel.variants:
        further = draw.sample(variant.space[1:], min(int(count.removeprefix("all:")), len(variant.space) - 1))
        wanted = [(variant.space.default, case) for case in kernel.corners]
        wanted += [
            (c, case) for c in further for case in (kernel.corners if everywhere else [draw.choice(kernel.corners)])
        ]
        for config, case in wanted:
            told[f"{variant.name} {config} at {case.name}"] = complaint_about(kernel, variant, config, case)
    refused = [where for where, what in told.items() if what and what.startswith("refused: ")]
    wrong = {where: what for where, what in told.items() if what and where not in refused}
    return {"checked": list(told), "refused": refused, "wrong": wrong}


def looked_at(name: str, word: str) -> dict[str, Any]:
    """Where a kernel was looked at, and what was wrong there."""
    name, _, corner = name.partition("@")
    kernel = kernel_of(name)
    if corner:
        kernel = replace(kernel, corners=tuple(case for case in kernel.corners if case.name == corner))
    if isinstance(kernel, SuiteKernel):
        return variants_looked_at(kernel, word)
    everywhere, count, draw = word.startswith("all:"), int(word.removeprefix("all:")), random.Random(SEED)
    drawn = draw.sample(kernel.space[1:], count)
    launches = [
        (str(config), kernel.function, config.knobs, case)
        for config in (kernel.space.default, *drawn)
        for case in kernel.corners
    ]
    if count:  # tuning launches each config several times
        tuned = kernel.tuned(configs=kernel.configs()[:2], budget="all", do_bench=bench)
        launches += [
            ("tuned", tuned, {}, case) for case in (kernel.corners if everywhere else [draw.choice(kernel.corners)])
        ]
    told = {
        f"{title} at {case.name}": complaint(kernel, case, launched, knobs) for title, launched, knobs, case in launches
    }
    return {"checked": list(told), "wrong": {where: what for where, what in told.items() if what}}


if __name__ == "__main__":
    print(json.dumps({name: looked_at(name, sys.argv[1]) for name in sys.argv[2:]}))
