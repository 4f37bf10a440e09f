"""Rewrites, other knobs, crossed programs."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from contracts.proposer_contract import ProposerContract, seen, tried
from doubling import task

from forecast_autotune.core.config import Config
from forecast_autotune.core.space import Space
from forecast_autotune.program_search.candidate import Candidate, normalised
from forecast_autotune.program_search.proposers.base import SearchView, tally
from forecast_autotune.program_search.proposers.cpp_rewrites import rewrites as cpp_rewrites
from forecast_autotune.program_search.proposers.crossing import crossed
from forecast_autotune.program_search.proposers.mix import Mix
from forecast_autotune.program_search.proposers.rewriting import Anywhere, Crossover, Knobs, Rewrites
from forecast_autotune.program_search.proposers.triton_rewrites import rewrites as triton_rewrites
from forecast_autotune.program_search.task import SearchTask

SUITE = Path(__file__).parents[2] / "kernels" / "kernel_suite"

CPP = """
#include <cstdint>
// for (a comment) { is no loop
extern "C" void sums(int64_t rows, int64_t columns, const float* a, float* out) {
    for (int64_t x = 0; x < columns; ++x) {
        float total = 0;
        for (int64_t y = 0; y < rows; ++y) total += a[y * columns + x];
        out[x] = total;
    }
    for (int64_t y = 0; y < rows; ++y)
        for (int64_t x = 0; x < columns; ++x) out[x] += 0 * a[y * columns + x];
}
"""


class TestKnobs(ProposerContract):
    def make(self) -> Knobs:
        return Knobs()


class TestAnywhere(ProposerContract):
    def make(self) -> Anywhere:
        return Anywhere()


class TestRewrites(ProposerContract):
    def make(self) -> Rewrites:
        return Rewrites()

    def task(self) -> SearchTask:
        return task(language="c++", source=CPP, spaces={"": Space([{"N": 1}])})


class TestMix(ProposerContract):
    def make(self) -> Mix:
        return Mix([Knobs(), Crossover()])


def test_crossover_needs_two_that_ran_and_takes_knobs_of_both() -> None:
    of = task(spaces={"plain": Space.grid({"A": [1, 2, 3], "B": [1, 2, 3]})})
    assert not Crossover().propose(seen(of), 4)
    one, other = (
        Candidate(source=of.source, language="triton", variant="plain", config=Config(knobs), proposer="knobs")
        for knobs in ({"A": 2, "B": 1}, {"A": 1, "B": 3})
    )
    children = Crossover().propose(seen(of, tried(one, 5.0), tried(other, 6.0)), 4)
    assert {"A": 2, "B": 3} in [dict(c.config.knobs) for c in children]


def test_any_config_of_any_variant_is_drawn_with_its_variants_own_text() -> None:
    spaces = {"plain": Space.grid({"A": [1, 2, 3], "B": [1, 2, 3]}), "other": Space.grid({"C": [1, 2, 3]})}
    of = task(
        spaces=spaces, source="def plain(): ...", texts={"plain": "def plain(): ...", "other": "def other(): ..."}
    )
    drawn = Anywhere().propose(seen(of), 20)
    found = {(c.variant, c.source, c.config) for c in drawn}
    every = {(name, f"def {name}(): ...", config) for name, space in spaces.items() for config in space}
    seed = of.seed
    assert found == every - {(seed.variant, seed.source, seed.config)}
    assert all(c.steps and c.parents == (seed.digest,) for c in drawn)


def test_another_variant_drops_what_was_rewritten_for_this_one_and_says_so() -> None:
    of = task(spaces={"plain": Space.grid({"A": [1, 2]}), "other": Space.grid({"C": [1, 2]})})
    rewritten = Candidate(
        source="# rewritten\n" + of.source, language="triton", variant="plain", config=Config({"A": 1}),
        proposer="rewrite", parents=(of.seed.digest,), steps=("unroll@loop1=4",),
    )  # fmt: skip
    drawn = Anywhere().propose(seen(of, tried(rewritten, 1.0)), 20)
    switched = [c for c in drawn if c.variant == "other"]
    assert switched
    assert all(c.source == of.source and len(c.steps) == 1 for c in switched)
    kept = [c for c in drawn if c.variant == "plain" and c.parents == (rewritten.digest,)]
    assert all(c.source == rewritten.source and c.steps == ("unroll@loop1=4", "A=2") for c in kept)


def test_a_config_that_differs_only_in_a_values_type_has_a_step_saying_so() -> None:
    of = task(spaces={"plain": Space([{"A": 1}, {"A": True}, {"A": 2}])})
    assert {c.steps for c in Anywhere().propose(seen(of), 20)} == {("A=True",), ("A=2",)}


def test_crossed_texts_hold_the_changes_of_both_unless_they_touch() -> None:
    base = "a\nb\nc\nd\n"
    assert crossed(base, "A\nb\nc\nd\n", "a\nb\nc\nD\n") == "A\nb\nc\nD\n"
    assert crossed(base, "A\nb\nc\nd\n", "x\nb\nc\nd\n") is None
    assert crossed(base, base, "a\nb\nc\nD\n") is None


def test_the_same_view_gives_the_same_proposals_and_another_turn_others() -> None:
    view = seen(task())
    assert Knobs().propose(view, 3) == Knobs().propose(view, 3)
    turns = {
        c.digest
        for turn in range(8)
        for c in Knobs().propose(SearchView(task=view.task, tried=view.tried, turn=turn), 1)
    }
    assert len(turns) > 1


def test_programs_that_differ_in_comments_and_blanks_are_one() -> None:
    assert normalised(CPP, "c++") == normalised(CPP.replace("\n    ", "\n // x\n  /* y\n */ "), "c++")
    assert normalised(CPP, "c++") != normalised(CPP.replace("0 *", "1 *"), "c++")
    assert normalised('char* a = "//  x";', "c++") != normalised('char* a = "// x";', "c++")
    assert normalised("#define A 1\nint b;", "c++") != normalised("#define A 1 int b;", "c++")
    assert normalised("def f(x):\n    '''Doc.'''\n    return x  # y", "triton") == normalised(
        "def f(x): return x", "triton"
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("source", [CPP, (SUITE / "gemm" / "kernel.cpp").read_text()], ids=["sums", "gemm"])
def test_what_a_rewrite_of_cpp_makes_is_cpp(source: str, tmp_path: Path) -> None:
    made = dict(cpp_rewrites(source))
    assert len({step.partition("@")[0] for step in made}) >= 8
    one_of_each = {step.partition("@")[0]: text for step, text in made.items()}
    for i, text in enumerate(one_of_each.values()):
        (tmp_path / f"{i}.cpp").write_text(text)
    files = [str(path) for path in tmp_path.glob("*.cpp")]
    told = subprocess.run(["g++", "-fsyntax-only", "-std=c++17", *files], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_only_what_the_text_itself_calls_is_inlined() -> None:
    source = "float twice(float x) {\n  return 2 * x;\n}\nvoid entry(float* x) {\n  *x = twice(*x);\n}\n"
    inlined = [step for step, _ in cpp_rewrites(source) if step.startswith("always_inline")]
    assert inlined == ["always_inline@twice=on"]


def test_loops_that_are_split_tiled_or_exchanged_compute_the_same(tmp_path: Path) -> None:
    main = """
