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
from calibration.torch_compile import table, verb, ways  # noqa: E402
from calibration.torch_compile.compiles import given_to_compile  # noqa: E402
from calibration.torch_compile.operations import MODELS, fp8_products, operation_of, products  # noqa: E402

WAYS = ["default", "max-autotune", "4"]


def one(us: float, seconds: float, *, eager_us: float = 10.0, timed: int = 4, **more: Any) -> dict[str, Any]:
    return {"us": us, "eager_us": eager_us, "compile_s": seconds, "timed": timed, "far": 0.0, **more}


FOUND = {
    "mm a": {"default": one(10.0, 1.0), "max-autotune": one(8.0, 16.0), "4": one(10.0, 4.0, eager_us=12.5)},
    "mm b": {"default": one(10.0, 1.0), "max-autotune": one(10.0, 8.0), "4": {"problem": "out of memory"}},
}


def test_a_time_counts_over_eager_code_in_the_same_process() -> None:
    assert list(table.lines(FOUND, WAYS)) == [
        ("mm a", "1.0", "1.000", "16.0", "0.800", "4.0", "0.800"),
        ("mm b", "1.0", "1.000", "8.0", "1.000", "-", "-"),
    ]
    rows = {row[0]: row[1:] for row in table.means(FOUND, WAYS)}
    assert rows["max-autotune"] == ("2", "0.894", "1.000", "1.000", "1.000", "1.000", "24", "12.0", "4.0")
    assert rows["4"] == ("1", "0.800", "0.800", "1.000", "1.000", "1.000", "4", "4.0", "4.0")
    assert rows["default"][3:5] == ("1.118", "1.118")


def test_means_are_told_of_products_models_and_kinds_apart() -> None:
    found = {**FOUND, "bmm c": {"default": one(1.0, 1.0)}, "block": {"default": one(1.0, 1.0)}}
    told = {title: list(part) for title, part in table.parts(found, WAYS)}
    assert told == {
        "products": ["mm a", "mm b", "bmm c"],
        "products compiled in all ways": ["mm a"],
        "parts of models": ["block"],
        "bmm": ["bmm c"],
        "mm": ["mm a", "mm b"],
    }


def test_where_the_seconds_go_is_told_of_an_operation_in_the_mean() -> None:
    found = {
        "mm a": {"4": one(1.0, 1.0, phases={"long": 3.0}, own_s=0.5), "default": one(1.0, 1.0)},
        "mm b": {"4": one(1.0, 1.0, phases={"long": 1.0, "short": 1.0})},
    }
    assert list(table.phases(found, ["default", "4"])) == [
        ("long", "0.00", "2.00"),
        ("short", "0.00", "0.50"),
        ("ours", "0.00", "0.25"),
    ]


def test_no_product_was_recorded_at_that_size() -> None:
    listed = products()
    assert len({product.name for product in listed}) == 64
    files = list(PRODUCTS.glob("*.gz"))
    recorded = {tuple(each.job.workload.key["shape"][2:]) for file in files for each in read_recorded(file)}
    assert len(files) == 2
    assert not {(product.batch, product.m, product.n, product.k) for product in (*listed, *fp8_products())} & recorded
    assert len({product.name for product in fp8_products()}) == 16
    assert {product.kind for product in products(6)} == {product.kind for product in listed}
    assert products(6) == listed[:6]
    assert operation_of(listed[-1].name).__self__ == listed[-1]
    assert set(MODELS) == {"transformer_block", "convolutional_block", "causal_flex_attention"}


def test_a_budget_is_of_products_alone_unless_everything_is_tuned() -> None:
    given = {way: given_to_compile(way) for way in ("default", "gemm", "4", "max-autotune", "exhaustive", "4-max")}
    assert given["default"] == {}
    assert given["gemm"] == given["4"] == {"options": {"max_autotune_gemm": True}}
    assert given["max-autotune"] == given["exhaustive"] == given["4-max"] == {"mode": "max-autotune-no-cudagraphs"}
    assert ways.in_order({"8", "4-max", "16", "gemm", "4", "default"}) == ["default", "gemm", "4", "4-max", "8", "16"]


def test_shares_make_the_whole_and_long_lists_come_last() -> None:
    names, ways = [f"mm {number}" for number in range(5)], ["default", "4"]
    shares = [verb.tasks(names, ways, names[:2], (which, 2)) for which in (1, 2)]
    assert shares[1] == [
        ("mm 1", "default"),
        ("mm 1", "4"),
        ("mm 3", "default"),
        ("mm 3", "4"),
        ("mm 1", "exhaustive"),
    ]
    assert sorted(shares[0] + shares[1]) == sorted(verb.tasks(names, ways, names[:2], (1, 1)))


