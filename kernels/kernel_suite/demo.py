"""Tune real kernels and say what happened: `python -m kernel_suite.demo`."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from forecast_autotune.settings import Settings

from . import Case, Kernel, kernels

BUDGET = "8"
CASES = ("square", "few_rows", "long_sum")


def main() -> None:
    """Tune a C++ GEMM for three shapes, then a Triton matrix product; a second run decides from the store."""
    os.environ.setdefault("FORECAST_AUTOTUNE_BUDGET", BUDGET)
    settings = Settings.from_environment()
    gemm = next(k for k in kernels() if k.name == "gemm")
    print(f"A float32 GEMM in C++, {len(gemm.space)} variants, budget {settings.budget} for each shape.")
    if not (settings.dir / "builds" / "kernel_suite_gemm").exists():
        print("The first build compiles torch's headers once, about half a minute; later ones take a second.")
    tuned = gemm.tuned()
    for name in CASES:
        tune_gemm(gemm, tuned, next(c for c in gemm.cases if c.name == name))
    tune_matmul(settings)
    print(f"\nKept in {settings.dir}. 'forecast-autotune list' and 'show' tell more, 'clear' forgets.")


def tune_gemm(kernel: Kernel, tuned: Any, case: Case) -> None:
    """Call the C++ kernel at one size for the first time, check its result, and print what that led to."""
    import torch

    inputs = kernel.make_inputs(case, 0)
    print(f"\n{' x '.join(f'{dim}={size}' for dim, size in case.sizes.items())}", flush=True)
    with printed_decision(tuned.decisions, str(kernel.space.default)):
        tuned(*inputs)
    torch.testing.assert_close(inputs[-1], kernel.reference(*inputs), rtol=kernel.rtol, atol=kernel.atol)


def tune_matmul(settings: Settings) -> None:
    """Tune the Triton kernel: on the GPU here, or without one on the rehearsal driver, which is said."""
    import torch

    from forecast_autotune import autotune, rehearsal
    from forecast_autotune.evaluation.traces import read_trace

    from . import matmul

    configs = matmul.space()
    kernel = autotune(matmul.triton_configs(configs), key=matmul.KEY)(matmul.matmul)
    args, grid = matmul.arguments()
    print(
        f"\nA float16 matrix product in Triton, {matmul.SIZE} cubed, {len(configs)} configs, budget {settings.budget}."
    )
    device: Any = contextlib.nullcontext()
    if not torch.cuda.is_available():
        print(
            "There is no GPU here, so this is a rehearsal: configs are compiled and refused for real, for an H200, and a"
        )
        print("launch computes nothing and lasts as long as it was measured to on an H200.", flush=True)
        device = rehearsal("H200", {"matmul": read_trace(matmul.RECORDING)})
    with device, printed_decision(kernel.decisions, str(configs[0])):
        kernel[grid](*args)


@contextlib.contextmanager
def printed_decision(decisions: dict[Any, Any], default: str) -> Any:
    """Time what is done within, a first call, and print the decision it made or found."""
    began_at, began = time.time(), time.perf_counter()
    yield
    first_call_s = time.perf_counter() - began
    decision = list(decisions.values())[-1]
    recalled = decision.decided_at < began_at
    print(f"  default   {_time(decision.default_us)}   {default}")
    print(f"  chosen    {_time(decision.config_us)}   {decision.config}   {decision.speedup or 1:.2f}x")
    print(f"  why       {decision.reason}")
    print(
        f"  effort    {decision.forecast} forecast, {decision.compiled} built, {decision.measured} timed, "
        f"{decision.spent_s:.1f} s{' in an earlier run' if recalled else ''}"
    )
    print(f"  decided   {'from the store' if recalled else 'now'}; this first call took {first_call_s * 1e3:.0f} ms")


def _time(us: float | None) -> str:
    return "   not timed" if us is None else f"{us:9.1f} us"


if __name__ == "__main__":
    main()
