"""What is said of recorded spaces, against numbers worked out by hand."""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from calibration.evaluate import spaces
from calibration.evaluate.spaces import main, read, read_all, report, spread
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware, Toolchain
from forecast_autotune.core.job import Recording
from forecast_autotune.core.outcome import Failure, Measurement, Outcome
from forecast_autotune.core.workload import Program, Workload
from forecast_autotune.evaluation.traces import write_trace

GEMM = Path(__file__).parents[2] / "traces" / "gemm_few_rows.jsonl.gz"
# Of a variant with a tile: its time in us, or the stage at which it fails.
Times = Mapping[tuple[str, int], float | str]


def config(variant: str, tile: int) -> Config:
    return Config({"variant": variant, "tile": tile})


def write(
    folder: Path,
    case: str,
    times: Times,
    *,
    kernel: str = "matmul",
    hardware: str = "H200",
    again: Mapping[tuple[str, int], float] | None = None,
    **header: object,
) -> Path:
    """A trace whose first config is the default; each config that runs has three samples around its time."""
    path = folder / f"{kernel}.{case}.{hardware}.jsonl.gz"
    outcomes: dict[Config, Outcome] = {
        config(*of): Failure(stage=us, message="no")
        if isinstance(us, str)
        else Measurement(samples_us=(us * 3, us / 2, us))
        for of, us in times.items()
    }
    second = [
        {"config": dict(config(*of).knobs), "samples_us": [us, us * 2, us / 2]} for of, us in (again or {}).items()
    ]
    recording = Recording(
        workload=Workload(program=Program(name="program", language="triton", source="source"), key={"case": case}),
        hardware=Hardware(kind="cuda", name=hardware),
        toolchain=Toolchain(versions={}),
        default=next(iter(outcomes)),
        outcomes=outcomes,
    )
    write_trace(recording, path, recorded={"kernel": kernel, "case": case, "second_pass": second, **header})
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> list[Path]:
    """Matmul at all its sizes but one where split_k wins at few_rows alone, and softmax at two."""
    a, b, c = ("grouped", 16), ("grouped", 32), ("split_k", 16)
    return [
        write(tmp_path, "square", {a: 200.0, b: 100.0, c: 104.0}, space=1136, flops=8e9, bytes=1e8),
        write(tmp_path, "layer", {a: 60.0, b: 50.0, c: "launch", ("split_k", 32): "check"}, flops=3e9, bytes=1e8),
        write(
            tmp_path, "few_rows", {a: 16.0, b: 12.0, c: 8.0, ("split_k", 32): "check"}, flops=5e6, bytes=1e7,
            again={a: 16.8, b: 12.0, c: 8.4},
        ),
        write(tmp_path, "deep", {a: "launch", b: 40.0, c: 42.0}, again={b: 44.0, c: 42.0}),
        write(tmp_path, "scores", {a: 5.0, c: 4.0}, kernel="softmax"),
        write(tmp_path, "experts", {a: 2.0, c: 2.4}, kernel="softmax"),
    ]  # fmt: skip


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def row(found: Mapping[str, Any], kernel: str, case: str | None = None) -> dict[str, Any]:
    rows = found["suite"] if case is None else found["workloads"]
    return next(r for r in rows if r["kernel"] == kernel and case in (None, r.get("case")))


# Numbers ----------------------------------------------------------------------------------------------------------------


