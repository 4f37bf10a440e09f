"""The loop of ever new keys: what it makes of its samples, and a short one on the rehearsal driver."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from key_loop import growth, kind, main  # noqa: E402
from rehearsed import own_triton_cache  # noqa: E402

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with own_triton_cache(tmp_path / "triton-cache"):
        yield


def sample(keys: int, resident: float, gpu: float | None = None) -> dict[str, float | None]:
    return {"keys": keys, "resident_mib": resident, "gpu_mib": gpu}


def test_memory_is_compared_from_when_the_table_was_full_to_the_end() -> None:
    samples = [sample(500, 100.0, 7.0), sample(1300, 140.0, 8.0), sample(5000, 141.5, 8.0)]
    assert growth(samples, bound=1000) == {"resident_mib": 1.5, "gpu_mib": 0.0}
    without_gpu = [sample(1300, 140.0), sample(5000, 150.0)]
    assert growth(without_gpu, bound=1000) == {"resident_mib": 10.0}


def test_too_few_keys_tell_nothing() -> None:
    assert growth([sample(500, 100.0), sample(1300, 140.0)], bound=1000) is None
    assert growth([sample(1300, 140.0), sample(2000, 140.0)], bound=1000) is None


def test_kinds_of_keys_are_spread_evenly_in_their_shares() -> None:
    kinds = [kind(key, 0.01, 0.1) for key in range(1000)]
    assert Counter(kinds) == {"measured": 10, "stored": 90, "first": 900}
    assert Counter(kinds[:500])["measured"] == 5


def test_a_short_loop_meets_all_its_keys_and_says_that_they_are_too_few(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written = tmp_path / "a" / "loop.json"
    words = ["--rehearse", "--keys", "60", "--measured", "0.04", "--stored", "0.2", "--json", str(written)]
    assert main(words) == 0
    *lines, verdict, told = capfd.readouterr().out.strip().splitlines()
    samples = [json.loads(line) for line in lines]
    assert samples[-1]["keys"] == 60
    assert all(each["resident_mib"] > 0 and each["in_table"] >= each["keys"] for each in samples)
    assert json.loads(verdict)["flat"] is None
    assert "fewer than it takes to tell" in told
    assert json.loads(written.read_text())["samples"] == samples


@needs_no_gpu
def test_without_a_gpu_it_says_so_and_exits_with_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "no GPU is to be had" in capfd.readouterr().err
