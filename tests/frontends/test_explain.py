"""`explain()` beside the command: the same facts as text, for rich, for notebooks and as plain data."""

from __future__ import annotations

import copy
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import forecast_autotune as fa  # noqa: E402
from forecast_autotune.cli import main  # noqa: E402
from forecast_autotune.frontends.key_table import MAX_DECISIONS  # noqa: E402


def whole(x: Any) -> Any:
    return x * 2


def by_element(x: Any) -> Any:
    return torch.stack([each * 2 for each in x])


@pytest.fixture
def tuned() -> Any:
    """Variants with one decided key."""
    tuned = fa.variants([by_element, whole], name="doubled")
    tuned(torch.ones(64))
    return tuned


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_it_is_what_show_prints(tuned: Any, capsys: pytest.CaptureFixture[str]) -> None:
    explanation = tuned.explain()
    digest = explanation.as_json()["decision"]
    assert f"{explanation}\n" == printed(capsys, "show", digest)
    assert explanation.as_json() == json.loads(printed(capsys, "show", digest, "--json"))
    assert explanation.as_text(verbose=True) + "\n" == printed(capsys, "show", digest, "--verbose")


def test_a_terminal_gets_it_in_its_width(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, str(tuned.explain()).splitlines())) <= 50


@pytest.mark.parametrize("stdout", [SimpleNamespace(write=lambda text: None), io.StringIO()], ids=["a tee", "closed"])
def test_stdout_that_cannot_say_if_it_is_a_terminal_gets_whole_lines(
    tuned: Any, monkeypatch: pytest.MonkeyPatch, stdout: Any
) -> None:
    explanation = tuned.explain()
    getattr(stdout, "close", lambda: None)()
    monkeypatch.setattr("sys.stdout", stdout)
    assert str(explanation) == explanation.as_text()


def test_rich_prints_it_in_the_consoles_width(tuned: Any) -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=60, force_terminal=False)
    console.print(tuned.explain())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.rstrip("\n") == tuned.explain().as_text(width=60)


def test_a_notebook_gets_tables_in_which_names_are_harmless() -> None:
    tuned = fa.variants([by_element, whole], name="<b>doubled</b>")
    tuned(torch.ones(64))
    shown = tuned.explain()._repr_html_()
    assert shown.count("<table>") == shown.count("</table>") >= 2
    assert "&lt;b&gt;doubled&lt;/b&gt;(x=f32[64])" in shown
    assert "<b>" not in shown
    assert "variant=whole" in shown


def test_a_config_given_up_later_is_explained_by_what_runs_now(tuned: Any) -> None:
    (key,) = tuned.decisions
    entry = tuned.dispatcher.table.get(key)
    entry.fallback = (entry.launcher, tuned.decisions[key].config)
    with pytest.warns(fa.TuningWarning):
        tuned.dispatcher.fall_back(key, entry, RuntimeError("it broke"))
    assert tuned.explain().as_json()["basis"] == "default"
    assert "it broke" in str(tuned.explain())


def test_every_key_that_is_still_held_can_be_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "cached")
    tuned = fa.variants([by_element, whole], name="doubled")
    for size in range(1, MAX_DECISIONS + 1):
        tuned(torch.ones(size))
        if size == 9:
            tuned.dispatcher.forget_unmeasured()
    oldest = next(iter(tuned.decisions))
    entry = tuned.dispatcher.table.get(oldest)
    entry.fallback = (entry.launcher, tuned.decisions[oldest].config)
    with pytest.warns(fa.TuningWarning):
        tuned.dispatcher.fall_back(oldest, entry, RuntimeError("it broke"))
    for size in range(100, 109 + 9):
        tuned(torch.ones(size))
    assert len(tuned.decisions) == MAX_DECISIONS
    for key, decision in tuned.decisions.items():
        assert tuned.explain(key).as_json()["decided_at"] == decision.decided_at


def test_a_decision_of_a_pack_is_explained_with_what_the_pack_holds(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = str(tmp_path / "pack.jsonl")
    printed(capsys, "export", pack)
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("FORECAST_AUTOTUNE_PACKS", pack)
    recalled = fa.variants([by_element, whole], name="doubled")
    recalled(torch.ones(64))
    explained, original = recalled.explain().as_json(), tuned.explain().as_json()
    assert explained["decided_at"] == original["decided_at"]
    assert explained["configs"] == original["configs"]
    assert not math.isnan(explained["noise"]["spread"])


def test_a_copy_of_a_kernel_explains_what_it_took_over(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from rehearsed import call, own_triton_cache, playing
    from rehearsed import tuned as tuned_kernel

    kernel = tuned_kernel()
    with own_triton_cache(tmp_path / "triton"), playing():
        call(kernel)
    copied = copy.copy(kernel)
    assert copied.explain().as_json() == kernel.explain().as_json()


def test_a_store_removed_meanwhile_leaves_the_decision(tuned: Any, own_settings: Path) -> None:
    decided = tuned.explain().as_json()
    (own_settings / "store.sqlite3").unlink()
    left = tuned.explain().as_json()
    assert left["config"] == decided["config"]
    assert left["configs"] == []
