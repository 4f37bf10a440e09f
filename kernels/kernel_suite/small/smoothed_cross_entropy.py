"""Cross-entropy with label smoothing in Triton, one pass over the logits; rows of an ignored label count nothing."""

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
def smoothed_cross_entropy(  # type: ignore[no-untyped-def]
    logits_ptr, labels_ptr, loss_ptr, lse_ptr, columns, stride, smoothing, ignored, BLOCK: tl.constexpr
):
    """One row: the logarithm of the sum of exponentials, and the sum of the logits themselves."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels_ptr + row)
    if label == ignored:
        tl.store(loss_ptr + row, 0.0)
        tl.store(lse_ptr + row, 0.0)
        return
    lane = tl.arange(0, BLOCK)
    high = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    logits = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        mask = start + lane < columns
        value = tl.load(logits_ptr + row * stride + start + lane, mask=mask, other=-1e30).to(tl.float32)
        higher = tl.maximum(high, value)
        total = total * tl.exp(high - higher) + tl.exp(value - higher)
        high = higher
        logits += tl.where(mask, value, 0.0)
    highest = tl.max(high, 0)
    lse = highest + tl.log(tl.sum(total * tl.exp(high - highest), 0))
    right = tl.load(logits_ptr + row * stride + label).to(tl.float32)
    mean = tl.sum(logits, 0) / columns
    tl.store(loss_ptr + row, lse - (1.0 - smoothing) * right - smoothing * mean)
    tl.store(lse_ptr + row, lse)


SPACE = Space.grid(
    {"BLOCK": [1024, 2048, 4096, 8192], "num_warps": [4, 8, 16]},
    default={"BLOCK": 4096, "num_warps": 8},
    roles={"BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """The second row of every three is ignored where `ignored`."""
    rows, columns = case.sizes["rows"], case.sizes["columns"]
    inputs = Inputs(case, seed, device, "bfloat16")
    logits, labels = inputs.normal(rows, columns).mul_(3), inputs.integers(columns, rows)
    if case.sizes.get("ignored"):
        labels[1::3] = -100
    loss, lse = (inputs.unwritten(rows, dtype=torch.float32) for _ in range(2))
    return Call(
        args=(logits, labels, loss, lse, columns, logits.stride(0), 0.1, -100),
        grid=lambda _: (rows,),
        outs=(loss, lse),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    logits, labels, *_, smoothing, ignored = call.args
    kept = labels != ignored
    lse = torch.cat([part.double().logsumexp(1) for part in logits.split(512)])
    right = logits.gather(1, labels.clamp_min(0)[:, None])[:, 0].double()
    mean = logits.mean(1, dtype=torch.float64)
    loss = lse - (1 - smoothing) * right - smoothing * mean
    return torch.where(kept, loss, 0.0).float(), torch.where(kept, lse, 0.0).float()


def work(call: Call) -> Work:
    """Two exponentials, two differences, a product, two sums and a comparison; what is ignored too."""
    logits, labels, loss, lse = call.args[:4]
    return Work(flops=8.0 * logits.numel(), bytes=moved(logits, labels, loss, lse))


KERNEL = TritonKernel(
    name="smoothed_cross_entropy",
    function=smoothed_cross_entropy,
    space=SPACE,
    key=("columns",),
    cases=(
        Case(name="translation", sizes={"rows": 8192, "columns": 32000}),
        Case(name="vocabulary", sizes={"rows": 4096, "columns": 128256}),
        Case(name="classes", sizes={"rows": 65536, "columns": 1000}, dtype="float32"),
        Case(name="odd", sizes={"rows": 2001, "columns": 50257, "ignored": 1}, dtype="float16"),
    ),
    corners=(
        Case(name="one", sizes={"rows": 1, "columns": 1}),
        Case(name="below_a_block", sizes={"rows": 5, "columns": 77, "ignored": 1}, dtype="float16"),
        Case(name="over_blocks", sizes={"rows": 2, "columns": 8201}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-4,
    atol=1e-4,
)
