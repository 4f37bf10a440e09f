"""FlagGems (Apache-2.0): ATen's operators in Triton. Called as functions, so that torch's own stay what they are.

Its copies of flash-linear-attention's kernels (`fused/FLA`) are left out.
"""

from __future__ import annotations

import os

import torch

from calibration.record.programs.attempts import DEVICE, attempt, in_rounds, indices, normal, on_path, scaled

on_path("flag_gems")
os.environ.setdefault("GEMS_VENDOR", "nvidia")

import flag_gems as gems  # found on the path set above
from flag_gems.fused.DSA.bin_topk import bucket_sort_topk_triton
from flag_gems.fused.mhc.mhc_bwd import mhc_bwd
from flag_gems.fused.mhc.mhc_post import mhc_post
from flag_gems.fused.mhc.mhc_pre import mhc_pre
from flag_gems.ops.attention import ScaleDotProductAttention
from flag_gems.ops.bmm import bmm
from flag_gems.ops.conv2d import conv2d
from flag_gems.ops.conv3d import conv3d
from flag_gems.ops.group_gemm import group_mm
from flag_gems.ops.upsample_bicubic2d import upsample_bicubic2d

F8, F16, F32 = torch.float8_e4m3fn, torch.float16, torch.float32
ROWS = ((4096, 4096), (16384, 1024), (512, 32768), (1024, 8192), (65536, 256))  # rows x columns


def reductions() -> None:
    """Sums, extremes and norms along the last or a middle dimension."""
    by_dim = {
        "sum": lambda x: gems.sum_dim(x, [0, 2]),
        "mean": lambda x: gems.mean_dim(x, [0, 2]),
        "amax": lambda x: gems.amax(x, [0, 2]),
        "aminmax": lambda x: gems.aminmax(x, dim=1),
        "max": lambda x: gems.max_dim(x, 1),
        "min": lambda x: gems.min_dim(x, 1),
        "prod": lambda x: gems.prod_dim(x, 1),
        "all": lambda x: gems.all_dim(x > 0, 1),
        "any": lambda x: gems.any_dim(x > 0, 1),
        "std": lambda x: gems.std(x, dim=[1]),
        "var": lambda x: gems.var_correction(x, dim=[1], correction=1),
        "var_mean": lambda x: gems.var_mean(x, dim=[1], correction=1),
        "count_nonzero": lambda x: gems.count_nonzero(x, dim=1),
        "argmin": lambda x: gems.argmin(x, dim=1),
    }
    for batch, m, n in ((8, 512, 1024), (2, 4096, 512), (32, 256, 256), (1, 8192, 2048), (4, 128, 8192)):
        for name, reduce in by_dim.items():
            attempt(f"{name} {batch}x{m}x{n}", lambda reduce=reduce: reduce(normal(batch, m, n, dtype=F32)))
    for m, n in ROWS:
        for order in (2, float("inf"), float("-inf"), 0, 3):
            attempt(
                f"vector_norm {order} {m}x{n}",
                lambda order=order: gems.vector_norm(normal(m, n, dtype=F32), ord=order, dim=[1]),
            )


