from __future__ import annotations

import pytest

from forecast_autotune.core.space import ROLES
from forecast_autotune.features.knob_roles import is_depth, role_of_name, roles_by_name


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("threads", "num_warps THREADS threads_per_block block_size_x BLOCK_SIZE blockDim_y work_group_size WORKGROUP"),
        ("threads", "local_size_0 MDIMC NDIMC wg_size"),
        ("tile", "BLOCK_M BLOCK_SIZE_N BLOCK_SIZE_K tile_size_y BM BK2 TILE CHUNK MWG KWG thread_m items_per_thread"),
        ("tile", "elements_per_thread PIXELS"),
        ("stages", "num_stages PIPELINE buffers"),
        ("unroll", "UNROLL loop_unroll_factor_channel KWI"),
        ("vector", "vec VEC VECTOR vector_width VWM VWN"),
        ("order", "GROUP_SIZE_M GROUP_M loop_order SWIZZLE tile_stride_x MDIMA"),
        ("algorithm", "SPLIT_K algo persistent variant source method"),
        ("flag", "use_padding USE_FAST_MATH read_only SA STRM"),
        (None, "x alpha MATH border_mode K width"),
    ],
)
def test_the_words_of_kernels_and_tuners_tell_a_role(role: str | None, names: str) -> None:
    assert role in (*ROLES, None)
    assert {name: role_of_name(name) for name in names.split()} == dict.fromkeys(names.split(), role)


def test_a_blocks_size_is_one_of_elements_where_warps_are_counted() -> None:
    assert roles_by_name(["BLOCK_SIZE", "num_warps"]) == {"BLOCK_SIZE": "tile", "num_warps": "threads"}
    assert roles_by_name(["BLOCK_SIZE", "warps_per_block_size"])["warps_per_block_size"] == "threads"
    assert roles_by_name(["BLOCK_SIZE", "x"]) == {"BLOCK_SIZE": "threads"}


def test_the_axis_summed_over_is_not_taken_from_words_that_end_alike() -> None:
    for name in ("BLOCK_K", "BLOCK_SIZE_K", "BK", "KWG", "k_tile", "tileK", "K"):
        assert is_depth(name), name
    for name in ("BLOCK", "block", "CHUNK", "BLOCK_M", "BN", "kernel_tile"):
        assert not is_depth(name), name
