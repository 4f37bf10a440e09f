"""The worker process: takes first IR, compiles it into Triton's cache, answers with evidence. It runs no code of the user's.

It has the caller's environment, module path and knobs, and is forked from a clean interpreter, never from the caller.
"""

from __future__ import annotations

import ast
import io
import os
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..core.outcome import Evidence, Stage
from ..processes.channel import Channel, Message
from ..processes.endings import blames_the_machine
from ..processes.machine import give_way
from ..processes.serving import redirect_output


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

    def as_json(self) -> Message:
        """What a worker reads it from, tuples and all.

        Raises:
            ValueError, SyntaxError: an option is no plain value, so only the caller can compile it.
        """
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        typed = repr((self.signature, self.options))
        ast.literal_eval(typed)
        target = [self.target.backend, self.target.arch, self.target.warp_size]
        return {**plain, "language": self.language.value, "target": target, "signature": typed, "options": None}

    @classmethod
    def from_json(cls, value: Message) -> Task:
        """The task that `as_json` wrote."""

        from triton.backends.compiler import GPUTarget, Language

        signature, options = ast.literal_eval(value["signature"])
        target, language = GPUTarget(*value["target"]), Language(value["language"])
        return cls(**{**value, "language": language, "target": target, "signature": signature, "options": options})


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What comes of a task: the evidence and the metadata that limits are checked against, or what went wrong.

    `stage` is `timeout` for a worker that took too long; `crashed`: the compiler brought its worker down.
    """

    cost_s: float
    hash: str = ""
    evidence: Evidence | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    transient: bool = False  # the error is a full disk's, or of who killed a tool or the worker
    stage: Stage = "compile"
    crashed: bool = False

    def as_json(self) -> Message:
        """What the caller reads it from, but for the target, which the caller knows."""
        return {**asdict(self), "metadata": {k: v for k, v in self.metadata.items() if k != "target"}}

    @classmethod
    def from_json(cls, value: Message, target: Any) -> BuildResult:
        """What `as_json` wrote, with the target put back."""
        evidence = None if value["evidence"] is None else Evidence(**value["evidence"])
        return cls(**{**value, "evidence": evidence, "metadata": {**value["metadata"], "target": target}})


def serve_tasks(channel: Channel, request: Message) -> None:
    """Serve tasks until the caller is gone. Runs in a worker."""
    from .triton_launcher import build_launcher

    redirect_output(channel.files[0])
    if request["nice"]:
        give_way(request["nice"])
    use_knobs(request["knobs"])
    channel.send({"ready": True})
    while True:
        task = channel.receive()
        os.ftruncate(2, 0)  # the caller reads the log when this compile brings the process down
        os.lseek(2, 0, os.SEEK_SET)
        channel.send((build_launcher(task) if "launcher" in task else build(Task.from_json(task))).as_json())


def use_knobs(overrides: dict[str, dict[str, Any]]) -> None:
    """Set what the caller's program set on `triton.knobs` itself; what it set in the environment is inherited."""
    from triton import knobs

    for group, values in overrides.items():
        vars(getattr(knobs, group)).update(values)
    if "dump_ptxas_log" in vars(type(knobs.nvidia)):  # from 3.6 on
        vars(knobs.nvidia)["dump_ptxas_log"] = True  # the only place where the bytes spilled are told; costs nothing


def build(task: Task) -> BuildResult:
    """Compile one task into Triton's cache."""
    import triton

    from .triton_evidence import evidence

    began = time.perf_counter()
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            _use_key(task.key)
            kernel = triton.compile(_source(task), target=task.target, options=task.options, _env_vars=task.environment)
    except Exception as err:
        return BuildResult(cost_s=time.perf_counter() - began, error=brief(err), transient=is_the_machines(err))
    seconds = time.perf_counter() - began
    metadata = kernel.metadata._asdict()
    return BuildResult(
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


def brief(err: BaseException) -> str:
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

    It would arrive at the same one by itself, after a second in each worker spent hashing its own library of 480 MB.
    """
    from triton.compiler import compiler

    compiler.get_cache_key = lambda *_args, **_kwargs: key