def norms() -> None:
    """Layer, RMS, batch, instance and weight normalisation, forward and backward."""
    for m, n in (*ROWS, (2048, 12288), (8192, 128)):
        x, w, b = normal(m, n), scaled(n), scaled(n)
        shape = (n,)

        def layer(x=x, w=w, b=b, shape=shape) -> None:
            y, mean, rstd = gems.layer_norm(x, shape, w, b)
            gems.layer_norm_backward(torch.ones_like(y), x, shape, mean, rstd, w, b, [True, True, True])

        attempt(f"layer_norm {m}x{n}", layer)
        attempt(f"rms_norm {m}x{n}", lambda: gems.rms_norm(x, shape, w))
    for n, c, side in ((32, 64, 56), (8, 256, 28), (64, 128, 14), (2, 16, 128)):
        x, w, b = normal(n, c, side, side, dtype=F32), scaled(c, dtype=F32), scaled(c, dtype=F32)

        def batch(x=x, w=w, b=b, c=c) -> None:
            running = torch.zeros(c, device=DEVICE), torch.ones(c, device=DEVICE)
            y, mean, rstd = gems.batch_norm(x, w, b, *running, True)
            gems.batch_norm_backward(torch.ones_like(y), x, w, *running, mean, rstd, True, 1e-5, [True, True, True])

        def instance(x=x, w=w, b=b, running: bool = False) -> None:
            stats = (torch.zeros_like(w), torch.ones_like(w)) if running else (None, None)
            x = x.detach().requires_grad_(not running)
            y = gems.instance_norm(x, w.requires_grad_(), b.requires_grad_(), *stats, use_input_stats=not running)
            if not running:
                y.backward(torch.ones_like(y))

        attempt(f"batch_norm {n}x{c}x{side}", batch)
        attempt(f"instance_norm {n}x{c}x{side}", instance)
        attempt(f"instance_norm with statistics {n}x{c}x{side}", lambda: instance(running=True))
    for m, n in ((4096, 4096), (512, 512)):
        for dim, g in ((0, scaled(m, 1, dtype=F32)), (1, scaled(1, n, dtype=F32))):
            v = normal(m, n, dtype=F32)

            def weight(v=v, g=g, dim=dim) -> None:
                w, norm = gems.weight_norm_interface(v, g, dim)
                gems.weight_norm_interface_backward(torch.ones_like(w), v, g, norm, dim)

            attempt(f"weight_norm {m}x{n} along {dim}", weight)
    for shape in ((64, 128, 256), (256, 64, 64)):

        def except_dim(shape=shape) -> None:
            v, g = normal(*shape, dtype=F32, grad=True), normal(1, shape[1], 1, dtype=F32, grad=True)
            w = gems.weight_norm(v, g, 1)
            w.backward(torch.ones_like(w))

        attempt(f"weight_norm of three dimensions {shape}", except_dim)


def softmaxes_and_losses() -> None:
    """Softmax backward, log-softmax, scaled softmax, cross entropy."""
    for m, n in ROWS:
        x = normal(m, n)
        attempt(f"softmax backward {m}x{n}", lambda: gems.softmax_backward(x, x, 1, x.dtype))
        attempt(f"softmax backward over rows {m}x{n}", lambda: gems.softmax_backward(x, x, 0, x.dtype))
        attempt(f"log_softmax backward {m}x{n}", lambda: gems.log_softmax_backward(x, x, 1, x.dtype))
    for batch, heads, q, k in ((2, 16, 1024, 1024), (8, 8, 512, 512), (1, 32, 256, 4096), (4, 16, 2048, 2048)):
        x = normal(batch, heads, q, k, dtype=F16)
        attempt(f"scaled_softmax {q}x{k}", lambda: gems.scaled_softmax_forward(x, 0.5))
        attempt(f"scaled_softmax backward {q}x{k}", lambda: gems.scaled_softmax_backward(x, x, 0.5))
    for m, n in ((4096, 32000), (8192, 4096), (512, 128256), (16384, 1000)):

        def cross(kind: str, m=m, n=n) -> None:
            x = normal(m, n, grad=True)
            target = torch.softmax(normal(m, n, dtype=F32), 1).to(x.dtype) if kind == "probabilities" else indices(n, m)
            loss = gems.cross_entropy_loss(x, target, label_smoothing=0.1 if kind == "smooth" else 0.0)
            loss.backward(torch.ones_like(loss))

        for kind in ("indices", "smooth", "probabilities"):
            attempt(f"cross_entropy {kind} {m}x{n}", lambda kind=kind: cross(kind))


