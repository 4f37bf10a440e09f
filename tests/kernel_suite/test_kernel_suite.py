"""Every kernel of the suite computes what its reference does, in any variant and at any size."""

from __future__ import annotations

import ctypes
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulated import drawn, emulated
from kernel_suite import (
    Case,
    Kernel,
    conv2d,
    cpp_kernels,
    cuda_conv2d,
    cuda_gemm,
    cuda_kernels,
    cuda_reduction,
    cuda_softmax,
    cuda_transpose,
    gemm,
)

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Evidence
from forecast_autotune.core.space import Space

SAMPLE = 6  # configs per kernel beside the default; each costs about a second to compile
SEED = 20

# Sizes that precede the pointers in a C++ kernel's parameters.
SIZES: dict[str, Callable[..., tuple[int, ...]]] = {
    "gemm": lambda a, b, _out: (a.shape[0], b.shape[1], a.shape[1]),
    "conv2d": lambda image, weight, _out: (*image.shape, weight.shape[0], *weight.shape[2:]),
}
CFLAGS = {"gemm": gemm.CFLAGS, "conv2d": conv2d.CFLAGS}

every_kernel = pytest.mark.parametrize("kernel", tuple(cpp_kernels()), ids=lambda kernel: kernel.name)
every_cuda_kernel = pytest.mark.parametrize("kernel", tuple(cuda_kernels()), ids=lambda kernel: kernel.name)
in_both_languages = pytest.mark.parametrize("kernel", [*cpp_kernels(), *cuda_kernels()], ids=lambda kernel: kernel.name)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="builds variants with g++")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="builds variants with nvcc")


def variant(kernel: Kernel, config: Config, folder: Path) -> Callable[..., None]:
    """One variant, compiled without torch and called through its C interface."""
    library = folder / f"{kernel.name}_{config.digest}.so"
    knobs = [f"-D{name}={value}" for name, value in config.knobs.items()]
    # A vector that is wider than the machine's is made of several, which gcc remarks on (psabi) where it is returned.
    strict = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    command = ["g++", "-std=c++17", "-shared", "-fPIC", *strict, *CFLAGS[kernel.name]]
    built = subprocess.run(
        [*command, *knobs, str(kernel.sources["kernel"]), "-o", str(library)], capture_output=True, text=True
    )
    assert built.returncode == 0, f"{kernel.name} {config}:\n{built.stderr}"
    function = getattr(ctypes.CDLL(str(library)), f"{kernel.name}_kernel")
    function.restype = None

    def call(*tensors: torch.Tensor) -> None:
        sizes = (ctypes.c_int64(n) for n in SIZES[kernel.name](*tensors))
        function(*sizes, *(ctypes.c_void_p(t.data_ptr()) for t in tensors))

    return call


def wrong_cases(kernel: Kernel, call: Callable[..., None]) -> list[str]:
    """Names of the cases at which `call` differs from the reference, or writes beside its output, or to its inputs."""
    larger = [] if _is_cuda(kernel) else [_odd(kernel)]  # which would take the emulation minutes
    return [case.name for case in (*kernel.corners, *larger) if not _agrees(kernel, case, call)]


def _is_cuda(kernel: Kernel) -> bool:
    return "source" in kernel.space.knobs


def _inputs(kernel: Kernel, case: Case) -> tuple[torch.Tensor, ...]:
    return kernel.make_inputs(case, SEED, *(["cpu"] if _is_cuda(kernel) else []))


def _odd(kernel: Kernel) -> Case:
    return next(case for case in kernel.cases if case.name == "odd")


def _agrees(kernel: Kernel, case: Case, call: Callable[..., None]) -> bool:
    *inputs, out = _inputs(kernel, case)
    before = [tensor.clone() for tensor in inputs]
    guarded = torch.full((out.numel() + 128,), 7.0)  # the output lies between two rows of sevens
    inside = guarded[64:-64].view(out.shape).copy_(out)
    call(*inputs, inside)
    expected = kernel.reference(*inputs, out)
    return (
        torch.allclose(inside, expected, rtol=kernel.rtol, atol=kernel.atol)
        and bool((guarded[:64] == 7.0).all() and (guarded[-64:] == 7.0).all())
        and all(torch.equal(tensor, old) for tensor, old in zip(inputs, before, strict=True))
    )


