"""Names of modules that are the same in every process of a program."""

from __future__ import annotations

from typing import Any


def module_name(value: Any) -> str:
    """The module that a function or class was made in; empty where it names none.

    The script that is run is `__main__`, also in processes that `multiprocessing` spawns, which import it once more.
    """
    return in_any_process(str(getattr(value, "__module__", None) or ""))


def in_any_process(module: str) -> str:
    """A module's name; `__main__` for what spawned processes call `__mp_main__`."""
    return "__main__" if module == "__mp_main__" else module
