"""Kernels that do their worst, through the front doors: the caller's call is right, and nothing of them stays."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import torch
from faults import bad_kernels
from faults.bad_kernels import Tuned, tune
from faults.ledger import Case, Ledger

import forecast_autotune as fa
from forecast_autotune.core.config import Config
from forecast_autotune.core.context import ForecastContext
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.errors import TuningWarning
from forecast_autotune.processes.machine import process_ids
from forecast_autotune.surrogates.base import StatelessSurrogate

# For what never ends, or the test would take minutes. Whether a library loads is seen while others are built, and good ones
# have no longer than this for it; nor for a run, a look at which takes up to three times as long as the second.
QUICK = {"LOAD_TIMEOUT_S": 12.0, "TIMEOUT_FLOOR_S": 4.0}
# Little, and looked at often, so that what takes it is ended before a small container is out of its own.
SHORT_OF_MEMORY = {"usable_memory_bytes": 512 << 20, "MEMORY_SHARE": 0.5, "WATCH_S": 0.005}
Expected = dict[str, tuple[str, str, bool]]  # by mode: stage or "ran", a part of the message, crashed


LIES: Expected = {
    "right_once": ("check", "right at first, but after it was timed", False),
    "right_later": ("check", "1 of 4000 elements differ", False),
    "draws_lots": ("check", "1 of 4000 elements differ", False),
    "not_a_number": ("check", "1 in being infinite or no number", False),
    "writes_its_input": ("check", "which the default leaves as it was", False),
    "writes_before": ("check", "wrote 4 bytes before", False),
    "writes_past_later": ("check", "wrote 4 bytes past the end", False),
}


on_one_binding = pytest.mark.xdist_group("bad_kernels")  # which `builds` holds, and every process would compile


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad_kernels")


def holds(tuned: Tuned, expected: Expected) -> None:
    assert tuned.right
    assert tuned.same, "folder, environment, signals, random numbers are as they were"
    assert tuned.chosen == "plain"
    told = {mode: found for mode, found in tuned.found.items() if mode in expected}
    assert told.keys() == expected.keys(), "what became of each is kept"
    for mode, (stage, says, crashed) in expected.items():
        assert told[mode][0] == stage, (mode, told[mode])
        assert says in told[mode][1], (mode, told[mode])
        assert told[mode][2] == crashed, (mode, told[mode])
        assert not told[mode][3], "it is the config's own doing"


def survived(case: Case, builds: Path, expected: Expected, *, runs: int | None = None, **changes: Any) -> None:
    """Tune over bad kernels, then again with one config more, which tries none of them."""
    modes = tuple(expected)
    with case.attempt():
        first = tune(case, builds, modes, **changes)
    holds(first, expected)
    case.kept(reported=len(modes) + 2, lost=len({*modes, "plain", "slow"} - first.found.keys()))
    if (runs or case.many(short=1, whole=2)) == 1:
        return
    with case.attempt():
        second = tune(case, builds, modes, also="slower", **changes)
    holds(second, expected)
    failed = {mode for mode, (stage, _, _) in expected.items() if stage != "ran"}
    assert not failed & set(second.tried), "what failed is not tried again"


@pytest.mark.thorough
@on_one_binding
@pytest.mark.timeout(600)
def test_a_kernel_that_ends_the_process_has_failed_even_if_it_ends_well(
    faults: Ledger, builds: Path, tmp_path: Path
) -> None:
    with faults.case(
        "kernels that exit (0 or 1), abort, overflow the stack, throw no exception, crash while they are loaded",
        tmp_path,
        seen="the call is right; each is a failure with how it ended, and is not tried again",
    ) as case:
        survived(
            case,
            builds,
            {
                "exits_well": ("launch", "exited with code 0", True),
                "exits_at_once": ("launch", "exited with code 0", True),
                "exits_badly": ("launch", "exited with code 1", True),
                "overflows_the_stack": ("launch", "killed by SIGSEGV", True),
                "throws_a_number": ("launch", "unknown exception", False),
                "crashes_when_loaded": ("load", "loading it fails: killed by SIGABRT", True),
            },
            runs=2,
        )
        assert not list(Path.cwd().glob("core*")), "no image of a crashed process is left"


@pytest.mark.thorough
@on_one_binding
@pytest.mark.timeout(600)
def test_what_a_kernel_leaves_behind_is_ended(faults: Ledger, builds: Path, tmp_path: Path) -> None:
    with faults.case(
        "kernels that leave a child, a daemon, a shell's background process or a thread",
        tmp_path,
        seen="nothing: they are timed like others, and what they left is ended",
    ) as case:
        ran = ("ran", "", False)
        modes = ("leaves_a_child", "leaves_a_daemon", "leaves_a_shell", "leaves_a_thread")
        survived(case, builds, dict.fromkeys(modes, ran))
        with case.attempt():
            daemon = tune(case, builds, ("becomes_a_daemon",))
        assert daemon.right
        # Its worker ended, and a child of that went on; which of the two is heard first is open.
        assert daemon.found["becomes_a_daemon"][0] in ("launch", "load", "ran")


@pytest.mark.thorough
@on_one_binding
@pytest.mark.timeout(600)
def test_the_callers_stdout_and_descriptors_are_its_own(faults: Ledger, builds: Path, tmp_path: Path) -> None:
    with faults.case(
        "kernels that print 40 MB, read stdin, close descriptors or write to every one",
        tmp_path,
        seen="stdout and stdin are the program's own; who breaks the connection is a failure",
    ) as case:
        ran = ("ran", "", False)
        survived(
            case,
            builds,
            {
                "prints_much": ran,
                "reads_stdin": ran,
                "closes_stdio": ran,
                "closes_everything": ("launch", "exited with code", True),
                "writes_everywhere": ("launch", "no message", True),
            },
        )
        assert sum(file.stat().st_size for file in builds.rglob("trials.log")) < 17 << 20


@pytest.mark.thorough
@on_one_binding
@pytest.mark.timeout(600)
def test_what_never_ends_is_ended_whatever_it_does_against_it(faults: Ledger, builds: Path, tmp_path: Path) -> None:
    with faults.case(
        "kernels that hang: with all signals blocked and in another group, while they are loaded, once they are timed",
        tmp_path,
        seen="the call is right; each is a failure after a time limit",
    ) as case:
        survived(
            case,
            builds,
            {
                "hangs_deaf": ("timeout", "within", True),
                "hangs_when_loaded": ("load", "loading it fails: ran out of time: no answer within 12 s", True),
                "hangs_when_timed": ("timeout", "within", True),
            },
            **QUICK,
        )


@pytest.mark.thorough
@on_one_binding
@pytest.mark.timeout(600)
def test_what_computes_something_else_sooner_or_later_is_caught(faults: Ledger, builds: Path, tmp_path: Path) -> None:
    with faults.case(
        "kernels that are right the first time only, or later only, random, NaN, or write where they must not",
        tmp_path,
        seen="the call is right; each is a failure that says what differs",
    ) as case:
        survived(
            case,
            builds,
            LIES,
        )


@pytest.mark.thorough
@on_one_binding
@pytest.mark.timeout(600)
def test_a_kernel_that_meddles_with_its_process_meddles_with_a_childs(
    faults: Ledger, builds: Path, tmp_path: Path
) -> None:
    with faults.case(
        "kernels that change the folder, the environment, signals, umask, rounding, or sleep at first",
        tmp_path,
        seen="nothing: the caller's are unchanged",
    ) as case:
        survived(case, builds, dict.fromkeys(bad_kernels.MEDDLES, ("ran", "", False)))


@pytest.mark.thorough
@on_one_binding
@pytest.mark.timeout(600)
def test_without_a_child_process_lies_are_caught_and_state_is_restored(
    faults: Ledger, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faults.case(
        "the same kernels where ISOLATE=0 has them run in the caller's process",
        tmp_path,
        seen="the call is right; folder, environment, umask and rounding are put back",
    ) as case:
        monkeypatch.setenv("FORECAST_AUTOTUNE_ISOLATE", "0")
        survived(case, builds, {**LIES, **dict.fromkeys(bad_kernels.MEDDLES, ("ran", "", False))})


@pytest.mark.thorough
@on_one_binding
@pytest.mark.timeout(600)
def test_a_kernel_taking_all_memory_is_ended_before_the_machine_runs_out(
    faults: Ledger, builds: Path, tmp_path: Path
) -> None:
    with faults.case(
        "a kernel that allocates without end",
        tmp_path,
        seen="the call is right; it is ended at a share of what is free, tried in two runs, and Linux would end it first",
    ) as case:
        for also in ("slow", "slower"):
            with case.attempt():
                tuned = tune(case, builds, ("eats_memory",), also=also, **SHORT_OF_MEMORY)
            assert tuned.right
            assert tuned.same
            assert tuned.chosen == "plain"
            assert "eats_memory" in tuned.tried, "others may have been what made memory short"
            case.kept(reported=2, lost=len({"plain", also} - tuned.found.keys()))
        stage, says, *flags = tuned.found["eats_memory"]
        assert (stage, flags) == ("launch", [False, True])
        assert "MiB that it could have, and was ended" in says


def hanging_compiler(builds: Path, timeout_s: float) -> Any:
    """Compiles a binding that keeps the compiler busy for hours, through ninja."""
    from forecast_autotune.compilers.cpp_compile import CppCompiler
    from forecast_autotune.compilers.cpp_recipe import Recipe
    from forecast_autotune.measure.probe import detect_cpp_toolchain, detect_hardware

    busy = "constexpr long busy() { long n = 0; for (long i = 0; i < 4000000000L * MODE; ++i) n ^= i; return n; }\n"
    recipe = Recipe(
        name="hangs",
        cpp_sources=(f"{busy}static_assert(busy() != 1);\ntorch::Tensor same(torch::Tensor x) {{ return x; }}",),
        functions={"same": "same"},
        arguments={
            "extra_cflags": ["-fconstexpr-loop-limit=2147483647", "-fconstexpr-ops-limit=999999999999"],
            "build_directory": str(builds),
        },
    )
    toolchain = detect_cpp_toolchain(recipe.flags)
    return CppCompiler(recipe, toolchain, detect_hardware(), builds, timeout_s=timeout_s)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", [False, True], ids=["by its time limit", "by the machine"])
def test_a_compiler_that_hangs_or_is_killed_leaves_nothing_that_goes_on(
    faults: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    with faults.case(
        "a compiler, started by ninja, that hangs, or that Linux kills for memory",
        tmp_path,
        seen="a failure: after a time limit for good, of a kill only until the next run",
    ) as case:
        found: list[Any] = []
        monkeypatch.setenv("TMPDIR", str(case.temporary))
        compiler = hanging_compiler(case.folder / "builds", timeout_s=60.0 if killed else 5.0)

        def build() -> None:
            found.extend(compiler.compile([Config({"MODE": 1})]))

        with case.attempt():
            thread = threading.Thread(target=build)
            thread.start()
            deadline = time.monotonic() + 200
            killed_once: set[int] = set()
            while thread.is_alive():
                if killed:
                    for pid in compilers_of(case.folder) - killed_once:
                        killed_once.add(pid)
                        os.kill(pid, signal.SIGKILL)
                if time.monotonic() > deadline:
                    raise TimeoutError("the build does not end")
                time.sleep(0.05)
        ((_, outcome),) = found
        assert isinstance(outcome, Failure)
        if killed:
            assert (outcome.stage, outcome.transient) == ("compile", True)
            assert "Killed" in outcome.message
        else:
            assert (outcome.stage, outcome.transient) == ("timeout", False)
            assert "more than 5 s" in outcome.message
        deadline = time.monotonic() + 60
        while (left := compilers_of(case.folder)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, "no compiler goes on in the background"
        for lock in case.folder.rglob("*.lock"):
            with filelock.FileLock(lock, timeout=60):  # once the process that was killed is gone altogether
                pass


def compilers_of(folder: Path) -> set[int]:
    """Compilers proper that work for builds in a folder."""
    found = set()
    for pid in process_ids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"cc1plus" in words[0] and any(str(folder).encode() in word for word in words):
            found.add(pid)
    return found


# In the caller's process ------------------------------------------------------------------------------------------------


def meddle() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # the one that everybody shares
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    os.environ["MEDDLED"] = "1"
    os.umask(0)
    os.chdir("/")
    torch.set_flush_denormal(True)


def surroundings() -> list[Any]:
    umask = os.umask(0o027)
    os.umask(umask)
    tiny = torch.tensor([1e-310], dtype=torch.float64) / 2
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        dict(os.environ),
        umask,
        os.getcwd(),
        float(tiny),
    ]


def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.002)
    return x * 2


def fast(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def leaves_early(x: torch.Tensor) -> torch.Tensor:
    raise SystemExit(0)


def meddles(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.001)
    meddle()
    return x * 2


def draws(x: torch.Tensor) -> torch.Tensor:
    return x * (2 + torch.rand(1) + random.random())


def right_once() -> Callable[[torch.Tensor], torch.Tensor]:
    calls: list[int] = []

    def counts(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2 if len(calls) == 1 else x * 3

    return counts


def bad_variants() -> dict[str, tuple[Callable[..., Any], str]]:
    """By name: a callable that is wrong, and a part of what is said of it."""
    return {
        "leaves_early": (leaves_early, "SystemExit: 0"),
        "draws": (draws, "elements differ"),
        "right_once": (right_once(), "right at first"),
        "gives_nothing": (lambda _: None, "the result is None, the default's Tensor"),
        "gives_another_dtype": (lambda x: (x * 2).double(), "float64"),
        "gives_another_shape": (lambda x: (x * 2).reshape(-1, 1), "1000x1"),
        "gives_its_input": (lambda x: x, "elements differ"),
        "doubles_its_input": (lambda x: x.mul_(2), "wrote to x"),
        "gives_nan": (lambda x: x * float("nan"), "elements differ"),
        "never_returns_from_depth": (lambda x: never_returns(x), "RecursionError"),
    }


def never_returns(x: torch.Tensor) -> torch.Tensor:
    return never_returns(x)


@pytest.mark.parametrize("seed", range(2))
def test_what_a_variant_does_to_the_callers_process_is_put_back(faults: Ledger, tmp_path: Path, seed: int) -> None:
    with faults.case(
        "Python variants that exit, recurse, draw, change modes, folder, environment or inputs, or return something else",
        tmp_path,
        seen="the call is right, the process is as it was; each failure says why",
    ) as case:
        torch.manual_seed(seed)
        random.seed(seed)
        bad = bad_variants()
        order = list(bad)
        random.Random(seed).shuffle(order)
        print(f"seed {seed}: {order}")
        x = torch.arange(1000, dtype=torch.float32)
        before = surroundings()
        with case.attempt(), warnings.catch_warnings():
            warnings.simplefilter("error")
            named = [_named(bad[name][0], name) for name in order]
            function = fa.variants([slow, *named, meddles, fast], name=f"bad_{seed}", budget="all")
            assert torch.equal(function(x), 2 * torch.arange(1000, dtype=torch.float32))
        assert surroundings() == before
        assert torch.equal(x, torch.arange(1000, dtype=torch.float32))
        (decision,) = function.decisions.values()
        assert decision.config["variant"] == "fast"
        outcomes = {config["variant"]: outcome for config, outcome in function.tuned.outcomes((x,)).items()}
        case.kept(reported=len(bad) + 3, lost=len({*bad, "slow", "fast", "meddles"} - outcomes.keys()))
        assert isinstance(outcomes["meddles"], Measurement)
        for name, (_, says) in bad.items():
            outcome = outcomes[name]
            assert isinstance(outcome, Failure), name
            assert says in outcome.message, (name, outcome)
            assert not outcome.transient, name


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(x: torch.Tensor) -> Any:
        return function(x)

    call.__name__ = call.__qualname__ = name
    return call


class Nonsense(StatelessSurrogate):
    """A surrogate that answers whatever it likes."""

    name = "nonsense"

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer

    def forecast(self, context: ForecastContext, outcomes: Any, evidence: Any) -> Any:
        return self._answer(context.job.space)


def _raise(_: Any) -> Any:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    "answer",
    [
        _raise,
        lambda space: [None] * len(space),
        lambda space: [1.0] * len(space),
        lambda _: (c for c in ()),
        lambda _: 7,
    ],
    ids=["raises", "nothing", "numbers", "generator", "a number"],
)
def test_a_surrogate_that_talks_nonsense_is_done_without(
    faults: Ledger, tmp_path: Path, answer: Callable[[Any], Any]
) -> None:
    with faults.case(
        "a user's surrogate that raises or answers nonsense", tmp_path, seen="a log line; tuned without forecasts"
    ) as case:
        with case.attempt():
            function = fa.variants([slow, fast], name="with_nonsense", surrogate=Nonsense(answer))
            assert torch.equal(function(torch.ones(10)), 2 * torch.ones(10))
        (decision,) = function.decisions.values()
        assert (decision.config["variant"], decision.basis) == ("fast", "measured")


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (lambda got, its: (got[0] == its[0]).all(), "the check said no"),
        (lambda got, its: np.allclose(got[0].numpy(), its[0].numpy()), "the check said no"),
        (lambda got, its: np.all(got[0].numpy() == its[0].numpy()), "the check said no"),
        (lambda got, its: torch.testing.assert_close(got, its), "AssertionError"),
        (lambda got, its: _exit_unless(torch.equal(got[0], its[0])), "SystemExit"),
    ],
    ids=["tensor", "bool", "array", "raises", "exits"],
)
def test_a_check_says_no_in_whatever_way(faults: Ledger, tmp_path: Path, check: Any, says: str) -> None:
    with faults.case(
        "a user's check that says no by False, a tensor, an array, an exception or an exit",
        tmp_path,
        seen="the config is a failure that says what the check said",
    ) as case:
        with case.attempt():
            function = fa.variants([slow, _named(lambda x: x * 3, "wrong")], name="checked", check=check)
            x = torch.arange(10.0)
            assert torch.equal(function(x), 2 * x)
        (outcome,) = [o for o in function.tuned.outcomes((x,)).values() if isinstance(o, Failure)]
        assert says in outcome.message


def _exit_unless(right: bool) -> None:
    if not right:
        raise SystemExit(3)


# Triton -----------------------------------------------------------------------------------------------------------------


def _raising(err: BaseException) -> Callable[..., Any]:
    def hook(*_: Any, **__: Any) -> Any:
        raise err

    return hook


@pytest.mark.parametrize(
    "err", [ValueError("no"), SystemExit(1), RecursionError("deep")], ids=lambda e: type(e).__name__
)
def test_a_hook_that_raises_costs_its_config_alone(faults: Ledger, tmp_path: Path, err: BaseException) -> None:
    import rehearsed

    with faults.case(
        "a Triton config whose hook raises or exits",
        tmp_path,
        seen="the launch is made with another config; the failure says what the hook raised",
    ) as case:
        fast = rehearsed.configs([rehearsed.BEST])[0]
        fast.pre_hook = _raising(err)
        random.seed(1)
        drawn = torch.get_rng_state()
        with rehearsed.own_triton_cache(case.folder / "triton"), rehearsed.playing() as on, case.attempt():
            kernel = rehearsed.tuned(configs=[*rehearsed.configs([64, 128]), fast])
            with pytest.warns(TuningWarning, match=f"BLOCK: 256.* raised {type(err).__name__}"):
                rehearsed.call(kernel)
            assert kernel.best_config.kwargs == {"BLOCK": 128}
            (decision,) = kernel.decisions.values()
            assert (decision.basis, decision.failed) == ("measured", 1)
            assert rehearsed.launched(on) >= {(64, 4), (128, 4)}
        assert torch.equal(drawn, torch.get_rng_state())


@pytest.mark.parametrize(
    "told", [float("nan"), -1.0, float("inf"), None, "fast", [], RuntimeError("no"), SystemExit(1)]
)
def test_a_benchmark_that_tells_nonsense_does_not_stop_the_launch(
    faults: Ledger, tmp_path: Path, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    import rehearsed

    with faults.case(
        "a benchmark of the user's own that tells NaN, nothing, text, less than nothing, raises or exits",
        tmp_path,
        seen="the first config is launched; one warning names what was told of it",
    ) as case:

        def bench(*_: Any, **__: Any) -> Any:
            if isinstance(told, BaseException):
                raise told
            return told

        with rehearsed.own_triton_cache(case.folder / "triton"), rehearsed.playing() as on, case.attempt():
            kernel = rehearsed.tuned(do_bench=bench)
            with pytest.warns(TuningWarning, match="BLOCK: 64.* raised") as named:
                rehearsed.call(kernel)
            assert len(named) == 1
            assert kernel.best_config.kwargs == {"BLOCK": 64}
            assert rehearsed.launched(on) == {(64, 4)}
        warned = [r.getMessage() for r in caplog.records if "configs tried runs here" in r.getMessage()]
        assert len(warned) == 1
