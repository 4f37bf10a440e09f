# ruff: noqa: N803  # knobs and Triton's meta-parameters are written in capitals
"""The third front door: torch ops timed for real, interpreted kernels for values, the rehearsal driver for counting."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from talking import Talking, knob, named_by_settings, sure_of
from toy import Toy

import forecast_autotune as fa
from forecast_autotune.cli import main
from forecast_autotune.compilers import triton_launches
from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Outcome
from forecast_autotune.core.timing_limits import IN_FULL, TimingLimits
from forecast_autotune.errors import CacheMissError, InvalidInputError, TuningWarning
from forecast_autotune.frontends import tuned_callable
from forecast_autotune.frontends.tuning_lock import tuning_lock
from forecast_autotune.language.prompt import Prompt
from forecast_autotune.measure.in_process import InProcess
from forecast_autotune.surrogates.language_model import LanguageModelSurrogate

torch = pytest.importorskip("torch")

X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
LAZY_S = 0.004  # long against what a busy machine adds to a sample


def lazy(x: Any, factor: float = 2.0) -> Any:
    time.sleep(LAZY_S)
    return x * factor


def quick(x: Any, factor: float = 2.0) -> Any:
    return x * factor


def wrong(x: Any, factor: float = 2.0) -> Any:
    return x * factor + 1


def raises(x: Any, factor: float = 2.0) -> Any:
    raise RuntimeError("no more than 32 columns")


def spoils(x: Any, factor: float = 2.0) -> Any:
    found = x * factor
    x.zero_()
    return found


def only_decision(function: Any) -> Any:
    (decision,) = function.decisions.values()
    return decision


def chosen(function: Any) -> dict[str, Any]:
    return {name: value for name, value in only_decision(function).config.knobs.items() if value is not None}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configs timed, in their order."""
    found: list[Any] = []
    measure = InProcess.measure

    def counted(measurer: InProcess, config: Config, limits: TimingLimits = IN_FULL) -> Outcome:
        found.append(config)
        return measure(measurer, config, limits)

    monkeypatch.setattr(InProcess, "measure", counted)
    return found


# What is chosen -----------------------------------------------------------------------------------------------------


