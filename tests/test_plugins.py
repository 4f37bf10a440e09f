"""What servers load: entry points that install where the environment asks for it, and cost nothing elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forecast_autotune import plugins
from forecast_autotune.errors import TuningWarning


def printed_by(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.strip()


LOADED = """
import sys
before = set(sys.modules)
from forecast_autotune.plugins import install_if_asked
install_if_asked()
print(sorted(name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names))
"""


@pytest.mark.parametrize("mode", ["", " "])
def test_where_nobody_asks_only_two_small_modules_are_loaded(mode: str) -> None:
    assert printed_by(LOADED, FORECAST_AUTOTUNE_MODE=mode) == "['forecast_autotune', 'forecast_autotune.plugins']"


def test_where_it_is_asked_for_later_kernels_are_tuned_by_us(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    program = """
from forecast_autotune.plugins import install_if_asked
install_if_asked(), install_if_asked()
import triton
from forecast_autotune.frontends.triton.install import taken_by_another
print("install.py" in triton.runtime.Autotuner.run.__code__.co_filename, taken_by_another("run"))
"""
    assert printed_by(program, FORECAST_AUTOTUNE_MODE="cached") == "True"


def test_an_engine_that_forecasts_in_this_process_gets_no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    pytest.importorskip("torch")
    from forecast_autotune.language import in_vllm

    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
    before = triton.autotune
    with in_vllm._program_untouched():
        plugins.install_if_asked()
        assert triton.autotune is before
    assert not in_vllm.is_making_engine()


def test_settings_that_do_not_parse_are_told_and_the_server_starts_without(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cashed")
    before = triton.autotune, triton.runtime.autotuner.Autotuner.run
    with pytest.warns(TuningWarning, match=r"install\(\) failed: .*FORECAST_AUTOTUNE_MODE='cashed': accepted are tune"):
        plugins.install_if_asked()
    assert (triton.autotune, triton.runtime.autotuner.Autotuner.run) == before


def test_a_plugin_that_fails_lets_the_server_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
    monkeypatch.setitem(sys.modules, "triton", None)  # as where it is not installed
    with pytest.warns(TuningWarning, match=r"forecast_autotune's install\(\) failed: .*Triton is not installed"):
        plugins.install_if_asked()
