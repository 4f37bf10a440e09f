"""Building variants of a C++ or CUDA extension, several at once, each in a worker process that can be killed."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import json
import logging
import math
import os
import queue
import re
import shutil
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..core.config import Config
from ..core.digest import digest
from ..core.hardware import Hardware, Toolchain
from ..core.outcome import Evidence, Failure
from ..errors import AutotuneError
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
from ..processes.machine import workers_that_fit
from ..processes.worker import Worker
from .builds import mark_used
from .cpp_build import build
from .cpp_headers import changed
from .cpp_recipe import Recipe, Variant, build_root
from .cuda_report import kernel_report

log = logging.getLogger(__name__)

BUILD_TIMEOUT_S = 300.0  # a build with all of torch's headers takes 30 s on two busy cores, with nvcc 100 s
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_ERROR = re.compile(r"\b(fatal )?error\b\s*:|undefined reference|ld: ")
_OF_THE_SOURCE = re.compile(r"[:(]\d+\)?: (?:fatal )?error: ")  # a front end's, with the line that it is about
_QUOTED_LINE = re.compile(r"^\s*\d*\s*\| ")  # source, as GCC and Clang show it below an error
_QUOTED_WORDS = re.compile(r"\u2018[^\u2019]*\u2019|'[^']*'|\"[^\"]*\"")
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

    beside_timing = False  # both want the CPU

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
        self._folder_of_builds = folder
        self.nvcc = nvcc
        self.timeout_s = timeout_s
        # Variants that only link anew share one slot: two would each compile the binding, which takes longer than all else.
        self.workers = workers_that_fit(BUILD_MEMORY_BYTES)
        self.slots = 1 if recipe.kernel_sources and not recipe.is_cuda else self.workers

    @functools.cached_property
    def root(self) -> Path:
        """The folder to build in, made at its first use."""
        named_by = "build_directory" if self.recipe.arguments.get("build_directory") else "FORECAST_AUTOTUNE_DIR"
        return _own_root(Path(build_root(self._folder_of_builds, self.recipe)) / self.recipe.name, named_by)

    def extension(self, config: Config) -> Extension:
        """The built extension of a config, built now if it is not there.

        Raises:
            AutotuneError: it does not build; the message is the compiler's, and where its log is.
        """
        variant = self._variant(config)
        result = self._built(variant) or self._build(config, self._slot(0))
        if isinstance(result, Failure):
            raise AutotuneError(f"{self.recipe.name} does not build with {config}: {result.message}")
        mark_used(self._folder(variant))
        return Extension(path=str(self._library(variant)), name=self.recipe.name, namespace=variant.namespace)

    def is_built(self, config: Config) -> bool:
        """Whether `extension` has nothing to build for a config."""
        return self._built(self._variant(config)) is not None

    def compile(self, configs: Sequence[Config]) -> Iterator[tuple[Config, Evidence | Failure]]:
        waiting: list[Config] = []
        for config in configs:
            ready = self._built(self._variant(config))
            if ready is None:
                waiting.append(config)
            else:
                yield config, ready
        if not waiting:
            return
        slots: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for i in range(self.workers):
            slots.put(self._slot(i % self.slots))
        done: queue.SimpleQueue[tuple[Config, Evidence | Failure | BaseException]] = queue.SimpleQueue()
        abandoned = threading.Event()

        def work(config: Config) -> None:
            slot = slots.get()
            try:
                if not abandoned.is_set():
                    done.put((config, self._build(config, slot, abandoned)))
            except BaseException as err:  # handed over, or whoever waits for this build would wait for ever
                done.put((config, err))
            finally:
                slots.put(slot)

        with ThreadPoolExecutor(self.workers, thread_name_prefix="forecast_autotune_build") as pool:
            try:
                for config in waiting:
                    pool.submit(work, config)
                for _ in waiting:
                    config, built = done.get()
                    if isinstance(built, BaseException):
                        raise built
                    yield config, built
            finally:
                abandoned.set()

    def paused(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # every build has ended when `compile` hands back its last config

    # One variant ----------------------------------------------------------------------------------------------------

    def _variant(self, config: Config) -> Variant:
        return self.recipe.variant(config, self.toolchain, self.hardware)

    def _folder(self, variant: Variant) -> Path:
        return self.root / variant.digest

    def _library(self, variant: Variant) -> Path:
        return self._folder(variant) / Path(str(self._record(variant)["library"])).name

    def _slot(self, index: int) -> Path:
        return self.root / f"slot-{self._shared_digest()}-{index}"

    def _shared_digest(self) -> str:
        # Builds by another toolchain or of other sources have slots of their own: ninja would rebuild all of it anyway,
        # and two processes with different ones would do so in turns.
        parts = (self.recipe.name, self.recipe.sources_text, *self.recipe.flags, self.toolchain.digest)
        return digest(*parts, self.hardware.capability if self.recipe.is_cuda else "")[:12]

    def _record(self, variant: Variant) -> dict[str, Any]:
        return dict(json.loads((self._folder(variant) / "built.json").read_text()))

    def _built(self, variant: Variant) -> Evidence | None:
        """Evidence of a finished build; None if there is none, or none that may be loaded."""
        try:
            record = self._record(variant)
            library = self._library(variant)
            found = library.stat()
            if not (_is_ours(found) and _is_ours(self._folder(variant).lstat()) and _is_ours(self.root.stat())):
                log.warning("%s is not this user's alone: it is not loaded but built again", library)
                return None
            if edited := changed(record.get("headers", {})):
                log.info("%s is built again: %s has changed", library, edited)
                return None
            return Evidence(**record["evidence"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

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
        folder = self._folder(variant)
        began = time.perf_counter()

        def failure(stage: str, message: str, *, crashed: bool = False, transient: bool = False) -> Failure:
            cost_s = time.perf_counter() - began
            return Failure(stage=stage, message=message, cost_s=cost_s, crashed=crashed, transient=transient)

        try:
            _make_private(folder)
            if folder.stat().st_mode & stat.S_IWGRP:
                _take_from_group(folder)
                (folder / "built.json").unlink(missing_ok=True)  # it, and what it names, may be another's
            _make_slot(slot)
            for place in (self.root, folder, slot):
                if not _is_ours(place.stat()):
                    raise OSError(f"others may write to {place}, and what is built is loaded: remove it")
            with file_lock(folder / "build.lock", timeout=2 * self.timeout_s):
                if ready := self._built(variant):
                    return ready
                report = self.report(config)
                if isinstance(report, Failure):
                    return report
                mark_used(slot)
                with self._start(variant, folder, slot) as worker:
                    answer = self._wait(worker, abandoned)
                    worker.finish(30.0)
        except _UnloadableError as err:
            transient = not err.crashed and blames_the_machine(str(err))
            told = f"it is built, and loading it fails: {err}"
            return failure("load", told, crashed=err.crashed, transient=transient)
        except WorkerTimeoutError:
            return failure(
                "timeout", f"the build took more than {self.timeout_s:.0f} s; its log is {folder / 'build.log'}"
            )
        except WorkerRaisedError as err:
            told, its_own = _reason(folder / "build.log", str(err))
            return failure("compile", told, transient=not its_own)
        except WorkerDiedError as err:
            return failure("compile", _reason(folder / "build.log", str(err))[0], transient=True)
        except TimeoutError as err:
            return failure("timeout", f"{folder}: {err}", transient=True)
        except OSError as err:
            return failure("compile", f"{folder}: {err}", transient=True)
        resources = (
            {k: getattr(report, k) for k in ("registers", "spill_bytes", "stack_bytes", "shared_bytes")}
            if report
            else {}
        )
        evidence = {"compile_s": answer["compile_s"], "code_bytes": answer["code_bytes"], **resources}
        record = folder / "built.json.partial"
        _write_private(
            record,
            json.dumps({"library": Path(answer["library"]).name, "evidence": evidence, "headers": answer["headers"]}),
        )
        os.replace(record, folder / "built.json")  # last: what has this file is whole
        return Evidence(**evidence)

    def report(self, config: Config) -> Evidence | Failure | None:
        """What nvcc says of a CUDA variant's kernels alone, before anything is built; no GPU is needed.

        A variant that the hardware cannot run is a `Failure` at stage `resources`; None if nothing can be said.
        """
        variant = self._variant(config)
        if not variant.cuda or self.nvcc is None:
            return None
        by_role = [v for k, v in config.knobs.items() if self.recipe.roles.get(k) == "threads" and isinstance(v, int)]
        folder = self._folder(variant)
        _make_private(folder)
        given = self.recipe.arguments
        includes = [f"-I{path}" for path in given.get("extra_include_paths") or []]
        return kernel_report(
            nvcc=self.nvcc,
            sources=variant.cuda,
            defines=variant.defines,
            flags=(*(given.get("extra_cuda_cflags") or []), *variant.flags, *includes),
            folder=folder,
            hardware=self.hardware,
            threads=math.prod(by_role) if by_role else None,
        )

    def _start(self, variant: Variant, folder: Path, slot: Path) -> Worker:
        recipe = self.recipe
        macros = {d[2:].partition("=")[0] for d in variant.defines}
        plan = {
            "name": recipe.name,
            "slot": str(slot),
            "compiler": os.environ.get("CXX", "c++"),
            "cpp": variant.cpp,
            "cuda": variant.cuda,
            "kernel": variant.kernel,
            "functions": None if recipe.functions is None or not recipe.is_python_module else dict(recipe.functions),
            "is_python_module": recipe.is_python_module,
            "arguments": {k: v for k, v in recipe.arguments.items() if k != "build_directory"},
            "defines": variant.defines,
            "flags": variant.flags,
            "include_folders": recipe.include_folders,
            "binding_has_knobs": any(re.search(rf"\b{name}\b", text) for name in macros for text in variant.cpp),
        }
        _write_private(folder / "request.json", json.dumps(plan))
        (folder / "build.log").unlink(missing_ok=True)
        # In the environment of now: the toolchain was asked for in it, and the server may have been started in another.
        return fork_server().start(build, {"folder": str(folder)}, environment=os.environ, may_leave=True)

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


def _reason(build_log: Path, said: str) -> tuple[str, bool]:
    """Why a build failed, with where the whole log is, and whether that is the variant's own doing.

    It is told by the first error in the source, else by who speaks of a full disk or a signal, else by the first error of
    any tool, else by what the worker said. Where nobody names an error, or one is the machine's, another try may succeed.
    """
    try:
        text = build_log.read_text(errors="replace")
    except OSError:
        text = ""
    lines, more = ([line.strip() for line in t.splitlines() if not _QUOTED_LINE.match(line)] for t in (text, said))
    errors = [line for line in lines if _ERROR.search(line)]
    in_source = [e for e in errors if _OF_THE_SOURCE.search(e) and not blames_the_machine(_QUOTED_WORDS.sub("", e))]
    blames = [line for line in (*lines, *more) if blames_the_machine(line)]
    told = next(iter([*in_source, *blames, *errors]), said)
    return f"{told[:500]} (log: {build_log})", bool(in_source) or (bool(errors) and not blames)


def _is_ours(found: os.stat_result) -> bool:
    """Whether nobody but this user and root may exchange what is there."""
    return found.st_uid in (0, os.getuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _take_from_group(folder: Path) -> None:
    """Forbid the group to write to a folder of this user's own, which is how a umask of 002 makes all folders."""
    found = folder.stat()
    if found.st_uid == os.getuid() and found.st_mode & stat.S_IWGRP and not found.st_mode & stat.S_IWOTH:
        with contextlib.suppress(OSError):  # it stays as it is, and is not used
            folder.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWGRP)


