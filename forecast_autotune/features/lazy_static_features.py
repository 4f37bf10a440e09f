"""Static features of a space's configs, computed once somebody asks for them."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.cached_property import cached_property
from ..core.config import Config

log = logging.getLogger(__name__)

MAX_CONFIGS = 4096  # at 0.4 to 0.8 ms each after the first (layer_norm, attention of the suite; two cores)
LONGEST_S = 2.0


class LazyStaticFeatures(Sequence[Mapping[str, float]]):
    """The static features of each config of a space, computed at the first access: a recalled decision needs none.

    Of a large space only a random part gets features: at most `MAX_CONFIGS`, in about `longest_s` seconds. A config whose
    features `describe` cannot tell (None, where an empty answer says that it is refused) counts as none of that part.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        describe: Callable[[Config], Mapping[str, float] | None],
        *,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._configs, self._describe, self._longest_s = configs, describe, longest_s

    def __len__(self) -> int:
        return len(self._configs)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        return self._computed[0][i]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._computed[0],)

    @property
    def asked(self) -> tuple[bool, ...]:
        """Whether each config is of the part that got features; of the others, empty features say nothing."""
        return self._computed[1]

    @cached_property
    def _computed(self) -> tuple[tuple[Mapping[str, float], ...], tuple[bool, ...]]:
        count = len(self._configs)
        drawn = [0, *random.Random(count).sample(range(1, count), count - 1)] if count else []
        features: list[Mapping[str, float]] = [{}] * count
        asked = [False] * count
        done, until = 0, math.inf
        for index in drawn[:MAX_CONFIGS]:
            described = self._describe(self._configs[index])
            features[index], asked[index] = described or {}, described is not None
            done += 1
            if done == 1:  # the first one imports modules, in up to 2.5 s (two busy cores)
                until = time.monotonic() + self._longest_s
            elif time.monotonic() > until:
                break
        if done < count:
            log.debug("%d of %d configs are described, for more there is no time", done, count)
        return tuple(features), tuple(asked)
