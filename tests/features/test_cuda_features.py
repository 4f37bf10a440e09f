"""CUDA texts described without compiling: counts by hand, what C++ they may be written in, and texts that say nothing."""

from __future__ import annotations

import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tree_sitter_cuda")
torch = pytest.importorskip("torch")

from kernel_suite import cuda_kernels  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.features.cuda_features import CudaText, argument  # noqa: E402
from forecast_autotune.features.hardware_sheets import sheet_for  # noqa: E402
from forecast_autotune.features.lazy_static_features import LazyStaticFeatures  # noqa: E402
from forecast_autotune.frontends.load_inline.cuda_static_features import CudaSourceTexts  # noqa: E402

H200 = sheet_for("H200")
N = 2**20

SCALE = """
__global__ void scale(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
void run(torch::Tensor x, torch::Tensor out) {
    const int n = x.numel();
    scale<<<(n + THREADS - 1) / THREADS, THREADS>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
}
"""


def described(text: str, *tensors: Any, knobs: Mapping[str, Any] | None = None, folders: tuple[str, ...] = ()) -> Any:
    """The features of `run(x, out)`, both of 2^20 floats unless tensors are given."""
    given = tensors or (torch.empty(N, device="meta"), torch.empty(N, device="meta"))
    arguments = [argument(str(number), value) for number, value in enumerate(given)]
    return CudaText([text], folders).features("run", arguments, knobs or {"THREADS": 256}, H200)


def body(statements: str, *, block: str = "THREADS", grid: str = "n / THREADS") -> str:
    """A text whose kernel does these things."""
    return f"""
__global__ void work(const float* x, float* out, int n) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    {statements}
}}
void run(torch::Tensor x, torch::Tensor out) {{
    const int n = x.numel();
    work<<<{grid}, {block}>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
}}
"""


# By hand --------------------------------------------------------------------------------------------------------------


def test_an_elementwise_kernel_is_counted_as_by_hand() -> None:
    found = described(SCALE)
    assert (found["programs"], found["threads"], found["launches"]) == (4096, 256, 1)
    assert found["loaded_bytes"] == found["stored_bytes"] == 1024
    assert found["traffic_bytes"] == found["unique_bytes"] == found["least_bytes"] == 8 * N
    assert found["elementwise"] == N
    assert (found["access_bytes"], found["per_thread"], found["tile_elements"]) == (4, 1, 256)
    assert found["shared_bytes"] == 0
    assert found["us_bound"] == pytest.approx(4 * N / (H200.bandwidth_gb_per_s * 1e3))


def test_threads_past_the_end_do_nothing() -> None:
    x = torch.empty(1000, device="meta")
    found = described(SCALE, x, x)
    assert found["programs"] == 4
    assert found["elementwise"] == pytest.approx(1000)


def test_a_stride_between_threads_costs_a_sector_each() -> None:
    found = described(body("out[i] = x[i * 8 % n];"))
    assert found["loaded_bytes"] == 256 * 32


def test_vectors_are_moved_at_once() -> None:
    found = described(body("reinterpret_cast<float4*>(out)[i] = ((const float4*)x)[i];", grid="n / 4 / THREADS"))
    assert found["access_bytes"] == 16
    assert found["traffic_bytes"] == found["unique_bytes"] == 8 * N


def test_a_loop_over_the_grid_is_run_once_and_counted_by_its_trips() -> None:
    loop = "for (int j = i; j < n; j += gridDim.x * blockDim.x) out[j] = x[j] + 1.0f;"
    found = described(body(loop, grid="132"))
    assert found["programs"] == 132
    assert found["elementwise"] == pytest.approx(N, rel=0.02)
    assert found["trips"] == pytest.approx(N / 132 / 256, rel=0.02)


def test_a_while_loop_and_a_pointer_that_moves_are_counted_alike() -> None:
    loop = "const float* p = x + i; float sum = 0.0f; while (p < x + n) { sum += *p; p += 1024; } out[i] = sum;"
    found = described(body(loop, grid="4"))
    assert found["elementwise"] == pytest.approx(N)
    assert found["traffic_bytes"] == pytest.approx(4 * N + 4096)


