"""What the attacks share: the ledger that their table is printed from."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from faults.ledger import Ledger

_LEDGER = pytest.StashKey[Ledger]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEDGER] = Ledger(whole=config.getoption("--whole-faults"))


@pytest.fixture(scope="session")
def faults(pytestconfig: pytest.Config) -> Ledger:
    return pytestconfig.stash[_LEDGER]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user reaches, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    shutil.rmtree(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        item.config.stash[_LEDGER].skipped[item.name] = report.longrepr[2].removeprefix("Skipped: ")
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ledger = config.stash[_LEDGER]
    if ledger.rows or ledger.skipped:
        terminalreporter.section("faults")
        terminalreporter.write_line(ledger.table())
        terminalreporter.write_line(ledger.summary())
