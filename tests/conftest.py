"""What every test shares: a store of its own, and one small real extension, built once a session."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from toy import Toy

if "PYTEST_XDIST_WORKER" in os.environ:
    # Tests that time run beside others: OpenMP's threads that spin while they wait stall a sample for milliseconds (7 us to
    # 60 ms seen). Their number is left alone, for it is part of a variant's key.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


if shutil.which("nvcc") is None and (_nvidia := importlib.util.find_spec("nvidia")) is not None:
    # The one that comes with the tools of development: tests compile for GPUs that are not here.
    _folders = [
        str(folder) for place in _nvidia.submodule_search_locations or () for folder in Path(place).glob("cu*/bin")
    ]
    os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *_folders])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-faults", action="store_true", help="attack as often and as long as `make test-faults` does"
    )


def pytest_configure() -> None:
    """Heed Ctrl-C, and have child processes heed it: a shell has what it starts in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests run beside each other on a noisy machine, which is no news to those that look for other reports.
    logging.getLogger("forecast_autotune.tuner.noise").setLevel(logging.CRITICAL)
    with suppress(ImportError):  # bars of packages that we call: the thread that watches them would outlive every test
        from tqdm import tqdm

        tqdm.monitor_interval = 0


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before xdist, which reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Where tests run beside each other, keep in one process those that share a GPU or what is compiled once a session."""
    if not config.pluginmanager.hasplugin("xdist"):
        return (yield)
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.xdist_group("gpu"))
        elif "toy" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("toy"))
    result = yield
    if config.getoption("loadgroup", False):
        for item in items:
            say_group(item)
    return result


def say_group(item: pytest.Item) -> None:
    """End the test's id with its group, by which xdist hands tests out.

    xdist does so itself, but up to 3.8.0 by an attribute that pytest 9.2 no longer reads: groups fell apart, and each
    process built the toy (65 s on a busy core) and interpreted every kernel of the suite.
    """
    end = "@" + "_".join(sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")}))
    if end != "@" and not item.nodeid.endswith(end):
        item._id = type(item.id).parse(item.nodeid + end)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a cache of Triton's that this module's tests alone fill."""
    from rehearsed import own_triton_cache

    folder = tmp_path_factory.mktemp("triton-cache")
    with own_triton_cache(folder):
        yield folder


@pytest.fixture(autouse=True)
def environment_restored() -> Iterator[None]:
    """Child processes inherit nothing from an earlier test; what changes keys or settings may not be left at all."""
    before = dict(os.environ)
    yield
    left = [name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)]
    os.environ.clear()
    os.environ.update(before)
    ours = [name for name in left if name.startswith("FORECAST_AUTOTUNE_") or name.endswith("_NUM_THREADS")]
    assert not ours, f"left in the environment: {ours}"


@pytest.fixture(autouse=True)
def own_settings(environment_restored: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No setting of the person running the tests reaches them, and each test has a store folder of its own."""
    for name in list(os.environ):
        if name.startswith("FORECAST_AUTOTUNE_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "forecast_autotune"
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(folder))
    return folder


@pytest.fixture
def set_process_total(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Gives what is called a total of its own in the place of this process's."""

    def set_total(total: Any) -> None:
        for module in ("request", "deciding"):
            monkeypatch.setattr(f"forecast_autotune.frontends.{module}.PROCESS_TOTAL", total)

    return set_total


@pytest.fixture(autouse=True)
def nothing_warned_of_yet() -> None:
    """What is warned of once in a process is warned of once in a test."""
    if given := sys.modules.get("forecast_autotune.core.user_warnings"):
        given._given.clear()


@pytest.fixture(autouse=True)
def no_line_comes_later() -> Iterator[None]:
    """The line that sums up many keys stands in what their own test has written, not in the next one's."""
    yield
    if progress := sys.modules.get("forecast_autotune.tuning.progress"):
        progress._board.finish()


@pytest.fixture(autouse=True)
def threads_of_earlier_tests_count_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools and loops that packages keep once they were used change nothing that a test's candidates change."""
    from forecast_autotune.measure import process_state

    left, running = set(threading.enumerate()), process_state.other_threads
    monkeypatch.setattr(process_state, "other_threads", lambda: [t for t in running() if t not in left])


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A C++ extension with variants of every kind, the bad ones included; its binding is compiled once a session."""
    return Toy(tmp_path_factory.mktemp("builds"))