def test_a_tree_is_added_up_by_half_the_threads_and_so_on() -> None:
    tree = """
    __shared__ float tree[THREADS];
    tree[threadIdx.x] = x[i];
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) tree[threadIdx.x] += tree[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(out, tree[0]);
    """
    found = described(body(tree), torch.empty(N, device="meta"), torch.empty(1, device="meta"))
    assert found["shared_bytes"] == 1024
    assert found["atomic_bytes"] == pytest.approx(4 * 4096)
    assert 150 < found["elementwise"] / 4096 < 400  # 255 additions a block, from a sample of its threads


def test_banks_of_shared_memory_that_many_threads_want_cost_time() -> None:
    def transposed(padding: int) -> float:
        statements = f"""
    __shared__ float tile[32][32 + {padding}];
    const int a = threadIdx.x % 32, b = threadIdx.x / 32;
    for (int k = 0; k < 100; ++k) {{
        tile[b][a] = (float)k; __syncthreads(); out[i] = tile[a][b]; __syncthreads();
    }}
    """
        return float(described(body(statements), knobs={"THREADS": 1024})["us_memory"])

    assert transposed(0) > 5 * transposed(1)


def test_shared_memory_of_the_launch_counts_too() -> None:
    statements = "extern __shared__ float all[]; all[threadIdx.x] = x[i]; __syncthreads(); out[i] = all[0];"
    found = described(body(statements, block="THREADS, THREADS * sizeof(float)"))
    assert found["shared_bytes"] == 1024


def test_what_data_decides_is_no_part_of_the_bound() -> None:
    found = described(body("if (x[0] > 0.0f) out[i] = x[i]; else out[i] = 0.0f;"))
    assert found["us_bound"] < 0.01
    assert found["unique_bytes"] == pytest.approx(8 * N, rel=0.6)


# The suite ------------------------------------------------------------------------------------------------------------

SUITE = {kernel.name: kernel for kernel in cuda_kernels()}


def of_suite(name: str, case: str, **knobs: Any) -> Mapping[str, float]:
    kernel = SUITE[name]
    with FakeTensorMode():
        args = kernel.make_inputs(next(each for each in kernel.cases if each.name == case), 0, "cpu")
    config = Config({**kernel.space.default.knobs, **knobs})
    found = CudaSourceTexts(kernel.tuned(budget="0").recipe).of_call(name, args, H200)(config)  # type: ignore[attr-defined]
    assert found is not None
    return found


def test_a_product_in_registers_is_counted_as_by_hand() -> None:
    found = of_suite("cuda_gemm", "square")  # 4096 cubed in tiles of 128 x 128 x 8, 8 x 8 sums a thread
    assert (found["programs"], found["threads"]) == (1024, 256)
    assert found["elementwise"] == 2 * 4096**3
    assert found["loaded_bytes"] == 2 * 128 * 4096 * 4
    assert found["stored_bytes"] == 128 * 128 * 4
    assert found["unique_bytes"] == 3 * 4096**2 * 4
    assert found["shared_bytes"] == 8 * (129 + 128) * 4
    assert (found["trips"], found["per_thread"]) == (512, 64)


def test_stages_of_a_pipeline_and_their_shared_memory_are_counted() -> None:
    found = of_suite("cuda_gemm", "square", source="pipeline", STAGES=3)
    assert found["num_stages"] == 3
    assert found["shared_bytes"] == 3 * 8 * (129 + 128) * 4
    assert found["elementwise"] == 2 * 4096**3


def test_a_sum_in_two_passes_is_two_launches() -> None:
    found = of_suite("cuda_reduction", "gradient")  # 2^22 numbers, 16384 a block
    assert (found["launches"], found["programs"], found["least_programs"], found["threads"]) == (2, 256, 1, 256)
    assert found["traffic_bytes"] == pytest.approx(4 * 2**22 + 256 * 2 * 4, rel=0.001)
    assert found["access_bytes"] == pytest.approx(16, rel=0.01)
    assert found["trips"] == 4


