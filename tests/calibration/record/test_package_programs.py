"""Programs that call packages' kernels: the order of their attempts, and what a dry run tells of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from calibration.paths import REPOSITORY
from calibration.record.programs import attempts

TOY = """
import torch
import triton
import triton.language as tl

from calibration.record.programs.attempts import attempt, backward, in_rounds, indices, normal


@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (128, 256, 512)], key=["n"])
@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def fill(out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), 1.0)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.is_cuda
        out = torch.empty_like(x)
        double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
        return out

    @staticmethod
    def backward(ctx, gradient):
        fill[(1,)](gradient, BLOCK=64)
        return gradient


def main():
    for n in (1000, 5000):
        attempt(f"double {n}", lambda: backward(Double.apply(normal(n, grad=True))))
    attempt("by data", lambda: indices(5, 3).sum().item())


if __name__ == "__main__":
    in_rounds(main)
"""


def test_the_first_of_every_kind_is_attempted_before_the_second_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    made: list[str] = []

    def program() -> None:
        for size in (1, 2, 3):
            attempts.attempt(f"sum {size}x8", lambda: made.append(f"sum {size}"))  # noqa: B023  # called at once
            if size < 3:
                attempts.attempt(f"sort {size}", lambda: made.append(f"sort {size}"))  # noqa: B023

    attempts.in_rounds(program)
    assert made == ["sum 1", "sort 1", "sum 2", "sort 2", "sum 3"]


def test_an_attempt_that_fails_is_told_and_the_next_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    made: list[str] = []

    def program() -> None:
        attempts.attempt("a 1", lambda: 1 // 0)
        attempts.attempt("b 1", lambda: made.append("b"))

    attempts.in_rounds(program)
    assert made == ["b"]
    assert "a 1: ZeroDivisionError" in capsys.readouterr().err


def test_a_dry_run_counts_kernels_keys_and_configs_without_a_gpu(tmp_path: Path) -> None:
    program = tmp_path / "toy_ops.py"
    program.write_text(TOY)
    command = [sys.executable, "-m", "calibration.record.programs.dry_run", str(program)]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=200)
    assert ran.stdout.splitlines()[-1] == "1 tuned kernels, 2 keys, 6 configs; 1 others"
    assert "by data: DataDependentOutputException" in ran.stderr
    assert "double" not in ran.stderr
