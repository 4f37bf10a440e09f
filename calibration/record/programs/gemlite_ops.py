"""GemLite (Apache-2.0): activations to 8 and 4 bits, and products with quantised weights by each of its methods."""

from __future__ import annotations

import torch

from calibration.record.programs.attempts import DEVICE, attempt, in_rounds, indices, normal, on_path, scaled

on_path("gemlite")

from gemlite import helper, quant_utils  # found on the path set above

F16, F8 = torch.float16, torch.float8_e4m3fn


def activations(m: int, n: int) -> None:
    """Every way it scales activations, the older ones too."""
    x = normal(m, n, dtype=F16)
    for version in (2, 3, 4):
        scale = getattr(quant_utils, f"scale_activations_per_token_triton_v{version}")
        attempt(f"tokens, way {version}, {m}x{n}", lambda scale=scale: scale(x, F8))
    for version in (3, 4):
        scale = getattr(quant_utils, f"scale_activations_mxfp8_triton_v{version}")
        attempt(f"mxfp8, way {version}, {m}x{n}", lambda scale=scale: scale(x))
    for kind in ("mxfp4", "nvfp4"):
        for version in ("", "_v2", "_v3", "_v5"):
            scale = getattr(quant_utils, f"scale_activations_{kind}_triton{version}")
            attempt(f"{kind}, way {version or 1}, {m}x{n}", lambda scale=scale: scale(x))
    attempt(f"blocks {m}x{n}", lambda: quant_utils.scale_activations_per_block_triton_v2(x, F8))


def products(n: int, k: int) -> None:
    """Products with weights of 4 bits in groups, and of 8 bits, by every method that fits the rows."""
    groups = n * k // 64
    scales, zeros = scaled(groups, 1, dtype=F16).abs(), torch.full((groups, 1), 8.0, device=DEVICE, dtype=F16)
    four = helper.A16Wn(device=DEVICE, dtype=F16)
    four = four.from_weights(indices(16, n, k, dtype=torch.uint8), scales, zeros, 4, 64)
    eight = helper.A8W8_fp8_dynamic(device=DEVICE, dtype=F16).from_weights(scaled(n, k, dtype=F16))
    for name, layer in (("4 bits", four), ("8 bits", eight)):
        for rows, methods in (
            (1, ("GEMV", "GEMV_SPLITK", "GEMV_REVSPLITK")),
            (16, ("GEMM_SPLITK",)),
            (1024, ("GEMM",)),
        ):
            for method in methods:
                x = normal(rows, k, dtype=F16)
                attempt(f"{name} {method} {rows}x{n}x{k}", lambda: layer.forward_manual(x, method))


def main() -> None:
    """Every attempt."""
    for m, n in ((4096, 4096), (16, 8192), (512, 2048), (16384, 1024)):
        activations(m, n)
    for n, k in ((4096, 4096), (14336, 4096), (2048, 7168)):
        products(n, k)


if __name__ == "__main__":
    in_rounds(main)
