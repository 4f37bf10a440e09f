"""`inductor-report` without a GPU: what it compiles, how it sums up, and what becomes of a process that ends early."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibration.fit.products import read_recorded  # noqa: E402
from calibration.paths import PRODUCTS  # noqa: E402
from calibration.torch_compile import verb  # noqa: E402
from calibration.torch_compile.operations import MODELS, operation_of, products  # noqa: E402

WAYS = ["default", "max-autotune", "4"]


def one(us: float, seconds: float, *, eager_us: float = 10.0, timed: int = 4) -> dict[str, Any]:
    return {"us": us, "eager_us": eager_us, "compile_s": seconds, "timed": timed, "far": 0.0}


FOUND = {
    "a": {"default": one(10.0, 1.0), "max-autotune": one(8.0, 16.0), "4": one(10.0, 4.0, eager_us=12.5)},
    "b": {"default": one(10.0, 1.0), "max-autotune": one(10.0, 8.0), "4": {"problem": "out of memory"}},
}


def test_a_time_counts_over_eager_code_in_the_same_process() -> None:
    assert list(verb.lines(FOUND, WAYS)) == [
        ("a", "1.0", "1.000", "16.0", "0.800", "4.0", "0.800"),
        ("b", "1.0", "1.000", "8.0", "1.000", "-", "-"),
    ]
    rows = {row[0]: row[1:] for row in verb.means(FOUND, WAYS)}
    assert rows["max-autotune"] == ("2", "0.894", "1.000", "1.000", "1.000", "24", "12.0", "4.0")
    assert rows["4"] == ("1", "0.800", "0.800", "1.000", "1.000", "4", "4.0", "4.0")
    assert rows["default"][3] == "1.118"


def test_no_layer_of_the_products_was_recorded_at_that_size() -> None:
    listed = products()
    assert len({product.name for product in listed}) == 60
    recorded = {tuple(each.job.workload.key["shape"][3:]) for each in read_recorded(next(PRODUCTS.glob("*.gz")))}
    assert not {(product.m, product.n, product.k) for product in listed} & recorded
    assert products(6) == [listed[place] for place in range(0, 60, 10)]
    assert operation_of(listed[-1].name).__self__ == listed[-1]
    assert set(MODELS) == {"transformer_block", "convolutional_block", "causal_flex_attention"}


def test_what_a_process_that_ends_early_has_found_is_kept_and_the_rest_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import sys; print({json.dumps({'operation': 'a', **one(1.0, 1.0)})!r}); sys.exit('out of luck')"
    monkeypatch.setattr(verb, "command_of", lambda *_: [sys.executable, "-c", program])
    keep = tmp_path / "kept.jsonl"
    found = verb.collect(["a", "b"], ["default"], keep, 60.0)
    assert found["a"]["default"]["us"] == 1.0
    assert found["b"]["default"]["problem"] == "out of luck"
    asked: list[list[str]] = []
    monkeypatch.setattr(verb, "compiled", lambda _way, names, _limit: asked.append(names) or [])
    assert verb.collect(["a", "b"], ["default"], keep, 60.0)["a"]["default"]["us"] == 1.0
    assert asked == [["b"]]
    assert len([json.loads(line) for line in keep.read_text().splitlines()]) == 2


@pytest.mark.parametrize(("words", "told"), [(["--ways", "fastest"], "'fastest'"), ([], "no GPU")])
@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_what_cannot_be_reported_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
