from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from rehearsed import call, playing, scale, tuned  # noqa: E402
from triton import knobs  # noqa: E402
from triton.runtime.jit import JITFunction, KernelInterface  # noqa: E402

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.core.config import Config  # noqa: E402
from forecast_autotune.core.space import Space  # noqa: E402
from forecast_autotune.errors import InvalidInputError, TuningWarning  # noqa: E402


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ([triton.Config({"BLOK": 128})], r"'BLOK' in triton.Config\({'BLOK': 128}\) of kernel scale .* mean 'BLOCK'\?"),
        ([triton.Config({"block": 128})], "did you mean 'BLOCK'"),
        ([triton.Config({"BLOCK": 64}), triton.Config({"BLOCKS": 64})], "'BLOCKS' .* did you mean 'BLOCK'"),
        ([{"BLOCK": 128, "num_warps": 8}], r"write triton.Config\({'BLOCK': 128}, num_warps=8\)"),
        ([Config({"BLOCK": 128})], r"kernel scale is no triton.Config: write triton.Config\({'BLOCK': 128}\)"),
        ([128, 256], r"128 in configs of kernel scale .* write triton.Config\({…}\)"),
        ([None], "missing in configs of kernel scale"),
        (triton.Config({"BLOCK": 128}), r"configs=triton.Config\({'BLOCK': 128}\) of kernel scale is no list"),
        ({"BLOCK": 128}, "configs={'BLOCK': 128} of kernel scale is no list"),
        ("BLOCK", "configs='BLOCK' of kernel scale is no list"),
        (7, "configs=7 of kernel scale is no list"),
        (Space.grid({"BLOCK": [64, 128]}), r"configs=Space.* of kernel scale: give it as space="),
    ],
)
def test_a_mistake_in_configs_is_named_where_it_is_made(configs: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        fa.autotune(configs=configs, key=["n"])(scale)


@pytest.mark.parametrize("space", [[Config({"BLOCK": 64})], {"BLOCK": [64]}, [triton.Config({"BLOCK": 64})]])
def test_a_space_that_is_none_is_named_with_the_kernel(space: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"of kernel scale is no Space: give one, such as Space.grid"):
        tuned(configs=None, space=space)


@pytest.mark.parametrize(
    "config",
    [
        triton.Config({"BLOCK": 128, "waves_per_eu": 2}),  # for AMD alone
        triton.Config({"BLOCK": 128, "num_warps": 2, "enable_fp_fusion": False}),
        triton.Config({"BLOCK": 128}, num_ctas=1, maxnreg=64, pre_hook=lambda named: None, ir_override="x.ptx"),
        triton.Config({"BLOCK": 128, "n": 5}),  # a parameter that is no constexpr
        triton.Config({"BLOCK": 128, "nothing_like_it": 5}),  # a KeyError at the launch, as under Triton
        triton.Config({}),  # the call may give BLOCK
    ],
)
def test_what_triton_accepts_is_not_refused(config: Any) -> None:
    assert tuned(configs=[config]).configs == [config]


pytestmark = pytest.mark.usefixtures("own_cache")


def test_what_the_users_own_pruning_replaces_is_not_looked_at() -> None:
    pruning = {"early_config_prune": lambda configs, named, **meta: [triton.Config(config) for config in configs]}
    assert len(tuned(configs=[{"BLOCK": 64}, {"BLOCK": 128}], prune_configs_by=pruning).configs) == 2


def test_a_name_that_triton_raises_for_is_one_that_is_refused() -> None:
    with playing(), pytest.raises(KeyError, match="BLOK was specified but unrecognised"):
        scale[(4,)](torch.empty(4096), 1000, 2.0, BLOCK=64, BLOK=64)


def test_the_interpreter_drops_unknown_names_so_there_it_is_a_warning() -> None:
    with knobs.runtime.scope():
        knobs.runtime.interpret = True
        with pytest.warns(TuningWarning, match="did you mean 'BLOCK'") as warned:
            tuned(configs=[triton.Config({"BLOK": 128}), triton.Config({"BLOK": 256})])
    assert len(warned) == 1
    assert "rehearsed" in warned[0].filename, "the line of the decorator"


class Renaming(KernelInterface):  # type: ignore[misc]
    """A wrapper with a name of its own for a parameter of the kernel."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.arg_names, self.__name__ = fn, fn.arg_names, fn.__name__

    def run(self, *args: Any, BLOK: int, **kwargs: Any) -> Any:  # noqa: N803
        return self.fn.run(*args, BLOCK=BLOK, **kwargs)


class RenamingJit(JITFunction):  # type: ignore[misc]
    def run(self, *args: Any, BLOK: int, **kwargs: Any) -> Any:  # noqa: N803
        return super().run(*args, BLOCK=BLOK, **kwargs)


class RenamingConfig(triton.Config):  # type: ignore[misc]
    def all_kwargs(self) -> dict[str, Any]:
        given = super().all_kwargs()
        return {"BLOCK": given.pop("BLOK"), **given}


@pytest.mark.parametrize(
    ("kernel", "config"),
    [
        (Renaming(scale), triton.Config({"BLOK": 64})),
        (RenamingJit(scale.fn), triton.Config({"BLOK": 64})),
        (scale, RenamingConfig({"BLOK": 64})),
    ],
    ids=["a wrapper", "a JITFunction of another class", "a config of another class"],
)
def test_names_that_a_programs_own_code_takes_are_not_refused(kernel: Any, config: Any) -> None:
    with playing() as on:
        call(tuned(kernel, configs=[config]))
    assert {launched["BLOCK"] for _, launched in on.launches} == {64}


def test_an_empty_list_is_warned_of_and_runs_as_under_triton() -> None:
    with pytest.warns(TuningWarning, match="configs of kernel scale is an empty list: there is nothing to choose"):
        kernel = tuned(configs=[])
    with playing() as on:
        call(kernel, BLOCK=64)
    assert on.launches


def test_a_generator_of_configs_is_a_list() -> None:
    assert len(tuned(configs=(triton.Config({"BLOCK": b}) for b in (64, 128))).configs) == 2
