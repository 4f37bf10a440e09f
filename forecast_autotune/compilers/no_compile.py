"""Where nothing can be compiled ahead: every config counts as built, and its launch compiles it if it must."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager

from ..core.config import Config
from ..core.outcome import Evidence, Failure
from ..protocols import without_limit


class NoCompiler:
    """For the interpreter, and for kernels that are no JIT functions."""

    workers = 1
    overlaps_timing = False

    def compile(
        self,
        configs: Iterable[Config],
        *,
        workers: int | None = None,  # noqa: ARG002  # nothing is ever under way
        on_wait: Callable[[float], float] = without_limit,  # noqa: ARG002
    ) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        """Yield every config at once, with evidence that says nothing."""
        for config in configs:
            yield config, Evidence(compile_s=0.0)

    def paused(self) -> AbstractContextManager[None]:
        """Nothing to stop."""
        return contextlib.nullcontext()
