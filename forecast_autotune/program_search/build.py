"""Building candidates in C++ and CUDA, in a box: the kernel's text is compiled alone, and linked with a binding that was
built before."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compilers.cpp_compile import CppCompiler
from ..compilers.cpp_errors import failure_reason
from ..compilers.cpp_recipe import Variant
from ..compilers.cuda_report import uses_torch
from ..core.outcome import Failure
from ..errors import BuildError, NoBoxError
from ..measure.probe import detect_cpp_toolchain, detect_hardware, nvcc_path
from ..processes.box import Box, boxed_environment, boxed_server, close_box
from ..processes.channel import Channel, Message
from ..processes.endings import WorkerDiedError, WorkerRaisedError, WorkersUnavailableError, WorkerTimeoutError
from ..processes.extension import Extension
from ..processes.file_lock import file_lock
from ..processes.serving import redirect_output
from .candidate import Candidate
from .machine_code import code_digest
from .nvcc_flags import flags_of, without_flags
from .task import SearchTask

BUILD_TIMEOUT_S = 300.0  # nvcc takes 85 s with torch's headers on a busy core
BUILD_MEMORY_BYTES = 3 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCandidate:
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
        self._recipe, self._folder = task.recipe, folder
        self._compiler = CppCompiler(
            self._recipe,
            detect_cpp_toolchain(self._recipe.flags, cuda=self._recipe.is_cuda),
            detect_hardware(task.device),
            builds,
            nvcc=nvcc_path() if self._recipe.is_cuda else None,
        )
        self._compiler.extension(task.seed.config)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._binding = folder / "binding.o"
        slot = self._compiler.builds.slot(0)
        if not (slot / "main.o").exists():
            # The variant was built before, and the slot is gone: once more, for the object.
            shutil.rmtree(self._compiler.builds.folder(self._variant(task.seed)))
            self._compiler.extension(task.seed.config)
        shutil.copy(slot / "main.o", self._binding)
        self._of_torch = (slot / "build.ninja").read_text()

    def build(self, candidate: Candidate) -> BuiltCandidate | Failure:
        """The candidate as an extension that a box may load, or why it does not build.

        Searches that run beside each other build a candidate one after the other, and the second finds it built.
        """
        with file_lock(self._folder / f"{candidate.digest}.lock", timeout=2 * BUILD_TIMEOUT_S):
            return self._build(candidate)

    def _build(self, candidate: Candidate) -> BuiltCandidate | Failure:
        folder = self._folder / candidate.digest
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        library = folder / f"{self._recipe.name}.so"
        extension = Extension(path=str(library), name=self._recipe.name)
        if (folder / "built.json").exists():
            kept = json.loads((folder / "built.json").read_text())
            return BuiltCandidate(extension=extension, compile_s=float(kept["compile_s"]), code=str(kept["code"]))
        began = time.perf_counter()
        (folder / self._file).write_text(without_flags(candidate.source))
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
        built = BuiltCandidate(extension=extension, compile_s=time.perf_counter() - began, code=str(answer["code"]))
        partial = folder / "built.json.partial"
        partial.write_text(json.dumps({"compile_s": built.compile_s, "code": built.code}))
        os.replace(partial, folder / "built.json")  # last: what has this file is whole
        return built

    @property
    def _file(self) -> str:
        return "kernel.cu" if self._recipe.is_cuda else "kernel.cpp"

    def _variant(self, candidate: Candidate) -> Variant:
        return self._recipe.variant(candidate.config, self._compiler.toolchain, self._compiler.hardware)

    def _plan(self, candidate: Candidate, folder: Path, library: Path) -> Message:
        given, variant = self._recipe.arguments, self._variant(candidate)
        includes = [str(Path(path).resolve()) for path in given.get("extra_include_paths") or ()]
        box = Box(
            folder=str(folder),
            readable=(str(self._binding), *includes),
            may_start=True,
            memory_bytes=BUILD_MEMORY_BYTES,
        )
        compiler = os.environ.get("CXX", "c++").split()
        compiled_by = [*self._nvcc(candidate)] if self._recipe.is_cuda else [*compiler, "-fPIC"]
        flags = [*self._own_flags, *variant.defines, *variant.flags, *(f"-I{path}" for path in includes)]
        return {
            "box": box.as_json(),
            "compile": [*compiled_by, "-c", self._file, "-o", "kernel.o", *flags],
            "link": [*compiler, "-shared", str(self._binding), "kernel.o", "-o", library.name, *self._libraries],
        }

    @property
    def _own_flags(self) -> list[str]:
        """The caller's flags, word by word, as a shell hands them to the compiler for torch."""
        given = self._recipe.arguments.get("extra_cuda_cflags" if self._recipe.is_cuda else "extra_cflags") or ()
        return [word for flag in given for word in shlex.split(str(flag))]

    @property
    def _libraries(self) -> list[str]:
        """What torch links an extension with: the caller's, torch's and CUDA's libraries, less the kernels built for it."""
        kernels = str(self._compiler.root)
        return [
            word for word in _words(self._of_torch, "ldflags") if word != "-shared" and not word.startswith(kernels)
        ]

    def _nvcc(self, candidate: Candidate) -> Iterator[str]:
        """nvcc with the standard and the GPUs that torch builds for, and the flags that a candidate asks for.

        It sees torch's headers where the text speaks of torch alone: they take it half a minute.
        """
        from torch.utils import cpp_extension

        yield from (str(self._compiler.nvcc), "-Xcompiler", "-fPIC", *cpp_extension.COMMON_NVCC_FLAGS)
        yield "-no-compress"  # what is compressed has no machine code that could be told from another's
        if compiler := os.environ.get("CC"):
            yield from ("-ccbin", compiler)
        of_torch = [word for word in _words(self._of_torch, "cuda_cflags") if word not in self._own_flags]
        yield from (word for word in of_torch if re.match(r"-std=|-gencode=.*code=sm_", word))
        yield from (word for flag in flags_of(candidate.source) for word in flag.split())
        implied = ["cstdint", "algorithm"]
        if uses_torch(candidate.source):
            implied = ["torch/types.h", "cuda.h"]
            yield from (f"-DTORCH_EXTENSION_NAME={self._recipe.name}", "-DTORCH_API_INCLUDE_EXTENSION_H")
            folders = [*cpp_extension.include_paths("cuda"), sysconfig.get_path("include")]
            yield from (word for folder in folders for word in ("-isystem", folder))
        if not self._recipe.arguments.get("no_implicit_headers"):
            yield from (word for header in implied for word in ("-include", header))


def _words(ninja: str, variable: str) -> list[str]:
    """What a variable of a build file of ninja's holds, word by word."""
    match = re.search(rf"^{variable} = (.*)$", ninja, re.MULTILINE)
    return shlex.split(match[1]) if match else []


def compile_and_link(channel: Channel, request: Message) -> None:
    """Compile and link one candidate in a box, which runs nothing of it. Runs in a worker."""
    box = Box.from_json(request["box"])
    redirect_output(os.path.join(box.folder, "build.log"))
    close_box(box, [channel.fileno()])
    for command in (request["compile"], request["link"]):
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    channel.send({"code": code_digest(Path("kernel.o"))})


def as_message(extension: Extension) -> dict[str, Any]:
    """What the box that runs a candidate loads it by."""
    return {"extension": extension.as_json()}
