"""The reports' timers on a GPU: both see what a kernel takes, and the order of configs that are far apart."""

from __future__ import annotations

import statistics
from functools import partial

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from kernel_suite import Case, add_inplace  # noqa: E402

from calibration.evaluate.side_by_side import cold_times_us, kernel_times_us  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def test_events_and_the_gpus_clock_agree_on_times_and_on_the_slower_config() -> None:
    kernel = add_inplace.KERNEL
    call = kernel.make_call(Case(name="large", sizes={"n": 2**27}), 0, "cuda")
    (out,) = call.outs
    saved = out.clone()
    launches = [
        partial(call.launch, kernel.function, BLOCK=block, num_warps=warps) for block, warps in ((1024, 4), (32, 1))
    ]
    by_events = [statistics.median(samples or [0.0]) for samples in cold_times_us(launches, rounds=10)]
    by_clock = [
        statistics.median(s) for s in kernel_times_us(kernel.name, launches, lambda: out.copy_(saved), rounds=10)
    ]
    assert by_events == pytest.approx(by_clock, rel=0.1)
    assert by_clock[0] < by_clock[1]
