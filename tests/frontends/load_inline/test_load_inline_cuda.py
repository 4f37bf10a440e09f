"""CUDA variants on a GPU: tuned, refused, survived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import forecast_autotune as fa
from forecast_autotune.core.outcome import Evidence, Failure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

DECLARATION = "torch::Tensor multiply(torch::Tensor a, torch::Tensor b);"

SOURCE = r"""
template <int N>
__global__ void tiled(const float* a, const float* b, float* c, int n, int behave) {
  __shared__ float left[N][N], right[N][N];
  const int row = blockIdx.y * N + threadIdx.y, column = blockIdx.x * N + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; k += N) {
    left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < N; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (behave == 1) *reinterpret_cast<volatile float*>(16) = sum;
  if (behave == 2) sum += 1.0f;
  if (behave == 3) for (long long start = clock64(); clock64() - start < 100000000000LL;) {}  // a minute
  c[row * n + column] = sum;
}

torch::Tensor multiply(torch::Tensor a, torch::Tensor b) {
  auto c = torch::empty_like(a);
  const int n = a.size(0);
  tiled<TILE><<<dim3(n / TILE, n / TILE), dim3(TILE, TILE)>>>(
      a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), n, BEHAVE);
  return c;
}
"""

SPACE = [
    {"TILE": 4, "BEHAVE": 0},
    {"TILE": 16, "BEHAVE": 0},
    {"TILE": 32, "BEHAVE": 0},
    {"TILE": 16, "BEHAVE": 1},
    {"TILE": 16, "BEHAVE": 2},
    {"TILE": 16, "BEHAVE": 3},
    {"TILE": 128, "BEHAVE": 0},
]


def load(builds: Path) -> Any:
    space = fa.Space(SPACE, roles={"TILE": "tile"})
    return fa.load_inline(
        "toy_cuda", DECLARATION, SOURCE, functions=["multiply"], space=space, build_directory=str(builds),
        signature="a, b", work=lambda a, b: (2.0 * len(a) ** 3, 12.0 * len(a) ** 2),
    )  # fmt: skip


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds")


@pytest.mark.timeout(600)
def test_the_best_variant_is_found_and_the_bad_ones_are_survived(builds: Path) -> None:
    a, b = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    module = load(builds)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.testing.assert_close(module.multiply(a, b), a @ b, rtol=1e-3, atol=1e-2)
    (decision,) = module.multiply.decisions.values()
    print(decision)
    assert decision.config["BEHAVE"] == 0
    assert decision.config["TILE"] in (16, 32)
    assert decision.speedup > 1.2
    assert decision.failed == 4
    outcomes = module.multiply.tuned.outcomes((a, b))
    stages = {(c["TILE"], c["BEHAVE"]): o.stage for c, o in outcomes.items() if isinstance(o, Failure)}
    print({c.text: getattr(o, "message", None) or getattr(o, "median_us", None) for c, o in outcomes.items()})
    assert stages == {(16, 1): "launch", (16, 2): "check", (16, 3): "timeout", (128, 0): "resources"}
    assert float(torch.ones(8, device="cuda").sum()) == 8.0, "the caller's context is whole"

    again = load(builds)
    torch.testing.assert_close(again.multiply(a, b), a @ b, rtol=1e-3, atol=1e-2)
    (recalled,) = again.multiply.decisions.values()
    assert recalled.run == decision.run


def test_cpu_tensors_for_a_cuda_extension_are_an_error(builds: Path) -> None:
    with pytest.raises(fa.NoWorkingConfigError, match="no argument of this call is a CUDA tensor"):
        load(builds).multiply(torch.ones(64, 64), torch.ones(64, 64))


def test_the_report_is_for_the_gpu_of_this_machine(builds: Path) -> None:
    found = load(builds).report(SPACE[1])
    assert isinstance(found, Evidence)
    assert found.shared_bytes == 2 * 16 * 16 * 4
