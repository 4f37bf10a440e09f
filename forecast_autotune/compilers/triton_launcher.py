"""The launchers that Triton up to 3.6 has a C compiler build, one for each signature, built while a kernel compiles.

A first launch would wait for it: 0.4 s, more than a fourth of what a first step of RWKV-7 took (13 kernels, H200).
Later versions of Triton have one launcher for all.

They are built in compile workers, never in the caller's process: to load one is to change the module that the caller's own
launches load theirs from.
"""

from __future__ import annotations

import ast
import logging
import time
from concurrent.futures import wait
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..core.forks import after_fork_in_child
from ..processes.channel import Message
from ..processes.endings import WorkersUnavailableError
from .triton_source import Source
from .triton_worker import BuildResult, brief

if TYPE_CHECKING:
    from .triton_pool import Compiling, Setup, WorkerPool

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
PATIENCE_S = 2.0  # for a launcher that is being built when its first launch comes; a second one would take 0.2 to 0.4 s

_DRIVERS = {
    "cuda": ("triton.backends.nvidia.driver", "CudaLauncher"),
    "hip": ("triton.backends.amd.driver", "HIPLauncher"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherTask:
    """One launcher to build, for the signature of a kernel."""

    name: str
    signature: Any
    target: Any

    def as_json(self) -> Message:
        """What a worker reads it from.

        Raises:
            ValueError, SyntaxError: the signature is no plain value.
        """
        typed = repr(self.signature)
        ast.literal_eval(typed)
        target = [self.target.backend, self.target.warp_size]
        return {"launcher": self.name, "signature": typed, "target": target}


class LauncherBuilds:
    """Has launchers built into Triton's cache, where a kernel's first launch finds them."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, str], Compiling | None] = {}
        self._refused: set[str] = set()  # backends

    def builds(self, backend: str) -> bool:
        """Whether a backend's launches have launchers built, and workers can build them."""
        if backend in self._refused:
            return False
        try:
            return hasattr(import_module(_DRIVERS[backend][0]), "make_launcher")
        except (KeyError, ImportError):  # a backend of another make
            return False

    def begin(self, made: Source, pool: WorkerPool, setup: Setup) -> Compiling | None:
        """Have a source's launcher built; None where there is nothing to build.

        Launchers of descriptors need what only a compile tells of them.
        """
        backend, alike = made.target.backend, _alike(made)
        if alike in self._begun or "tensordesc" in alike[1] or not self.builds(backend):
            return None
        self._begun[alike] = None
        task = LauncherTask(name=made.source.name, signature=dict(made.source.signature), target=made.target)
        try:
            building = pool.submit(task, setup, TIMEOUT_S)
        except WorkersUnavailableError:
            return None

        def note(done: Compiling) -> None:
            if done.cancelled() or done.abandoned or done.exception() is not None:
                return
            if error := done.result().error:
                self._refused.add(backend)  # no C compiler, nothing to link with: a launch will say so, if there is one
                log.info("launchers are built by first launches: %s", error)

        building.add_done_callback(note)  # type: ignore[arg-type]
        self._begun[alike] = building
        return building

    def finish(self, made: Source, most_s: float) -> None:
        """Wait for a source's launcher where a worker is at it; where none is yet, its first launch builds it.

        Args:
            most_s: seconds to wait at most; never more than `PATIENCE_S`.
        """
        building = self._begun.get(_alike(made))
        if building is None:
            return
        self._begun[_alike(made)] = None
        if building.begun is not None:
            wait([building], min(PATIENCE_S, most_s))
        else:
            building.abandoned = not building.cancel()

    def after_fork_in_child(self) -> None:
        """The parent's builds are none of the child's, whose futures nobody would ever complete."""
        self._begun = {}


def _alike(made: Source) -> tuple[str, str]:
    """What sources with one launcher have in common."""
    return made.target.backend, str(tuple(made.source.signature.values()))


launcher_builds = LauncherBuilds()
"""This process's."""
after_fork_in_child(launcher_builds.after_fork_in_child)


def build_launcher(task: Message) -> BuildResult:
    """Build the launcher of a `LauncherTask` into Triton's cache, in a worker."""
    began = time.perf_counter()
    backend, warp_size = task["target"]
    module, name = _DRIVERS[backend]
    source = SimpleNamespace(signature=ast.literal_eval(task["signature"]))
    try:
        getattr(import_module(module), name)(source, _Unknown(warp_size))
    except Exception as err:
        return BuildResult(cost_s=time.perf_counter() - began, error=brief(err))
    return BuildResult(cost_s=time.perf_counter() - began)


class _Unknown:
    """Stands for what a compile will say of a kernel: nothing that a launcher is built from."""

    tensordesc_meta = None
    cluster_dims = (1, 1, 1)

    def __init__(self, warp_size: int) -> None:
        self.warp_size = warp_size

    def __getattr__(self, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0
