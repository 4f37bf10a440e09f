"""The gradient of cross entropy from logits and each row's log of sums, which the forward pass kept."""

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

IGNORED = -100


@triton.jit  # type: ignore[untyped-decorator]
def cross_entropy_backward(  # type: ignore[no-untyped-def]
    dlogits_ptr, logits_ptr, lse_ptr, label_ptr, dloss_ptr, stride, n_cols, ignored,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """A part of one row: softmax less 1 at the label, times the loss's gradient, and 0 where the label is ignored."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    label = tl.load(label_ptr + row)
    if label != ignored:  # noqa: SIM108  # a branch, as kernels have it
        dloss = tl.load(dloss_ptr + row)
    else:
        dloss = 0.0
    logits = tl.load(logits_ptr + row * stride + cols, mask=mask, other=-float("inf")).to(tl.float32)
    probability = tl.exp(logits - tl.load(lse_ptr + row))
    dlogits = dloss * tl.where(cols == label, probability - 1.0, probability)
    tl.store(dlogits_ptr + row * stride + cols, dlogits, mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Every third label is ignored."""
    inputs, rows, columns = Inputs(case, seed, device), case.sizes["rows"], case.sizes["columns"]
    logits, dlogits = inputs.normal(rows, columns).mul_(3), inputs.unwritten(rows, columns)
    label = inputs.integers(columns, rows)
    label[2::3] = IGNORED
    lse, dloss = logits.float().logsumexp(1), inputs.uniform(rows, dtype=torch.float32)
    return Call(
        args=(dlogits, logits, lse, label, dloss, logits.stride(0), columns, IGNORED),
        grid=lambda meta: (rows, triton.cdiv(columns, meta["BLOCK_SIZE"])),
        outs=(dlogits,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    dlogits, logits, _, label, dloss, *_ = call.args
    gradient = torch.softmax(logits.double(), dim=1)
    kept = label != IGNORED
    gradient[kept, label[kept]] -= 1
    return ((gradient * (dloss * kept).double()[:, None]).to(dlogits.dtype),)


def work(call: Call) -> Work:
    return Work(flops=4.0 * call.outs[0].numel(), bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="cross_entropy_backward",
    function=cross_entropy_backward,
    space=Space.grid(
        {"BLOCK_SIZE": [512, 1024, 2048, 4096], "num_warps": [4, 8, 16]},
        default={"BLOCK_SIZE": 2048, "num_warps": 8},
        roles={"BLOCK_SIZE": "tile", "num_warps": "threads"},
    ),
    key=("n_cols",),
    cases=(
        Case(name="vocabulary", sizes={"rows": 2048, "columns": 128256}, dtype="bfloat16"),
        Case(name="small_vocabulary", sizes={"rows": 4096, "columns": 32000}),
        Case(name="classes", sizes={"rows": 16384, "columns": 1000}, dtype="float32"),
        Case(name="few_rows", sizes={"rows": 16, "columns": 50257}),
        Case(name="odd", sizes={"rows": 1111, "columns": 7777}),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}, dtype="float32"),
        Case(name="below_a_block", sizes={"rows": 4, "columns": 37}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"rows": 3, "columns": 4099}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-5,
)
