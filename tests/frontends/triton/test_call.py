# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""One call as a job: its key, its configs, and what a config's hook may and may not touch while it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import REHEARSAL_KINDS
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.core.workload import key_parts

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from rehearsed import configs, playing, scale, tuned  # noqa: E402

from forecast_autotune.frontends.triton.call import TritonCall  # noqa: E402
from forecast_autotune.frontends.triton.stored_call import NotStoredError, stored_call  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")


def bound(tuner: Any, *args: Any, **kwargs: Any) -> TritonCall:
    with playing():
        return TritonCall(tuner.spec, tuner.configs, args, {"grid": (4,), "warmup": False, **kwargs})


def test_a_job_names_program_key_hardware_and_toolchain() -> None:
    call = bound(tuned(key=["n", "factor"]), torch.empty(64, dtype=torch.float16), 64, factor=2.0)
    job = call.job
    assert job.workload.program.name.endswith("rehearsed.scale")
    assert job.workload.key == {"n": 64, "factor": 2.0, "dtypes": {"x_ptr": "torch.float16"}}
    assert job.workload.features == {"x_ptr_0": 64, "n": 64, "factor": 2.0}
    assert job.hardware.kind in REHEARSAL_KINDS
    assert job.toolchain.versions["triton"] == triton.__version__
    assert len(job.static_features) == len(job.space) == 4


def test_a_config_is_the_same_whatever_others_stand_beside_it() -> None:
    def ours(choices: list[Any]) -> list[Config]:
        return list(bound(tuned(configs=choices), torch.empty(64), 64, 2.0).job.space)

    alone, among = ours(configs((64, 128))), ours([*configs((128, 64)), triton.Config({"BLOCK": 64}, maxnreg=64)])
    assert set(alone) < set(among)


def test_equal_configs_count_once_and_different_hooks_make_two() -> None:
    def hook(named: dict[str, Any]) -> None:
        pass

    choices = [*configs((64,)), *configs((64,)), triton.Config({"BLOCK": 64}, num_warps=4, pre_hook=hook)]
    call = bound(tuned(configs=choices), torch.empty(64), 64, 2.0)
    assert [call.theirs(c) for c in call.job.space] == [choices[0], choices[2]]


def test_a_config_with_a_hook_is_the_same_anywhere_and_counts_once() -> None:
    def made(size: int) -> Callable[[dict[str, Any]], None]:
        def hook(named: dict[str, Any]) -> None:
            named["size"] = size

        return hook

    plain = configs((64, 128))
    hooked, alike = (triton.Config({"BLOCK": 64}, num_warps=4, pre_hook=made(1)) for _ in range(2))
    near = bound(tuned(configs=[plain[0], hooked, plain[1]]), torch.empty(64), 64, 2.0)
    far = bound(tuned(configs=[*plain, hooked, alike]), torch.empty(64), 64, 2.0)
    assert set(near.job.space) == set(far.job.space)
    assert [far.theirs(c) for c in far.job.space] == [*plain, hooked]


def test_configs_differ_in_what_their_class_adds_to_a_launch() -> None:
    class Warps(triton.Config):  # type: ignore[misc]
        def __init__(self, block: int, warps: int) -> None:
            super().__init__({"BLOCK": block}, num_warps=None)
            self.warps = warps

        def all_kwargs(self) -> dict[str, Any]:
            return {**super().all_kwargs(), "num_warps": self.warps}

    choices = [Warps(256, warps) for warps in (8, 2, 4)]
    space = bound(tuned(configs=choices), torch.empty(64), 64, 2.0).job.space
    assert list(space) == list(bound(tuned(configs=configs((256,), (8, 2, 4))), torch.empty(64), 64, 2.0).job.space)


def test_the_check_is_part_of_what_is_tuned() -> None:
    digests = {bound(tuned(check=c), torch.empty(64), 64, 2.0).job.workload.digest for c in (None, "allclose")}
    assert len(digests) == 2


def test_dtypes_and_functions_are_knobs_by_their_names() -> None:
    @triton.jit
    def cast(x_ptr, n, BLOCK: tl.constexpr, DTYPE: tl.constexpr, ACT: tl.constexpr):
        tl.store(x_ptr, n)

    choices = [triton.Config({"BLOCK": 64, "DTYPE": d, "ACT": scale}) for d in (tl.float16, tl.float32)]
    call = bound(tuned(cast, configs=choices), torch.empty(64), 64)
    assert [c["DTYPE"] for c in call.job.space] == ["fp16", "fp32"]