@needs_compiler
@every_kernel
def test_default_and_sampled_variants_agree_with_the_reference(kernel: Kernel, tmp_path: Path) -> None:
    sample = [kernel.space.default, *random.Random(SEED).sample(kernel.space[1:], SAMPLE)]
    wrong = {str(config): wrong_cases(kernel, variant(kernel, config, tmp_path)) for config in sample}
    assert not {config: names for config, names in wrong.items() if names}


@needs_compiler
@every_kernel
def test_each_algorithm_agrees_with_the_reference(kernel: Kernel, tmp_path: Path) -> None:
    draw = random.Random(SEED + 1)
    for algorithm in dict.fromkeys(config["ALGORITHM"] for config in kernel.space):
        config = draw.choice([config for config in kernel.space if config["ALGORITHM"] == algorithm])
        assert wrong_cases(kernel, variant(kernel, config, tmp_path)) == [], config


@needs_compiler
@pytest.mark.parametrize(
    ("written", "mistaken", "caught_at"),
    [
        ("k0 > 0);", "false);", "deep"),  # a block of k replaces the one before instead of being added to it
        ("x < columns; ++x) to[x]", "x + 1 < columns; ++x) to[x]", "below_a_tile"),  # the last column stays unwritten
        ("x < columns; ++x) to[x]", "x <= columns; ++x) to[x]", "one"),  # one number is written past the end
    ],
    ids=["lost_block", "lost_column", "stray_write"],
)
def test_a_wrong_kernel_is_caught(written: str, mistaken: str, caught_at: str, tmp_path: Path) -> None:
    text = gemm.KERNEL.sources["kernel"].read_text()
    assert text.count(written) == 1
    source = tmp_path / "kernel.cpp"
    source.write_text(text.replace(written, mistaken))
    broken = replace(gemm.KERNEL, sources={"kernel": source})
    small = {"ALGORITHM": "IN_PLACE", "BLOCK_K": 64, "BLOCK_N": 64, "ROWS": 2}
    config = Config({**gemm.SPACE.default.knobs, **small})
    assert caught_at in wrong_cases(broken, variant(broken, config, tmp_path))


@in_both_languages
def test_spaces_are_large_and_every_knob_has_a_role_and_a_choice(kernel: Kernel) -> None:
    assert len(kernel.space) >= 96
    assert set(kernel.space.roles) == set(kernel.space.knobs)
    for knob in kernel.space.knobs:
        assert len({config[knob] for config in kernel.space}) > 1, knob


@every_kernel
def test_a_kernel_compiled_without_knobs_is_the_default_config(kernel: Kernel) -> None:
    text = kernel.sources["kernel"].read_text()
    defaults = dict(re.findall(r"^#define (\w+) (\w+)", text, flags=re.MULTILINE))
    assert defaults == {name: str(value) for name, value in kernel.space.default.knobs.items()}


@in_both_languages
def test_the_binding_names_no_knob(kernel: Kernel) -> None:
    words = set(re.findall(r"\w+", kernel.sources["binding"].read_text()))
    assert not words & set(kernel.space.knobs)


@in_both_languages
def test_cases_are_named_once_and_make_the_same_inputs_each_time(kernel: Kernel) -> None:
    names = [case.name for case in (*kernel.cases, *kernel.corners)]
    assert len(set(names)) == len(names)
    for case in kernel.corners:
        *inputs, out = _inputs(kernel, case)
        assert all(map(torch.equal, inputs, _inputs(kernel, case)))
        assert bool(out.isnan().all())
        assert kernel.reference(*inputs, out).shape == out.shape


