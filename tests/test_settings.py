"""Settings: read once, in one place, complained about by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forecast_autotune.errors import InvalidInputError
from forecast_autotune.settings import Settings


def test_without_variables_the_defaults_hold() -> None:
    settings = Settings.from_environment({})
    assert (settings.budget, settings.mode, settings.surrogate, settings.isolate, settings.toolchain) == (
        None,
        "tune",
        "auto",
        "auto",
        "exact",
    )
    assert settings.dir.name == "forecast_autotune"


def test_each_variable_is_read() -> None:
    settings = Settings.from_environment(
        {
            "FORECAST_AUTOTUNE_BUDGET": "10%,2s",
            "FORECAST_AUTOTUNE_MODE": "cached",
            "FORECAST_AUTOTUNE_DIR": "~/store",
            "FORECAST_AUTOTUNE_PACKS": os.pathsep.join(["/a.jsonl", "~/b.jsonl"]),
            "FORECAST_AUTOTUNE_SURROGATE": "roofline",
            "FORECAST_AUTOTUNE_ISOLATE": "0",
            "FORECAST_AUTOTUNE_TOOLCHAIN": "any",
            "FORECAST_AUTOTUNE_SYNC": "rank0",
        }
    )
    assert settings == Settings(
        budget="10%,2s",
        mode="cached",
        dir=Path("~/store").expanduser(),
        packs=(Path("/a.jsonl"), Path("~/b.jsonl").expanduser()),
        surrogate="roofline",
        isolate="0",
        toolchain="any",
        sync="rank0",
    )


@pytest.mark.parametrize("name", ["MODE", "SURROGATE", "ISOLATE", "TOOLCHAIN", "SYNC"])
def test_a_value_that_does_not_parse_is_named_with_what_is_accepted(name: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"FORECAST_AUTOTUNE_{name}='maybe': accepted are "):
        Settings.from_environment({f"FORECAST_AUTOTUNE_{name}": "maybe"})


def test_a_budget_that_does_not_parse_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"FORECAST_AUTOTUNE_BUDGET: budget '5 apples' does not parse"):
        Settings.from_environment({"FORECAST_AUTOTUNE_BUDGET": "5 apples"})


def test_the_environment_goes_before_the_code() -> None:
    assert Settings.from_environment({}, mode="first").mode == "first"
    assert Settings.from_environment({"FORECAST_AUTOTUNE_MODE": "cached"}, mode="first").mode == "cached"
    with pytest.raises(InvalidInputError, match="mode='sometimes'"):
        Settings.from_environment({}, mode="sometimes")
