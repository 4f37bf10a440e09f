"""Building candidates in C++, in a box: the kernel's text is compiled alone, and linked with a binding that was built
before."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compilers.cpp_compile import CppCompiler
from ..compilers.cpp_errors import failure_reason
from ..core.outcome import Failure
from ..errors import BuildError
from ..measure.probe import detect_cpp_toolchain, detect_hardware
from ..processes.box import Box, NoBoxError, boxed_environment, boxed_server, close_box
from ..processes.channel import Channel, Message
from ..processes.endings import WorkerDiedError, WorkerRaisedError, WorkersUnavailableError, WorkerTimeoutError
from ..processes.extension import Extension
from ..processes.file_lock import file_lock
from ..processes.serving import redirect_output
from .candidate import Candidate
from .task import SearchTask

BUILD_TIMEOUT_S = 120.0
BUILD_MEMORY_BYTES = 3 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A candidate that is built: `code` is a digest of its machine code, by which programs that came out alike are found."""

    extension: Extension
    compile_s: float
    code: str


class CppBuilder:
    """Builds a task's candidates into folders of their own.

    The task's own source is built as `fa.load_inline` builds it, unboxed, for a person wrote it; candidates are
    linked with the object of its binding.

    Args:
        task: what is searched for.
        folder: where candidates are built, one folder each.
        builds: where `fa.load_inline` keeps its builds.
    Raises:
        BuildError: the task's own source does not build.
    """

    def __init__(self, task: SearchTask, folder: Path, builds: Path) -> None:
        if task.recipe is None:
            raise BuildError(f"{task.name} has no recipe to build by")
        self._task, self._recipe, self._folder = task, task.recipe, folder
        compiler = CppCompiler(
            self._recipe, detect_cpp_toolchain(self._recipe.flags), detect_hardware(task.device), builds
        )
        compiler.extension(task.seed.config)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._binding = folder / "binding.o"
        found = compiler.builds.slot(0) / "main.o"
        if not found.exists():  # the variant was built before, and the slot is gone: once more, for the object
            shutil.rmtree(
                compiler.builds.folder(self._recipe.variant(task.seed.config, compiler.toolchain, compiler.hardware))
            )
            compiler.extension(task.seed.config)
        shutil.copy(found, self._binding)

    def build(self, candidate: Candidate) -> Built | Failure:
        """The candidate as an extension that a box may load, or why it does not build.

        Searches that run beside each other build a candidate one after the other, and the second finds it built.
        """
        with file_lock(self._folder / f"{candidate.digest}.lock", timeout=2 * BUILD_TIMEOUT_S):
            return self._build(candidate)

    def _build(self, candidate: Candidate) -> Built | Failure:
        folder = self._folder / candidate.digest
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        library = folder / f"{self._recipe.name}.so"
        extension = Extension(path=str(library), name=self._recipe.name)
        if (folder / "built.json").exists():
            kept = json.loads((folder / "built.json").read_text())
            return Built(extension=extension, compile_s=float(kept["compile_s"]), code=str(kept["code"]))
        began = time.perf_counter()
        (folder / "kernel.cpp").write_text(candidate.source)
        log = folder / "build.log"
        log.unlink(missing_ok=True)
        try:
            with boxed_server().start(
                compile_and_link, self._plan(candidate, folder, library), environment=boxed_environment()
            ) as worker:
                answer = worker.receive(BUILD_TIMEOUT_S)
                worker.finish(30.0)
        except WorkersUnavailableError:
            raise
        except WorkerTimeoutError:
            return Failure(
                stage="timeout",
                message=f"it took more than {BUILD_TIMEOUT_S:.0f} s to compile",
                cost_s=time.perf_counter() - began,
            )
        except (WorkerRaisedError, WorkerDiedError) as err:
            if str(err).startswith("SystemLacksError"):
                raise NoBoxError(str(err)) from None
            message, its_own = failure_reason(log, str(err))
            return Failure(stage="compile", message=message, cost_s=time.perf_counter() - began, transient=not its_own)
        built = Built(extension=extension, compile_s=time.perf_counter() - began, code=str(answer["code"]))
        partial = folder / "built.json.partial"
        partial.write_text(json.dumps({"compile_s": built.compile_s, "code": built.code}))
        os.replace(partial, folder / "built.json")  # last: what has this file is whole
        return built

    def _plan(self, candidate: Candidate, folder: Path, library: Path) -> Message:
        given, roles = self._recipe.arguments, self._recipe.roles
        defines = [f"-D{knob}={_macro(v)}" for knob, v in candidate.config.knobs.items() if roles.get(knob) != "flag"]
        flags = [
            word for knob, v in candidate.config.knobs.items() if roles.get(knob) == "flag" for word in str(v).split()
        ]
        includes = [str(Path(path).resolve()) for path in given.get("extra_include_paths") or ()]
        own_flags = [str(flag) for flag in given.get("extra_cflags") or ()]
        linked = [str(flag) for flag in given.get("extra_ldflags") or ()]
        box = Box(
            folder=str(folder),
            readable=(str(self._binding), *includes),
            may_start=True,
            memory_bytes=BUILD_MEMORY_BYTES,
        )
        compiler = os.environ.get("CXX", "c++").split()
        flags = [*own_flags, *defines, *flags, *(f"-I{path}" for path in includes)]
        return {
            "box": box.as_json(),
            "compile": [*compiler, "-c", "kernel.cpp", "-o", "kernel.o", "-fPIC", *flags],
            "link": [*compiler, "-shared", str(self._binding), "kernel.o", "-o", library.name, *linked],
        }


def _macro(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else "" if value is None else str(value)


def compile_and_link(channel: Channel, request: Message) -> None:
    """Compile and link one candidate in a box, which runs nothing of it. Runs in a worker."""
    box = Box.from_json(request["box"])
    redirect_output(os.path.join(box.folder, "build.log"))
    libraries = _torch_libraries()
    close_box(box, [channel.fileno()])
    for command in (request["compile"], [*request["link"], *libraries]):
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    channel.send({"code": hashlib.sha256(Path("kernel.o").read_bytes()).hexdigest()[:32]})


def _torch_libraries() -> list[str]:
    import torch

    folder = Path(torch.__file__).parent / "lib"
    return [f"-L{folder}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]


def as_message(extension: Extension) -> dict[str, Any]:
    """What the box that runs a candidate loads it by."""
    return {"extension": extension.as_json()}
