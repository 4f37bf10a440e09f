"""When two outputs agree."""

from __future__ import annotations

import pytest
import torch

from forecast_autotune.errors import InvalidInputError
from forecast_autotune.measure.checks import check_name, disagreement, validate


def test_a_sum_in_another_order_passes_and_a_wrong_element_does_not() -> None:
    a, b = torch.randn(200, 3000), torch.randn(3000, 200)
    right = a @ b
    reordered = sum(a[:, k : k + 500] @ b[k : k + 500] for k in range(0, 3000, 500))
    assert disagreement("allclose", [reordered], [right]) is None
    wrong = right.clone()
    wrong[3, 4] += 0.1
    assert "1 of 40000 elements" in str(disagreement("allclose", [wrong], [right]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_one_rounding_passes_in_every_dtype(dtype: torch.dtype) -> None:
    right = torch.randn(100).to(dtype)
    epsilon = torch.finfo(dtype).eps
    assert disagreement("allclose", [right * (1 + epsilon)], [right]) is None
    assert disagreement("allclose", [right * 1.5], [right])


def test_bitexact_tells_minus_zero_and_nan_payloads_apart() -> None:
    assert disagreement("bitexact", [torch.tensor([-0.0])], [torch.tensor([0.0])])
    assert disagreement("bitexact", [torch.tensor([float("nan")])], [torch.tensor([float("nan")])]) is None


def test_nan_and_infinity_agree_with_themselves_only() -> None:
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    assert disagreement("allclose", [odd.clone()], [odd]) is None
    assert disagreement("allclose", [torch.tensor([0.0, float("inf"), 1.0])], [odd])
    assert disagreement("allclose", [torch.tensor([float("nan"), 1e38, 1.0])], [odd])


def test_integers_must_be_equal() -> None:
    assert disagreement("allclose", [torch.tensor([1, 2])], [torch.tensor([1, 3])])


def test_shapes_dtypes_and_counts_must_agree() -> None:
    assert "float32[2], the default's float32[3]" in str(disagreement("allclose", [torch.ones(2)], [torch.ones(3)]))
    assert disagreement("allclose", [torch.ones(2)], [torch.ones(2).half()])
    assert "0 outputs" in str(disagreement("allclose", [], [torch.ones(2)]))


def test_none_lets_everything_pass() -> None:
    assert disagreement(None, [torch.ones(1)], [torch.zeros(9)]) is None


@pytest.mark.parametrize("check", ["close", 3, ["allclose"]])
def test_an_unknown_check_is_refused(check: object) -> None:
    with pytest.raises(InvalidInputError, match="accepted are 'allclose', 'bitexact'"):
        validate(check)  # type: ignore[arg-type]


def test_each_check_has_a_name_and_none_has_none() -> None:
    class Own:
        def __call__(self, got: object, expected: object) -> bool:
            return True

    assert [check_name(check) for check in (None, "allclose", "bitexact")] == ["", "allclose", "bitexact"]
    assert check_name(torch.allclose).endswith("allclose")
    assert check_name(test_each_check_has_a_name_and_none_has_none).endswith(
        "test_checks.test_each_check_has_a_name_and_none_has_none"
    )
    assert check_name(Own()).endswith("<locals>.Own")
