"""Weights to 4 bits in Triton, two to a byte, each group along a row by its least and its largest."""

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


@triton.jit
def nibble(value, least, scale):  # type: ignore[no-untyped-def]
    """The step nearest to a value, from 0 to 15."""
    return tl.minimum(tl.maximum((value - least) / scale + 0.5, 0.0), 15.0).to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def int4_pack(  # type: ignore[no-untyped-def]
    w_ptr, packed_ptr, scale_ptr, least_ptr, groups, GROUP: tl.constexpr, GROUPS: tl.constexpr
):
    """GROUPS groups, wherever they lie: rows are whole groups long. The even element is in a byte's lower half."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    inside = (group < groups)[:, None]
    pair = tl.arange(0, GROUP // 2)[None, :]
    at = group[:, None] * GROUP + 2 * pair
    even = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(w_ptr + at + 1, mask=inside, other=0.0).to(tl.float32)
    least = tl.min(tl.minimum(even, odd), 1)
    scale = tl.maximum(tl.max(tl.maximum(even, odd), 1) - least, 1e-6) / 15.0
    low, high = nibble(even, least[:, None], scale[:, None]), nibble(odd, least[:, None], scale[:, None])
    tl.store(packed_ptr + group[:, None] * (GROUP // 2) + pair, low | (high << 4), mask=inside)
    tl.store(scale_ptr + group, scale, mask=group < groups)
    tl.store(least_ptr + group, least, mask=group < groups)


SPACE = Space.grid(
    {"GROUPS": [1, 4, 8, 16, 32], "num_warps": [1, 2, 4, 8]},
    default={"GROUPS": 8, "num_warps": 4},
    roles={"GROUPS": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Steps of a 64th with 0 and 15 in each group, so that every quotient is whole."""
    rows, columns, group = (case.sizes[name] for name in ("rows", "columns", "group"))
    inputs = Inputs(case, seed, device, "bfloat16")
    groups = rows * columns // group
    steps = inputs.integers(16, groups, group, dtype=torch.int32)
    steps[:, 0], steps[:, 1] = 0, 15
    w = ((steps - inputs.integers(16, groups, 1, dtype=torch.int32)) / 64).to(inputs.dtype).view(rows, columns)
    packed = torch.zeros(rows, columns // 2, dtype=torch.uint8, device=device)
    scale, least = (inputs.unwritten(groups, dtype=torch.float32) for _ in range(2))
    return Call(
        args=(w, packed, scale, least, groups, group),
        grid=lambda knobs: (triton.cdiv(groups, knobs["GROUPS"]),),
        outs=(packed, scale, least),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    w, packed, _, _, groups, group = call.args
    value = w.double().view(groups, group)
    least, largest = value.aminmax(dim=1)
    scale = (largest - least).clamp_min(1e-6) / 15
    steps = ((value - least[:, None]) / scale[:, None]).round().to(torch.uint8)
    return (steps[:, ::2] | steps[:, 1::2] << 4).view_as(packed), scale.float(), least.float()


def work(call: Call) -> Work:
    """Two comparisons, a difference, a division, a sum and two limits for each weight."""
    w, packed, scale, least = call.args[:4]
    return Work(flops=7.0 * w.numel(), bytes=moved(w, packed, scale, least))


KERNEL = TritonKernel(
    name="int4_pack",
    function=int4_pack,
    space=SPACE,
    key=("groups", "GROUP"),
    cases=(
        Case(name="layer", sizes={"rows": 14336, "columns": 4096, "group": 128}),
        Case(name="fine", sizes={"rows": 4096, "columns": 4096, "group": 32}, dtype="float16"),
        Case(name="large", sizes={"rows": 28672, "columns": 8192, "group": 128}),
        Case(name="odd", sizes={"rows": 1001, "columns": 7 * 64, "group": 64}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 16, "group": 16}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 96, "group": 32}, dtype="float16"),
        Case(name="over_a_block", sizes={"rows": 5, "columns": 14 * 16, "group": 16}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-6,
    atol=0.0,
)
