"""Average pooling to a size given in Triton, as adaptive pooling has it: windows differ by one where sizes do not divide."""

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
def average_pool2d(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, planes, height, width, OUT: tl.constexpr, PLANES: tl.constexpr, BLOCK: tl.constexpr
):
    """One window of PLANES planes: its rows one by one, BLOCK columns at a time. There are OUT by OUT windows."""
    i, j = tl.program_id(1) // OUT, tl.program_id(1) % OUT
    top, bottom = i * height // OUT, ((i + 1) * height + OUT - 1) // OUT
    left, right = j * width // OUT, ((j + 1) * width + OUT - 1) // OUT
    plane = tl.program_id(0) * PLANES + tl.arange(0, PLANES)
    base = plane.to(tl.int64)[:, None] * height * width
    total = tl.zeros((PLANES, BLOCK), tl.float32)
    for y in range(top, bottom):
        for start in range(left, right, BLOCK):
            x = (start + tl.arange(0, BLOCK))[None, :]
            mask = (plane < planes)[:, None] & (x < right)
            total += tl.load(x_ptr + base + y * width + x, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(total, 1) / ((bottom - top) * (right - left))
    tl.store(out_ptr + (plane * OUT + i) * OUT + j, mean.to(out_ptr.dtype.element_ty), mask=plane < planes)


SPACE = Space.grid(
    {"PLANES": [4, 16, 64], "BLOCK": [8, 32], "num_warps": [1, 2, 4]},
    default={"PLANES": 16, "BLOCK": 32, "num_warps": 4},
    roles={"PLANES": "tile", "BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    planes, height, width, size = (case.sizes[name] for name in ("planes", "height", "width", "out"))
    inputs = Inputs(case, seed, device, "float16")
    x, out = inputs.normal(planes, height, width), inputs.unwritten(planes, size, size)
    return Call(
        args=(x, out, planes, height, width, size),
        grid=lambda knobs: (triton.cdiv(planes, knobs["PLANES"]), size * size),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, out, *_, size = call.args
    return (torch.nn.functional.adaptive_avg_pool2d(x.float(), size).to(out.dtype),)


def work(call: Call) -> Work:
    x, out = call.args[:2]
    return Work(flops=float(x.numel()), bytes=moved(x, out))


KERNEL = TritonKernel(
    name="average_pool2d",
    function=average_pool2d,
    space=SPACE,
    key=("planes", "height", "width", "OUT"),
    cases=(
        Case(name="head", sizes={"planes": 64 * 512, "height": 14, "width": 14, "out": 7}),
        Case(name="thumbnails", sizes={"planes": 32 * 64, "height": 224, "width": 224, "out": 16}),
        Case(name="odd", sizes={"planes": 1000, "height": 65, "width": 100, "out": 6}, dtype="float32"),
        Case(name="one_window", sizes={"planes": 128 * 1024, "height": 12, "width": 12, "out": 1}, dtype="bfloat16"),
    ),
    corners=(
        Case(name="one", sizes={"planes": 1, "height": 1, "width": 1, "out": 1}),
        Case(name="below_a_block", sizes={"planes": 5, "height": 7, "width": 11, "out": 3}),
        Case(name="over_blocks", sizes={"planes": 67, "height": 2, "width": 70, "out": 2}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-4,
)
