"""The state of the caller's process that a candidate may change beside its arguments: put back after it has run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.signal_handlers import raised_by_signal_handler

log = logging.getLogger(__name__)

_HARMLESS = ("forecast_autotune", "forecast-autotune", "fsspecIO")  # names of threads: ours, and that of remote stores
_FLOAT_ENVIRONMENT_BYTES = 64  # of C's `fenv_t`: 32 on x86-64, 8 on AArch64

Read = Callable[[], Any]
Put = Callable[[Any], object]


@contextlib.contextmanager
def preserve_process_state(*, draws: bool = True) -> Iterator[None]:
    """Leave behind what was there before: random numbers, gradient mode, dtype, precision, rounding, folder, environment.

    So a tuned program draws the numbers that it would draw untuned, and each candidate starts from the same. What the
    whole process shares beside random numbers is left alone while a thread of the program is alive that might have
    changed it. What cannot be read or put back is left as it is: that is never the candidate's failure.

    Args:
        draws: whether the candidate may draw random numbers from the process's generators. Where it cannot, these are
            left alone: other threads draw from them.
    """
    parts = [*_of_this_thread(), *(_randomness() if draws else ()), *(_of_the_process() if is_only_thread() else ())]
    kept = _read(parts)
    try:
        yield
    finally:
        _put_back(kept)


class RandomState:
    """Where generators of random numbers stand now; put back, they draw the same numbers again.

    Args:
        generators: of classes in `generator_kinds`; the process's own by default.
    """

    def __init__(self, generators: Iterable[Any] | None = None) -> None:
        self._kept = _read(_randomness() if generators is None else map(_of_generator, generators))

    def put_back(self) -> None:
        """Have every generator draw on from there."""
        _put_back(self._kept)


def _read(parts: Iterable[tuple[Read, Put]]) -> list[tuple[Put, Any]]:
    """What is there now, with how it is put back; without what cannot be read."""
    kept = []
    for read, put in parts:
        with _passed_over():  # such as a folder that was removed: there is no way back to it
            kept.append((put, read()))
    return kept


def _put_back(kept: Sequence[tuple[Put, Any]]) -> None:
    """Put back what was there, whatever a handler of signals raises meanwhile: that is raised afterwards."""
    try:
        _put_back_once(kept)
    except BaseException:
        _put_back_once(kept)  # the signal may have come anywhere
        raise


def _put_back_once(kept: Sequence[tuple[Put, Any]]) -> None:
    for put, before in reversed(kept):
        with _passed_over():
            put(before)


@contextlib.contextmanager
def _passed_over() -> Iterator[None]:
    """What cannot be read or put back is left as it is; what a handler of signals raises is the program's."""
    try:
        yield
    except Exception as err:
        if raised_by_signal_handler(err):
            raise
        log.debug("what a candidate may change cannot be read or put back: %s: %s", type(err).__name__, err)


def is_only_thread() -> bool:
    """Whether no thread runs beside this one that may change something here."""
    return not other_threads()


def other_threads() -> list[threading.Thread]:
    """What runs beside this thread, but the package's own and those of what it calls, which change nothing here."""
    others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    return [thread for thread in others if not thread.name.startswith(_HARMLESS)]


def _if_changed(read: Read, put: Put) -> tuple[Read, Put]:
    """Put back only what changed or cannot be read: setting it has a price."""

    def put_if_changed(before: Any) -> None:
        with _passed_over():
            if read() == before:
                return
        put(before)

    return read, put_if_changed


def _randomness() -> Iterator[tuple[Read, Put]]:
    import torch

    yield random.getstate, random.setstate
    yield torch.get_rng_state, torch.set_rng_state
    if "numpy.random" in sys.modules:
        import numpy as np

        yield np.random.get_state, np.random.set_state  # whatever others draw from
    if torch.cuda.is_initialized():
        yield torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all


def generator_kinds() -> tuple[type, ...]:
    """The classes of objects that draw random numbers by themselves."""
    import torch

    kinds = torch.Generator, random.Random
    if "numpy.random" not in sys.modules:
        return kinds
    import numpy as np

    return *kinds, np.random.Generator, np.random.RandomState, np.random.BitGenerator


def _of_generator(generator: Any) -> tuple[Read, Put]:
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if hasattr(generator, "get_state"):
        return generator.get_state, generator.set_state
    bits = getattr(generator, "bit_generator", generator)
    return lambda: bits.state, lambda before: setattr(bits, "state", before)


def _of_this_thread() -> Iterator[tuple[Read, Put]]:
    import torch

    yield torch.is_grad_enabled, torch.set_grad_enabled
    yield _if_changed(torch.get_num_threads, torch.set_num_threads)
    library = _c_library()
    if hasattr(library, "fegetenv"):
        yield lambda: _rounding(library), library.fesetenv


@functools.cache
def _c_library() -> ctypes.CDLL:
    """Made once: each is a cycle of 9 KB, which stays in a program that has switched `gc` off."""
    return ctypes.CDLL(None)


def _rounding(library: ctypes.CDLL) -> Any:
    """This thread's rounding mode, and whether numbers near zero count as zero."""
    held = ctypes.create_string_buffer(_FLOAT_ENVIRONMENT_BYTES)
    if library.fegetenv(held) != 0:
        raise OSError("the C library does not tell the floating-point environment")
    return held


def _of_the_process() -> Iterator[tuple[Read, Put]]:
    import torch

    yield torch.get_default_dtype, torch.set_default_dtype
    # Where the program has used `fp32_precision`, the older function does not say, and precision stays as it is.
    yield _if_changed(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    yield _umask, os.umask
    yield lambda: dict(os.environ), _set_environment
    yield _if_changed(os.getcwd, os.chdir)


def _umask() -> int:
    """The umask; read where it can be, for while it is set to learn it, a library's own thread may make a file."""
    with _passed_over():
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _set_environment(before: Mapping[str, str]) -> None:
    if os.environ != before:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
