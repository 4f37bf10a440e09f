"""What `make demo` prints: what was tried and chosen, in lines of a terminal, and the second time from the store."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_suite import demo  # noqa: E402

from forecast_autotune.settings import Settings  # noqa: E402


def facts(text: str) -> dict[str, str]:
    """A report's lines by name, each put together again where it was broken."""
    lines = re.sub(r"\n {16}(?=\S)", " ", text)
    return {name.strip(): told for name, told in re.findall(r"^   (\S.{11}) (.*)$", lines, re.MULTILINE)}


def rehearsed(capsys: pytest.CaptureFixture[str]) -> str:
    demo.tune_matmul(Settings.from_environment())
    return capsys.readouterr().out


def test_the_matrix_product_is_searched_for_and_then_recalled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("FORECAST_AUTOTUNE_BUDGET", "6")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    texts = [rehearsed(capsys) for _ in range(2)]
    assert max(len(line) for text in texts for line in text.splitlines()) <= demo.WIDTH
    first, again = map(facts, texts)
    assert first["forecast"] == "434 of 434 configs, before any was compiled"
    assert first["tried"].startswith("6 of them")
    assert first["default"].startswith("532.8 us")  # the best of the list takes 214.7 us
    assert "BM=32 BN=256" in first["default"]
    assert "BM=32 BN=256" not in first["chosen"]
    assert re.match(r"\d+%: of all configs, timed once, the best takes 214.7 us", first["of the best"])
    assert "decided now" in first["this call"]
    assert "decided from the store" in again["this call"]
    assert "earlier run" in again["tuning"]
    same = ("forecast", "tried", "default", "chosen", "of the best", "why")
    assert [again[name] for name in same] == [first[name] for name in same]


@pytest.mark.thorough  # torch's headers take ten seconds
@pytest.mark.skipif(shutil.which("g++") is None, reason="builds variants with g++")
def test_the_whole_demo_says_what_comes_next_and_remembers() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "kernel_suite.demo"]
    runs = [subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    first, again = (run.stdout for run in runs)
    cosine = facts(first.partition("2. A matrix")[0])
    assert cosine["tried"] == "5 of them; 0 failed"
    assert cosine["default"].endswith("LANES=1")
    assert not cosine["chosen"].endswith("LANES=1")
    assert "torch's headers" in first
    assert "torch's headers" not in again
    assert (first.count("decided now"), again.count("s: decided from the store")) == (2, 2)
    assert "both were decided from the store" in " ".join(again.split())
    shown = re.findall(r"^   \S*forecast-autotune (show .*|list)$", again, re.MULTILINE)
    assert len(shown) == 3
    for words in shown:
        asked = [sys.executable, "-m", "forecast_autotune", *words.split()]
        assert subprocess.run(asked, env=environment, capture_output=True, timeout=60).returncode == 0, words
