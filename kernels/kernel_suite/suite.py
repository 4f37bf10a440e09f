"""What a kernel of the suite is: something to tune, something to compare it with, and the sizes it is used at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One choice of sizes to call a kernel with."""

    name: str
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel with its reference.

    `make_inputs(case, seed)` gives the arguments of one call, the last one the output, filled with NaN so that an
    element which nobody wrote is found. `reference` and `work` take the same arguments, and `reference` returns what
    the output should hold, to within `rtol` and `atol`. `load(**options)` hands the options on to the front door.
    """

    name: str  # also of its function in the module that `load` returns
    space: Space
    cases: tuple[Case, ...]  # sizes people use, 1 to 50 ms a call with the default config
    corners: tuple[Case, ...]  # sizes that catch a wrong edge, under 1 ms a call
    make_inputs: Callable[[Case, int], tuple[Any, ...]]
    reference: Callable[..., Any]
    work: Callable[..., Work]
    load: Callable[..., Any]
    rtol: float
    atol: float
    sources: Mapping[str, Path] = field(default_factory=dict)  # "kernel" is compiled per variant, "binding" once

    def tuned(self, **options: Any) -> Callable[..., None]:
        """The function that tunes itself on its first call per key."""
        function: Callable[..., None] = getattr(self.load(**options), self.name)
        return function
