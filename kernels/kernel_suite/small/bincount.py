"""How often each small number occurs, in Triton: a histogram in each program, added up with atomics."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel
from . import Inputs, moved


@triton.jit  # type: ignore[untyped-decorator]
def bincount(  # type: ignore[no-untyped-def]
    x_ptr, counts_ptr, n, bins, programs, BINS: tl.constexpr, BLOCK: tl.constexpr
):
    """Every `programs`-th block of BLOCK numbers. What lies past the end counts in a bin of its own, the last."""
    lane = tl.arange(0, BLOCK)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(tl.program_id(0) * BLOCK, n, programs * BLOCK):
        value = tl.load(x_ptr + start + lane, mask=start + lane < n, other=BINS - 1).to(tl.int32)
        counts += tl.histogram(value, BINS)
    number = tl.arange(0, BINS)
    tl.atomic_add(counts_ptr + number, counts, mask=(number < bins) & (counts > 0))


SPACE = Space.grid(
    {"BLOCK": [512, 1024, 2048, 4096], "num_warps": [4, 8]},
    default={"BLOCK": 1024, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Numbers of a byte, or of as many bits as the type has; counts begin with zeros. Fewer bins than the power of two."""
    n, bins, programs = (case.sizes[name] for name in ("n", "bins", "programs"))
    inputs = Inputs(case, seed, device, "uint8")
    x, counts = inputs.integers(bins, n, dtype=inputs.dtype), torch.zeros(bins, dtype=torch.int32, device=device)
    return Call(
        args=(x, counts, n, bins, programs, triton.next_power_of_2(bins + 1)),
        grid=lambda knobs: (min(programs, triton.cdiv(n, knobs["BLOCK"])),),
        outs=(counts,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, counts, _, bins = call.args[:4]
    return (counts + torch.bincount(x.long(), minlength=bins).int(),)


def work(call: Call) -> Work:
    x, counts = call.args[:2]
    return Work(flops=float(x.numel()), bytes=moved(x, counts))


KERNEL = TritonKernel(
    name="bincount",
    function=bincount,
    space=SPACE,
    key=("n", "bins"),
    cases=(
        Case(name="image", sizes={"n": 3840 * 2160 * 3, "bins": 255, "programs": 528}),
        Case(name="labels", sizes={"n": 1 << 24, "bins": 100, "programs": 528}, dtype="int64"),
        Case(name="small", sizes={"n": 100_000, "bins": 63, "programs": 132}, dtype="int32"),
        Case(name="odd", sizes={"n": 30_000_001, "bins": 1000, "programs": 264}, dtype="int32"),
        Case(name="large", sizes={"n": 1 << 28, "bins": 200, "programs": 1056}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1, "bins": 1, "programs": 1}),
        Case(name="below_a_block", sizes={"n": 77, "bins": 7, "programs": 2}, dtype="int32"),
        Case(name="over_blocks", sizes={"n": 9001, "bins": 100, "programs": 3}, dtype="int64"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
    restore_value=("counts_ptr",),
)
