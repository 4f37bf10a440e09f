"""Every variant of the suite compiles for GPUs of both makers, none of which is here.

What is drawn compiles, or the device lacks the shared memory, threads or registers for it, which is told as a failure at
`resources`. Of each kernel something compiles for each target: where nothing drawn did, one of its smallest configs has to.
The one thing that a target does not know at all is float8 e4m3 on sm_80: that is taken as a reason if the compiler states it
and the kernel is given such a tensor. A kernel of which nothing compiles for a target does not list it among its checks. A
config that its variant refuses, for the sizes or for the GPU, is not drawn.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_suite import SuiteKernel, suite_kernels  # noqa: E402
from kernel_suite.__main__ import described  # noqa: E402

from calibration.record.evidence import KNOB, by_triton, fake_arguments, launches_of, spaces  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.outcome import Evidence, Failure  # noqa: E402
from forecast_autotune.errors import InvalidInputError  # noqa: E402
from forecast_autotune.frontends.triton.simulated_driver import rehearsal  # noqa: E402

SEED = 11
SMALLEST = 3  # configs to try where nothing drawn fits
NO_FLOAT8 = "type fp8e4nv not supported in this architecture"

Asked = tuple[SuiteKernel, Config]


pytestmark = pytest.mark.usefixtures("own_cache")


def first_accepted(suite: SuiteKernel, configs: Sequence[Config], count: int) -> list[Asked]:
    """The first configs that their variants take at the kernel's first case, on the GPU that is rehearsed on."""
    found: list[Asked] = []
    for config in configs:
        if len(found) == count:
            break
        with suppress(InvalidInputError):
            launches_of(suite.name, config)
            found.append((suite, config))
    return found


def shuffled(configs: Sequence[Config]) -> list[Config]:
    return random.Random(SEED).sample(list(configs), len(configs))


def smallest(suite: SuiteKernel) -> list[Asked]:
    """Configs with the least product of tiles and stages, which is what shared memory goes by."""

    def size(config: Config) -> int:
        roles = suite.variant(str(config[KNOB])).space.roles
        sizes = [v for k, v in config.knobs.items() if roles.get(k) in ("tile", "stages") and isinstance(v, int)]
        return math.prod(max(1, each) for each in sizes)

    every = [config for space in spaces(suite) for config in space]
    return first_accepted(suite, sorted(shuffled(every), key=size), SMALLEST)


def compiled(asked: Sequence[Asked], target: str) -> list[tuple[Asked, Evidence | Failure]]:
    """All in one batch, so that every core is busy."""
    calls = [partial(launches_of, suite.name, config) for suite, config in asked]
    return [(asked[place], result) for place, result in by_triton(calls, target)]


def unknown_type(suite: SuiteKernel, target: str, result: Evidence | Failure) -> bool:
    """Whether the compiler says that the target has no float8, and the kernel is given one."""
    given = {each.dtype for each in fake_arguments(suite.name) if isinstance(each, torch.Tensor)}
    told = isinstance(result, Failure) and result.stage == "compile" and NO_FLOAT8 in result.message
    return told and target == "cuda:80" and torch.float8_e4m3fn in given


def check(asked: Sequence[Asked], target: str) -> None:
    found: dict[str, list[Evidence | Failure]] = defaultdict(list)
    wrong = {}
    for (suite, config), result in compiled(asked, target):
        found[suite.name].append(result)
        too_large = isinstance(result, Failure) and result.stage == "resources"
        if not (isinstance(result, Evidence) or too_large or unknown_type(suite, target, result)):
            wrong[f"{suite.name} {config}"] = result
    assert not wrong
    assert found.keys() == {suite.name for suite in suite_kernels()}
    short = target.removeprefix("hip:").replace("cuda:", "sm_")
    listed = {suite.name for suite in suite_kernels() if short in described(suite)["checks"]}
    left = [suite for suite in suite_kernels() if suite.name in listed - built(found)]
    with rehearsal(target):
        further = [each for suite in left for each in smallest(suite)]
    for (suite, _), result in compiled(further, target):
        found[suite.name].append(result)
    assert built(found) == listed


def built(found: Mapping[str, Sequence[Evidence | Failure]]) -> set[str]:
    """The kernels of which something compiled."""
    return {name for name, results in found.items() if any(isinstance(result, Evidence) for result in results)}


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
def test_a_config_of_each_kernel_compiles(target: str) -> None:
    """For sm_90 other tests compile each variant."""
    with rehearsal(target):
        drawn = [
            each
            for suite in suite_kernels()
            for each in first_accepted(suite, shuffled([c for space in spaces(suite) for c in space]), 1)
        ]
    check(drawn, target)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"])
def test_the_default_and_four_configs_of_each_variant_compile(target: str) -> None:
    with rehearsal(target):
        drawn = [
            each
            for suite in suite_kernels()
            for space in spaces(suite)
            for each in (*first_accepted(suite, space[:1], 1), *first_accepted(suite, shuffled(space[1:]), 4))
        ]
    check(drawn, target)
