"""The text of functions, kernels and objects with that of all they reach: one text, one code."""

from __future__ import annotations

import ast
import collections
import contextlib
import dis
import enum
import functools
import inspect
import linecache
import os
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..core.digest import digest
from .nested_tuning import Nested
from .tuned_callable import TunedCallable

MOST_SECTIONS = 2_000  # functions and classes read for one program; what lies beyond is only named
MOST_ITEMS = 10_000  # of one container
MOST_CHARS = 500  # of one value; a longer one is given by its digest

_TOOLCHAIN = {"torch", "triton", "numpy", "forecast_autotune"}  # never read, and their versions are the toolchain's
_KERNELS = {"JITCallable", "JITFunction", "InterpretedFunction", "GluonJITFunction", "BoundConstexprFunction"}
_WRAPPERS = {
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
    ("forecast_autotune.frontends.triton.spec", "KernelSpec"),
}
_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
_MUTATES = frozenset(
    ("append", "add", "extend", "insert", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear")
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_MISSING = object()


class CodeText:
    """The text of some roots and of what they reach, and what was met there: tuners, the languages of kernels.

    Read are kernels wherever they are from, and functions and classes of the program's own: those in the packages of
    the roots, and all that is no installed library. A library is named, with its version. No code is run for that:
    modules, classes and objects are looked up in their dictionaries alone.

    A function's text stands below what it reads from outside: globals, closures, defaults. Nothing depends on where a
    function stands in its file, on addresses, or on what the program's own functions write (counters, caches).
    """

    def __init__(self, roots: Iterable[Any] = ()) -> None:
        self.tuners: list[Nested] = []
        self.languages: set[str] = set()
        self._sections: list[str] = []
        self._labels: dict[int, str] = {}
        self._names: collections.Counter[str] = collections.Counter()
        self._waiting: collections.deque[tuple[str, Any]] = collections.deque()
        self._held: list[Any] = []  # so that no identity is given away while labels are kept by it
        self._open: set[int] = set()
        self._versions: dict[str, str] = {}
        self._packages: set[str] = set()
        for root in roots:
            self.add(root)

    def add(self, root: Any) -> None:
        """Read one more root; what is in its package is the program's own from here on."""
        innermost = root
        while (inner := _held_by(innermost, "fn")) is not None:
            innermost = inner
        package = str(_held_by(innermost, "__module__") or type(innermost).__module__).partition(".")[0]
        if package not in _TOOLCHAIN | sys.stdlib_module_names:
            self._packages.add(package)
        text = self._text(root)
        if id(root) not in self._labels:
            self._sections.append(f"# {text}")
        self._read_waiting()

    def value(self, value: Any) -> str:
        """A value in one line; functions in it by their labels."""
        text = self._text(value)
        self._read_waiting()
        return text

    @property
    def text(self) -> str:
        versions = [f"# {name} {version}" for name, version in sorted(self._versions.items())]
        return "\n\n".join([*self._sections, *versions])

    # Values ---------------------------------------------------------------------------------------------------------

    def _text(self, value: Any) -> str:
        if id(value) in self._labels:
            return self._labels[id(value)]
        if id(value) in self._open:
            return "..."
        self._open.add(id(value))
        try:
            text = self._text_of(value)
        finally:
            self._open.discard(id(value))
        return text if len(text) <= MOST_CHARS else f"<{len(text)} characters, {digest(text)[:12]}>"

    def _text_of(self, value: Any) -> str:
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if issubclass(kind, enum.Enum):
            return f"{kind.__qualname__}.{value._name_}"
        if kind.__name__ == "constexpr":
            return self._text(value.value)
        if (tuned := tuned_by(value)) is not None:
            return self._label(value, tuned.name)
        if is_kernel(value) or is_wrapper(value):
            return self._kernel(value)
        if kind is functools.partial:
            given = [self._text(v) for v in (value.func, *value.args)]
            return f"partial({', '.join([*given, *(f'{n}={self._text(v)}' for n, v in value.keywords.items())])})"
        if issubclass(kind, types.MethodType):
            return f"{self._text(value.__self__)}.{self._text(value.__func__)}"
        if issubclass(kind, types.FunctionType):
            return self._label(value, value.__name__) if self._is_own(value) else self._library(value)
        if issubclass(kind, type):
            return self._class(value)
        if issubclass(kind, types.ModuleType):
            return self._named(value.__name__, "")
        if (contained := self._container(value)) is not None:
            return contained
        return self._object(value)

    def _container(self, value: Any) -> str | None:
        kind = type(value)
        name = "" if kind in (list, tuple, dict, set, frozenset) else kind.__qualname__
        if issubclass(kind, (dict, types.MappingProxyType)):
            mapping = [*dict.items(value)] if issubclass(kind, dict) else [*value.items()]
            pairs = (f"{self._text(k)}: {self._text(v)}" for k, v in mapping[:MOST_ITEMS])
            return f"{name}{{{', '.join(pairs)}}}"
        if issubclass(kind, (set, frozenset)):
            return f"{name}{{{', '.join(sorted(self._text(v) for v in value))}}}"
        if issubclass(kind, (list, collections.deque)):
            return f"{name}[{', '.join(self._text(v) for v in list(value)[:MOST_ITEMS])}]"
        if issubclass(kind, tuple):
            return f"{name}({', '.join(self._text(v) for v in tuple.__iter__(value))})"
        return None

    def _object(self, value: Any) -> str:
        kind = type(value)
        if kind.__module__.partition(".")[0] in ("torch", "numpy", "triton") and (text := _of_toolchain(value)):
            return text
        if issubclass(kind, types.BuiltinFunctionType):
            return self._named(value.__module__ or "builtins", value.__qualname__)
        if issubclass(kind, (staticmethod, classmethod)):
            return self._text(value.__func__)
        if issubclass(kind, property):
            return f"property({', '.join(self._text(f) for f in (value.fget, value.fset, value.fdel) if f)})"
        if _scripted(value) is not None:
            return self._label(value, "scripted")
        held = dict(_attributes(value))
        if self._is_own(kind) or _is_module(value):
            own = self._is_own(kind)
            told = {n: self._text(v) for n, v in held.items() if not (own and _is_state(v, n, kind.__module__))}
        else:  # of a library's object, the code that it was given
            told = {n: self._text(v) for n, v in held.items() if self._is_code(v)}
        return f"{self._class(kind)}({', '.join(f'{n}={text}' for n, text in told.items())})"

    def _class(self, kind: type) -> str:
        if self._is_own(kind):
            return self._label(kind, kind.__name__)
        return self._named(kind.__module__, kind.__qualname__)

    def _library(self, function: types.FunctionType) -> str:
        """A library's function by name, with the program's own code that it was made around."""
        held = [*_closure(function).values(), *(function.__defaults__ or ()), *vars(function).values()]
        around = dict.fromkeys(self._text(v) for v in held if self._is_code(v))
        code = function.__code__
        name = self._named(_module_of(code.co_filename) or function.__module__ or "", code.co_name)
        return f"{name}({', '.join(around)})" if around else name

    def _named(self, module: str, name: str) -> str:
        top = module.partition(".")[0]
        if top not in _TOOLCHAIN and top not in sys.stdlib_module_names:
            version = vars(sys.modules.get(top, types)).get("__version__")
            if isinstance(version, str):
                self._versions[top] = version
        return f"{module}.{name}".strip(".")

    def _is_code(self, value: Any) -> bool:
        kind = type(value)
        if issubclass(kind, types.MethodType):
            return self._is_code(value.__func__)
        return (
            tuned_by(value) is not None
            or is_kernel(value)
            or is_wrapper(value)
            or (issubclass(kind, (types.FunctionType, type)) and self._is_own(value))
        )

    def _is_own(self, value: Any) -> bool:
        """Whether a function or class is the program's own, and not an installed library's."""
        module = str(value.__module__ or "")
        top = module.partition(".")[0]
        file = value.__code__.co_filename if issubclass(type(value), types.FunctionType) else "<class>"
        if file.startswith("<"):  # typed in, or made by a decorator such as `dataclass`
            # `__main__` may name the file of what runs the program, such as pytest.
            known = sys.modules.get(module) if module != "__main__" else None
            file = vars(known).get("__file__") if known is not None else None
        if not isinstance(file, str):
            return top not in _TOOLCHAIN and top not in sys.stdlib_module_names
        return not _is_library(file) or (top in self._packages and _package_holds(top, file))

    # Sections -------------------------------------------------------------------------------------------------------

    def _label(self, value: Any, name: str) -> str:
        """The name that a function or class goes by in the text; it is read when its turn comes."""
        name = "function" if not name.isidentifier() else name
        self._names[name] += 1
        label = name if self._names[name] == 1 else f"{name}_{self._names[name]}"
        self._labels[id(value)] = label
        self._held.append(value)
        self._waiting.append((label, value))
        return label

    def _read_waiting(self) -> None:
        while self._waiting:
            label, value = self._waiting.popleft()
            if len(self._sections) < MOST_SECTIONS:
                self._sections.append("\n".join(self._lines(label, value)))

    def _lines(self, label: str, value: Any) -> Iterator[str]:
        if (tuned := tuned_by(value)) is not None:
            self.tuners.append(tuned)
            if tuned.callables:  # as parts of this text: what they are bound to may hold this very tuner
                yield f"# {label}: {', '.join(map(self._text, tuned.callables))}"
            else:
                self.languages.add(tuned.program.language)
                yield f"# {label}: {tuned.program.name}\n{tuned.program.source}"
        elif is_kernel(value):
            self.languages.add("triton")
            yield from self._kernel_lines(label, value)
        elif isinstance(value, types.FunctionType):
            yield from self._function_lines(label, value)
        elif isinstance(value, type):
            yield from self._class_lines(label, value)
        else:
            yield f"# {label}\n{_scripted(value)}"

    def _function_lines(self, label: str, function: types.FunctionType) -> Iterator[str]:
        scope = {**function.__globals__, **_closure(function)}
        yield from self._references(function.__code__, scope, function.__module__)
        for name, given in (("__defaults__", function.__defaults__), ("__kwdefaults__", function.__kwdefaults__)):
            if given:
                yield f"{label}.{name} = {self._text(given)}"
        for name, given in vars(function).items():
            if name not in ("__wrapped__", "__signature__") and not _is_state(given, name, function.__module__):
                yield f"{label}.{name} = {self._text(given)}"
        source = source_of(function.__code__)
        if function.__name__ == "<lambda>":
            yield f"{label} = {source}"
        else:
            yield source if label == function.__name__ else f"# {label}\n{source}"

    def _class_lines(self, label: str, kind: type) -> Iterator[str]:
        bases = ", ".join(self._text(base) for base in kind.__bases__)
        yield f"class {label}({bases}):" if bases else f"class {label}:"
        if vars(kind).get("__triton_aggregate__", False):
            yield f"    __annotations__ = {self._text(kind.__annotations__)}"
        for name, held in list(vars(kind).items()):
            method = held.__func__ if issubclass(type(held), (staticmethod, classmethod)) else held
            code = issubclass(type(method), (types.FunctionType, property)) or self._is_code(method)
            special = name.startswith("__") and name.endswith("__")
            if code or not (special or _is_state(held, name, kind.__module__)):
                yield f"    {name} = {self._text(held)}"

    def _references(self, code: types.CodeType, scope: Mapping[str, Any], module: str | None) -> Iterator[str]:
        """What code reads by name from its surroundings, a line each, but for what goes by its own name."""
        for chain in reads_of(code):
            if chain[0] == "import":
                if (line := self._imported(chain, scope.get("__package__"))) is not None:
                    yield line
                continue
            value = scope.get(chain[0], _MISSING)
            name, holding = chain[0], module
            for attribute in chain[1:]:
                if not issubclass(type(value), types.ModuleType) or self._is_foreign(value):
                    break
                holder, name = value, f"{name}.{attribute}"
                holding = module and holder.__name__
                value = vars(holder).get(attribute, sys.modules.get(f"{holder.__name__}.{attribute}", _MISSING))
            last = name.rpartition(".")[2]
            if (
                value is _MISSING
                or issubclass(type(value), types.ModuleType)
                or (holding and _is_state(value, last, holding))
            ):
                continue
            text = self._text(value)
            if text != last:
                yield f"{name} = {text}"

    def _is_foreign(self, module: types.ModuleType) -> bool:
        top = module.__name__.partition(".")[0]
        if top in self._packages:
            return False
        file = vars(module).get("__file__")
        foreign = top in _TOOLCHAIN or top in sys.stdlib_module_names or (bool(file) and _is_library(str(file)))
        if foreign:
            self._named(module.__name__, "")  # noted with its version
        return foreign

    def _imported(self, chain: tuple[str, ...], package: str | None) -> str | None:
        """A module that a function imports itself: its file as a whole, whether or not it is loaded yet."""
        _, name, dots = chain
        parts = (package or "").split(".")
        full = ".".join([*parts[: len(parts) - len(dots) + 1], *([name] if name else [])]) if dots else name
        if full.partition(".")[0] in _TOOLCHAIN | sys.stdlib_module_names:
            return None
        file = _file_of(full)
        if file is None or (_is_library(file) and full.partition(".")[0] not in self._packages):
            return None
        with open(file, "rb") as opened:
            return f"import {full}  # {digest(opened.read().decode(errors='replace'))[:12]}"

    # Triton ---------------------------------------------------------------------------------------------------------

    def _kernel(self, value: Any) -> str:
        """A kernel's label; of one below tuners and heuristics, with the functions that these call around it."""
        if is_wrapper(value):
            if hasattr(value, "run_under"):
                self.tuners.append(value)
            inner = self._labels[id(value)] = self._text(value.fn)
            self._held.append(value)
            # Hooks may refer to the tuner that calls them, so it has its label by now.
            around = dict.fromkeys(f"{n} = {self._text(v)}" for n, v in _called_around(value))
            if around:
                self._sections.append("\n".join(f"# {inner}: {line}" for line in around))
            return inner
        function = getattr(value, "fn", None) or getattr(value, "__func__", value)
        if str(getattr(function, "__module__", "")).startswith("triton."):
            return self._named(function.__module__, function.__qualname__)  # the toolchain's
        return self._label(value, str(getattr(function, "__name__", "kernel")))

    def _kernel_lines(self, label: str, kernel: Any) -> Iterator[str]:
        if type(kernel).__name__ == "BoundConstexprFunction":
            yield f"# {label} = {self._text(kernel.__self__)}.{self._text(kernel.__func__)}"
            return
        function = kernel.fn
        source = getattr(kernel, "src", None)
        if not isinstance(source, str):  # the interpreter's
            source = _without_decorators(source_of(function.__code__))
        code = _code_of(source) or function.__code__
        scope = {**function.__globals__, **_closure(function)}
        # A function may be handed to a kernel by its parameters' defaults and types, too.
        yield from self._references(code, scope, None)  # a kernel writes to none of these
        for given in (function.__defaults__, function.__kwdefaults__):
            if given:
                yield f"{label}.__defaults__ = {self._text(given)}"
        for given in function.__annotations__.values():
            if isinstance(given, type) and getattr(given, "__triton_aggregate__", False):
                yield f"{label}.__annotations__ = {self._text(given)}"
        marks = [f"# {label}"] if label != function.__name__ else []
        marks += ["# noinline"] if getattr(kernel, "noinline", False) else []
        yield "\n".join([*marks, source])


def digest_of(value: Any) -> str:
    """Names the code of one function, kernel or object."""
    return digest(CodeText([value]).text)


def tuned_by(value: Any) -> Any:
    """What `load_inline` or `variants` made, which decides for itself; None for anything else."""
    return value if issubclass(type(value), TunedCallable) else None


def is_kernel(value: Any) -> bool:
    """Whether it is a function that Triton compiles, or plays in its interpreter."""
    return any(c.__name__ in _KERNELS and c.__module__.startswith("triton.") for c in type(value).__mro__)


def is_wrapper(value: Any) -> bool:
    """Whether it is a tuner of Triton's (ours among them), its spec, or `@triton.heuristics`, with a kernel in it."""
    return any((c.__module__, c.__name__) in _WRAPPERS for c in type(value).__mro__)


def _called_around(wrapper: Any) -> Iterator[tuple[str, Any]]:
    """The functions that a tuner or heuristics call around a launch: what they do is part of what is timed."""
    for name, heuristic in getattr(wrapper, "values", {}).items():
        yield f"heuristic {name}", heuristic
    for name in ("pre_hook", "post_hook"):
        if getattr(wrapper, f"user_defined_{name}", False):
            yield name, getattr(wrapper, name)
    hooks = {id(c.pre_hook): c.pre_hook for c in getattr(wrapper, "configs", ()) if c.pre_hook is not None}
    for hook in sorted(hooks.values(), key=_own_code):  # whatever the order of the configs
        yield "pre_hook of configs", hook


def _own_code(function: Any) -> tuple[str, bytes]:
    code = getattr(function, "__code__", None)
    return str(getattr(function, "__qualname__", type(function).__qualname__)), code.co_code if code else b""


# Names and values that code reads --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def reads_of(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """What code reads from its surroundings: `("lib", "act", "f")` for `lib.act.f`, `("import", "lib", ".")` for an import
    with as many dots."""
    chains: dict[tuple[str, ...], None] = {}
    _read(code, frozenset(), chains)
    return tuple(chains)


def _read(code: types.CodeType, local: frozenset[str], chains: dict[tuple[str, ...], None]) -> None:
    local |= frozenset(code.co_cellvars)
    chain: tuple[str, ...] = ()
    level = 0
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain = (*chain, step.argval)
            continue
        if chain:
            chains[chain] = None
        chain = ()
        if step.opname in _READS and step.argval not in local and not step.argval.startswith("__"):
            chain = (step.argval,)
        elif step.opname == "LOAD_CONST" and type(step.argval) is int:
            level = step.argval
        elif step.opname == "LOAD_SMALL_INT":
            level = step.arg or 0
        elif step.opname == "IMPORT_NAME":
            chains["import", step.argval, "." * level] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _read(constant, local, chains)


def _closure(function: types.FunctionType) -> dict[str, Any]:
    held = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            held[name] = cell.cell_contents
    return held


def _held_by(value: Any, name: str) -> Any:
    """An attribute as it lies in an object or its class, no property or `__getattr__` being run."""
    held = inspect.getattr_static(value, name, None)
    return None if issubclass(type(held), (property, types.GetSetDescriptorType)) else held


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds in its dictionary and slots; of a torch module not what every module holds."""
    try:
        held = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        held = {}
    if _is_module(value):
        import torch

        kept = ("training", "_parameters", "_buffers", "_modules")
        empty = vars(torch.nn.Module())
        held = {n: v for n, v in held.items() if n in kept or n not in empty or (v and "forward" in n)}
    yield from held.items()
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType) and name != "__dict__":
                with contextlib.suppress(AttributeError):  # not assigned yet
                    yield name, slot.__get__(value)


def _is_module(value: Any) -> bool:
    return any(c.__name__ == "Module" and c.__module__ == "torch.nn.modules.module" for c in type(value).__mro__)


def _scripted(value: Any) -> str | None:
    """TorchScript's own text of what was scripted or traced; None of anything else."""
    kind = type(value)
    if kind.__name__ in ("ScriptFunction", "ScriptMethod") and kind.__module__.startswith("torch"):
        text = value.inlined_graph.str(False)
    elif any(c.__name__ == "ScriptModule" and c.__module__ == "torch.jit._script" for c in kind.__mro__):
        text = value._c.dump_to_str(True, True, False)
    else:
        return None
    return re.sub(r"___torch_mangle_\d+\.", "", str(text))  # counts what was scripted before in this process


def _of_toolchain(value: Any) -> str | None:
    """A value of torch's, NumPy's or Triton's: a dtype, a device by its name, a tensor by dtype and shape."""
    kind = type(value)
    if kind.__name__ in ("dtype", "device", "layout", "memory_format", "pointer_type", "block_type"):
        return str(value)
    if kind.__name__ in ("Tensor", "Parameter", "ndarray"):
        return f"{kind.__name__}({value.dtype}, {tuple(value.shape)})"
    if hasattr(kind, "item"):  # a scalar of NumPy's
        return repr(value.item())
    return None


# Source -----------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def source_of(code: types.CodeType) -> str:
    """A function's text, without its indentation; where there is none, its name and a digest of its bytecode.

    Of a lambda it is the lambda alone, whatever else its line holds.
    """
    try:
        lines = _lines_of(code.co_filename)
        if code.co_name == "<lambda>":
            return _lambda_source(code, lines)
        # `inspect.getsource` would look for the module among all that are loaded, which loads lazy ones.
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
        return textwrap.dedent("".join(block)).rstrip()
    except (LookupError, SyntaxError):
        parameters = ", ".join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        return f"def {code.co_name}({parameters}): ...  # bytecode {_bytecode_digest(code)[:12]}"


def _lines_of(file: str) -> list[str]:
    """A file's lines as they are now.

    Raises:
        LookupError: there are none.
    """
    linecache.checkcache(file)
    if not (lines := linecache.getlines(file)):
        raise LookupError(f"{file} has no text")
    return lines


def _lambda_source(code: types.CodeType, lines: list[str]) -> str:
    where = code.co_positions() if hasattr(code, "co_positions") else ()  # from Python 3.11 on
    spots = [spot for spot in where if None not in spot and spot[2:] != (0, 0)]
    if not spots:
        raise LookupError("it is not known where in its line it stands")
    (first, start), (last, end) = min((s[0], s[2]) for s in spots), max((s[1], s[3]) for s in spots)
    body = [line.encode() for line in lines[first - 1 : last]]
    body[-1] = body[-1][:end]
    body[0] = body[0][start:]
    text = " ".join(line.decode().strip() for line in body)
    return f"lambda {', '.join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])}: {text}"


def _bytecode_digest(code: types.CodeType) -> str:
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            constants.append(_bytecode_digest(constant))
        elif isinstance(constant, frozenset):  # whose order differs from process to process
            constants.append(str(sorted(map(repr, constant))))
        else:
            constants.append(repr(constant))
    names = (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    return digest(code.co_name, code.co_code.hex(), str(names), *constants)


@functools.lru_cache(maxsize=4096)
def _code_of(source: str) -> types.CodeType | None:
    """The code of a function by its text: a kernel's text may have been exchanged."""
    try:
        module = compile(source, "<kernel>", "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return next((c for c in module.co_consts if isinstance(c, types.CodeType)), None)


def _without_decorators(source: str) -> str:
    start = re.search(r"^def\s", source, re.MULTILINE)
    return source[start.start() :] if start else source


# What is a library's, and what its functions write ---------------------------------------------------------------------


@functools.cache
def _library_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in folders if folder)


@functools.lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    """Whether a file is Python's, an installed package's, or, wherever it lies, the toolchain's."""
    real = os.path.realpath(file)
    if f"{os.sep}site-packages{os.sep}" in real or f"{os.sep}dist-packages{os.sep}" in real:
        return True
    return real.startswith(_library_folders()) or any(_package_holds(name, file) for name in _TOOLCHAIN)


def _package_holds(package: str, file: str) -> bool:
    known = sys.modules.get(package)
    place = vars(known).get("__file__") if known is not None else None
    if not isinstance(place, str):
        return False
    if os.path.basename(place).startswith("__init__."):
        return os.path.realpath(file).startswith(os.path.dirname(os.path.realpath(place)) + os.sep)
    return os.path.realpath(file) == os.path.realpath(place)


def _module_of(file: str) -> str:
    return "" if file.startswith("<") else os.path.splitext(os.path.basename(file))[0]


def _file_of(module: str) -> str | None:
    """The file of a module by name, loaded or not; nothing is imported for that."""
    from importlib.machinery import PathFinder

    if (loaded := sys.modules.get(module)) is not None:
        file = vars(loaded).get("__file__")
    else:
        parent, _, _ = module.rpartition(".")
        path = vars(sys.modules.get(parent, types)).get("__path__") if parent else None
        spec = PathFinder.find_spec(module, path) if path is not None or not parent else None
        file = spec.origin if spec is not None else None
    return file if file and file.endswith(".py") and os.path.isfile(file) else None


def _is_state(value: Any, name: str, module: str) -> bool:
    """Whether a value that stands under a name is one that the functions of a module write to."""
    if issubclass(type(value), (types.FunctionType, type, str, tuple)) or is_kernel(value):
        return False
    if type(value) in _PLAIN and not re.search(rf"\b(global|nonlocal)\b.*\b{name}\b|\.{name}\b", _module_text(module)):
        return False  # which saves parsing it
    return name in _written_in(module)


def _module_text(module: str) -> str:
    file = vars(sys.modules.get(module, types)).get("__file__")
    try:
        return "".join(_lines_of(file)) if isinstance(file, str) and module in sys.modules else ""
    except LookupError:
        return ""


@functools.lru_cache(maxsize=256)
def _written_in(module: str) -> frozenset[str]:
    """Names that the functions of a module write to: its caches and counters, which are state and no part of the code.

    That is what they index into, append to or count up; and what a `__call__` or `forward` sets in its object.
    """
    try:
        tree = ast.parse(_module_text(module))
    except SyntaxError:
        return frozenset()
    written: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__init__":
            written |= set(_writes(node))
    return frozenset(written)


def _writes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    nodes = list(ast.walk(function))
    shared = {name for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
    local = {n.arg for n in nodes if isinstance(n, ast.arg)}
    local |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - shared
    called = function.name in ("__call__", "forward")
    for node in nodes:
        target: ast.AST | None = None
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATES:
            target = node.func.value
        elif isinstance(node, ast.AugAssign) or (
            called and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        ):
            target = node.target if isinstance(node, ast.AugAssign) else node
        if isinstance(target, ast.Name) and target.id not in local:
            yield target.id
        elif isinstance(target, ast.Attribute):
            yield target.attr