@every_kernel
def test_work_counts_every_multiply_add_and_every_tensor_once(kernel: Kernel) -> None:
    arguments = kernel.make_inputs(kernel.cases[0], SEED)
    inputs_per_output = arguments[1].numel() // arguments[-1].shape[1 if kernel.name == "gemm" else 0]
    assert kernel.work(*arguments).flops == 2 * arguments[-1].numel() * inputs_per_output
    assert kernel.work(*arguments).bytes == sum(4 * tensor.numel() for tensor in arguments)


@needs_compiler
@every_cuda_kernel
def test_one_variant_of_each_cuda_source_is_right_when_emulated(
    kernel: Kernel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = {str(config): wrong_cases(kernel, emulated(kernel, config, tmp_path)) for config in drawn(kernel, SEED)}
    assert not {config: names for config, names in wrong.items() if names}
    assert "runtime error" not in capfd.readouterr().err  # of an index or an alignment


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_compiler
@every_cuda_kernel
def test_many_variants_of_each_cuda_source_are_right_when_emulated(
    kernel: Kernel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sample = drawn(kernel, SEED, more=12)
    wrong = {str(config): wrong_cases(kernel, emulated(kernel, config, tmp_path)) for config in sample}
    assert not {config: names for config, names in wrong.items() if names}
    assert "runtime error" not in capfd.readouterr().err


@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "source", "written", "mistaken", "caught_at"),
    [
        # Whoever adds up the partial sums does not wait for them.
        (cuda_reduction.KERNEL, "two_pass", "        __syncthreads();\n", "", "several_tiles"),
        (cuda_reduction.KERNEL, "warp_atomics", "lane == 0) atomicAdd", "lane <= 1) atomicAdd", "several_tiles"),
        # The sum is not scaled down when a larger number turns up.
        (cuda_softmax.KERNEL, "online", "sum * expf(high - value) + 1.0f", "sum + 1.0f", "several_steps"),
        (cuda_gemm.KERNEL, "registers", "k0 += BLOCK_K", "k0 += 2 * BLOCK_K", "deep"),
        # A stage is read before its copies have come, and tiles are overwritten before everybody has read them.
        (cuda_gemm.KERNEL, "pipeline", "wait_prior(STAGES - 2)", "wait_prior(STAGES - 1)", "one"),
        (cuda_gemm.KERNEL, "one_sum", "__syncthreads(); // before", "// before", "deep"),
        (cuda_conv2d.KERNEL, "tile", "c0 += at_once", "c0 += CHANNELS", "more_channels_than_fit"),
    ],
    ids=["no_barrier", "two_lanes", "no_scale", "lost_step", "no_wait", "overwritten", "lost_channels"],
)
def test_a_wrong_cuda_kernel_is_caught_by_the_emulation(
    kernel: Kernel, source: str, written: str, mistaken: str, caught_at: str, tmp_path: Path
) -> None:
    text = kernel.sources[source].read_text()
    assert text.count(written) == 1
    config = next(config for config in (kernel.space.default, *kernel.space) if config["source"] == source)
    assert caught_at in wrong_cases(kernel, emulated(kernel, config, tmp_path, text.replace(written, mistaken)))


