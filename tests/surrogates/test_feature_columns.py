from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from recorded import HERE, job_of, recording

from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.space import Space
from forecast_autotune.surrogates.feature_columns import (
    LAUNCH_FEATURES,
    UNKNOWN,
    RoleFeatures,
    launch_columns,
    role_features,
)


def read_roles(
    configs: Sequence[Mapping[str, Any]], *, hardware: Hardware = HERE, roles: Mapping[str, str] | None = None
) -> RoleFeatures:
    return role_features(replace(job_of(recording()), space=Space(configs, roles=roles), hardware=hardware))


def octaves(column: Any) -> list[float] | None:
    return None if column is None else [2.0**value for value in column]


# By roles ---------------------------------------------------------------------------------------------------------------


def test_a_triton_matmul_counts_warps_and_elements_of_a_block() -> None:
    configs = [
        {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 8, "num_warps": w, "num_stages": 3}
        for m, n, k, w in ((128, 64, 32, 4), (64, 64, 128, 8), (128, 256, 64, 8))
    ]
    found = read_roles(configs)
    assert octaves(found.threads) == pytest.approx([128, 256, 256])
    assert octaves(found.work) == pytest.approx([64, 16, 128])  # 128 x 64 / 128 and so on: depth makes no output
    assert found.across is None
    assert found.vector is None
    assert found.ragged is not None
    assert found.ragged.tolist() == [0, 0, 0]


def test_warps_are_as_wide_as_the_hardwares() -> None:
    hip = Hardware(kind="hip", name="w", warp_size=64)
    configs = [{"BLOCK_SIZE": 1024, "num_warps": 4}, {"BLOCK_SIZE": 2048, "num_warps": 8}]
    assert octaves(read_roles(configs, hardware=hip).threads) == pytest.approx([256, 512])
    assert octaves(read_roles(configs, hardware=hip).work) == pytest.approx([4, 4])


def test_a_cuda_block_of_threads_with_tiles_for_each_thread() -> None:
    configs = [
        {"block_size_x": x, "block_size_y": y, "tile_size_x": t, "tile_size_y": u, "use_padding": 1, "read_only": 0}
        for x, y, t, u in ((16, 16, 1, 2), (32, 4, 4, 4), (48, 3, 8, 1))
    ]
    found = read_roles(configs)
    assert octaves(found.threads) == pytest.approx([256, 128, 144])
    assert octaves(found.across) == pytest.approx([16, 32, 48])
    assert octaves(found.work) == pytest.approx([2, 16, 8])
    assert found.ragged is not None
    assert found.ragged.tolist() == [0, 0, 1]


def test_a_cuda_gemm_whose_tiles_alone_say_how_many_threads_a_block_has() -> None:
    configs = [
        {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 8, "THREAD_M": a, "THREAD_N": b}
        for m, n, a, b in ((64, 64, 4, 4), (128, 64, 8, 4))
    ]
    found = read_roles(configs)
    assert octaves(found.threads) == pytest.approx([256, 256])
    assert octaves(found.work) == pytest.approx([16, 32])


def test_a_clblast_gemm_has_its_threads_in_mdimc_and_ndimc() -> None:
    configs = [
        {"MWG": m, "NWG": n, "KWG": 32, "MDIMC": a, "NDIMC": b, "MDIMA": a, "NDIMB": b, "VWM": v, "VWN": 2, "SA": 1}
        for m, n, a, b, v in ((64, 64, 8, 8, 1), (128, 64, 16, 8, 4))
    ]
    found = read_roles(configs)
    assert octaves(found.threads) == pytest.approx([64, 128])
    assert octaves(found.work) == pytest.approx([64, 64])
    assert octaves(found.vector) == pytest.approx([2, 8])


def test_a_block_that_is_one_axis_long_is_no_depth() -> None:
    assert octaves(read_roles([{"BLOCK": n, "num_warps": 4} for n in (512, 1024)]).work) == pytest.approx([4, 8])


def test_numbers_written_as_text_are_numbers() -> None:
    assert octaves(read_roles([{"THREADS": n} for n in ("64", "128")]).threads) == pytest.approx([64, 128])


def test_a_knob_that_is_not_there_for_a_variant_counts_as_one() -> None:
    assert octaves(read_roles([{"num_warps": n} for n in (None, 4)]).threads) == pytest.approx([32, 128])


def test_values_that_are_no_numbers_tell_nothing() -> None:
    for values in (["wide", "narrow"], [True, False], [None, "8 by 8"]):
        found = read_roles([{"THREADS": v, "TILE": v} for v in values])
        assert (found.threads, found.work) == (None, None)


def test_tags_go_before_names_and_odd_names_tell_nothing() -> None:
    found = read_roles([{"x": n, "THREADS": 64} for n in (2, 4)], roles={"x": "vector", "THREADS": "stages"})
    assert octaves(found.vector) == pytest.approx([2, 4])
    assert found.threads is None
    assert read_roles([{"p": 2, "q": 3}, {"p": 4, "q": 3}]) == RoleFeatures(None, None, None, None, None)


def test_numbers_that_no_size_has_are_borne() -> None:
    found = read_roles([{"THREADS": n, "TILE": n} for n in (0, -5, 10**400, 2)])
    assert found.threads is not None
    assert np.isfinite(found.threads).all()