def test_a_softmax_reads_a_row_once_past_l1_where_it_fits() -> None:
    found = of_suite("cuda_softmax", "square", source="block_per_row", THREADS=256, VECTOR=4, UNROLL=4)
    assert (found["programs"], found["threads"]) == (4096, 256)
    assert found["loaded_bytes"] == found["stored_bytes"] == 4096 * 4
    assert found["unique_bytes"] == 2 * 4096 * 4096 * 4


def test_a_transpose_through_a_tile_is_counted_as_by_hand() -> None:
    found = of_suite("cuda_transpose", "square")  # 8192 squared, tiles of 32 x 32, 256 threads
    assert (found["programs"], found["threads"]) == (256 * 256, 256)
    assert found["shared_bytes"] == 32 * 33 * 4
    assert found["loaded_bytes"] == found["stored_bytes"] == 4096
    assert found["traffic_bytes"] == 2 * 8192**2 * 4


def test_a_convolution_is_counted_as_by_hand() -> None:
    # 32 images of 56 x 56 pixels that are written, 64 features: blocks of 32 x 16 pixels and 4 features
    found = of_suite("cuda_conv2d", "middle_layer")
    assert (found["programs"], found["threads"]) == (32 * 2 * 4 * 16, 256)
    tile = 18 * 34 + 9 * 4  # pixels and weights of a channel
    assert found["shared_bytes"] == 4 * tile * 4
    # 16 blocks of four, of a channel 18 x 34 pixels; the last ones have less
    assert 0.7 * 64 * tile * 4 < found["loaded_bytes"] < 1.6 * 64 * tile * 4


@pytest.mark.parametrize(
    ("name", "case"), [(kernel.name, case.name) for kernel in SUITE.values() for case in kernel.cases]
)
def test_what_kernels_move_and_compute_agrees_with_their_work(name: str, case: str) -> None:
    kernel = SUITE[name]
    with FakeTensorMode():
        args = kernel.make_inputs(next(each for each in kernel.cases if each.name == case), 0, "cpu")
        work = kernel.work(*args)
    for source in kernel.variants:
        config = next(config for config in kernel.variants[source])
        described = CudaSourceTexts(kernel.tuned(budget="0").recipe)  # type: ignore[attr-defined]
        found = described.of_call(name, args, H200)(config) or {}
        assert 0.7 * work.bytes <= found["unique_bytes"] <= 1.3 * work.bytes, source
        assert found["elementwise"] >= 0.9 * work.flops, source


def test_a_source_that_refuses_a_filter_says_nothing() -> None:
    kernel = SUITE["cuda_conv2d"]
    args = [torch.empty(shape, device="meta") for shape in ((1, 1, 256, 256), (1, 1, 128, 128), (1, 1, 129, 129))]
    described = CudaSourceTexts(kernel.tuned(budget="0").recipe)  # type: ignore[attr-defined]
    assert described.of_call("cuda_conv2d", args, H200)(kernel.space.default) == {}


# C++ ------------------------------------------------------------------------------------------------------------------

