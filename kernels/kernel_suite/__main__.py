"""What the suite holds: `python -m kernel_suite list [--json]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from . import Kernel, SuiteKernel, TritonKernel, kernels, suite_kernels, triton_kernels


def described(kernel: Kernel | TritonKernel | SuiteKernel) -> dict[str, Any]:
    """One kernel as the list has it; one that is a single function is its own only variant.

    Checks: `reference`, a definition in torch to compare results with; `corners`, sizes with a wrong edge to catch;
    `interpreter`, it runs on a CPU in Triton's; `hopper`, a sample is compiled for sm_90 without a GPU; `native`, it
    runs on a CPU as it is.
    """
    if isinstance(kernel, SuiteKernel):
        spaces = {variant.name: variant.space for variant in kernel.variants}
    else:
        spaces = {kernel.name: kernel.space}
    own = ("native",) if _is_cpp(kernel) else () if isinstance(kernel, Kernel) else ("interpreter", "hopper")
    return {
        "name": kernel.name,
        "variants": [
            {"name": name, "configs": len(space), "knobs": list(space.knobs), "default": dict(space.default.knobs)}
            for name, space in spaces.items()
        ],
        "configs": sum(map(len, spaces.values())),
        "cases": {case.name: dict(case.sizes) for case in kernel.cases},
        "corners": {case.name: dict(case.sizes) for case in kernel.corners},
        "checks": ["reference", "corners", *own],
    }


def _is_cpp(kernel: object) -> bool:
    return isinstance(kernel, Kernel) and kernel.sources["kernel"].suffix == ".cpp"


def lines(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each kernel, and one for each variant where there are several."""
    for kernel in found:
        cases = ", ".join(kernel["cases"])
        yield f"{kernel['name']:<16} {kernel['configs']:>5} configs   {cases}   [{', '.join(kernel['checks'])}]"
        if len(kernel["variants"]) > 1:
            for variant in kernel["variants"]:
                yield f"  {variant['name']:<14} {variant['configs']:>5}   {', '.join(variant['knobs'])}"


def main(words: Sequence[str] | None = None) -> None:
    """Print every kernel with its variants, the sizes of their spaces, its workloads and the checks there are."""
    parser = argparse.ArgumentParser(prog="python -m kernel_suite", description=__doc__)
    listing = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("list", help="every kernel there is")
    listing.add_argument("--json", action="store_true", help="for programs")
    given = parser.parse_args(words)
    suite: list[Kernel | TritonKernel | SuiteKernel] = [*kernels(), *triton_kernels(), *suite_kernels()]
    found = [described(kernel) for kernel in suite]
    print(json.dumps(found, indent=1) if given.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
