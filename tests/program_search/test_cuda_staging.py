"""CUDA: what a block reads alike goes through shared memory, and a kernel computes what it did."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from emulated import FLAGS, emulated, on_cpu
from kernel_suite import cuda_conv2d, cuda_kernels

from forecast_autotune.compilers.cpp_recipe import with_headers
from forecast_autotune.core.config import Config
from forecast_autotune.program_search.proposers import cuda_staging
from forecast_autotune.program_search.proposers.c_text import blanked
from forecast_autotune.program_search.proposers.cuda_rewrites import rewrites
from forecast_autotune.program_search.proposers.cuda_staging import STAGED
from forecast_autotune.program_search.proposers.cuda_text import functions_of

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="needs nvcc")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SUITE = {
    f"{kernel.name}.{name}": path
    for kernel in cuda_kernels()
    for name, path in kernel.sources.items()
    if name != "binding"
}
CONV2D = with_headers((direct := SUITE["cuda_conv2d.direct"]).read_text(), [str(direct.parent)])

TEXT = """
#define TAPS 3
using Index = long long;
__device__ int line(int block) { return 2 * block + 1; }
__global__ void filter(int n, int taps, const float* w, const float* x, float* out) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < taps; ++k) sum += w[k] * x[min(me + k, n - 1)];
    if (me < n) out[me] = sum;
}
__global__ void bodies(int n, int count, float* places, const float* x, float* out) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x, mine = min(me, n - 1);
    float sum = 0.0f;
    if (count > 1) {
#pragma unroll 4
        for (Index k = 1; k < count; k += 2) {
            const float a = places[3 * k] - x[mine], b = places[3 * k + 1] - x[mine], c = places[3 * k + 2];
            sum += c / (1.0f + a * a + b * b);
        }
    }
    if (me >= n) return;
    out[me] = sum;
}
__global__ void product(int rows, int columns, int depth, const float* a, const float* b, float* out) {
    const int column = threadIdx.y * blockDim.x + threadIdx.x, there = min(column, columns - 1);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* left = a + Index{row} * depth;
        float sum = 0.0f;
        for (int k = depth & 1; k < depth; k++)
            sum += left[k] * b[k * columns + there];
        if (column < columns) out[row * columns + column] = sum;
    }
}
__global__ void nearest(int n, int count, const float* centres, const float* x, float* out) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x, first = line(blockIdx.x), mine = min(me, n - TAPS);
    float best = 1e30f;
    for (unsigned c = 0; c < count; ++c) {
        const float* centre = centres + c * TAPS;
        const int back = TAPS - 1, from = first % 2 - 1;
        float sum = 0.0f;
#pragma unroll
        for (int t = 0; t < TAPS; ++t)
            for (int again = 2; again < 6; again += 3) sum += centre[back - t + from] * x[mine + t] * again;
        if (sum < best) best = sum;
    }
    if (me < n) out[me] = best;
}
extern "C" void run(int n, int count, const float* x, const float* y, float* out, cudaStream_t stream) {
    filter<<<(n + 63) / 64, 64, 0, stream>>>(n, count, x, y, out);
    bodies<<<(n + 63) / 64, 64, 0, stream>>>(n, count, const_cast<float*>(x), y, out + n);
    product<<<2, dim3(8, 4), 0, stream>>>(5, 30, count, x, y, out + 2 * n);
    nearest<<<(n + 63) / 64, 64, 0, stream>>>(n, count, x, y, out + 2 * n + 150);
}
"""
PLACES = ("filter.w", "bodies.places", "product.left", "nearest.centre")


def staged(source: str, place: str, size: int) -> str:
    return dict(rewrites(source))[f"stage@{place}={size}"]


def all_staged(size: int) -> str:
    source = TEXT
    for place in PLACES:
        source = staged(source, place, size)
    return source


def outputs(source: str, folder: Path) -> list[torch.Tensor]:
    """What `run` of a text writes on the CPU, at several sizes."""
    folder.mkdir()
    (folder / "text.cpp").write_text(on_cpu(source))
    command = ["g++", "-std=c++17", "-shared", "-fPIC", *FLAGS, "text.cpp", "-o", "text.so"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    run = ctypes.CDLL(str(folder / "text.so")).run
    found = []
    for n, count in [(70, 0), (3, 1), (64, 64), (70, 65), (130, 200)]:
        x, y = torch.rand(5 * 200 + 3 * 201), torch.rand(200 * 30 + n)
        x, y = (torch.sin(torch.arange(float(one.numel())) * by) for one, by in ((x, 1.7), (y, 0.9)))
        out = torch.full((3 * n + 150,), 7.0)
        run(n, count, *(ctypes.c_void_p(t.data_ptr()) for t in (x, y, out)), None)
        found.append(out)
    return found


def of_kernel(body: str, arguments: str = "int n, const float* w, const float* x, float* out") -> str:
    return f"""
