"""`coverage`: which keys are measured where, of all that stores, remote ones and packs know."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.store_contract import HARDWARE, SPACE, TOOLCHAIN, a_decision, a_job, a_measurement

from forecast_autotune.cli import main
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Job
from forecast_autotune.distributed.key_list import read_keys
from forecast_autotune.remote.coverage import KnownKey, coverage
from forecast_autotune.store.rows import TuningKey
from forecast_autotune.store.sqlite import SqliteStore

H200, H100 = HARDWARE, replace(HARDWARE, name="NVIDIA H100", memory_gib=80)
CPU = Hardware(kind="cpu", name="CPU")
NEWER = Toolchain(versions={**TOOLCHAIN.versions, "triton": "4.0.0"})


def known(job: Job, *, measured: bool = True, believed: bool = True, at: float = 1.0) -> KnownKey:
    return KnownKey(tuning_key=TuningKey.of(job), at=at, measured=measured, believed=believed)


def states(*entries: KnownKey) -> dict[tuple[Any, str], tuple[str, tuple[str, ...]]]:
    """State and where else it was measured, by the key's n and the hardware."""
    return {(c.workload.key["n"], c.hardware.name): (c.state, c.measured_on) for c in coverage(entries)}


def test_a_key_of_one_gpu_is_wanted_on_all_of_its_kind() -> None:
    on_h200 = known(a_job(key={"n": 1}))
    on_h100 = known(a_job(key={"n": 2}, hardware=H100), measured=False)
    on_a_cpu = known(a_job(key={"n": 3}, hardware=CPU))
    assert states(on_h200, on_h100, on_a_cpu) == {
        (1, "NVIDIA H200"): ("measured", ()),
        (1, "NVIDIA H100"): ("elsewhere", ("NVIDIA H200",)),
        (2, "NVIDIA H100"): ("forecast", ()),
        (2, "NVIDIA H200"): ("missing", ()),
        (3, "CPU"): ("measured", ()),
    }


def test_another_toolchain_and_strangers_are_elsewhere() -> None:
    older, newer = known(a_job(key={"n": 1})), known(a_job(key={"n": 2}, toolchain=NEWER), at=2.0)
    assert states(older, newer)[1, "NVIDIA H200"] == ("elsewhere", ("another toolchain",))
    assert states(older, newer)[2, "NVIDIA H200"] == ("measured", ())
    stranger = known(a_job(), believed=False)
    assert states(stranger)[4096, "NVIDIA H200"] == ("elsewhere", ("machines that are not trusted",))


def test_a_forecast_and_a_measurement_are_a_measurement() -> None:
    assert states(known(a_job(), measured=False), known(a_job()))[4096, "NVIDIA H200"][0] == "measured"


def test_rehearsals_are_no_hardware() -> None:
    assert states(known(a_job(hardware=Hardware(kind="stub", name="H200")))) == {}


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a decision, a pending key and a forecast, which has read another machine's decision on an H100."""
    monkeypatch.setenv("FORECAST_AUTOTUNE_REMOTE_STORE", f"file://{tmp_path}/shared,trusted")
    with SqliteStore(tmp_path / "own") as own, SqliteStore(tmp_path / "other") as other:
        for store, job in ((own, a_job(key={"n": 1})), (other, a_job(key={"n": 2}, hardware=H100))):
            store.record_outcome(job, "run", SPACE[1], a_measurement(), None)
            store.record_decision(job, a_decision(job, decided_at=time.time()))
        own.note_pending(a_job(key={"n": 3}), "mode cached")
        own.record_decision(a_job(key={"n": 4}), a_decision(a_job(key={"n": 4}), basis="forecast", tried=0))
    assert main(["remote", "push", "--dir", str(tmp_path / "other")]) == 0
    assert main(["remote", "pull", "--dir", str(tmp_path / "own")]) == 0
    return tmp_path


def test_the_command_counts_and_writes_the_list_of_what_is_open(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, keys = str(stores / "own"), stores / "keys.jsonl"
    capsys.readouterr()
    assert main(["coverage", "--dir", own, "--json", "--write", str(keys)]) == 1
    told = {(c["key"]["n"], c["hardware"]): c["state"] for c in json.loads(capsys.readouterr().out)}
    assert told == {
        (1, "NVIDIA H200"): "measured", (1, "NVIDIA H100"): "elsewhere",
        (2, "NVIDIA H200"): "elsewhere", (2, "NVIDIA H100"): "measured",
        (3, "NVIDIA H200"): "forecast", (3, "NVIDIA H100"): "missing",
        (4, "NVIDIA H200"): "forecast", (4, "NVIDIA H100"): "missing",
    }  # fmt: skip
    listed = read_keys(keys)
    assert {(k.what, k.on, k.why) for k in listed} == {
        (f"rmsnorm(n={n})", on, state) for (n, on), state in told.items() if state != "measured"
    }
    assert main(["coverage", "--dir", own, "--hardware", "h100"]) == 1
    assert capsys.readouterr().out.splitlines()[1].split()[:7] == ["rmsnorm", "NVIDIA", "H100", "4", "1", "1", "2"]
    unwritten = stores / "unwritten.jsonl"
    assert main(["coverage", "--dir", own, "--kernel", "another", "--write", str(unwritten)]) == 1
    said = capsys.readouterr().err
    assert "no key is known" in said
    assert f"{unwritten} is not written" in said
    assert not unwritten.exists()


def test_what_torch_compile_tunes_itself_is_counted_and_not_written(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, keys = stores / "own", stores / "keys.jsonl"
    with SqliteStore(own) as store:
        store.note_pending(a_job(name="inductor.mm"), "mode cached")
    capsys.readouterr()
    assert main(["coverage", "--dir", str(own), "--kernel", "inductor", "--write", str(keys)]) == 1
    assert read_keys(keys) == []
    told = capsys.readouterr()
    assert "inductor.mm" in told.out
    assert "2 keys of inductor.* left out" in told.err
    assert f"0 keys in {keys}, as there is nothing to tune" in told.err


def test_decisions_of_packs_count(
    stores: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for pack in ("pack.jsonl", "tree/"):
        assert main(["export", f"{stores}/{pack}", "--dir", str(stores / "own")]) == 0
    monkeypatch.delenv("FORECAST_AUTOTUNE_REMOTE_STORE")
    for pack in ("pack.jsonl", "tree"):
        monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", f"{stores}/{pack}")
        capsys.readouterr()
        main(["coverage", "--dir", str(stores / "none"), "--json"])
        told = {c["key"]["n"]: c["state"] for c in json.loads(capsys.readouterr().out)}
        assert told[1] == "measured"
    (stores / "pack.jsonl").write_text("nothing\n")
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", f"{stores}/pack.jsonl")
    assert main(["coverage", "--dir", str(stores / "own")]) == 1
    assert "is left out" in capsys.readouterr().err
