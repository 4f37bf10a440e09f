"""Tune a real kernel and say what happened: `python -m kernel_suite.demo`."""

from __future__ import annotations

import os
import time

from forecast_autotune.settings import Settings

from . import Case, Kernel, kernels

BUDGET = "8"
CASES = ("square", "few_rows", "long_sum")


def main() -> None:
    """Tune the GEMM for three shapes; a second run decides from the store."""
    os.environ.setdefault("FORECAST_AUTOTUNE_BUDGET", BUDGET)
    settings = Settings.from_environment()
    gemm = next(k for k in kernels() if k.name == "gemm")
    print(f"A float32 GEMM in C++, {len(gemm.space)} variants, budget {settings.budget} for each shape.")
    if not (settings.dir / "builds" / "kernel_suite_gemm").exists():
        print("The first build compiles torch's headers once, about half a minute; later ones take a second.")
    tuned = gemm.tuned()
    for name in CASES:
        tune(gemm, tuned, next(c for c in gemm.cases if c.name == name))
    print(f"\nKept in {settings.dir}. 'forecast-autotune list' and 'show' tell more, 'clear' forgets.")


def tune(kernel: Kernel, tuned: object, case: Case) -> None:
    """Call the kernel at one size for the first time, and print what that led to."""
    import torch

    inputs = kernel.make_inputs(case, 0)
    print(f"\n{' x '.join(f'{dim}={size}' for dim, size in case.sizes.items())}", flush=True)
    began_at, began = time.time(), time.perf_counter()
    tuned(*inputs)  # type: ignore[operator]
    first_call_s = time.perf_counter() - began
    decision = list(tuned.decisions.values())[-1]  # type: ignore[attr-defined]
    recalled = decision.decided_at < began_at
    print(f"  default   {_time(decision.default_us)}   {kernel.space.default}")
    print(f"  chosen    {_time(decision.config_us)}   {decision.config}")
    print(f"  why       {decision.reason}")
    print(
        f"  effort    {decision.forecast} variants forecast, {decision.compiled} built, {decision.measured} timed, "
        f"{decision.spent_s:.1f} s{' in an earlier run' if recalled else ''}"
    )
    print(f"  decided   {'from the store' if recalled else 'now'}; this first call took {first_call_s * 1e3:.0f} ms")
    torch.testing.assert_close(inputs[-1], kernel.reference(*inputs), rtol=kernel.rtol, atol=kernel.atol)


def _time(us: float | None) -> str:
    return "   not timed" if us is None else f"{us:9.1f} us"


if __name__ == "__main__":
    main()