__device__ int lane() {{ return threadIdx.x % 32; }}
__device__ void moved(int& k) {{ k += threadIdx.x; }}
#define ME (blockIdx.x * blockDim.x + threadIdx.x)
#define HALF(n) ((n) / 2)
#define ADVANCED(k) (k += threadIdx.x)
#define STEP from += threadIdx.x
#define LEFT return
#define LEAVE LEFT
#define TAKEN(k) atomicSub(&k, 1)
__global__ void f({arguments}) {{
    const int me = ME;
    float sum = 0.0f;
    {body}
    out[me] = sum;
}}
"""


def stages_of(source: str) -> list[str]:
    return [step for step, _ in rewrites(source) if step.startswith("stage@")]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    return outputs(TEXT, tmp_path_factory.mktemp("own") / "own")


@needs_gxx
def test_a_staged_kernel_computes_the_same(
    own: list[torch.Tensor], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for size in STAGED:
        text = all_staged(size)
        assert not stages_of(text)
        for one, other in zip(own, outputs(text, tmp_path / str(size)), strict=True):
            assert torch.equal(one, other)
    assert "runtime error" not in capfd.readouterr().err


@needs_gxx
@pytest.mark.parametrize("barrier", ["__syncthreads();\n", "__syncthreads(); // before"])
def test_without_a_barrier_it_does_not(barrier: str, own: list[torch.Tensor], tmp_path: Path) -> None:
    text = all_staged(64)
    assert text.count(barrier) == len(PLACES)
    without = outputs(text.replace(barrier, "//" if "before" in barrier else "\n"), tmp_path / "without")
    assert not torch.equal(own[-1], without[-1])


@needs_gxx
@pytest.mark.parametrize(("features", "size"), [(4, 64), (2, 256), (1, 1024)])
def test_convolution_with_staged_weights_computes_the_same(
    features: int, size: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kernel = cuda_conv2d.KERNEL
    knobs = {"source": "direct", "THREADS_X": 16, "THREADS_Y": 4, "FEATURES": features, "CHANNELS": 1}
    config = Config({**kernel.space.default.knobs, **knobs})
    (tmp_path / "staged").mkdir()
    own = emulated(kernel, config, tmp_path, CONV2D)
    changed = emulated(kernel, config, tmp_path / "staged", staged(CONV2D, "conv2d.weights", size))
    for case in kernel.corners:
        *inputs, out = kernel.make_inputs(case, 7, "cpu")
        other = out.clone()
        own(*inputs, out)
        changed(*inputs, other)
        assert torch.equal(out, other), case.name
    assert "runtime error" not in capfd.readouterr().err


@pytest.mark.parametrize(("name", "path"), SUITE.items())
def test_of_the_suite_the_weights_of_a_convolution_are_staged(name: str, path: Path) -> None:
    wanted = [f"stage@conv2d.weights={size}" for size in STAGED] if name == "cuda_conv2d.direct" else []
    assert stages_of(with_headers(path.read_text(), [str(path.parent)])) == wanted


def test_a_tile_holds_what_several_rounds_read() -> None:
    text = staged(CONV2D, "conv2d.weights", 256)
    assert "alignas(16) __shared__ float weights_tile[256];" in text
    assert "if (s.taps_y > 0 && s.taps_x > 0 && FEATURES > 0 && 1LL * s.taps_y * s.taps_x * FEATURES <= 256) {" in text
    assert "const int weights_rounds = 256 / (weights_of_y * weights_of_x * weights_of_f);" in text
    assert re.search(r"#pragma unroll\n +for \(int f = 0; f < FEATURES; \+\+f\) \{\n +weights_tile\[", text)
    assert "} else {\n            for (int c = 0; c < s.channels; ++c) {" in text  # a round that does not fit


@pytest.mark.parametrize(
    "body",
    [
        "for (int k = 0; k < n; ++k) sum += w[k] * x[me];",
        "for (int k = 0; k < n; ++k) sum += w[blockIdx.x * n + k];",
        "if (n > 2) { for (int k = 0; k < HALF(n); ++k) sum += w[k]; }",
        "int from = blockIdx.y; from *= 2; for (int k = 0; k < n; ++k) sum += w[from + k];",
        "for (int k = 0; k < n; ++k) { sum += w[k]; if (me < n) sum *= 2; }",
        "for (int b = 0; b < 3; ++b) { if (b == n) break; for (int k = 0; k < n; ++k) sum += w[k]; }",
        "for (int k = 0; k < n; ++k) sum += w[k]; if (me >= n) return;",
        "int from = 0; do { for (int k = 0; k < n; ++k) sum += w[k + from]; ++from; } while (from < 3);",
    ],
)
def test_what_all_threads_read_alike_is_staged(body: str) -> None:
    assert stages_of(of_kernel(body)) == [f"stage@f.w={size}" for size in STAGED]


@pytest.mark.parametrize(
    "body",
    [
        # Threads read different elements
        "for (int k = 0; k < n; ++k) sum += w[k + threadIdx.x];",
        "for (int k = 0; k < n; ++k) sum += w[k + lane()];",
        "for (int k = 0; k < n; ++k) sum += w[k + elsewhere(n)];",
        "for (int k = 0; k < n; ++k) sum += w[k + ME];",
        "int from = 0; if (me > 2) from = 1; for (int k = 0; k < n; ++k) sum += w[k + from];",
        "int from = 0; while (from < me) ++from; for (int k = 0; k < n; ++k) sum += w[k + from];",
        "int from = 0; while (from < n) { ++from; if (me < from) break; } for (int k = 0; k < n; ++k) sum += w[k + from];",
        "int from = 0; moved(from); for (int k = 0; k < n; ++k) sum += w[k + from];",
        "int from = 0; ADVANCED(from); for (int k = 0; k < n; ++k) sum += w[k + from];",
        "int from = 0; elsewhere(from); for (int k = 0; k < n; ++k) sum += w[k + from];",
        "int from = 0; elsewhere(&from); for (int k = 0; k < n; ++k) sum += w[k + from];",
        "int from = 0; STEP; for (int k = 0; k < n; ++k) sum += w[k + from];",
        "auto [from, to] = int2{me, me}; for (int k = 0; k < n; ++k) sum += w[k + from];",
        "int two[2] = {}; int* one = two; *one = me; for (int k = 0; k < n; ++k) sum += w[k + two[0]];",
        "int from = 0; int& same = from; same = me; for (int k = 0; k < n; ++k) sum += w[k + from];",
        "int two[2]; two[0] = me; for (int k = 0; k < n; ++k) sum += w[k + two[1]];",
        "int two[2] = {}; two[me % 2] = 1; for (int k = 0; k < n; ++k) sum += w[k + two[1]];",
        "int2 from; from.x = me; for (int k = 0; k < n; ++k) sum += w[k + from.x];",
        "const int from{lane()}; for (int k = 0; k < n; ++k) sum += w[k + from];",
        "__shared__ int from[1]; from[0] = 1; for (int k = 0; k < n; ++k) sum += w[k + from[0]];",
        "const float* mine = w + me; for (int k = 0; k < n; ++k) sum += mine[k];",
        # They do not all come to the loop, or not equally often
        "if (me >= n) return; for (int k = 0; k < n; ++k) sum += w[k];",
        "if (me > 3) LEAVE; for (int k = 0; k < n; ++k) sum += w[k];",
        "if (me < n) for (int k = 0; k < n; ++k) sum += w[k];",
        "if (me < n) sum = 1; else for (int k = 0; k < n; ++k) sum += w[k];",
        "for (int k = 0; k < me; ++k) sum += w[k];",
        "for (int k = threadIdx.x; k < n; k += blockDim.x) sum += w[k];",
        "do { for (int k = 0; k < n; ++k) sum += w[k]; } while (sum < x[me]);",
        "for (int b = 0; b < 3; ++b) { if (b == me) continue; for (int k = 0; k < n; ++k) sum += w[k]; }",
        "for (int b = 0; b < 3; ++b) { for (int k = 0; k < n; ++k) sum += w[k]; if (b == me) break; }",
        "const auto all = [&](int n) { for (int k = 0; k < n; ++k) sum += w[k]; }; all(me);",
        # What is read may not be there, or changes
        "for (int k = 0; k < n; ++k) { if (k < 5) sum += w[k]; }",
        "for (int k = 0; k < n; ++k) sum += k < 5 ? w[k] : 0.0f;",
        "for (int k = 0; k < n; ++k) { if (k == 5) break; sum += w[k]; }",
        "for (int k = 0; k < n && k < 5; ++k) sum += w[k];",
        "int from = 0; for (int k = 0; k < n; ++k) sum += w[from++];",
        "int from = 0; for (int k = 0; k < n; ++k) { sum += w[k + from]; from = k; }",
        "for (int k = 0; k < n; ++k) { sum += w[k]; ++k; }",
        "for (int k = 0; k < n; ++k) { sum += w[k]; --n; }",
        "for (int k = 0; k < n; ++k) { sum += w[k + TAKEN(n)]; }",
        "switch (n) { case 1: for (int k = 0; k < n; ++k) { switch (me) { default: sum += w[k]; } } }",
        "const float* at = w; for (int k = 0; k < n; ++k) { sum += at[k]; at += 2; }",
        "for (int k = 0; k < n; ++k) { sum += out[k]; out[k] = 1; }",
        "for (int k = 0; k < n; ++k) sum += w[3];",
        "const int w_at = 5; for (int k = 0; k < n; ++k) sum += w[k + w_at];",  # a name that the rewrite gives
    ],
)
def test_what_differs_among_threads_or_may_not_be_there_is_not_staged(body: str) -> None:
    assert stages_of(of_kernel(body)) == []


def test_an_array_that_is_written_is_not_staged() -> None:
    arguments = "int n, float* w, const float* x, float* out"
    body = "for (int k = 0; k < n; ++k) sum += w[k];"
    assert stages_of(of_kernel(body, arguments)) == [f"stage@f.w={size}" for size in STAGED]
    assert stages_of(of_kernel(body + " w[me] = 1;", arguments)) == []
    assert stages_of(of_kernel(body + " float* same = w; same[0] = 1;", arguments)) == []
    assert stages_of(of_kernel("const float* same = w; w[0] = 1;" + body.replace("w[k]", "same[k]"), arguments)) == []


def test_a_loop_whose_bounds_change_is_staged_where_they_do_not() -> None:
    made = dict(rewrites(of_kernel("for (int k = 0; k < n; ++k) for (int j = 0; j < k; ++j) sum += w[k + j];")))
    text = made["stage@f.w=64"]
    assert "for (int w_first = 0; w_first < k; w_first += w_rounds)" in text
    assert "const int j = w_first + w_at;" in text


@needs_nvcc
def test_staged_texts_compile_and_read_elements_four_at_a_time(tmp_path: Path) -> None:
    for name, source in (("text", all_staged(64)), ("conv2d", staged(CONV2D, "conv2d.weights", 256))):
        (tmp_path / f"{name}.cu").write_text(source)
        built = subprocess.run(
            [str(NVCC), "-c", f"{name}.cu", "-o", f"{name}.o", "-std=c++17", "-arch=sm_90", "-keep"],
            cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        assert built.returncode == 0, built.stderr
    assert "ld.shared.v4.f32" in (tmp_path / "conv2d.ptx").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "/* " + "of no use " * 10_000 + "*/ sum += w[0];",
        "".join(f"if (n == {i}) sum += w[{i}]; else " for i in range(3000)) + "sum += 1;",
        "for (int k = 0; k < n; ++k) {" + "".join(f"sum += w[300 * k + {i}];" for i in range(300)) + "}",
    ],
    ids=["a long comment", "many branches", "many reads"],
)
def test_long_texts_are_read_in_a_few_seconds(text: str) -> None:
    code = f"__global__ void f(int n, const float* w, float* out) {{ float sum = 0; {text} out[threadIdx.x] = sum; }}"
    code = blanked(code)
    functions = list(functions_of(code))
    began = time.perf_counter()
    list(cuda_staging.staged(code, code, functions[0], functions))
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize("kind", ["unsigned char", "short", "float", "uint8_t"])
def test_a_loop_whose_counter_may_not_reach_past_a_tile_is_left_alone(kind: str) -> None:
    source = TEXT.replace("int k = 0; k < taps", f"{kind} k = 0; k < taps")
    assert source != TEXT
    assert not [step for step, _ in rewrites(source) if step.startswith("stage@filter")]
