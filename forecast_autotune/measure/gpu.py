"""What a clock needs of a GPU: cold caches, work that keeps it busy, and that no other process times on it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..core.digest import digest
from ..processes.file_lock import file_lock

log = logging.getLogger(__name__)

Claim = Callable[[], AbstractContextManager[bool]]
"""Held while a config is timed; yields whether no other process times on the device."""

CLAIM_WAIT_S = 0.5  # for another process that times on this device

_L2_FACTOR = 2  # a flush of just the cache's size leaves part of it: its replacement is not strictly the oldest first
# AMD's last level (MI300X: 256 MiB) is not what the driver calls L2, of 4 MiB (pytorch#192159)
_HIP_FLUSH_BYTES = 256 << 20


class Flush:
    """Overwrites a device's last cache, by a buffer twice its size that is taken at the first use.

    Where memory does not allow the buffer, launches are timed on caches as they are, and that is logged once.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._buffer: Any = None
        self._without = False

    def __call__(self) -> None:
        if self._buffer is None and not self._without:
            self._take()
        if self._buffer is not None:
            self._buffer.zero_()

    def _take(self) -> None:
        import torch

        cache = int(getattr(torch.cuda.get_device_properties(self._device), "L2_cache_size", 0)) or (128 << 20)
        size = max(_L2_FACTOR * cache, _HIP_FLUSH_BYTES if torch.version.hip else 0)
        try:
            self._buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:
            self._without = True
            log.warning("no memory for %d MiB to flush the caches with: configs are timed on warm ones", size >> 20)


def spin(seconds: float) -> None:
    """Keep the current stream's device busy for about so long."""
    import torch

    torch.cuda._sleep(int(seconds * 2e9))  # cycles; clocks run at 1 to 2 GHz


def unclaimed() -> AbstractContextManager[bool]:
    """A claim on nothing."""
    return contextlib.nullcontext(True)


@contextlib.contextmanager
def claim_device(identity: str, folder: Path) -> Iterator[bool]:
    """Keep other processes that lock in this folder from timing on a device.

    It is held for one config, so that processes that tune at the same time take turns by the config.

    Yields: whether none does; False where one goes on after `CLAIM_WAIT_S`.
    """
    with contextlib.ExitStack() as held:
        alone = True
        if identity and folder.is_dir():
            try:
                held.enter_context(file_lock(folder / f"timing-{digest(identity)}.lock", timeout=CLAIM_WAIT_S))
            except TimeoutError:
                alone = False
            except (OSError, RuntimeError) as err:  # a filesystem without locks
                log.debug("no claim on a device: %s", err)
        yield alone
