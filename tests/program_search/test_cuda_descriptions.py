"""What CUDA candidates launch: their texts are read in a box, as the call of a person is described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from describers import describers_started
from kernel_suite import cuda_kernels

pytest.importorskip("tree_sitter_cuda")

from calibration.search_tasks import CUDA_SIZES, search_tasks
from forecast_autotune.compilers.cpp_recipe import Recipe
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.hardware import Toolchain
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.space import Space
from forecast_autotune.features.hardware_sheets import sheet_for
from forecast_autotune.frontends.load_inline.cuda_static_features import CudaSourceTexts
from forecast_autotune.processes.box import lacking
from forecast_autotune.program_search import cuda_descriptions, without_gpu
from forecast_autotune.program_search import descriptions as descriptions_module
from forecast_autotune.program_search import task as tasks
from forecast_autotune.program_search.candidate import Candidate, TriedCandidate
from forecast_autotune.program_search.descriptions import CandidateDescriber, describer_of, over_sizes
from forecast_autotune.program_search.forecasts import CandidateForecaster
from forecast_autotune.program_search.nvcc_flags import with_flag
from forecast_autotune.program_search.proposers.rewriting import rewrites_of
from forecast_autotune.program_search.task import SearchTask
from forecast_autotune.store.encoding import encode_hardware
from forecast_autotune.surrogates.history import History

pytestmark = pytest.mark.skipif(bool(lack := lacking()), reason=f"this system lacks {lack}")

H200 = sheet_for("H200")
TOOLCHAIN = Toolchain(versions={})
KERNELS = {kernel.name: kernel for kernel in cuda_kernels()}

SCALE = """
#include "by.cuh"
__global__ void scale(const float* x, float* out, int n) {
    const int first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = first; i < n; i += gridDim.x * blockDim.x) out[i] = BY * x[i];
}
void scaled(torch::Tensor x, torch::Tensor out) {
#if THREADS > 1024
#error too many
#endif
    scale<<<FEW, THREADS>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
}
"""
SIZES: Mapping[str, Mapping[str, object]] = {"large": {"n": 2**20}, "small": {"n": 1000}}


def make_inputs(sizes: Mapping[str, Any], seed: int, device: str) -> tuple[Any, ...]:
    return torch.empty(sizes["n"]), torch.empty(sizes["n"])


@pytest.fixture
def task(tmp_path: Path) -> SearchTask:
    """`out = BY x` with knobs, a header of the caller's and a macro that a flag defines."""
    folder = tmp_path / "headers"
    folder.mkdir()
    (folder / "by.cuh").write_text("#define BY 2.0f\n")
    recipe = Recipe(
        name="scaled",
        cpp_sources=("void scaled(torch::Tensor x, torch::Tensor out);",),
        cuda_sources=(SCALE,),
        functions={"scaled": "scaled"},
        arguments={"extra_include_paths": [str(folder)], "extra_cuda_cflags": ["-O3", "-DFEW=264"]},
    )
    return SearchTask(
        name="scaled", language="cuda", source=SCALE, recipe=recipe,
        spaces={"": Space.grid({"THREADS": [256, 64, 128, 2048]}, roles={"THREADS": "threads"})},
        sizes=SIZES, held_out={}, corners={}, make_inputs=make_inputs, reference=lambda x, out: 2 * x,
    )  # fmt: skip


@pytest.fixture
def describer(task: SearchTask, tmp_path: Path) -> CandidateDescriber:
    made = describer_of(task, H200, tmp_path)
    assert made is not None
    return made


def of_suite(name: str, monkeypatch: pytest.MonkeyPatch) -> SearchTask:
    """A task of the suite, whose inputs lie on the CPU."""
    monkeypatch.setattr(tasks, "_cuda_lacks", lambda: "")
    kernel = KERNELS[name]
    cases = (*kernel.cases, *kernel.corners)

    def on_cpu(sizes: Mapping[str, object], seed: int, device: str) -> tuple[Any, ...]:
        case = next(case for case in cases if dict(case.sizes) == dict(sizes))
        return tuple(kernel.make_inputs(case, seed, "cpu"))

    return replace(search_tasks([name])[0], make_inputs=on_cpu, device="cpu")


def written(task: SearchTask, source: str, **others: Any) -> Candidate:
    """A candidate whose text a model wrote."""
    return replace(task.seed, source=source, proposer="test", by_rules=False, **others)


