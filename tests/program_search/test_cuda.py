"""CUDA: what rewrites make of a text, what is built of it by the real nvcc in the box, what stands for a task."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.proposer_contract import ProposerContract
from doubling import task
from kernel_suite import cuda_kernels

import forecast_autotune as fa
from calibration.search_tasks import CUDA_SIZES, search_tasks
from forecast_autotune.cli.search import _target
from forecast_autotune.compilers.cpp_compile import CppCompiler
from forecast_autotune.compilers.cpp_recipe import with_headers
from forecast_autotune.compilers.cuda_report import uses_torch
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.outcome import Failure
from forecast_autotune.core.space import Space
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search import build
from forecast_autotune.program_search import task as tasks
from forecast_autotune.program_search.budget import SearchBudget
from forecast_autotune.program_search.candidate import normalised
from forecast_autotune.program_search.finals import Final, Finals
from forecast_autotune.program_search.lineage import WalkedBack
from forecast_autotune.program_search.machine_code import code_digest
from forecast_autotune.program_search.nvcc_flags import FLAGS, flags_of, with_flag, without_flags
from forecast_autotune.program_search.proposers.base import SearchView
from forecast_autotune.program_search.proposers.c_text import blanked
from forecast_autotune.program_search.proposers.cuda_rewrites import rewrites
from forecast_autotune.program_search.proposers.rewriting import Knobs, Rewrites
from forecast_autotune.program_search.rules import broken_rule
from forecast_autotune.program_search.run import SearchResult
from forecast_autotune.program_search.task import SearchTask, task_of

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="needs nvcc")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
H100 = Hardware(kind="cuda", name="NVIDIA H100", capability="9.0", max_threads=1024, shared_bytes=232448)

SUITE = {
    f"{kernel.name}.{name}": with_headers(path.read_text(), [str(path.parent)])
    for kernel in cuda_kernels()
    for name, path in kernel.sources.items()
    if name != "binding"
}

SAXPY = """
#include <cstdint>
// __global__ void in_a_comment(float* x) {
__device__ float scaled(const float* x, int i, float by) { return by * x[i]; }
__global__ void saxpy(int n, float by, const float* x, float* y) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = by * x[i] + y[i];
}
__global__ void reversed(int n, float by, const float* x, float* y) {
    const float* from = x + 1;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 1 >= n) return;
    float sum = 0;
    for (int k = 0; k < 3; ++k) sum += x[i] * k;
    y[n - 2 - i] = sum + scaled(x, i, by) + from[i];
}
__global__ void turned(int rows, int columns, const float* x, float* y) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column < columns && row < rows) y[column * rows + row] = x[row * columns + column];
}
extern "C" void all(int n, const float* x, float* y, cudaStream_t stream) {
    saxpy<<<3, 32, 0, stream>>>(n, 2.0f, x, y);
    reversed<<<(n + 31) / 32, 32, 0, stream>>>(n, 3.0f, x, y + n);
    turned<<<dim3(2, n / 37), 32, 0, stream>>>(n / 37, 37, x, y + 2 * n);
}
"""
GPU = """
#include <cstring>
#include <cstdio>
#include <vector>
#define __global__
#define __device__
#define __forceinline__
#define __noinline__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define cudaFuncSetAttribute(...)
#define cudaGetDevice(...)
#define cudaDeviceGetAttribute(...)
struct dim3 { unsigned x, y; dim3(unsigned x = 1, unsigned y = 1) : x(x), y(y) {} };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
using cudaStream_t = int;
static dim3 blockIdx, threadIdx, blockDim, gridDim;
static void __syncthreads() {}
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
template <class T> T __ldg(const T* x) { return *x; }
#define __ldca __ldg
#define __ldcg __ldg
#define __ldcs __ldg
#define __ldlu __ldg
template <class T> void __stcs(T* x, const T& value) { *x = value; }
#define __stcg __stcs
#define __stwt __stcs
template <class F> void launch(dim3 grid, dim3 block, F f) {
    gridDim = grid; blockDim = block;
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
            for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x) f();
}
"""
"""A GPU whose threads run one after the other, on a CPU."""
MAIN = """
int main() {
    for (int shift = 0; shift < 2; ++shift) {  // addresses that a vector may and may not be loaded from
        const int n = 37 * 5;
        alignas(16) static float x[200], y[800];
        for (int i = 0; i < 200; ++i) x[i] = i % 7;
        for (int i = 0; i < 800; ++i) y[i] = i % 5;
        all(n, x + shift, y + shift, 0);
        for (int i = 0; i < 3 * n; ++i) printf("%g ", y[shift + i]);
    }
}
"""


def on_a_cpu(source: str) -> str:
    launches = re.compile(r"(\w+)<<<(.*?), 32, 0, stream>>>\((.*?)\);")
    text = launches.sub(r"launch(\2, 32, [&] { \1(\3); });", without_flags(source))
    return re.sub(r"^#pragma unroll.*$", "", GPU + text + MAIN, flags=re.MULTILINE)


def cuda_task(source: str = SAXPY, **others: Any) -> SearchTask:
    return task(**{"language": "cuda", "source": source, "spaces": {"": Space([{"N": 1}])}, "module": "", **others})


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which torch finds a GPU, and nvcc is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tasks, "nvcc_path", lambda: NVCC or "nvcc")


# Texts ---------------------------------------------------------------------------------------------------------------


class TestCudaRewrites(ProposerContract):
    def make(self) -> Rewrites:
        return Rewrites()

    def task(self) -> SearchTask:
        return cuda_task()


def is_balanced(text: str) -> bool:
    open_ = []
    for character in blanked(text):
        if character in "([{":
            open_.append(")]}"["([{".index(character)])
        elif character in ")]}" and (not open_ or open_.pop() != character):
            return False
    return not open_


@pytest.mark.parametrize("name", SUITE)
def test_rewrites_of_the_suite_are_named_differ_and_are_balanced(name: str) -> None:
    source, of = SUITE[name], cuda_task(SUITE[name])
    made = list(rewrites(source))
    assert len({text for _, text in made}) >= 36
    assert len({step.partition("@")[0] for step, _ in made}) >= 15
    for step, text in made:
        assert re.fullmatch(r"\w+@[\w.]+=\w+", step)
        assert text != source, step
        assert is_balanced(text), step
        assert "fast_math" not in text
        assert not broken_rule(replace(of.seed, source=text), of), step


def test_rewrites_of_rewrites_are_balanced_too() -> None:
    for step, text in itertools.islice(rewrites(SAXPY), 0, None, 7):
        for further, twice in rewrites(text):
            assert is_balanced(twice), (step, further)
            assert twice != text


@needs_gxx
def test_rewrites_compute_the_same_on_a_gpu_of_one_thread_at_a_time(tmp_path: Path) -> None:
    made = {step.partition("=")[0]: (step, text) for step, text in rewrites(SAXPY)}
    wanted = {"vector", "split", "steps", "load_hint", "store_hint", "restrict", "backward", "persistent", "swizzle"}
    assert wanted <= {step.partition("@")[0] for step, _ in made.values()}
    told = {}
    for i, (step, text) in enumerate([("", SAXPY), *made.values()]):
        (tmp_path / f"{i}.cpp").write_text(on_a_cpu(text))
        command = ["g++", "-std=c++17", "-fno-strict-aliasing", f"{i}.cpp", "-o", f"{i}"]
        subprocess.run(command, cwd=tmp_path, check=True)
        told[step] = subprocess.run([str(tmp_path / str(i))], capture_output=True, text=True, check=True).stdout
    assert [step for step, text in told.items() if text != told[""]] == []


def test_what_a_text_allows_is_rewritten() -> None:
    made = dict(rewrites(SAXPY))
    vector = made["vector@loop0=4"]
    assert "const float4* __restrict__" not in vector
    assert "reinterpret_cast<const float4*>(x)[i_vector]" in vector
    assert "hinted_ldcs(&x[row * columns + column])" in made["load_hint@turned=ldcs"]
    assert "hinted_stcs(&y[n - 2 - i], sum + scaled(x, i, by) + from[i]);" in made["store_hint@reversed=stcs"]
    assert "__device__ __noinline__ float scaled" in made["inline@scaled=noinline"]
    assert "void __launch_bounds__(256)" not in made["max_threads@saxpy=256"]
    assert "__global__ __launch_bounds__(256) void saxpy" in made["max_threads@saxpy=256"]
    assert "const float* __restrict__ x, float* __restrict__ y" in made["restrict@saxpy=arguments"]
    assert not any("in_a_comment" in step for step in made)
    assert "persistent@turned=1" not in made  # its grid has two axes


def test_shared_memory_is_padded_and_never_hinted_at() -> None:
    source = """