def test_wrong_and_raising_variants_are_reported_in_one_line_with_the_key(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    function = fa.variants([quick, wrong, raises, raises], name="told")
    assert torch.equal(function(X), X * 2)
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert re.search(r"[23] of [34] configs tried failed", line), line
    shown = re.search(r"'forecast-autotune show (\w+)'", line)
    assert shown is not None, line
    assert main(["show", shown[1]]) == 0
    assert "no more than 32 columns" in capsys.readouterr().out


def test_the_faster_variant_is_found_and_called_from_then_on(timed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    double = fa.variants([lazy, quick])
    assert torch.equal(double(X), 2 * X)
    assert chosen(double) == {"variant": "quick"}
    decision = only_decision(double)
    assert (decision.basis, decision.tried, decision.failed) == ("measured", 2, 0)
    assert decision.speedup > 10
    known, slept = len(timed), list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    double(X)
    assert LAZY_S not in slept
    assert len(timed) == known


def test_variants_that_are_wrong_are_failures_and_never_chosen() -> None:
    x = X.clone()
    double = fa.variants([lazy, wrong, raises, spoils, lambda x, factor: (x * factor, x), quick])
    assert torch.equal(double(x), 2 * X)
    assert torch.equal(x, X), "what a variant spoils is put back"
    assert chosen(double) == {"variant": "quick"}
    assert (only_decision(double).tried, only_decision(double).failed) == (6, 4)


def test_why_a_variant_failed_is_kept_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fa.variants([lazy, wrong, raises, spoils], name="double")(X)
    main(["show", "double"])
    told = capsys.readouterr().out
    assert re.search(r"check .* output 0 \(float32\[64x64\]\): 4096 of 4096 elements", told)
    assert re.search(r"launch .* RuntimeError: no more than 32 columns", told)
    assert re.search(r"failed at check .*variant=spoils .*wrote to x, which the default leaves as it was", told)
    main(["show", "double", "-v"])
    told = capsys.readouterr().out
    assert re.search(r"failed at check .*variant=wrong .*output 0 \(float32\[64x64\]\): 4096 of 4096 elements", told)
    assert re.search(r"failed at launch .*variant=raises .*RuntimeError: no more than 32 columns", told)
    main(["list"])
    assert "double(x=f32[64x64], factor=2.0" in capsys.readouterr().out


def test_without_a_check_a_wrong_variant_is_the_users_own_business() -> None:
    double = fa.variants([lazy, wrong], check=None)
    assert torch.equal(double(X), 2 * X + 1)


def test_a_variant_that_cannot_take_a_size_is_chosen_at_others() -> None:
    def narrow(x: Any) -> Any:
        if x.shape[1] > 32:
            raise ValueError(f"{x.shape[1]} columns")
        return x * 2

    double = fa.variants([lazy, narrow, quick])
    for columns in (16, 64):
        assert torch.equal(double(torch.ones(4, columns)), torch.full((4, columns), 2.0))
    small, large = double.decisions.values()
    assert (small.failed, large.failed) == (0, 1)
    assert large.config["variant"] == "quick"


def test_a_default_that_raises_is_replaced_by_what_runs() -> None:
    double = fa.variants([raises, quick])
    assert torch.equal(double(X), 2 * X)
    assert "the default does not run here" in only_decision(double).reason


def test_a_call_that_is_wrong_itself_raises_what_the_default_raises() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        fa.variants([lazy, quick], key=lambda *_: 0)({}, 2.0)


def test_a_space_of_its_own_is_handed_to_a_variant_by_name() -> None:
    def blocked(x: Any, factor: float, *, BLOCK: int) -> Any:
        time.sleep(LAZY_S / BLOCK)
        return torch.cat([part * factor for part in x.split(BLOCK)])

    space = fa.Space.grid({"BLOCK": [1, 64]}, roles={"BLOCK": "tile"})
    double = fa.variants([lazy, (blocked, space)])
    assert torch.equal(double(X, 3.0), 3 * X)
    assert chosen(double) == {"variant": "blocked", "BLOCK": 64}, only_decision(double)
    assert only_decision(double).space_size == 3
    first = fa.variants([(blocked, space), lazy], mode="first", name="other")
    assert torch.equal(first(X, 3.0), 3 * X)
    assert not first.decisions


def test_what_is_computed_in_place_is_computed_once() -> None:
    def lazy_in_place(x: Any) -> None:
        time.sleep(LAZY_S)
        x.mul_(2)

    def in_place(x: Any) -> None:
        x.mul_(2)

    def half(x: Any) -> None:
        x[: len(x) // 2].mul_(2)

    x = X.clone()
    double = fa.variants([lazy_in_place, half, in_place])
    double(x)
    assert torch.equal(x, 2 * X)
    assert chosen(double) == {"variant": "in_place"}
    assert only_decision(double).failed == 1


def test_what_autograd_has_saved_is_not_taken_for_changed() -> None:
    weight = X.clone().requires_grad_()
    hidden = weight.exp()  # saves its result, which the variants are tried on
    fa.variants([lazy, quick])(hidden).sum().backward()
    torch.testing.assert_close(weight.grad, 2 * X.exp())


def test_a_variant_without_a_backward_is_chosen_only_without_autograd() -> None:
    double = fa.variants([lazy, lambda x, factor=2.0: x.detach() * factor])
    weight = X.clone().requires_grad_()
    with torch.no_grad():
        double(weight)
    assert chosen(double) == {"variant": "<lambda>"}
    double(weight).sum().backward()
    assert torch.equal(weight.grad, torch.full_like(X, 2.0))
    without, followed = double.decisions.values()
    assert (without.failed, followed.failed, followed.config["variant"]) == (0, 1, "lazy")


# How it is called ---------------------------------------------------------------------------------------------------


def test_arguments_by_name_reach_variants_that_name_them_otherwise() -> None:
    def first(values: Any, axis: int = -1) -> Any:
        time.sleep(15 * LAZY_S)  # torch's threads wait for each other: 16 ms on two busy cores
        return torch.softmax(values, axis)

    softmax = fa.variants([first, torch.softmax])
    for result in (softmax(X), softmax(X, -1), softmax(X, axis=-1), softmax(axis=-1, values=X)):
        torch.testing.assert_close(result, torch.softmax(X, -1))
    assert chosen(softmax) == {"variant": "softmax"}, "one key, and torch's own is handed the default of axis"
    torch.testing.assert_close(softmax(X, axis=0), torch.softmax(X, 0))
    assert len(softmax.decisions) == 2
    with pytest.raises(TypeError, match=r"first\(values, axis\) is called without 'values'"):
        softmax(axis=0)


def test_arguments_that_go_by_name_alone_are_part_of_the_key_too() -> None:
    def slow(x: Any, *, shift: float = 0.0) -> Any:
        time.sleep(LAZY_S)
        return x + shift

    shifted = fa.variants([slow, lambda x, *, shift=0.0: x + shift])
    assert torch.equal(shifted(X, shift=1.0), X + 1)
    assert torch.equal(shifted(X), X)
    assert torch.equal(shifted(X, shift=0.0), X)
    assert len(shifted.decisions) == 2


def test_further_arguments_by_position_and_by_name_have_keys_apart() -> None:
    def slow(x: Any, *rest: Any, **named: Any) -> Any:
        time.sleep(LAZY_S)
        return x + named.get("a", 0)

    shifted = fa.variants([slow, lambda x, *rest, **named: x + 0 if rest else x + 2 * named.get("a", 0)])
    for rest in (("a", 1), (("a", 1),), ({"a": 1},)):
        assert torch.equal(shifted(X, *rest), X)
    assert torch.equal(shifted(X, a=1), X + 1)
    assert len(shifted.decisions) == 4


@pytest.mark.parametrize("key", ["x", ["x"], lambda x, _: (x.shape, x.dtype)])
def test_a_key_is_names_or_a_callable(key: Any) -> None:
    double = fa.variants([lazy, quick], key=key)
    for factor in (1.0, 2.0, 3.0):
        assert torch.equal(double(X, factor), factor * X)
    assert len(double.decisions) == 1
    double(X[:32], 2.0)
    assert len(double.decisions) == 2


def test_it_stands_for_its_first_callable() -> None:
    import inspect

    double = fa.forecast_autotune.variants([lazy, quick])
    assert (double.__name__, str(inspect.signature(double))) == ("lazy", str(inspect.signature(lazy)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"callables": []}, "no callables"),
        ({"callables": lazy}, "give a list of callables"),
        ({"callables": [lazy, 3]}, "holds 3, which cannot be called"),
        ({"callables": [lazy, lambda: None]}, r"variant <lambda>\(\) cannot be called as lazy\(x.* is: too many"),
        ({"callables": [lazy, lambda a, b, c: a]}, r"missing a required argument: 'c'"),
        ({"callables": [(lazy, [{"BLOCK": 1}])]}, "the knobs BLOCK, which it does not take"),
        ({"callables": [(lazy, [])]}, "the space is empty"),
        ({"key": "z"}, "its arguments are x, factor"),
        ({"key": ""}, "key='' of .* names no argument: name some, leave key= out"),
        ({"key": []}, r"key=\[\] of .* names no argument: name some"),
        ({"callables": [max, min], "key": "z"}, "carry no names: give key= as a callable"),
        ({"check": "closely"}, "accepted are 'allclose', 'bitexact'"),
        ({"budget": "lots"}, "accepted are a count"),
        ({"mode": "sometimes"}, "accepted are tune"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        fa.variants(**{"callables": [lazy, quick], **arguments})


def test_a_key_that_cannot_be_looked_up_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"the key of lazy is .* cannot be looked up"):
        fa.variants([lazy, quick], key=lambda *_: [1])(X)


@pytest.mark.parametrize("key", ["x, factor", lambda x, factor: (x.shape, (factor / 1,)), lambda _, factor: factor / 1])
def test_a_key_that_holds_nan_is_decided_once(key: Any) -> None:
    scaled = fa.variants([lazy, quick], key=key)
    for _ in range(3):
        assert scaled(X, float("nan")).isnan().all()
    assert len(scaled.dispatcher.table) == len(scaled.decisions) == 1


# Settings, processes and threads ------------------------------------------------------------------------------------


def test_mode_strict_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "strict")
    with pytest.raises(CacheMissError, match=r"no decision for .*lazy\(x=f32\[64x64\]"):
        fa.variants([lazy, quick])(X)


@pytest.mark.parametrize("mode", ["cached", "forecast"])
def test_modes_that_may_not_measure_do_not_until_it_is_asked_for(
    timed: list[Any], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", mode)
    double = fa.variants([lazy, quick])
    assert torch.equal(double(X), 2 * X)
    assert (timed, only_decision(double).basis) == ([], "default")
    with fa.tune_pending():
        double(X)
    assert timed
    assert chosen(double) == {"variant": "quick"}


PROGRAM = """
import sys, time, torch
import forecast_autotune as fa

SHIFT = {shift}

def slow(x):
    time.sleep(2e-3)
    return x + SHIFT

def fast(x):
    return x + SHIFT

shifted = fa.variants([slow, fast], mode=sys.argv[1])
assert torch.equal(shifted(torch.ones(9)), torch.ones(9) + SHIFT)
((decision,),) = [shifted.decisions.values()]
print(decision.config["variant"], decision.run)
"""


def test_a_second_process_recalls_times_the_first_took_of_the_same_source(tmp_path: Path) -> None:
    def run(mode: str, shift: int = 1) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(PROGRAM.format(shift=shift))
        command = [sys.executable, str(tmp_path / "program.py"), mode]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))

    first = run("tune")
    assert first.stdout.startswith("fast ")
    assert run("strict").stdout == first.stdout
    assert "CacheMissError" in run("strict", shift=2).stderr, "a constant that a variant reads is part of it"


@pytest.mark.parametrize(("check", "how"), [("allclose", ": it does not run"), (None, " and which does not run")])
@pytest.mark.parametrize("under", [contextlib.nullcontext, torch.autograd.graph.save_on_cpu])
def test_a_recalled_variant_that_fails_to_run_gives_way_to_the_default(
    check: str | None, how: str, under: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    broken = threading.Event()  # state, where the items of a list would be taken for a part of the code

    def fragile(x: Any) -> Any:
        if broken.is_set():
            raise RuntimeError("out of memory")
        return x * 2

    assert torch.equal(fa.variants([lazy, fragile], check=check)(X), 2 * X)
    double = fa.variants([lazy, fragile], check=check)  # as a new process would
    broken.set()
    not_run = f"runs its first config, not variant=fragile, which was recalled{how}: RuntimeError: out of mem"
    with under():
        with pytest.warns(TuningWarning, match=not_run):
            assert torch.equal(double(X), 2 * X)
        assert torch.equal(double(X), 2 * X)
    assert torch.equal(double(X), 2 * X)
    assert (chosen(double), only_decision(double).basis) == ({"variant": "lazy"}, "default")


def test_while_one_thread_measures_another_runs_the_default_of_an_open_key() -> None:
    measuring, go_on = threading.Event(), threading.Event()
    callers: list[tuple[str, int]] = []

    def first(x: Any) -> Any:
        callers.append(("first", threading.get_ident()))
        return x * 2

    def second(x: Any) -> Any:
        callers.append(("second", threading.get_ident()))
        measuring.set()
        assert go_on.wait(120)
        return x * 2

    double = fa.variants([first, second])
    thread = threading.Thread(target=double, args=(X,))
    thread.start()
    assert measuring.wait(120)
    here = threading.get_ident()
    assert torch.equal(double(X), 2 * X)
    assert torch.equal(double(X[:8]), 2 * X[:8])
    assert [who for who, thread in callers if thread == here] == ["first", "first"]
    go_on.set()
    thread.join()
    assert len(double.decisions) == 1


def finishes(function: Callable[..., Any], *args: Any) -> bool:
    """Whether a call comes to its end, in a thread that is left behind if it does not."""
    done = threading.Event()
    threading.Thread(target=lambda: (function(*args), done.set()), daemon=True).start()
    return done.wait(60)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_variant_may_have_other_threads_call_tuned_functions(is_named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = fa.variants([lazy, quick], name="inner", key="x")
    call = inner if is_named else functools.partial(lambda hidden, x: hidden()(x), weakref.ref(inner))
    pool = ThreadPool(2)

    def whole(x: Any) -> Any:
        time.sleep(10 * LAZY_S)
        return call(x)

    def in_halves(x: Any) -> Any:
        return torch.cat(pool.map(call, x.chunk(2)))

    assert finishes(fa.variants([whole, in_halves], name="outer"), X)
    inner.dispatcher.table.clear()
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
    recalling = fa.variants([whole, in_halves], name="outer")
    assert finishes(recalling, X)
    assert chosen(recalling)["variant"] == "in_halves"
    pool.terminate()


def test_memory_too_short_to_look_runs_the_default_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forecast_autotune.measure.copies.usable_memory_bytes", lambda: 100)
    with pytest.warns(TuningWarning, match=r"lazy is not tuned, its first config is run: .* MiB are free"):
        assert torch.equal(fa.variants([lazy, quick])(X), 2 * X)


def test_nothing_is_timed_while_a_graph_is_captured(timed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    double = fa.variants([lazy, quick])
    with monkeypatch.context() as patched:  # the folder of the store stays this test's own
        patched.setattr(tuned_callable, "why_unmeasured", lambda _: "a CUDA graph was being captured")
        assert torch.equal(double(X), 2 * X)
    assert (timed, double.decisions) == ([], {})
    double(X)
    assert chosen(double) == {"variant": "quick"}


# Under a compiler ---------------------------------------------------------------------------------------------------


@pytest.fixture
def compiling() -> Iterator[Callable[..., Any]]:
    torch._dynamo.reset()
    yield lambda f, **options: torch.compile(f, backend="eager", fullgraph=True, **options)
    torch._dynamo.reset()


def marked_first(x: Any, factor: float = 2.0) -> Any:
    if not torch.compiler.is_compiling():
        time.sleep(LAZY_S)
    return torch.add(x, x) if factor == 2.0 else x * factor


def graph_of(f: Callable[..., Any], *args: Any) -> str:
    """The operations that Dynamo captures."""
    found: list[str] = []

    def backend(module: Any, _: Any) -> Any:
        found.append(module.code)
        return module.forward

    torch._dynamo.reset()
    torch.compile(f, backend=backend, fullgraph=True)(*args)
    return "".join(found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_runs_the_decided_forecast_or_default_unmeasured(timed: list[Any], compiling: Any) -> None:
    double = fa.variants([marked_first, quick])
    assert "add" in graph_of(lambda x: double(x), X)
    assert (timed, double.decisions) == ([], {})
    double(X)
    known = len(timed)
    assert "mul" in graph_of(lambda x: double(x, factor=2.0), X)
    recalling = fa.variants([marked_first, quick])
    assert "mul" in graph_of(lambda x: recalling(x), X), "out of the store"
    assert len(timed) == known
    assert "mul" in graph_of(lambda x: double(x), X[:8]), (
        "another key: forecast, from how far apart they are at this one"
    )
    assert len(timed) == known


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sizes_that_change_are_compiled_each_for_its_own_key(compiling: Any) -> None:
    double = fa.variants([lazy, quick], key="x")
    for rows in (8, 16):
        double(X[:rows])
    compiled = compiling(lambda x: double(x) + 1, dynamic=True)
    for rows in (8, 16):
        assert torch.equal(compiled(X[:rows]), 2 * X[:rows] + 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_call_does_not_wait_for_a_thread_that_measures(compiling: Any) -> None:
    """It holds Dynamo's lock, which a variant that is being measured may need."""
    measuring, go_on = threading.Event(), threading.Event()

    def waiting(x: Any) -> Any:
        measuring.set()
        assert go_on.wait(120)
        return x * 2

    thread = threading.Thread(target=fa.variants([lazy, waiting], key="x"), args=(X,))
    thread.start()
    assert measuring.wait(120)
    traced = fa.variants([quick, marked_first])
    assert finishes(compiling(lambda x: traced(x) + 1), X)
    go_on.set()
    thread.join()


def test_fake_tensors_take_what_is_decided_and_measure_nothing(timed: list[Any]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    double = fa.variants([lazy, quick])
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.set_warn_always(True)  # not only at the first question of the process
        try:
            assert double(torch.empty(5, 6)).shape == (5, 6)
        finally:
            torch.set_warn_always(False)
    symbolic = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False).from_tensor(X)
    assert type(symbolic.shape[0]) is torch.SymInt
    assert double(symbolic).shape == symbolic.shape
    assert (timed, double.decisions) == ([], {})


# Tuners within variants ---------------------------------------------------------------------------------------------

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from rehearsed import BEST, BLOCKS, configs, launched, own_triton_cache, playing, scale, tuned  # noqa: E402


@pytest.fixture(scope="module")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_triton_cache(tmp_path_factory.mktemp("triton")):
        yield


def scaling(kernel: Any, **keywords: Any) -> Callable[..., Any]:
    """A function around a kernel that a reader of its source finds."""

    def launch(x: Any, n: int) -> None:
        kernel[(4,)](x, n, 2.0, **keywords)

    return launch


def test_tuners_in_a_variant_are_decided_jointly_and_not_by_themselves(triton_cache: None) -> None:
    kernel = tuned()
    scaled = fa.variants([scaling(scale, BLOCK=1024, num_warps=4), scaling(kernel)], key="n")
    x = torch.empty(4096)
    with playing() as on:
        scaled(x, 1000)
        assert chosen(scaled)["variant"] == "launch2"
        assert chosen(scaled)["scale.BLOCK"] == BEST
        assert only_decision(scaled).space_size == only_decision(scaled).tried == 1 + len(BLOCKS)
        assert (kernel.decisions, kernel.cache) == ({}, {})
        on.launches.clear()
        scaled(x, 1000)
        assert (launched(on), on.launches.total()) == ({(BEST, 4)}, 1)
        assert (kernel.decisions, kernel.cache) == ({}, {})
        kernel[(4,)](x, 1000, 2.0)
        assert only_decision(kernel).tried == len(BLOCKS), "elsewhere it decides for itself"


def test_a_joint_decision_is_recalled_with_one_run_of_each_variant(triton_cache: None, timed: list[Any]) -> None:
    def both() -> Any:
        return fa.variants([scaling(scale, BLOCK=1024, num_warps=4), scaling(tuned())], key="n")

    x = torch.empty(4096)
    with playing() as on:
        both()(x, 1000)
        timed.clear()
        on.launches.clear()
        again = both()
        again(x, 1000)
        assert (timed, chosen(again)["scale.BLOCK"]) == ([], BEST)
        assert on.launches.total() == 2, "one to find the tuners in it, one as decided"


def test_a_users_pruning_holds_within_variants(triton_cache: None) -> None:
    def prune(candidates: list[Any], named: dict[str, Any], **_: Any) -> list[Any]:
        assert named["n"] == 1000
        return [c for c in candidates if c.kwargs["BLOCK"] in (64, 128)]

    kernel = tuned(prune_configs_by={"early_config_prune": prune})
    scaled = fa.variants([scaling(kernel)], key="n")
    with playing() as on:
        scaled(torch.empty(4096), 1000)
        assert launched(on) == {(64, 4), (128, 4)}
    assert chosen(scaled)["scale.BLOCK"] == 128


def test_a_variant_with_two_tuners_is_decided_over_both(triton_cache: None) -> None:
    first, second = tuned(configs=configs((64, 256))), tuned(configs=configs((128, 256)))

    def twice(x: Any, n: int) -> None:
        first[(4,)](x, n, 2.0)
        second[(4,)](x, n, 0.5)

    scaled = fa.variants([twice], key="n")
    with playing():
        scaled(torch.empty(4096), 1000)
    assert only_decision(scaled).space_size == 4
    assert (chosen(scaled)["scale.BLOCK"], chosen(scaled)["scale2.BLOCK"]) == (BEST, BEST)


def test_kernels_are_compiled_ahead_if_variants_are_declared_stateless(
    triton_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[Any, Any] = {}
    told: list[int] = []
    real = triton_launches.launches
    monkeypatch.setattr(triton_launches, "launches", lambda *args: told.append(len(real(*args))) or real(*args))

    def keeping(x: Any, n: int) -> None:
        if n not in kept:
            kept[n] = torch.empty_like(x)
        scale[(4,)](kept[n], n, 2.0, BLOCK=BEST, num_warps=4)

    for ahead in (False, True):
        kept.clear()
        other = scaling(scale, BLOCK=BEST, num_warps=4) if ahead else keeping
        scaled = fa.variants(
            [scaling(scale, BLOCK=1024, num_warps=4), other], key="n", compile_ahead=ahead, name=f"ahead {ahead}"
        )
        with playing() as on:
            scaled(torch.empty(4096), 1000)
            scaled(torch.empty(4096), 1000)
            assert launched(on) == {(1024, 4), (BEST, 4)}
        assert told == ([1, 1] if ahead else [])
        assert only_decision(scaled).failed == 0
        assert all(type(made) is torch.Tensor for made in kept.values())


@pytest.mark.parametrize(("mode", "seen"), [("cached", 2), ("forecast", 2), ("first", 0)])
def test_launches_are_read_for_a_forecast_and_not_for_a_stored_decision(
    triton_cache: None, mode: str, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(triton_launches, "launches", lambda *args: asked.append(args) or [])
    for how, calls in ((mode, seen), ("tune", 2), ("tune", 0), ("cached", 0)):
        asked.clear()
        scaled = fa.variants(
            [scaling(scale, BLOCK=1024, num_warps=4), scaling(scale, BLOCK=BEST, num_warps=4)],
            key="n",
            mode=how,
            compile_ahead=True,
        )
        with playing():
            scaled(torch.empty(4096), 1000)
        assert len(asked) == calls


def test_variants_within_variants_are_one_decision(triton_cache: None) -> None:
    inner = fa.variants([scaling(scale, BLOCK=1024, num_warps=4), scaling(tuned())], key="n", name="inner")

    def around(x: Any, n: int) -> None:
        inner(x, n)

    outer = fa.variants([around], key="n")
    with playing() as on:
        outer(torch.empty(4096), 1000)
        assert chosen(outer)["inner.variant"] == "launch2"
        assert chosen(outer)["inner.scale.BLOCK"] == BEST
        assert not inner.decisions
        on.launches.clear()
        outer(torch.empty(4096), 1000)
        assert (launched(on), on.launches.total()) == ({(BEST, 4)}, 1)


def test_a_tuner_no_source_names_tunes_itself_outside_joint_decisions(triton_cache: None) -> None:
    kernel = tuned()
    hidden = weakref.ref(kernel)

    def launch(x: Any, n: int) -> None:
        hidden()[(4,)](x, n, 2.0)  # type: ignore[index]

    scaled = fa.variants([scaling(scale, BLOCK=1024, num_warps=8), launch], key="n")
    with playing() as on:
        x = torch.empty(4096)
        scaled.dispatcher.entry("a key", scaled.placed((x, 1000)))
        assert launched(on) == {(1024, 8), (64, 4)}
        scaled(x, 1000)
    assert only_decision(kernel).config["BLOCK"] == BEST


@pytest.fixture
def interpreted() -> Iterator[None]:
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        yield


def test_interpreted_kernels_are_compared_by_writes_and_return_values(interpreted: None) -> None:
    @triton.jit
    def double_kernel(x_ptr, y_ptr, n, shift, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2 + shift, mask=at < n)

    kernel = tuned(double_kernel, configs=configs((16, 64)))

    def returning(shift: float) -> Callable[..., Any]:
        def double(x: Any) -> Any:
            y = torch.empty_like(x)
            kernel[lambda knobs: (triton.cdiv(len(x), knobs["BLOCK"]),)](x, y, len(x), shift)
            return y

        return double

    x = torch.arange(64.0)
    doubled = fa.variants([returning(0.0), returning(1.0)])
    assert torch.equal(doubled(x), 2 * x)
    decision = only_decision(doubled)
    assert (decision.tried, decision.failed) == (4, 2)
    assert chosen(doubled)["variant"] == "double"
    assert not kernel.decisions

    def writing(x: Any, y: Any) -> None:
        y.copy_(x + x)

    def writing_by_kernel(x: Any, y: Any) -> None:
        kernel[(4,)](x, y, len(x), 0.0)

    written, y = fa.variants([writing, writing_by_kernel]), torch.zeros(64)
    written(x, y)
    assert torch.equal(y, 2 * x)
    assert only_decision(written).failed == 0
    assert not Path(os.environ["FORECAST_AUTOTUNE_DIR"], "store.sqlite3").exists(), "interpreted times are kept nowhere"


def test_functions_of_load_inline_are_decided_jointly(toy: Toy) -> None:
    module = fa.load_inline(**{**toy.arguments(), "space": toy.space(["slower", "slow", "plain"])})

    def scaled_by_torch(x: Any, a: float) -> Any:
        time.sleep(0.05)
        return x * a

    def scaled_by_extension(x: Any, a: float) -> Any:
        return module.scaled(x, a)

    x = torch.arange(20_000, dtype=torch.float32)
    scaled = fa.variants([scaled_by_torch, scaled_by_extension, module.scaled])
    assert torch.equal(scaled(x, 2.0), 2 * x)
    assert only_decision(scaled).space_size == 1 + 3 + 3
    assert chosen(scaled)["scaled.MODE"] == "plain"
    assert not module.scaled.decisions


def test_a_variant_that_is_a_kernel_itself_is_named() -> None:
    with pytest.raises(InvalidInputError, match="a Triton kernel wants a function that launches it"):
        fa.variants([tuned()])


# A language model beside it ---------------------------------------------------------------------------------------------


def prefers_quick(prompt: Prompt) -> tuple[float, ...]:
    return sure_of(7 if knob(prompt, "variant") == "quick" else 1)


@pytest.mark.parametrize(
    "model",
    [
        Talking(prefers_quick),
        Talking(prefers_quick, delay_s=60.0, slow_after=1),
        Talking(prefers_quick, breaks_after=1),
        Talking(lambda _: (float("nan"),) * 8),
    ],
    ids=["well", "slow", "breaks", "nan"],
)
def test_a_language_model_may_say_what_it_likes_or_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Talking
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_ANSWER", "logits,1s")
    with named_by_settings(model):
        double = fa.variants([lazy, wrong, raises, quick], name="double", surrogate="http://127.0.0.1:9")
        assert torch.equal(double(X), 2 * X)
    assert chosen(double) == {"variant": "quick"}
    assert only_decision(double).basis == "measured"
    assert model.asked
    assert all("def lazy" in prompt.shared for prompt in model.asked)
    main(["show", "double"])
    assert "variant=quick" in capsys.readouterr().out


def test_unmeasured_the_variant_a_language_model_is_sure_of_runs(
    monkeypatch: pytest.MonkeyPatch, timed: list[Any]
) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
    double = fa.variants([lazy, quick], surrogate=LanguageModelSurrogate(Talking(prefers_quick)))
    assert torch.equal(double(X), 2 * X)
    assert timed == []
    decision = only_decision(double)
    assert (decision.basis, dict(decision.config.knobs)) == ("forecast", {"variant": "quick"})
    assert "language_model (a talking model, asked about 1 config) forecasts" in decision.reason


def test_a_language_model_elsewhere_is_refused_where_the_code_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="FORECAST_AUTOTUNE_REMOTE_MODEL=1"):
        fa.variants([lazy, quick], surrogate="http://10.0.0.7:8000")
    monkeypatch.setenv("FORECAST_AUTOTUNE_REMOTE_MODEL", "1")
    fa.variants([lazy, quick], surrogate="http://10.0.0.7:8000")


def leave(*_: object) -> None:
    sys.exit(3)


def leave_once(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    sys.exit(3)


@pytest.mark.parametrize(
    "handler",
    [leave, lambda *_: sys.exit(3), functools.partial(leave, 1), leave_once],
    ids=["function", "lambda", "partial", "once"],
)
def test_a_program_asked_to_end_while_tuning_ends_and_blames_no_config(handler: Callable[..., None]) -> None:
    """What a supervisor's SIGTERM means to a program that has a handler for it."""
    told_to_end = threading.Event()

    def in_time(x: Any, factor: float = 2.0) -> Any:
        if not told_to_end.is_set():
            told_to_end.set()
            os.kill(os.getpid(), signal.SIGTERM)
        return x * factor

    function = fa.variants([lazy, in_time], name="told_to_end", key="x", budget="all")
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(SystemExit, match="3"):
            function(X)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told_to_end.is_set()
    assert torch.equal(function(X), 2 * X)
    assert only_decision(function).config["variant"] == "in_time"


def test_a_signal_handlers_error_reaches_the_caller_and_blames_no_config() -> None:
    """Such as the deadline of a request."""
    met = threading.Event()

    def in_time(x: Any, factor: float = 2.0) -> Any:
        if not met.is_set():
            met.set()
            signal.raise_signal(signal.SIGALRM)
        return x * factor

    def late(*_: object) -> None:
        raise TimeoutError("the request took too long")

    function = fa.variants([in_time, wrong], name="with_a_deadline", key="x", budget="all")
    before = signal.signal(signal.SIGALRM, late)
    try:
        with pytest.raises(TimeoutError, match="too long"):
            function(X)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert function.decisions == {}
    assert torch.equal(function(X), 2 * X)
    assert only_decision(function).config["variant"] == "in_time"


def test_what_is_tried_is_seen_by_no_mode_and_no_hook_of_the_caller() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def apart(x: Any, w: Any) -> Any:
        time.sleep(LAZY_S)
        return (x @ w) * torch.sigmoid(x @ w)

    def together(x: Any, w: Any) -> Any:
        return torch.nn.functional.silu(x @ w)

    function = fa.variants([apart, together], name="observed", key="x", budget="all")
    w = torch.randn(64, 64, requires_grad=True)
    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor.detach()

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with FlopCounterMode(display=False) as first, hooks:
        function(X, w)
    saved_first = len(saved)
    with FlopCounterMode(display=False) as second, hooks:
        function(X, w)
    assert only_decision(function).tried == 2
    assert first.get_total_flops() == second.get_total_flops() > 0
    assert len(saved) == 2 * saved_first > 0


def test_the_first_step_of_a_checkpointed_block_is_tuned() -> None:
    from torch.utils.checkpoint import checkpoint

    w = torch.randn(64, 64, requires_grad=True)

    def first(x: Any) -> Any:
        return torch.nn.functional.silu(x @ w)

    def second(x: Any) -> Any:
        return (x @ w) * torch.sigmoid(x @ w)

    function = fa.variants([first, second], name="block", key="x", budget="all")
    gradients = []
    for block in (first, function):
        w.grad = None
        checkpoint(block, X, use_reentrant=False).sum().backward()
        gradients.append(w.grad)
    assert only_decision(function).tried == 2
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-4)


def test_both_passes_of_a_checkpointed_block_run_one_variant() -> None:
    from torch.utils.checkpoint import checkpoint

    w = torch.randn(64, 64, requires_grad=True)
    ran: list[str] = []

    def saves_more(x: Any) -> Any:
        ran.append("saves_more")
        time.sleep(10 * LAZY_S)
        return (x @ w) * torch.sigmoid(x @ w)

    def saves_less(x: Any) -> Any:
        ran.append("saves_less")
        return torch.nn.functional.silu(x @ w)

    function = fa.variants([saves_more, saves_less], name="repeated", key="x", budget="all")
    measures, over = threading.Event(), threading.Event()

    def measure_another() -> None:
        with tuning_lock.held(), tuning_lock.slow(True):
            measures.set()
            over.wait(60)

    other = threading.Thread(target=measure_another)
    other.start()
    assert measures.wait(60)
    result = checkpoint(function, X, use_reentrant=False)
    over.set()
    other.join(60)
    function(X)
    assert chosen(function) == {"variant": "saves_less"}
    ran.clear()
    function(X)
    checkpoint(function, X, use_reentrant=False)
    result.sum().backward()
    assert ran == ["saves_less", "saves_more", "saves_more"], "the graph still needs what its first call ran"
    ran.clear()
    checkpoint(function, X, use_reentrant=False).sum().backward()
    assert ran == ["saves_less"] * 2


def test_a_module_that_no_key_can_hold_is_named_by_its_type() -> None:
    class Block(torch.nn.Linear):
        def __repr__(self) -> str:
            raise AssertionError("of a large model it takes milliseconds, at each call")

    function = fa.variants([lambda block, x: block(x), lambda block, x: block(x)], name="called")
    with pytest.warns(
        fa.TuningWarning, match="an argument is a module of type Block, which no key can hold: name other"
    ):
        function(Block(64, 64), X)
    function(Block(64, 64), X)


SPAWNING = """
import sys
import torch
import torch.multiprocessing
import forecast_autotune as fa

def plain(x): return x * 2
def other(x): return x + x

double = fa.variants([plain, other])

def work(rank):
    double(torch.ones(1000))
    print([decision.basis for decision in double.decisions.values()])

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=1) if "spawn" in sys.argv else work(0)
"""


def test_a_spawned_process_finds_what_its_script_has_decided(tmp_path: Path) -> None:
    (script := tmp_path / "train.py").write_text(SPAWNING)
    for mode, words in (("tune", []), ("strict", ["spawn"])):
        settings = {"FORECAST_AUTOTUNE_DIR": str(tmp_path / "store"), "FORECAST_AUTOTUNE_MODE": mode}
        ran = subprocess.run(
            [sys.executable, script, *words],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout) == (0, "['measured']\n"), ran.stderr