# What is described ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CUDA_SIZES)
def test_seed_and_candidates_are_described_as_the_call_of_a_person(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = of_suite(name, monkeypatch)
    made = describer_of(task, H200, tmp_path)
    assert made is not None
    assert task.recipe is not None
    sources = CudaSourceTexts(task.recipe)
    every = [task.seed, *task.hand_written, replace(task.seed, config=task.spaces[task.seed.variant][1])]
    for one, told in zip(every, made.describe(every), strict=True):
        assert set(told) == set(task.sizes)
        for size, sizes in task.sizes.items():
            by_call = sources.of_call(task.name, task.make_inputs(sizes, 0, "cpu"), H200)(one.config)
            assert by_call
            assert told[size] == pytest.approx(by_call)  # sums end in other digits where numbers lie elsewhere


@pytest.mark.parametrize("name", CUDA_SIZES)
def test_rewrites_of_each_kind_are_described(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = of_suite(name, monkeypatch)
    made = describer_of(task, H200, tmp_path)
    assert made is not None
    for variant, space in task.spaces.items():
        person = replace(task.seed, variant=variant, source=task.text_of(variant), config=space.default)
        kinds = {step.partition("@")[0]: (step, text) for step, text in rewrites_of("cuda")(person.source, "")}
        told = made.describe([replace(person, source=text) for _, text in kinds.values()])
        assert [step for (step, _), one in zip(kinds.values(), told, strict=True) if not all(one.values())] == []


def test_what_rewrites_change_shows(
    task: SearchTask, describer: CandidateDescriber, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(task: SearchTask, describer: CandidateDescriber, variant: str, step: str) -> tuple[Any, Any]:
        person = replace(task.seed, variant=variant, source=task.text_of(variant), config=task.spaces[variant].default)
        text = next(text for label, text in rewrites_of("cuda")(person.source, "") if label.startswith(step))
        return tuple(one[next(iter(task.sizes))] for one in describer.describe([person, replace(person, source=text)]))

    plain, vectors = told(task, describer, "", "vector@loop0=4")
    assert (plain["access_bytes"], vectors["access_bytes"]) == (4, pytest.approx(16))
    assert vectors["us_flops"] < plain["us_flops"]  # fewer instructions
    plain, unrolled = told(task, describer, "", "unroll@loop0=4")
    assert unrolled["in_flight_bytes"] > plain["in_flight_bytes"]
    convolution = of_suite("cuda_conv2d", monkeypatch)
    made = describer_of(convolution, H200, tmp_path)
    assert made is not None
    plain, staged = told(convolution, made, "direct", "stage@")
    assert plain["shared_bytes"] == 0 < staged["shared_bytes"]
    assert staged["loaded_bytes"] < plain["loaded_bytes"]
    softmax = of_suite("cuda_softmax", monkeypatch)
    made = describer_of(softmax, H200, tmp_path)
    assert made is not None
    plain, persistent = told(softmax, made, "block_per_row", "persistent@softmax=4")
    assert (plain["programs"], persistent["programs"]) == (4096, 4 * H200.units)
    assert persistent["traffic_bytes"] == pytest.approx(plain["traffic_bytes"], rel=0.05)
    assert persistent["us_memory"] < 1.5 * plain["us_memory"]


def test_knobs_flags_and_headers_count_as_they_do_where_it_is_built(
    task: SearchTask, describer: CandidateDescriber
) -> None:
    flagged = with_flag(task.source, "most_registers", "--maxrregcount=64")
    narrow = replace(task.seed, config=Config({"THREADS": 64}))
    seed, same, few = describer.describe([task.seed, replace(task.seed, source=flagged), narrow])
    assert same == seed
    assert seed["large"] is not None
    assert few["large"] is not None
    assert (seed["large"]["programs"], seed["large"]["threads"], few["large"]["threads"]) == (264, 256, 64)


def test_each_text_is_read_once_by_a_worker(task: SearchTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_gpu, "begin", lambda *_: H200)
    read: list[Any] = []
    declared = cuda_descriptions.CudaText.__init__

    def counted(self: Any, *of: Any) -> None:
        read.append(of)
        declared(self, *of)

    monkeypatch.setattr(cuda_descriptions.CudaText, "__init__", counted)
    prepare = cuda_descriptions.CudaPreparer(task).prepare
    loads = [
        prepare(replace(task.seed, source=source, config=config)).message  # type: ignore[union-attr]
        for source in (SCALE, SCALE.replace("BY *", "BY +"))
        for config in task.spaces[""]
    ]
    calls = {"large": [cuda_descriptions.told_of(value) for value in make_inputs(SIZES["large"], 0, "cpu")]}
    channel = Sent()
    request = {"calls": calls, "loads": loads, "hardware": encode_hardware(H200)}
    cuda_descriptions.serve_cuda_descriptions(channel, request)  # type: ignore[arg-type]
    assert len(read) == 2
    assert [bool(message["described"]["large"]) for message in channel.messages[1:]] == [True, True, True, False] * 2


class Sent:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)


# What is not ---------------------------------------------------------------------------------------------------------

ASSEMBLY = SCALE.replace("out[i] =", 'asm volatile("membar.gl;"); out[i] =')


def test_refused_candidates_are_told_from_those_that_cannot_be_described(
    task: SearchTask, describer: CandidateDescriber
) -> None:
    refused, unknown = replace(task.seed, config=Config({"THREADS": 2048})), written(task, ASSEMBLY)
    told = describer.describe([refused, unknown])
    assert told == [{"large": {}, "small": {}}, {"large": None, "small": None}]
    assert over_sizes(told[1], list(SIZES)) == {}


class Noting(History):
    """A surrogate that keeps what it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Any] = []

    def start(self, context: ForecastContext) -> Any:
        self.jobs.append(context.job)
        return super().start(context)


def test_undescribable_candidates_are_forecast_and_refused_ones_are_not(
    task: SearchTask, describer: CandidateDescriber
) -> None:
    surrogate = Noting()
    ran = TriedCandidate(
        candidate=task.seed, outcome=Measurement(samples_us=(9.0, 9.1, 9.2)), forecast=None, chosen="seed"
    )
    others = [
        written(task, ASSEMBLY, steps=("model: waits for memory",)),
        replace(task.seed, config=Config({"THREADS": 2048})),
        replace(task.seed, config=Config({"THREADS": 64})),
    ]
    forecasts = CandidateForecaster(task, H200, TOOLCHAIN, surrogate, describer).forecast([ran], others)
    assert [forecast is None for forecast in forecasts] == [False, True, False]
    (job,) = surrogate.jobs
    assert [bool(features) for features in job.static_features] == [True, False, True]
    assert job.static_features.asked == (True, False, True)
    assert job.static_features[0] == over_sizes(describer.describe([task.seed])[0], list(SIZES))


def test_no_file_is_read_that_the_caller_did_not_name(
    task: SearchTask, describer: CandidateDescriber, tmp_path: Path
) -> None:
    (tmp_path / "private.cuh").write_text("#define BY 2.0f\n")
    outside = written(task, SCALE.replace("by.cuh", str(tmp_path / "private.cuh")))
    endless = written(task, SCALE.replace("by.cuh", "/proc/kmsg"))
    told = describer.describe([outside, endless, written(task, SCALE)])
    assert [one.get("large") is not None for one in told] == [False, False, True]


def test_texts_of_models_share_workers_and_a_slow_one_harms_no_other(
    task: SearchTask, describer: CandidateDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptions_module, "SHARES", 1)
    started = describers_started(monkeypatch)
    texts = [SCALE.replace("BY *", f"BY * {n} *") for n in range(4)]
    assert all(one["large"] for one in describer.describe([written(task, text) for text in texts]))
    assert started == [4]
    started.clear()
    monkeypatch.setattr(descriptions_module, "DESCRIBE_TIMEOUT_S", 2.0)
    many = SCALE.replace("const int first", f"{''.join(f'int v{n} = {n};' for n in range(60_000))} const int first")
    texts = [SCALE.replace("BY *", f"BY + {n} *") for n in range(2)]
    told = describer.describe([written(task, text) for text in (texts[0], many, texts[1])])
    assert [bool(one.get("large")) for one in told] == [True, False, True]
    assert started == [3, 1, 1]
    assert told[1] == {"large": None, "small": None}  # which is no reason to refuse it


def test_cpp_and_a_machine_without_a_gpu_are_not_described(task: SearchTask, tmp_path: Path) -> None:
    assert describer_of(replace(task, language="c++"), H200, tmp_path) is None
    assert describer_of(task, replace(H200, kind="cpu"), tmp_path) is None
