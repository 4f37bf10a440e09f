"""What a candidate finds and may change in the caller's process beside its arguments: put back after it has run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

_FLOAT_ENVIRONMENT_BYTES = 64  # of C's `fenv_t`: 32 on x86-64, 8 on AArch64


@contextlib.contextmanager
def surroundings_kept() -> Iterator[None]:
    """Leave behind what was there before: random numbers, torch's modes, rounding, the current folder, the environment.

    So a tuned program draws the numbers that it would draw untuned, and each candidate starts from the same.
    """
    put_back = [keep() for keep in (_randomness, _torch_modes, _rounding, _process)]
    try:
        yield
    finally:
        for each in put_back:
            each()


def _randomness() -> Callable[[], None]:
    import torch

    states: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    if "numpy.random" in sys.modules:
        import numpy as np

        states.append((np.random.set_state, np.random.get_state()))  # whatever others draw from
    if torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))

    def put_back() -> None:
        for put, state in states:
            put(state)

    return put_back


def _torch_modes() -> Callable[[], None]:
    import torch

    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()

    def put_back() -> None:
        torch.set_default_dtype(dtype)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(grad)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    return put_back


def _rounding() -> Callable[[], None]:
    """This thread's rounding mode, and whether numbers near zero count as zero."""
    here, held = ctypes.CDLL(None), ctypes.create_string_buffer(_FLOAT_ENVIRONMENT_BYTES)
    if not hasattr(here, "fegetenv") or here.fegetenv(held) != 0:
        return lambda: None
    return lambda: here.fesetenv(held)


def _process() -> Callable[[], None]:
    environment, umask = dict(os.environ), os.umask(0o077)
    os.umask(umask)
    try:
        folder = os.getcwd()
    except OSError:  # it was removed: there is no way back to it
        folder = ""

    def put_back() -> None:
        os.umask(umask)
        if os.environ != environment:
            for name in set(os.environ) - set(environment):
                del os.environ[name]
            os.environ.update(environment)
        with contextlib.suppress(OSError):
            if folder and not os.path.samefile(folder, "."):
                os.chdir(folder)

    return put_back
