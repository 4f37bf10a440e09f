"""gelu(x w + bias) as one kernel: a matrix product whose tiles are finished before they are written."""

# ruff: noqa: N803, N806  # Triton kernels write their meta-parameters in capitals
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
def linear_gelu(  # type: ignore[no-untyped-def]
    x_ptr, w_ptr, bias_ptr, out_ptr, M, N, K, stride_xm, stride_wk, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile, in the order of groups of rows."""
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + (pid % num_pid_in_group) % group_size_m
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + (offs_m % M)[:, None] * stride_xm + offs_k[None, :]
    w_ptrs = w_ptr + offs_k[:, None] * stride_wk + (offs_n % N)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        x = tl.load(x_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        w = tl.load(w_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(x, w, acc)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K * stride_wk
    acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    acc = 0.5 * acc * (1 + tl.erf(acc * 0.7071067811865476))
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(out_ptr + offs_m[:, None] * stride_om + offs_n[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


def make_call(case: Case, seed: int, device: str) -> Call:
    inputs = Inputs(case, seed, device)
    M, N, K = (case.sizes[name] for name in "MNK")
    x, w, bias, out = inputs.normal(M, K), inputs.normal(K, N).mul_(K**-0.5), inputs.normal(N), inputs.unwritten(M, N)
    return Call(
        args=(x, w, bias, out, M, N, K, x.stride(0), w.stride(0), out.stride(0)),
        grid=lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),),
        outs=(out,),
    )


def reference(call: Call) -> tuple[torch.Tensor, ...]:
    x, w, bias, out = call.args[:4]
    return (torch.nn.functional.gelu(torch.addmm(bias.double(), x.double(), w.double())).to(out.dtype),)


def work(call: Call) -> Work:
    M, N, K = call.args[4:7]
    return Work(flops=2.0 * M * N * K + 9.0 * M * N, bytes=moved(*call.args))


def _config(m: int, n: int, k: int, stages: int, warps: int) -> dict[str, int]:
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "num_stages": stages, "num_warps": warps}


KERNEL = TritonKernel(
    name="linear_gelu",
    function=linear_gelu,
    space=Space(
        [
            _config(128, 128, 64, 3, 8),
            _config(128, 256, 64, 3, 8),
            _config(256, 128, 64, 3, 8),
            _config(128, 128, 32, 4, 4),
            _config(128, 64, 32, 4, 4),
            _config(64, 128, 32, 4, 4),
            _config(64, 256, 32, 4, 4),
            _config(128, 32, 32, 4, 4),
            _config(64, 64, 64, 4, 4),
            _config(64, 32, 32, 5, 2),
            _config(32, 64, 32, 5, 2),
            _config(16, 128, 64, 5, 4),
        ],
        roles={
            "BLOCK_M": "tile", "BLOCK_N": "tile", "BLOCK_K": "tile", "GROUP_M": "order",
            "num_stages": "stages", "num_warps": "threads",
        },
    ),
    key=("M", "N", "K"),
    cases=(
        Case(name="layer", sizes={"M": 4096, "N": 16384, "K": 4096}),
        Case(name="vision", sizes={"M": 64 * 197, "N": 3072, "K": 768}, dtype="bfloat16"),
        Case(name="few_rows", sizes={"M": 16, "N": 8192, "K": 2048}),
        Case(name="small", sizes={"M": 512, "N": 512, "K": 512}),
        Case(name="odd", sizes={"M": 999, "N": 1501, "K": 701}),
    ),
    corners=(
        Case(name="one", sizes={"M": 1, "N": 1, "K": 1}),
        Case(name="below_a_block", sizes={"M": 5, "N": 7, "K": 9}),
        Case(name="over_a_block", sizes={"M": 130, "N": 70, "K": 65}),
    ),
    make_call=make_call,
    reference=reference,
    work=work,
    rtol=2**-7,  # a unit in bfloat16's last place
    atol=1e-3,
)  # fmt: skip
