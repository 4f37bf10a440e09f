"""What a Triton kernel of the suite is: something to tune, something to compare it with, and the sizes it is used at.

`TritonKernel` is one Triton function and its space. `SuiteKernel` is one thing to compute and several ways to do it, its
*variants*, each of them a host function that launches what it needs under its own knobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forecast_autotune.core.config import Config
from forecast_autotune.core.space import Space
from forecast_autotune.core.workload import Work
from forecast_autotune.errors import InvalidInputError

from .suite import Case

if TYPE_CHECKING:
    from torch import Tensor

OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a kernel: its arguments in their order, its grid under a config, and its outputs among the arguments."""

    args: tuple[Any, ...]
    grid: Callable[[Mapping[str, int]], tuple[int, ...]]
    outs: tuple[Tensor, ...]

    def launch(self, kernel: Any, **knobs: Any) -> None:
        """Launch the bare kernel under the knobs given, or a tuned one without any."""
        kernel[self.grid](*self.args, **knobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonKernel:
    """A Triton kernel with its reference.

    `make_call(case, seed, device)` gives a call whose outputs are filled with NaN (integers with their least value), so that
    an element which nobody wrote is found; a kernel that works in place finds its input there. `reference`, asked before the
    launch, returns what each output should hold afterwards, to within `rtol` and `atol`.
    """

    name: str
    function: Any  # what @triton.jit made
    space: Space  # first the config that an expert would write down
    key: tuple[str, ...]
    cases: tuple[Case, ...]  # sizes people use; the first is the one reports are about
    corners: tuple[Case, ...]  # sizes that catch a wrong edge, small enough for Triton's interpreter
    make_call: Callable[[Case, int, str], Call]
    reference: Callable[[Call], tuple[Tensor, ...]]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to compute what a kernel of the suite computes: an algorithm, not only a choice of knobs.

    `launch(*args, **knobs)` takes the arguments that `SuiteKernel.make_inputs` gives and every knob of a config, fills the
    outputs among the arguments, returns None and keeps nothing. What lies between two of its launches it allocates itself.
    A config that is no use at the sizes given raises InvalidInputError; a default is of use at every case of the suite.
    """

    name: str
    launch: Callable[..., None]
    space: Space  # first the config that an expert would write down
    functions: tuple[Any, ...]  # what @triton.jit made of each kernel it launches

    def __call__(self, *args: Any, **knobs: Any) -> None:
        """Launch under the default config, but for the knobs given."""
        self.launch(*args, **{**self.space.default.knobs, **knobs})


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An output by its name, and how far it may be from the reference."""

    name: str
    rtol: float
    atol: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteKernel:
    """Several variants that compute the same thing, with one reference.

    `make_inputs(case, seed, device)` gives the arguments of one call, the last of them the outputs in the order of
    `outputs`, filled with NaN (integers with their least value) so that an element which nobody wrote is found. `reference`
    and `work` take the same arguments; `reference` returns what each output should hold.
    """

    name: str
    variants: tuple[Variant, ...]  # first the one that an expert would begin with
    outputs: tuple[Output, ...]
    cases: tuple[Case, ...]  # sizes people use; the first is the one reports are about
    corners: tuple[Case, ...]  # sizes that catch a wrong edge, small enough for Triton's interpreter
    make_inputs: Callable[[Case, int, str], tuple[Any, ...]]
    reference: Callable[..., tuple[Tensor, ...]]
    work: Callable[..., Work]

    def variant(self, name: str) -> Variant:
        """A variant by its name.

        Raises:
            InvalidInputError: there is none of that name.
        """
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise InvalidInputError(
            f"{self.name} has no variant {name!r}: it has {', '.join(v.name for v in self.variants)}"
        )

    def case(self, name: str) -> Case:
        """A case or a corner by its name.

        Raises:
            InvalidInputError: there is none of that name.
        """
        for case in (*self.cases, *self.corners):
            if case.name == name:
                return case
        known = ", ".join(c.name for c in (*self.cases, *self.corners))
        raise InvalidInputError(f"{self.name} has no case {name!r}: it has {known}")

    def outs(self, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """The outputs among the arguments of a call."""
        return args[-len(self.outputs) :]

    def run(
        self, variant: Variant, config: Config, case: Case, *, seed: int = 0, device: str = "cpu"
    ) -> tuple[Tensor, ...]:
        """What a variant under a config writes to each output."""
        args = self.make_inputs(case, seed, device)
        variant.launch(*args, **config.knobs)
        return self.outs(args)

    def tuned(self, **options: Any) -> Any:
        """All variants behind our front door, with one decision for each key; `options` are further arguments of it."""
        import forecast_autotune as fa

        pairs = [(variant.launch, variant.space) for variant in self.variants]
        return fa.variants(pairs, **{"name": self.name, "work": self.work, "compile_ahead": True, **options})

    def expected(self, case: Case, *, seed: int = 0, device: str = "cpu") -> tuple[Tensor, ...]:
        """What `run` should return."""
        return self.reference(*self.make_inputs(case, seed, device))


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
