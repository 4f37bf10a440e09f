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


def test_a_mask_sets_no_tolerance_for_what_is_not_masked() -> None:
    right = torch.randn(64, 64).masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -1e9)
    wrong = torch.zeros(64, 64).masked_fill(right == -1e9, -1e9)
    assert disagreement("allclose", [wrong], [right])
    assert disagreement("allclose", [right * (1 + 1e-6)], [right]) is None
    shifted = right.clone()
    shifted[0, 0], shifted[0, 1] = -1e9, right[0, 0]
    assert "2 of 4096" in str(disagreement("allclose", [shifted], [right]))


@pytest.mark.parametrize(("mask", "dtype"), [(-1e4, torch.float16), (-1e4, torch.float32), (-1e9, torch.float64)])
def test_a_mask_that_was_added_to_the_values_sets_no_tolerance(mask: float, dtype: torch.dtype) -> None:
    hidden = torch.rand(64, 64) < 0.8
    right = (torch.randn(64, 64) + mask * hidden).to(dtype)
    wrong = torch.where(hidden, right, right + 0.1)
    assert disagreement("allclose", [wrong], [right])
    assert disagreement("allclose", [right * (1 + torch.finfo(dtype).eps)], [right]) is None


@pytest.mark.parametrize("shape", [(4096,), (64, 64)])
def test_a_single_outlier_sets_no_tolerance_for_the_rest(shape: tuple[int, ...]) -> None:
    right = torch.randn(4096)
    right[7] = -1e9
    right = right.view(shape)
    wrong = torch.where(right == -1e9, right, torch.zeros(()))
    assert disagreement("allclose", [wrong], [right])
    assert disagreement("allclose", [right * (1 + 1e-6)], [right]) is None


def test_each_row_is_held_to_its_own_scale() -> None:
    right = torch.randn(32, 64) * torch.logspace(0, 4, 32)[:, None]
    wrong = right.clone()
    wrong[0] += 0.05
    assert disagreement("allclose", [wrong], [right])
    assert disagreement("allclose", [right + 1e-5 * right.abs().mean(1, keepdim=True)], [right]) is None


def test_reordered_sums_pass_where_rows_are_sparse_short_or_cancel_out() -> None:
    x = torch.randn(64, 4096, dtype=torch.float64)
    for right, other in (
        (x.float().sum(1, keepdim=True), x.float().flip(1).sum(1, keepdim=True)),
        ((x - x.roll(1, 1)).float().cumsum(1), (x - x.roll(1, 1)).cumsum(1).float()),
        (torch.softmax(30 * x.float(), 1), torch.softmax(30 * x, 1).float()),
        (torch.relu(x.float()) @ torch.eye(4096)[:, :16], (torch.relu(x) @ torch.eye(4096).double()[:, :16]).float()),
    ):
        assert disagreement("allclose", [other], [right]) is None


def test_masks_are_counted_apart_from_values() -> None:
    right = torch.tensor([1.0, float("-inf"), 2.0, float("nan")])
    wrong = torch.tensor([1.0, 5.0, 2.5, float("nan")])
    message = str(disagreement("allclose", [wrong], [right]))
    assert "2 of 4 elements differ, 1 in being infinite or no number, by up to 0.5" in message


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_8_bits_are_compared(dtype: torch.dtype) -> None:
    right = torch.randn(100).to(dtype)
    assert disagreement("allclose", [right.clone()], [right]) is None
    assert disagreement("allclose", [(right.float() * 2 + 1).to(dtype)], [right])


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
