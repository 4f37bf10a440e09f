"""Cumulative sum within chunks of time in Triton, as linear attention's gates need it: forwards or from the end."""

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
def chunk_cumsum(  # type: ignore[no-untyped-def]
    g_ptr, out_ptr, T, H, CHUNK: tl.constexpr, REVERSE: tl.constexpr, HEADS: tl.constexpr
):
    """A chunk of HEADS heads, which lie side by side, to a program."""
    time = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)[:, None]
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[None, :]
    at = (tl.program_id(2).to(tl.int64) * T + time) * H + head
    inside = (time < T) & (head < H)
    gate = tl.load(g_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, tl.cumsum(gate, 0, reverse=REVERSE), mask=inside)


SPACE = Space.grid(
    {"HEADS": [1, 4, 8, 16], "num_warps": [1, 2, 4, 8]},
    default={"HEADS": 8, "num_warps": 4},
    roles={"HEADS": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Logarithms of gates in bfloat16, a batch of T times H."""
    batch, length, heads, chunk = (case.sizes[name] for name in ("B", "T", "H", "chunk"))
    inputs = Inputs(case, seed, device, "bfloat16")
    gate = inputs.uniform(batch, length, heads).mul_(-0.2)
    out = inputs.unwritten(*gate.shape, dtype=torch.float32)
    return Call(
        args=(gate, out, length, heads, chunk, bool(case.sizes.get("reverse"))),
        grid=lambda knobs: (triton.cdiv(length, chunk), triton.cdiv(heads, knobs["HEADS"]), batch),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    gate, _, length, _, chunk, reverse = call.args
    padded = torch.nn.functional.pad(gate.double(), (0, 0, 0, -length % chunk)).unflatten(1, (-1, chunk))
    total = padded.flip(2).cumsum(2).flip(2) if reverse else padded.cumsum(2)
    return (total.flatten(1, 2)[:, :length].float(),)


def work(call: Call) -> Work:
    gate, out = call.args[:2]
    return Work(flops=float(gate.numel()), bytes=moved(gate, out))


KERNEL = TritonKernel(
    name="chunk_cumsum",
    function=chunk_cumsum,
    space=SPACE,
    key=("T", "H", "CHUNK", "REVERSE"),
    cases=(
        Case(name="layer", sizes={"B": 8, "T": 8192, "H": 32, "chunk": 64}),
        Case(name="reversed", sizes={"B": 8, "T": 8192, "H": 32, "chunk": 64, "reverse": 1}),
        Case(name="long", sizes={"B": 1, "T": 131072, "H": 96, "chunk": 128}),
        Case(name="odd", sizes={"B": 3, "T": 20001, "H": 20, "chunk": 64}),
        Case(name="large", sizes={"B": 32, "T": 16384, "H": 64, "chunk": 64}),
    ),
    corners=(
        Case(name="one", sizes={"B": 1, "T": 1, "H": 1, "chunk": 16}),
        Case(name="over_chunks", sizes={"B": 2, "T": 37, "H": 3, "chunk": 16}),
        Case(name="over_chunks_reversed", sizes={"B": 2, "T": 37, "H": 17, "chunk": 16, "reverse": 1}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=1e-5,
    atol=1e-5,
)