def test_a_kernel_is_listed_with_what_its_traces_hold(
    recorded: Sequence[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    matmul = row(told(capsys, *recorded), "matmul")
    assert (matmul["language"], matmul["configs"]) == ("triton", 1136)
    assert matmul["variants"] == ["grouped", "split_k", "persistent"]
    assert matmul["flops_per_byte"] == [0.5, 80.0]
    assert matmul["default_over_best"] == pytest.approx((2.0 * 1.2 * 2.0) ** (1 / 3))  # the default fails at deep
    assert matmul["default_over_best_range"] == [1.2, 2.0]
    assert matmul["best_variants"]["H200"] == {
        "square": "grouped", "layer": "grouped", "few_rows": "split_k", "deep": "grouped",
    }  # fmt: skip


def test_kernels_without_a_trace_stand_in_the_suite_too(
    recorded: Sequence[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, *recorded)
    assert {"trimul", "add_inplace", "cuda_gemm", "gemm"} < {r["kernel"] for r in found["suite"]}
    assert set(row(found, "trimul")) == {"kernel", "language", "variants", "configs", "cases", "best_variants"}
    assert row(found, "trimul")["best_variants"] == {}


def test_a_workload_is_listed_with_its_failures_and_repeats(
    recorded: Sequence[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, *recorded)
    few_rows = row(found, "matmul", "few_rows")
    assert few_rows == {
        "kernel": "matmul", "case": "few_rows", "hardware": "H200", "tried": 4, "failed": {"check": 1},
        "best_us": 8.0, "best_variant": "split_k", "best_config": {"variant": "split_k", "tile": 16},
        "default_over_best": 2.0, "near": {"1%": 1, "5%": 1, "10%": 1},
        "repeats": 3, "repeat_error": pytest.approx(0.05), "rank_correlation": pytest.approx(1.0),
    }  # fmt: skip
    assert row(found, "matmul", "square")["near"] == {"1%": 1, "5%": 2, "10%": 2}
    assert row(found, "matmul", "square")["space"] == 1136
    assert row(found, "matmul", "layer")["failed"] == {"check": 1, "launch": 1}
    assert "default_over_best" not in row(found, "matmul", "deep")
    assert row(found, "matmul", "deep")["rank_correlation"] == pytest.approx(-1.0)


def test_the_summary_counts_and_compares_the_two_passes(
    recorded: Sequence[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, *recorded)["summary"]
    assert (found["traces"], found["kernels"], found["measurements"]) == (6, 2, 14)
    assert found["failures"] == {"check": 2, "launch": 2}
    # Ratios less 1: 0.05, 0 and 0.05 at few_rows (16, 12 and 8 us), 0.1 and 0 at deep (40 and 42 us).
    errors = found["repeats"]["errors"]
    assert set(errors) == {"all", "10 to 100 us"}  # of one config there is no median
    assert errors["all"]["count"] == 5
    assert errors["all"]["median"] == pytest.approx(0.05)
    assert errors["all"]["p90"] == pytest.approx(0.08)  # 0, 0, .05, .05, .1: six tenths from the 4th to the 5th
    assert errors["10 to 100 us"]["median"] == pytest.approx(0.025)
    assert found["repeats"]["rank_correlation"]["least"] == pytest.approx(-1.0)
    # The first pass picks 8 us, the second's best as well; and 40 us, which takes the second 44 beside 42.
    assert found["repeats"]["pick_loss"]["most"] == pytest.approx(44 / 42 - 1)
    assert found["repeats"]["pick_loss"]["least"] == 0
    assert found["near"]["5%"]["count"] == 6
    assert found["near"]["5%"]["most"] == 2  # at square 104 us beside 100, at deep 42 beside 40
    assert found["near"]["5%"]["median"] == 1
    ratios = [2.0, 1.2, 2.0, 1.25, 1.0]
    assert found["default_over_best"]["median"] == pytest.approx(statistics.median(ratios))
    assert found["default_over_best"]["p90"] == found["default_over_best"]["most"] == 2.0


def test_the_summary_says_what_changes_with_the_size(
    recorded: Sequence[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, *recorded)["summary"]["sizes"]
    assert (found["kernels"], found["changing"]) == (2, ["matmul", "softmax"])
    assert found["pairs"] == 6 + 1
    assert found["pairs_differing"] == pytest.approx((3 + 1) / 7)
    # grouped 32 is best at three sizes of matmul, and at few_rows takes 12 us beside 8; split_k 16 moves to square and
    # deep, and fails at layer. In softmax each of the two is 1.25 and 1.2 of the other's.
    losses = [*[0.0] * 6, *[0.5] * 3, 0.04, 0.05, 0.2, 0.25]
    assert found["transfer_loss"]["count"] == len(losses)
    assert found["transfer_loss"]["median"] == pytest.approx(statistics.median(losses))
    assert found["transfer_loss"]["most"] == pytest.approx(0.5)
    assert (found["transfers_failed"], found["transfers_untried"]) == (1, 0)
    # Only grouped 32 runs at every size of matmul; in softmax split_k has the lesser mean: 1 and 1.2 against 1.25 and 1.
    assert found["single_loss"]["count"] == 6
    assert found["single_loss"]["median"] == 0
    assert found["single_loss"]["p90"] == pytest.approx((0.2 + 0.5) / 2)
    assert found["single_loss"]["most"] == pytest.approx(0.5)


def test_a_variant_that_is_best_by_little_is_no_clear_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = ("grouped", 16), ("split_k", 16)
    paths = [
        write(tmp_path, "square", {a: 100.0, b: 101.0}),
        write(tmp_path, "layer", {a: 102.0, b: 100.0}),
        write(tmp_path, "deep", {a: 200.0, b: 100.0, ("split_k", 32): 99.0}),
    ]
    found = told(capsys, *paths)["summary"]["sizes"]
    assert (found["changing"], found["clearly"]) == (["matmul"], [])  # split_k is never off by more than 1 %
    assert found["pairs_differing"] == pytest.approx(2 / 3)
    assert found["pairs_clearly"] == 0
    assert found["transfers_untried"] == 2  # the best at deep was tried nowhere else
    paths[0] = write(tmp_path, "square", {a: 97.0, b: 100.0})
    found = told(capsys, *paths)["summary"]["sizes"]
    assert found["clearly"] == ["matmul"]
    assert found["pairs_clearly"] == pytest.approx(1 / 3)  # of square and deep; at layer grouped is off by just 2 %


def test_variants_that_are_as_fast_are_both_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = ("grouped", 16), ("split_k", 16)
    paths = [write(tmp_path, "square", {a: 1.0, b: 1.0}), write(tmp_path, "layer", {b: 1.0, a: 2.0})]
    assert told(capsys, *paths)["summary"]["sizes"]["changing"] == []


def test_cases_are_compared_on_one_hardware_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = ("grouped", 16), ("split_k", 16)
    paths = [
        write(tmp_path, "square", {a: 1.0, b: 2.0}),
        write(tmp_path, "square", {a: 2.0, b: 1.0}, hardware="B200"),
    ]
    found = told(capsys, *paths)
    assert (found["summary"]["sizes"]["kernels"], found["summary"]["sizes"]["pairs"]) == (0, 0)
    assert found["summary"]["hardware"] == ["B200", "H200"]
    assert row(found, "matmul")["best_variants"] == {"B200": {"square": "split_k"}, "H200": {"square": "grouped"}}
    assert main([*map(str, paths), "--markdown"]) == 0
    assert "| B200: split_k at square; H200: grouped at square |" in capsys.readouterr().out


def test_what_rests_on_fewer_than_two_values_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "square", {("grouped", 16): 3.0}, again={("grouped", 16): 4.0})
    found = told(capsys, path)
    assert not {"repeat_error", "rank_correlation"} & set(row(found, "matmul", "square"))
    assert found["summary"]["repeats"] == {"errors": {}}
    assert found["summary"]["near"] == {}
    assert "default_over_best" not in found["summary"]
    assert set(found["summary"]["sizes"]) == {
        "kernels", "changing", "clearly", "pairs", "transfers_failed", "transfers_untried",
    }  # fmt: skip
    assert main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert "nan" not in shown.lower()
    assert "None" not in shown
    assert spread([1.0]) is None


def test_a_config_that_ran_in_the_second_pass_alone_does_not_count(tmp_path: Path) -> None:
    path = write(tmp_path, "square", {("grouped", 16): 3.0, ("grouped", 32): "check"}, again={("grouped", 32): 4.0})
    assert read(path).again_us == {}


def test_a_real_trace_without_a_header_says_what_it_can(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in gzip.decompress(GEMM.read_bytes()).splitlines()]
    header, ran = lines[0], [line for line in lines[1:] if "samples_us" in line]
    times = sorted((statistics.median(line["samples_us"]), json.dumps(line["config"])) for line in ran)
    best_us, best = times[0][0], json.loads(times[0][1])
    default_us = next(us for us, knobs in times if json.loads(knobs) == header["default"])

    found = told(capsys, GEMM)
    (one,) = found["workloads"]
    assert (one["kernel"], one["case"], one["hardware"]) == ("gemm", "gemm_few_rows", "AMD EPYC")
    assert (one["tried"], one["failed"], one["repeats"]) == (len(lines) - 1, {}, 0)
    assert (one["best_us"], one["best_config"], one["best_variant"]) == (best_us, best, best["ALGORITHM"])
    assert one["default_over_best"] == pytest.approx(default_us / best_us)
    for name, share in (("1%", 0.01), ("5%", 0.05), ("10%", 0.1)):
        assert one["near"][name] == len([us for us, _ in times if us / best_us - 1 <= share])
    assert found["summary"]["measurements"] == len(ran)
    gemm = row(found, "gemm")
    assert gemm["best_variants"] == {"AMD EPYC": {"gemm_few_rows": best["ALGORITHM"]}}
    assert "flops_per_byte" not in gemm


# Forms ------------------------------------------------------------------------------------------------------------------


def test_people_get_three_parts_in_whole_lines(recorded: Sequence[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path) for path in recorded]) == 0
    captured = capsys.readouterr()
    suite, workloads, summary = captured.out.strip().split("\n\n")
    matmul = next(line for line in suite.splitlines() if line.startswith("matmul "))
    assert "0.5 to 80" in matmul
    assert "1.69 (1.20 to 2.00)" in matmul
    assert "square: grouped, layer: grouped, few_rows: split_k, deep: grouped" in matmul
    assert len(workloads.splitlines()) == 1 + len(recorded)
    layer = next(line for line in workloads.splitlines() if line.startswith("matmul/layer "))
    assert layer.split()[:9] == ["matmul/layer", "H200", "4", "1", "check,", "1", "launch", "50.00", "grouped"]
    facts = [line.strip() for line in summary.splitlines()]
    assert "configs                   14 ran, 4 failed (2 check, 2 launch)" in facts
    near = "no variant is within 2% of the best"
    assert f"between two cases       in 57% of 7 pairs; in 57% {near} of both" in facts
    changes = "best variant changes      in 2 of 2 kernels with several cases (matmul, softmax)"
    assert f"{changes}; in 2 {near} of all" in facts
    assert "within 5% of the best     1 of those tried in the median of 6 workloads, 1 to 2" in facts
    assert (
        "best of another case      4.0% slower in the median, 50.0% at worst, of 13 moves; in 1 more it fails" in facts
    )
    assert captured.err == ""


def test_markdown_is_the_suite_as_one_table(recorded: Sequence[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*map(str, recorded), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = lines[0].strip("| ").split(" | ")
    assert head == ["kernel", "language", "variants", "configs", "flop/byte", "default/best", "best variant"]
    assert lines[1] == "| --- | --- | --- | --- | --- | --- | --- |"
    assert all(line.count("|") == len(head) + 1 for line in lines)
    assert (
        "| matmul | triton | grouped, split_k, persistent | 1136 | 0.5 to 80 | 1.69 (1.20 to 2.00) "
        "| grouped at square and layer and deep, split_k at few_rows |" in lines
    )


@pytest.mark.parametrize(
    ("best", "words"),
    [
        ({"square": "a", "long": "a", "odd": "a"}, "a everywhere"),
        ({"square": "a", "long": "b", "odd": "a"}, "b at long, else a"),
        ({"square": "a", "long": "b", "odd": "c"}, "a at square, b at long, c at odd"),
        ({"square": "a", "long": "a"}, "a at square and long"),  # not recorded at odd, so not known everywhere
        ({"square": "b", "odd": "a"}, "b at square, a at odd"),
    ],
)
def test_best_variants_are_summed_up_in_few_words(best: dict[str, str], words: str) -> None:
    found = spaces.suite_row(
        {"name": "k", "language": "c++", "variants": [], "configs": 1, "cases": {"square": {}, "long": {}, "odd": {}}},
        [
            spaces.Trace(
                kernel="k", case=case, hardware="H200", space=None, flops_per_byte=None, default=config(variant, 1),
                times_us={config(variant, 1): 1.0}, failed={}, again_us={},
            )
            for case, variant in best.items()
        ],
    )  # fmt: skip
    assert spaces.in_words(found) == words


@pytest.mark.parametrize(
    ("knobs", "variant"),
    [
        ({"variant": "grouped", "source": "x"}, "grouped"),
        ({"source": "two_pass"}, "two_pass"),
        ({"ALGORITHM": "TILE"}, "TILE"),
        ({"tile": 16}, "matmul"),
    ],
)
def test_a_config_names_its_variant(tmp_path: Path, knobs: dict[str, str | int], variant: str) -> None:
    trace = read(write(tmp_path, "square", {("grouped", 16): 1.0}))
    assert trace.variant(Config(knobs)) == variant


# Bad input --------------------------------------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line that is said when nothing can be reported."""
    assert main([*map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.txt"
    other.write_text("no trace\nat all\n")
    assert f"{other} is no trace" in refusal(capsys, other)
    assert "No such file" in refusal(capsys, tmp_path / "missing.jsonl.gz")


def test_a_folder_without_traces_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "TRACES", tmp_path)
    assert f"there are no traces in {tmp_path}" in refusal(capsys)
    write(tmp_path, "square", {("grouped", 16): 1.0})
    assert row(told(capsys), "matmul", "square")["best_us"] == 1.0


def test_one_workload_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "square", {("grouped", 16): 1.0})
    assert "are both of matmul/square on H200" in refusal(capsys, path, path)


@pytest.mark.parametrize(
    "header",
    [{"flops": "many", "bytes": 1}, {"space": 1.5}, {"case": 3}, {"second_pass": [{"config": {}, "samples_us": [-1]}]}],
)
def test_a_header_that_makes_no_sense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], header: dict[str, object]
) -> None:
    path = write(tmp_path, "square", {("grouped", 16): 1.0})
    write_again = json.loads(gzip.decompress(path.read_bytes()).splitlines()[0])
    write_again["recorded"] |= header
    lines = [json.dumps(write_again).encode(), *gzip.decompress(path.read_bytes()).splitlines()[1:], b""]
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    assert f"{path}, line 1: recorded" in refusal(capsys, path)


def test_traces_are_reported_in_an_order_of_their_own(recorded: Sequence[Path]) -> None:
    assert report(read_all(recorded)) == report(read_all(recorded[::-1]))