ANSWERING = f"""
import json, sys
print(json.dumps({{"gpu": "none"}}), flush=True)
for line in sys.stdin:
    if line.strip() == "b":
        sys.exit("out of luck")
    if line.strip() == "c":
        sys.stdin.read()
    print(json.dumps({{"operation": line.strip(), **{one(1.0, 1.0)!r}}}), flush=True)
"""


def test_a_process_that_ends_early_is_replaced_and_its_answers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "command_of", lambda _: [sys.executable, "-c", ANSWERING])
    keep = tmp_path / "kept.jsonl"
    wanted = [(name, way) for name in "abcd" for way in ("default", "4")]
    found = verb.collect(wanted, keep, operation_s=1.0)
    for way in ("default", "4"):
        assert [found[name][way].get("us") for name in "abcd"] == [1.0, None, None, 1.0]
        assert [found[name][way].get("problem") for name in "bc"] == ["out of luck", "it took too long"]
        assert found["a"][way]["gpu"] == "none"
    assert verb.read_kept([keep]) == found
    assert verb.collect(wanted[:2], keep, limit_s=0.0) == found


def test_nothing_is_begun_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "command_of", lambda _: [sys.executable, "-c", ANSWERING])
    times = iter((0.0, 1.0, 1.0, 9.0))
    found = verb.collect([("a", "default"), ("d", "default")], None, limit_s=8.0, clock=lambda: next(times))
    assert list(found) == ["a"]


def test_what_is_named_alone_is_compiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wanted: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(verb, "collect", lambda tasks, *_: wanted.extend(tasks) or FOUND)
    name = products()[-1].name
    verb.main(["--ways", "default,4", "--only", name])
    assert wanted == [(name, "default"), (name, "4")]
    assert verb.main(["--only", "mm 1x2x3 bf16"]) == 2
    assert "--only 'mm 1x2x3 bf16' is none of" in capsys.readouterr().err


def test_what_shares_have_kept_is_printed_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for file, (name, of_one) in zip(files, FOUND.items(), strict=True):
        kept = [{"operation": name, "way": way, **each} for way, each in of_one.items()]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in kept))
    assert verb.main(["--print", *map(str, files)]) == 1
    told = capsys.readouterr().out
    assert "mm a" in told
    assert "mm b" in told
    assert verb.main(["--print", str(tmp_path / "three.jsonl")]) == 2


def test_a_line_that_was_cut_off_is_left_out_and_then_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "command_of", lambda _: [sys.executable, "-c", ANSWERING])
    keep = tmp_path / "kept.jsonl"
    keep.write_text(json.dumps({"operation": "a", "way": "default", **one(1.0, 1.0)}) + '\n{"operation": "d')
    assert verb.main(["--print", str(keep)]) == 0
    told = capsys.readouterr()
    assert told.err == f"{keep}: the last line was cut off while it was written: it is left out\n"
    found = verb.collect([("a", "default"), ("d", "default")], keep)
    capsys.readouterr()
    assert verb.read_kept([keep]) == found
    assert capsys.readouterr().err == ""


WHOLE = json.dumps({"operation": "a", "way": "default", **one(1.0, 1.0)}).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"half a line",
        b"[1]",
        b'{"operation": "a", "way": "default"}',
        b'{"operation": "a", "way": "default", "problem": "none", "us": 1.0}',
        WHOLE.replace(b'"us": 1.0', b'"us": 0.0'),
        WHOLE.replace(b'"timed": 4', b'"timed": "4"'),
        WHOLE.replace(b'"timed"', b'"phases": [1], "timed"'),
        WHOLE[:20] + b"\n",
        WHOLE.replace(b"default", b"\xff"),
    ],
)
def test_another_damaged_line_is_an_error_that_names_file_and_line(
    tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_bytes(WHOLE + b"\n" + line)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for option in ("--print", "--keep"):
        assert verb.main([option, str(file)]) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert f"inductor-report: {file}: line 2 is no " in told.err


@pytest.mark.parametrize(("words", "told"), [(["--ways", "fastest"], "'fastest'"), ([], "no GPU")])
@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_what_cannot_be_reported_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err


def test_products_of_fp8_are_not_listed_beside_named_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main(["--fp8", "--only", products()[0].name]) == 2
    assert "--only" in capsys.readouterr().err
