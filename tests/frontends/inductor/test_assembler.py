"""Compile workers take the assembler that the process takes, where torch brings one of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch._inductor.runtime import compile_tasks

import forecast_autotune as fa
from forecast_autotune.frontends.inductor import assembler
from forecast_autotune.frontends.inductor.assembler import VARIABLE

SET_BY_A_WORKER = compile_tasks._set_triton_ptxas_path.__wrapped__  # it is called once in a process


@pytest.fixture
def torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The assembler in a torch that has one, as wheels for CUDA do."""
    path = tmp_path / "torch" / "bin" / "ptxas"
    for each in (path, tmp_path / "torch" / "_inductor" / "bin" / "ptxas"):  # where torch 2.13 looks instead
        each.parent.mkdir(parents=True)
        each.touch(0o700)
    found = assembler._file
    monkeypatch.setattr(assembler, "_file", lambda *which: str(path) if which == assembler.OF_TORCH else found(*which))
    monkeypatch.setattr(
        compile_tasks, "__file__", str(tmp_path / "torch" / "_inductor" / "runtime" / "compile_tasks.py")
    )
    monkeypatch.delenv(VARIABLE, raising=False)
    return path


def test_a_worker_takes_tritons_assembler_as_the_process_does(torchs: Path) -> None:
    triton = pytest.importorskip("triton")
    before = triton.knobs.nvidia.ptxas.path
    fa.install(inductor=True)
    try:
        SET_BY_A_WORKER()  # in the environment that a worker inherits
        assert os.environ[VARIABLE] == triton.knobs.nvidia.ptxas.path == before
    finally:
        fa.uninstall()
    assert VARIABLE not in os.environ
    SET_BY_A_WORKER()
    assert os.environ.pop(VARIABLE).startswith(str(torchs.parents[1]))  # without us


def test_what_somebody_has_named_stays(torchs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/theirs")
    fa.install(inductor=True)
    fa.uninstall()
    assert os.environ[VARIABLE] == "/theirs"
    monkeypatch.delenv(VARIABLE)
    fa.install(inductor=True)
    os.environ[VARIABLE] = "/theirs"
    fa.uninstall()
    assert os.environ[VARIABLE] == "/theirs"


def test_where_torch_brings_none_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(assembler, "_file", lambda package, name: "/triton" if package == "triton" else "")
    fa.install(inductor=True)
    fa.uninstall()
    assert VARIABLE not in os.environ
