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
from kernel_suite import Case, Kernel, conv2d, gemm, kernels

from forecast_autotune.core.config import Config
from forecast_autotune.core.space import Space

SAMPLE = 6  # configs per kernel beside the default; each costs about a second to compile
SEED = 20

# Sizes that precede the pointers in a C++ kernel's parameters.
SIZES: dict[str, Callable[..., tuple[int, ...]]] = {
    "gemm": lambda a, b, _out: (a.shape[0], b.shape[1], a.shape[1]),
    "conv2d": lambda image, weight, _out: (*image.shape, weight.shape[0], *weight.shape[2:]),
}
CFLAGS = {"gemm": gemm.CFLAGS, "conv2d": conv2d.CFLAGS}

every_kernel = pytest.mark.parametrize("kernel", tuple(kernels()), ids=lambda kernel: kernel.name)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="builds variants with g++")


def variant(kernel: Kernel, config: Config, folder: Path) -> Callable[..., None]:
    """One variant, compiled without torch and called through its C interface."""
    library = folder / f"{kernel.name}_{config.digest}.so"
    knobs = [f"-D{name}={value}" for name, value in config.knobs.items()]
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *CFLAGS[kernel.name]]
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
    return [case.name for case in (*kernel.corners, _odd(kernel)) if not _agrees(kernel, case, call)]


def _odd(kernel: Kernel) -> Case:
    return next(case for case in kernel.cases if case.name == "odd")


def _agrees(kernel: Kernel, case: Case, call: Callable[..., None]) -> bool:
    *inputs, out = kernel.make_inputs(case, SEED)
    before = [tensor.clone() for tensor in inputs]
    guarded = torch.full((out.numel() + 128,), 7.0)  # the output lies between two rows of sevens
    inside = guarded[64:-64].view_as(out).copy_(out)
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


@every_kernel
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


@every_kernel
def test_the_binding_names_no_knob(kernel: Kernel) -> None:
    words = set(re.findall(r"\w+", kernel.sources["binding"].read_text()))
    assert not words & set(kernel.space.knobs)


@every_kernel
def test_cases_are_named_once_and_make_the_same_inputs_each_time(kernel: Kernel) -> None:
    names = [case.name for case in (*kernel.cases, *kernel.corners)]
    assert len(set(names)) == len(names)
    for case in kernel.corners:
        *inputs, out = kernel.make_inputs(case, SEED)
        assert all(map(torch.equal, inputs, kernel.make_inputs(case, SEED)))
        assert bool(out.isnan().all())
        assert kernel.reference(*inputs, out).shape == out.shape


@every_kernel
def test_work_counts_every_multiply_add_and_every_tensor_once(kernel: Kernel) -> None:
    arguments = kernel.make_inputs(kernel.cases[0], SEED)
    inputs_per_output = arguments[1].numel() // arguments[-1].shape[1 if kernel.name == "gemm" else 0]
    assert kernel.work(*arguments).flops == 2 * arguments[-1].numel() * inputs_per_output
    assert kernel.work(*arguments).bytes == sum(4 * tensor.numel() for tensor in arguments)


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
