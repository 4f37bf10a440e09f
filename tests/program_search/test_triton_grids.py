"""Rewrites that give a Triton kernel another grid, run by Triton's interpreter and compiled for a GPU that is not here."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import kernel_suite
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from forecast_autotune.program_search.proposers.triton_grids import UNITS, grid_rewrites

SUITE = Path(kernel_suite.__file__).parent
HEAD = """
import torch
import triton
import triton.language as tl


@triton.jit
"""
PRODUCT = (
    HEAD
    + '''def product(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A tile of c, by a loop for each step of K."""
    rows = tl.program_id(axis=0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a = a_ptr + rows[:, None] * K + inner[None, :]
    b = b_ptr + inner[:, None] * N + columns[None, :]
    total, count = tl.zeros((BM, BN), dtype=tl.float32), tl.zeros([BN], tl.float32)
    for k in range(tl.cdiv(K, BK)):
        inside = inner < K - k * BK
        left = tl.load(a, mask=(rows < M)[:, None] & inside[None, :], other=0.0)
        right = tl.load(b, mask=inside[:, None] & (columns < N)[None, :], other=0.0)
        total = tl.dot(left, right, total)
        count += tl.sum(right, 0)
        a += BK
        b += BK * N
    at = c_ptr + rows[:, None] * N + columns[None, :]
    tl.store(at, total + count[None, :], mask=(rows < M)[:, None] & (columns < N)[None, :])


def multiply(a, b, c, BM=16, BN=16, BK=16):
    (M, K), N = a.shape, b.shape[1]
    grid = lambda meta: (triton.cdiv(M, meta["BM"]), triton.cdiv(N, meta["BN"]))
    product[grid](a, b, c, M, N, K, BM=BM, BN=BN, BK=BK)


torch.manual_seed(0)
for M, N, K in ((33, 18, 70), (5, 40, 129)):
    a, b, c = torch.randn(M, K), torch.randn(K, N), torch.full((M, N), torch.nan)
    multiply(a, b, c)
    torch.testing.assert_close(c, a @ b + b.sum(0), rtol=1e-4, atol=1e-4)
'''
)
CUBE = (
    HEAD
    + """def cube(x, y, n, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * 4 + tl.program_id(1)) * 3 + tl.program_id(2)
    where = at * BLOCK + tl.arange(0, BLOCK)
    x += at * BLOCK
    tl.store(y + where, tl.load(x + tl.arange(0, BLOCK), mask=where < n) + 1, mask=where < n)


x = torch.arange(5 * 4 * 3 * 8.0)
y = torch.full_like(x, torch.nan)
cube[5, 4, 3](x, y, x.numel(), BLOCK=8)
assert torch.equal(y, x + 1)
"""
)
OF_SUITE = {
    "swiglu": (
        "swiglu/__init__.py",
        ["persistent@product.program_id", "persistent@two_sums.program_id", "split@one_wide_sum.k"],
    ),
    "matmul": (
        "matmul/variants.py",
        ["persistent@multiply.program_id", "persistent@multiply_part.program_id", "split@multiply.k"],
    ),
}
RUN = """
import importlib.util, sys
import torch

def of_suite(path, package):
    spec = importlib.util.spec_from_file_location(f"{package}.rewritten", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.VARIANTS

def calls(suite, corners):
    for corner in corners:
        for variant in suite.variants:
            inputs = suite.make_inputs(corner, 3, "cpu")
            try:
                yield variant, inputs, suite.reference(*inputs)
            except ValueError:
                pass
"""
CHECK = (
    RUN
    + """
from forecast_autotune.errors import InvalidInputError
for path in sys.argv[2:]:
    suite = of_suite(path, sys.argv[1])
    ran = 0
    for variant, inputs, wanted in calls(suite, suite.corners):
        try:
            variant(*inputs)
        except InvalidInputError:
            continue
        for output, want, got in zip(suite.outputs, wanted, inputs[-len(suite.outputs):]):
            torch.testing.assert_close(got.float(), want.float(), rtol=output.rtol, atol=output.atol)
        ran += 1
    assert ran
"""
)
COMPILE = (
    RUN
    + """
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.frontends.triton.simulated_driver import rehearsal
with rehearsal("cuda:90", times=1.0) as on:
    for path in sys.argv[2:]:
        suite = of_suite(path, sys.argv[1])
        before = on.clock_us
        for variant, inputs, _ in calls(suite, suite.corners[-1:]):
            try:
                variant(*inputs)
            except InvalidInputError:
                pass
        assert on.clock_us > before
"""
)


def made_of(source: str, units: int = UNITS) -> dict[str, str]:
    """Every rewrite of a text; so many multiprocessors where no GPU is."""
    return {step: text.replace(f"return {UNITS}\n", f"return {units}\n") for step, text in grid_rewrites(source, None)}


def run(*command: str, folder: Path, interpreted: bool) -> None:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1" if interpreted else "0",
        "TRITON_CACHE_DIR": str(folder / "kept"),
    }
    told = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=environment)
    assert told.returncode == 0, told.stderr[-3000:]


@pytest.mark.parametrize(
    ("source", "kinds"),
    [(PRODUCT, {"persistent@product.program_id", "split@product.k"}), (CUBE, {"persistent@cube.program_id"})],
    ids=["product", "cube"],
)
def test_another_grid_computes_the_same(source: str, kinds: set[str], tmp_path: Path) -> None:
    made = made_of(source, units=1)
    assert {step.partition("=")[0] for step in made} == kinds
    made = {step: text for step, text in made.items() if step.endswith(("=1", "=4"))}
    for i, text in enumerate(made.values()):
        (tmp_path / f"text{i}.py").write_text(text)
    (tmp_path / "all.py").write_text("".join(f"import text{i}\n" for i in range(len(made))))
    run(str(tmp_path / "all.py"), folder=tmp_path, interpreted=True)


def test_a_rewritten_grid_is_rewritten_on(tmp_path: Path) -> None:
    """Both launches of what was split may become persistent; what was rewritten in one way is not in that way again."""
    split = made_of(PRODUCT)["split@product.k=4"]
    further = made_of(split, units=1)
    assert {step.partition("=")[0] for step in further} == {
        "persistent@product.program_id",
        "persistent@fa_product_part.program_id",
    }
    twice = made_of(further["persistent@product.program_id=1"], units=1)
    assert {step.partition("=")[0] for step in twice} == {"persistent@fa_product_part.program_id"}
    (tmp_path / "twice.py").write_text(twice["persistent@fa_product_part.program_id=1"])
    run(str(tmp_path / "twice.py"), folder=tmp_path, interpreted=True)


@pytest.mark.parametrize("name", list(OF_SUITE))
def test_kernels_of_the_suite_compute_the_same_under_other_grids(name: str, tmp_path: Path) -> None:
    file, kinds = OF_SUITE[name]
    made = {
        step: text for step, text in made_of((SUITE / file).read_text(), units=1).items() if step.endswith(("=1", "=4"))
    }
    assert {step.partition("=")[0] for step in made} >= set(kinds)
    paths = []
    for i, text in enumerate(made.values()):
        paths.append(str(tmp_path / f"rewritten{i}.py"))
        Path(paths[-1]).write_text(text)
    run("-c", CHECK, f"kernel_suite.{name}", *paths, folder=tmp_path, interpreted=True)


@pytest.mark.parametrize("name", ["swiglu", "matmul"])
def test_other_grids_compile_for_hopper(name: str, tmp_path: Path) -> None:
    made = made_of((SUITE / OF_SUITE[name][0]).read_text())
    paths = []
    for step in OF_SUITE[name][1]:
        paths.append(str(tmp_path / f"{step.replace('@', '_')}.py"))
        Path(paths[-1]).write_text(made[f"{step}=4"])
    run("-c", COMPILE, f"kernel_suite.{name}", *paths, folder=tmp_path, interpreted=False)


KERNEL = """def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, n, BLOCK):
        total += tl.load(x + k + at)
    tl.store(y + at, total)


def launch(x, y):
    kernel[x.shape[0],](x, y, x.shape[0], BLOCK=16)
"""


def test_the_text_that_the_next_ones_change_is_rewritten_in_both_ways() -> None:
    assert {step.partition("@")[0] for step in made_of(HEAD + KERNEL)} == {"persistent", "split"}


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("total += tl.load(x + k + at)", "total = tl.maximum(total, tl.load(x + k + at))"),
        ("total += tl.load(x + k + at)", "total = total * 0.5 + tl.load(x + k + at)"),
        ("total += tl.load(x + k + at)", "total += tl.load(x + k + at) * tl.sum(total)"),
        ("total += tl.load(x + k + at)", "total += tl.load(x + k + at)\n        at += k"),
        ("total += tl.load(x + k + at)", "total += tl.load(x + k + at)\n        at = at + 1"),
        ("total += tl.load(x + k + at)", "total += tl.load(x + k + at)\n        tl.store(y + k, 0.0)"),
        ("total += tl.load(x + k + at)", "total += tl.load(x + k + at)\n        note(y)"),
        ("total += tl.load(x + k + at)", "total += tl.load(x + k + at)\n        last = k"),
        ("tl.store(y + at, total)", "tl.store(y + at, total + k)"),
        ("tl.store(y + at, total)", "tl.store(y + at, total + tl.program_id(1))"),
        ("tl.zeros((BLOCK,), tl.float32)", "tl.zeros((BLOCK,), tl.float16)"),
        ("tl.zeros((BLOCK,), tl.float32)", "tl.full((BLOCK,), 1.0, tl.float32)"),
        ("tl.zeros((BLOCK,), tl.float32)", "tl.zeros((BLOCK,), tl.float32)\n    total += 1"),
        ("tl.zeros((BLOCK,), tl.float32)", "tl.zeros((BLOCK,), tl.float32)\n    tl.store(y, 0.0)"),
        ("range(0, n, BLOCK)", "range(n, 0, -BLOCK)"),
        ("range(0, n, BLOCK)", "range(16, n, BLOCK)"),
        ("range(0, n, BLOCK)", "tl.range(0, n, BLOCK, loop_unroll_factor=2)"),
        ("range(0, n, BLOCK)", "tl.static_range(0, 64, BLOCK)"),
    ],
)
def test_loops_that_do_more_than_add_up_are_not_split(was: str, now: str) -> None:
    source = KERNEL.replace(was, now)
    if "last = k" in now:
        source = source.replace("y + at, total", "y + at, total + last")
    assert source != KERNEL
    assert not [step for step in made_of(HEAD + source) if step.startswith("split")]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("at = tl.program_id(0)", "if n == 0:\n        return\n    at = tl.program_id(0)"),
        ("at = tl.program_id(0)", "axis = 0\n    at = tl.program_id(axis)"),
        ("at = tl.program_id(0)", "at = tl.program_id(1)"),
        ("at = tl.program_id(0)", "at = place()"),
        ("range(0, n, BLOCK)", "range(tl.program_id(0), n, BLOCK)"),
    ],
)
def test_kernels_whose_place_is_not_theirs_alone_do_not_become_persistent(was: str, now: str) -> None:
    source = KERNEL.replace(was, now) + "\n\n@triton.jit\ndef place():\n    return tl.program_id(0)\n"
    assert not [step for step in made_of(HEAD + source) if step.startswith("persistent")]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("kernel[x.shape[0],](", "done = kernel[x.shape[0],]("),
        ("kernel[x.shape[0],](", "grid = size(x)\n    kernel[grid]("),
        ("kernel[x.shape[0],](", "kernel[grid_of(x)]("),
        ("kernel[x.shape[0],](", "kernel[lambda meta: (meta['WIDTH'],)]("),
        ("kernel[x.shape[0],](", "kernel[lambda meta: (meta.get('BLOCK'),)]("),
        ("kernel[x.shape[0],](", "sizes = (1,)\n    kernel[(*sizes,)]("),
        ("kernel[x.shape[0],](", "n = 2\n    grid = (n,)\n    n = 3\n    kernel[grid]("),
        ("kernel[x.shape[0],](", "grid = (1,)\n    for grid in [(2,)]:\n        kernel[grid]("),
        ("kernel[x.shape[0],](", "other(kernel)\n    kernel[x.shape[0],]("),
        ("kernel[x.shape[0],](", "kernel.run("),
        ("x.shape[0]", "64"),
        ("BLOCK: tl.constexpr", "BLOCK: tl.constexpr = 16"),
        ("def kernel", "@triton.heuristics({})\ndef kernel"),
        ("import torch\n", ""),
    ],
)
def test_launches_that_are_not_understood_leave_a_kernel_alone(was: str, now: str) -> None:
    source = HEAD.replace(was, now) + KERNEL.replace(was, now)
    ast.parse(source)
    assert source != HEAD + KERNEL
    assert not made_of(source)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("BLOCK=16)", "BLOCK=(16))"),
        ("BLOCK=16)", "BLOCK=(16 if x.shape[0] > 8 else 32), num_warps=(\n        4\n    ),)"),
        ("    kernel[", "    if x.numel(): kernel["),
        ("    kernel[", "    n = 1; kernel["),
        ("    kernel[", "    with torch.no_grad():\n          kernel["),
        ("    ", "  "),
        ("    ", "\t"),
        ("total += tl", "value = tl.load(x)\n        value += 1\n        total += value + tl"),
        ("total += tl", "total += (\n            value_of(\n                x, k)) + tl"),
        ("    total = tl.zeros", '    """Größe,\nohne Rand"""\n    total = tl.zeros'),
    ],
)
def test_texts_that_are_laid_out_otherwise_are_rewritten_too(was: str, now: str) -> None:
    source = HEAD + KERNEL.replace(was, now)
    ast.parse(source)
    made = made_of(source)
    assert {step.partition("@")[0] for step in made} == {"persistent", "split"}
    for text in made.values():
        compile(text, "made", "exec")


@pytest.mark.parametrize("margin", ["  ", "\t", "    "])
def test_a_call_over_several_lines_is_written_out_at_any_margin(margin: str) -> None:
    called = KERNEL.partition("\n\n\n")[0].replace(
        "    tl.store(y + at, total)", "    return (\n        total\n        + 1)"
    )
    kernel = "def sums(x, y, n, BLOCK: tl.constexpr):\n    total = kernel(x, (y\n        + 0), n, BLOCK)\n"
    kernel += "    tl.store(y, total)\n"
    launch = "\n\ndef launch(x, y):\n    sums[x.shape[0],](x, y, x.shape[0], BLOCK=16)\n"
    source = f"{HEAD}{called}\n\n\n@triton.jit\n{kernel.replace('    ', margin)}{launch}"
    ast.parse(source)
    steps = {step.partition("=")[0] for step in made_of(source)}
    # At another margin than the call's, what is called cannot stand in its place
    assert ("split@sums.k" in steps) == (margin == "    ")


def test_grids_of_the_same_name_in_other_methods_are_told_apart() -> None:
    method = "    def {}(x, y):\n        grid = ({},)\n        kernel[grid](x, y, x.shape[0], BLOCK=16)\n\n"
    launches = method.format("forward", 2) + method.format("backward", "x.shape[0]")
    made = made_of(HEAD + KERNEL.partition("def launch")[0] + "class Both:\n" + launches)
    assert "kernel[min(2, 4 * fa_units(x)),](x" in made["persistent@kernel.program_id=4"]
    assert "kernel[min((x.shape[0]), 4 * fa_units(x)),](x" in made["persistent@kernel.program_id=4"]
