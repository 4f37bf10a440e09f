"""Every Triton kernel of the suite computes what its reference does, in the interpreter, and compiles for a GPU."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import kernel_suite  # noqa: E402
from kernel_suite import (  # noqa: E402
    Case,
    SuiteKernel,
    TritonKernel,
    Variant,
    attention,
    cpp_kernels,
    cuda_kernels,
    matmul,
    small_kernels,
    suite_kernels,
    triton_kernels,
)
from kernel_suite.__main__ import listed  # noqa: E402
from kernel_suite.small import KINDS  # noqa: E402
from plain_calls import plain_call  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from forecast_autotune.compilers.triton_compile import TritonCompiler  # noqa: E402
from forecast_autotune.compilers.triton_launches import launches  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.outcome import Evidence  # noqa: E402
from forecast_autotune.errors import InvalidInputError  # noqa: E402
from forecast_autotune.features.hardware_sheets import device_properties, sheet_for  # noqa: E402
from forecast_autotune.frontends.triton.simulated_driver import rehearsal  # noqa: E402
from forecast_autotune.processes.machine import usable_cores  # noqa: E402

REPOSITORY = Path(__file__).parents[2]
SUITE = Path(kernel_suite.__file__).parent
SEED = 5

QUICK = ("softmax", "adamw")  # stand for all in `make test` where each kernel takes seconds


def thorough_but_quick(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if name in QUICK else (pytest.mark.thorough,)


def at_length(kernels: Iterable[TritonKernel]) -> pytest.MarkDecorator:
    some = [pytest.param(kernel, id=kernel.name, marks=thorough_but_quick(kernel.name)) for kernel in kernels]
    return pytest.mark.parametrize("kernel", some)


ONE_OF_A_KIND = {*QUICK, *(names[0] for names in KINDS.values())}  # of the small kernels
SINGLE = (*triton_kernels(), *small_kernels())
every_kernel = pytest.mark.parametrize("kernel", SINGLE, ids=lambda kernel: kernel.name)
every_kernel_at_length = at_length(SINGLE)
one_of_a_kind = pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(
            kernel,
            id=kernel.name,
            marks=thorough_but_quick(kernel.name) if kernel.name in ONE_OF_A_KIND else pytest.mark.slow,
        )
        for kernel in listed()
        if isinstance(kernel, TritonKernel)
    ],
)  # the others are slow
every_suite_kernel = pytest.mark.parametrize("suite", tuple(suite_kernels()), ids=lambda suite: suite.name)
every_variant_at_length = pytest.mark.parametrize(
    ("suite", "variant"),
    [
        pytest.param(suite, variant, id=f"{suite.name}-{variant.name}", marks=thorough_but_quick(suite.name))
        for suite in suite_kernels()
        for variant in suite.variants
    ],
)


def interpreted_once(test: Callable[..., None]) -> Callable[..., None]:
    """The tests that share the interpreter's findings run in one process; the first of them waits for all."""
    return pytest.mark.xdist_group("interpreter")(pytest.mark.timeout(1800)(test))


pytestmark = pytest.mark.usefixtures("own_cache")


