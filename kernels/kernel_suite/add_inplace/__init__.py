"""x <- decay x + y in Triton: a kernel that changes what it reads, so that each timed launch needs its argument put back."""

# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from ..suite import Case
from ..triton_kernel import Call, TritonKernel

DECAY = 0.75


@triton.jit  # type: ignore[untyped-decorator]
def add_inplace(x_ptr, y_ptr, n, decay, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add y to what is left of x."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + at, mask=at < n), tl.load(y_ptr + at, mask=at < n)
    tl.store(x_ptr + at, x * decay + y, mask=at < n)


SPACE = Space.grid(
    {"BLOCK": [128, 512, 1024, 4096, 16384], "num_warps": [1, 2, 4, 8]},
    constraints=[lambda BLOCK, num_warps: 2 <= BLOCK // (32 * num_warps) <= 128],
    default={"BLOCK": 1024, "num_warps": 4},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    random = torch.Generator(device).manual_seed(seed)
    x, y = (torch.randn(case.sizes["n"], generator=random, device=device) for _ in range(2))

    def grid(knobs: Mapping[str, int]) -> tuple[int, ...]:
        return (triton.cdiv(len(x), knobs["BLOCK"]),)

    return Call(args=(x, y, len(x), DECAY), grid=grid, outs=(x,))


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, y, _, decay = call.args
    return (x * decay + y,)


def work(call: Call) -> Work:
    return Work(flops=2.0 * call.outs[0].numel(), bytes=12.0 * call.outs[0].numel())


KERNEL = TritonKernel(
    name="add_inplace",
    function=add_inplace,
    space=SPACE,
    key=("n",),
    cases=(
        Case(name="megabyte", sizes={"n": 2**18}),
        Case(name="odd", sizes={"n": 1_000_003}),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 77}),
        Case(name="over_a_block", sizes={"n": 16385}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    # A product and a sum, or both in one step, which rounds once less: float32's last place.
    rtol=1e-6,
    atol=1e-6,
    restore_value=("x_ptr",),
)
