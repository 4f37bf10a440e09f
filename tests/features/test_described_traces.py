"""What is told of recorded configs without compiling them, against what a GPU measured and what the kernels say they do."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_suite import small_kernels, suite_kernels

import calibration
from calibration.record.evidence import fake_inputs
from calibration.record.worker import KNOB, SEED
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Measurement
from forecast_autotune.core.workload import Work
from forecast_autotune.evaluation.traces import read_trace
from forecast_autotune.features.hardware_sheets import sheet_for
from forecast_autotune.features.launch_features import describe_call, launch_features

TRACES = Path(calibration.__file__).parent / "traces"
CLOCK = 1.05  # what a clock may be off


def recordings(folder: Path, language: str = "triton") -> Iterator[tuple[str, Recording]]:
    """The recordings of kernels of a language in a folder, by kernel and case."""
    for path in sorted(folder.glob("*.jsonl.gz")):
        recording = read_trace(path)
        if recording.workload.program.language == language:
            yield ".".join(path.name.split(".")[:2]), recording


def bounds(recording: Recording) -> Iterator[tuple[float, float]]:
    """Of each config that ran, its bound and the least that was measured, in microseconds."""
    for config, outcome in recording.outcomes.items():
        if isinstance(outcome, Measurement) and recording.static_features.get(config):
            yield recording.static_features[config]["us_bound"], min(outcome.samples_us)


def ratio(described: float, known: float) -> float:
    return described / known if known else 1.0


def flops_of(features: dict[str, float]) -> float:
    return features.get("flops") or features.get("elementwise", 0.0)


@pytest.mark.parametrize("folder", [pytest.param("", marks=pytest.mark.thorough), "small"])
def test_no_recorded_config_was_faster_than_its_bound(folder: str) -> None:
    compared = 0
    for name, recording in recordings(TRACES / folder):
        for bound_us, measured_us in bounds(recording):
            assert bound_us <= CLOCK * measured_us, name
            compared += 1
    assert compared > 4000


def test_no_recorded_config_in_cuda_was_faster_than_its_bound() -> None:
    compared = 0
    for name, recording in recordings(TRACES, "cuda"):
        assert all(recording.static_features.get(config) for config in recording.outcomes), name
        for bound_us, measured_us in bounds(recording):
            assert bound_us <= CLOCK * measured_us, name
            compared += 1
    assert compared > 2500


# Of these, what a variant moves or computes is something else than what has to be: the reason.
MORE_BYTES = {
    "attention.split_keys": "parts of results are written and read",
    "fp8_matmul.split_k": "parts of sums are written and read",
    "gdn_chunk_fwd_h.transition": "maps of states are written and read",
    "matmul.split_k": "parts of sums are written and read",
    "swiglu.two_steps": "both products are written and read",
    "trimul.*": "projections are written and read by another kernel",
}
FEWER_BYTES = {"cross_entropy.split": "where most parts lie past the end of a row, few of those looked at have work"}
MORE_FLOPS = {
    "attention.*": "one query is a whole tile",
    "cross_entropy.*": "blocks wider than a row, and exponentials count as four",
    "fused_moe.*": "an expert with one token is a whole tile",
    "gdn_chunk_fwd_h.transition": "maps are more work than states",
    "layer_norm.split": "blocks wider than a part",
    "paged_attention.*": "a group's few heads are a whole tile",
    "softmax.*": "blocks wider than a row, and exponentials count as four",
}
FEWER_FLOPS = {"paged_attention.per_head": "without products, and sums are of elements, two for each pair"}


def excepted(exceptions: dict[str, str], kernel: str, variant: str) -> bool:
    return f"{kernel}.{variant}" in exceptions or f"{kernel}.*" in exceptions


@pytest.mark.thorough
def test_described_bytes_and_flops_of_variants_match_their_kernels_work() -> None:
    kernels = {kernel.name: kernel for kernel in suite_kernels()}
    compared = 0
    for name, recording in recordings(TRACES):
        kernel, case = name.split(".")
        work: Work = kernels[kernel].work(*fake_inputs(kernels[kernel], kernels[kernel].case(case), SEED))
        of_variants = defaultdict(list)
        for config, features in recording.static_features.items():
            if features:
                of_variants[str(config[KNOB])].append(features)
        for variant, described in of_variants.items():
            moved = statistics.median(ratio(features["unique_bytes"], work.bytes) for features in described)
            computed = statistics.median(ratio(flops_of(dict(features)), work.flops) for features in described)
            place = (kernel, variant)
            assert moved > 0.6 or excepted(FEWER_BYTES, *place), (name, variant, moved)
            assert moved < 1.7 or excepted(MORE_BYTES, *place), (name, variant, moved)
            assert computed > 0.5 or excepted(FEWER_FLOPS, *place), (name, variant, computed)
            assert computed < 4.5 or excepted(MORE_FLOPS, *place), (name, variant, computed)
            compared += 1
    assert compared > 150


SMALL_BYTES = {"sequence_mean": "how long sequences are, data tells", "causal_softmax": "half is masked"}
SMALL_FLOPS = {
    "average_pool2d": "blocks wider than a window",
    "batch_norm_stats": "blocks longer than a share",
    "bincount": "a sum is an atomic operation",
    "causal_softmax": "half is masked, and exponentials count as four",
    "sort_rows": "comparisons of a sort are not counted",
}


@pytest.mark.thorough
def test_what_small_kernels_move_and_compute_agrees_with_their_work() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    hardware, compared = sheet_for("H200"), 0
    for kernel in small_kernels():
        with FakeTensorMode(allow_non_fake_inputs=True):
            call = kernel.make_call(kernel.cases[0], SEED, "cpu")
            work = kernel.work(call)
        given = describe_call(dict(zip(kernel.function.arg_names, call.args, strict=False)))
        knobs = kernel.space.default.knobs
        (found,) = launch_features(kernel.function, given, [knobs], grid=call.grid, hardware=hardware)
        moved, computed = ratio(found["unique_bytes"], work.bytes), ratio(flops_of(found), work.flops)
        assert 0.6 < moved < 1.5 or kernel.name in SMALL_BYTES, (kernel.name, moved)
        assert 0.33 < computed < 4 or kernel.name in SMALL_FLOPS, (kernel.name, computed)
        assert math.isfinite(found["us_bound"])
        assert found["us_bound"] > 0
        compared += 1
    assert compared > 50