def test_a_hook_sees_copies_during_compiling_and_replaces_nothing() -> None:
    class Box:
        def __init__(self) -> None:
            self.block_shape = [1]

    seen: list[Any] = []

    def hook(named: dict[str, Any]) -> None:
        seen.append(named["x_ptr"])
        named["factor"].block_shape[0] = named["BLOCK"]
        named["factor"].other = named["BLOCK"]
        named["n"] = -1
        named["x_ptr"] = None

    x, box = torch.ones(64), Box()
    call = bound(tuned(configs=[triton.Config({"BLOCK": 64}, pre_hook=hook), *configs((128,))]), x, 64, box)
    args, kwargs = call.arguments_of(call.job.space[0])
    assert args[0] is x
    assert args[1] == 64
    assert (args[2].block_shape, args[2].other) == ([64], 64)
    assert kwargs["BLOCK"] == 64
    assert box.block_shape == [1]
    assert not hasattr(box, "other")
    assert seen[0].device.type == "meta"


def test_a_launch_on_what_a_hook_kept_names_the_argument_and_what_to_do() -> None:
    kept: list[Any] = []
    hooked = triton.Config({"BLOCK": 64}, pre_hook=lambda named: kept.append(named["x_ptr"]))
    call = bound(tuned(configs=[hooked, *configs((128,))]), torch.ones(64), 64, 2.0)
    call.arguments_of(call.job.space[0])
    with playing(), pytest.raises(RuntimeError, match=r"with x_ptr, which has no data: .* keep nothing of a pre_hook"):
        tuned()[(4,)](kept[0], 64, 2.0)


@triton.jit
def scale_by_pair(x_ptr, n, pair, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(pair[0] + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * pair[1], mask=offsets < n)


# A tensor without data, from a hook's arguments.
WITHOUT_DATA: dict[str, Callable[[dict[str, Any]], torch.Tensor]] = {
    "an argument": lambda named: named["x_ptr"],
    "a view of it": lambda named: named["x_ptr"][8:],
    "a workspace on its device": lambda named: torch.empty(64, device=named["x_ptr"].device),
    "one that was cleared": lambda named: torch.zeros(64, device=named["x_ptr"].device).zero_(),
    "a copy of a real one": lambda named: torch.ones(64).to(named["x_ptr"].device),
    "in a tuple": lambda named: named["pair"][0],
}


@pytest.mark.parametrize("on_what", WITHOUT_DATA)
def test_a_hook_launches_no_kernel_on_tensors_without_data(on_what: str) -> None:
    def hook(named: dict[str, Any]) -> None:
        scale[(1,)](WITHOUT_DATA[on_what](named), 0, 0.0, BLOCK=64)

    x = torch.ones(64)
    kernel, factor = (scale_by_pair, (x, 2.0)) if on_what == "in a tuple" else (scale, 2.0)
    with playing() as on:
        choices = [triton.Config({"BLOCK": 64}, pre_hook=hook), *configs((128,))]
        call = bound(tuned(kernel, configs=choices), x, 64, factor)
        hooked, plain = call.job.space
        results = dict(call.compiler.compile([hooked, plain]))
        assert not on.launches
    assert call.arguments_of(hooked)[0] == (x, 64, factor)
    assert type(results[hooked]) is type(results[plain]), "a hook changes nothing here that is compiled for"
    assert call.arguments_of.hooked == {hooked}, "it may change tensors"


@pytest.mark.parametrize("on_what", WITHOUT_DATA)
def test_a_hook_that_launches_a_tuned_kernel_tunes_it_at_a_launch_alone(
    on_what: str, caplog: pytest.LogCaptureFixture
) -> None:
    inner = tuned(scale_by_pair)

    def hook(named: dict[str, Any]) -> None:
        inner[(1,)](torch.ones(64), 64, (WITHOUT_DATA[on_what](named), 1.0))

    hooked = [triton.Config({"BLOCK": b}, pre_hook=hook) for b in (64, 128)]
    outer = tuned(scale_by_pair, configs=hooked)
    pair = (torch.ones(64), 1.0)
    with playing():
        call = bound(outer, torch.ones(64), 64, pair)
        dict(call.compiler.compile(list(call.job.space)))
        assert call.arguments_of.hooked == set(call.job.space)
        assert not inner.decisions
        assert not inner.cache
        inner[(1,)](torch.ones(64), 64, pair)
        inner[(1,)](torch.ones(64), 64, pair)
        again = bound(outer, torch.ones(64), 64, pair)
        dict(again.compiler.compile(list(again.job.space)))
        assert again.arguments_of.hooked == set(again.job.space)
    assert [decision.basis for decision in inner.decisions.values()] == ["measured"]
    assert "none of" not in caplog.text


def test_a_key_holds_the_constexprs_that_the_call_gives() -> None:
    @triton.jit
    def head(x_ptr, n, D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), D)

    keys = [
        bound(tuned(head, key=["n", "CAUSAL"]), torch.empty(64), 64, D=size, CAUSAL=True).job.workload.key
        for size in (64, 512)
    ]
    shared = {"n": 64, "CAUSAL": True, "dtypes": {"x_ptr": "torch.float32"}}
    assert keys == [{**shared, "given constexprs": {"D": 64}}, {**shared, "given constexprs": {"D": 512}}]
    assert key_parts(keys[0]) == {"n": "64", "CAUSAL": "True", "D": "64", "dtypes": "f32"}


