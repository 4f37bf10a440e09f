"""Mean over the tokens of each sequence in Triton, packed one behind the other with offsets, or all of one length."""

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
def sequence_mean(  # type: ignore[no-untyped-def]
    x_ptr, offsets_ptr, out_ptr, T, D, VARLEN: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):
    """BD channels of one sequence. A sequence without tokens has a mean of 0."""
    sequence = tl.program_id(1)
    if VARLEN:
        begin = tl.load(offsets_ptr + sequence).to(tl.int32)
        end = tl.load(offsets_ptr + sequence + 1).to(tl.int32)
    else:
        begin = sequence * T
        end = begin + T
    channel = tl.program_id(0) * BD + tl.arange(0, BD)
    total = tl.zeros((BT, BD), tl.float32)
    for start in range(begin, end, BT):
        token = start + tl.arange(0, BT)
        mask = (token < end)[:, None] & (channel < D)[None, :]
        total += tl.load(x_ptr + token.to(tl.int64)[:, None] * D + channel[None, :], mask=mask, other=0.0).to(
            tl.float32
        )
    mean = tl.sum(total, 0) / tl.maximum(end - begin, 1)
    tl.store(out_ptr + sequence * D + channel, mean.to(out_ptr.dtype.element_ty), mask=channel < D)


SPACE = Space.grid(
    {"BT": [8, 16, 32], "BD": [64, 128], "num_warps": [2, 4, 8]},
    default={"BT": 16, "BD": 128, "num_warps": 4},
    roles={"BT": "tile", "BD": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Of varied lengths, from nothing to twice T, where `varied`."""
    batch, length, channels, varied = (case.sizes.get(name, 0) for name in ("B", "T", "D", "varied"))
    inputs = Inputs(case, seed, device, "bfloat16")
    lengths = inputs.integers(2 * length + 1, batch) if varied else torch.full((batch,), length, device=device)
    if varied:  # as many tokens in all as without, but for what the longest can not take
        lengths[-1] = 0
        lengths[-1] = (batch * length - lengths.sum()).clamp_min(0)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    x, out = (
        inputs.normal(2 * batch * length if varied else batch * length, channels),
        inputs.unwritten(batch, channels),
    )
    return Call(
        args=(x, offsets if varied else None, out, length, channels, bool(varied)),
        grid=lambda knobs: (triton.cdiv(channels, knobs["BD"]), batch),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, offsets, out, length, _, varied = call.args
    if not varied:
        return (x.float().unflatten(0, (-1, length)).mean(1).to(out.dtype),)
    lengths = offsets.long().diff()
    owner = torch.arange(len(out), device=x.device).repeat_interleave(lengths)
    total = torch.zeros(out.shape, dtype=torch.float64, device=x.device).index_add_(0, owner, x[: len(owner)].double())
    return ((total / lengths.clamp_min(1)[:, None]).to(out.dtype),)


def work(call: Call) -> Work:
    """As many tokens as there are on average."""
    x, _, out, length, channels, _ = call.args
    read = len(out) * length * channels
    return Work(flops=float(read), bytes=float(read * x.element_size()) + moved(out))


KERNEL = TritonKernel(
    name="sequence_mean",
    function=sequence_mean,
    space=SPACE,
    key=("T", "D", "VARLEN"),
    cases=(
        Case(name="sentences", sizes={"B": 1024, "T": 128, "D": 768, "varied": 1}),
        Case(name="documents", sizes={"B": 64, "T": 4096, "D": 1024}),
        Case(name="long_documents", sizes={"B": 8, "T": 8192, "D": 4096, "varied": 1}, dtype="float16"),
        Case(name="odd", sizes={"B": 33, "T": 511, "D": 1000}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "D": 1}),
        Case(name="varied", sizes={"B": 5, "T": 13, "D": 37, "varied": 1}, dtype="float16"),
        Case(name="over_a_block", sizes={"B": 2, "T": 35, "D": 131}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,
    atol=1e-4,
)
