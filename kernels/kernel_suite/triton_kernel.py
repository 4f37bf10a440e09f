"""What a Triton kernel of the suite is: something to tune, something to compare it with, and the sizes it is used at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forecast_autotune.core.config import Config
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work

from .suite import Case

if TYPE_CHECKING:
    from torch import Tensor

OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a kernel: its arguments in their order, its grid under a config, and the argument that gets the result."""

    args: tuple[Any, ...]
    grid: Callable[[Mapping[str, int]], tuple[int, ...]]
    out: Tensor

    def launch(self, kernel: Any, **knobs: Any) -> None:
        """Launch the bare kernel under the knobs given, or a tuned one without any."""
        kernel[self.grid](*self.args, **knobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonKernel:
    """A Triton kernel with its reference.

    `make_call(case, seed, device)` gives a call whose output is filled with NaN, so that an element which nobody wrote is
    found; a kernel that works in place finds its input there. `reference`, asked before the launch, returns what the output
    should hold afterwards, to within `rtol` and `atol`.
    """

    name: str
    function: Any  # what @triton.jit made
    space: Space  # first the config that an expert would write down
    key: tuple[str, ...]
    cases: tuple[Case, ...]  # sizes people use; the first is the one reports are about
    corners: tuple[Case, ...]  # sizes that catch a wrong edge, small enough for Triton's interpreter
    make_call: Callable[[Case, int, str], Call]
    reference: Callable[[Call], Tensor]
    work: Callable[[Call], Work]
    rtol: float
    atol: float
    restore_value: tuple[str, ...] = ()  # arguments that a launch changes and that the next one should find unchanged

    def configs(self) -> list[Any]:
        """The space as `triton.autotune` takes it."""
        return triton_configs(self.space)

    def tuned(self, **options: Any) -> Any:
        """The kernel behind our front door; `options` are further arguments of the decorator, or others than these."""
        import forecast_autotune as fa

        given = {"configs": self.configs(), "key": list(self.key), "restore_value": list(self.restore_value)}
        return fa.autotune(**{**given, **options})(self.function)


def triton_configs(configs: Iterable[Config]) -> list[Any]:
    """Configs of ours as Triton's."""
    import triton

    return [
        triton.Config(
            {name: value for name, value in config.knobs.items() if name not in OPTIONS},
            **{name: value for name, value in config.knobs.items() if name in OPTIONS},
        )
        for config in configs
    ]
