"""The threads of a launch that are looked at: whole warps of some blocks, and single threads beside one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WARP = 32
LOOPS = 6  # loops within each other whose steps are told apart
OCTAVES = 10  # 1024 threads: steps from the thread that others are beside, to those 1, 2, 4, ... further in its block,
STEPS = OCTAVES + LOOPS  # and to the next trip of the first loop, of the one in it, and so on
_FRACTIONS = (0.6180, 0.7549, 0.8192, 0.8567, 0.8813, 0.8987)  # how far loops are, evenly spread (Roberts, R sequences)


class SampledThreads:
    """A warp of each octave and the last, of the first, last and other blocks; then one thread, and others beside it.

    Attributes:
        count: how many are looked at.
        weight: what share of all threads each stands for; the single ones for none.
        there: which of them there are; True if all.
        builtins: what CUDA's own variables are, by name and axis.
        warps: how many warps there are at the beginning, each of 32.
        reference: where the single thread is that others are beside.
    """

    def __init__(self, grid: Sequence[int], block: Sequence[int]) -> None:
        import numpy as np

        blocks, self.threads = math.prod(grid), math.prod(block)
        warps = -(-self.threads // WARP)
        self.blocks, self.warps_of_block = blocks, warps
        of_warp = _octaves(warps)
        of_block = _spread(blocks, 4 if len(of_warp) < 4 else 3)
        pairs = [(b, w, share * part) for b, share in of_block for w, part in of_warp]
        self.warps = len(pairs)
        lane = np.arange(WARP)
        middle = of_block[min(1, len(of_block) - 1)][0]
        threads = [np.concatenate([w * WARP + lane for _, w, _ in pairs]), np.zeros(1 + STEPS, dtype=np.int64)]
        numbers = [np.repeat([b for b, _, _ in pairs], WARP), np.full(1 + STEPS, middle)]
        thread, number = np.concatenate(threads), np.concatenate(numbers)
        self.reference = self.warps * WARP
        beside = 2 ** np.arange(OCTAVES)
        thread[self.reference + 1 : self.reference + 1 + OCTAVES] = np.where(beside < self.threads, beside, 0)
        self.count = thread.size
        self.weight = np.concatenate([np.repeat([share / WARP for _, _, share in pairs], WARP), np.zeros(1 + STEPS)])
        whole = self.threads % WARP == 0
        self.there: Any = True if whole else thread < self.threads
        self.builtins: dict[tuple[str, str], Any] = {}
        for name, index, extents in (("threadIdx", thread, block), ("blockIdx", number, grid)):
            for axis, extent in zip("xyz", extents, strict=True):
                self.builtins[name, axis] = index % extent if extent > 1 else 0
                index = index // extent
        for name, extents in (("blockDim", block), ("gridDim", grid)):
            self.builtins.update({(name, axis): int(n) for axis, n in zip("xyz", extents, strict=True)})
        self.builtins["warpSize", ""] = WARP
        warp = np.arange(1, self.warps + 1)
        self._progress = [
            np.concatenate([np.repeat((warp * f + 0.5) % 1, WARP), np.full(1 + STEPS, 0.5)]) for f in _FRACTIONS
        ]

    def trip(self, depth: int, trips: Any) -> Any:
        """In which trip of a loop each thread is looked at, the loop being in `depth` others."""
        import numpy as np

        progress = self._progress[depth % LOOPS]
        trip: NDArray[np.int64] = np.asarray(progress * trips).astype(np.int64)
        single = slice(self.reference, None)
        last = trips[single] - 1 if isinstance(trips, np.ndarray) else trips - 1
        trip[single] = np.maximum((0.5 * last).astype(np.int64) if isinstance(last, np.ndarray) else int(0.5 * last), 0)
        if depth < LOOPS:
            trip[self.reference + 1 + OCTAVES + depth] += 1
        return trip

    def steps(self, values: Any) -> tuple[float, ...]:
        """By how much a value grows with each of the steps."""
        import numpy as np

        if not isinstance(values, np.ndarray):
            return (0.0,) * STEPS
        single = values[self.reference :]
        return tuple((single[1:] - single[0]).tolist())


def _spread(count: int, most: int) -> list[tuple[int, float]]:
    """At most so many of `count` things, first and last among them, and the share of all that each stands for."""
    if count <= most:
        return [(i, 1.0 / count) for i in range(count)]
    inner = [int(count * (i + 0.38) / (most - 2)) for i in range(most - 2)]
    inner = sorted({min(max(1, i), count - 2) for i in inner})
    share = (count - 2) / count / len(inner)
    return [(0, 1.0 / count), *((i, share) for i in inner), (count - 1, 1.0 / count)]


def _octaves(count: int) -> list[tuple[int, float]]:
    """The first of so many warps, one of each octave, and the last, and the share of all that each stands for.

    What only some warps of a block do, as in a tree, is mostly done by the first half, quarter and so on.
    """
    found, begin = [], 0
    while begin < count - 1:
        end = min(max(1, 2 * begin), count - 1)
        found.append(((begin + end) // 2, (end - begin) / count))
        begin = end
    return [*found, (count - 1, 1.0 / count)]
