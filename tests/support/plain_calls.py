"""Calls of Triton kernels under a config, as the compiler asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forecast_autotune.core.config import Config
from forecast_autotune.features.knob_roles import TRITON_OPTIONS


def plain_call(*args: Any) -> Callable[[Config], tuple[Sequence[Any], Mapping[str, Any]]]:
    """A call with these arguments, the config's knobs as keywords; options that are None are left out."""

    def call(config: Config) -> tuple[Sequence[Any], Mapping[str, Any]]:
        return args, {
            name: value for name, value in config.knobs.items() if value is not None or name not in TRITON_OPTIONS
        }

    return call
