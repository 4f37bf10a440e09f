"""What is kept of a call of a tuned callable, to learn its key from later calls; see `online.Learnable`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from ..core.config import Config
from ..core.decision import Decision
from ..core.outcome import Failure
from ..measure.call_events import HostEvent, StreamEvent
from ..protocols import Compiler, Store
from .online.learning import compare_on_copies


class LearnableCallable:
    """A call without its arguments.

    Args:
        device: the call's, by name.
        compiler: builds configs for nobody who waits.
        launcher: from a config to what makes calls under it.
        measurer: makes the measurer by which a config is compared with the default on copies of a call's arguments; None
            where nothing is compared.
        load: makes a built config ready to launch, and tells whether it is; None where only the launch does.
        is_built_for: whether `compiler` builds what a call runs.
        new_event: instead of that of `device`.
    """

    def __init__(
        self,
        *,
        device: str,
        compiler: Compiler,
        launcher: Callable[[Config], Any],
        measurer: Callable[[Any], AbstractContextManager[Any]] | None,
        load: Callable[[Config], object] | None = None,
        is_built_for: Callable[[Any], bool] = lambda _: True,
        new_event: Callable[[], Any] | None = None,
    ) -> None:
        self.compiler, self.launcher, self.is_built_for = compiler, launcher, is_built_for
        self._device, self._measurer, self._load = device, measurer, load
        self.compares = measurer is not None
        self.on_host = device == "cpu" and new_event is None
        self.new_event = new_event or (HostEvent if device == "cpu" else lambda: StreamEvent(device))
        self.keep_busy: Callable[[float], object] | None = None  # what a call takes the host is compared, too

    def load(self, config: Config) -> bool:
        """See `Learnable`."""
        return self._load is not None and bool(self._load(config))

    def for_other_calls(self) -> Iterable[tuple[Compiler, Callable[[Config], None]]]:
        """See `Learnable`: each compiles what it needs."""
        return ()

    def may_compare(self) -> bool:
        """See `Learnable`."""
        if self._device == "cpu":
            return True
        import torch

        return bool(torch.cuda.current_stream(self._device).query())

    def compared(self, config: Config, call: Any) -> Failure | None:
        """See `Learnable`."""
        return None if self._measurer is None else compare_on_copies(self._measurer(call), config)

    def tell_listeners(self, decision: Decision, store: Store, *, seconds: float) -> None:
        """See `Learnable`. Nobody listens."""


def current_stream(device: str) -> Hashable:
    """On which stream a call of now runs: each thread is one where calls are done when they return."""
    if device == "cpu":
        return threading.get_ident()
    import torch

    return device, int(torch.cuda.current_stream(device).cuda_stream)
