"""The device that Triton kernels run on now, and what compiles them for it."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime.driver import driver

from ...compilers.triton_source import is_tritons_own, jit_function
from ...core.hardware import Hardware, Toolchain
from ...errors import NoGpuError
from ...measure.probe import detect_hardware
from .simulated_driver import current_rehearsal

log = logging.getLogger(__name__)

_NO_GPU = """\
this machine has no GPU that Triton can use: kernel {name} cannot be launched here.
What can be done without one:
  forecast-autotune forecast {place}:{name} --target H100
      ranks its configs for a GPU that is only named
  with forecast_autotune.rehearsal("H100", times=…): …
      compiles it for such a GPU and plays times that are given or were recorded
  TRITON_INTERPRET=1 in the environment
      computes it on the CPU, slowly
If a GPU is here, 'forecast-autotune doctor' says why it is not found"""


def current_device() -> Any:
    """The device a launch would run on; None in the interpreter and where no driver is active."""
    if knobs.runtime.interpret:
        return None
    try:
        return driver.active.get_current_device()
    except Exception:  # no driver: Triton says so itself when something is launched
        return None


def _active_driver() -> Any:
    """Triton's driver; None in the interpreter, and where Triton has none: it says `0 active drivers ([])`.

    Raises:
        Exception: what a driver raises that does not start.
    """
    if knobs.runtime.interpret:
        return None
    try:
        return driver.active
    except RuntimeError as err:
        if "0 active drivers" not in str(err):
            raise
        return None


def require_driver(kernel: Any) -> None:
    """Say what to do where Triton has nothing to launch a kernel on.

    Args:
        kernel: what is tuned; where that is no code of Triton's own, it may need no driver.
    Raises:
        NoGpuError: this machine has no GPU that Triton can use.
    """
    if knobs.runtime.interpret or not is_tritons_own(kernel):
        return
    if _active_driver() is None:
        function = jit_function(kernel).fn
        file = function.__code__.co_filename
        place = os.path.relpath(file) if os.path.isfile(file) else "FILE.py"  # a notebook's cells lie in none
        raise NoGpuError(_NO_GPU.format(name=function.__name__, place=place))


def current_hardware() -> Hardware:
    """The device a launch would run on now; of kind `interpreter` or `stub` where nothing real is timed.

    Raises:
        Exception: what a broken driver raises.
    """
    if knobs.runtime.interpret:
        return Hardware(kind="interpreter", name="Triton interpreter")
    if (simulated := current_rehearsal()) is not None:
        return simulated.hardware
    if (active := _active_driver()) is None:
        return Hardware(kind="stub", name="no driver")
    target, device = active.get_current_target(), active.get_current_device()
    if torch.cuda.is_available():
        return detect_hardware(f"cuda:{device}")
    if target.backend in ("cuda", "hip"):
        return Hardware(kind="stub", name=f"a driver without a device, {target.backend} {target.arch}")
    return Hardware(kind=target.backend, name=str(target.arch), warp_size=target.warp_size)


Aim = tuple[Any, dict[str, int]]
"""What is compiled for: the target, and the device's limits by Triton's names."""


def compiled_for() -> Aim | None:
    """The compile target now, with the device's limits by name; None without a driver, or one that tells no limits."""
    try:
        if (active := _active_driver()) is None:
            return None
        return active.get_current_target(), dict(active.utils.get_device_properties(active.get_current_device()))
    except Exception:  # nothing is compiled ahead then
        log.debug("what to compile for is not known", exc_info=True)
        return None


def current_toolchain(target: Any = None) -> Toolchain:
    """The compiler of Triton kernels for a target, by default the current device, with the settings that change code.

    Raises:
        Exception: what a broken driver raises, or a compiler that is not found for the current device.
    """
    from triton._C.libtriton import get_cache_invalidating_env_vars

    versions = {"triton": triton.__version__, "torch": str(torch.__version__)}
    versions["backend"] = "none"
    if target is not None:
        try:
            versions["backend"] = _backend_hash(target)
        except Exception:  # what is only named can be forecast without a compiler
            log.debug("Triton has no compiler for %s", target, exc_info=True)
    elif (active := _active_driver()) is not None:
        versions["backend"] = _backend_hash(active.get_current_target())
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    versions.update(get_cache_invalidating_env_vars())
    return Toolchain(versions=versions)


@functools.cache
def _backend_hash(target: Any) -> str:
    """The hash of a target's backend and its assembler; without the cache, Triton would ask the assembler each time."""
    from triton.compiler.compiler import make_backend

    return str(make_backend(target).hash())
