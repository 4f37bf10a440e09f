"""Compiles configs of a Triton kernel in worker processes, into the cache entries their launches will look up."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ..core.config import Config
from ..core.outcome import Evidence, Failure
from ..core.signal_handlers import raised_by_signal_handler
from ..processes.endings import WorkersUnavailableError
from ..protocols import without_limit
from .triton_evidence import evidence, out_of_resources
from .triton_launcher import launcher_builds
from .triton_pool import Compiling, WorkerPool, current_setup, shared_pool
from .triton_source import (
    NotAheadError,
    Source,
    compile_here,
    found_in_cache,
    front_end,
    gpu_target,
    make_source,
)
from .triton_worker import Task, brief, is_the_machines, limiting

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0  # of 48 matmul configs on three targets the slowest took 1.9 s; kernels with large tiles take tens

Result = Evidence | Failure


class _Results:
    """What is handed over, in its order.

    A failure is held back until something is built: then it is the config's own. Where nothing is, it may be the call's,
    which no config of it mends, and so it is transient.
    """

    def __init__(self) -> None:
        self.ready: deque[tuple[Config, Result]] = deque()
        self._held: list[tuple[Config, Failure]] = []

    def add(self, config: Config, result: Result, *, any_built: bool) -> None:
        """Take in a result."""
        if isinstance(result, Failure) and not (result.transient or result.crashed or any_built):
            self._held.append((config, result))
        else:
            self.ready.append((config, result))
        if any_built:
            self.ready.extend(self._held)
            self._held.clear()

    def give_up(self) -> None:
        """Hand over what is held back, for nothing is built."""
        self.ready.extend((config, replace(failure, transient=True)) for config, failure in self._held)
        self._held.clear()


class SourceCompiler:
    """Compiles Triton sources, one for each config, for a GPU that is present or only named.

    Each is lowered to its first IR here, which needs the kernel's globals and takes 2 to 100 ms; the rest, 0.2 to 2
    seconds, runs in worker processes that hold nothing of the caller's. A compiler that hangs or aborts takes its worker
    with it and becomes a `Failure`. What is compiled lies in Triton's cache under the very hash the launch looks up. A
    config that the device cannot hold leaves as a failure at `resources`, in the words Triton's launch would use.

    Args:
        source: config to what the compiler is given. Asked once for each config, in the caller's thread.
        properties: the device's limits under Triton's names (`max_shared_mem`, `max_num_regs`, ...); those of the driver,
            or `hardware_sheets.device_properties`. A limit that is missing is not checked.
        timeout_s: how long a config may compile.
        pool: whose workers, without which nothing is compiled; the process's own if not given.
    """

    overlaps_timing = True  # it wants the CPU, timing the GPU

    def __init__(
        self,
        source: Callable[[Config], Source],
        *,
        properties: Mapping[str, int],
        timeout_s: float = TIMEOUT_S,
        pool: WorkerPool | None = None,
    ) -> None:
        self.source = source
        self.properties = dict(properties)
        self.timeout_s = timeout_s
        self._pool = pool
        self._any_built = False  # of this call

    @property
    def pool(self) -> WorkerPool:
        """The worker processes that compile: those given, or the process's own."""
        return self._pool or shared_pool()

    @property
    def workers(self) -> int:
        """How many configs are compiled side by side."""
        return self.pool.workers

    def paused(self) -> AbstractContextManager[None]:
        """Stop all compiling, for as long as something is timed that must not be disturbed."""
        return self.pool.paused()

    def compile(
        self,
        configs: Iterable[Config],
        *,
        workers: int | None = None,
        on_wait: Callable[[float], float] = without_limit,
    ) -> Generator[tuple[Config, Result], None, None]:
        """Compile each config, yielding each as it is done. See `Compiler.compile`.

        Workers go on with what they have been given while the caller does something else between two results. What is
        abandoned ends with its worker, and nothing of it reaches Triton's cache.
        """
        most, waiting = workers or self.workers, iter(configs)
        compiling: dict[Compiling, list[tuple[Config, Source, float]]] = {}
        by_hash: dict[str, Compiling] = {}
        results = _Results()
        try:
            while True:
                while (
                    sum(map(len, compiling.values())) + len(results.ready) < most
                    and (config := next(waiting, None)) is not None
                ):
                    began = time.perf_counter()
                    begun = self._begin(config, by_hash)
                    seconds = time.perf_counter() - began
                    if isinstance(begun, (Evidence, Failure)):
                        results.add(config, begun, any_built=self._any_built)
                        if results.ready and seconds > 0.05:  # it was compiled here: hand it over before the next one
                            break
                    else:
                        made, future = begun
                        by_hash[made.hash] = future
                        compiling.setdefault(future, []).append((config, made, seconds))
                if not results.ready and self._collect(compiling, results, on_wait) and not results.ready:
                    continue  # others may be begun in the place of what is held back
                if not results.ready:
                    results.give_up()
                if not results.ready:
                    return
                yield results.ready.popleft()
        finally:
            self.pool.abandon(compiling)

    def _collect(
        self,
        compiling: dict[Compiling, list[tuple[Config, Source, float]]],
        results: _Results,
        on_wait: Callable[[float], float],
    ) -> bool:
        """Wait until something is compiled, as long as `on_wait` says; whether anything was."""
        ended = [each for each in compiling if each.done()]
        while compiling and not ended:
            limit_s = on_wait(_waited_s(compiling, self.pool.clock()))
            wait(compiling, None if limit_s == math.inf else limit_s, FIRST_COMPLETED)
            ended = [each for each in compiling if each.done()]
            if not limit_s:
                break
        for future in ended:
            for config, made, here_s in compiling.pop(future):
                result = self._result(made, future, here_s)
                results.add(config, result, any_built=self._any_built)
                if isinstance(result, Evidence):
                    launcher_builds.finish(made, on_wait(0.0))
        return bool(ended)

    def _begin(self, config: Config, by_hash: Mapping[str, Compiling]) -> Result | tuple[Source, Compiling]:
        """Bind, look the config up in Triton's cache, else lower it and hand it to a worker."""
        began = time.perf_counter()
        try:
            made = self.source(config)
            if made.hash in by_hash:  # another config that means the same
                return made, by_hash[made.hash]
            if (kernel := found_in_cache(made)) is not None:
                return self._judge(
                    kernel.metadata, evidence(kernel.metadata, kernel.asm, compile_s=time.perf_counter() - began)
                )
            setup = current_setup()
            if setup is None:
                return self._compile_here(made)
            self.pool.prepare()
            source = made.source
            task = Task(
                ir=front_end.first_ir(made),
                name=source.name,
                extension=source.ext,
                language=source.language,
                signature=source.signature,
                source_hash=source.hash(),
                options=made.options,
                target=made.target,
                environment=made.environment,
                key=made.key,
            )
        except NotAheadError as err:
            log.info("%s: it is compiled by its first launch: %s", config, err)
            return Evidence(compile_s=0.0)
        except Exception as err:  # Triton's front end, a heuristic or a hook refused it
            return _failure(err, time.perf_counter() - began)
        try:
            future = self.pool.submit(task, setup, self.timeout_s)
            launcher_builds.begin(made, self.pool, setup)
            return made, future
        except WorkersUnavailableError as err:
            return self._without_workers(made, err)

    def _result(self, made: Source, future: Compiling, here_s: float) -> Result:
        try:
            built = future.result()
        except WorkersUnavailableError as err:
            return self._without_workers(made, err)
        except Exception as err:  # the pool itself broke, by an answer that cannot be read for one
            return _failure(err, here_s)
        cost_s = here_s + built.cost_s
        if built.evidence is None:
            return Failure(
                stage=built.stage, message=built.error, cost_s=cost_s, crashed=built.crashed, transient=built.transient
            )
        if built.hash != made.hash:  # another Triton in the worker: right, but of no use to the launch
            log.warning("%s was compiled under %s, its launch looks for %s", made.source.name, built.hash, made.hash)
        return self._judge(built.metadata, replace(built.evidence, compile_s=cost_s))

    def _judge(self, metadata: Mapping[str, Any], facts: Evidence) -> Result:
        self._any_built = True
        return out_of_resources(metadata, facts, self.properties, cost_s=facts.compile_s) or facts

    def _without_workers(self, made: Source, err: WorkersUnavailableError) -> Result:
        global _warned
        if self._pool is not None and self._pool.closed:  # the process ends, and nobody waits for this
            return Failure(stage="compile", message=str(err), transient=True)
        if not _warned:
            _warned = True
            log.warning("%s: configs are compiled in this process, one after the other", err)
        return self._compile_here(made)

    def _compile_here(self, made: Source) -> Result:
        began = time.perf_counter()
        try:
            kernel = compile_here(made)
        except Exception as err:
            return _failure(err, time.perf_counter() - began)
        metadata = kernel.metadata._asdict()
        return self._judge(limiting(metadata), evidence(metadata, kernel.asm, compile_s=time.perf_counter() - began))


