# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""`forecast-autotune warm`: what the next start will run is compiled before it, and nothing is launched."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import a_decision, a_job
from rehearsed import BEST, call, own_triton_cache, playing, torch, triton, tuned
from toy import Toy

import forecast_autotune as fa
from forecast_autotune import cli
from forecast_autotune.compilers.cpp_compile import CppCompiler
from forecast_autotune.core.config import Config
from forecast_autotune.frontends.triton import installed
from forecast_autotune.frontends.triton.simulated_driver import Rehearsal
from forecast_autotune.frontends.warming import LaunchRefusedError, find_kernels, nothing_launched, warm
from forecast_autotune.measure.probe import detect_hardware
from forecast_autotune.settings import Settings
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.rows import TuningKey
from forecast_autotune.store.sqlite import SqliteStore

tl = pytest.importorskip("triton.language")


@triton.jit
def shifted(x_ptr, bias_ptr, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offsets, mask=offsets < n).to(KIND)
    if bias_ptr is not None:
        value += tl.load(bias_ptr).to(KIND)
    tl.store(x_ptr + offsets, value, mask=offsets < n)


@pytest.fixture(autouse=True)
def own_tuners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuners of the same kernel that earlier tests left alive in this process are none of this test's."""
    gc.collect()
    earlier = installed.living_tuners()  # held here, so that no later tuner has the identity of one of these
    living = installed.living_tuners

    def since() -> list[Any]:
        return [tuner for tuner in living() if all(tuner is not other for other in earlier)]

    monkeypatch.setattr(installed, "living_tuners", since)


def warmed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """What `warm` prints for programs, and to the person."""
    assert cli.main(["warm", *arguments, "--json"]) == code
    out, err = capsys.readouterr()
    return json.loads(out), err


def known_keys() -> list[TuningKey]:
    store = StoreFile(Settings.from_environment().dir)
    return [stored.tuning_key for stored in store.decisions()]


@contextlib.contextmanager
def another_machine(folder: Path) -> Iterator[Rehearsal]:
    """The same GPU, and nothing in Triton's cache."""
    with own_triton_cache(folder), playing() as on:
        yield on


def decide(folder: Path, launch: Any) -> None:
    """Have a call decided, as by an earlier process."""
    with own_triton_cache(folder), playing():
        launch()


def test_what_torch_compile_chooses_is_not_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SqliteStore(tmp_path) as store:
        store.note_pending(a_job(name="inductor.mm"), "mode cached")
    rows, err = warmed(capsys, str(tmp_path), code=1)
    assert rows == []
    assert "torch.compile's own choices" in err


def test_a_start_after_warming_compiles_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tuned()
    decide(tmp_path / "then", lambda: call(kernel))
    with another_machine(tmp_path / "now") as on:
        rows, said = warmed(capsys)
        assert {(row["kernel"], row["config"]["BLOCK"], row["result"]) for row in rows[:1]} == {
            ("rehearsed.scale", BEST, "compiled")
        }
        assert "0 left to the first launch" in said
        assert not on.launches
        call(tuned())
        assert (on.compiles["scale"], on.cache_hits["scale"]) == (0, 1)
        assert {row["result"] for row in warmed(capsys)[0]} == {"there"}


def test_a_call_is_made_again_with_alignment_none_and_types(tmp_path: Path) -> None:
    kernel = tuned(shifted)
    bias = torch.ones(1)
    calls = [
        lambda: kernel[(4,)](torch.empty(4096), None, 1000, tl.float16),
        lambda: kernel[(4,)](torch.empty(4097)[1:], bias, 1, tl.float32),  # at an odd address, and a 1 is compiled in
    ]
    for each in calls:
        decide(tmp_path / "then", each)
    with another_machine(tmp_path / "now") as on:
        found, unknown = find_kernels(known_keys())
        assert not unknown
        assert [row.result for row in warm([each for each in found if each.kernel is kernel])] == ["compiled"] * 2
        for each in calls:
            each()
        assert (on.compiles["shifted"], on.cache_hits["shifted"]) == (0, 2)


def test_under_another_toolchain_the_default_is_compiled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tuned()
    decide(tmp_path / "then", lambda: call(kernel))
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")  # which changes what Triton compiles
    with another_machine(tmp_path / "now") as on:
        found, _ = find_kernels(known_keys())
        rows = list(warm([each for each in found if each.kernel is kernel]))
        assert {row.config["BLOCK"] for row in rows if row.config} == {BEST, kernel.configs[0].kwargs["BLOCK"]}
        assert {row.result for row in rows} == {"compiled"}
        call(tuned(mode="cached"))
        assert (on.compiles["scale"], on.cache_hits["scale"]) == (0, 1)


