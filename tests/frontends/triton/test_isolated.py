# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Configs of Triton kernels timed in a child process, which has their binaries and nothing of the caller's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure, Measurement
from forecast_autotune.errors import TuningWarning
from forecast_autotune.measure import isolated

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from hanging import end_soon  # noqa: E402
from rehearsed import BEST, BLOCKS, TIMES, call, playing, tuned  # noqa: E402

from forecast_autotune.frontends.triton.call import TritonCall  # noqa: E402

REPOSITORY = Path(__file__).parents[3]


pytestmark = pytest.mark.usefixtures("own_cache")


def recorded(**failures: Failure) -> dict[Config, Any]:
    """The usual times, with failures for some blocks, by `B64=…`."""
    return {**TIMES, **{Config({"BLOCK": int(b[1:]), "num_warps": 4}): f for b, f in failures.items()}}


def outcomes_of(kernel: Any) -> dict[int, Any]:
    from forecast_autotune.settings import Settings
    from forecast_autotune.store.sqlite import open_local_store

    arguments = (torch.empty(4096), 1000, 2.0)
    job = TritonCall(kernel.spec, kernel.configs, arguments, {"grid": (4,), "warmup": False}).job
    return {c["BLOCK"]: o for c, o in open_local_store(Settings.from_environment()).outcomes(job).items()}


def test_a_kernel_of_a_closure_is_tuned_in_a_child() -> None:
    factor = tl.constexpr(3)

    @triton.jit
    def scale(x_ptr, n, by, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * by * factor, mask=mask)

    kernel = tuned(scale, isolate=True)
    with playing() as on:
        call(kernel)
        assert on.launches.total() == 1, "nothing but the caller's own launch"
    assert kernel.best_config.kwargs == {"BLOCK": BEST}
    (decision,) = kernel.decisions.values()
    assert (decision.basis, decision.tried, decision.failed) == ("measured", len(BLOCKS), 0)


def test_the_environment_has_the_last_word_on_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, environment, launches in ((False, "1", 1), (True, "0", 20), (False, "auto", 20)):
        monkeypatch.setenv("FORECAST_AUTOTUNE_ISOLATE", environment)
        kernel = tuned(isolate=code)
        with playing() as on:
            call(kernel, n=1000 + launches + len(environment))
            assert (on.launches.total() >= launches) if launches > 1 else (on.launches.total() == 1)


def test_a_crash_and_a_hang_cost_the_child_its_life_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    end_soon(lambda config: config["BLOCK"] == 512, monkeypatch)
    times = recorded(
        B128=Failure(stage="launch", message="an illegal memory access", crashed=True),
        B512=Failure(stage="timeout", message="it never ended", crashed=True),
    )
    kernel = tuned(isolate=True)
    with playing(times=times):
        call(kernel)
        assert kernel.best_config.kwargs == {"BLOCK": BEST}
        found = outcomes_of(kernel)
    assert (found[128].stage, found[128].crashed) == ("launch", True)
    assert "SIGSEGV" in found[128].message
    assert (found[512].stage, found[512].crashed) == ("timeout", True)
    assert isinstance(found[64], Measurement)
    assert isinstance(found[256], Measurement)


def test_an_error_of_one_config_alone_is_kept_and_the_child_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = isolated.Isolated._start
    monkeypatch.setattr(isolated.Isolated, "_start", lambda *given: started.append(1) or start(*given))
    kernel = tuned(isolate=True)
    with playing(times=recorded(B128=Failure(stage="launch", message="a slip"))):
        with pytest.warns(TuningWarning, match="BLOCK: 128.* raised RuntimeError: launch: a slip. Tuning goes on"):
            call(kernel)
        found = outcomes_of(kernel)
    assert (found[128].stage, found[128].crashed) == ("launch", False)
    assert "a slip" in found[128].message
    assert len(started) == 1
    assert kernel.best_config.kwargs == {"BLOCK": BEST}


@pytest.mark.parametrize("what", ["pre_hook", "post_hook", "do_bench"])
def test_what_a_child_cannot_run_is_reported_and_the_default_launched(what: str) -> None:
    theirs = {
        "pre_hook": lambda named, reset_only=False: None,
        "post_hook": lambda named, exception: None,
        "do_bench": lambda launch, quantiles: [1.0] * 3,
    }[what]
    kernel = tuned(isolate=True, **{what: theirs})
    with playing() as on:
        with pytest.warns(TuningWarning, match=f"cannot run a {what} of the user's"):
            call(kernel)
        assert on.launches.total() == 1
    assert kernel.best_config is kernel.configs[0]


def test_a_hook_that_changes_tensors_cannot_be_left_out_in_a_child() -> None:
    def clears(named: dict[str, Any]) -> None:
        named["x_ptr"].zero_()

    kernel = tuned(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, pre_hook=clears)], isolate=True)
    with playing(), pytest.warns(TuningWarning, match=r"cannot run the pre_hook of BLOCK: 128.*it changes tensors"):
        call(kernel)
    assert kernel.best_config is kernel.configs[0]


def test_a_child_that_cannot_be_set_up_is_nobodys_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    request = isolated.Isolated._start

    def spoilt(measurer: Any, copy: Any) -> Any:
        measurer._request["rehearsed"] = {"no": "hardware"}
        return request(measurer, copy)

    monkeypatch.setattr(isolated.Isolated, "_start", spoilt)
    kernel = tuned(isolate=True)
    with playing():
        with pytest.warns(TuningWarning, match="a worker process cannot be started or set up"):
            call(kernel)
        assert not outcomes_of(kernel)


def test_without_a_child_process_a_warning_names_why_and_the_default_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: Any, **__: Any) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "memfd_create", no_more)
    monkeypatch.setattr("tempfile.mkstemp", no_more)
    kernel = tuned(isolate=True)
    with playing() as on:
        with pytest.warns(TuningWarning, match="Resource temporarily unavailable"):
            call(kernel)
        assert on.launches.total() == 1


SCRIPT = """
    import torch, triton, triton.language as tl
    import forecast_autotune as fa
    from rehearsed import TIMES

    @fa.autotune([triton.Config({"BLOCK": b}, num_warps=4) for b in (64, 128, 256)], key=["n"], isolate=True)
    @triton.jit
    def scale(x_ptr, n, factor, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)

    print("the script runs")
    with fa.rehearsal(times=TIMES) as on:
        scale[(4,)](torch.empty(4096), 1000, 2.0)
    print(scale.best_config.kwargs, on.launches.total())
"""


def test_a_script_without_a_main_guard_is_run_once_and_its_kernel_tuned(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'support'}",
        "FORECAST_AUTOTUNE_DIR": str(tmp_path / "store"),
    }
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=200)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["the script runs", "{'BLOCK': 256} 1"]