#include <cstdio>
#include <vector>
int main() {
    const int rows = 37, columns = 41;  // no whole tiles
    std::vector<float> a(rows * columns), out(columns);
    for (int i = 0; i < rows * columns; ++i) a[i] = i % 7;
    sums(rows, columns, a.data(), out.data());
    for (float x : out) printf("%g ", x);
}
"""
    told = set()
    source = CPP.replace("0 * a", "2 * a")  # so that a round left out shows
    kinds = ("split@", "steps@", "interchange@", "tile@", "vector_width@")
    split = {step: text for step, text in cpp_rewrites(source) if step.startswith(kinds)}
    assert {"split@loop1=4", "interchange@loop2=on", "tile@loop2=16", "vector_width@text=512"} <= split.keys()
    for i, text in enumerate([source, *split.values()]):
        (tmp_path / f"{i}.cpp").write_text(text + main)
        subprocess.run(["g++", f"{i}.cpp", "-o", f"{i}"], cwd=tmp_path, check=True)
        told.add(subprocess.run([str(tmp_path / str(i))], capture_output=True, text=True, check=True).stdout)
    assert len(told) == 1


@pytest.mark.parametrize("name", ["rms_norm/__init__.py", "softmax/variants.py", "attention/variants.py"])
def test_what_a_rewrite_of_triton_makes_differs_at_one_place(name: str) -> None:
    source = (SUITE / name).read_text()
    made = dict(triton_rewrites(source))
    assert len({step.partition("@")[0] for step in made}) >= 8
    for step, text in {step.partition("@")[0]: text for step, text in made.items()}.items():
        ast.parse(text)
        assert normalised(text, "triton") != normalised(source, "triton"), step
    assert not list(triton_rewrites("def broken("))


GRID = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, m, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(axis=1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    values = tl.load(x + rows[:, None] * n + columns[None, :], mask=inside)
    tl.store(out + columns[None, :] * m + rows[:, None], values, mask=inside)


x = torch.arange(17 * 11.0).reshape(17, 11)
out = torch.full((11, 17), torch.nan)
kernel[(5, 3)](x, out, 17, 11, BLOCK=4)
assert torch.equal(out, x.T)
"""


