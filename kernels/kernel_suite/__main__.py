"""What the suite holds: `python -m kernel_suite list [--json]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from forecast_autotune.core.config import Config

from . import (
    Case,
    Kernel,
    SuiteKernel,
    TritonKernel,
    cpp_kernels,
    cuda_kernels,
    small_kernels,
    suite_kernels,
    triton_kernels,
)

CHECKS = {
    "triton": ("interpreter", "sm_80", "sm_90", "sm_100", "gfx942"),
    "cuda": ("emulated", "sm_80", "sm_90"),
    "c++": ("native",),
}
UNKNOWN_TO = {"fp8_quant": ("sm_80",)}  # which has no float8 e4m3


def described(kernel: Kernel | TritonKernel | SuiteKernel) -> dict[str, Any]:
    """One kernel as the list has it; one that is a single function is its own only variant.

    Checks: `reference`, a definition in torch to compare results with; `corners`, sizes with a wrong edge to catch;
    `interpreter`, it runs on a CPU in Triton's; `emulated`, it runs on a CPU compiled as C++; `native`, it runs there as
    it is; `sm_90` and the like, a sample of its configs is compiled for that without a GPU.
    """
    if isinstance(kernel, SuiteKernel):
        spaces = {variant.name: list(variant.space) for variant in kernel.variants}
    elif isinstance(kernel, Kernel):
        spaces = kernel.variants
    else:
        spaces = {kernel.name: list(kernel.space)}
    language = kernel.language if isinstance(kernel, Kernel) else "triton"
    return {
        "name": kernel.name,
        "language": language,
        "variants": [
            {"name": name, "configs": len(configs), "knobs": _varied(configs), "default": dict(configs[0].knobs)}
            for name, configs in spaces.items()
        ],
        "configs": sum(map(len, spaces.values())),
        "cases": {case.name: _sizes(case) for case in kernel.cases},
        "corners": {case.name: _sizes(case) for case in kernel.corners},
        "checks": ["reference", "corners", *(c for c in CHECKS[language] if c not in UNKNOWN_TO.get(kernel.name, ()))],
    }


def _sizes(case: Case) -> dict[str, int | str]:
    """The sizes of a case, and its type if it names one."""
    return {**case.sizes, **({} if case.dtype is None else {"dtype": case.dtype})}


def _varied(configs: Sequence[Config]) -> list[str]:
    """The knobs that a variant has a choice of."""
    return [name for name in configs[0].knobs if len({config[name] for config in configs}) > 1]


def listed() -> list[Kernel | TritonKernel | SuiteKernel]:
    """Every kernel once, with all its variants."""
    several = list(suite_kernels())
    names = {kernel.name for kernel in several}
    single = [kernel for kernel in triton_kernels() if kernel.name not in names]
    return [*several, *single, *small_kernels(), *cuda_kernels(), *cpp_kernels()]


def lines(descriptions: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each kernel, and one for each variant where there are several."""
    for kernel in descriptions:
        cases = ", ".join(kernel["cases"])
        yield f"{kernel['name']:<24} {kernel['configs']:>5} configs   {cases}   [{', '.join(kernel['checks'])}]"
        if len(kernel["variants"]) > 1:
            for variant in kernel["variants"]:
                yield f"  {variant['name']:<22} {variant['configs']:>5}   {', '.join(variant['knobs'])}"


def main(words: Sequence[str] | None = None) -> None:
    """Print every kernel with its variants, the sizes of their spaces, its workloads and the checks there are."""
    parser = argparse.ArgumentParser(prog="python -m kernel_suite", description=__doc__)
    listing = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("list", help="every kernel there is")
    listing.add_argument("--json", action="store_true", help="for programs")
    given = parser.parse_args(words)
    descriptions = [described(kernel) for kernel in listed()]
    print(json.dumps(descriptions, indent=1) if given.json else "\n".join(lines(descriptions)))


if __name__ == "__main__":
    main()
