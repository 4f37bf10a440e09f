"""Dropout whose mask comes from a counter-based generator (Philox), so that only its seed is kept."""

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

P = 0.1


@triton.jit  # type: ignore[untyped-decorator]
def dropout(x_ptr, out_ptr, n, p, seed, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Every element draws its own number by its place."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs, n = Inputs(case, seed, device), case.sizes["n"]
    x, out = inputs.normal(n), inputs.unwritten(n)
    return Call(args=(x, out, n, P, 123_456), grid=lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),), outs=(out,))


def philox(seed: int, n: int, device: torch.device) -> torch.Tensor:
    """The first words of n blocks of Philox 4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011)."""
    word = 2**32 - 1
    counter = [torch.arange(n, device=device), *(torch.zeros(n, dtype=torch.int64, device=device) for _ in range(3))]
    keys = [seed & word, seed >> 32]
    for _ in range(10):
        halves = []
        for factor, c in ((0xD2511F53, counter[0]), (0xCD9E8D57, counter[2])):
            low, high = c * (factor & 0xFFFF), c * (factor >> 16)  # both below 2**48
            middle = (low >> 16) + high
            halves.append((middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)))
        (high0, low0), (high2, low2) = halves
        counter = [high2 ^ counter[1] ^ keys[0], low2, high0 ^ counter[3] ^ keys[1], low0]
        keys = [(keys[0] + 0x9E3779B9) & word, (keys[1] + 0xBB67AE85) & word]
    return counter[0]


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    """A word with its sign folded away, over 2**31, is a number from 0 to 1, as Triton has it."""
    x, out, n, p, seed = call.args
    bits = philox(seed, n, x.device)
    number = torch.where(bits < 2**31, bits, 2**32 - 1 - bits).float() * 4.6566127342e-10
    return (torch.where(number > p, x.double() / (1 - p), 0.0).to(out.dtype),)


def work(call: Call) -> Work:
    return Work(flops=2.0 * call.args[2], bytes=moved(*call.args))


KERNEL = TritonKernel(
    name="dropout",
    function=dropout,
    space=Space.grid(
        {"BLOCK_SIZE": [256, 512, 1024, 2048, 4096], "num_warps": [2, 4, 8]},
        constraints=[lambda BLOCK_SIZE, num_warps: 512 * num_warps >= BLOCK_SIZE],
        default={"BLOCK_SIZE": 1024, "num_warps": 4},
        roles={"BLOCK_SIZE": "tile", "num_warps": "threads"},
    ),
    key=("n",),
    cases=(
        Case(name="hidden", sizes={"n": 8192 * 4096}),
        Case(name="attention", sizes={"n": 96 * 1024 * 1024}, dtype="bfloat16"),
        Case(name="small", sizes={"n": 32 * 768}),
        Case(name="odd", sizes={"n": 4_444_441}, dtype="float32"),
    ),
    corners=(
        Case(name="one", sizes={"n": 1}),
        Case(name="below_a_block", sizes={"n": 251}, dtype="bfloat16"),
        Case(name="over_a_block", sizes={"n": 4100}, dtype="float32"),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-6,
)