def test_an_access_is_given_a_policy_or_a_modifier_and_not_both() -> None:
    once = dict(triton_rewrites(GRID))
    policies = [text for step, text in once.items() if step.startswith("store_eviction_policy@")]
    assert policies
    for text in policies:
        again = {step.partition("@")[0] for step, _ in triton_rewrites(text)}
        assert "store_cache_modifier" not in again


def test_a_grid_in_another_order_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    made = {step: text for step, text in triton_rewrites(GRID) if step.startswith("swizzle@")}
    assert list(made) == [f"swizzle@kernel.program_id={rows}" for rows in (2, 4, 8)]
    for i, text in enumerate(made.values()):
        assert text.count("tl.swizzle2d(") == 2
        (tmp_path / f"grid{i}.py").write_text(text)
    (tmp_path / "all.py").write_text("".join(f"import grid{i}\n" for i in range(len(made))))
    told = subprocess.run(
        [sys.executable, "all.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize(
    ("bounds", "unrolled"),
    [("n", True), ("0, n", True), ("0, n, 32", True), ("first, last, 32", False), ("1, n", False)],
)
def test_loops_that_begin_elsewhere_than_at_zero_are_not_unrolled(bounds: str, unrolled: bool) -> None:
    source = (
        f"@triton.jit\ndef kernel(x, n, first, last):\n    for i in tl.range({bounds}):\n        tl.store(x + i, i)\n"
    )
    steps = [step for step, _ in triton_rewrites(source)]
    assert any(step.startswith("loop_unroll_factor@") for step in steps) is unrolled
    assert any(step.startswith("num_stages@") for step in steps)


def test_only_what_the_entry_reaches_is_rewritten() -> None:
    source = (SUITE / "rms_norm" / "__init__.py").read_text()
    places = {step.partition("@")[2].partition(".")[0] for step, _ in triton_rewrites(source, "in_registers")}
    assert places == {"add", "whole_rows", "in_registers"}


def test_who_brought_more_is_asked_for_more() -> None:
    of = task(spaces={"plain": Space.grid({"A": list(range(40)), "B": list(range(40))})})

    class Named(Knobs):
        def __init__(self, name: str) -> None:
            self.name = name

    good = [
        tried(
            Candidate(
                source=of.source, language="triton", variant="plain", config=Config({"A": i, "B": i}), proposer="good"
            ),
            9.0 - i / 10,
        )
        for i in range(1, 20)
    ]
    bad = [
        tried(
            Candidate(
                source=of.source, language="triton", variant="plain", config=Config({"A": i, "B": 0}), proposer="bad"
            ),
            90.0,
        )
        for i in range(1, 20)
    ]
    view = seen(of, *good, *bad)
    assert tally(view.tried)["good"] == (19, 19)
    assert tally(view.tried)["bad"] == (19, 0)
    counts = [c.proposer for c in Mix([Named("good"), Named("bad")]).propose(view, 12)]
    assert counts.count("good") > counts.count("bad") >= 1
