"""What Python runs first in every process that `forecast-autotune run` reaches: it waits for Triton, and does nothing else.

This folder stands first in PYTHONPATH there, so Python's `site` imports this file instead of the user's own
`sitecustomize`, which is run from here. Nothing of the package is imported before Triton is. The interpreter may be any
that the program starts, so this keeps to what Python has long had, and takes nothing that goes wrong as a reason to stop.
"""

from __future__ import annotations

import _thread
import importlib.machinery
import importlib.util
import os
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))


class WhenTritonIsImported:
    """A finder that finds nothing itself: it lets the others find Triton, and has `install()` follow its import."""

    def __init__(self) -> None:
        self.asking: list[int] = []  # threads that ask the other finders

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Triton's own spec, whose loader installs ours after it has run; None for every other module."""
        thread = _thread.get_ident()
        if name != "triton" or thread in self.asking:
            return None
        self.asking.append(thread)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking.remove(thread)
        if spec is None or spec.loader is None:
            return spec  # not installed, or a bare folder of that name
        run = spec.loader.exec_module

        def run_and_install(module: types.ModuleType) -> None:
            if self in sys.meta_path:  # not before: many ask for the spec only to see whether Triton is there
                sys.meta_path.remove(self)
            run(module)
            install()

        try:
            spec.loader.exec_module = run_and_install  # type: ignore[method-assign]
        except AttributeError:  # a loader that cannot be changed
            warn("Triton's loader takes no hook")
        return spec


def install() -> None:
    """Have Triton's tuners decided by ours; a failure is one warning."""
    try:
        from forecast_autotune.frontends.install import install as reach_tuners

        reach_tuners()
        if folder := os.environ.get("_FORECAST_AUTOTUNE_TUNERS"):  # of `doctor SCRIPT`
            from forecast_autotune.frontends.triton.installed import report_to

            report_to(folder)
    except Exception as err:
        warn(repr(err))


def warn(reason: str) -> None:
    """One line on stderr: this process runs Triton's own tuner, and why."""
    line = "forecast-autotune run: kernels of process {} ({}) are tuned by Triton itself: {}\n"
    sys.stderr.write(line.format(os.getpid(), sys.executable, reason))


def run_the_users_own() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


# The program is to see the path it would see without us; its child processes get here by the environment.
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != HERE]
if "triton" in sys.modules:
    install()
else:
    sys.meta_path.insert(0, WhenTritonIsImported())
run_the_users_own()
