"""Sheets of GPUs that are not here: found under the names people use, complete, and consistent with each other."""

from __future__ import annotations

import pytest

from forecast_autotune.core.hardware import Hardware
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.features.hardware_sheets import (
    SHEETS,
    device_properties,
    hardware_named,
    same_product,
    sheet_for,
    target_of,
    targets,
)

WITHOUT_MATRIX_UNITS = ("6.0", "gfx906", "gfx1030", "gfx1032")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("cuda:90", "NVIDIA H100 80GB HBM3"),
        ("cuda:sm_90a", "NVIDIA H100 80GB HBM3"),
        ("cuda:80", "NVIDIA A100-SXM4-80GB"),
        ("cuda:100", "NVIDIA B200"),
        ("hip:gfx942", "AMD Instinct MI300X"),
        ("gfx90a", "AMD Instinct MI250X"),
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("h200", "NVIDIA H200"),
        ("A100 40GB", "NVIDIA A100-SXM4-40GB"),
        ("a10", "NVIDIA A10"),
        ("RTX4090", "NVIDIA GeForce RTX 4090"),
        ("rtx a4000", "NVIDIA RTX A4000"),
        ("MI300X", "AMD Instinct MI300X"),
        ("W6600", "AMD Radeon PRO W6600"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
    ],
)
def test_a_sheet_is_found_under_the_names_people_use(asked: str, name: str) -> None:
    assert sheet_for(asked).name == name


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("H10", "NVIDIA H100 80GB HBM3"),
        ("H1000", "NVIDIA H100 80GB HBM3"),
        ("RTX 4900", "NVIDIA GeForce RTX 4090"),
        ("mi300", "AMD Instinct MI300X"),
        ("Tesla T40", "Tesla T4"),
        ("cuda:91", "cuda:90"),
        ("gfx943", "hip:gfx942"),
    ],
)
def test_an_unknown_target_is_refused_with_the_nearest_ones(asked: str, nearest: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        sheet_for(asked)
    assert str(refusal.value).startswith(f"no hardware sheet for {asked!r}: did you mean {nearest}")
    assert str(refusal.value).count(",") <= 2


@pytest.mark.parametrize("asked", ["", "nonsense", "Apple M1"])
def test_a_target_like_no_other_is_refused_with_examples(asked: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"such as H100, .* or one of the targets cuda:60, .*hip:gfx942"
    ) as refusal:
        sheet_for(asked)
    assert repr(asked) in str(refusal.value)


def test_every_sheet_is_complete_and_found_by_its_own_name() -> None:
    assert len({s.name for s in SHEETS}) == len(SHEETS)
    for sheet in SHEETS:
        assert sheet_for(sheet.name) is sheet
        assert min(sheet.units, sheet.memory_gib, sheet.shared_bytes, sheet.max_threads, sheet.power_limit_w) > 0
        assert min(sheet.bandwidth_gb_per_s, sheet.peak_gflops) > 0
        assert (sheet.peak_tensor_gflops == 0) == (sheet.capability in WITHOUT_MATRIX_UNITS)
        assert sheet_for(target_of(sheet)).capability == sheet.capability


def test_a_sheets_peaks_follow_from_its_units_at_a_plausible_clock() -> None:
    # Lanes that multiply and add in float32, per unit and cycle; AMD's CDNA 3 and 4 issue two of them at once.
    lanes = {"7.5": 64, "8.0": 64, "8.6": 128, "8.9": 128, "9.0": 128, "10.0": 128, "12.0": 128}
    lanes |= {"6.0": 64, "7.0": 64, "gfx906": 64, "gfx1030": 64, "gfx1032": 64}
    lanes |= {"gfx908": 64, "gfx90a": 64, "gfx942": 128, "gfx950": 128, "gfx1100": 128}
    for sheet in SHEETS:
        clock_ghz = sheet.peak_gflops / (2 * sheet.units * lanes[sheet.capability])
        assert 1.2 < clock_ghz < 3.0, (sheet.name, clock_ghz)
        assert sheet.peak_tensor_gflops == 0 or sheet.peak_tensor_gflops / sheet.peak_gflops >= 1.9


def test_properties_bear_the_names_that_tritons_drivers_use() -> None:
    assert device_properties(sheet_for("H100")) == {
        "max_shared_mem": 232448,
        "max_num_regs": 65536,
        "max_threads": 1024,
        "multiprocessor_count": 132,
        "warpSize": 32,
    }
    assert device_properties(sheet_for("MI300X"))["warpSize"] == 64


def test_a_sheet_is_no_part_of_the_hardwares_identity() -> None:
    one = sheet_for("H100")
    other = Hardware(**{**one.identity, "peak_tensor_gflops": 1.0})  # type: ignore[arg-type]
    assert one == other
    assert one.digest == other.digest


def test_targets_come_without_duplicates() -> None:
    assert targets(SHEETS).count("cuda:90") == 1
    with pytest.raises(InvalidInputError, match="no GPU has"):
        target_of(Hardware(kind="cpu", name="a CPU", capability="x86_64 avx2"))


@pytest.mark.parametrize(
    ("name", "sheet"),
    [
        ("A100", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB"),
        ("a4000", "NVIDIA RTX A4000"),
        ("A6000", "NVIDIA RTX A6000"),
        ("MI250X", "AMD Instinct MI250X"),
        ("AMD Radeon PRO W6600", "AMD Radeon PRO W6600"),
        ("W7800", "AMD Radeon PRO W7800"),
        ("GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti"),
    ],
)
def test_hardware_known_by_name_has_its_sheets_figures_and_keeps_its_name(name: str, sheet: str) -> None:
    found, known = hardware_named(name), sheet_for(sheet)
    assert found.name == name
    for figure in ("kind", "capability", "units", "warp_size", "max_threads", "shared_bytes", "l2_bytes"):
        assert getattr(found, figure) == getattr(known, figure) != 0
    assert found.bandwidth_gb_per_s == known.bandwidth_gb_per_s > 0
    assert (found.peak_gflops, found.peak_tensor_gflops) == (known.peak_gflops, known.peak_tensor_gflops)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("unknown", "cuda"),
        ("NVIDIA Thing 9000", "cuda"),
        ("8.0", "cuda"),
        ("MI999", "hip"),
        ("W6900X", "hip"),
        ("Radeon VII", "hip"),
        ("AMD EPYC 9354 32-Core Processor", "cpu"),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "cpu"),
        ("x86_64", "cpu"),
    ],
)
def test_hardware_without_a_sheet_has_the_kind_of_its_name_and_no_figures(name: str, kind: str) -> None:
    assert hardware_named(name) == Hardware(kind=kind, name=name)
    assert hardware_named(name).bandwidth_gb_per_s == hardware_named(name).shared_bytes == 0


def test_an_architectures_name_brings_only_what_holds_for_all_of_it() -> None:
    found = hardware_named("gfx90a:sramecc+:xnack-")
    assert (found.kind, found.capability, found.warp_size, found.shared_bytes) == ("hip", "gfx90a", 64, 65536)
    assert found.units == found.bandwidth_gb_per_s == 0
    assert hardware_named("gfx803").kind == "hip"


def test_a_short_name_may_be_that_of_each_product_with_its_words() -> None:
    assert same_product("A100", "NVIDIA A100-SXM4-80GB")
    assert same_product("NVIDIA A100-SXM4-80GB", "A100_SXM4")
    assert not same_product("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB")
    assert not same_product("A100", "NVIDIA A10")
    assert not same_product("MI250", "MI250X")
