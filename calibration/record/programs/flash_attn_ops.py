"""flash-attn (BSD-3-Clause): its Triton norms, both passes. Its linear layer needs `triton.ops`, which is gone."""

from __future__ import annotations

from calibration.record.programs.attempts import attempt, backward, in_rounds, normal, on_path, scaled, without_init

on_path("flash_attn")
without_init("flash_attn")

from flash_attn.ops.triton.layer_norm import layer_norm_fn, rms_norm_fn  # found on the path set above


def norm(function: object, m: int, n: int, drop: float) -> None:
    """A norm with a residual, and dropout."""
    x, w = normal(m, n, grad=True), scaled(n).requires_grad_()
    backward(function(x, w, None, residual=normal(m, n, grad=True), dropout_p=drop))  # type: ignore[operator]


def main() -> None:
    """Every attempt."""
    for m, n in ((4096, 4096), (16384, 1024), (1024, 8192), (512, 2048), (32768, 768)):
        attempt(f"layer norm {m}x{n}", lambda: norm(layer_norm_fn, m, n, 0.0))
        attempt(f"RMS norm {m}x{n}", lambda: norm(rms_norm_fn, m, n, 0.1))


if __name__ == "__main__":
    in_rounds(main)
