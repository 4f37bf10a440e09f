"""mamba-ssm (Apache-2.0): state-space models, chunked scans forward and backward, norms, a gated activation.

Its `__init__` imports compiled extensions, so its Triton modules are imported without it.
"""

from __future__ import annotations

import torch

from calibration.record.programs.attempts import (
    DEVICE,
    attempt,
    backward,
    in_rounds,
    normal,
    on_path,
    scaled,
    without_init,
)

on_path("mamba_ssm")
without_init("mamba_ssm")

from mamba_ssm.ops.triton import ssd_chunk_scan, ssd_chunk_state  # found on the path set above
from mamba_ssm.ops.triton.k_activations import swiglu
from mamba_ssm.ops.triton.layer_norm import layer_norm_fn, rms_norm_fn
from mamba_ssm.ops.triton.mamba3 import mamba3_mimo_utils as mimo
from mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined
from mamba_ssm.ops.triton.mamba3.mamba3_siso_step import mamba3_siso_step
from mamba_ssm.ops.triton.ssd_chunk_state import chunk_state_varlen
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

F32 = torch.float32


def chunked_scan(batch: int, length: int, heads: int, dim: int, state: int, chunk: int) -> None:
    """The scan of Mamba 2 as its layer calls it, both passes."""
    x, z = normal(batch, length, heads, dim, grad=True), normal(batch, length, heads, dim, grad=True)
    dt, a = normal(batch, length, heads, grad=True), (-torch.rand(heads, device=DEVICE)).requires_grad_()
    b, c = normal(batch, length, 1, state, grad=True), normal(batch, length, 1, state, grad=True)
    d, bias = normal(heads, dtype=F32, grad=True), normal(heads, dtype=F32, grad=True)
    out = mamba_chunk_scan_combined(x, dt, a, b, c, chunk, D=d, z=z, dt_bias=bias, dt_softplus=True)
    backward(out)


