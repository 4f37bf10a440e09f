"""The joint space of variants: their own knobs with those of the tuners that they call."""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.cached_property import cached_property
from ...core.config import Config
from ...core.digest import Value
from ...core.signal_handlers import raised_by_signal_handler
from ...measure.copies import UnportableError, run_on_copies
from ...measure.process_state import preserve_process_state
from ..call_tensors import reached_by_call
from ..nested_tuning import NestedTuner, NestedTuning, run_nested
from ..tuned_callable import Call
from ..tuning_lock import tuning_lock
from .arguments import KNOB, Variant

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One way to make a call.

    Attributes:
        config: the joint config.
        variant: which variant runs.
        knobs: its own, handed to it by name.
        fixed_configs: by identity of a tuner that it calls, the config which that one runs.
        defaults_only: its other tuners run their defaults and do not tune themselves.
    """

    config: Config
    variant: Variant
    knobs: Mapping[str, Value]
    fixed_configs: Mapping[int, Any]
    defaults_only: bool = False

    @cached_property
    def call(self) -> Callable[..., Any]:
        """Makes a call this way."""
        function = functools.partial(self.variant.call, **self.knobs) if self.knobs else self.variant.call
        if not self.fixed_configs and not self.defaults_only:
            return function
        nested = NestedTuning(fixed_configs=self.fixed_configs, defaults_only=self.defaults_only)
        return run_nested(nested, function)


def combined(variant: Variant, own: Config, tuners: Sequence[NestedTuner], *, most: float) -> list[Choice]:
    """A variant's own config with every combination of the configs of the tuners in it.

    Args:
        most: combinations; the tuners after those that reach it tune themselves.
    """
    joined = [t for i, t in enumerate(tuners) if math.prod(len(u.candidates) for u in tuners[: i + 1]) <= most]
    choices = []
    for chosen in itertools.product(*(t.candidates.items() for t in joined)):
        knobs: dict[str, Value] = {KNOB: variant.name, **own.knobs}
        for tuner, (config, _) in zip(joined, chosen, strict=True):
            knobs.update({f"{tuner.name}.{name}": value for name, value in config.knobs.items()})
        fixed = {id(t.tuner): theirs for t, (_, theirs) in zip(joined, chosen, strict=True)}
        choices.append(Choice(config=Config(knobs), variant=variant, knobs=own.knobs, fixed_configs=fixed))
    return choices


def tuners_called(variant: Variant, call: Call, name: str) -> tuple[NestedTuner, ...]:
    """The tuners that a variant calls, from a call on copies of its arguments.

    Args:
        name: of all the variants, for the log.
    """
    nested = NestedTuning(defaults_only=True, records=True)
    knobs = variant.space.default.knobs if variant.space else {}
    reached = reached_by_call([variant.function], call.values)
    try:
        # A variant may have other threads call tuned functions, for which it waits.
        with tuning_lock.slow(True), preserve_process_state():
            run = functools.partial(run_nested(nested, variant.call), **knobs)
            run_on_copies(run, call.args, call.kwargs, **reached)
    except UnportableError as err:
        log.info("%s of %s is not asked for tuners: %s", variant.name, name, err)
    except Exception as err:  # reported when the variant is timed
        if raised_by_signal_handler(err):
            raise
        log.debug("%s of %s: %r", variant.name, name, err)
    return tuple(nested.tuners.values())