_warned = False


def _waited_s(compiling: Iterable[Compiling], now: float) -> float:
    """For how long workers have been at all of these, in seconds; 0 while one waits."""
    return min(0.0 if each.begun is None else now - each.begun for each in compiling)


class TritonCompiler(SourceCompiler):
    """Compiles configs of one call of a kernel.

    Args:
        kernel: the JITFunction.
        bind: config to the positional and keyword arguments of the call under it: those that the caller gave, and the
            config's knobs as keywords, without options that are None. Asked once for each config, in the caller's thread.
        target: `cuda:90`, `hip:gfx942`, or a GPUTarget.
        others: see `SourceCompiler`.
    Raises:
        InvalidInputError: the target does not parse.
    """

    def __init__(
        self,
        kernel: Any,
        bind: Callable[[Config], tuple[Sequence[Any], Mapping[str, Any]]],
        *,
        target: object,
        **others: Any,
    ) -> None:
        aimed = gpu_target(target)
        self.bind = bind

        def source(config: Config) -> Source:
            args, kwargs = bind(config)
            return make_source(kernel, args, kwargs, aimed)

        super().__init__(source, **others)


def _failure(err: Exception, seconds: float) -> Failure:
    if raised_by_signal_handler(err):
        raise err
    return Failure(stage="compile", message=brief(err), cost_s=seconds, transient=is_the_machines(err))
