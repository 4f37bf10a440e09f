"""From a call of a Triton kernel to what its compiler takes: the source it would build, its key, its first IR."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AutotuneError, InvalidInputError
from .triton_hash import wait_for_hash

MAX_PACKED = 1024  # specializations that are kept of a kernel, at some 2 KB each
MAX_LOWERED = 64  # sources whose first IRs are kept for further configs and keys, at some 100 KB each


class NotAheadError(AutotuneError):
    """A config cannot be compiled before its launch, which compiles it; the message says why."""


def gpu_target(target: object) -> Any:
    """The target a text such as `cuda:90` or `hip:gfx942` names; a `GPUTarget` is handed back.

    Raises:
        InvalidInputError: the text has another form.
    """
    from triton.backends.compiler import GPUTarget

    if isinstance(target, GPUTarget):
        return target
    if match := re.fullmatch(r"cuda:(?:sm_?)?(\d{2,3})[af]?", str(target).strip().lower()):
        return GPUTarget("cuda", int(match[1]), 32)
    if match := re.fullmatch(r"hip:(gfx(\d+)[0-9a-f]{2})", str(target).strip().lower()):
        return GPUTarget("hip", match[1], 64 if match[2] == "9" else 32)  # GCN and CDNA run 64 lanes in step, RDNA 32
    raise InvalidInputError(
        f"target {target!r} does not parse: accepted are cuda:CAPABILITY such as cuda:90, and hip:ARCH such as hip:gfx942"
    )


def jit_function(kernel: object) -> Any:
    """The JITFunction under any number of `@triton.heuristics` and autotuners; None if there is none.

    In the interpreter (`TRITON_INTERPRET=1`) there is none: nothing is compiled there.
    """
    from triton.runtime.jit import JITFunction

    seen = 0
    while not isinstance(kernel, JITFunction):
        kernel = getattr(kernel, "fn", None)
        seen += 1
        if kernel is None or seen > 16:
            return None
    return kernel


def is_tritons_own(kernel: object) -> bool:
    """Whether Triton's own code alone stands between a launch and the compiler; other code may take any name."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    while isinstance(kernel, Autotuner) or (isinstance(kernel, Heuristics) and type(kernel).run is Heuristics.run):
        kernel = kernel.fn
    return isinstance(kernel, JITFunction) and type(kernel).run is JITFunction.run


def apply_heuristics(kernel: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments as the JITFunction under `@triton.heuristics` gets them: theirs computed and added."""
    from triton.runtime.autotuner import Heuristics
    from triton.runtime.jit import JITFunction

    given = dict(kwargs)
    while kernel is not None and not isinstance(kernel, JITFunction):
        if isinstance(kernel, Heuristics):
            for name, heuristic in kernel.values.items():
                given[name] = heuristic({**dict(zip(kernel.arg_names, args, strict=False)), **given})
        kernel = getattr(kernel, "fn", None)
    return given


def heuristic_names(kernel: object) -> set[str]:
    """The parameters that `@triton.heuristics` set, wherever above the JITFunction they stand."""
    from triton.runtime.autotuner import Heuristics

    names: set[str] = set()
    while kernel is not None:
        if isinstance(kernel, Heuristics):
            names |= set(kernel.values)
        kernel = getattr(kernel, "fn", None)
    return names


@dataclass(frozen=True, kw_only=True)
class Source:
    """What Triton's compiler is given for one config, and the key and hash of the cache entry it will fill."""

    source: Any  # triton.compiler.ASTSource
    options: dict[str, Any]
    target: Any
    environment: dict[str, str]  # what Triton's cache key holds of it
    key: str
    hash: str
    bound: dict[str, Any]  # every parameter of the kernel to its value


def make_source(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], target: Any) -> Source:
    """Build the source and options exactly as `JITFunction.run` does, for a GPU that need not be present.

    The hash is that of the entry in Triton's cache which the launch looks up (seen equal to `JITFunction.warmup()`'s on
    Triton 3.6 to 3.9, for meta, CPU and mock tensors). Tensors on the meta device have no address: they count as
    aligned to 16 bytes.

    Raises:
        whatever Triton raises for arguments the kernel does not take.
    """
    from triton import knobs
    from triton._C.libtriton import get_cache_invalidating_env_vars

    given = dict(kwargs)
    given["debug"] = given.get("debug", kernel.debug) or knobs.runtime.debug
    for name in ("instrumentation_mode", "fpsan_homomorphic_casts"):  # 3.6 and 3.9 began to pass these
        if hasattr(knobs.compilation, name):
            given[name] = getattr(knobs.compilation, name)
    backend, binder = _binder(kernel, target)
    bound, specialization, rest = binder(*args, **given)
    environment = get_cache_invalidating_env_vars()
    options, signature, constexprs, attributes = _packed(
        kernel, target, backend, given, bound, specialization, rest, environment
    )
    source = _source_class(kernel)(kernel, signature, constexprs, attributes)
    key = _cache_key(source, backend, options, environment)
    if (hook := getattr(knobs.runtime, "add_stages_inspection_hook", None)) is not None:
        key += hook()[0]
    return Source(
        source=source,
        options=dict(options.__dict__),
        target=target,
        environment=environment,
        key=key,
        hash=hashlib.sha256(key.encode()).hexdigest(),
        bound=dict(bound),
    )


def specialization(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], target: Any) -> str:
    """What Triton compiles a call for: calls with an equal one run the same compiled kernel.

    Args:
        args, kwargs: as under one config, its knobs among them.
    Raises:
        whatever Triton raises for arguments the kernel does not take.
    """
    from triton import knobs

    _, binder = _binder(kernel, target)
    _, specialized, options = binder(
        *args, **{**kwargs, "debug": kwargs.get("debug", kernel.debug) or knobs.runtime.debug}
    )
    return f"{specialized} {options}"