# By launches ------------------------------------------------------------------------------------------------------------

TOLD = {
    "us_bound": 7.5,
    "threads": 128.0,
    "programs": 320.0,
    "blocks_per_unit": 8.0,
    "tile_m": 64.0,
    "tile_n": 16.0,
    "loaded_bytes": 4096.0,
    "wave_tail": 0.25,
}
DEVICE = replace(HERE, units=80)


def feature(found: Any, row: int, name: str) -> float:
    return float(found[row, LAUNCH_FEATURES.index(name)])


def test_a_launch_in_octaves_per_unit_and_against_the_default() -> None:
    found = launch_columns([TOLD, {**TOLD, "us_bound": 31.5, "threads": 256.0}], DEVICE)
    assert found.shape == (2, len(LAUNCH_FEATURES))
    assert feature(found, 0, "bound") == 3.0  # 7.5 + 0.5 us
    assert feature(found, 0, "threads") == 7.0
    assert feature(found, 0, "programs") == feature(found, 0, "least_programs") == 2.0  # four for each of 80 units
    assert feature(found, 0, "occupancy") == 0.5  # 8 x 128 of 2048
    assert feature(found, 0, "in_flight") == -2.0  # 128 x 320 of 80 x 2048
    assert feature(found, 0, "shorter_side") == 4.0
    assert feature(found, 0, "loaded_per_thread") == 5.0
    assert feature(found, 0, "tail") == 0.25
    assert feature(found, 0, "launches") == 1.0
    assert feature(found, 0, "atomics") == 0.0
    assert [feature(found, 1, f"{n}_over_default") for n in ("bound", "threads", "tile_m")] == [2.0, 1.0, 0.0]
    assert [feature(found, row, "bound_over_least") for row in (0, 1)] == [0.0, 2.0]
    assert [feature(found, row, "in_flight_under_most") for row in (0, 1)] == [-1.0, 0.0]
    assert not [name for name in LAUNCH_FEATURES if name.endswith("_over_default") and feature(found, 0, name)]


def test_a_missing_feature_ranks_below_any_value() -> None:
    found = launch_columns([TOLD, {}, {"us_bound": 0.0, "atomic_bytes": 4.0}], DEVICE)
    assert feature(found, 0, "stages") == feature(found, 1, "bound") == feature(found, 1, "threads") == UNKNOWN
    assert feature(found, 2, "bound") == -1.0  # half a microsecond: what a launch takes anyway
    assert feature(found, 2, "atomics") == 1.0
    assert np.isfinite(found).all()


def test_the_first_described_config_stands_in_for_an_undescribed_default() -> None:
    found = launch_columns([{}, TOLD, {**TOLD, "threads": 512.0}], DEVICE)
    assert [feature(found, row, "threads_over_default") for row in (1, 2)] == [0.0, 2.0]


def test_devices_of_unknown_size_and_no_configs_at_all_are_borne() -> None:
    assert np.isfinite(launch_columns([TOLD], Hardware(kind="cuda", name="?"))).all()
    assert np.isfinite(launch_columns([{}], DEVICE)).all()


def test_what_a_unit_has_on_its_way_and_how_products_fit_its_instructions() -> None:
    pipelined = {
        **TOLD,
        "num_stages": 4.0,
        "trips": 16.0,
        "registers": 64.0,
        "stored_bytes": 1023.0,
        "elementwise": 0.0,
    }
    half = {**pipelined, "threads": 64.0, "tile_m": 32.0, "num_stages": 1.0, "trips": 0.0}
    found = launch_columns([pipelined, half, {**TOLD, "num_stages": 3.0}], DEVICE)
    assert 2.0 ** feature(found, 0, "bytes_ahead") == pytest.approx(
        4096 / 16 * 3 * 8
    )  # of 8 blocks, 3 turns of the loop
    assert 2.0 ** feature(found, 1, "bytes_ahead") == pytest.approx(4096 * 8)
    assert [feature(found, row, "warp_group") for row in (0, 1)] == [1.0, 0.0]
    assert [feature(found, row, "product_per_warp") for row in (0, 1)] == [8.0, 8.0]
    assert [feature(found, row, "instruction") for row in (0, 1)] == [10.0, 9.0]
    assert 2.0 ** feature(found, 0, "registers_taken") == pytest.approx(1.0)  # 8 x 128 x 64 of 65,536
    assert [feature(found, row, "warps") for row in (0, 1)] == [5.0, 4.0]
    assert [feature(found, row, "stages_used") for row in (0, 1, 2)] == [4.0, 1.0, 1.0]
    assert feature(found, 0, "stored") == 10.0
    assert feature(found, 0, "arithmetic_per_thread") == 0.0


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), -8.0, 1e308])
def test_infinite_and_negative_descriptions_give_finite_features(value: float) -> None:
    names = (*TOLD, "num_stages", "trips", "registers", "stored_bytes", "elementwise", "us_memory", "traffic_bytes")
    for told in ([{**TOLD, name: value} for name in names], [dict.fromkeys(names, value)] * 2):
        assert np.isfinite(launch_columns(told, DEVICE)).all()