WAYS = {
    "a template and dim3": """
template <typename T, int N>
__global__ void scale(const T* __restrict__ x, T* __restrict__ out) {
    const int i = (blockIdx.y * gridDim.x + blockIdx.x) * N + threadIdx.x;
    out[i] = x[i] * T(2);
}
torch::Tensor run(torch::Tensor x, torch::Tensor y) {
    auto out = torch::empty_like(x);
    dim3 grid(64, x.size(0) / 64 / THREADS);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", [&] {
        scale<scalar_t, THREADS><<<grid, dim3(THREADS)>>>(x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>());
    });
    return out;
}
""",
    "a lambda and a struct with methods": """
struct Row {
    const float* data; int n;
    __device__ bool has(int i) const { return i < n; }
    __device__ float operator()(int i) const { return has(i) ? data[i] : 0.0f; }
};
template <class F> __device__ void each(int i, const F& f) { f(i); }
__global__ void scale(Row x, float* out) {
    const auto twice = [&](int i) { out[i] = 2.0f * x(i); };
    each(blockIdx.x * THREADS + threadIdx.x, twice);
}
void run(const at::Tensor& x, at::Tensor out) {
    const Row row = {x.const_data_ptr<float>(), static_cast<int>(x.numel())};
    scale<<<row.n / THREADS, THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(row, out.mutable_data_ptr<float>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
""",
    "macros": """
#define CEIL(a, b) (((a) + (b) - 1) / (b))
#define REAL float
#ifndef THREADS
#define THREADS 32
#endif
#if defined(THREADS) && THREADS >= 128
#define BLOCKS(n) CEIL(n, THREADS)
#else
#error too few threads
#endif
__global__ void scale(const REAL *x, REAL *out, int n) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    out[i] = x[i] * 2.0f;
}
void run(torch::Tensor x, torch::Tensor out) {
    int n = x.size(0);
    scale<<<BLOCKS(n), THREADS>>>((const REAL*)x.data_ptr(), (REAL*)out.data_ptr(), n);
}
""",
    "a binding by another name": SCALE.replace("void run(", "void scaled(")
    + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &scaled, "scales"); }',
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_kernel_is_described_alike_however_it_is_written(way: str) -> None:
    found, plain = described(WAYS[way]), described(SCALE)
    for name in ("programs", "threads", "traffic_bytes", "unique_bytes", "elementwise", "waves", "per_thread"):
        assert found[name] == plain[name], name


def test_a_knob_may_name_a_type_or_a_constant() -> None:
    text = SCALE.replace("float", "REAL").replace("void run", "enum { SMALL = 128, LARGE = 512 };\nvoid run")
    found = described(text, knobs={"THREADS": "LARGE", "REAL": "double"})
    assert (found["threads"], found["access_bytes"]) == (512, 8)


def test_conditions_of_the_preprocessor_follow_the_config() -> None:
    text = CudaText(["#if WIDE > 1\n#define THREADS 512\n#else\n#define THREADS 64\n#endif\n" + SCALE], ())
    arguments = [argument(name, torch.empty(N, device="meta")) for name in ("x", "out")]
    found = [(text.features("run", arguments, {"WIDE": wide}, H200) or {})["threads"] for wide in (1, 2, 1, 3)]
    assert found == [64, 512, 64, 512]


ASKED = {
    "#ifdef": "#ifdef WIDE\n#define THREADS 512\n#else\n#define THREADS 64\n#endif\n",
    "defined": "#if defined(WIDE) && !defined(NARROW)\n#define THREADS 512\n#else\n#define THREADS 64\n#endif\n",
    "#if": "#if WIDE\n#define THREADS 512\n#else\n#define THREADS 64\n#endif\n",
    "a default": "#ifndef WIDE\n#define WIDE 2\n#endif\n#define THREADS (WIDE == 1 ? 512 : 64)\n",
}


@pytest.mark.parametrize("way", ASKED)
def test_what_some_configs_alone_define_is_asked_for_each(way: str) -> None:
    text = CudaText([ASKED[way] + SCALE], ())
    arguments = [argument(name, torch.empty(N, device="meta")) for name in ("x", "out")]
    found = [(text.features("run", arguments, knobs, H200) or {})["threads"] for knobs in ({}, {"WIDE": 1}, {})]
    assert found == [64, 512, 64]


def test_headers_of_the_caller_are_read(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "size.cuh").write_text("#pragma once\n#define SIZE 128\n")
    (tmp_path / "sizes.cuh").write_text(
        '#include "inner/size.cuh"\n#include <cstdint>\nconstexpr int threads = SIZE;\n'
    )
    text = '#include "sizes.cuh"\n#include "sizes.cuh"\n' + SCALE.replace("THREADS", "threads")
    assert described(text, folders=(str(tmp_path),))["threads"] == 128


def test_without_hardware_bytes_and_blocks_are_told() -> None:
    arguments = [argument(name, torch.empty(N, device="meta")) for name in ("x", "out")]
    found = CudaText([SCALE], ()).features("run", arguments, {"THREADS": 256}, None) or {}
    assert found["traffic_bytes"] == 8 * N
    assert "us_bound" not in found


# What says nothing ----------------------------------------------------------------------------------------------------

