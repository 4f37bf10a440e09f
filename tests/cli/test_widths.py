"""What a person reads in terminals of several widths, in a pipe, and where there is nothing yet."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from contracts.store_contract import a_decision, a_job, a_measurement

from forecast_autotune.cli import main
from forecast_autotune.core.config import Config
from forecast_autotune.core.forecast import Forecast, Normal
from forecast_autotune.core.outcome import Failure
from forecast_autotune.core.space import Space
from forecast_autotune.store.sqlite import SqliteStore

SPACE = Space(
    Config(
        {"ALGORITHM": "PACK_B", "ORDER": order, "BLOCK_N": block, "BLOCK_K": 1024, "VECTORS": 4, "num_stages": 2}
        | {"PREFETCH": True if block == 64 else None}
    )
    for order in ("B_STAYS", "A_STAYS")
    for block in (64, 512)
)
SIZES = ((16, 64), (512, 2048), (4096, 4096))
MESSAGE = "OutOfResources: out of resource: shared memory, Required: 245760, Hardware limit: 232448. " * 4


def tensor(*shape: int) -> dict[str, object]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return {"dtype": "bfloat16", "shape": list(shape), "stride": strides}


@pytest.fixture
def store(own_settings: Path) -> Path:
    """A kernel with long keys and long configs."""
    said = Forecast((Normal(0.2, 0.3, 0.6, "learned"), Normal(0.1, 0.3, 0.4, "history")), "learned and history")
    with SqliteStore(own_settings) as store:
        for m, n in SIZES:
            key = {"a": tensor(m, n), "b": tensor(n, m), "bias": tensor(8), "dtype": "torch.float32"}
            job = a_job(name="kernel_suite_gemm.gemm", space=SPACE, key=key)
            for config, us in zip(list(SPACE)[:3], (20.0, 10.0, 12.0), strict=True):
                store.record_outcome(job, "run-1", config, a_measurement(us), said)
            store.record_outcome(job, "run-1", SPACE[3], Failure(stage="launch", message=MESSAGE, cost_s=0.5), said)
            store.record_decision(job, a_decision(job, SPACE[1 if m > 16 else 2], equivalents=(SPACE[0],)))
        store.note_pending(a_job(name="kernel_suite_gemm.gemm", space=SPACE, key={"a": tensor(9, 9)}), "mode cached")
    return own_settings


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command as on a terminal of some width; returns what it printed, without emphasis."""

    def printed(width: int, *arguments: str, code: int = 0) -> str:
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout.isatty", lambda: True)
            patch.setattr("sys.stderr.isatty", lambda: True)
            patch.setenv("COLUMNS", str(width))
            assert main(arguments) == code
        told = capsys.readouterr()
        return re.sub(r"\x1b\[\d+m", "", told.out if code == 0 else told.err)

    return printed


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the latter in the locale C
def test_a_locale_that_lacks_a_character_gets_its_number(
    store: Path, errors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)
    monkeypatch.setattr("sys.stdout", stdout)
    assert main(["list"]) == 0
    assert b"\\xb1" in stdout.buffer.getvalue()  # type: ignore[attr-defined]


def words(text: str) -> set[str]:
    return set(re.split(r"[\s,();]+", text))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("command", [["list"], ["show"], ["show", "-v"], ["stats"], ["pending"], ["skills"]])
def test_no_line_is_longer_than_the_terminal(
    store: Path, on_terminal: Callable[..., str], width: int, command: list[str]
) -> None:
    if command[0] == "show":
        command = [*command, newest()]
    text = on_terminal(width, *command)
    assert "kernel_suite_gemm.gemm" in text or command == ["stats"]
    assert max(map(len, text.splitlines())) <= width


def newest() -> str:
    from forecast_autotune.settings import Settings
    from forecast_autotune.store.queries import StoreFile

    return StoreFile(Settings.from_environment().dir).decisions(limit=1)[0].digest


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_no_config_and_no_key_is_ever_cut(store: Path, on_terminal: Callable[..., str], width: int) -> None:
    listed, shown = on_terminal(width, "list"), on_terminal(width, "show", newest())
    for config in (SPACE[1], SPACE[2]):
        assert words(str(config)) <= words(listed)
    for config in SPACE:
        assert words(str(config)) <= words(shown)
    for m, n in SIZES:
        assert {f"a=bf16[{m}x{n}]", f"b=bf16[{n}x{m}]"} <= words(listed)
    assert "…" not in listed


def test_what_does_not_vary_stands_once_above_a_table(store: Path, on_terminal: Callable[..., str]) -> None:
    lines = on_terminal(80, "list").splitlines()
    assert lines[0].split() == ["all", "on", "NVIDIA", "H200"]
    assert "bias=bf16[8] dtype=f32, " in lines[1]
    for once in ("NVIDIA H200", "bias=", "num_stages=2", "ALGORITHM=PACK_B", "VECTORS=4"):
        assert "\n".join(lines).count(once) == 1, once
    shown = on_terminal(80, "show", newest())
    table = shown[shown.index("all with") :]
    assert [table.count(knob) for knob in ("num_stages=2", "BLOCK_N=")] == [1, 4]


def test_a_pipe_gets_each_decision_whole_on_a_line(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["decision", "kernel"]
    assert len(lines) == 3
    for line, (m, n) in zip(lines, reversed(SIZES), strict=True):
        assert f"gemm(a=bf16[{m}x{n}], b=bf16[{n}x{m}], bias=bf16[8], dtype=f32)" in line
        assert "num_stages=2" in line
        assert "10 ±0.15 us" in line or "12 ±0.18 us" in line


def test_a_long_message_is_cut_with_a_mark_and_whole_on_demand(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", newest()]) == 0
    out = capsys.readouterr().out
    assert "…" in out
    assert MESSAGE.strip() not in out
    assert main(["show", newest(), "-v"]) == 0
    out = capsys.readouterr().out
    assert MESSAGE.strip() in out
    assert "…" not in out


@pytest.mark.parametrize("name", ["GEMM", "kernel_suite", "kernel_suite_gemm.gemm"])
def test_a_name_of_several_keys_gets_a_short_list_and_the_way_to_choose(
    store: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["show", name]) == 0
    told = capsys.readouterr()
    assert f"'{name}' stands for 3 decisions, and the newest is shown" in told.err
    assert f"forecast-autotune show {newest()[:10]}" in told.err
    for m, n in SIZES:
        assert f"a=bf16[{m}x{n}]" in told.err
    assert newest() in told.out


def test_a_name_nearly_right_is_answered_with_the_right_one(store: Path, on_terminal: Callable[..., str]) -> None:
    assert "did you mean kernel_suite_gemm.gemm?" in on_terminal(80, "show", "kernel_suit_gem.gemm", code=1)


@pytest.mark.parametrize(
    ("command", "empty"),
    [(["list"], []), (["show", "x"], {}), (["stats"], {}), (["pending"], []), (["skills"], [])],
)
def test_programs_get_an_empty_value_where_there_is_no_store(
    capsys: pytest.CaptureFixture[str], command: list[str], empty: object
) -> None:
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == empty


def test_programs_get_an_empty_value_for_a_name_that_is_not_there(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "nothing", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {}
