"""The suite's kernels of several variants on a GPU: right under every variant, and decided through the front door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_suite import SuiteKernel, suite_kernels  # noqa: E402

from forecast_autotune.compilers.triton_launches import LaunchesCompiler, launches  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.outcome import Evidence  # noqa: E402
from forecast_autotune.frontends.triton.target import compiled_for  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SEED = 5

every_kernel = pytest.mark.parametrize("kernel", tuple(suite_kernels()), ids=lambda kernel: kernel.name)


@pytest.fixture(scope="module", autouse=True)
def compiled(own_cache: None) -> None:
    """Every default at every corner, compiled on all cores: launched one after the other they take three times as long."""
    calls = {
        Config({"kernel": kernel.name, "variant": variant.name, "case": case.name}): (
            variant.launch,
            kernel.make_inputs(case, SEED, "cuda"),
            variant.space.default.knobs,
        )
        for kernel in suite_kernels()
        for variant in kernel.variants
        for case in kernel.corners
    }
    target, limits = compiled_for()
    compiler = LaunchesCompiler(lambda config: launches(*calls[config]), target=target, properties=limits)
    failed = {str(c): found for c, found in compiler.compile(list(calls)) if not isinstance(found, Evidence)}
    assert not failed


def agree(kernel: SuiteKernel, got: Sequence[Any], expected: Sequence[Any]) -> None:
    for output, mine, its in zip(kernel.outputs, got, expected, strict=True):
        if mine.element_size() == 1:  # 8-bit floats, which torch does not compare
            mine, its = mine.float(), its.float()
        torch.testing.assert_close(mine, its, rtol=output.rtol, atol=output.atol, equal_nan=True, msg=output.name)


@every_kernel
def test_every_variant_agrees_with_the_reference(kernel: SuiteKernel) -> None:
    for case in kernel.corners:
        expected = kernel.expected(case, seed=SEED, device="cuda")
        for variant in kernel.variants:
            agree(kernel, kernel.run(variant, variant.space.default, case, seed=SEED, device="cuda"), expected)


@every_kernel
def test_the_joint_decision_is_right_and_was_measured(kernel: SuiteKernel) -> None:
    case = kernel.corners[0]
    args = kernel.make_inputs(case, SEED, "cuda")
    expected = kernel.expected(case, seed=SEED, device="cuda")
    tuned = kernel.tuned(budget=6)
    tuned(*args)
    agree(kernel, kernel.outs(args), expected)
    (decision,) = tuned.decisions.values()
    assert decision.basis in ("measured", "default")
    assert 1 < decision.tried <= 6
