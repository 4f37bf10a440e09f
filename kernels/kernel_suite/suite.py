"""What a kernel of the suite is: something to tune, something to compare it with, and the sizes it is used at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forecast_autotune.core.config import Config
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One choice of sizes to call a kernel with."""

    name: str
    sizes: Mapping[str, int]
    dtype: str | None = None  # of the inputs, by its name in torch, where a kernel takes several


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel with its reference.

    `make_inputs(case, seed)` gives the arguments of one call, the last one the output, filled with NaN so that an
    element which nobody wrote is found; for a kernel in CUDA they are made on the GPU, or where a third argument says.
    `reference` and `work` take the same arguments, and `reference` returns what the output should hold, to within
    `rtol` and `atol`. `load(**options)` hands the options on to the front door.
    """

    name: str  # also of its function in the module that `load` returns
    space: Space
    cases: tuple[Case, ...]  # sizes people use; on the CPU 1 to 50 ms a call with the default config
    corners: tuple[Case, ...]  # sizes that catch a wrong edge, under 1 ms a call
    make_inputs: Callable[..., tuple[Any, ...]]
    reference: Callable[..., Any]
    work: Callable[..., Work]
    load: Callable[..., Any]
    rtol: float
    atol: float
    # "kernel" is compiled per variant, "binding" once; in CUDA the others are alternatives, which the knob `source` names.
    sources: Mapping[str, Path] = field(default_factory=dict)

    @property
    def variants(self) -> dict[str, list[Config]]:
        """Its configs by algorithm, the one of the default first."""
        knob = next((name for name, role in self.space.roles.items() if role == "algorithm"), None)
        configs: dict[str, list[Config]] = {}
        for config in self.space:
            configs.setdefault(self.name if knob is None else str(config[knob]), []).append(config)
        return configs

    @property
    def language(self) -> str:
        """`cuda` or `c++`."""
        return "c++" if "kernel" in self.sources else "cuda"

    def tuned(self, **options: Any) -> Callable[..., None]:
        """The function that tunes itself on its first call per key."""
        function: Callable[..., None] = getattr(self.load(**options), self.name)
        return function


def load_cuda(name: str, sources: Mapping[str, Path], **options: Any) -> Any:
    """The module whose function `name`, in CUDA, tunes itself; `options` go to `load_inline`.

    Torch's headers are in the binding alone, and there only those it needs: it is compiled once, in ten seconds instead
    of half a minute, and every variant without them.
    """
    import forecast_autotune as fa

    arguments: dict[str, Any] = {
        "name": f"kernel_suite_{name}",
        "cpp_sources": sources["binding"].read_text(),
        "cuda_sources": {source: path.read_text() for source, path in sources.items() if source != "binding"},
        "functions": [name],
        "extra_include_paths": [str(sources["binding"].parent)],  # what several sources share lies in a header there
        "no_implicit_headers": True,
    }
    return fa.load_inline(**{**arguments, **options})
