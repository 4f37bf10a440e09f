"""Divergence of a student's distribution from a teacher's in Triton, from the logits of both, row by row in one pass."""

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
def kl_divergence(  # type: ignore[no-untyped-def]
    student_ptr, teacher_ptr, loss_ptr, columns, student_stride, teacher_stride, inverse_temperature,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One row. Totals are kept relative to the largest logit so far; a larger one scales them down."""
    row = tl.program_id(0).to(tl.int64)
    student_ptr += row * student_stride
    teacher_ptr += row * teacher_stride
    student_high, teacher_high = -1e30, -1e30
    student_total, teacher_total, apart = 0.0, 0.0, 0.0
    for start in range(0, columns, BLOCK_SIZE):
        column = start + tl.arange(0, BLOCK_SIZE)
        mask = column < columns
        student = tl.load(student_ptr + column, mask=mask, other=-1e30).to(tl.float32) * inverse_temperature
        teacher = tl.load(teacher_ptr + column, mask=mask, other=-1e30).to(tl.float32) * inverse_temperature
        higher = tl.maximum(student_high, tl.max(student, 0))
        student_total = student_total * tl.exp(student_high - higher) + tl.sum(tl.exp(student - higher), 0)
        student_high = higher
        higher = tl.maximum(teacher_high, tl.max(teacher, 0))
        power = tl.exp(teacher - higher)
        shrink = tl.exp(teacher_high - higher)
        teacher_total = teacher_total * shrink + tl.sum(power, 0)
        apart = apart * shrink + tl.sum(tl.where(mask, power * (teacher - student), 0.0), 0)
        teacher_high = higher
    student_lse = student_high + tl.log(student_total)
    teacher_lse = teacher_high + tl.log(teacher_total)
    tl.store(loss_ptr + row, apart / teacher_total + student_lse - teacher_lse)


SPACE = Space.grid(
    {"BLOCK_SIZE": [1024, 2048, 4096, 8192], "num_warps": [4, 8, 16]},
    default={"BLOCK_SIZE": 4096, "num_warps": 8},
    roles={"BLOCK_SIZE": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "bfloat16")
    student, teacher = (inputs.normal(rows, columns).mul_(3) for _ in range(2))
    loss = inputs.unwritten(rows, dtype=torch.float32)
    return Call(
        args=(student, teacher, loss, columns, student.stride(0), teacher.stride(0), 0.5),
        grid=lambda _: (rows,),
        outs=(loss,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    """A few rows at a time: in double precision a vocabulary of them is large."""
    student, teacher, *_, cooled = call.args
    losses = []
    for a, b in zip(student.split(512), teacher.split(512), strict=True):
        wrong, right = ((logits.double() * cooled).log_softmax(1) for logits in (a, b))
        losses.append((right.exp() * (right - wrong)).sum(1).float())
    return (torch.cat(losses),)


def work(call: Call) -> Work:
    """Two exponentials, two scalings, three differences, a product, three sums and two comparisons."""
    student, teacher, loss = call.args[:3]
    return Work(flops=13.0 * student.numel(), bytes=moved(student, teacher, loss))


KERNEL = TritonKernel(
    name="kl_divergence",
    function=kl_divergence,
    space=SPACE,
    key=("columns",),
    cases=(
        Case(name="vocabulary", sizes={"rows": 2048, "columns": 128256}),
        Case(name="small_vocabulary", sizes={"rows": 8192, "columns": 32000}, dtype="float16"),
        Case(name="classes", sizes={"rows": 65536, "columns": 1000}, dtype="float32"),
        Case(name="odd", sizes={"rows": 1001, "columns": 50257}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 3, "columns": 77}, dtype="float16"),
        Case(name="over_blocks", sizes={"rows": 2, "columns": 8201}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=1e-4,
)