struct Tiles { float a[8][16]; };
__global__ void f(const float* x, float* y) {
    __shared__ float tile[4][32], other[2][2];
    __shared__ Tiles tiles;
    const float* from = &tile[0][0];
    tile[0][threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = from[threadIdx.x] + tiles.a[0][threadIdx.x];
}
"""
    made = dict(rewrites(source))
    assert "tile[4][32 + 1], other[2][2]" in made["pad@tile=1"]
    assert "other[2][2 + 4]" in made["pad@other=4"]
    assert "a[8][16 + 1]" in made["pad@a=1"]
    hinted = made["load_hint@f=ldg"]
    assert "hinted_ldg(&x[threadIdx.x])" in hinted
    assert "from[threadIdx.x] + tiles" in hinted


def test_headers_are_written_out_once_where_they_say_so(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("#pragma once\nint a;\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.cuh").write_text('#include "c.cuh"\n#include "../a.cuh"\nint b;\n')
    (tmp_path / "inner" / "c.cuh").write_text('#include "b.cuh"\nint c;\n')
    text = '#include <a.cuh>\n#include "a.cuh"\n#include "inner/b.cuh"\n#include "none.h"\n'
    told = with_headers(text, [str(tmp_path)])
    assert told == '#include <a.cuh>\nint a;\n#include "b.cuh"\nint c;\nint b;\n#include "none.h"\n'


# Flags, rules and tasks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["/* ", '\\"', "\\'", 'R"x('])
def test_texts_whose_comments_and_strings_never_end_are_read_at_once(begin: str) -> None:
    text = SAXPY + begin[-1] + begin * 20_000
    began = time.thread_time()
    assert normalised(text, "cuda")
    assert len(blanked(text)) == len(text)
    assert not uses_torch(text)
    assert time.thread_time() - began < 1.5  # each took 2 to 10 s


def test_a_flag_stands_in_a_line_of_its_own_and_takes_the_place_of_another() -> None:
    one = with_flag(SAXPY, "default_load_cache", FLAGS["default_load_cache"]["cg"])
    two = with_flag(one, "most_registers", "--maxrregcount=64")
    assert flags_of(two) == ["--maxrregcount=64", "-Xptxas -dlcm=cg"]
    assert without_flags(two) == SAXPY
    assert flags_of(with_flag(two, "default_load_cache", "-Xptxas -dlcm=ca")) == [
        "-Xptxas -dlcm=ca",
        "--maxrregcount=64",
    ]
    assert with_flag(one, "default_load_cache", "") == SAXPY


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#include <cublas_v2.h>\n", "includes 'cublas_v2.h'"),
        ("#include <thrust/sort.h>\n", "includes 'thrust/sort.h'"),
        ("void f() { cublasSgemm(); }", "uses 'cublasSgemm'"),
        ("void f() { cudnnConvolutionForward(); }", "uses 'cudnnConvolutionForward'"),
        ("void f() { thrust :: sort(a, b); }", "uses 'thrust :: sort'"),
        ("void f() { at::matmul(a, b); }", "uses 'at::matmul'"),
        ("void f() { cub::DeviceReduce::Sum(); }", "uses 'cub::DeviceReduce::Sum'"),
        ("void f() { cudaStreamCreate(&s); }", "uses 'cudaStreamCreate'"),
        ("void f() { std::thread t(g); }", "uses 'std::thread'"),
        ("using namespace std;\nvoid f() { thread t(g); }", "uses 'using namespace std'"),
        ("#pragma nvcc_flags --use_fast_math\n", "asks nvcc for '--use_fast_math'"),
        ("#pragma nvcc_flags -Xptxas -dlcm=cg -include /etc/passwd\n", "asks nvcc for '-Xptxas -dlcm=cg -include"),
    ],
)
def test_what_calls_a_library_or_asks_for_other_arithmetic_is_refused(text: str, why: str) -> None:
    of = cuda_task()
    assert why in broken_rule(replace(of.seed, source=text + SAXPY), of)
    if "nvcc_flags" not in text:
        own = cuda_task(text + SAXPY)  # what a person's own source does, a candidate may
        assert not broken_rule(own.seed, own)


def test_a_thread_of_cpp_is_found_by_its_bare_name() -> None:
    of = replace(cuda_task(), language="c++")
    assert "uses 'thread'" in broken_rule(replace(of.seed, source="void f() { thread t(g); }" + SAXPY), of)


@pytest.mark.parametrize(
    "text", ["#include <cuda_fp16.h>\n", "#include <cooperative_groups/reduce.h>\n", "// a thread\n"]
)
def test_what_comes_with_the_compiler_may_be_used(text: str) -> None:
    of = cuda_task()
    assert not broken_rule(replace(of.seed, source=text + SAXPY), of)


@pytest.mark.usefixtures("with_gpu")
def test_sources_given_by_name_are_variants_of_a_task() -> None:
    (of,) = search_tasks(["cuda_softmax"])
    assert (of.language, of.device, of.source) == ("cuda", "cuda", SUITE["cuda_softmax.block_per_row"])
    assert list(of.spaces) == ["block_per_row", "warp_per_row", "online"]
    assert (tuple(of.sizes), tuple(of.held_out)) == CUDA_SIZES["cuda_softmax"]
    for variant, space in of.spaces.items():
        assert {config["source"] for config in space} == {variant}
        assert {k: v for k, v in space.default.knobs.items() if k != "source"} == {
            k: v for k, v in of.seed.config.knobs.items() if k != "source"
        }
    assert [(c.variant, c.source) for c in of.hand_written] == [
        (variant, SUITE[f"cuda_softmax.{variant}"]) for variant in ("warp_per_row", "online")
    ]
    for turn in range(40):
        for one in Knobs().propose(SearchView(task=of, tried=[], turn=turn), 2):
            assert one.source == SUITE[f"cuda_softmax.{one.variant}"] == of.text_of(one.config["source"])  # type: ignore[arg-type]


@pytest.mark.usefixtures("with_gpu")
def test_all_cuda_kernels_of_the_suite_are_tasks() -> None:
    assert [of.name for of in search_tasks(list(CUDA_SIZES))] == list(CUDA_SIZES)
    assert set(CUDA_SIZES) == {kernel.name for kernel in cuda_kernels()}


BESIDE = """
import torch
cpp_sources = "void scaled(torch::Tensor x, torch::Tensor out);"
space = {"THREADS": [128, 256]}
extra_cuda_cflags = ["-lineinfo"]
no_implicit_headers = True
sizes = {"large": {"n": 100_000}}
def inputs(sizes, seed, device):
    return torch.rand(sizes["n"], device=device), torch.empty(sizes["n"], device=device)
def reference(x, out):
    return 2 * x
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "scaled.cu").write_text('#include "two.cuh"\n' + SAXPY)
    (tmp_path / "two.cuh").write_text("#define TWO 2\n")
    (tmp_path / "scaled.py").write_text(BESIDE)
    return tmp_path / "scaled.cu"