def test_what_cannot_be_compiled_ahead_is_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuned()
    decide(tmp_path / "then", lambda: call(kernel))
    with another_machine(tmp_path / "now"):
        monkeypatch.setattr(kernel.fn.fn, "__name__", "renamed")
        monkeypatch.setattr(kernel.fn.fn, "__qualname__", "renamed")
        monkeypatch.delitem(sys.modules, "rehearsed")
        monkeypatch.setattr(sys, "path", [])
        rows, _ = warmed(capsys, code=1)
    assert [(row["config"], row["result"]) for row in rows] == [(None, "left")]
    assert rows[0]["why"] == "there is no module rehearsed with a kernel scale on Python's path here"


def test_a_key_whose_arguments_were_not_kept_is_left_to_its_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuned()
    decide(tmp_path / "then", lambda: call(kernel))
    with another_machine(tmp_path / "now"):
        found, _ = find_kernels(known_keys())
        for each in found:
            each.key.workload.features.pop("factor", None)  # type: ignore[attr-defined]
        rows = list(warm(found))
    assert {(row.result, row.why) for row in rows} == {("left", "the store does not say what its argument factor was")}


def test_a_script_is_imported_up_to_its_first_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tuned()
    decide(tmp_path / "then", lambda: call(kernel))
    script = tmp_path / "starts_at_once.py"
    script.write_text("import rehearsed\nkernel = rehearsed.tuned()\nrehearsed.call(kernel)\nraise SystemExit(3)\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    with another_machine(tmp_path / "now") as on:
        rows, said = warmed(capsys, str(script))
        assert not on.launches
    assert "LaunchRefusedError" in said
    assert rows[0]["result"] == "compiled"


def test_what_a_scripts_variants_run_is_left_to_their_first_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "doubles.py"
    script.write_text(
        "import torch\nimport forecast_autotune as fa\n"
        "def double(x): return 2 * x\n"
        "def added(x): return x + x\n"
        "tuned, named = fa.variants([double, added]), fa.variants([double, added], name='twice')\n"
        "tuned(torch.ones(8))\n"
    )
    with SqliteStore(Settings.from_environment().dir) as store:
        for name in ("__main__.double", "twice", "__main__.another"):
            job = replace(a_job(name=name), hardware=detect_hardware("cpu"))
            store.record_decision(job, a_decision(job))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    rows, said = warmed(capsys, str(script), code=1)
    assert "is read as far as it runs here, where it stops with LaunchRefusedError" in said
    assert {(row["kernel"], row["result"]) for row in rows} == {("__main__.double", "left"), ("twice", "left")}
    assert {row["why"] for row in rows} == {"what fa.variants runs is compiled by its first call"}


def test_where_nothing_is_launched_a_launch_raises(tmp_path: Path) -> None:
    kernel = tuned()
    with another_machine(tmp_path / "now") as on:
        with nothing_launched(), pytest.raises(LaunchRefusedError):
            call(kernel)
        call(kernel)
        assert on.launches


def test_keys_of_hardware_that_is_not_here_are_compiled_where_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = tuned()
    decide(tmp_path / "then", lambda: call(kernel))
    with own_triton_cache(tmp_path / "now"):
        rows, said = warmed(capsys, code=1)
        assert rows == []
        assert "--hardware H compiles" in said
        rows, _ = warmed(capsys, "--hardware", "h100")
        assert rows[0]["result"] == "compiled"


def test_a_script_that_ran_as_main_is_known_by_its_text(tmp_path: Path) -> None:
    kernel = tuned()
    main = types.SimpleNamespace(before=kernel.fn.fn.__module__)
    kernel.fn.fn.__module__ = "__main__"
    try:
        decide(tmp_path / "then", lambda: call(kernel))
    finally:
        kernel.fn.fn.__module__ = main.before
    assert find_kernels(known_keys(), script="another")[0] == []
    found, _ = find_kernels(known_keys(), script="rehearsed")
    assert kernel in [each.kernel for each in found]


@pytest.mark.thorough
def test_builds_of_an_extension_are_found_by_the_next_process(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    module = fa.load_inline(**{**toy.arguments(), "space": toy.space(["slow", "plain"])})
    x = torch.ones(100)
    module.scaled(x, 2.0)
    (decision,) = module.scaled.decisions.values()
    found, unknown = find_kernels(known_keys())
    assert not unknown
    mine = [each for each in found if each.kernel is module.scaled]
    assert [(row.config, row.result) for row in warm(mine)] == [(decision.config, "there")]
    monkeypatch.setattr(CppCompiler, "is_built", lambda *_: False)
    (row,) = warm(mine)
    assert (row.config, row.result) == (Config(decision.config.knobs), "compiled")