@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "source", "written", "mistaken", "told"),
    [
        (cuda_gemm.KERNEL, "one_sum", "left[BLOCK_M][BLOCK_K]", "left[BLOCK_M - 1][BLOCK_K]", "out of bounds"),
        (cuda_transpose.KERNEL, "direct", "columns % VECTOR == 0", "true", "misaligned address"),
    ],
    ids=["shared_memory", "wide_loads"],
)
def test_the_emulation_reports_out_of_range_indices_and_misaligned_loads(
    kernel: Kernel,
    source: str,
    written: str,
    mistaken: str,
    told: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = kernel.sources[source].read_text()
    assert text.count(written) == 1
    config = next(
        config for config in kernel.space if config["source"] == source and config.knobs.get("VECTOR", 4) == 4
    )
    wrong_cases(kernel, emulated(kernel, config, tmp_path, text.replace(written, mistaken)))
    assert re.search(f"runtime error: .*{told}", capfd.readouterr().err)


def _compiles(kernel: Kernel, configs: list[Config], capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every config's kernels compile for a GPU of that capability, and fit it."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", capability)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    module = kernel.load()
    found = {config: module.report(config) for config in configs}
    assert not {str(c): report for c, report in found.items() if not isinstance(report, Evidence)}
    default = found.get(kernel.space.default)
    assert default is None or default.spill_bytes == 0


@needs_nvcc
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
@every_cuda_kernel
def test_the_default_and_one_variant_per_source_compile_for_both_gpus(
    kernel: Kernel, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compiles(kernel, drawn(kernel, SEED), capability, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_nvcc
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
@every_cuda_kernel
def test_many_variants_compile_for_ampere_and_hopper(
    kernel: Kernel, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compiles(kernel, random.Random(SEED).sample(kernel.space[1:], 60), capability, monkeypatch)


def _with_headers(kernel: Kernel, source: str) -> str:
    """A CUDA source with what it includes from its folder in place."""
    path = kernel.sources[source]

    def included(match: re.Match[str]) -> str:
        return (path.parent / match[1]).read_text()

    return re.sub(r'#include "(\w+\.cuh)"', included, path.read_text())


@every_cuda_kernel
def test_a_cuda_source_compiled_without_knobs_is_a_config_of_the_space(kernel: Kernel) -> None:
    """The default config, if that is its source."""
    for source in dict.fromkeys(str(config["source"]) for config in kernel.space):
        defaults = {"source": source}
        for name, value in re.findall(r"^#define (\w+) (\w+)", _with_headers(kernel, source), flags=re.MULTILINE):
            defaults.setdefault(name, value)  # the first holds: those of a header are for sources that set none
        assert defaults.keys() <= set(kernel.space.knobs)
        fitting = [c for c in kernel.space if all(str(c[name]) == value for name, value in defaults.items())]
        assert fitting, defaults
        if source == kernel.space.default["source"]:
            assert kernel.space.default in fitting


@every_cuda_kernel
def test_no_two_configs_of_a_cuda_source_differ_only_in_an_unread_knob(kernel: Kernel) -> None:
    for source in dict.fromkeys(str(config["source"]) for config in kernel.space):
        words = set(re.findall(r"\w+", _with_headers(kernel, source)))
        for knob, role in kernel.space.roles.items():
            values = {config[knob] for config in kernel.space if config["source"] == source}
            assert len(values) == 1 or role == "flag" or knob in words, (source, knob)


@every_cuda_kernel
def test_work_of_a_cuda_kernel_counts_each_tensor_and_multiply_add_once(kernel: Kernel) -> None:
    *inputs, out = _inputs(kernel, kernel.corners[-1])
    work = kernel.work(*inputs, out)
    assert work.bytes == sum(4 * tensor.numel() for tensor in (*inputs, out))
    if len(inputs) == 2:
        assert work.flops == 2 * out.numel() * (inputs[1].numel() // out.shape[1])


@pytest.mark.slow
@needs_compiler
@every_kernel
def test_a_tuned_kernel_agrees_with_the_reference(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The binding alone takes half a minute to compile."""
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path))
    monkeypatch.delenv("FORECAST_AUTOTUNE_BUDGET", raising=False)
    sample = Space([kernel.space.default, *random.Random(SEED).sample(kernel.space[1:], 2)], roles=kernel.space.roles)
    tuned = kernel.tuned(space=sample, budget="all")
    for case in (kernel.corners[-1], _odd(kernel)):
        assert _agrees(kernel, case, tuned), case
    with pytest.raises(RuntimeError, match=f"{kernel.name} takes float32"):
        tuned(*(tensor.double() for tensor in kernel.make_inputs(kernel.corners[0], SEED)))