@pytest.mark.usefixtures("with_gpu")
def test_a_cuda_file_is_searched_by_what_stands_beside_it(file: Path) -> None:
    of = _target(str(file))
    assert (of.name, of.language, of.source) == ("scaled", "cuda", "#define TWO 2\n" + SAXPY)
    assert of.recipe.arguments["extra_cuda_cflags"] == ["-lineinfo"]
    assert of.recipe.arguments["no_implicit_headers"] is True
    assert of.seed.config["THREADS"] == 128
    assert not of.hand_written


def test_without_a_gpu_or_nvcc_a_search_of_cuda_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInputError, match=r"scaled has cuda_sources, and torch .* finds no GPU here"):
        _target(str(file))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tasks, "nvcc_path", lambda: None)
    with pytest.raises(InvalidInputError, match="there is no nvcc to build candidates by: put it on PATH"):
        _target(str(file))


@pytest.mark.usefixtures("with_gpu")
def test_a_function_with_cuda_sources_is_a_task() -> None:
    def of(sources: Any, **others: Any) -> SearchTask:
        module = fa.load_inline("toy", "void run();", sources, functions=["run"], space=[{"A": 1}], **others)
        return task_of(module.run, inputs=lambda *_: (), reference=lambda: (), sizes={"one": {"n": 1}})

    assert of(SAXPY).source == SAXPY
    assert of(SAXPY).texts == {}
    with pytest.raises(InvalidInputError, match="toy must have one text of cuda_sources and name its functions"):
        of([SAXPY, SAXPY])


