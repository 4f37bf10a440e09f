from __future__ import annotations

from pathlib import Path

import pytest

from forecast_autotune.core.config import Config
from forecast_autotune.core.workload import Program
from forecast_autotune.evaluation.traces import read_trace
from forecast_autotune.language.sources import sections_of, shortened, variant_of

TRACES = Path(__file__).parents[2] / "calibration" / "traces"


def recorded(name: str) -> Program:
    return read_trace(TRACES / f"{name}.NVIDIA_H200.jsonl.gz").workload.program


def names(program: Program, variant: str | None) -> list[str]:
    return [s.name for s in sections_of(program, variant)]


def test_a_variant_reads_as_itself_and_what_it_calls() -> None:
    found = names(recorded("matmul.square"), "split_k")
    assert found[0] == "split_k"
    assert {"multiply_part", "add_parts", "tile_sum", "put"} <= set(found)
    assert "grouped" not in found
    assert "persistent" not in found


def test_every_recorded_variant_is_found_in_its_programs_text() -> None:
    found = 0
    for path in sorted(TRACES.glob("*.jsonl.gz")):
        recording = read_trace(path)
        program = recording.workload.program
        for variant in {variant_of(c) for c in recording.outcomes} - {None}:
            sections = sections_of(program, variant)
            assert sections, path.name
            if program.language == "triton":
                assert sections[0].name == variant, path.name
            assert any("tl." in s.text or "__global__" in s.text for s in sections), (path.name, variant)
            found += 1
    assert found > 200


def test_of_sources_given_by_name_the_one_that_runs_is_read() -> None:
    program = recorded("cuda_softmax.square")
    texts = {v: "\n".join(s.text for s in sections_of(program, v)) for v in ("block_per_row", "online")}
    assert "three times" in texts["block_per_row"]
    assert "goes through twice" in texts["online"]
    assert "three times" not in texts["online"]
    assert "#include" not in texts["online"]


def test_a_program_of_one_text_is_read_whole() -> None:
    program = Program(
        name="f", language="triton", source="def f(x):\n    return g(x)\n\n\ndef g(x):\n    return x\n\nA = 3\n"
    )
    assert names(program, None) == ["f", "g", "A"]
    assert names(program, "no such variant") == ["f", "g", "A"]


def test_whole_functions_are_left_out_and_named() -> None:
    program = recorded("matmul.square")
    sections = sections_of(program, "split_k")
    text, kept = shortened(sections, 1_000)
    assert 0 < len(kept) < len(sections)
    assert all(s.text in text for s in kept)
    *_, last = text.splitlines()
    assert last.startswith("(left out for length: ")
    assert shortened(sections, 100_000) == ("\n".join(s.text for s in sections), tuple(sections))


def test_what_runs_on_the_device_goes_first() -> None:
    program = Program(
        name="k",
        language="triton",
        source="def launch(x):\n    k[1](x)\n\n\ndef k(x):\n    tl.store(x, tl.load(x) + 1)\n",
    )
    text, _ = shortened(sections_of(program, None), 60)
    assert "tl.store" in text
    assert text.endswith("(left out for length: launch)")


def test_what_was_shown_before_is_named_and_not_repeated() -> None:
    program = recorded("matmul.square")
    before = sections_of(program, "grouped")
    text, kept = shortened(sections_of(program, "split_k"), 100_000, known=before)
    assert "(as in the reference: " in text
    assert not set(kept) & set(before)
    assert "def split_k(" in text


@pytest.mark.parametrize("knob", ["variant", "source"])
def test_a_knob_says_which_text_runs(knob: str) -> None:
    assert variant_of(Config({knob: "tiled", "BM": 64})) == "tiled"
    assert variant_of(Config({knob: 3})) is None
    assert variant_of(Config({"BM": 64})) is None