class FrontEnd:
    """Triton's front end, which runs once for all configs and keys that differ only in what it does not read.

    Lists of configs are often warps times stages, and these it does not read: of the 229 configs that one model of
    flash-linear-attention compiles, it lowers 54. Nor does it read a number that is no constant: keys of other sizes share.
    Threads share it without a lock: what two of them lower at once is the same.
    """

    def __init__(self) -> None:
        self._lowered: dict[Any, tuple[tuple[dict[str, Any], str], ...]] = {}  # by source: the options read, and the IR

    def first_ir(self, made: Source) -> str:
        """Lower the Python source to the first IR, as text with its source locations.

        This is the one step that needs the caller's process: it reads the kernel's globals, closure and callees. It takes 2
        to 100 ms of a compile that takes 200 to 2,000.

        Raises:
            whatever Triton's front end raises, such as `CompilationError`.
        """
        from triton._C.libtriton import ir
        from triton.compiler.compiler import make_backend

        backend = make_backend(made.target)
        parsed = backend.parse_options(dict(made.options))
        source = made.source
        # Triton's own hash of a source covers the kernel's text, its callees and globals, the constants and the arguments.
        alike = source.hash(), source.ext, str(made.target), tuple(sorted(made.environment.items()))
        for read, text in self._lowered.get(alike, ()):
            if all(getattr(parsed, name, _MISSING) == value for name, value in read.items()):
                return text
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        options = _OptionsRead(parsed)
        implementation, modules = backend.get_codegen_implementation(options), backend.get_module_map()
        text = str(source.make_ir(made.target, options, implementation, modules, context))
        self._lowered[alike] = (*self._lowered.pop(alike, ()), (options.read, text))
        for oldest in list(self._lowered)[:-MAX_LOWERED]:
            self._lowered.pop(oldest, None)
        return text


front_end = FrontEnd()
"""This process's."""

_MISSING = object()


class _OptionsRead:
    """Options of a compile that remember which of them were read, and what was found."""

    __slots__ = ("_options", "read")

    def __init__(self, options: Any) -> None:
        self._options = options
        self.read: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        value = self.read[name] = getattr(self._options, name, _MISSING)
        if value is _MISSING:
            raise AttributeError(name)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedKernel:
    """A kernel as Triton's cache holds it."""

    hash: str
    metadata: dict[str, Any]
    asm: dict[str, str | bytes]  # stage to text, or to the binary


def found_in_cache(made: Source) -> CachedKernel | None:
    """The kernel Triton's cache already holds; None if it has to be compiled.

    Not as a `CompiledKernel`: each of those makes a class of its own, a cycle that only a full collection frees.
    """
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    if knobs.compilation.always_compile:
        return None
    try:
        if (files := files_in_cache(made)) is None:
            return None
        paths = {Path(path).suffix[1:]: Path(path) for path in files.values()}
        metadata = json.loads(paths.pop("json").read_text())
        metadata["target"] = GPUTarget(**metadata["target"])
        binary = make_backend(metadata["target"]).binary_ext
        asm = {stage: path.read_bytes() if stage == binary else path.read_text() for stage, path in paths.items()}
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):  # swept away or half written by another process: compile it again
        return None
    return CachedKernel(hash=made.hash, metadata=metadata, asm=asm)


def files_in_cache(made: Source) -> dict[str, str] | None:
    """What Triton's cache holds of a kernel, by file name: its metadata and what each stage of compiling left."""
    from triton.runtime.cache import get_cache_manager

    filename = f"{made.source.name[:150]}.json"
    files = get_cache_manager(made.hash).get_group(filename)
    return dict(files) if files and filename in files else None


def compile_here(made: Source) -> Any:
    """Compile in this process, where no worker can: a compiler that aborts takes the process with it."""
    import triton

    return triton.compile(made.source, target=made.target, options=made.options)


def _binder(kernel: Any, target: Any) -> tuple[Any, Any]:
    """Triton's own function that binds and specialises arguments; building it takes 1 ms, so it is kept on the kernel."""
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    kept = kernel.__dict__.setdefault("_forecast_autotune_binders", {})
    if target not in kept:
        backend = make_backend(target)
        kept[target] = backend, create_function_from_signature(kernel.signature, kernel.params, backend)
    return kept[target]  # type: ignore[no-any-return]


def _packed(
    kernel: Any,
    target: Any,
    backend: Any,
    given: dict[str, Any],
    bound: Any,
    specialization: Any,
    rest: Any,
    environment: Mapping[str, str],
) -> Any:
    """Options, signature, constants and attributes, as Triton packs them; kept by what Triton keeps compiled kernels by.

    Each packing leaves cycles behind, which only a full collection frees (19 objects, Triton 3.9).
    """
    kept = kernel.__dict__.setdefault("_forecast_autotune_packed", {})
    # Its text too: True and 1 are equal in Python.
    key: Any = target, tuple(specialization), str(specialization), str(rest), tuple(sorted(environment.items()))
    try:
        if key in kept:
            return kept[key]
    except TypeError:  # a constant that has no hash
        key = None
    packed = kernel._pack_args(backend, given, bound, specialization, rest)
    if key is not None:
        if len(kept) >= MAX_PACKED:
            kept.clear()
        kept[key] = packed
    return packed


def _source_class(kernel: Any) -> Any:
    if getattr(kernel, "is_gluon", lambda: False)():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def _cache_key(source: Any, backend: Any, options: Any, environment: dict[str, str]) -> str:
    from triton.compiler import compiler

    wait_for_hash()
    return str(compiler.get_cache_key(source, backend, options, env_vars=environment))