def test_the_diff_tells_flags_apart() -> None:
    of = cuda_task()
    winner = replace(of.seed, source=with_flag(SAXPY.replace("3, 32", "6, 32"), "most_registers", "--maxrregcount=64"))
    finals = Finals(seed=Final(candidate=of.seed), finals=[], winner=Final(candidate=winner), reason="")
    result = SearchResult(
        task=of, tried=[], walked=WalkedBack(program=winner), skills=[], finals=finals, stopped="", unused_answers={},
        budget=SearchBudget(measurements=2),
    )  # fmt: skip
    assert result.diff().startswith("# extra_cuda_cflags: --maxrregcount=64\n--- a/double.cu\n")
    assert "nvcc_flags" not in result.diff()


# The real nvcc -------------------------------------------------------------------------------------------------------


def compiled(source: str, folder: Path, *flags: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.cu").write_text(without_flags(source))
    asked = [word for flag in flags_of(source) for word in flag.split()]
    command = [str(NVCC), "-c", "kernel.cu", "-o", "kernel.o", "-std=c++17", "-gencode=arch=compute_90,code=sm_90"]
    told = subprocess.run(
        [*command, "-no-compress", "-include", "cstdint", *flags, *asked],
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return code_digest(folder / "kernel.o")


@needs_nvcc
def test_the_same_code_has_one_digest_whatever_its_folder_text_and_flags(tmp_path: Path) -> None:
    source = SUITE["cuda_softmax.online"]
    own = compiled(source, tmp_path / "a")
    assert compiled(source, tmp_path / "another folder") == own
    assert compiled("// a comment\n\n" + source, tmp_path / "b") == own
    assert compiled(with_flag(source, "ptxas_level", "-Xptxas -O2"), tmp_path / "c") == own
    assert compiled(with_flag(source, "ptxas_level", "-Xptxas -O1"), tmp_path / "d") != own
    # A change of the host's code alone.
    assert compiled(source.replace("THREADS, 0, stream", "THREADS, 16, stream"), tmp_path / "e") != own


@needs_nvcc
def test_one_rewrite_of_each_kind_compiles(tmp_path: Path) -> None:
    digests = {step: compiled(text, tmp_path / str(i)) for i, (step, text) in enumerate(of_each_kind(SAXPY))}
    assert len(digests) >= 20
    assert len(set(digests.values())) >= 12


@needs_nvcc
@pytest.mark.thorough
@pytest.mark.parametrize("name", {name.partition(".")[0]: name for name in SUITE}.values())
def test_one_rewrite_of_each_kind_compiles_for_each_kernel_of_the_suite(name: str, tmp_path: Path) -> None:
    for i, (_, text) in enumerate(of_each_kind(SUITE[name])):
        compiled(text, tmp_path / str(i))


def of_each_kind(source: str) -> Iterator[tuple[str, str]]:
    yield from {step.partition("@")[0]: (step, text) for step, text in rewrites(source)}.values()


ARCHITECTURES = "-gencode=arch=compute_90,code=compute_90 -gencode=arch=compute_90,code=sm_90"
NINJA = f"cuda_cflags = -DTORCH_EXTENSION_NAME=x -std=c++17 {ARCHITECTURES}\nldflags = -shared '-L/usr/lib x' -lm\n"


@pytest.fixture
def builder(with_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> build.CppBuilder:
    """Of a task whose binding torch has built already, a plain object here."""

    def extension(compiler: CppCompiler, config: Any) -> None:
        slot = compiler.builds.slot(0)
        slot.mkdir(parents=True)
        (slot / "build.ninja").write_text(NINJA)
        (slot / "main.cpp").write_text("int binding() { return 1; }")
        subprocess.run(["g++", "-c", "-fPIC", "main.cpp", "-o", "main.o"], cwd=slot, check=True)

    monkeypatch.setattr(CppCompiler, "extension", extension)
    monkeypatch.setattr(build, "detect_hardware", lambda device: H100)
    (of,) = search_tasks(["cuda_softmax"])
    return build.CppBuilder(of, tmp_path / "candidates", tmp_path / "builds")


@needs_nvcc
@needs_gxx
@pytest.mark.skipif(bool(lacking(may_start=True)), reason=f"no box here: {lacking(may_start=True)}")
def test_candidates_are_built_by_nvcc_in_the_box(builder: build.CppBuilder, tmp_path: Path) -> None:
    (of,) = search_tasks(["cuda_softmax"])
    seed = builder.build(of.seed)
    assert isinstance(seed, build.BuiltCandidate), seed
    log = Path(seed.extension.path).with_name("build.log").read_text()
    assert "-std=c++17 -gencode=arch=compute_90,code=sm_90 -c kernel.cu" in log
    assert "-DTHREADS=256 -DVECTOR=4 -DUNROLL=2" in log
    assert "-Dsource" not in log
    assert "kernel_suite_cuda_softmax.so -L/usr/lib x -lm" in log
    twin = builder.build(replace(of.seed, source=of.source + "\n#define UNUSED 1\n"))
    assert isinstance(twin, build.BuiltCandidate)
    assert twin.code == seed.code
    other = builder.build(replace(of.seed, source=with_flag(of.source, "default_load_cache", "-Xptxas -dlcm=cs")))
    assert isinstance(other, build.BuiltCandidate)
    assert other.code != seed.code
    broken = builder.build(replace(of.seed, source=of.source.replace("softmax(int n", "softmax(number n")))
    assert isinstance(broken, Failure)
    assert broken.stage == "compile"
    assert "kernel.cu(" in broken.message
