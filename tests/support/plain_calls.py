"""Calls of Triton kernels under a config, as the compiler asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forecast_autotune.compilers.triton_source import launch_kwargs
from forecast_autotune.core.config import Config


def plain_call(*args: Any) -> Callable[[Config], tuple[Sequence[Any], Mapping[str, Any]]]:
    """A call with these arguments, the config's knobs as keywords."""
    return lambda config: (args, launch_kwargs(config.knobs))
