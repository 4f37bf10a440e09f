"""Building variants of a C++ or CUDA extension, several at once, each in a worker process that can be killed."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.config import Config
from ..core.hardware import Hardware, Toolchain
from ..core.outcome import Evidence, Failure, Stage
from ..errors import BuildError
from ..processes.core_slots import core_slots
from ..processes.endings import (
    WorkerDiedError,
    WorkerKilledError,
    WorkerRaisedError,
    WorkerTimeoutError,
    blames_the_machine,
)
from ..processes.extension import Extension
from ..processes.file_lock import file_lock
from ..processes.fork_server import fork_server
from ..processes.machine import BACKGROUND_NICE, workers_that_fit
from ..processes.pausing import Pausing
from ..processes.worker import Worker
from ..protocols import without_limit
from .builds import mark_used
from .cpp_broken import BrokenSources
from .cpp_build import build
from .cpp_builds import CppBuilds
from .cpp_errors import complete_log, failure_reason, first_errors, macros_in_headers
from .cpp_recipe import Recipe, Variant, words_of
from .cuda_report import kernel_report
from .private_folders import make_private, write_private

log = logging.getLogger(__name__)

BUILD_TIMEOUT_S = 300.0  # a build with all of torch's headers takes 30 s on two busy cores, with nvcc 100 s
LOAD_TIMEOUT_S = 60.0  # for a library's own initialisers
BUILD_MEMORY_BYTES = 2 << 30  # what one compiler takes at most with torch's headers (1.4 GiB seen, GCC 12)


class CppCompiler:
    """Builds a recipe's variants into folders that outlast the process; a variant built before is not built again.

    Args:
        recipe: what to build from.
        toolchain: what builds it, as `probe.detect_cpp_toolchain` says.
        hardware: what it is built for.
        folder: where builds are kept.
        nvcc: the CUDA compiler, None if there is none.
        timeout_s: after so long a build is killed with all its processes.
    """

    def __init__(
        self,
        recipe: Recipe,
        toolchain: Toolchain,
        hardware: Hardware,
        folder: Path,
        *,
        nvcc: str | None = None,
        timeout_s: float = BUILD_TIMEOUT_S,
    ) -> None:
        self.recipe = recipe
        self.toolchain = toolchain
        self.hardware = hardware
        self.folder = folder
        self.builds = CppBuilds(recipe, toolchain, hardware, folder)
        self.nvcc = nvcc
        self.timeout_s = timeout_s
        # Variants that only link anew share one slot: two would each compile the binding, which takes longer than all else.
        self.workers = workers_that_fit(BUILD_MEMORY_BYTES)
        self.slots = 1 if recipe.kernel_sources and not recipe.is_cuda else self.workers
        self.overlaps_timing = recipe.is_cuda  # else both want the CPU
        self._broken = BrokenSources(recipe)
        self._pausing = Pausing()
        self._failed: dict[Config, Failure] = {}  # by `compile`, and not told by `extension` yet
        self._nice = 0

    def in_background(self) -> CppCompiler:
        """The same for what nobody waits for: half as many builds side by side, which give way to all other processes."""
        other = copy.copy(self)
        other.workers = max(1, self.workers // 2)
        other.slots = min(self.slots, other.workers)
        other._nice = BACKGROUND_NICE
        return other

    @property
    def root(self) -> Path:
        """The folder to build in, made at its first use."""
        return self.builds.root

    def extension(self, config: Config) -> Extension:
        """The built extension of a config, built now if it is not there.

        Raises:
            BuildError: it does not build, or is to be built while this thread has all builds `paused`.
        """
        variant = self._variant(config)
        failed = self._failed.pop(config, None)  # a call that comes of it tells it at once; the next one builds again
        result = self.builds.evidence(variant) or failed
        if result is None and self._pausing.is_paused_here:  # its header was edited, or its build removed, since
            raise BuildError(f"{self.recipe.name} is not built with {config} any more, and others are timed now")
        result = result or self._build(config, self.builds.slot(0))
        if isinstance(result, Failure):
            raise BuildError(f"{self.recipe.name} does not build with {config}:\n{self._errors(variant, result)}")
        mark_used(self.builds.folder(variant))
        return Extension(path=str(self.builds.library(variant)), name=self.recipe.name, namespace=variant.namespace)

    def is_built(self, config: Config) -> bool:
        """Whether `extension` has nothing to build for a config."""
        return self.builds.evidence(self._variant(config)) is not None

    def compile(
        self,
        configs: Iterable[Config],
        *,
        workers: int | None = None,
        on_wait: Callable[[float], float] = without_limit,
    ) -> Generator[tuple[Config, Evidence | Failure], None, None]:
        """Build each config, yielding each as it is done. See `Compiler.compile`.

        Raises:
            BuildError: the sources compile under no variant.
        """
        most, waiting = min(workers or self.workers, self.workers), iter(configs)
        slots: queue.SimpleQueue[Path] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[Config, Evidence | Failure | BaseException]] = queue.SimpleQueue()
        ready: deque[tuple[Config, Evidence | Failure]] = deque()
        abandoned = threading.Event()
        began: dict[Config, float] = {}  # when a core was had for what is being built
        building = begun = 0

        def work(config: Config) -> None:
            slot = slots.get()
            try:
                with core_slots().held(given_up=abandoned.is_set):
                    if not abandoned.is_set():
                        began[config] = self._pausing.clock()
                        done.put((config, self._build(config, slot, abandoned)))
            except BaseException as err:  # handed over, or whoever waits for this build would wait for ever
                done.put((config, err))
            finally:
                slots.put(slot)

        def waited_s() -> float:
            since = list(began.values())
            return self._pausing.clock() - max(since) if len(since) == building else 0.0

        with ThreadPoolExecutor(self.workers, thread_name_prefix="forecast_autotune_build") as pool:
            try:
                while True:
                    while building + len(ready) < most and (config := next(waiting, None)) is not None:
                        if (there := self.builds.evidence(self._variant(config))) is not None:
                            ready.append((config, there))
                            continue
                        if begun < self.workers:
                            slots.put(self.builds.slot(begun % self.slots))
                        pool.submit(work, config)
                        building, begun = building + 1, begun + 1
                    if not ready and building:
                        limit_s = on_wait(waited_s()) if done.empty() else 0.0
                        try:
                            config, built = done.get(timeout=None if limit_s == math.inf else limit_s)
                        except queue.Empty:
                            if limit_s:
                                continue
                            return
                        began.pop(config, None)
                        building -= 1
                        if isinstance(built, BaseException):
                            raise built
                        ready.append((config, built))
                    if not ready:
                        return
                    config, result = ready.popleft()
                    if isinstance(result, Failure):
                        self._failed[config] = result
                    yield config, result
                    self._learn(config, result)
            finally:
                abandoned.set()

    def paused(self) -> AbstractContextManager[None]:
        """Stop all builds, for as long as something is timed that must not be disturbed."""
        return self._pausing.paused()

    # One variant ----------------------------------------------------------------------------------------------------

    def _learn(self, config: Config, built: Evidence | Failure) -> None:
        """Raise a failure where no other variant need be tried."""
        if not isinstance(built, Failure):
            self._broken.works()
            return
        if self._broken.breaks_all(config, built):
            variant = self._variant(config)
            why = "" if self._names_of_headers(variant) else ", for no knob touches why"
            raise BuildError(f"{self.recipe.name} builds with no config{why}:\n{self._errors(variant, built)}")

    def _errors(self, variant: Variant, failure: Failure) -> str:
        errors = first_errors(self.builds.folder(variant) / "build.log", failure.message)
        if names := self._names_of_headers(variant):
            errors += (
                "\nA knob is a macro in all that is included, and an installed header has a name of its own like "
                f"{' and '.join(names)}: give it a longer name"
            )
        return errors

    def _names_of_headers(self, variant: Variant) -> list[str]:
        """The variant's macros that an error in a header may come from."""
        log, own = self.builds.folder(variant) / "build.log", self.recipe.include_folders
        return macros_in_headers(log, variant.macros, [os.path.abspath(folder) for folder in own])

    def _variant(self, config: Config) -> Variant:
        return self.recipe.variant(config, self.toolchain, self.hardware)

    def _build(self, config: Config, slot: Path, abandoned: threading.Event | None = None) -> Evidence | Failure:
        """Build one variant, or wait for the process that is building it; once more where that was cut short."""
        result = self._build_once(config, slot, abandoned)
        if abandoned is not None and abandoned.is_set():
            return result
        if isinstance(result, Failure) and result.transient and result.stage == "compile":
            log.warning("%s: building %s failed for no fault of its own: %s", self.recipe.name, config, result.message)
            return self._build_once(config, slot, abandoned)
        return result

    def _build_once(self, config: Config, slot: Path, abandoned: threading.Event | None) -> Evidence | Failure:
        variant = self._variant(config)
        folder = self.builds.folder(variant)
        began = time.perf_counter()
        try:
            self.builds.prepare(variant, slot)
            given_up = abandoned.is_set if abandoned is not None else lambda: False
            with file_lock(folder / "build.lock", timeout=2 * self.timeout_s, given_up=given_up):
                if ready := self.builds.evidence(variant):
                    return ready
                report = self.report(config)
                if isinstance(report, Failure):
                    return report
                mark_used(slot)
                self._pausing.wait(given_up)
                if given_up():
                    raise _AbandonedError
                with self._start(variant, folder, slot) as worker:
                    self._pausing.add(worker)
                    try:
                        answer = self._wait(worker, abandoned)
                        worker.finish(30.0)
                    finally:
                        self._pausing.discard(worker)
        except (_UnloadableError, WorkerTimeoutError, WorkerRaisedError, WorkerDiedError, OSError) as err:
            return replace(self._failure_of(err, folder), cost_s=time.perf_counter() - began)
        return self.builds.keep(variant, answer, report)

    def _failure_of(self, err: Exception, folder: Path) -> Failure:
        """The failure that an exception of a build means."""
        build_log = folder / "build.log"
        if isinstance(err, _UnloadableError):
            transient = not err.crashed and blames_the_machine(str(err))
            message = f"it is built, and loading it fails: {err}"
            return Failure(stage="load", message=message, crashed=err.crashed, transient=transient)
        if isinstance(err, WorkerTimeoutError):
            message = f"the build took more than {self.timeout_s:.0f} s; its log is {build_log}"
            return Failure(stage="timeout", message=message)
        if isinstance(err, (WorkerRaisedError, WorkerDiedError)):
            complete_log(build_log, str(err))
            message, its_own = failure_reason(build_log, str(err))
            transient = isinstance(err, WorkerDiedError) or not its_own
            return Failure(stage="compile", message=message, transient=transient)
        stage: Stage = "timeout" if isinstance(err, TimeoutError) else "compile"
        return Failure(stage=stage, message=f"{folder}: {err}", transient=True)

    def report(self, config: Config) -> Evidence | Failure | None:
        """What nvcc says of a CUDA variant's kernels alone, before anything is built; no GPU is needed.

        A variant that the hardware cannot run is a `Failure` at stage `resources`; None if nothing can be said.
        """
        variant = self._variant(config)
        if not variant.cuda or self.nvcc is None:
            return None
        by_role = [v for k, v in config.knobs.items() if self.recipe.roles.get(k) == "threads" and isinstance(v, int)]
        folder = self.builds.folder(variant)
        make_private(folder)
        given = self.recipe.arguments
        includes = [f"-I{path}" for path in given.get("extra_include_paths") or []]
        return kernel_report(
            nvcc=self.nvcc,
            sources=variant.cuda,
            defines=variant.defines,
            flags=(*words_of(given.get("extra_cuda_cflags") or []), *variant.flags, *includes),
            folder=folder,
            hardware=self.hardware,
            threads=math.prod(by_role) if by_role else None,
        )

    def _start(self, variant: Variant, folder: Path, slot: Path) -> Worker:
        recipe = self.recipe
        plan = {
            "name": recipe.name,
            "slot": str(slot),
            "compiler": os.environ.get("CXX", "c++"),
            "cpp": variant.cpp,
            "cuda": variant.cuda,
            "kernel": variant.kernel,
            "torchs_text": recipe.torchs_text,
            "functions": None if recipe.functions is None or not recipe.is_python_module else dict(recipe.functions),
            "is_python_module": recipe.is_python_module,
            "arguments": {k: v for k, v in recipe.arguments.items() if k != "build_directory"},
            "defines": variant.defines,
            "flags": variant.flags,
            "include_folders": recipe.include_folders,
            "binding_has_knobs": any(
                re.search(rf"\b{name}\b", text) for name in variant.macros for text in variant.cpp
            ),
        }
        write_private(folder / "request.json", json.dumps(plan))
        (folder / "build.log").unlink(missing_ok=True)
        # In the environment of now: the toolchain was asked for in it, and the server may have been started in another.
        request = {"folder": str(folder), "nice": self._nice}
        return fork_server().start(build, request, environment=os.environ, may_leave=True)

    def _wait(self, worker: Worker, abandoned: threading.Event | None) -> dict[str, Any]:
        """The worker's answer; the time it waits for its slot, which others are building in, does not count."""
        timeout_s, loading = self.timeout_s, False

        def watch() -> None:
            if abandoned is not None and abandoned.is_set():
                raise _AbandonedError

        while True:
            try:
                message = worker.receive(timeout_s, watch)
            except WorkerTimeoutError as err:
                if loading and not isinstance(err, _AbandonedError):
                    raise _UnloadableError(str(err), crashed=True) from None
                raise
            except (WorkerDiedError, WorkerRaisedError) as err:
                if not loading or isinstance(err, WorkerKilledError):
                    raise
                raise _UnloadableError(str(err), crashed=isinstance(err, WorkerDiedError)) from None
            if "loading" in message:
                loading, timeout_s = True, LOAD_TIMEOUT_S
            elif "waiting" in message:
                timeout_s = math.inf if message["waiting"] else self.timeout_s
            else:
                return message


class _AbandonedError(WorkerTimeoutError):
    """Nobody waits for the build any more."""


class _UnloadableError(Exception):
    """What was built cannot be loaded; `crashed` where trying that ends a process or never ends itself."""

    def __init__(self, message: str, *, crashed: bool) -> None:
        super().__init__(message)
        self.crashed = crashed
