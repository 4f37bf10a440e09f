"""The worker process: takes first IR, compiles it into Triton's cache, answers with evidence. It runs no code of the user's.

It is started clean, with the caller's environment, module path and knobs, never by forking the caller: a fork copies the
page tables of all that is mapped (gigabytes, pinned for a network card perhaps), inherits whatever lock another thread
held at that moment, and from Python 3.12 on warns when the caller has threads, which a caller with a GPU always has.
(24 of 24 forked compiles did succeed beside a busy compiling thread, so it is the caller that is spared, not the worker.)
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import signal
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..core.outcome import Evidence
from ..workers import blames_the_machine

PARENT_CHECK_S = 5.0  # how often an idle worker looks whether its caller still lives


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One compile: the first IR, and the options and key of the cache entry to fill."""

    ir: str
    name: str
    extension: str
    language: Any
    signature: Any
    source_hash: str
    options: dict[str, Any]
    target: Any
    environment: dict[str, str]
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a worker answers: the evidence and the metadata that limits are checked against, or what went wrong."""

    cost_s: float
    hash: str = ""
    evidence: Evidence | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    transient: bool = False  # the error is a full disk's, or a killed tool's


def main(connected: str, held: str, folder: str) -> None:
    """Serve tasks until the caller closes the connection or is gone; then take the temporary files along.

    Args:
        connected: descriptor of the connection.
        held: descriptor of a pipe that ends with the caller.
        folder: for temporary files, this worker's alone; made here.
    """
    # A group of its own, so that killing it takes ptxas along, and Ctrl-C in the caller does not reach it.
    os.setpgid(0, 0)
    for descriptor in (int(connected), int(held)):
        os.set_inheritable(descriptor, False)  # Triton starts ptxas with every inheritable descriptor open
    os.mkdir(folder, 0o700)
    try:
        _leave_with_caller(int(held), folder)
        _serve(Connection(int(connected)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _leave_with_caller(held: int, folder: str) -> None:
    """Leave when the pipe ends, as soon as Python's next step comes, and though this process may be stopped just then.

    While something is timed, this group is stopped. If the caller is killed meanwhile, nobody would ever let it go on
    (Linux does so only where whoever inherits this process is of another session, and in a container it is not).
    """

    def look(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(held, 1):
                # No exception: this may be the middle of anything, of leaving included.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.killpg(os.getpgrp(), signal.SIGTERM)  # ptxas
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)

    os.set_blocking(held, False)
    signal.signal(signal.SIGCONT, look)
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: no Linux
        fcntl.fcntl(held, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGCONT)
        fcntl.fcntl(held, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    look()  # it may have ended before Linux was asked to tell


def _serve(connection: Connection) -> None:
    caller = os.getppid()
    try:
        use_knobs(connection.recv())
        import triton

        connection.send(triton.__version__)
        while True:
            while not connection.poll(PARENT_CHECK_S):
                # A process that the caller forked holds the other end too, so its death alone closes nothing.
                if os.getppid() != caller:
                    return
            task = connection.recv()
            os.ftruncate(2, 0)  # the log is told to the caller when this compile brings the process down
            os.lseek(2, 0, os.SEEK_SET)
            connection.send(build(task))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def use_knobs(overrides: dict[str, dict[str, Any]]) -> None:
    """Set what the caller's program set on `triton.knobs` itself; what it set in the environment is inherited."""
    from triton import knobs

    for group, values in overrides.items():
        vars(getattr(knobs, group)).update(values)
    if "dump_ptxas_log" in vars(type(knobs.nvidia)):  # from 3.6 on
        vars(knobs.nvidia)["dump_ptxas_log"] = True  # the only place where the bytes spilled are told; costs nothing


def build(task: Task) -> Built:
    """Compile one task into Triton's cache."""
    import triton

    from .triton_evidence import evidence

    began = time.perf_counter()
    printed = io.StringIO()
    try:
        arguments: dict[str, Any] = {"target": task.target, "options": task.options}
        if "_env_vars" in triton.compile.__code__.co_varnames:  # since 3.5
            arguments["_env_vars"] = task.environment
        with redirect_stdout(printed):
            _use_key(task.key)
            kernel = triton.compile(_source(task), **arguments)
    except Exception as err:
        return Built(cost_s=time.perf_counter() - began, error=told(err), transient=is_the_machines(err))
    seconds = time.perf_counter() - began
    metadata = kernel.metadata._asdict()
    return Built(
        cost_s=seconds,
        hash=kernel.hash,
        evidence=evidence(metadata, kernel.asm, compile_s=seconds, log=printed.getvalue()),
        metadata=limiting(metadata),
    )


def limiting(metadata: dict[str, Any]) -> dict[str, Any]:
    """The part of a kernel's metadata that a device's limits are checked against."""
    return {name: metadata.get(name) for name in ("shared", "num_warps", "warp_size", "tmem_size", "target")}


def is_the_machines(err: BaseException) -> bool:
    """Whether a disk, memory or a killed tool is to blame for what a compile raised, not the config."""
    # The message alone: Triton's front end quotes the kernel before it, where any word may stand.
    text = getattr(err, "error_message", str(err)) or ""
    return isinstance(err, (OSError, MemoryError)) or blames_the_machine(text)


def told(err: BaseException) -> str:
    """What went wrong, short enough to keep: the kind, and the last 1,500 characters (Triton ends with the point)."""
    text = str(err).strip()
    return f"{type(err).__name__}: {text if len(text) <= 1500 else '...' + text[-1500:]}"


def _source(task: Task) -> Any:
    from triton.compiler import ASTSource

    class Shipped(ASTSource):  # type: ignore[misc]
        """A source whose first IR and hash the caller has made."""

        def __init__(self) -> None:
            self.fn = None
            self.language = task.language
            self.ext = task.extension
            self.name = task.name
            self.signature = task.signature
            self.constants: dict[Any, Any] = {}
            self.attrs: dict[Any, Any] = {}

        def hash(self) -> str:
            return task.source_hash

        def make_ir(self, *given: Any) -> Any:
            from triton._C.libtriton import ir

            context = given[-1]
            with tempfile.TemporaryDirectory() as folder:  # the parser takes a path, no text
                path = Path(folder) / f"{task.name[:100]}.{task.extension}"
                path.write_text(task.ir)
                module = ir.parse_mlir_module(str(path), context)
            module.context = context
            return module

    return Shipped()


def _use_key(key: str) -> None:
    """Let the compiler store under the very key the caller will look up.

    It would arrive at the same one by itself (3.4, which has no such function, does), after a second in each worker
    spent hashing its own library of 480 MB.
    """
    from triton.compiler import compiler

    if hasattr(compiler, "get_cache_key"):
        compiler.get_cache_key = lambda *_args, **_kwargs: key
