"""A live call of each Triton kernel of the suite is described by the numbers that its recorded traces hold.

What forecasts and policies are worth is shown on the traces; that holds for a user's call as far as it is described alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from kernel_suite import SuiteKernel, cuda_kernels, small_kernels, suite_kernels, triton_kernels  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import calibration  # noqa: E402
import forecast_autotune as fa  # noqa: E402
from calibration.record.evidence import fake_inputs  # noqa: E402
from calibration.record.worker import KNOB, SEED  # noqa: E402
from forecast_autotune.compilers.triton_launches import Launched, launches  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.job import Recording  # noqa: E402
from forecast_autotune.core.space import Space  # noqa: E402
from forecast_autotune.evaluation.traces import read_trace  # noqa: E402
from forecast_autotune.features.hardware_sheets import sheet_for  # noqa: E402
from forecast_autotune.features.launch_features import combine_launches  # noqa: E402
from forecast_autotune.frontends.triton.call import TritonCall  # noqa: E402
from forecast_autotune.frontends.triton.simulated_driver import rehearsal  # noqa: E402

TRACES = Path(calibration.__file__).parent / "traces"
WAYS = ("position", "keyword", "both")
OPTIONS = ("num_warps", "num_stages")

every_suite_kernel = pytest.mark.parametrize("suite", tuple(suite_kernels()), ids=lambda suite: suite.name)


def traces(suite: SuiteKernel) -> Iterator[tuple[str, Recording]]:
    """A recording of a kernel and the one at odd sizes, if there is one, each with the name of its case."""
    first, *others = sorted(TRACES.glob(f"{suite.name}.*.jsonl.gz"))
    for path in (first, *(other for other in others if ".odd." in other.name)):
        yield path.name.split(".")[1], read_trace(path)


def one_of_each_variant(configs: Iterable[Config]) -> list[Config]:
    """The last config of each variant, in the order of the variants."""
    return list({config[KNOB]: config for config in configs}.values())


def handed_over(names: list[str], values: Mapping[str, Any], way: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position as far as there is no gap, by keyword from the last to the first, or the first half of each."""
    leading = list(itertools.takewhile(lambda name: name in values, names))
    by_position = {"position": leading, "keyword": [], "both": leading[: len(leading) // 2]}[way]
    by_keyword = {name: values[name] for name in reversed(list(values)) if name not in by_position}
    return tuple(values[name] for name in by_position), by_keyword


def live(launched: Launched, way: str, recording: Recording) -> Mapping[str, float]:
    """What the tuner of one kernel makes of a launch when what its variant set are the knobs of a config."""
    kernel = launched.kernel
    given = {**dict(zip(kernel.arg_names, launched.args, strict=False)), **launched.kwargs}
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    constants = {p.name for p in kernel.params if p.is_constexpr}
    config = triton.Config({name: value for name, value in given.items() if name in constants}, **options)
    arguments = {name: value for name, value in given.items() if name not in constants}
    tuner = fa.autotune([config], key=[])(kernel)
    args, kwargs = handed_over(kernel.arg_names, arguments, way)
    call = TritonCall(tuner.spec, tuner.configs, args, {**kwargs, "grid": launched.grid}, hardware=recording.hardware)
    return call.job.static_features[0]


@every_suite_kernel
def test_a_live_call_is_described_as_in_the_recorded_traces(suite: SuiteKernel) -> None:
    compared = 0
    for case, recording in traces(suite):
        inputs = fake_inputs(suite, suite.case(case), SEED)
        with rehearsal(hardware=recording.hardware):  # some variants ask their device how large it is
            for config in one_of_each_variant(recording.static_features):
                variant = suite.variant(str(config[KNOB]))
                knobs = {name: config[name] for name in variant.space.knobs}
                launched = launches(variant.launch, inputs, knobs)
                for way in WAYS:
                    found = combine_launches([live(each, way, recording) for each in launched])
                    # A trace holds six digits.
                    assert found == pytest.approx(recording.static_features[config], rel=1e-5), (case, config, way)
                    compared += 1
    assert compared >= 3 * len(suite.variants)


@every_suite_kernel
def test_variants_are_described_as_in_the_recorded_traces(suite: SuiteKernel) -> None:
    case, recording = next(traces(suite))
    configs = one_of_each_variant(recording.static_features)
    variants = []
    for config in configs:
        variant = suite.variant(str(config[KNOB]))
        variants.append((variant.launch, Space([Config({n: config[n] for n in variant.space.knobs})])))
    with rehearsal(hardware=recording.hardware):
        job = fa.variants(variants, name=f"live {suite.name}", compile_ahead=True).tuned.job(
            fake_inputs(suite, suite.case(case), SEED)
        )
        found = list(job.static_features)
    assert found == [pytest.approx(recording.static_features[config], rel=1e-5) for config in configs]


@pytest.mark.parametrize("kernel", tuple(cuda_kernels()), ids=lambda kernel: kernel.name)
def test_cuda_sources_are_described_as_in_the_recorded_traces(kernel: Any) -> None:
    pytest.importorskip("tree_sitter_cuda")
    for path in sorted(TRACES.glob(f"{kernel.name}.*.jsonl.gz"))[:2]:
        recording = read_trace(path)
        configs = list(recording.static_features)[::16]
        case = next(each for each in kernel.cases if each.name == path.name.split(".")[1])
        with FakeTensorMode():
            args = kernel.make_inputs(case, SEED, "cpu")
        found = kernel.tuned(budget="0").tuned.static_features(args, configs, recording.hardware)
        assert list(found) == [pytest.approx(recording.static_features[config], rel=1e-5) for config in configs]


@pytest.mark.parametrize(
    "kernel",
    [*triton_kernels(), *(pytest.param(kernel, marks=pytest.mark.thorough) for kernel in small_kernels())],
    ids=lambda kernel: kernel.name,
)
def test_a_kernel_of_one_function_is_described_alike_however_it_is_called(kernel: Any) -> None:
    tuner = kernel.tuned()
    for case in kernel.cases:
        with FakeTensorMode():  # no memory for the data
            call = kernel.make_call(case, SEED, "cpu")
        values = dict(zip(tuner.arg_names, call.args, strict=False))
        found = []
        for way in WAYS:
            args, kwargs = handed_over(tuner.arg_names, values, way)
            bound = TritonCall(
                tuner.spec, tuner.configs, args, {**kwargs, "grid": call.grid}, hardware=sheet_for("H200")
            )
            found.append(bound.job.static_features)
        assert found[0] == found[1] == found[2]
        assert all(each["unique_bytes"] > 0 for each in found[0])