def test_a_key_holds_dtypes_in_tuples_and_below_descriptors() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit
    def gather(table, parts, x_ptr, n, BLOCK: tl.constexpr):
        tl.store(x_ptr, 0)

    class Scaled(NamedTuple):
        data: torch.Tensor
        dtype: str

    def key(dtype: torch.dtype) -> Any:
        x = torch.empty(64, 64, dtype=dtype)
        parts = x, (2, Scaled(x, "e4m3"))
        return bound(
            tuned(gather), TensorDescriptor.from_tensor(x, [8, 8]), parts, torch.empty(64), 64
        ).job.workload.key

    assert key(torch.float16) == {
        "n": 64,
        "given constexprs": dict.fromkeys(("table.base", "parts[0]", "parts[1][1][0]"), "torch.float16"),
        "dtypes": {"x_ptr": "torch.float32"},
    }
    assert key(torch.bfloat16) != key(torch.float16)


def test_a_call_is_not_made_again_without_the_tensors_of_a_tuple() -> None:
    @triton.jit
    def gather(x_ptr, n, BLOCK: tl.constexpr, parts=None):
        tl.store(x_ptr, 0)

    kernel, x = tuned(gather), torch.empty(64)
    job = bound(kernel, x, 64, parts=(x, x)).job
    with pytest.raises(NotStoredError, match="the store does not say what its argument parts was"):
        stored_call(kernel, job.workload, job.hardware)


def test_a_constexpr_given_as_its_default_is_one_left_out() -> None:
    @triton.jit
    def head(x_ptr, n, BLOCK: tl.constexpr, D: tl.constexpr = None, E: tl.constexpr = 1):
        tl.store(x_ptr + tl.arange(0, BLOCK), 0)

    def key(**given: Any) -> Any:
        return bound(tuned(head), torch.empty(64), 64, **given).job.workload.key

    assert key() == key(D=None, E=1) == {"n": 64, "dtypes": {"x_ptr": "torch.float32"}}
    assert key(D=0, E=True)["given constexprs"] == {"D": 0, "E": True}


def test_timings_are_printed_as_triton_prints_them() -> None:
    call = bound(tuned(), torch.empty(64), 64, 2.0)
    first, second, *_ = call.job.space
    timings = call.timings_ms(
        {first: Measurement(samples_us=(1000.0, 900.0, 1200.0)), second: Failure(stage="launch", message="no")}
    )
    assert timings[call.theirs(first)] == [1.0, 0.9, 1.2]
    assert timings[call.theirs(second)] == [float("inf")] * 3


def test_without_a_driver_a_call_is_a_job_still() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver here")
    tuner = tuned()
    call = TritonCall(tuner.spec, tuner.configs, (torch.empty(64), 64, 2.0), {"grid": (4,), "warmup": False})
    assert call.hardware.kind == "stub"
    assert [type(r).__name__ for _, r in call.compiler.compile(list(call.job.space))] == ["Evidence"] * 4
