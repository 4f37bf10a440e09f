"""Importing the package stays light."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version

import pytest

HEAVY = ("torch", "triton", "numpy", "sqlite3", "rich", "platformdirs", "filelock")


STATEMENTS = ("import forecast_autotune", "import forecast_autotune.cli", "from forecast_autotune import Space")


@pytest.mark.parametrize("statement", STATEMENTS)
def test_importing_pulls_in_nothing_heavy(statement: str) -> None:
    program = f"import sys; {statement}; print(sorted(set({HEAVY}) & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_every_public_name_resolves() -> None:
    import forecast_autotune as fa

    for name in fa.__all__:
        assert getattr(fa, name) is not None
    assert set(fa.__all__) <= set(dir(fa))
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        fa.missing  # noqa: B018


def test_all_that_is_raised_or_warned_of_is_public() -> None:
    import forecast_autotune as fa
    from forecast_autotune import errors

    kinds = [name for name, value in vars(errors).items() if inspect.isclass(value)]
    assert [name for name in kinds if getattr(fa, name, None) is not getattr(errors, name)] == []


def test_the_version_is_that_of_the_installed_package() -> None:
    import forecast_autotune as fa

    assert fa.__version__ == version("forecast-autotune")
