"""Turns at a device: searches check beside each other on one, and time alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..core.digest import digest
from ..measure.probe import device_identity
from ..processes.core_slots import own_folder
from ..processes.file_lock import turn_at

log = logging.getLogger(__name__)


@contextmanager
def turn_at_device(device: str, *, alone: bool) -> Iterator[None]:
    """Use a device beside what other searches check and draw on it, or alone, to time."""
    with ExitStack() as held:
        try:
            path = own_folder() / f"search-{digest(device_identity(device))}.lock"
            held.enter_context(turn_at(path, alone=alone))
        except OSError as err:  # a filesystem without locks
            log.debug("no turn at a device: %s", err)
        yield