def parts_of_scans(batch: int, length: int, heads: int, dim: int, state: int, chunk: int) -> None:
    """Kernels of the scan that its layer no longer calls, by the functions that call them."""
    chunks = length // chunk
    x, dout = normal(batch, length, heads, dim), normal(batch, length, heads, dim)
    dt, cumulated = (torch.rand(batch, heads, chunks, chunk, device=DEVICE) for _ in range(2))
    cumulated = -cumulated
    cb = normal(batch, chunks, 1, chunk, chunk)
    b, states = normal(batch, length, 1, state), normal(batch, chunks, heads, dim, state, dtype=F32)
    attempt("chunk scan, dx", lambda: ssd_chunk_scan._chunk_scan_bwd_dx(cb, x, dt, cumulated, dout))
    attempt("chunk scan, ddA", lambda: ssd_chunk_scan._chunk_scan_bwd_ddAcs_stable(x, dt, cumulated, dout, cb))
    attempt("chunk scan, ddA unstable", lambda: ssd_chunk_scan._chunk_scan_bwd_ddAcs_unstable(x, dt, x, dout, dt))
    attempt("chunk state, dx", lambda: ssd_chunk_state._chunk_state_bwd_dx(b, x, dt, cumulated, states))
    attempt("chunk state, ddA", lambda: ssd_chunk_state._chunk_state_bwd_ddAcs_stable(b, x, dt, cumulated, states))
    attempt(
        "chunk scan, dz", lambda: ssd_chunk_scan._chunk_scan_bwd_dz(x, x, x, dout, chunk, D=normal(heads, dtype=F32))
    )
    ends = torch.tensor([0, length // 3, length], device=DEVICE, dtype=torch.int32)
    attempt(
        "chunk state of several sequences",
        lambda: chunk_state_varlen(b[0], x[0], dt[0], cumulated[0], ends, states[0].contiguous()),
    )


def mamba3(batch: int, length: int, heads: int, state: int, dim: int, chunk: int) -> None:
    """The scan of Mamba 3 with one input and output, both passes."""
    q, k = normal(batch, length, 1, state, grad=True), normal(batch, length, 1, state, grad=True)
    v, z = normal(batch, length, heads, dim, grad=True), normal(batch, length, heads, dim, grad=True)
    adt = (-torch.rand(batch, heads, length, device=DEVICE)).requires_grad_()
    dt = torch.rand(batch, heads, length, device=DEVICE).requires_grad_()
    trap = torch.rand(batch, heads, length, device=DEVICE).to(torch.bfloat16).requires_grad_()
    q_bias, k_bias = normal(heads, state, dtype=F32, grad=True), normal(heads, state, dtype=F32, grad=True)
    angles = normal(batch, length, heads, state // 4, dtype=F32, grad=True)
    d = normal(heads, dtype=F32, grad=True)
    backward(mamba3_siso_combined(q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z, chunk_size=chunk))


def mamba3_step(batch: int, heads: int, state: int, dim: int) -> None:
    """One token of Mamba 3."""
    q, k, v = normal(batch, 1, state), normal(batch, 1, state), normal(batch, heads, dim)
    adt, dt, trap = (torch.rand(batch, heads, device=DEVICE) for _ in range(3))
    states = (
        torch.zeros(batch, heads, state // 4, device=DEVICE), torch.zeros(batch, heads, dim, state, device=DEVICE),
        normal(batch, heads, state), normal(batch, heads, dim),
    )  # fmt: skip
    angles = normal(batch, heads, state // 4, dtype=F32)
    bias = normal(heads, state, dtype=F32)
    mamba3_siso_step(q, k, v, -adt, dt, trap, bias, bias, angles, normal(heads, dtype=F32), v, states)


def multiple_inputs(batch: int, heads: int, length: int, chunk: int) -> None:
    """Cumulative sums within chunks, as Mamba 3 with several inputs needs them."""
    a, b, c, d = (normal(batch, heads, length, dtype=F32) for _ in range(4))
    segments = normal(batch, heads, length // chunk, chunk, chunk, dtype=F32)
    ends = torch.tensor([0, length // 3, length], device=DEVICE, dtype=torch.int32)
    attempt(f"sums of segments {length}", lambda: mimo.compute_dacs_segsum_triton(a, chunk))
    attempt(
        f"sums of segments, backward {length}",
        lambda: mimo.bwd_dadt_fused_triton(segments, segments, a, b, c, d, chunk),
    )
    attempt(f"trapezoid, backward {length}", lambda: mimo.bwd_dtrap_ddt_triton(a, b, c, d, chunk))
    attempt(
        f"sums of segments of several sequences {length}",
        lambda: mimo.compute_dacs_segsum_triton_varlen(a, chunk, ends),
    )
    attempt(
        f"trapezoid of several sequences, backward {length}",
        lambda: mimo.bwd_dtrap_ddt_triton_varlen(a, b, c, d, chunk, ends),
    )


def norms_and_activations(m: int, n: int) -> None:
    """Layer and RMS norm with a residual, SwiGLU; both passes."""

    def norm(function: object) -> None:
        x, w = normal(m, n, grad=True), scaled(n).requires_grad_()
        backward(function(x, w, None, residual=normal(m, n, grad=True), prenorm=False))  # type: ignore[operator]

    attempt(f"layer norm {m}x{n}", lambda: norm(layer_norm_fn))
    attempt(f"RMS norm {m}x{n}", lambda: norm(rms_norm_fn))
    attempt(f"SwiGLU {m}x{n}", lambda: backward(swiglu(normal(m, 2 * n, grad=True))))


def main() -> None:
    """Every attempt."""
    for m, n in ((4096, 4096), (16384, 1024), (1024, 8192), (512, 2048), (32768, 768)):
        norms_and_activations(m, n)
    for sizes in (
        (4, 2048, 24, 64, 128, 256),
        (1, 8192, 80, 64, 128, 256),
        (8, 1024, 32, 64, 64, 128),
        (2, 4096, 16, 128, 64, 256),
    ):
        attempt(f"scan {sizes}", lambda: chunked_scan(*sizes))
        parts_of_scans(*sizes)
    for sizes in ((2, 2048, 16, 128, 64, 64), (1, 8192, 32, 128, 64, 64), (8, 1024, 8, 64, 64, 64)):
        attempt(f"Mamba 3 {sizes}", lambda: mamba3(*sizes))
    for sizes in ((64, 16, 128, 64), (256, 32, 128, 64), (1, 32, 128, 64)):
        attempt(f"Mamba 3, a token {sizes}", lambda: mamba3_step(*sizes))
    for sizes in ((2, 16, 4096, 64), (1, 32, 16384, 64), (8, 8, 1024, 16)):
        multiple_inputs(*sizes)


if __name__ == "__main__":
    in_rounds(main)
