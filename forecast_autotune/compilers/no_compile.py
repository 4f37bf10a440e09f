"""Where nothing can be compiled ahead: every config counts as built, and its launch compiles it if it must."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from ..core.config import Config
from ..core.outcome import Evidence, Failure


class NoCompiler:
    """For the interpreter, and for kernels that are no JIT functions."""

    workers = 1
    overlaps_timing = False

    def compile(self, configs: Sequence[Config]) -> Iterator[tuple[Config, Evidence | Failure]]:
        """Yield every config at once, with evidence that says nothing."""
        for config in configs:
            yield config, Evidence(compile_s=0.0)

    def paused(self) -> AbstractContextManager[None]:
        """Nothing to stop."""
        return contextlib.nullcontext()