def products() -> None:
    """Matrix products, dense, batched, grouped, in fp8, and matrix times vector."""
    for m, n, k in ((4096, 4096, 4096), (300, 700, 1100), (16, 4096, 4096)):
        a, b, bias = normal(m, k), scaled(k, n), normal(n)
        attempt(f"mm {m}x{n}x{k}", lambda: gems.mm(a, b))
        attempt(f"mm of odd width {m}x{n + 2}x{k}", lambda: gems.mm(a, scaled(k, n + 2)))
        attempt(f"addmm {m}x{n}x{k}", lambda: gems.addmm(bias, a, b))
        attempt(f"mv {m}x{k}", lambda: gems.mv(a, normal(k)))
        attempt(f"addmv {m}x{k}", lambda: gems.addmv(normal(m), a, normal(k)))
        attempt(f"gemv {m}x{k}", lambda: gems.mm(a, normal(k, 1)))
    for batch, m, n, k in ((16, 1024, 1024, 64), (64, 256, 256, 512), (128, 1, 2048, 128), (8, 777, 500, 96)):
        a, b = normal(batch, m, k, dtype=F16), normal(batch, k, n, dtype=F16)
        attempt(f"bmm {batch}x{m}x{n}x{k}", lambda: bmm(a, b))
        attempt(f"baddbmm {batch}x{m}x{n}x{k}", lambda: gems.baddbmm(normal(batch, m, n, dtype=F16), a, b))
    for groups, m, n, k in ((8, 4096, 2048, 1024), (16, 2048, 1024, 2048), (64, 8192, 512, 512)):
        offsets = torch.arange(1, groups + 1, device=DEVICE, dtype=torch.int32) * (m // groups)
        attempt(
            f"grouped mm {groups} {m}x{n}x{k}",
            lambda: group_mm(normal(m, k), scaled(groups, k, n), offsets),
        )
    for m, n, k in ((4096, 4096, 4096), (64, 7168, 2048), (1024, 2048, 7168)):
        a, b = normal(m, k).to(F8), normal(n, k).to(F8)
        blocks = torch.rand(m, k // 128, device=DEVICE), torch.rand(n // 128, k // 128, device=DEVICE)
        attempt(
            f"fp8 product by blocks {m}x{n}x{k}",
            lambda: gems.w8a8_block_fp8_matmul(a, b, *blocks, [128, 128], output_dtype=torch.bfloat16),
        )
        c = torch.empty(m, n, device=DEVICE, dtype=torch.bfloat16)
        rows, columns = torch.rand(m, 1, device=DEVICE), torch.rand(1, n, device=DEVICE)
        attempt(f"scaled product by rows {m}x{n}x{k}", lambda: gems.cutlass_scaled_mm(c, a, b.t(), rows, columns))
        attempt(
            f"scaled product by blocks {m}x{n}x{k}",
            lambda: gems.cutlass_scaled_mm(c, a, b.t(), blocks[0].t().contiguous().t(), blocks[1].t()),
        )
    for m, n, p, q in ((64, 64, 32, 32), (256, 16, 16, 64), (1000, 100, 3, 5)):
        attempt(f"kron {m}x{n} {p}x{q}", lambda: gems.kron(normal(m, n), normal(p, q)))
        attempt(f"kron of batches {m}x{n} {p}x{q}", lambda: gems.kron(normal(4, m, n), normal(4, p, q)))


def attentions() -> None:
    """Attention, forward and backward."""
    for batch, heads, q, k, d in (
        (4, 16, 1024, 1024, 64),
        (1, 32, 4096, 4096, 128),
        (8, 8, 512, 512, 64),
        (2, 16, 777, 1555, 128),
    ):
        shapes = (batch, heads, q, d), (batch, heads, k, d), (batch, heads, k, d)
        for causal in (False, True):

            def both(causal=causal, shapes=shapes) -> None:
                q, k, v = (normal(*s, dtype=F16, grad=True) for s in shapes)
                out = ScaleDotProductAttention.apply(q, k, v, None, 0.0, causal, None, False)
                out.backward(torch.ones_like(out))

            attempt(f"attention {shapes[0]} causal {causal}", both)
            q_, k_, v_ = (normal(s[0], s[2], s[1], s[3], dtype=F16) for s in shapes)
            attempt(
                f"flash attention {shapes[0]} causal {causal}",
                lambda causal=causal: gems.flash_attention_forward(
                    q_,
                    k_,
                    v_,
                    None,
                    None,
                    q_.shape[1],
                    k_.shape[1],
                    0.0,
                    causal,
                    False,
                    disable_splitkv=True,
                ),
            )
    for tokens, keys, heads, top in ((512, 4096, 64, 512), (1024, 8192, 128, 1024), (64, 16384, 128, 2048)):
        q, kv = normal(1, tokens, heads, 576), normal(1, keys, 1, 576)
        chosen = indices(keys, 1, tokens, 1, top, dtype=torch.int32)
        attempt(
            f"sparse latent attention {tokens}x{keys}", lambda: gems.flash_mla_sparse_fwd(q[0], kv[0], chosen[0], 0.04)
        )
        attempt(
            f"top {top} by buckets {tokens}x{keys}",
            lambda: bucket_sort_topk_triton(
                normal(tokens, keys, dtype=F32),
                torch.zeros(tokens, device=DEVICE, dtype=torch.int32),
                torch.full((tokens,), keys, device=DEVICE, dtype=torch.int32),
                top,
            ),
        )


def images() -> None:
    """Convolutions, pooling, padding and upsampling."""
    for n, c, side, out, kernel, stride in (
        (32, 64, 56, 64, 3, 1),
        (32, 3, 224, 64, 7, 2),
        (8, 256, 28, 512, 1, 1),
        (16, 128, 14, 128, 3, 1),
    ):

        def convolve(n=n, c=c, side=side, out=out, kernel=kernel, stride=stride) -> None:
            x, w = normal(n, c, side, side, dtype=F16, grad=True), normal(out, c, kernel, kernel, dtype=F16, grad=True)
            y = conv2d(x, w, None, stride, kernel // 2)
            y.backward(torch.ones_like(y))

        attempt(f"conv2d {n}x{c}x{side} {out} of {kernel}", convolve)
    for n, c, side, out in ((2, 16, 32, 32), (4, 3, 24, 16), (1, 32, 16, 64)):
        x, w = normal(n, c, side, side, side, dtype=F16), normal(out, c, 3, 3, 3, dtype=F16)
        attempt(f"conv3d {n}x{c}x{side}", lambda: conv3d(x, w, None, 1, 1))
        attempt(f"replication_pad3d {n}x{c}x{side}", lambda: gems.replication_pad3d(x, (1, 1, 1, 1, 1, 1)))
        attempt(f"upsample_nearest3d {n}x{c}x{side}", lambda: gems.upsample_nearest3d(x, (2 * x.shape[-1],) * 3))
    for n, c, side in ((32, 64, 112), (8, 256, 28), (2, 3, 512), (16, 32, 57)):
        x = normal(n, c, side, side, dtype=F32)
        ones = torch.ones(n, c, side // 2, side // 2, device=DEVICE)

        def largest(x=x, ones=ones) -> None:
            _, where = gems.max_pool2d_with_indices(x, [2, 2], [2, 2])
            gems.max_pool2d_backward(ones, x, where, [2, 2], [2, 2], [0, 0], [1, 1], False)

        attempt(f"max_pool2d {n}x{c}x{side}", largest)
        attempt(f"avg_pool2d {n}x{c}x{side}", lambda: gems.avg_pool2d(x, [2, 2], [2, 2]))
        attempt(
            f"avg_pool2d backward {n}x{c}x{side}",
            lambda: gems.avg_pool2d_backward(ones, x, [2, 2], [2, 2], [0, 0], False, True, None),
        )
        attempt(f"upsample_nearest2d {n}x{c}x{side}", lambda: gems.upsample_nearest2d(x, (2 * side, 2 * side)))
        attempt(f"upsample_nearest1d {n}x{c}x{side}", lambda: gems.upsample_nearest1d(x[:, :, 0], (2 * side,)))
        attempt(f"upsample_bicubic2d {n}x{c}x{side}", lambda: upsample_bicubic2d(x, [2 * side, 2 * side]))
        attempt(
            f"upsample_bicubic2d_aa {n}x{c}x{side}", lambda: gems._upsample_bicubic2d_aa(x, [2 * side, 2 * side], False)
        )
        attempt(
            f"upsample_bicubic2d_aa down {n}x{c}x{side}",
            lambda: gems._upsample_bicubic2d_aa(x, [side // 3, side // 3], False),
        )


def elements_and_orders() -> None:
    """Elementwise operators, random numbers, sorting, stacking, triangles."""
    for n in (1 << 16, 1 << 20, 1 << 24, 1 << 27, 3_000_001):
        attempt(f"sqrt {n}", lambda: gems.sqrt(torch.rand(n, device=DEVICE)))
        attempt(f"exponential {n}", lambda: gems.exponential_(torch.empty(n, device=DEVICE)))
        attempt(
            f"exponential double {n}",
            lambda: gems.exponential_(torch.empty(n // 4, device=DEVICE, dtype=torch.float64)),
        )
        attempt(f"randn {n}", lambda: gems.randn((n,), dtype=F32, device=torch.device(DEVICE)))
        attempt(
            f"conj_physical {n}", lambda: gems.conj_physical(torch.empty(n // 2, device=DEVICE, dtype=torch.complex64))
        )
    for n in (1 << 16, 1 << 20, 5_000_000):
        attempt(f"randperm {n}", lambda: gems.randperm(n, device=torch.device(DEVICE)))
    for m, n in ROWS:
        x = normal(m, n)
        attempt(f"triu {m}x{n}", lambda: gems.triu(x))
        attempt(f"triu of batches {m}x{n}", lambda: gems.triu(x.view(8, m // 8, n)))
        attempt(f"vstack {m}x{n}", lambda: gems.vstack([x, x, x]))
        attempt(f"reglu {m}x{n}", lambda: gems.reglu(x))
        attempt(f"dreglu {m}x{n}", lambda: gems.dreglu(x[:, : n // 2].contiguous(), x))
        attempt(f"index {m}x{n}", lambda: gems.index(x, [indices(m, 4096), indices(n, 4096)]))
    for tokens, top, hidden in ((4096, 8, 7168), (512, 2, 4096), (16, 6, 2048)):
        attempt(
            f"moe_sum {tokens}x{top}x{hidden}",
            lambda: gems.moe_sum(normal(tokens, top, hidden), normal(tokens, hidden)),
        )
    for tokens, hidden, streams in ((4096, 2048, 4), (1024, 7168, 4), (2048, 1280, 2), (256, 4096, 2)):
        residual = normal(tokens, streams, hidden)
        attempt(
            f"hyper-connections after {tokens}x{streams}x{hidden}",
            lambda: mhc_post(
                normal(tokens, hidden),
                residual,
                normal(tokens, streams, 1, dtype=F32),
                normal(tokens, streams, streams, dtype=F32),
            ),
        )
        mixes = 2 * streams + streams * streams
        attempt(
            f"hyper-connections before {tokens}x{streams}x{hidden}",
            lambda: mhc_pre(
                residual, scaled(mixes, streams * hidden, dtype=F32), normal(3, dtype=F32), normal(mixes, dtype=F32),
                1e-6, 1e-6, 1e-6, 2.0, 20,
            ),
        )  # fmt: skip
        attempt(
            f"Sinkhorn backward {tokens}x{streams}",
            lambda: mhc_bwd(
                torch.rand(tokens, streams, streams, device=DEVICE), normal(tokens, streams, streams, dtype=F32)
            ),
        )


def main() -> None:
    """Every attempt."""
    for part in (reductions, norms, softmaxes_and_losses, products, attentions, images, elements_and_orders):
        part()


if __name__ == "__main__":
    in_rounds(main)
