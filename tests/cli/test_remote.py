"""`remote`: what the command says and does, on a folder that two machines share."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from pathlib import Path

import pytest
from contracts.store_contract import SPACE, a_decision, a_job, a_measurement

from forecast_autotune.cli import doctor, main
from forecast_autotune.remote.exchange import Exchange
from forecast_autotune.remote.location import Location
from forecast_autotune.remote.mirror import Mirror
from forecast_autotune.store.sqlite import SqliteStore


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORECAST_AUTOTUNE_REMOTE_STORE", f"file://{tmp_path}/shared,trusted")
    for name, keys in (("one", 3), ("two", 1)):
        with SqliteStore(tmp_path / name) as store:
            for n in range(keys):
                job = a_job(key={"n": n})
                store.record_outcome(job, "run", SPACE[1], a_measurement(), None)
                store.record_decision(job, a_decision(job, decided_at=time.time()))
    return tmp_path / "shared"


def remote(tmp_path: Path, machine: str, *words: str) -> int:
    return main(["remote", *words, "--dir", str(tmp_path / machine)])


def test_what_one_machine_pushes_another_one_pulls(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert remote(tmp_path, "one", "status") == 1
    assert "3 decisions of this machine wait" in capsys.readouterr().err
    assert remote(tmp_path, "one", "push") == 0
    assert remote(tmp_path, "one", "status") == 0
    said = capsys.readouterr()
    assert "NVIDIA H200  rmsnorm         1" in said.out
    assert "nothing waits here" in said.err
    assert remote(tmp_path, "two", "pull", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"outcomes": 3, "decisions": 3}


def test_json_and_compact_and_withdraw(tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for machine in ("one", "two"):
        assert remote(tmp_path, machine, "push", "--json") == 0
    capsys.readouterr()
    assert remote(tmp_path, "one", "status", "--json") == 0
    (folder,) = json.loads(capsys.readouterr().out)["folders"]
    assert (folder["segments"], folder["hardware_name"], folder["program_name"]) == (2, "NVIDIA H200", "rmsnorm")
    assert remote(tmp_path, "one", "compact", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (len(done["written"]), len(done["removed"])) == (1, 2)
    assert all((shared / path).exists() for path in done["written"])
    assert not any((shared / path).exists() for path in done["removed"])
    assert remote(tmp_path, "one", "withdraw", "nothing-of-that-name") == 1
    assert remote(tmp_path, "one", "withdraw", "rmsnorm") == 0
    assert remote(tmp_path, "one", "compact", "--days", "30") == 0
    assert remote(tmp_path, "two", "pull") == 0
    capsys.readouterr()
    assert remote(tmp_path, "one", "withdraw", "rmsnorm") == 1


def test_withdraw_takes_a_whole_name_or_a_digest_of_one_kernel(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = []
    for name in ("norm", "norm_backward"):
        job = a_job(name=name)
        digests.append(job.digest)
        with SqliteStore(tmp_path / "three") as store:
            store.record_decision(job, a_decision(job, decided_at=time.time()))
    for part in ("nor", "backward"):
        assert remote(tmp_path, "three", "withdraw", part) == 2
    assert "it stands for norm_backward" in capsys.readouterr().err
    assert remote(tmp_path, "three", "withdraw", "norm", "--json") == 0
    assert json.loads(capsys.readouterr().out) == digests[:1]
    assert remote(tmp_path, "three", "withdraw", digests[1][:10].upper()) == 0


def test_a_kernels_name_goes_before_the_start_of_other_digests(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [a_job(name="mul", key={"n": n}) for n in range(40)]
    start = others[0].digest[:1]
    several = [job.digest for job in others if job.digest.startswith(start)]
    named = a_job(name=start)
    for machine, jobs in (("three", [*others, named]), ("four", others)):
        with SqliteStore(tmp_path / machine) as store:
            for job in jobs:
                store.record_decision(job, a_decision(job, decided_at=time.time()))
    assert main(["show", start, "--json", "--dir", str(tmp_path / "three")]) == 0
    assert json.loads(capsys.readouterr().out)["kernel"] == start
    assert remote(tmp_path, "three", "withdraw", start, "--json") == 0
    assert json.loads(capsys.readouterr().out) == [named.digest]
    assert len(several) > 1
    assert remote(tmp_path, "four", "withdraw", start) == 2
    assert f"{len(several)} digests start with '{start}'; nothing is withdrawn" in capsys.readouterr().err
    assert remote(tmp_path, "four", "withdraw", several[0], "--json") == 0
    assert json.loads(capsys.readouterr().out) == several[:1]


def test_what_was_sent_to_a_store_that_somebody_emptied_is_sent_again(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SqliteStore(tmp_path / "one") as store:
        job = a_job(name="decided unmeasured")
        store.record_decision(job, a_decision(job, decided_at=time.time(), basis="default"))
    remote(tmp_path, "one", "push")
    shutil.rmtree(shared)
    remote(tmp_path, "one", "pull")
    capsys.readouterr()
    assert remote(tmp_path, "one", "status", "--json") == 1
    assert json.loads(capsys.readouterr().out)["waiting"] == 3
    assert remote(tmp_path, "one", "push", "--json") == 0
    assert remote(tmp_path, "one", "push", "--json") == 0
    assert capsys.readouterr().out == '{"decisions": 3}\n{"decisions": 0}\n'


def test_looking_at_a_store_that_somebody_emptied_has_nothing_sent_again(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remote(tmp_path, "one", "push")
    remote(tmp_path, "two", "compact", "--days", "0")
    for _ in range(2):
        assert remote(tmp_path, "one", "status") == 1
        assert "3 of them are gone from there: 'remote push' alone sends them again" in capsys.readouterr().err
    own, mirror = SqliteStore(tmp_path / "one"), Mirror(tmp_path / "one", f"file://{shared}")
    with own, mirror.store:
        sent = Exchange(own, mirror, Location(f"file://{shared}"), sources=False, complain=print).push()
    assert sent == 0, "programs send what is new"


def test_looking_creates_nothing(tmp_path: Path, shared: Path) -> None:
    def files() -> list[Path]:
        return sorted(path for path in tmp_path.rglob("*") if "store.sqlite3-" not in path.name)

    before = files()
    assert remote(tmp_path, "one", "status") == 1
    assert files() == before


def test_looking_leaves_a_broken_store_as_it_is(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one" / "store.sqlite3"
    file.write_bytes(file.read_bytes()[:50_000])
    broken = file.read_bytes()
    assert remote(tmp_path, "one", "status", "--json") == 2
    out, err = capsys.readouterr()
    assert not out
    assert f"store {file} cannot be used" in err
    assert file.read_bytes() == broken
    assert not list(file.parent.glob("*corrupt*"))


def test_nothing_is_read_that_could_not_be_kept(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote(tmp_path, "one", "push")
    capsys.readouterr()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # whoever runs tests may write anywhere
    assert remote(tmp_path, "two", "pull", "--json") == 2
    out, err = capsys.readouterr()
    assert not out
    assert f"{tmp_path / 'two'} cannot be written to: what is read would be lost" in err


def test_doctor_looks_whether_the_remote_store_can_be_used(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def finding() -> dict[str, str]:
        main(["doctor", "--json", "--dir", str(tmp_path / "one")])
        (found,) = [each for each in json.loads(capsys.readouterr().out) if each["check"] == "remote"]
        return dict(found)

    remote(tmp_path, "one", "push")
    capsys.readouterr()
    usable = finding()
    assert (usable["status"], usable["found"]) == ("ok", f"file://{shared},trusted: it knows of 1 kind of hardware")
    monkeypatch.setenv("FORECAST_AUTOTUNE_REMOTE_STORE", "nothing://user:secret@x")
    broken = finding()
    assert broken["status"] == "problem"
    assert "Protocol not known: nothing" in broken["found"]
    assert "secret" not in str(broken)


def test_doctor_waits_a_little_for_a_server_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(doctor, "ANSWER_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        pack = f"{url}/pack#{'0' * 64}"
        monkeypatch.setenv("FORECAST_AUTOTUNE_REMOTE_STORE", url)
        monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", pack)
        assert main(["doctor", "--json", "--dir", str(tmp_path / "one")]) == 1
    findings = {f["check"]: f for f in json.loads(capsys.readouterr().out)}
    for check, name in (("remote", url), ("pack", pack)):
        assert findings[check]["status"] == "problem"
        assert findings[check]["found"] == f"{name}: no answer in 0.5 s"
    assert "store" in findings, "the other checks are made all the same"


def test_without_the_setting_or_with_a_bad_one_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert remote(tmp_path, "one", "status") == 2
    assert "set FORECAST_AUTOTUNE_REMOTE_STORE" in capsys.readouterr().err
    monkeypatch.setenv("FORECAST_AUTOTUNE_REMOTE_STORE", "nothing://x")
    assert remote(tmp_path, "one", "status") == 2
    assert "Protocol not known" in capsys.readouterr().err
    assert remote(tmp_path, "one", "compact", "--days", "nan") == 2


def test_looking_creates_no_store(tmp_path: Path, shared: Path) -> None:
    for word in ("status", "push", "pull"):
        assert remote(tmp_path, "three", word) == 1
    assert not (tmp_path / "three").exists()
