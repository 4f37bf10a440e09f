"""What every test shares: a store of its own, and one small real extension, built once a session."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from toy import Toy


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-faults", action="store_true", help="attack as often and as long as `make test-faults` does"
    )


def pytest_configure() -> None:
    """Heed Ctrl-C, and have child processes heed it: a shell has what it starts in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No setting of the person running the tests reaches them, and each test has a store folder of its own."""
    import os

    for name in list(os.environ):
        if name.startswith("FORECAST_AUTOTUNE_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "forecast_autotune"
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A C++ extension with variants of every kind, the bad ones included; its binding is compiled once a session."""
    return Toy(tmp_path_factory.mktemp("builds"))
