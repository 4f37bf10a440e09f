"""An upgrade that brings another fitted model: told of once, and withstood by naming the version that was there before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forecast_autotune.core.decision import Decision
from forecast_autotune.errors import TuningWarning
from forecast_autotune.evaluation.recorded_space import read_space
from forecast_autotune.frontends import deciding, kept_models
from forecast_autotune.frontends.request import make_request
from forecast_autotune.measure.replay import Replay
from forecast_autotune.store.sqlite import SqliteStore
from forecast_autotune.surrogates import prior

SPACE = read_space(next((Path(__file__).parents[2] / "calibration" / "traces").glob("gdn_chunk_fwd_h.long.*.jsonl.gz")))


@pytest.fixture(autouse=True)
def as_new(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    upgraded_to(prior.SHIPPED, monkeypatch)
    yield
    monkeypatch.undo()
    upgraded_to(prior.SHIPPED, monkeypatch)


def upgraded_to(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Another process, whose package comes with this model; its version."""
    monkeypatch.setattr(prior, "SHIPPED", shipped)
    monkeypatch.setattr(kept_models, "SHIPPED", shipped)
    prior._shipped.cache_clear()
    prior._held.cache_clear()
    kept_models._SEEN.clear()
    return prior.shipped_prior().version


def decided(folder: Path, mode: str = "cached", **settings: str) -> Decision:
    replay, environment = Replay(SPACE.recording), {"FORECAST_AUTOTUNE_DIR": str(folder)}
    acting: Any = {"compiler": replay, "measurer": replay}
    environment |= {f"FORECAST_AUTOTUNE_{name}": value for name, value in settings.items()}
    request = make_request(None, default_budget="4", mode=mode, environment=environment)
    with SqliteStore(folder) as store:
        return deciding.decide(SPACE.job, request, store=store, **acting).decision


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A model of another version, with the same forecasts."""
    path = tmp_path / "earlier.json"
    path.write_text(prior.prior_text(prior.shipped_prior(), card={"honesty_by_kind": {}}), encoding="utf-8")
    return path


@pytest.mark.parametrize("mode", ["cached", "forecast"])
def test_an_upgrade_is_told_of_once_and_can_be_gone_back_on(
    tmp_path: Path, earlier: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, mode: str
) -> None:
    new_file, folder = prior.SHIPPED, tmp_path / "store"
    old = upgraded_to(earlier, monkeypatch)
    before = decided(folder, mode)
    assert (before.basis, before.model) == ("forecast", old)
    assert not recwarn.list
    new = upgraded_to(new_file, monkeypatch)
    with pytest.warns(TuningWarning, match=f"by the model {new}; {old} .*FORECAST_AUTOTUNE_MODEL={old} keeps"):
        assert decided(folder, mode).model == new
    upgraded_to(new_file, monkeypatch)
    assert decided(folder, mode).model == new
    recwarn.clear()
    assert decided(folder, mode, MODEL=old).model == old
    assert not recwarn.list, "told of once, and the version held is here"


def test_a_kept_model_that_is_not_what_its_name_says_decides_nothing(
    tmp_path: Path, earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_file, folder = prior.SHIPPED, tmp_path / "store"
    old = upgraded_to(earlier, monkeypatch)
    decided(folder)
    kept = folder / "models" / f"{old}.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.read_bytes() == earlier.read_bytes()
    kept.write_text(earlier.read_text().replace('"card"', ' "card"', 1))
    upgraded_to(new_file, monkeypatch)
    with pytest.warns(TuningWarning, match=f"{old}.json holds .* which is not what its name says.*run their first"):
        assert decided(folder, MODEL=old).basis == "default"


def test_a_model_is_kept_only_where_it_decided_and_a_store_is(tmp_path: Path) -> None:
    measured = decided(tmp_path / "measured", "tune", BUDGET="2")
    assert measured.basis == "measured"
    assert not (tmp_path / "measured" / "models").exists()
    unmeasured = decided(tmp_path / "kept")
    kept_models._SEEN.clear()
    kept_models.keep_model(tmp_path / "absent", unmeasured)
    assert not (tmp_path / "absent").exists()


def test_a_folder_that_cannot_be_written_to_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "models").write_text("no folder")
    assert decided(folder).basis == "forecast"
