"""Record a whole space of a suite kernel as a trace: `python -m calibration.record gemm few_rows FILE`.

Every variant is built and timed through the front door with budget `all`; what the store holds already is not timed again,
so a recording that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from kernel_suite import kernels

from forecast_autotune.core.job import Recording
from forecast_autotune.store.trace import write_trace


def main() -> None:
    """Tune one case exhaustively and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", choices=[k.name for k in kernels()])
    parser.add_argument("case", help="a size by its name in the kernel's folder")
    parser.add_argument("file", type=Path, help="the trace to write; compressed when it ends in .gz")
    given = parser.parse_args()
    kernel = next(k for k in kernels() if k.name == given.kernel)
    case = next((c for c in kernel.cases if c.name == given.case), None)
    if case is None:
        parser.error(f"no case {given.case!r}: {kernel.name} has {', '.join(c.name for c in kernel.cases)}")
    os.environ["FORECAST_AUTOTUNE_BUDGET"] = "all"
    inputs = kernel.make_inputs(case, 0)
    function = kernel.tuned()
    function(*inputs)
    job = function.tuned.job(inputs)  # type: ignore[attr-defined]
    outcomes = function.tuned.outcomes(inputs)  # type: ignore[attr-defined]
    write_trace(
        Recording(
            workload=job.workload,
            hardware=job.hardware,
            toolchain=job.toolchain,
            default=job.space.default,
            outcomes={c: outcomes[c] for c in job.space if c in outcomes},
        ),
        given.file,
    )
    if missing := [c for c in job.space if c not in outcomes]:
        raise SystemExit(f"{given.file}: {len(missing)} configs are missing, such as {missing[0]}; run it again")
    print(f"{given.file}: {len(outcomes)} of {len(job.space)} variants of {job.workload} on {job.hardware}")


if __name__ == "__main__":
    main()
