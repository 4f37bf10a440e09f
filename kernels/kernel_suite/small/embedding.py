"""Rows of a table by their numbers in Triton; the padding token's row counts as zeros."""

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
def embedding(  # type: ignore[no-untyped-def]
    ids_ptr, table_ptr, out_ptr, tokens, dim, padding, TOKENS: tl.constexpr, BLOCK: tl.constexpr
):
    """TOKENS tokens and BLOCK of their columns."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = tl.load(ids_ptr + token, mask=token < tokens, other=padding)[:, None]
    kept = (row != padding) & (column < dim)
    value = tl.load(table_ptr + row * dim + column, mask=kept, other=0.0)
    tl.store(
        out_ptr + token.to(tl.int64)[:, None] * dim + column, value, mask=(token < tokens)[:, None] & (column < dim)
    )


SPACE = Space.grid(
    {"TOKENS": [1, 4, 16], "BLOCK": [128, 512, 1024], "num_warps": [2, 4, 8]},
    constraints=[lambda TOKENS, BLOCK, num_warps: 2 <= TOKENS * BLOCK // (32 * num_warps) <= 64],
    default={"TOKENS": 1, "BLOCK": 1024, "num_warps": 4},
    roles={"TOKENS": "tile", "BLOCK": "tile", "num_warps": "threads"},
)


def make_call(case: Case, seed: int, device: str) -> Call:
    """Tokens 0 are padding; the first token is one."""
    tokens, rows, dim = (case.sizes[name] for name in ("tokens", "rows", "dim"))
    inputs = Inputs(case, seed, device, "bfloat16")
    ids, table, out = inputs.integers(rows, tokens), inputs.normal(rows, dim), inputs.unwritten(tokens, dim)
    ids[0] = 0
    return Call(
        args=(ids, table, out, tokens, dim, 0),
        grid=lambda knobs: (triton.cdiv(tokens, knobs["TOKENS"]), triton.cdiv(dim, knobs["BLOCK"])),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    ids, table, *_, padding = call.args
    return (table[ids].masked_fill((ids == padding)[:, None], 0),)


def work(call: Call) -> Work:
    """A row of the table is read for each token."""
    ids, _, out = call.args[:3]
    return Work(flops=0.0, bytes=moved(ids, out, out))


KERNEL = TritonKernel(
    name="embedding",
    function=embedding,
    space=SPACE,
    key=("tokens", "dim"),
    cases=(
        Case(name="prompt", sizes={"tokens": 16384, "rows": 128256, "dim": 4096}),
        Case(name="encoder", sizes={"tokens": 65536, "rows": 30522, "dim": 768}, dtype="float32"),
        Case(name="decode", sizes={"tokens": 128, "rows": 151936, "dim": 3584}),
        Case(name="recommender", sizes={"tokens": 1 << 20, "rows": 1_000_003, "dim": 64}, dtype="float16"),
        Case(name="odd", sizes={"tokens": 30001, "rows": 5000, "dim": 333}, dtype="float16"),
    ),
    corners=(
        Case(name="one", sizes={"tokens": 1, "rows": 1, "dim": 1}),
        Case(name="below_a_block", sizes={"tokens": 21, "rows": 7, "dim": 37}),
        Case(name="over_a_block", sizes={"tokens": 3, "rows": 40, "dim": 1027}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=0.0,
    atol=0.0,
)
