"""What nvcc says before anything is built; it runs without a GPU, against the real compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import forecast_autotune as fa
from forecast_autotune.compilers.cuda_report import kernel_part, kernel_report
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.outcome import Evidence, Failure

SOURCE = r"""
#include <torch/extension.h>
#include <cuda_fp16.h>
// torch::Tensor in a comment, and "braces } in a text"
constexpr int WIDTH = TILE;
namespace mine {
template <int N>
__global__ void multiply(const float* a, const float* b, float* c, int n) {
  __shared__ float left[N][N], right[N][N];
  float sum = 0;
  for (int k = 0; k < n; k += N) {
    left[threadIdx.y][threadIdx.x] = a[threadIdx.y * n + k + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < N; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  c[threadIdx.y * n + threadIdx.x] = sum;
}
struct Params { int n; };
torch::Tensor run(torch::Tensor a, torch::Tensor b) {
  auto c = torch::empty_like(a);
  multiply<WIDTH><<<1, dim3(WIDTH, WIDTH)>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), 64);
  return c;
}
}  // namespace mine
"""

H100 = Hardware(kind="cuda", name="NVIDIA H100", capability="9.0", max_threads=1024, shared_bytes=232448)

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="needs nvcc")


def report(folder: Path, source: str = SOURCE, tile: int = 16, threads: int | None = None) -> Evidence | Failure | None:
    return kernel_report(
        nvcc=str(NVCC),
        sources=(source,),
        defines=(f"-DTILE={tile}",),
        flags=(),
        folder=folder,
        hardware=H100,
        threads=threads,
    )


def test_the_kernel_part_leaves_out_torch_and_instantiates_its_templates() -> None:
    part = kernel_part(SOURCE)
    assert "torch" not in part.replace("torch::Tensor in a comment", "")
    assert "struct Params { int n; };" in part
    assert "multiply<WIDTH>" in part
    assert part.count("{") - part.count("}") == SOURCE.count("{") - SOURCE.count("}")


@needs_nvcc
def test_registers_and_shared_memory_are_read_from_the_cubin_by_cuobjdump(tmp_path: Path) -> None:
    found = report(tmp_path)
    assert isinstance(found, Evidence)
    assert found.shared_bytes == 2 * 16 * 16 * 4
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    told = subprocess.run(
        [tool, "-res-usage", tmp_path / "kernel_part.cubin"], capture_output=True, text=True, check=True
    )
    assert f"REG:{found.registers} " in told.stdout + told.stderr


@needs_nvcc
def test_too_much_shared_memory_leaves_early(tmp_path: Path) -> None:
    found = report(tmp_path, tile=128)
    assert isinstance(found, Failure)
    assert found.stage == "resources"
    assert "too much shared data" in found.message


@needs_nvcc
def test_too_many_threads_or_registers_leave_early(tmp_path: Path) -> None:
    found = report(tmp_path, tile=64, threads=64 * 64)
    assert isinstance(found, Failure)
    assert "4096 threads in a block: NVIDIA H100 takes 1024" in found.message


@needs_nvcc
def test_spills_are_seen(tmp_path: Path) -> None:
    body = "float v[96]; for (int i = 0; i < 96; ++i) v[i] = x[i * 33 + threadIdx.x];"
    sums = "for (int r = 0; r < 50; ++r) for (int i = 0; i < 96; ++i) v[i] = v[i] * v[(i * 7 + 1) % 96] + 1;"
    source = (
        f'__global__ void __launch_bounds__(1024, 2) f(float* x) {{ {body} _Pragma("unroll 2") {sums} '
        "for (int i = 0; i < 96; ++i) x[i * 33 + threadIdx.x] = v[i]; }"
    )
    found = report(tmp_path, source)
    assert isinstance(found, Evidence)
    assert (found.spill_bytes or 0) + (found.stack_bytes or 0) > 0


@needs_nvcc
@pytest.mark.parametrize("source", ["this is no CUDA", "void host_only() {}", "__global__ void f(missing_type* x) {}"])
def test_without_output_of_nvcc_nothing_is_reported(tmp_path: Path, source: str) -> None:
    assert report(tmp_path, source) is None


def test_without_a_gpu_a_call_ends_in_a_clear_error_and_the_report_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    module = fa.load_inline(
        "toy_cuda",
        "torch::Tensor run(torch::Tensor a, torch::Tensor b);",
        SOURCE,
        functions=["run"],
        space=[{"TILE": 16}],
    )
    with pytest.raises(fa.NoWorkingConfigError, match=r"toy_cuda has cuda_sources, and torch .* finds no GPU here"):
        module.run(torch.ones(64, 64), torch.ones(64, 64))
    if NVCC is not None:
        found = module.report({"TILE": 16})
        assert isinstance(found, Evidence)
        assert found.registers
