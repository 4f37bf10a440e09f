"""How long builds are waited for that take far longer than others did."""

from __future__ import annotations

import math
from collections.abc import Sequence

TIMES = 2.0  # the longest of the other builds: beyond, what is left is left behind
ENOUGH = 3  # builds that others can be compared with
LEAST_S = 10.0  # so long any build is waited for: others may have come from a cache, or its core may be busy


def patience_s(took_s: Sequence[float], waited_s: float) -> float:
    """How much longer to wait for builds that have all taken `waited_s` seconds or more; infinite without enough others.

    Args:
        took_s: what the run's other builds took.
    """
    if len(took_s) < ENOUGH:
        return math.inf
    return max(0.0, max(LEAST_S, TIMES * max(took_s)) - waited_s)
