"""A search for programs on a GPU, whose candidates run in the box."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("libcst")

import forecast_autotune as fa  # noqa: E402
from calibration.search_tasks import search_tasks  # noqa: E402
from forecast_autotune import cli  # noqa: E402
from forecast_autotune.measure.probe import nvcc_path  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def test_a_kernel_of_the_suite_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(
        ["search", "kernel_suite.softmax.variants:VARIANTS", "--budget", "3", "--json", "--dir", str(tmp_path)]
    )
    found, told = capsys.readouterr()
    assert code in (0, 1), told
    assert json.loads(found)["measured"] == 3, told


CUDA = """
__global__ void scale(int n, const float* x, float* out) {
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) out[i] = 2 * x[i];
}
extern "C" void scale_by_two(int n, const float* x, float* out, cudaStream_t stream) {
    if (n > 0) scale<<<(n + THREADS - 1) / THREADS, THREADS, 0, stream>>>(n, x, out);
}
"""
BESIDE = '''
import torch
cpp_sources = """
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
extern "C" void scale_by_two(int n, const float* x, float* out, cudaStream_t stream);
void scaled(const at::Tensor& x, at::Tensor out) {
    const c10::cuda::CUDAGuard on(x.device());
    scale_by_two(x.numel(), x.const_data_ptr<float>(), out.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
}
"""
no_implicit_headers = True
space = {"THREADS": [256, 128, 512]}
sizes = {"large": {"n": 1 << 24}}
held_out = {"odd": {"n": 9_999_999}}
corners = {"none": {"n": 0}, "few": {"n": 5}}
tolerances = ((0.0, 0.0),)
def inputs(sizes, seed, device):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.rand(sizes["n"], device=device, generator=generator), torch.empty(sizes["n"], device=device)
def reference(x, out):
    return 2 * x
'''
needs_nvcc = pytest.mark.skipif(nvcc_path() is None, reason="needs nvcc")


@needs_nvcc
def test_a_cuda_file_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scaled.cu").write_text(CUDA)
    (tmp_path / "scaled.py").write_text(BESIDE)
    words = ["search", str(tmp_path / "scaled.cu"), "--budget", "6", "--json", "--dir", str(tmp_path / "store")]
    code = cli.main(words)
    found, told = capsys.readouterr()
    assert code in (0, 1), told
    result = json.loads(found)
    assert result["measured"] == 6, told
    assert sum(tried["time_us"] is not None for tried in result["tried"]) >= 3, told


@needs_nvcc
def test_a_cuda_kernel_of_the_suite_is_searched_with_its_sources_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path))
    (task,) = search_tasks(["cuda_softmax"])
    result = fa.search(task, budget=6)
    assert result.budget.measured == 6
    assert {final.candidate.variant for final in result.finals.finals} >= {"warp_per_row", "online"}
    assert sum(tried.time_us is not None for tried in result.tried) >= 3, [tried.outcome for tried in result.tried]
