"""The Triton kernels that variants launch under each config, listed without a launch, and their static features."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ...core.cached_property import cached_property
from ...core.config import Config
from ...core.hardware import Hardware
from ...core.signal_handlers import raised_by_signal_handler
from ..call_state import CallState
from ..tuning_lock import tuning_lock

if TYPE_CHECKING:
    from ...compilers.triton_launches import Launched

log = logging.getLogger(__name__)

LONGEST_SHARE = 0.1  # of a budget's seconds


class VariantLaunches:
    """The Triton kernels that a call would launch under each config: the call runs on tensors without data.

    Args:
        made: from a config to the function that makes the call; None where its launches cannot be listed.
        args, kwargs: the call's.
    """

    def __init__(
        self, made: Callable[[Config], Callable[..., Any] | None], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._made = made
        self._given: tuple[Sequence[Any], Mapping[str, Any]] = args, kwargs
        self._by_config: dict[Config, Sequence[Launched]] = {}

    def __call__(self, config: Config) -> Sequence[Launched]:
        """The launches under a config, listed once.

        Raises:
            Exception: what the call raises on tensors without data.
        """
        from torch.utils._python_dispatch import _disable_current_modes

        from ...compilers import triton_launches

        if config not in self._by_config:
            made = self._made(config)
            # Out of a graph that is being traced; and other threads do not wait, for this may wait for them.
            with _disable_current_modes(), tuning_lock.slow(True):
                self._by_config[config] = triton_launches.launches(made, *self._dataless) if made is not None else ()
        return self._by_config[config]

    def outlive(self, state: CallState) -> None:
        """Let go of the call's tensors, and be asked in any thread from now on.

        Args:
            state: of the call: torch keeps settings for each thread.
        Raises:
            Exception: torch makes no tensors without data from the call's.
        """
        _ = self._dataless
        made, device = self._made, "cpu" if state.device < 0 else "cuda"

        def made_as_then(config: Config) -> Callable[..., Any] | None:
            function = made(config)
            return None if function is None else functools.partial(_called_as, device, state, function)

        self._made = made_as_then

    def load(self, config: Config) -> bool:
        """Make the kernels of a config ready to launch on the current device, as launches would; whether there are any.

        Raises:
            Exception: what their launches would raise.
        """
        every = self(config)
        for launched in every:
            kernel = launched.kernel.run(*launched.args, grid=(1,), warmup=True, **launched.kwargs)
            getattr(kernel, "run", None)  # by which Triton loads it
        return bool(every)

    @cached_property
    def _dataless(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        from ...compilers.triton_launches import without_data

        made = without_data(*self._given)
        self._given = (), {}  # a surrogate keeps its last job, which keeps this: the tensors must not live as long
        return made

    def static_features(self, config: Config, hardware: Hardware) -> Mapping[str, float]:
        """See `Job.static_features`; empty where the call fails, or launches no known kernel."""
        from ...compilers.triton_launches import static_features

        try:
            return static_features(self(config), hardware)
        except Exception as err:
            if raised_by_signal_handler(err):
                raise
            log.debug("%s is not described: %r", config, err)
            return {}


def _called_as(device: str, state: CallState, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function with the settings that torch had for an earlier call."""
    import torch

    autocast = torch.autocast(device, dtype=state.autocast, enabled=state.autocast is not None)
    with torch.set_grad_enabled(state.grad_enabled), autocast:
        return function(*args, **kwargs)


def form_of(values: Any) -> Hashable:
    """By what Triton may tell apart calls of one key: types, flags, and which numbers and addresses 16 divides.

    Raises:
        Exception: what a tensor without an address raises.
    """
    import torch

    if isinstance(values, (list, tuple)):
        return tuple(map(form_of, values))
    if isinstance(values, dict):
        return tuple((name, form_of(value)) for name, value in values.items())
    if isinstance(values, torch.Tensor):
        layout = form_of((*values.shape, *values.stride()))
        return str(values.dtype), str(values.device), values.data_ptr() % 16 == 0, layout
    if isinstance(values, int) and not isinstance(values, bool):
        return "int", values == 1, values % 16 == 0
    return cast("Hashable", values if isinstance(values, (bool, str, type(None), torch.dtype)) else type(values))