BAD = {
    "empty": "",
    "no text": "\0\1\2 }{ ((",
    "cut off": SCALE[: len(SCALE) // 2],
    "no such function": SCALE.replace("void run(", "void walk("),
    "recursion": body("out[i] = again(x, i);").replace(
        "__global__", "__device__ float again(const float* x, int i) { return again(x, i + 1); }\n__global__"
    ),
    "a constant of itself": "constexpr int size = size + 1;\n" + SCALE.replace("THREADS", "size"),
    "a type of itself": "using T = T;\nstruct S { S s; };\n" + body("S s; out[i] = s.s;"),
    "inline assembly": body('float v; asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(x + i)); out[i] = v;'),
    "an unknown function": body("out[i] = who_knows(x[i]);"),
    "an unknown name": body("out[i] = x[i] * who_knows;"),
    "an unknown kernel": SCALE.replace("scale<<<", "other<<<"),
    "a long loop of the host": SCALE.replace("    scale<<<", "    for (int j = 0; j < 1000000; ++j) scale<<<"),
    "an endless loop of the host": SCALE.replace("    scale<<<", "    while (true) scale<<<"),
    "a division by zero": body("out[i] = x[i / (THREADS - 256)];"),
    "a header that is not there": '#include "nowhere.cuh"\n' + SCALE,
    "an open condition": "#if 1\n" + SCALE,
    "a macro of itself": "#define A B\n#define B A\n" + body("out[i] = A;"),
    "a macro that joins": "#define JOIN(a, b) a##b\n" + body("out[i] = JOIN(x, 1)[i];"),
    "a macro without end": "#define F(a) a\n" + SCALE + "\nint v = F(1;",
    "brackets in brackets": body("out[i] = " + "(" * 3000 + "1" + ")" * 3000 + ";"),
    "a function of another library": SCALE.replace("    scale<<<", "    cub::DeviceReduce::Sum(); scale<<<"),
    "torch on the host": SCALE.replace("    scale<<<", "    auto y = at::relu(x); scale<<<"),
}


@pytest.mark.parametrize("text", BAD)
def test_nothing_is_said_of_what_the_walk_does_not_know(text: str) -> None:
    assert described(BAD[text]) is None


REFUSED = {
    "an empty grid": SCALE.replace("<<<(n + THREADS - 1) / THREADS", "<<<n - n"),
    "a block too large": SCALE.replace("THREADS>>>", "4096>>>"),
    "an error": "#if THREADS > 128\n#error no\n#endif\n" + SCALE,
    "a check by the host": SCALE.replace("    scale<<<", "    if (THREADS > 128) return;\n    scale<<<"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_config_that_is_refused_is_told_from_one_that_is_unknown(text: str) -> None:
    assert described(REFUSED[text]) == {}
    assert described(REFUSED[text], knobs={"THREADS": 64}) or "<<<n - n" in REFUSED[text] or "4096" in REFUSED[text]


@pytest.mark.parametrize(
    "asked",
    [
        "if __cplusplus < 201703L",
        "if CUDART_VERSION < 12000",
        "ifndef __CUDACC_VER_MAJOR__",
        "if 0\n#elif THREADS > WHO",
    ],
)
def test_an_error_by_what_only_the_compiler_knows_refuses_no_config(asked: str) -> None:
    assert described(f"#{asked}\n#error no\n#endif\n" + SCALE) is None
    after = f"#{asked}\n#define OLD\n#endif\n#if THREADS > 128\n#error no\n#endif\n" + SCALE
    assert described(after) == {}


def test_configs_that_the_walk_does_not_know_are_not_taken_for_refused() -> None:
    text = body("#if THREADS > 128\n who_knows();\n#endif\n out[i] = x[i];")
    configs = [Config({"THREADS": threads}) for threads in (64, 256, 2048)]

    def describe(config: Config) -> Any:
        return described(text if config["THREADS"] < 1024 else SCALE, knobs=config.knobs)

    found = LazyStaticFeatures(configs, describe)
    assert found.asked == (True, False, True)
    assert [bool(each) for each in found] == [True, False, False]


def test_a_header_that_includes_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "again.cuh").write_text('#include "again.cuh"\n')
    assert described('#include "again.cuh"\n' + SCALE, folders=(str(tmp_path),)) is None


def test_arguments_that_are_neither_tensors_nor_numbers_are_unknown() -> None:
    assert described(SCALE, None, "text") is None
    assert described(SCALE, torch.empty(N, dtype=torch.complex64, device="meta"), 3) is None
    assert described(SCALE, 1) is None


def test_a_text_cut_off_anywhere_raises_nothing() -> None:
    for end in range(0, len(SCALE), 7):
        assert not described(SCALE[:end])


def test_what_is_described_later_keeps_no_tensor_of_the_call() -> None:
    kernel = SUITE["cuda_reduction"]
    args = [torch.ones(1000), torch.ones(1)]
    alive = [weakref.ref(arg) for arg in args]
    of_call = CudaSourceTexts(kernel.tuned(budget="0").recipe).of_call(kernel.name, args, H200)  # type: ignore[attr-defined]
    del args
    assert [each() for each in alive] == [None, None]
    assert of_call(kernel.space.default)


def test_a_call_that_is_recalled_loads_no_parser() -> None:
    code = (
        "import sys; from forecast_autotune.features.cuda_features import argument\n"
        "argument('n', 3); print([name for name in sys.modules if 'cuda_walk' in name or 'tree_sitter' in name])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def doubling(line: str, times: int = 36) -> str:
    """Lines of which each names the next one twice."""
    return "".join(f"{line.format(this=n, next=n + 1)}\n" for n in reversed(range(times)))


LOOP = "for (int a{0} = 0; a{0} < 200; ++a{0}) "
ENDLESS = {
    "calls that double": "__device__ float f36(const float* x, int i) { return x[i]; }\n"
    + doubling("__device__ float f{this}(const float* x, int i) {{ return f{next}(x, i) + f{next}(x, i); }}")
    + body("out[i] = f0(x, i);"),
    "macros that double": doubling("#define A{this} A{next} A{next}", 31) + body("out[i] = A0;"),
    "macros of nothing": doubling("#define A{this} A{next} A{next}", 31) + "#define A31\n" + body("out[i] = A0 1;"),
    "macros within their arguments": "#define F(a) a + a\n" + body(f"out[i] = {'F(' * 28}1{')' * 28};"),
    "a macro with much to put in": f"#define F(a) {'a ' * 30_000}\n" + body(f"out[i] = F({'1 + ' * 30_000}1);"),
    "loops in loops of the host": SCALE.replace(
        "    scale<<<", "".join(LOOP.format(n) for n in range(5)) + "; scale<<<"
    ),
    "loops over values": SCALE.replace(
        "    scale<<<", "".join(f"for (int a{n} : {{1, 2, 3, 4, 5, 6}}) " for n in range(12)) + "; scale<<<"
    ),
    "more accesses than memory holds": f"__device__ void f(const float* x, int i) {{ {'x[i] * 3; ' * 2000} }}\n"
    + body("f(x, i); " * 15_000),
    "more variables than there is time for": body("".join(f"int v{n} = {n};" for n in range(60_000))),
}


@pytest.mark.parametrize("text", ENDLESS)
def test_nothing_is_said_of_a_text_that_takes_without_end(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forecast_autotune.features.cuda_walk.text.LONGEST_S", 1.0)
    monkeypatch.setattr("forecast_autotune.features.cuda_walk.world.LONGEST_S", 1.0)
    began = time.monotonic()
    assert described(ENDLESS[text]) is None
    assert time.monotonic() - began < 20.0  # by the walk itself; it takes up to 3 s


LONG = {
    "comments that never end": SCALE + "/* " * 300_000,
    "a string that never ends": SCALE + '"' + '\\"' * 300_000,
    "conditions in conditions": "#if 1\n" * 40_000 + SCALE + "#endif\n" * 40_000,
    "a pragma with room": SCALE.replace("    if (", f"#pragma unroll{' ' * 300_000}x\n    if ("),
    "a number that squares": SCALE.replace(
        "    scale<<<", "long a = 3; for (int b = 0; b < 60; ++b) a = a * a; scale<<<"
    ),
    "structs of structs": "struct S36 { float x; };\n"
    + doubling("struct S{this} {{ S{next} a, b; }};")
    + body("S0 s;"),
}


@pytest.mark.parametrize("text", LONG)
def test_a_text_takes_no_time_by_the_square_of_its_length(text: str) -> None:
    began = time.monotonic()
    described(LONG[text])
    assert time.monotonic() - began < 20.0  # they take up to 1.5 s


def test_what_stands_in_quotes_and_comments_is_no_code() -> None:
    text = SCALE.replace(
        "    if (",
        """ const char q = '"'; /* who_knows(); */ // '"
    const char* s = "/*"; const int z = 1'000'000; if (""",
    )
    assert described(text) == described(SCALE)


def test_registers_that_a_kernel_is_bound_to_and_alignments_are_read() -> None:
    assert described(SCALE.replace("void scale(", "void __maxnreg__(64) scale(")) == described(SCALE)
    hinted = """
template <class T> __device__ T hinted(const T* from) {
    if constexpr (alignof(T) == 4) { const int bits = __ldg(reinterpret_cast<const int*>(from));
        return reinterpret_cast<const T&>(bits); }
    return who_knows(from);
}
"""
    assert described(hinted + SCALE.replace("x[i]", "hinted(&x[i])")) == described(SCALE)


@pytest.mark.parametrize(
    ("size", "number"),
    [
        ("alignof(Four)", 16),
        ("sizeof(Behind)", 32),
        ("alignof(Pair2)", 4),
        ("alignof(half2)", 4),
        ("alignof(float3)", 4),
        ("alignof(double4)", 16),
    ],
)
def test_structs_are_aligned_as_they_say_and_as_cuda_has_its_own(size: str, number: int) -> None:
    structs = """
struct alignas(16) Four { float at[4]; };
struct Behind { char c; Four four; };
struct Pair2 { int a; char b; };
"""
    assert described(structs + SCALE.replace("THREADS>>>", f"{size}>>>"))["threads"] == number


def test_alignments_may_be_written_as_cuda_always_had_them() -> None:
    assert (
        described("struct __align__(16) Four { float at[4]; };\n" + SCALE.replace("THREADS>>>", "alignof(Four)>>>"))[
            "threads"
        ]
        == 16
    )
    for declared in ("__shared__ __align__(16) float kept[256];", "__align__(16) __shared__ float kept[256];"):
        assert described(body(f"{declared} kept[threadIdx.x] = x[i]; out[i] = kept[0];"))["shared_bytes"] == 1024


def test_a_struct_read_as_another_has_the_fields_of_that() -> None:
    text = body(
        "const int4 bits = __ldg(reinterpret_cast<const int4*>(x) + i);\n"
        "    const Four four = reinterpret_cast<const Four&>(bits);\n    out[i] = four.at[1];"
    )
    found = described("struct alignas(16) Four { float at[4]; };\n" + text)
    assert found["loaded_bytes"] == 16 * 256


def test_memory_of_a_tensor_is_aligned_for_vectors() -> None:
    vectors = "reinterpret_cast<float4*>(out)[i] = reinterpret_cast<const float4*>(x)[i];"
    for aligned in ("((unsigned long long)x | (unsigned long long)out) % 16 == 0", "((size_t)(x + 4) & 15) == 0"):
        assert described(body(f"if ({aligned}) {{ {vectors} }} else out[i] = x[i];"))["access_bytes"] == 16
    shifted = body(f"if (((size_t)(x + 1) & 15) == 0) {{ {vectors} }} else out[i] = x[i];")
    assert described(shifted)["access_bytes"] == 4


UNITS = {
    "an attribute": "cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0);",
    "a check": "C10_CUDA_CHECK(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0));",
    "torch's properties": "units = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;",
    "a macro's check": "do { if (cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0)) exit(1); } while (0);",
    "a header's check": "checkCudaErrors(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0));",
    "properties": "cudaDeviceProp all; cudaGetDeviceProperties(&all, 0); units = all.multiProcessorCount;",
}


@pytest.mark.parametrize("asked", UNITS)
def test_a_grid_of_so_many_blocks_for_each_unit_is_as_large_as_the_device(asked: str) -> None:
    text = SCALE.replace("scale<<<(n + THREADS - 1) / THREADS", f"int units = 1; {UNITS[asked]} scale<<<4 * units")
    assert described(text)["programs"] == 4 * H200.units


def test_what_a_function_of_elsewhere_writes_does_not_stay_as_it_was() -> None:
    assert described(SCALE.replace("scale<<<(n", "int most = 1; units_of(&most); scale<<<most + (n")) is None


OF_ELSEWHERE = {
    "a launcher of a header": "launch_scale<float>(x.data_ptr<float>(), n);",
    "the driver's launch": "cuLaunchKernel(kernel, n / THREADS, 1, 1, THREADS, 1, 1, 0, 0, nullptr, nullptr);",
    "a copy": "cudaMemcpyAsync(out.data_ptr(), x.data_ptr(), 4 * n, cudaMemcpyDeviceToDevice, 0);",
    "a graph": "cudaGraphLaunch(graph, 0);",
    "an object of a library": "Scale<float> op(n); op.run(x.data_ptr<float>());",
}


@pytest.mark.parametrize("way", OF_ELSEWHERE)
def test_what_is_launched_elsewhere_is_not_taken_for_refused(way: str) -> None:
    text = SCALE.replace("    scale<<<", f"    if (THREADS == 256) {{ {OF_ELSEWHERE[way]} return; }}\n    scale<<<")
    assert described(text) is None
    assert described(text, knobs={"THREADS": 64})["threads"] == 64


def test_what_the_driver_is_asked_for_does_not_stay_as_it_was() -> None:
    asked = "int most = 1; cudaOccupancyMaxActiveBlocksPerMultiprocessor(&most, scale, THREADS, 0);"
    assert described(SCALE.replace("scale<<<(n + THREADS - 1) / THREADS", f"{asked} scale<<<most")) is None
    limit = "cudaFuncSetAttribute(scale, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024);"
    assert described(SCALE.replace("    scale<<<", f"    {limit} scale<<<")) == described(SCALE)


def test_a_loop_is_unrolled_as_often_as_its_pragma_says() -> None:
    def told(pragma: str, end: str = "64") -> Any:
        text = body(f"float sum = 0;\n{pragma}\nfor (int k = 0; k < {end}; ++k) sum += x[i * 64 + k];\nout[i] = sum;")
        found = described("#define AT_ONCE (2 * 4)\n" + text, knobs={"THREADS": 256, "TIMES": 8})
        return found["per_thread"], found["trips"]

    assert told("") == told("#pragma unroll 1") == (1, 64)
    for pragma in ("#pragma unroll 8", "#pragma unroll (8)", "#pragma unroll AT_ONCE", "#pragma unroll TIMES"):
        assert told(pragma) == (8, 8)
    assert told("#pragma unroll") == told("#pragma unroll 64") == told("#pragma unroll 1000") == (64, 1)
    assert told("#pragma unroll", "THREADS / 4") == (64, 1)
    assert told("#pragma unroll", "n / 16384") == (1, 64)  # known at a call alone
    assert told("#pragma unroll 4", "n / 16384") == (4, 16)


@pytest.mark.parametrize(
    "loop",
    [
        "int k = n / 16384; k > 0; --k",
        "int k = 0; n / 16384 > k; ++k",
        "int k = 0, end = n / 16384; k < end; ++k",
        "int k = blockDim.x / 4; k > 0; --k",
    ],
)
def test_a_loop_that_the_call_tells_is_unrolled_by_a_number_alone(loop: str) -> None:
    text = body(f"float sum = 0;\n#pragma unroll\nfor ({loop}) sum += x[i * 64 + k];\nout[i] = sum;")
    assert described(text)["per_thread"] == 1
    assert described(text.replace("unroll", "unroll 4"))["per_thread"] == 4
    own = "int i = 0; i < 64; ++i"  # not the one around it
    assert described(text.replace(loop, own).replace("i * 64 + k", "i"))["per_thread"] == 64
