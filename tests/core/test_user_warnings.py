from __future__ import annotations

import linecache
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forecast_autotune
from forecast_autotune.core.user_warnings import SEE_TRACEBACK, warn_user

PACKAGE = Path(forecast_autotune.__file__).parent


def module_of(name: str, source: str) -> dict[str, Any]:
    """What a module of that name defines."""
    scope: dict[str, Any] = {"__name__": name, "warn_user": warn_user}
    exec(compile(source, f"/elsewhere/{name}.py", "exec"), scope)  # noqa: S102  # the text stands in this file
    return scope


def in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_a_warning_points_at_the_line_of_the_call() -> None:
    ours = module_of("forecast_autotune.frontends.some", "def tune(): warn_user('slow', UserWarning)")
    theirs = module_of("triton.runtime.jit", "def call(f): f()")
    with pytest.warns(UserWarning, match="slow") as warned:
        theirs["call"](ours["tune"])
    assert [w.filename for w in warned] == [__file__]
    assert 'theirs["call"]' in linecache.getline(__file__, warned[0].lineno)


def test_a_callback_of_the_users_is_the_nearest_line() -> None:
    user = module_of("my_kernels", "def call(f):\n    f()\n")
    ours = module_of("forecast_autotune.some", "def tune(): warn_user('slow', UserWarning)")
    with pytest.warns(UserWarning, match="slow") as warned:
        user["call"](ours["tune"])
    assert [(w.filename, w.lineno) for w in warned] == [("/elsewhere/my_kernels.py", 2)]


def test_a_thread_without_a_users_line_warns_at_its_outermost() -> None:
    ours = module_of("forecast_autotune.some", "def tune(): warn_user('slow', UserWarning)")
    with pytest.warns(UserWarning, match="slow") as warned:
        in_a_thread(ours["tune"])
    assert [w.filename for w in warned] == [threading.__file__]


def test_a_line_is_warned_once_by_default_and_raises_where_asked() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for _ in range(3):
            warn_user("slow", UserWarning)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="slow"):
            warn_user("slow", UserWarning)


def test_a_user_sees_the_traceback_by_what_a_warning_says() -> None:
    program = (
        f"{SEE_TRACEBACK.partition(': ')[2]}\n"
        "try:\n    1 / 0\n"
        "except ZeroDivisionError:\n    logging.getLogger('forecast_autotune.some').debug('failed', exc_info=True)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "ZeroDivisionError: division by zero" in ran.stderr


def test_every_warning_of_the_package_is_given_there() -> None:
    elsewhere = [p for p in PACKAGE.rglob("*.py") if p.name != "user_warnings.py"]
    assert not [p for p in elsewhere if re.search(r"\bwarnings\.warn\(|\bstacklevel\b", p.read_text())]
