"""Forecasts for a Triton kernel's configs on a GPU that need not be present: nothing is launched."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from triton import knobs
from triton.runtime.autotuner import Autotuner, Heuristics

from ...compilers.triton_source import heuristic_names, jit_function
from ...core.config import Config
from ...core.context import ForecastContext
from ...core.forecast import Abstention, Forecast
from ...core.hardware import Hardware
from ...core.outcome import Evidence, Failure
from ...errors import InvalidInputError
from ...protocols import Store, Surrogate
from .autotuner import ForecastAutotuner
from .call import TritonCall
from .reached_tuner import ReachedTuner


class OfflineCall:
    """One call of an autotuned kernel on hardware that need not be present.

    Args:
        kernel: what `triton.autotune`, ours or Triton's own, has made, `@triton.heuristics` above it or not.
        arguments: the call's, by name; tensors may be on the meta device.
        grid: as at a launch.
        hardware: from a sheet, or detected.
    Raises:
        InvalidInputError: the kernel is not autotuned or cannot be compiled here; arguments are missing or unknown.
    """

    def __init__(
        self,
        kernel: Any,
        arguments: Mapping[str, Any],
        *,
        hardware: Hardware,
        grid: Callable[[Mapping[str, Any]], Sequence[int]] | Sequence[int] | None = None,
    ) -> None:
        tuner = as_forecast_autotuner(kernel)
        named = _with_outer_heuristics(kernel, arguments)
        _check_arguments(tuner, named)
        # Leading arguments go by position, as in a launch: a user's pruning gets those by name.
        leading = list(itertools.takewhile(lambda name: name in named, tuner.arg_names))
        args = tuple(named[name] for name in leading)
        kwargs = {name: value for name, value in named.items() if name not in leading}
        if grid is not None:
            kwargs["grid"] = grid
        self.note = ""
        """A remark on the ranking, for the user."""
        self.call = TritonCall(tuner.spec, self._candidates(tuner, args, kwargs), args, kwargs, hardware=hardware)
        self.job = self.call.job

    def ranked(self, surrogate: Surrogate, store: Store) -> list[tuple[Config, Forecast | Abstention]]:
        """Each config with its forecast, the fastest first; those more likely to fail than not behind, then abstentions."""
        outcomes = {c: o for c, o in store.outcomes(self.job).items() if c in self.job.space}
        session = surrogate.start(ForecastContext(job=self.job, recordings=store.related_recordings(self.job)))
        forecasts = zip(self.job.space, session.predict(outcomes, {}), strict=True)
        return sorted(forecasts, key=lambda item: _rank(item[1]))

    def compiled(self, configs: Sequence[Config]) -> Iterator[tuple[Config, Evidence | Failure]]:
        """The compiler's evidence or failure for each config, as it is done."""
        return self.call.compiler.compile(configs)

    def _candidates(self, tuner: ForecastAutotuner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The configs that the kernel's own pruning leaves; all of them where it does not run without a device."""
        try:
            return tuner.pruned_configs(args, kwargs)
        except Exception as err:
            self.note = (
                f"the kernel's own pruning does not run here ({type(err).__name__}: {err}): no config is left out"
            )
            return tuner.configs


def as_forecast_autotuner(kernel: Any) -> ForecastAutotuner:
    """The kernel's autotuner, one of Triton's own as one of ours.

    Raises:
        InvalidInputError: it has none, or no JIT function under it.
    """
    tuner = kernel
    while isinstance(tuner, Heuristics):
        tuner = tuner.fn
    name = getattr(getattr(tuner, "base_fn", tuner), "__name__", type(tuner).__name__)
    if not isinstance(tuner, Autotuner):
        raise InvalidInputError(
            f"{name} is a {type(tuner).__name__}, not an autotuned kernel: put @triton.autotune(configs=[…], key=[…]) or "
            "@forecast_autotune(…) above its @triton.jit"
        )
    if jit_function(tuner.fn) is None:
        why = "unset TRITON_INTERPRET" if knobs.runtime.interpret else "only @triton.jit functions can be forecast"
        raise InvalidInputError(f"kernel {name} has no JIT function under it: {why}")
    if isinstance(tuner, ForecastAutotuner):
        return tuner
    return ReachedTuner(tuner)


def _with_outer_heuristics(kernel: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the autotuner gets them from `@triton.heuristics` above it."""
    named = dict(arguments)
    name = ""
    try:
        while isinstance(kernel, Heuristics):
            for name, heuristic in kernel.values.items():
                named[name] = heuristic(dict(named))
            kernel = kernel.fn
    except Exception as err:
        raise InvalidInputError(
            f"the heuristic for {name} fails on these arguments ({type(err).__name__}: {err}): give all it reads"
        ) from err
    return named


def _check_arguments(tuner: ForecastAutotuner, named: Mapping[str, Any]) -> None:
    parameters = inspect.signature(tuner.base_fn).parameters
    unknown = [name for name in named if name not in parameters]
    if unknown:
        raise InvalidInputError(
            f"kernel {tuner.name} has no argument {', '.join(unknown)}: its arguments are {', '.join(parameters)}"
        )
    set_by_configs = {name for config in tuner.configs for name in config.all_kwargs()}
    both = [name for name in named if name in set_by_configs]
    if both:
        raise InvalidInputError(f"{', '.join(both)} of kernel {tuner.name} is what its configs set: leave it out")
    computed = heuristic_names(tuner.fn)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in {*named, *set_by_configs, *computed}
    ]
    if missing:
        raise InvalidInputError(
            f"arguments of kernel {tuner.name} are missing: {', '.join(missing)}; give each, such as "
            f"--arg {missing[0]}=float16[4096,4096] or --arg {missing[-1]}=4096"
        )


def _rank(forecast: Forecast | Abstention) -> tuple[bool, bool, float]:
    if isinstance(forecast, Abstention):
        return True, True, 0.0
    return False, forecast.fail_probability > 0.5, -forecast.mean
