"""What the survey finds in a folder of kernels, against counts by hand, and in torch's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

from calibration.evaluate.static_kernels import GRID, Folder, launches
from calibration.evaluate.survey import Description, folder_of, main, survey
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.features.launch_features import describe_call, launch_features

PROGRAMS = GRID[0] * GRID[1] * GRID[2]

PACKAGE = {
    "__init__.py": "raise RuntimeError('a package that is surveyed is never imported')\n",
    "sizes.py": "import triton.language as tl\nWIDTH = tl.constexpr(32)\n",
    "helpers.py": """
import triton
import triton.language as tl
from .sizes import WIDTH

@triton.jit
def row(pointer, place):
    return tl.load(pointer + place * WIDTH + tl.arange(0, WIDTH))
""",
    "kernels.py": """
import triton
import triton.language as tl
from pkg.sizes import WIDTH
from . import helpers

@triton.autotune(configs=[triton.Config({"BLOCK": 128}, num_warps=2), triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n), mask=at < n)

@triton.jit
def rows(x_ptr, out_ptr, count):
    total = tl.zeros((WIDTH,), tl.float32)
    for i in range(8):
        total += helpers.row(x_ptr, i)
    tl.store(out_ptr + tl.arange(0, WIDTH), total)

@triton.jit
def machine_code(x_ptr, BLOCK: tl.constexpr):
    tl.inline_asm_elementwise("mov.u32 $0, 0;", "=r", [tl.arange(0, BLOCK)], dtype=tl.int32, is_pure=True, pack=1)

@triton.jit
def never_launched(x_ptr):
    tl.store(x_ptr, 1.0)

def host(x, y, out):
    add[(1,)](x, y, out, x.numel())
    rows[(1,)](x, out, 8)
    machine_code[(1,)](x, BLOCK=64)
""",
    "kept_back.py": """
# Adapted from https://github.com/fla-org/flash-linear-attention
import triton

@triton.jit
def theirs(x_ptr):
    pass

def host(x):
    theirs[(1,)](x)
""",
    "broken.py": "def (:\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "pkg"
    root.mkdir()
    for name, text in PACKAGE.items():
        (root / name).write_text(text)
    return root


def by_name(found: list[Description]) -> dict[str, Description]:
    return {description.kernel: description for description in found}


def test_only_launched_kernels_are_counted_and_none_that_is_kept_back(package: Path) -> None:
    assert set(by_name(survey("pkg", package))) == {"add", "rows", "machine_code"}
    assert [d.kernel for d in survey("pkg", package, ["kernels.py"])] == []


def test_kernels_that_are_read_are_described_and_others_say_why_not(package: Path) -> None:
    found = by_name(survey("pkg", package))
    assert found["add"].described
    assert found["add"].tuned
    assert found["rows"].described
    assert found["rows"].trips == "known"
    assert not found["machine_code"].described
    assert found["machine_code"].why == "inline assembly"


def test_bytes_of_a_kernel_that_was_never_imported_are_those_by_hand(package: Path) -> None:
    folder = Folder(package)
    module = folder.module(package / "kernels.py")
    assert module is not None
    from calibration.evaluate.static_kernels import plausible_call

    def bytes_of(name: str) -> float:
        kernel = module.kernels[name]
        call = plausible_call(kernel, launches(folder)[kernel.file, name])
        (features,) = launch_features(kernel, describe_call(call), [{}], grid=GRID)
        return features["traffic_bytes"]

    # Two loads and a store of a block of the first config, two bytes each.
    assert bytes_of("add") == PROGRAMS * 128 * 3 * 2
    assert bytes_of("rows") == PROGRAMS * (8 + 1) * 32 * 2  # helper, its constant and the loop are all found


def test_the_kernels_that_torch_ships_are_described() -> None:
    found = survey("torch", folder_of("torch") / "sparse")
    assert {"_bsr_strided_addmm_kernel", "_sampled_addmm_kernel"} <= set(by_name(found))
    assert all(d.described for d in found)


def test_the_verb_prints_a_row_for_each_package_and_the_reasons(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(package)]) == 0
    printed = capsys.readouterr().out
    assert "pkg" in printed
    assert "inline assembly" in printed
    assert main([str(package), "--json"]) == 0
    assert {row["kernel"] for row in json.loads(capsys.readouterr().out)} == {"add", "rows", "machine_code"}


def test_a_package_that_is_not_there_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInputError, match="no package of that name"):
        folder_of("no_such_package")
    assert main(["no_such_package"]) == 2
    assert "no_such_package" in capsys.readouterr().err
