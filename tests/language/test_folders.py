"""What a model's folder tells of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from forecast_autotune.errors import MissingExtraError
from forecast_autotune.language.folders import Adapter, adapter_in, state_of
from forecast_autotune.language.in_transformers import TransformersModel
from forecast_autotune.language.in_vllm import VllmModel
from forecast_autotune.language.model import ModelError


def test_a_folders_state_changes_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("1")
    states = [state_of(str(tmp_path))]
    os.utime(tmp_path / "weights", ns=(0, 5))
    states.append(state_of(str(tmp_path)))
    (tmp_path / "weights").write_text("22")
    states.append(state_of(str(tmp_path)))
    (tmp_path / "tokenizer").touch()
    states.append(state_of(str(tmp_path)))
    assert len(set(states)) == 4
    assert states[-1] == state_of(str(tmp_path))


def test_what_is_no_folder_has_no_state(tmp_path: Path) -> None:
    assert state_of("Qwen/Qwen3-0.6B") == state_of(str(tmp_path / "nothing")) == state_of("") == ""


def test_an_adapter_names_its_base_and_its_largest_rank(tmp_path: Path) -> None:
    assert adapter_in(str(tmp_path)) is None
    said = {"base_model_name_or_path": "/base", "r": 8, "rank_pattern": {"q": 32}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    assert adapter_in(str(tmp_path)) == Adapter(base="/base", rank=32)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "5", "{}", '{"base_model_name_or_path": null, "r": 8}', '{"base_model_name_or_path": "b", "r": "8"}'],
)
def test_an_adapter_that_does_not_say_what_it_changes_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    for model in (TransformersModel(str(tmp_path)), VllmModel(str(tmp_path))):
        with pytest.raises((ModelError, MissingExtraError)):
            model.open(until=time.monotonic() + 10)
    with pytest.raises(ModelError, match="does not describe an adapter"):
        adapter_in(str(tmp_path))


def test_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "vllm", None)
    for model, extra in ((TransformersModel("tiny"), "hf"), (VllmModel("tiny"), "vllm")):
        with pytest.raises(MissingExtraError, match=rf"pip install 'forecast-autotune\[{extra}\]'"):
            model.open(until=time.monotonic() + 10)
        with pytest.raises(ModelError, match="no time left"):
            model.open(until=time.monotonic())
