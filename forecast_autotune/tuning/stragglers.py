"""How long builds are waited for that take far longer than others did.

On 152 runs of recorded spaces of Triton kernels and 80 of CUDA kernels, with eight configs measured of each, no choice is
worse for it. Twice the median would cost 0.8 % and save 2 % of the seconds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

TIMES = 3.0  # the median of the other builds: beyond, what is left is left behind
ENOUGH = 4  # builds that others can be compared with
LEAST_S = 0.5  # so long any build is waited for: a core may be busy with something else for a moment
CACHED_S = 0.03  # what took less came from a cache, and tells nothing


def patience_s(took_s: Sequence[float], waited_s: float) -> float:
    """How much longer to wait for builds that have all taken `waited_s` seconds or more; infinite without enough others.

    Args:
        took_s: what the run's other builds took.
    """
    built_s = [seconds for seconds in took_s if seconds >= CACHED_S]
    if len(built_s) < ENOUGH:
        return math.inf
    return max(0.0, max(LEAST_S, TIMES * statistics.median(built_s)) - waited_s)