def _own_root(root: Path, named_by: str) -> Path:
    """The folder to build in; where others may write to it, one that is this process's alone."""
    try:
        _make_private(root)
        _take_from_group(root)  # what others have put there is theirs, and not loaded
        trouble = "" if _is_ours(root.stat()) else "others may write to it, and what is built there is loaded"
        if not trouble:
            with file_lock(root / "root.lock", timeout=0):
                return root
    except TimeoutError:
        return root  # another process asks just now
    except OSError as err:
        if err.errno not in _NO_LOCKS:
            return root  # building there says what is wrong with it
        trouble = f"it locks no files ({err.strerror}), and processes that build there would meet"
    instead = Path(tempfile.mkdtemp(prefix="forecast_autotune-builds-"))
    atexit.register(_remove_own, instead, os.getpid())
    log.warning(
        "%s: %s: this process builds in %s instead; let %s name another folder", root, trouble, instead, named_by
    )
    return instead


def _remove_own(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # else this is a fork, and its parent goes on
        shutil.rmtree(folder, ignore_errors=True)


def _make_slot(slot: Path) -> None:
    """The slot's folder; one that the group may have put something into is thrown away."""
    with contextlib.suppress(FileNotFoundError):  # another thread or process was faster
        found = slot.stat()
        if found.st_uid == os.getuid() and found.st_mode & stat.S_IWGRP:
            tainted = slot.rename(slot.with_name(f"{slot.name}-{uuid.uuid4().hex}"))
            shutil.rmtree(tainted, ignore_errors=True)
    _make_private(slot)


def _make_private(folder: Path) -> None:
    """A folder, and those above it that are missing, for this user alone: what is in them will be loaded."""
    for path in reversed((folder, *folder.parents)):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
