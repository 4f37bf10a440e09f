"""What is recorded of matrix products, as far as no GPU is needed."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

from calibration.fit.products import read_recorded
from calibration.record import products
from calibration.record.products import SHARES_OF_FP8, Build, by_product, shapes, suits, tiles
from calibration.tiles import FP8, FP8_FAST, short_list

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def lines(count: int) -> list[dict[str, Any]]:
    shape = ["fp8-fast", "nt", 1, 64, 768, 768]
    timed = [{"shape": shape, "config": list(tile), "us": 9.0, "compile_s": 0.4} for tile in tiles(FP8)[:count]]
    failed = {"shape": shape, "config": [256, 256, 256, 5, 4], "failed": "OutOfResources: shared memory"}
    return [{"shape": shape, "config": "_scaled_mm", "us": 7.5}, *timed, failed]


def test_a_recording_of_fp8_is_of_what_the_library_takes() -> None:
    drawn = shapes(60, SHARES_OF_FP8)
    assert {shape.dtype for shape in drawn} == {FP8, FP8_FAST}
    assert all(shape.layout == "nt" and shape.batch == 1 and shape.n % 16 == shape.k % 16 == 0 for shape in drawn)


@pytest.mark.parametrize("dtype", ["bf16", FP8])
def test_most_of_what_max_autotune_tries_is_recorded(dtype: str) -> None:
    (shape,) = (shape for shape in shapes(300, {(dtype, "nt"): 1.0})[:1])
    suited = [tile for tile in tiles(dtype) if suits(tile, shape)]
    wanted = [tile for tile in short_list(dtype) if suits(tile, shape)]
    assert wanted
    assert len(set(wanted) & set(suited[:160])) >= 0.8 * len(wanted)  # the others spill or ask for too much memory
    assert len({Build.of(tile, shape) for tile in suited}) == len(suited)


def test_times_are_written_by_product(tmp_path: Path) -> None:
    (product,) = by_product(lines(12))
    assert product["times_us"][0] == ["_scaled_mm", 7.5]
    assert len(product["times_us"]) == 13


@pytest.mark.parametrize("ends", ["well", "by Ctrl-C"])
def test_what_was_timed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    def time_some(_: argparse.Namespace, part: Path) -> None:
        part.write_text("".join(json.dumps(line) + "\n" for line in lines(12)))
        if ends == "by Ctrl-C":
            raise KeyboardInterrupt

    monkeypatch.setattr(products, "_record_times", time_some)
    to = tmp_path / "products.NVIDIA_H200.jsonl.gz"
    try:
        products.main(["--to", str(to), "--fp8"])
    except KeyboardInterrupt:
        assert ends == "by Ctrl-C"
    (recorded,) = read_recorded(to)
    assert recorded.times_us.size == 13
    assert recorded.name == "fp8-fast nt 1x64x768x768"
    assert any("us_bound" in features for features in recorded.job.static_features)
    with gzip.open(to, "rt") as file:
        assert len(list(file)) == 1
