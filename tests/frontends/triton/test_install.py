# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""install(): every later `triton.autotune` of the process is ours; and the decorator under its public names."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import forecast_autotune as fa
from forecast_autotune import forecast_autotune
from forecast_autotune.errors import InvalidInputError

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402

from forecast_autotune.frontends.triton.autotune import autotune  # noqa: E402


def configs() -> list[Any]:
    return [triton.Config({"BLOCK": b}, num_warps=4) for b in (64, 128, 256)]


@triton.jit
def scale(x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton-cache"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    yield
    fa.uninstall()


def places() -> list[Any]:
    return [triton.autotune, triton.runtime.autotune, triton.runtime.autotuner.autotune]


def test_all_three_names_become_ours_and_are_given_back_exactly() -> None:
    before = places()
    for _ in range(2):
        fa.install()
        assert places() == [autotune] * 3
        assert triton.runtime.autotuner.Autotuner is Autotuner is triton.runtime.Autotuner
    fa.uninstall()
    assert places() == before
    fa.uninstall()
    assert places() == before


def test_installing_leaves_torch_to_the_first_decorated_kernel() -> None:
    program = (
        "import sys, forecast_autotune as fa; fa.install(); print('triton' in sys.modules, 'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "False"]


def test_what_is_installed_shows_the_arguments_of_triton_s() -> None:
    theirs = list(inspect.signature(triton.autotune).parameters)
    fa.install()
    assert list(inspect.signature(triton.autotune).parameters)[: len(theirs)] == theirs


def test_what_is_installed_is_copied_pickled_and_wrapped_as_the_function_it_replaces() -> None:
    fa.install()
    assert copy.deepcopy(triton.autotune) is copy.copy(triton.autotune) is triton.autotune
    assert pickle.loads(pickle.dumps(triton.autotune)) is triton.autotune  # noqa: S301  # ours
    assert triton.autotune.__qualname__ == "autotune"


def test_a_place_that_somebody_changed_since_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "autotune", triton.autotune)  # what it is to be again in the end
    fa.install()
    theirs = lambda *args, **kwargs: None  # noqa: E731
    monkeypatch.setattr(triton, "autotune", theirs)
    fa.uninstall()
    assert triton.autotune is theirs
    assert triton.runtime.autotune is not autotune


def test_kernels_decorated_later_are_ours_even_with_positional_arguments() -> None:
    fa.install()
    kernel = triton.autotune(configs(), ["n"], {"early_config_prune": lambda found, named, **_: found[:1]})(scale)
    assert type(kernel) is fa.ForecastAutotuner
    assert isinstance(kernel, triton.runtime.autotuner.Autotuner)
    assert kernel.keys == ["n"]


@pytest.mark.parametrize(("given", "left"), [({"configs_top_k": 1}, 1), ({"configs_top_k": 1, "top_k": 2}, 2)])
def test_torchs_word_for_top_k_is_honoured(given: dict[str, Any], left: int) -> None:
    prune = {"perf_model": lambda **named: named["BLOCK"], "early_config_prune": None, **given}
    kernel = fa.autotune(configs=configs(), key=[], prune_configs_by=prune)(scale)
    kernel.nargs = {}
    assert [c.kwargs["BLOCK"] for c in kernel.prune_configs({})] == [64, 128][:left]


def test_what_torch_decorates_again_while_it_traces_is_ours_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.library import wrap_triton

    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "2")
    fa.install()
    kernel = triton.autotune(configs=configs(), key=["n"])(scale)

    def call(x: Any) -> Any:
        # An option at the call makes torch decorate the kernel again, `configs_top_k` among its arguments.
        wrap_triton(kernel)[(4,)](x, 1000, 2.0, num_warps=8)
        return x

    with fa.rehearsal("cuda:90", times=400.0) as on:
        traced = make_fx(call)(torch.ones(1000))
        again = list(kernel_side_table.id_to_kernel.values())[-1]
        traced(torch.ones(1000))
    assert type(again) is fa.ForecastAutotuner
    assert again is not kernel
    assert {c.num_warps for c in again.configs} == {8}
    assert {config.knobs["num_warps"] for _, config in on.launches} == {8}


def test_dynamo_prunes_and_decorates_again_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    fa.install()
    prune = {"early_config_prune": lambda found, named, **_: found[1:]}
    kernel = triton.autotune(configs=configs(), key=["n"], prune_configs_by=prune)(scale)

    @torch.compile(backend="eager", fullgraph=True)
    def call(x: Any) -> Any:
        kernel[(4,)](x, 1000, 2.0)
        return x + 1

    with fa.rehearsal("cuda:90", times=400.0) as on:
        assert call(torch.ones(1000)).shape == (1000,)
    ((_, config),) = on.launches
    assert config["BLOCK"] == 128


def test_a_package_with_an_autotuner_of_its_own_keeps_it() -> None:
    class Theirs(Autotuner):  # type: ignore[misc]
        pass

    fa.install()
    kernel = Theirs(scale, scale.arg_names, configs(), ["n"], None, None)
    assert type(kernel) is Theirs
    assert not isinstance(kernel, fa.ForecastAutotuner)


# The public names ---------------------------------------------------------------------------------------------------------


def test_the_decorator_decorates_and_carries_every_public_name() -> None:
    kernel = forecast_autotune(configs=configs(), key=["n"], budget=4)(scale)
    assert type(kernel) is forecast_autotune.ForecastAutotuner
    assert forecast_autotune is fa.autotune is fa.forecast_autotune
    for name in fa.__all__:
        assert getattr(forecast_autotune, name) is getattr(fa, name)
    assert set(fa.__all__) <= set(dir(forecast_autotune))
    with pytest.raises(AttributeError, match="has no attribute 'missing'; it has"):
        forecast_autotune.missing  # noqa: B018
    assert pickle.loads(pickle.dumps(forecast_autotune)) is forecast_autotune  # noqa: S301
    assert copy.deepcopy(forecast_autotune) is forecast_autotune


@pytest.mark.parametrize("decorator", [forecast_autotune, autotune])
@pytest.mark.parametrize("function", [scale, lambda x: x])
def test_a_decorator_without_its_call_says_how_to_write_it(decorator: Any, function: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"write @autotune\(configs=\[…\], key=\[…\]\) above it"):
        decorator(function)


def test_a_misspelt_parameter_in_another_packages_list_is_told_of_and_breaks_no_import() -> None:
    fa.install()
    with pytest.warns(fa.TuningWarning, match="did you mean 'BLOCK'"):
        tuned = triton.autotune(configs=[*configs(), triton.Config({"BLOK": 64})], key=["n"])(scale)
    assert len(tuned.configs) == 4
    with pytest.raises(InvalidInputError, match="did you mean 'BLOCK'"):
        fa.autotune(configs=[*configs(), triton.Config({"BLOK": 64})], key=["n"])(scale)
