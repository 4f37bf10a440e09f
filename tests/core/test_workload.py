from __future__ import annotations

import pytest

from forecast_autotune.core.workload import Program, Workload, key_parts


def tensor(dtype: str, shape: list[int], stride: list[int]) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "stride": stride}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (4096, "4096"),
        (True, "True"),
        ("torch.bfloat16", "bf16"),
        ("float8_e4m3fn", "f8_e4m3fn"),
        ("my_float32", "my_float32"),
        ([1, 2], "[1, 2]"),
        (tensor("float32", [512, 64], [64, 1]), "f32[512x64]"),
        (tensor("int8", [512, 64], [1, 512]), "i8[512x64]:1,512"),
        (tensor("uint8", [1, 64], [9, 1]), "u8[1x64]"),
        (tensor("complex64", [], []), "c64[]"),
        ({"dtype": "float16", "shape": [8]}, "f16[8]"),
        ({"dtype": "float16", "shape": "odd"}, "{'dtype': 'float16', 'shape': 'odd'}"),
    ],
)
def test_a_part_of_a_key_is_shown_shortly(value: object, shown: str) -> None:
    assert key_parts({"x": value}) == {"x": shown}


def test_dtypes_are_named_once_where_all_are_the_same() -> None:
    assert key_parts({"dtypes": {"a": "torch.float16", "b": "torch.float16"}}) == {"dtypes": "f16"}
    assert key_parts({"dtypes": {"a": "torch.float16", "b": "torch.int32"}}) == {"dtypes": "f16,i32"}
    assert key_parts({"dtypes": "float16,float16"}) == {"dtypes": "float16,float16"}


def test_a_workload_is_named_by_its_program_and_its_short_key() -> None:
    program = Program(name="scale", language="triton", source="")
    workload = Workload(program=program, key={"n": 64, "dtypes": {"x": "torch.float32"}})
    assert str(workload) == "scale(n=64, dtypes=f32)"
