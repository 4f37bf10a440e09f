"""The model of Inductor's candidates, and the recording that it was fitted on."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from calibration.fit.products import RECORDED, Recorded, fit, losses, read_recorded  # noqa: E402
from calibration.tiles import short_list  # noqa: E402
from forecast_autotune.errors import InvalidInputError  # noqa: E402
from forecast_autotune.surrogates.prior import products_prior  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


KINDS = ["products", "products_fp8"]


@cache
def some(kind: str = "products") -> list[Recorded]:
    (path,) = RECORDED.glob(f"{kind}.*.jsonl.gz")
    return list(itertools.islice(read_recorded(path), 24))


@pytest.mark.parametrize(
    ("dtype", "theirs"), [("bf16", "CUDAConfigHeuristic"), ("fp8", "CUDAScaledMMTemplateConfigHeuristic")]
)
def test_the_short_list_is_inductors(dtype: str, theirs: str) -> None:
    heuristics = pytest.importorskip("torch._inductor.template_heuristics.triton")
    listed = {
        (c.block_m, c.block_n, c.block_k, c.num_stages, c.num_warps) for c in getattr(heuristics, theirs)().mm_configs
    }
    assert set(short_list(dtype)) == listed


@pytest.mark.parametrize("kind", KINDS)
def test_no_recorded_config_was_faster_than_its_bound(kind: str) -> None:
    for each in some(kind):
        for features, us in zip(each.job.static_features, each.times_us, strict=True):
            assert features["us_bound"] <= us, each.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_fitted_on_other_shapes_beats_the_first_config_listed(kind: str) -> None:
    fitted, others = some(kind)[::2], some(kind)[1::2]
    pairs = {each.pair for each in fitted}
    prior = fit(fitted, trees=4)
    scores = [losses(each, prior) for each in others if each.pair not in pairs]
    assert sum(score["4"] for score in scores) < sum(score["library"] for score in scores)
    assert sum(score["8"] for score in scores) <= sum(score["4"] for score in scores)


def test_a_recording_says_by_its_name_on_which_gpu_it_was_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"mine\.jsonl\.gz: .*products\.NVIDIA_H200\.jsonl\.gz"):
        next(read_recorded(tmp_path / "mine.jsonl.gz"))


def test_the_shipped_model_says_how_it_does_on_what_was_left_out() -> None:
    left_out = products_prior().card["left_out"]
    assert (
        left_out["4"]["over_max_autotune"]
        < 1
        < left_out["0"]["over_max_autotune"]
        < left_out["library"]["over_max_autotune"]
    )


def test_fp8_matches_max_autotune_compiling_for_less_than_half_of_products() -> None:
    card = products_prior(fp8=True).card
    assert card["library_sure"] > 0.5
    assert card["left_out"]["4 unsure"]["over_max_autotune"] < 1.002
    assert (
        card["left_out"]["4 unsure"]["worst_over_max_autotune"] < card["left_out"]["library"]["worst_over_max_autotune"]
    )
    assert products_prior(fp8=True).version != products_prior().version
