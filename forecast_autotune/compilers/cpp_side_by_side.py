"""Variants of several extensions built side by side, each in a process of its own, for nobody who waits to call one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.config import Config
from ..core.hardware import Hardware, Toolchain
from ..core.outcome import Evidence, Failure
from ..errors import BuildError
from ..processes.machine import workers_that_fit
from ..processes.side_by_side import side_by_side
from .cpp_compile import BUILD_MEMORY_BYTES, CppCompiler
from .cpp_recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One variant to build: what its `CppCompiler` is made of, and the config."""

    recipe: Recipe
    toolchain: Toolchain
    hardware: Hardware
    folder: Path
    nvcc: str | None
    config: Config

    @classmethod
    def of(cls, compiler: CppCompiler, config: Config) -> Build:
        """The build of a config by a compiler."""
        return cls(
            recipe=compiler.recipe,
            toolchain=compiler.toolchain,
            hardware=compiler.hardware,
            folder=compiler.folder,
            nvcc=compiler.nvcc,
            config=config,
        )


def build_side_by_side(builds: Sequence[Build]) -> Iterator[tuple[int, Evidence | Failure]]:
    """The place of each build in the list with what came of it, as they are done.

    Raises:
        WorkerError: the processes die, twice in a row.
    """
    places = range(len(builds))
    numbered = list(zip(places, builds, strict=True))
    for (place, _), built in side_by_side(_build, numbered, workers_that_fit(BUILD_MEMORY_BYTES)):
        yield place, built


def _build(numbered: tuple[int, Build]) -> Evidence | Failure:
    _, build = numbered
    compiler = CppCompiler(build.recipe, build.toolchain, build.hardware, build.folder, nvcc=build.nvcc)
    try:
        ((_, built),) = compiler.compile([build.config])
    except BuildError as err:
        return Failure(stage="compile", message=str(err))
    return built
