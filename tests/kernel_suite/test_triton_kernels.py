"""Every Triton kernel of the suite computes what its reference does, in the interpreter, and compiles for a GPU."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import kernel_suite  # noqa: E402
from kernel_suite import TritonKernel, attention, matmul, triton_kernels  # noqa: E402
from rehearsed import own_triton_cache  # noqa: E402

from forecast_autotune.compilers.triton_compile import TritonCompiler, binding  # noqa: E402
from forecast_autotune.core.outcome import Evidence  # noqa: E402
from forecast_autotune.hardware_sheets import device_properties, sheet_for  # noqa: E402

REPOSITORY = Path(__file__).parents[2]
SUITE = Path(kernel_suite.__file__).parent
SEED = 5

every_kernel = pytest.mark.parametrize("kernel", tuple(triton_kernels()), ids=lambda kernel: kernel.name)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_triton_cache(tmp_path_factory.mktemp("triton-cache")):
        yield


def interpreted(configs: int, kernels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the interpreter says of each kernel: where it was looked at, and what was wrong there."""
    paths = os.pathsep.join([str(REPOSITORY), str(SUITE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted.py")), str(configs), *kernels],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def in_the_interpreter() -> dict[str, dict[str, Any]]:
    return interpreted(4, [kernel.name for kernel in triton_kernels()])


@every_kernel
def test_the_default_sampled_configs_and_the_tuned_kernel_agree_with_the_reference(
    kernel: TritonKernel, in_the_interpreter: dict[str, dict[str, Any]]
) -> None:
    found = in_the_interpreter[kernel.name]
    assert len(found["checked"]) == 6 * len(kernel.corners)
    assert found["wrong"] == {}


MISTAKES = {
    "the_sum_keeps_its_old_scale": ("softmax", "total * tl.exp(high - higher) +", "total +", "over_every_block"),
    "one_is_written_too_many": ("softmax", "float16), mask=column < columns)", "float16), mask=column <= columns)", "one"),
    "a_block_of_minus_infinity_gives_nan": ("softmax", "-3e38", '-float("inf")', "masked"),
    "padding_has_a_deviation": ("layer_norm", "tl.where(inside, value - mean, 0.0)", "value - mean", "below_a_block"),
    "a_query_misses_its_own_key": (
        "attention", "query[:, None] >= key[None, :]", "query[:, None] > key[None, :]", "causal_in_a_block",
    ),
    "what_was_summed_keeps_its_old_scale": ("attention", "out * shrink[:, None]", "out", "over_blocks"),
    "the_input_is_written": ("add_inplace", "tl.store(x_ptr", "tl.store(y_ptr", "one"),
}  # fmt: skip


@pytest.fixture(scope="module")
def wrong_with_mistakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The corners at which each mistake is caught."""
    folder = tmp_path_factory.mktemp("mistaken")
    files = {}
    for mistake, (kernel, written, mistaken, _) in MISTAKES.items():
        text = (SUITE / kernel / "__init__.py").read_text()
        assert text.count(written) == 1, written
        files[mistake] = folder / f"{mistake}.py"
        files[mistake].write_text(text.replace(written, mistaken))
    found = interpreted(0, [str(file) for file in files.values()])
    return {m: {where.rpartition(" at ")[2] for where in found[str(file)]["wrong"]} for m, file in files.items()}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_kernel_is_caught(mistake: str, wrong_with_mistakes: dict[str, set[str]]) -> None:
    assert MISTAKES[mistake][-1] in wrong_with_mistakes[mistake]


def compiled(kernel: TritonKernel, configs: Any) -> dict[str, Any]:
    """What the compiler says of configs for an H200, at the last corner."""
    args = kernel.make_call(kernel.corners[-1], 0, "cpu").args
    limits = device_properties(sheet_for("H200"))
    compiler = TritonCompiler(kernel.function, binding(args, {}), target="cuda:90", properties=limits)
    return {str(config): result for config, result in compiler.compile(list(configs))}


@every_kernel
def test_the_default_and_sampled_configs_compile_for_hopper(kernel: TritonKernel) -> None:
    sample = [kernel.space.default, *random.Random(SEED).sample(kernel.space[1:], 2)]
    told = compiled(kernel, sample)
    assert len(told) == 3
    assert not {config: result for config, result in told.items() if not isinstance(result, Evidence)}
    assert told[str(kernel.space.default)].spill_bytes == 0


@pytest.mark.slow
@every_kernel
def test_every_config_compiles_for_hopper_and_nearly_all_fit_it(kernel: TritonKernel) -> None:
    refused = {config: r for config, r in compiled(kernel, kernel.space).items() if not isinstance(r, Evidence)}
    assert {failure.stage for failure in refused.values()} <= {"resources"}, refused
    assert len(refused) <= 0.1 * len(kernel.space)


@every_kernel
def test_spaces_are_of_a_size_that_people_tune_and_every_knob_has_a_role_and_a_choice(kernel: TritonKernel) -> None:
    assert (12 if kernel.name == "add_inplace" else 24) <= len(kernel.space) <= 64
    assert set(kernel.space.roles) == set(kernel.space.knobs)
    for knob in kernel.space.knobs:
        assert len({config[knob] for config in kernel.space}) > 1, knob
    assert [c.all_kwargs() for c in kernel.configs()] == [
        {**config.knobs, "num_ctas": 1, "num_stages": config.knobs.get("num_stages", 3)} for config in kernel.space
    ]


@every_kernel
def test_cases_are_named_once_and_make_the_same_call_each_time(kernel: TritonKernel) -> None:
    names = [case.name for case in (*kernel.cases, *kernel.corners)]
    assert len(set(names)) == len(names)
    assert "odd" in names
    for case in kernel.corners:
        call, again = (kernel.make_call(case, SEED, "cpu") for _ in range(2))
        assert any(call.out is arg for arg in call.args)
        assert bool(call.out.isnan().all()) is not bool(kernel.restore_value)
        pairs = [(a, b) for a, b in zip(call.args, again.args, strict=True) if torch.is_tensor(a) and a is not call.out]
        assert all(torch.equal(a, b) for a, b in pairs)
        assert kernel.reference(call).shape == call.out.shape
        assert kernel.work(call).bytes >= call.out.numel() * call.out.element_size()


def test_causal_attention_counts_the_pairs_that_are_seen() -> None:
    kernel = attention.KERNEL
    for case in kernel.corners:
        sizes = case.sizes
        seen = torch.ones(sizes["queries"], sizes["keys"], dtype=torch.bool)
        pairs = int((seen.tril() if sizes.get("causal") else seen).sum())
        assert kernel.work(kernel.make_call(case, 0, "cpu")).flops == 4 * sizes["heads"] * pairs * sizes["D"]


def test_a_product_counts_every_multiply_add_and_every_matrix_once() -> None:
    case = matmul.KERNEL.corners[-1]
    work = matmul.KERNEL.work(matmul.KERNEL.make_call(case, 0, "cpu"))
    m, n, k = (case.sizes[name] for name in "mnk")
    assert (work.flops, work.bytes) == (2 * m * n * k, 2 * (m * k + k * n + m * n))
