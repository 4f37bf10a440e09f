"""The C++ front door, on a real extension with real builds."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.cpp_extension
from hanging import end_soon
from toy import BINDING, GOOD, KERNEL, MODES, Toy

import forecast_autotune as fa
from forecast_autotune.compilers.cpp_compile import CppCompiler
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.forecast import Abstention, Forecast
from forecast_autotune.core.outcome import Outcome
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.measure.in_process import InProcess
from forecast_autotune.measure.isolated import Isolated
from forecast_autotune.surrogates.base import StatelessSurrogate

X = torch.arange(20_000, dtype=torch.float32)


def load(toy: Toy, modes: Any = GOOD, **options: Any) -> Any:
    return fa.load_inline(**{**toy.arguments(), "space": toy.space(modes), **options})


def only_decision(function: Any) -> Any:
    (decision,) = function.decisions.values()
    return decision


class Counting:
    """Counts what is built and timed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built = self.timed = 0
        compile_, measure = CppCompiler.compile, Isolated.measure

        def counted_compile(compiler: CppCompiler, configs: Any, **how: Any) -> Any:
            for found in compile_(compiler, configs, **how):
                self.built += 1
                yield found

        def counted_measure(measurer: Isolated, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
            self.timed += 1
            return measure(measurer, config, limits)

        monkeypatch.setattr(CppCompiler, "compile", counted_compile)
        monkeypatch.setattr(Isolated, "measure", counted_measure)


class Favouring(StatelessSurrogate):
    """A surrogate that forecasts four times the speed of one mode, and knows nothing of the others."""

    name = "favouring"

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> list[Forecast | Abstention]:
        ahead, unknown = Forecast.normal(2.0, 0.1, source=self.name), Abstention(self.name, "not the favourite")
        return [ahead if config["MODE"] == self.mode else unknown for config in context.job.space]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


def test_the_faster_variant_is_found_used_and_right(toy: Toy) -> None:
    module = load(toy, ["slower", "slow", "plain"])
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    decision = only_decision(module.scaled)
    assert decision.config == toy.config("plain")
    assert decision.basis == "measured"
    assert decision.speedup > 2
    assert (decision.forecast, decision.tried) == (3, 3)


def test_a_second_process_decides_from_the_store_and_builds_nothing(toy: Toy, counting: Counting) -> None:
    load(toy, ["slower", "plain"]).scaled(X, 2.0)
    assert counting.built == 2
    counting.built = counting.timed = 0
    module = load(toy, ["slower", "plain"])  # as a new process would: nothing is shared but the store and the builds
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    assert (counting.built, counting.timed) == (0, 0)
    assert only_decision(module.scaled).config == toy.config("plain")


def test_bad_variants_are_survived_remembered_and_never_chosen(
    toy: Toy, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_soon(lambda config: config["MODE"] == "hangs", monkeypatch)
    modes = ["slow", *(m for m in MODES if m not in GOOD), "plain"]
    out = torch.zeros_like(X)
    module = load(toy, modes)
    module.scale_into(out, X, 2.0)
    assert torch.equal(out, 2 * X)
    decision = only_decision(module.scale_into)
    assert decision.config == toy.config("plain")
    assert decision.failed == len(modes) - 2
    counting.built = counting.timed = 0
    again = load(toy, [*modes, "slower"])  # another space: no stored decision, but every outcome is known
    again.scale_into(out, X, 2.0)
    # Rounds go on while the machine is too busy to tell the two apart.
    assert counting.timed in {2 + 4 * rounds for rounds in range(1, 5)}, (
        "the default for its time of today, the new variant, then the best and the default there and back"
    )


def test_each_key_is_decided_by_itself(toy: Toy) -> None:
    module = load(toy, ["plain", "slow"])
    for size in (10, 20):
        module.scaled(torch.ones(size), 2.0)
    module.scaled(torch.ones(20)[::2].contiguous(), 2.0)
    assert len(module.scaled.decisions) == 2
    module.scaled(torch.ones(10), 3.0)
    assert len(module.scaled.decisions) == 3, "a scalar's value is part of the default key"


def test_two_variants_live_in_one_process_apart(toy: Toy) -> None:
    compiler = toy.compiler()
    modes = [compiler.extension(toy.config(mode)).function("mode")() for mode in ("plain", "slow", "slower")]
    assert modes == [0, 1, 2]


def test_the_last_call_runs_on_pristine_inputs(toy: Toy) -> None:
    x = torch.full((100,), 2.0)
    load(toy, ["slow", "plain"]).scale_in_place(x, 3.0)
    assert torch.equal(x, torch.full((100,), 6.0)), "scaled once, however often it was tried"


def test_arguments_go_by_name_where_a_signature_tells_their_order(toy: Toy) -> None:
    module = load(toy, ["plain"])
    assert torch.equal(module.scaled(a=2.0, x=X), 2 * X)
    with pytest.raises(TypeError, match=r"scaled\(x, a\)"):
        module.scaled(X, b=2.0)
    with pytest.raises(fa.InvalidInputError, match="add signature="):
        load(toy, ["plain"], signature=None).scaled(X, a=2.0)


@pytest.mark.parametrize("key", [{"scaled": "x"}, {"scaled": ["x"]}, {"scaled": lambda x, _: (x.shape, x.dtype)}])
def test_a_key_is_names_or_a_callable_and_may_be_given_per_function(toy: Toy, key: Any) -> None:
    module = load(toy, ["plain"], key=key)
    for factor in (1.0, 2.0, 3.0):
        assert torch.equal(module.scaled(X, factor), factor * X)
    assert len(module.scaled.decisions) == 1


def test_mode_first_builds_the_default_alone(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    module = load(toy, ["slow", "plain"])
    assert module.mode() == 1
    assert not module.mode.decisions


def test_mode_strict_names_the_key_and_the_nearest_known_one(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    load(toy, ["plain", "slow"]).scaled(torch.ones(10), 2.0)
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "strict")
    module = load(toy, ["plain", "slow"])
    module.scaled(torch.ones(10), 2.0)
    with pytest.raises(fa.CacheMissError, match=r"no decision for toy.scaled\(x=f32\[11\].*nearest.*f32\[10\]"):
        module.scaled(torch.ones(11), 2.0)


@pytest.mark.parametrize("mode", ["cached", "forecast"])
def test_modes_that_may_not_measure_do_not(
    toy: Toy, counting: Counting, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    module = load(toy, ["slow", "plain"])
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    assert counting.timed == 0
    assert only_decision(module.scaled).tried == 0


@pytest.mark.parametrize("mode", ["first", "cached", "forecast"])
def test_the_codes_mode_holds_and_may_differ_between_functions(toy: Toy, counting: Counting, mode: str) -> None:
    module = load(toy, ["slow", "plain"], mode={"scaled": mode})
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    assert (counting.timed, len(module.scaled.decisions)) == (0, 0 if mode == "first" else 1)
    out = torch.zeros_like(X)
    module.scale_into(out, X, 2.0)
    assert torch.equal(out, 2 * X)
    assert counting.timed > 0
    assert only_decision(module.scale_into).basis == "measured"


def test_mode_cached_in_the_code_recalls_what_was_measured(toy: Toy, counting: Counting) -> None:
    load(toy, ["slower", "plain"]).scaled(X, 2.0)
    counting.timed = 0
    module = load(toy, ["slower", "plain"], mode="cached")
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    assert (only_decision(module.scaled).config, counting.timed) == (toy.config("plain"), 0)


def test_the_environments_mode_overrides_the_codes(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    module = load(toy, ["slow", "plain"], mode="tune")
    assert module.mode() == 1
    assert not module.mode.decisions


def test_a_surrogate_of_the_users_own_forecasts(toy: Toy, counting: Counting) -> None:
    module = load(toy, ["slower", "slow", "plain"], mode="forecast", surrogate=Favouring("slow"))
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    decision = only_decision(module.scaled)
    assert (decision.config, decision.basis, counting.timed) == (toy.config("slow"), "forecast", 0)


def test_the_environments_budget_overrides_the_codes(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "1")
    module = load(toy, ["slow", "plain", "slower"], budget=3)
    module.scaled(X, 2.0)
    assert only_decision(module.scaled).tried == 1


def test_isolate_0_times_in_the_callers_process(toy: Toy, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_ISOLATE", "0")
    module = load(toy, ["slow", "plain"])
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    assert counting.timed == 0
    decision = only_decision(module.scaled)
    assert (decision.tried, decision.rests_on_outcomes) == (2, True)


def test_a_default_that_crashes_raises_and_the_caller_lives(toy: Toy) -> None:
    module = load(toy, ["segfaults", "aborts"])
    with pytest.raises(fa.NoWorkingConfigError, match="killed by SIGSEGV"):
        module.scaled(X, 2.0)


def test_a_default_that_crashes_is_replaced_by_what_runs(toy: Toy) -> None:
    module = load(toy, ["segfaults", "slow"])
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    assert "the default does not run here" in only_decision(module.scaled).reason


def test_a_default_that_crashes_is_never_run_in_the_callers_process(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Config] = []
    monkeypatch.setattr(InProcess, "verify", lambda _, config: compared.append(config))
    for _ in range(2):  # measured, and recalled as a new process would
        module = load(toy, ["segfaults", "slow"])
        assert torch.equal(module.scaled(X, 2.0), 2 * X)
        assert only_decision(module.scaled).config == toy.config("slow")
    assert compared == []


def test_what_was_set_in_the_defaults_library_keeps_the_default(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # measured, and recalled as a new process would
        module = load(toy, ["slower", "plain"], mode={"set_factor": "first"})
        module.set_factor(3.0)
        with pytest.warns(
            fa.TuningWarning, match="not MODE=plain, which was .*: output 0 .* elements differ.*arguments"
        ):
            assert torch.equal(module.scaled_by_factor(X), 3 * X)
        assert only_decision(module.scaled_by_factor).config == toy.config("slower")
        module.set_factor(1.0)  # the library is loaded once a process
        assert torch.equal(module.scaled_by_factor(X), X)
    assert "no config tried beats the default" not in capsys.readouterr().err


def test_a_call_that_is_wrong_itself_raises_what_the_extension_raises(toy: Toy) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        load(toy, ["plain", "slow"], signature=None).scaled("no tensor", 2.0)


def test_arguments_that_cannot_be_tried_run_the_default_with_a_warning(toy: Toy) -> None:
    module = load(toy, ["plain", "slow"], key={"same": lambda *_: 0})
    sparse = torch.ones(3).to_sparse()
    with pytest.warns(fa.TuningWarning, match="toy.same runs its default .*: x is a tensor that is sparse_coo"):
        assert torch.equal(module.same(sparse).to_dense(), torch.ones(3))


def test_threads_that_miss_one_key_tune_it_once(toy: Toy, counting: Counting) -> None:
    module = load(toy, ["plain", "slow"])
    threads = [threading.Thread(target=module.scaled, args=(X, 2.0)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counting.timed == 2, "nothing comes near the default, so there are no finalists"


def test_without_a_space_it_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    monkeypatch.setattr(
        torch.utils.cpp_extension, "load_inline", lambda *a, **k: seen.update(args=a, kwargs=k) or "module"
    )
    assert fa.load_inline("m", "src", None, functions=["f"], verbose=True) == "module"
    assert seen == {"args": ("m", "src", None), "kwargs": {"functions": ["f"], "verbose": True}}


@pytest.mark.thorough
def test_sources_by_name_are_picked_by_the_knob_source(toy: Toy) -> None:
    plain = "#define MODE 0\n" + KERNEL
    slow = "#define MODE 2\n" + KERNEL
    space = [{"source": "slow"}, {"source": "plain"}]
    module = load(toy, space=space, kernel_sources={"plain": plain, "slow": slow})
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    assert only_decision(module.scaled).config["source"] == "plain"


def test_a_flag_knob_is_passed_as_it_is(toy: Toy) -> None:
    space = fa.Space(
        [{"MODE": "plain", "OPT": "-DMODE_OF_FLAG=1 -O1"}, {"MODE": "plain", "OPT": ""}], roles={"OPT": "flag"}
    )
    compiler = CppCompiler(
        toy.compiler().recipe.__class__(
            name="toy", cpp_sources=(BINDING,), kernel_sources=(KERNEL,), functions={"mode": "mode"}, roles=space.roles
        ),
        toy.compiler().toolchain,
        toy.compiler().hardware,
        Path(),
    )
    assert compiler._variant(space[0]).flags == ("-DMODE_OF_FLAG=1", "-O1")
    assert compiler._variant(space[0]).defines == ("-DMODE=plain",)
    assert compiler._variant(space[0]).digest != compiler._variant(space[1]).digest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"space": []}, "the space is empty"),
        ({"space": [{"not an identifier": 1}]}, "must be a C identifier"),
        ({"space": [{"MODE": "a b"}]}, "hands it through a shell"),
        ({"space": [{"MODE": "$(touch x)"}]}, "hands it through a shell"),
        ({"key": {"scaled": "z"}}, "its arguments are x, a"),
        ({"key": {"scaled": "x"}, "signature": None}, "carry no names"),
        ({"key": "x"}, "key=.'x'. of scale_into: its arguments|of mode names arguments"),
        ({"signature": {"missing": "a"}}, "names the function 'missing'"),
        ({"check": {"missing": None}}, "names the function 'missing'"),
        ({"check": "closely"}, "accepted are 'allclose', 'bitexact'"),
        ({"budget": "lots"}, "accepted are a count"),
        ({"mode": "fast"}, "mode='fast': accepted are tune, online"),
        ({"mode": {"missing": "cached"}}, "mode names the function 'missing'"),
        ({"surrogate": "crystal ball"}, "surrogate='crystal ball': accepted are"),
        ({"surrogate": {"scaled": object()}}, "has no name, recalibrate"),
        ({"signature": {"scaled": "x, x"}}, "stands once"),
        ({"kernel_sources": 3}, "give a text"),
        ({"kernel_sources": {"plain": KERNEL}}, "has no knob 'source'"),
        ({"sycl_sources": "void f() {}"}, "takes C\\+\\+ and CUDA sources"),
    ],
)
def test_bad_input_is_named(toy: Toy, options: dict[str, Any], says: str) -> None:
    with pytest.raises(fa.InvalidInputError, match=says):
        load(toy, **options)


def test_a_default_outside_the_space_is_named(toy: Toy) -> None:
    with pytest.raises(fa.InvalidInputError, match="not in the space of 2 configs"):
        fa.Space.grid({"MODE": ["plain", "slow"]}, default={"MODE": "missing"})


def test_extras_without_a_space_are_named() -> None:
    with pytest.raises(fa.InvalidInputError, match=r"kernel_sources, key, mode of m.*add space="):
        fa.load_inline("m", "src", kernel_sources="x", key="a", mode="cached")


def test_a_function_that_is_not_in_the_module_is_named(toy: Toy) -> None:
    with pytest.raises(AttributeError, match=r"has no function 'missing'; it has scaled, scale_into"):
        load(toy).missing  # noqa: B018


def test_a_setting_that_does_not_parse_is_an_error_at_the_call(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(toy)
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "many")
    with pytest.raises(fa.InvalidInputError, match=r"FORECAST_AUTOTUNE_BUDGET.*'many'.*accepted"):
        module.scaled(X, 2.0)


def test_an_unhashable_key_is_named(toy: Toy) -> None:
    with pytest.raises(fa.InvalidInputError, match="cannot be looked up"):
        load(toy, key={"scaled": lambda *_: [1]}).scaled(X, 2.0)


def test_a_key_without_json_form_is_named(toy: Toy) -> None:
    with pytest.raises(fa.InvalidInputError, match="the key holds <object"):
        load(toy, key={"scaled": lambda *_: (object(),)}).scaled(X, 2.0)


def test_paths_may_be_given_as_paths(toy: Toy) -> None:
    module = load(toy, ["plain"], build_directory=toy.builds, extra_include_paths=[toy.builds])
    assert module.mode() == 0


def test_relative_paths_are_of_the_folder_where_they_were_given(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "nothing.h").touch()
    monkeypatch.chdir(tmp_path)
    kernel = f'#include "nothing.h"\n{KERNEL}'
    builds = os.path.relpath(toy.builds)
    relative, absolute = (
        load(toy, ["plain"], kernel_sources=kernel, extra_include_paths=[folder], build_directory=builds)
        for folder in ("include", tmp_path / "include")
    )
    assert relative.mode.program == absolute.mode.program, "what is decided for one counts for the other"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert relative.mode() == 0
    assert not [*tmp_path.rglob("*.so")]
    assert relative.mode.compiler("cpu").root.is_relative_to(toy.builds)


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_an_argument_that_is_no_finite_number_has_a_key_too(toy: Toy, counting: Counting, factor: float) -> None:
    module = load(toy, ["plain", "slow"])
    for _ in range(3):
        module.scaled(X, factor)
    assert len(module.scaled.decisions) == 1
    assert counting.timed == 2


def test_a_budget_of_all_goes_on_where_a_smaller_one_stopped(toy: Toy, counting: Counting) -> None:
    load(toy, GOOD, budget=1).scaled(X, 2.0)
    load(toy, GOOD, budget=1).scaled(X, 2.0)
    assert counting.timed == 1, "a measured decision is a hit"
    load(toy, GOOD, budget="all").scaled(X, 2.0)
    assert counting.timed >= 4, "the default for its time of today, and the two others"


def test_a_mistake_of_the_caller_is_not_kept_against_the_configs(toy: Toy) -> None:
    key = {"scaled": lambda *_: 0}
    with pytest.raises(TypeError):
        load(toy, GOOD, key=key).scaled("no tensor", 2.0)
    module = load(toy, GOOD, key=key)
    assert torch.equal(module.scaled(X, 2.0), 2 * X)
    assert only_decision(module.scaled).failed == 0


def test_a_recalled_call_that_raises_after_it_wrote_runs_once(toy: Toy) -> None:
    key = {"scale_up_to": lambda x, *_: x.numel()}
    load(toy, ["slow", "plain"], key=key).scale_up_to(torch.ones(20_000), -1.0, 1e9)
    module = load(toy, ["slow", "plain"], key=key)  # as a new process would
    x = torch.ones(20_000)
    with pytest.raises(RuntimeError, match="over the limit"):
        module.scale_up_to(x, -1.0, -2.0)
    assert only_decision(module.scale_up_to).config == toy.config("plain")
    assert torch.equal(x, torch.full_like(x, -1.0))


def test_a_recalled_variant_that_nobody_compares_keeps_its_fallback(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    load(toy, ["slow", "plain"], check=None).scaled(X, 2.0)
    module = load(toy, ["slow", "plain"], check=None)  # as a new process would
    launcher = module.scaled.launcher

    def broken(*_: object) -> None:
        raise RuntimeError("it does not run in this process")

    def launched(config: Config, device: str) -> Any:
        return SimpleNamespace(call=broken) if config == toy.config("plain") else launcher(config, device)

    monkeypatch.setattr(module.scaled, "launcher", launched)
    with pytest.warns(fa.TuningWarning, match="does not run in this process"):
        assert torch.equal(module.scaled(X, 2.0), 2 * X)