def interpreted(configs: int | str, kernels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the interpreter says of each kernel: where it was looked at, and what was wrong there.

    In several processes, each with a share of the kernels: the interpreter itself keeps one core busy.
    """
    paths = os.pathsep.join([str(REPOSITORY), str(SUITE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, str(Path(__file__).with_name("interpreted.py")), str(configs)]

    def some(share: Sequence[str]) -> dict[str, dict[str, Any]]:
        done = subprocess.run([*program, *share], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found: dict[str, dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    jobs = min(len(kernels), usable_cores(), 8)
    with ThreadPoolExecutor(jobs) as threads:
        return dict(ChainMap(*threads.map(some, [kernels[i::jobs] for i in range(jobs)])))


def selected(request: pytest.FixtureRequest, argument: str) -> list[Any]:
    """The values of an argument with which this run's tests ask for the fixture."""
    return [
        item.callspec.params[argument]
        for item in request.session.items
        if isinstance(item, pytest.Function) and request.fixturename in item.fixturenames
    ]


@pytest.fixture(scope="module")
def in_the_interpreter(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return interpreted(4, [f"{kernel.name}.KERNEL" for kernel in selected(request, "kernel")])


@pytest.fixture(scope="module")
def small_ones_in_the_interpreter(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return interpreted(2, [f"{kernel.name}.KERNEL" for kernel in selected(request, "kernel")])


@interpreted_once
@at_length(small_kernels())
def test_small_kernels_match_the_reference(
    kernel: TritonKernel, small_ones_in_the_interpreter: dict[str, dict[str, Any]]
) -> None:
    found = small_ones_in_the_interpreter[f"{kernel.name}.KERNEL"]
    assert len(found["checked"]) == 3 * len(kernel.corners) + 1
    assert found["wrong"] == {}


@interpreted_once
@at_length(triton_kernels())
def test_the_default_samples_and_the_tuned_kernel_match_the_reference(
    kernel: TritonKernel, in_the_interpreter: dict[str, dict[str, Any]]
) -> None:
    found = in_the_interpreter[f"{kernel.name}.KERNEL"]
    assert len(found["checked"]) == 5 * len(kernel.corners) + 1
    assert found["wrong"] == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@every_kernel
def test_the_tuned_kernel_matches_the_reference_at_every_corner(kernel: TritonKernel) -> None:
    found = interpreted("all:1", [f"{kernel.name}.KERNEL"])[f"{kernel.name}.KERNEL"]
    assert len([where for where in found["checked"] if where.startswith("tuned ")]) == len(kernel.corners)
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
    "a_masked_pair_is_counted": ("trimul", "tl.sigmoid(right_gate) * kept", "tl.sigmoid(right_gate)", "below_a_block"),
    "the_product_is_of_the_other_edges": (
        "trimul", "right_ptr + base + j[None, :] * n + inner[:, None]",
        "right_ptr + base + j[None, :] + inner[:, None] * n", "over_a_block",
    ),
    "the_rest_of_a_row_is_lost": ("cross_entropy", "WIDTH=width, num", "WIDTH=max(1, width // 2), num", "over_blocks"),
    "a_part_counts_as_much_as_any": (
        "cross_entropy", "totals * tl.exp(highs - high[:, None])", "totals", "over_blocks",
    ),
    "an_ignored_row_has_a_loss": ("cross_entropy", "tl.where(counted, lse - logit, 0.0)", "lse - logit", "below_a_block"),
    "a_group_has_its_neighbours_scale": (
        "fp8_quant", "at % columns // GROUP, mask", "(at + 1) % columns // GROUP, mask", "unrounded",
    ),
    "quotients_are_of_another_scale": ("fp8_quant", "(value / scale[:", "(value / 1.05 / scale[:", "unrounded"),
    "the_last_column_is_lost": (
        "fp8_quant", "(row < rows)[:, :, None] & (column < columns)",
        "(row < rows)[:, :, None] & (column < columns - 1)", "part_of_a_group",
    ),
    "a_gate_is_the_whole_chunks": (
        "gdn_chunk_fwd_h", "new * gate[:, None]", "new * tl.exp(end)", "below_a_chunk",
    ),
    "a_state_is_kept_without_its_gates": ("gdn_chunk_fwd_h", "state = tl.dot(k, new, state * tl.exp(end))",
        "state = tl.dot(k, new, state)", "over_chunks"),
    "a_token_sees_the_next": ("gdn_chunk_fwd_o", "seen = (i >= j)", "seen = (i + 1 >= j)", "below_a_chunk"),
    "every_chunk_has_the_first_state": (
        "gdn_chunk_fwd_o", "tl.load(state, mask=(key < K)[:, None] & (value < V)[None, :], other=0.0)) * gate",
        "tl.load(state - chunk * H * K * V, mask=(key < K)[:, None] & (value < V)[None, :], other=0.0)) * gate",
        "over_chunks",
    ),
    "the_factor_counts_twice": ("gdn_recompute_w_u", "if not FOLD:", "if True:", "below_a_chunk"),
    "powers_are_a_little_too_large": ("softmax/variants", "(power * (1.0 /", "(power * (1.004 /", "over_rows"),
    "parts_count_alike": ("softmax/variants", "totals * tl.exp(highs - high), 0", "totals, 0", "over_blocks"),
    "a_masked_block_is_no_number": (
        "softmax/variants", "tl.constexpr(-3e38)", 'tl.constexpr(-float("inf"))', "masked",
    ),
    "a_deviation_cancels": (
        "layer_norm/variants", "tl.rsqrt(tl.sum(centred * centred, 1) / columns",
        "tl.rsqrt(tl.sum(value * value, 1) / columns - mean * mean", "far_from_zero",
    ),
    "means_of_parts_count_as_one": (
        "layer_norm/variants", "row * PARTS + part) + apart * apart * count, 0)", "row * PARTS + part), 0)",
        "over_blocks",
    ),
    "each_program_does_one_row": (
        "rms_norm", "tl.range(tl.program_id(0), rows, programs", "tl.range(tl.program_id(0), programs, programs",
        "over_programs",
    ),
    "epsilon_is_left_out": (
        "rms_norm", "tl.rsqrt(squares / columns + epsilon)", "tl.rsqrt(squares / columns)", "small_numbers",
    ),
    "the_first_part_is_the_sum": (
        "rms_norm", "mask=part < parts, other=0.0", "mask=part < 1, other=0.0", "over_blocks",
    ),
    "a_part_is_added_again": ("matmul/variants", "at + part * elements", "at", "whole_blocks"),
    "each_program_does_one_tile": (
        "matmul/variants", "tl.program_id(0), tiles, programs, flatten",
        "tl.program_id(0), tl.minimum(tiles, programs), programs, flatten", "over_a_group",
    ),
    "the_gate_is_taken_for_both": ("swiglu", "tl.load(w + step, mask", "tl.load(w, mask", "below_a_block"),
    "gate_and_up_change_places": (
        "swiglu", "(tl.reshape(total, (BM, 2, BN)), (0, 2, 1))", "(tl.reshape(total, (BM, BN, 2)), (0, 1, 2))",
        "below_a_block",
    ),
    "all_blocks_have_the_first_scale": (
        "fp8_matmul", "tl.load(b_scale + k // SCALED)", "tl.load(b_scale)", "over_scales",
    ),
    "a_sign_is_lost": (
        "fp8_matmul", "(bits & 0x80) << 8 | (bits & 0x7F) << 7", "(bits & 0xFF) << 7", "below_a_block",
    ),
    "the_diagonal_is_the_end": (
        "attention/variants", "(tl.minimum(last, own + 1) if CAUSAL else last)", "last", "causal_over_blocks",
    ),
    "later_queries_see_too_little": ("attention/variants", "sees = query + (keys - queries)", "sees = query", "more_keys"),
    "a_part_of_the_pages_counts_as_much_as_any": (
        "paged_attention", "share = tl.exp2(highs - tl.max(highs, 0))", "share = tl.exp2(highs - highs)", "over_blocks",
    ),
    "what_lies_past_the_end_is_read": (
        "paged_attention", "inner[None, :], mask=here[:, None] & (inner", "inner[None, :], mask=(inner", "within_a_page",
    ),
    "an_expert_without_tokens_is_not_skipped": (
        "fused_moe", "expert = tl.sum((until <= block)", "expert = tl.sum((until < block)", "unused_experts",
    ),
    "a_token_is_another": ("fused_moe", "x_ptr + routed // TOPK * K", "x_ptr + routed % TOPK * K", "below_a_block"),
    "a_program_sums_its_last_row": ("small/layer_norm_backward", "dw += dy * xhat", "dw = dy * xhat", "over_the_groups"),
    "a_moment_keeps_its_bias": ("small/adamw", "(mean / correction1)", "mean", "over_a_block"),
    "a_key_misses_its_own_query": (
        "small/attention_dkdv", "rows[None, :] >= keys[:, None]", "rows[None, :] > keys[:, None]", "below_a_block",
    ),
    "it_turns_one_way_only": ("small/rotary", "sin = -sin", "sin = sin", "back_over_a_block"),
    "all_blocks_draw_the_same": (
        "small/dropout", "tl.rand(seed, offsets)", "tl.rand(seed, tl.arange(0, BLOCK_SIZE))", "over_a_block",
    ),
    "an_ignored_label_has_a_gradient": (
        "small/cross_entropy_backward", "label != ignored", "label >= ignored", "below_a_block",
    ),
    "gate_and_up_have_each_others_gradient": (
        "small/silu_and_mul_backward", "tl.interleave(dgate, dup)", "tl.interleave(dup, dgate)", "below_a_block",
    ),
    "each_program_does_one_block": (
        "small/lion", "tl.range(start, n_elements, step)", "tl.range(start, start + 1, step)", "over_every_program",
    ),
    "what_came_before_is_lost": (
        "small/row_cumsum", "before += tl.sum(value, 0)", "before = tl.sum(value, 0)", "over_blocks",
    ),
    "a_segment_goes_on_for_ever": ("small/segmented_cumsum", "starts > 0, value", "starts > 1, value", "below_a_block"),
    "a_state_does_not_decay": (
        "small/linear_attention_state", "state * tl.exp(end)[:, None] +", "state +", "over_chunks",
    ),
    "a_chunk_does_not_see_itself": (
        "small/retention_output", "tl.where(apart >= 0, scores", "tl.where(apart > 0, scores", "one",
    ),
    "a_gradient_does_not_decay": (
        "small/retention_state_backward", "gradient * tl.exp2(rate * length) +", "gradient +", "over_a_block",
    ),
    "the_last_state_is_not_kept": (
        "small/retention_recurrent", "tl.store(state_at, state,", "tl.store(state_at, state * decay,", "odd",
    ),
    "steps_are_all_of_one_size": ("small/selective_scan", "tl.exp(dt[:, None] * rate)", "tl.exp(rate)", "over_a_block"),
    "what_is_passed_back_does_not_decay": (
        "small/gated_recurrence_backward", "carried = gradient * keep", "carried = gradient", "over_a_block",
    ),
    "a_token_hears_the_next": (
        "small/causal_conv1d", "time - (WIDTH - 1 - tap)", "time - (WIDTH - 2 - tap)", "over_blocks",
    ),
    "taps_are_the_wrong_way_round": (
        "small/causal_conv1d_backward_input", "WIDTH + WIDTH - 1 - later)", "WIDTH + later)", "over_a_block",
    ),
    "padding_is_a_zero": ("small/max_pool2d", 'mask=inside, other=float("-inf")', "mask=inside, other=0.0", "odd"),
    "the_first_of_equal_ones_is_not_taken": (
        "small/row_argmax", "tl.min(tl.where(best == highest, place, columns), 0)",
        "tl.max(tl.where(best == highest, place, -1), 0)", "over_blocks",
    ),
    "an_expert_is_chosen_twice": (
        "small/router_topk", "expert == which[:, None], -1.0", "expert == which[:, None], chance", "below_a_block",
    ),
    "a_token_without_room_is_read": (
        "small/combine_experts", "tl.where(place >= 0, dim, 0)", "tl.where(place >= -1, dim, 0)", "below_a_block",
    ),
    "halves_of_a_byte_change_places": (
        "small/int4_matvec", "low * even[None, :] + high * odd[None, :]",
        "high * even[None, :] + low * odd[None, :]", "over_blocks",
    ),
    "samples_are_merged_as_if_of_one_mean": (
        "small/row_variance", " + apart * apart * count_a * share", "", "over_blocks",
    ),
    "totals_keep_their_old_scale": ("small/kl_divergence", "apart = apart * shrink", "apart = apart", "over_blocks"),
    "smoothing_is_left_out": (
        "small/smoothed_cross_entropy", "(1.0 - smoothing) * right - smoothing * mean", "right", "below_a_block",
    ),
    "a_chunk_forgets_its_earlier_tokens": ("small/expert_ranks", "- hot + counts[None, :]", "- hot", "over_chunks"),
    "w_has_no_gate": ("gdn_recompute_w_u", "gated = beta * tl.exp", "gated = beta + 0 * tl.exp", "below_a_chunk"),
}  # fmt: skip


@pytest.fixture(scope="module")
def wrong_with_mistakes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, set[str]]:
    """The corners at which each mistake is caught, of the one at which it should be."""
    folder = tmp_path_factory.mktemp("mistaken")
    files = {}
    mistakes = {mistake: MISTAKES[mistake] for mistake in selected(request, "mistake")}
    for mistake, (kernel, written, mistaken, _) in mistakes.items():
        text = (SUITE / kernel / "__init__.py" if "/" not in kernel else SUITE / f"{kernel}.py").read_text()
        assert text.count(written) == 1, written
        files[mistake] = folder / f"{mistake}.py"
        files[mistake].write_text(text.replace(written, mistaken))
    folders = {
        mistake: kernel.partition("/")[0] + ":" if "/" in kernel else "" for mistake, (kernel, *_) in mistakes.items()
    }
    asked = {mistake: f"{folders[mistake]}{file}@{mistakes[mistake][-1]}" for mistake, file in files.items()}
    found = interpreted(0, list(asked.values()))
    return {m: {where.rpartition(" at ")[2] for where in found[word]["wrong"]} for m, word in asked.items()}


@interpreted_once
@pytest.mark.parametrize(
    "mistake",
    [pytest.param(name, marks=thorough_but_quick(kernel.partition("/")[0])) for name, (kernel, *_) in MISTAKES.items()],
)
def test_a_wrong_kernel_is_caught(mistake: str, wrong_with_mistakes: dict[str, set[str]]) -> None:
    assert MISTAKES[mistake][-1] in wrong_with_mistakes[mistake]


@pytest.mark.thorough
def test_a_config_that_is_wrong_is_caught_where_the_default_is_right(tmp_path: Path) -> None:
    written, mistaken = "lane_total * tl.exp(lane_high - higher) +", "lane_total +"
    text = (SUITE / "cross_entropy" / "__init__.py").read_text()
    assert text.count(written) == 1
    (tmp_path / "late.py").write_text(text.replace(written, mistaken))
    word = f"{tmp_path / 'late.py'}@over_blocks"
    found = interpreted("all:8", [word])[word]
    assert found["wrong"]
    assert all(" LATE=True " in where for where in found["wrong"])


def compiled(kernel: TritonKernel, configs: Any, target: str = "cuda:90") -> dict[str, Any]:
    """What the compiler says of configs, at the last corner."""
    args = kernel.make_call(kernel.corners[-1], 0, "cpu").args
    limits = device_properties(sheet_for(target))
    compiler = TritonCompiler(kernel.function, plain_call(*args), target=target, properties=limits, timeout_s=250.0)
    return {str(config): result for config, result in compiler.compile(list(configs))}


@every_kernel_at_length
def test_the_default_and_sampled_configs_compile_for_hopper(kernel: TritonKernel) -> None:
    sample = [kernel.space.default, *random.Random(SEED).sample(kernel.space[1:], 2)]
    told = compiled(kernel, sample)
    assert len(told) == 3
    assert not {config: result for config, result in told.items() if not isinstance(result, Evidence)}
    assert told[str(kernel.space.default)].spill_bytes == 0


@pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
@one_of_a_kind
def test_a_kernel_without_variants_compiles_for_other_gpus(kernel: TritonKernel, target: str) -> None:
    """Of those with variants other tests compile these."""
    told = compiled(kernel, random.Random(SEED).sample(kernel.space[:], 2), target)
    assert len(told) == 2
    assert any(isinstance(result, Evidence) for result in told.values()), told
    assert all(isinstance(result, Evidence) or result.stage == "resources" for result in told.values()), told


@pytest.mark.slow
@every_kernel
def test_every_config_compiles_for_hopper_and_nearly_all_fit_it(kernel: TritonKernel) -> None:
    refused = {config: r for config, r in compiled(kernel, kernel.space).items() if not isinstance(r, Evidence)}
    assert {failure.stage for failure in refused.values()} <= {"resources"}, refused
    assert len(refused) <= 0.1 * len(kernel.space)


@every_kernel
def test_spaces_have_realistic_sizes_and_every_knob_a_role_and_a_choice(kernel: TritonKernel) -> None:
    small = kernel in tuple(small_kernels())
    least, most = (6, 24) if small else (24, 64)
    assert (12 if kernel.name == "add_inplace" else least) <= len(kernel.space) <= most
    assert set(kernel.space.roles) == set(kernel.space.knobs)
    for knob in kernel.space.knobs:
        assert small or len({config[knob] for config in kernel.space}) > 1, knob  # in short lists people fix some
    assert [c.all_kwargs() for c in kernel.configs()] == [
        {"num_warps": 4, "num_ctas": 1, "num_stages": 3, **config.knobs} for config in kernel.space
    ]


def unwritten(out: Any) -> bool:
    """Whether an output holds what `Call` says of one that nobody wrote."""
    return bool((out.isnan() if out.is_floating_point() else out == torch.iinfo(out.dtype).min).all())


@every_kernel
def test_cases_are_named_once_and_make_the_same_call_each_time(kernel: TritonKernel) -> None:
    names = [case.name for case in (*kernel.cases, *kernel.corners)]
    assert len(set(names)) == len(names)
    assert "odd" in names
    for case in kernel.corners:
        call, again = (kernel.make_call(case, SEED, "cpu") for _ in range(2))
        named = dict(zip(kernel.function.arg_names, call.args, strict=False))
        outs = {name: arg for name, arg in named.items() if any(arg is out for out in call.outs)}
        assert len(outs) == len(call.outs) >= 1
        assert {name for name, out in outs.items() if not unwritten(out)} == set(kernel.restore_value)
        pairs = [(a, b) for a, b in zip(call.args, again.args, strict=True) if torch.is_tensor(a)]
        assert all(torch.equal(a, b) for a, b in pairs if not unwritten(a))
        expected = kernel.reference(call)
        assert [(e.shape, e.dtype) for e in expected] == [(out.shape, out.dtype) for out in call.outs]
        assert not any(bool(e.isnan().any()) for e in expected)
        assert kernel.work(call).bytes >= sum(out.nbytes for out in call.outs)


@pytest.fixture(scope="module")
def variants_in_the_interpreter(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return interpreted(2, list(dict.fromkeys(suite.name for suite in selected(request, "suite"))))


def checked(variant: Variant, found: dict[str, Any]) -> list[str]:
    """Where a variant was looked at and was not refused."""
    return [w for w in found["checked"] if w.startswith(f"{variant.name} ") and w not in found["refused"]]


@interpreted_once
@every_variant_at_length
def test_the_default_and_samples_of_each_variant_match_the_reference(
    suite: SuiteKernel, variant: Variant, variants_in_the_interpreter: dict[str, dict[str, Any]]
) -> None:
    found = variants_in_the_interpreter[suite.name]
    assert len(checked(variant, found)) >= len(suite.corners)
    assert {where: what for where, what in found["wrong"].items() if where.startswith(f"{variant.name} ")} == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@every_suite_kernel
def test_many_configs_of_each_variant_match_the_reference_at_every_corner(suite: SuiteKernel) -> None:
    found = interpreted("all:4", [suite.name])[suite.name]
    assert all(len(checked(variant, found)) > len(suite.corners) for variant in suite.variants)
    assert found["wrong"] == {}


def built(suite: SuiteKernel, variant: Variant, configs: Sequence[Config]) -> dict[str, Any]:
    """The name and the spills of each kernel that a launch compiles for an H200, or why the config is refused."""
    told: dict[str, Any] = {}
    for config in configs:
        args = suite.make_inputs(suite.corners[-1], 0, "cpu")
        with rehearsal("H200", 1.0):
            try:
                variant.launch(*args, **config.knobs)
            except (InvalidInputError, triton.runtime.errors.OutOfResources) as err:
                told[str(config)] = err
                continue
            caches = [cache for f in variant.functions for cache in f.device_caches.values()]
            told[str(config)] = [(kernel.name, kernel.n_spills) for kept, *_ in caches for kernel in kept.values()]
            for function in variant.functions:  # within: a kernel is unloaded by the driver that loaded it
                function.device_caches.clear()
            del caches
            gc.collect()
    return told


@every_variant_at_length
def test_the_default_and_a_sample_of_each_variant_compile_for_hopper(suite: SuiteKernel, variant: Variant) -> None:
    sample = [variant.space.default, random.Random(SEED).choice(variant.space[1:])]
    default, further = built(suite, variant, sample).values()
    assert len(default) >= len(variant.functions)
    assert sum(spills for _, spills in default) == 0
    assert isinstance(further, InvalidInputError) or len(further) >= len(variant.functions)


@pytest.mark.slow
@pytest.mark.timeout(900)
@every_variant_at_length
def test_nearly_all_of_many_configs_of_each_variant_fit_hopper(suite: SuiteKernel, variant: Variant) -> None:
    sample = random.Random(SEED).sample(variant.space[1:], min(12, len(variant.space) - 1))
    refused = {c: told for c, told in built(suite, variant, sample).items() if isinstance(told, Exception)}
    assert len(refused) <= 0.5 * len(sample), refused
    assert sum(not isinstance(err, InvalidInputError) for err in refused.values()) <= 0.1 * len(sample), refused


@every_suite_kernel
def test_variants_differ_in_name_and_launch_and_are_worth_searching(suite: SuiteKernel) -> None:
    assert len({v.name for v in suite.variants}) == len({v.launch for v in suite.variants}) == len(suite.variants) >= 2
    assert 64 <= sum(len(v.space) for v in suite.variants) <= 4096
    for variant in suite.variants:
        space = variant.space
        assert set(space.roles) == set(space.knobs)
        for knob in space.knobs:
            assert len({config[knob] for config in space}) > 1, (variant.name, knob)
        assert suite.variant(variant.name) is variant
    with pytest.raises(InvalidInputError, match=f"{suite.name} has no variant 'other'"):
        suite.variant("other")


@every_suite_kernel
def test_cases_of_variants_are_named_once_and_make_equal_inputs_each_time(suite: SuiteKernel) -> None:
    names = [case.name for case in (*suite.cases, *suite.corners)]
    assert len(set(names)) == len(names)
    assert "odd" in names
    assert len(suite.cases) >= 3
    for case in suite.corners:
        args, again = (suite.make_inputs(case, SEED, "cpu") for _ in range(2))
        assert suite.case(case.name) is case
        inputs = args[: -len(suite.outputs)]
        pairs = [(a, b) for a, b in zip(inputs, again, strict=False) if torch.is_tensor(a)]
        assert all(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in pairs)
        assert all(bool(out.float().isnan().all()) for out in suite.outs(args) if out.is_floating_point())
        expected = suite.reference(*args)
        assert [(e.shape, e.dtype) for e in expected] == [(out.shape, out.dtype) for out in suite.outs(args)]
        assert all(bool(e.float().isfinite().all()) for e in expected)
        work = suite.work(*args)
        assert work.flops > 0
        assert work.bytes >= sum(out.numel() * out.element_size() for out in suite.outs(args))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("suite", "case"),
    [
        pytest.param(suite, case, id=f"{suite.name}-{case.name}")
        for suite in suite_kernels()
        if suite.name not in ("paged_attention", "fused_moe")  # their inputs want data; they refuse nothing
        for case in suite.cases
    ],
)
def test_each_default_is_of_use_at_every_case(suite: SuiteKernel, case: Case) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = suite.make_inputs(case, SEED, "cpu")
    with rehearsal("H200", 1.0):
        for variant in suite.variants:
            told = launches(variant.launch, args, variant.space.default.knobs)
            assert {launch.kernel for launch in told} == set(variant.functions)


@every_suite_kernel
def test_work_of_variants_counts_each_tensor_and_product_once(suite: SuiteKernel) -> None:
    args = suite.make_inputs(suite.corners[-1], SEED, "cpu")
    with FlopCounterMode(display=False) as counted:
        suite.reference(*args)
    work, products = suite.work(*args), counted.get_total_flops()
    nobodys = 2 * args[1][0].nbytes if suite.name == "paged_attention" else 0  # a page of keys and one of values
    assert work.bytes == sum(arg.nbytes for arg in args if torch.is_tensor(arg)) - nobodys
    if suite.name in ("attention", "gdn_chunk_fwd_o", "gdn_recompute_w_u"):
        # What is masked the reference multiplies too.
        assert 0.5 * products < work.flops < products
    elif products:
        assert work.flops == products + (4 * args[-1].numel() if suite.name == "swiglu" else 0)
    else:
        assert 3 <= work.flops / args[0].numel() <= 7


def test_on_a_gpu_without_float8_a_kernel_says_so_or_takes_another_format() -> None:
    quant, product = (suite for suite in suite_kernels() if suite.name in ("fp8_quant", "fp8_matmul"))
    args = quant.make_inputs(quant.corners[-1], SEED, "cpu")
    unknown, none = "type fp8e4nv not supported in this architecture", "compute capability 8.0 multiplies no float8"
    with rehearsal("A100", 20_000.0):
        for variant in quant.variants:
            with pytest.raises(triton.CompilationError, match=unknown):
                variant(*args)
        with pytest.raises(triton.CompilationError, match=unknown):
            quant.tuned(budget=2)(*args)
        args = product.make_inputs(product.corners[-1], SEED, "cpu")
        for name in ("scaled_sums", "split_k"):
            with pytest.raises(InvalidInputError, match=none):
                product.variant(name)(*args)
        product.variant("halves")(*args)
        with pytest.raises(InvalidInputError, match=none):  # of the default, which is all there is to try
            product.tuned(budget=1)(*args)
        tuned = product.tuned(budget=16)
        tuned(*args)
        (decision,) = tuned.decisions.values()
        assert decision.config["variant"] == "halves"


def test_a_suite_kernel_runs_any_config_of_any_variant_and_refuses_others() -> None:
    suite = next(iter(suite_kernels()))
    variant, case = suite.variants[-1], suite.corners[0]
    with rehearsal("H200", 1.0) as on:
        outs = suite.run(variant, variant.space[1], case)
        assert {name for name, _ in on.launches} == {function.__name__ for function in variant.functions}
    assert [out.shape for out in outs] == [expected.shape for expected in suite.expected(case)]
    with pytest.raises(InvalidInputError, match="has no case 'other'"):
        suite.case("other")


def test_all_variants_are_tuned_as_one_behind_the_front_door() -> None:
    suite = next(suite for suite in suite_kernels() if suite.name == "cross_entropy")
    tuned = suite.tuned(budget=4)
    with rehearsal("H200", 20_000.0) as on:  # so long that few launches do
        tuned(*suite.make_inputs(suite.corners[-1], SEED, "cpu"))
        (decision,) = tuned.decisions.values()
    assert decision.tried == 4
    assert decision.config["variant"] == suite.variants[0].launch.__name__
    assert {name for name, _ in on.launches} <= {f.__name__ for v in suite.variants for f in v.functions}


def test_the_list_names_each_kernels_variants_spaces_workloads_and_checks() -> None:
    paths = os.pathsep.join([str(REPOSITORY), str(SUITE.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "kernel_suite", "list", "--json"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = {kernel["name"]: kernel for kernel in json.loads(done.stdout)}
    assert list(told) == [kernel.name for kernel in listed()]
    assert set(told) == {k.name for k in (*suite_kernels(), *SINGLE, *cuda_kernels(), *cpp_kernels())}
    for suite in suite_kernels():
        assert {v["name"]: v["configs"] for v in told[suite.name]["variants"]} == {
            v.name: len(v.space) for v in suite.variants
        }
    for kernel in told.values():
        assert kernel["cases"]
        assert kernel["corners"]
        assert {"reference", "corners"} <= set(kernel["checks"])


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


def test_the_readme_has_a_row_for_each_small_kernel() -> None:
    table = (SUITE.parent / "README.md").read_text().partition("| kernel | kind |")[2].partition("\n\n")[0]
    kinds = {name: kind for kind, names in KINDS.items() for name in names}
    rows = [
        f"| {kernel.name} | {kinds[kernel.name]} | {len(kernel.space)} | {', '.join(c.name for c in kernel.cases)} |"
        for kernel in small_kernels()
    ]
    assert table.splitlines()[2:] == rows
