"""What variants launch under each config of a call, learned without a launch, and what that says of the configs."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...core.config import Config
from ...core.hardware import Hardware

if TYPE_CHECKING:
    from ...compilers.triton_launches import Launched

log = logging.getLogger(__name__)

MOST_CONFIGS = 4096  # described, in 0.4 to 0.8 ms each (layer_norm, attention of the suite; two cores), the first aside
LONGEST_S = 2.0
LONGEST_SHARE = 0.1  # of a budget's seconds


class VariantLaunches:
    """The Triton kernels that a call launches under each config, asked once unless the call raises; none is launched.

    Args:
        made: config to what makes the call that way; None where what it launches cannot be told.
        args, kwargs: the call's.
    """

    def __init__(
        self, made: Callable[[Config], Callable[..., Any] | None], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._made = made
        self._given: tuple[Sequence[Any], Mapping[str, Any]] = args, kwargs
        self._told: dict[Config, Sequence[Launched]] = {}

    def __call__(self, config: Config) -> Sequence[Launched]:
        """The launches under a config; raises what the call raises on tensors without data."""
        from torch.utils._python_dispatch import _disable_current_modes

        from ...compilers import triton_launches

        if config not in self._told:
            made = self._made(config)
            with _disable_current_modes():  # what is done here is no part of a graph that is being made of the caller
                self._told[config] = triton_launches.launches(made, *self._dataless) if made is not None else ()
        return self._told[config]

    @cached_property
    def _dataless(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        from ...compilers.triton_launches import without_data

        made = without_data(*self._given)
        self._given = (), {}  # a job holds on to this, and a surrogate to its last job: tensors are not to live as long
        return made

    def described(self, config: Config, hardware: Hardware) -> Mapping[str, float]:
        """See `Job.described`; empty for a config that cannot be called, or that launches nothing known."""
        from ...compilers.triton_launches import static_features

        try:
            return static_features(self(config), hardware)
        except Exception as err:
            log.debug("%s is not described: %r", config, err)
            return {}


class Described(Sequence[Mapping[str, float]]):
    """What can be told of each config of a space, found out when it is first asked for: a stored decision needs none of it.

    Of many configs, a drawn part is described: as many as `MOST_CONFIGS`, in no more than about `longest_s`.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        describe: Callable[[Config], Mapping[str, float]],
        *,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._configs, self._describe, self._longest_s = configs, describe, longest_s

    def __len__(self) -> int:
        return len(self._configs)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        return self._found[0][i]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._found[0],)

    @property
    def asked(self) -> tuple[bool, ...]:
        """Whether each config is of the part that was described: of the others, an empty description says nothing."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[tuple[Mapping[str, float], ...], tuple[bool, ...]]:
        count = len(self._configs)
        drawn = [0, *random.Random(count).sample(range(1, count), count - 1)] if count else []
        found: list[Mapping[str, float]] = [{}] * count
        asked = [False] * count
        done, until = 0, math.inf
        for place in drawn[:MOST_CONFIGS]:
            found[place], asked[place] = self._describe(self._configs[place]), True
            done += 1
            if done == 1:  # which has imported what it takes, in up to 2.5 s (two busy cores)
                until = time.monotonic() + self._longest_s
            elif time.monotonic() > until:
                break
        if done < count:
            log.debug("%d of %d configs are described, for more there is no time", done, count)
        return tuple(found), tuple(asked)
