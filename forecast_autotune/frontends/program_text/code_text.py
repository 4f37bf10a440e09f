"""The text of functions, kernels and objects with that of all they reach: one text, one code."""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Iterable
from typing import Any

from ...core.digest import digest
from ...core.module_names import in_any_process
from ...core.workload import Program
from ..nested_tuning import Nested
from .libraries import Ownership, module_of_file
from .names import closure_of, is_state
from .sections import section_lines
from .values import (
    PLAIN,
    array_text,
    attributes_of,
    called_around,
    held_by,
    is_kernel,
    is_torch_module,
    is_wrapper,
    scripted_text,
    toolchain_text,
    tuned_by,
)

MAX_SECTIONS = 2_000  # functions and classes read for one program; what lies beyond is only named
MAX_ITEMS = 10_000  # of one container
MAX_CHARS = 500  # of one value; a longer one is given by its digest


class CodeText:
    """The text of some functions, kernels or objects and of all the code they reach.

    It holds kernels from anywhere, and the program's own functions and classes: those in the packages of the roots, and
    all that belong to no installed library. Libraries are named with their versions. No code runs while it is read:
    attributes are looked up in dictionaries alone.

    A function's text stands below the values it reads from outside: globals, closures, defaults. Line numbers, addresses
    and what the program's own functions write (counters, caches) leave no trace in it.

    Attributes:
        tuners: the tuners that the code may call.
        languages: languages of the kernels in it: `triton`, `cuda`, `c++`.
    """

    def __init__(self, roots: Iterable[Any] = ()) -> None:
        self.ownership = Ownership()
        self.tuners: list[Nested] = []
        self.languages: set[str] = set()
        self._sections: list[str] = []
        self._labels: dict[int, str] = {}
        self._names: collections.Counter[str] = collections.Counter()
        self._waiting: collections.deque[tuple[str, Any]] = collections.deque()
        self._held: list[Any] = []  # so that no identity is given away while labels are kept by it
        self._open: set[int] = set()
        for root in roots:
            self.add(root)

    def add(self, root: Any) -> None:
        """Read one more root; what is in its package is the program's own from here on."""
        innermost = root
        while (inner := held_by(innermost, "fn")) is not None:
            innermost = inner
        module = in_any_process(str(held_by(innermost, "__module__") or type(innermost).__module__))
        package = module.partition(".")[0]
        self.ownership.add_package(package)
        text = self.text_of(root)
        if id(root) not in self._labels:
            self._sections.append(f"# {text}")
        self._read_waiting()

    @property
    def text(self) -> str:
        """All sections, then the versions of the libraries that are named in them."""
        versions = [f"# {name} {version}" for name, version in sorted(self.ownership.versions.items())]
        return "\n\n".join([*self._sections, *versions])

    def program(self, name: str) -> Program:
        """All of it as one program; the language is Triton's, CUDA or C++ where it holds such a kernel."""
        language = next((known for known in ("triton", "cuda", "c++") if known in self.languages), "python")
        return Program(name=name, language=language, source=self.text)

    # Values ---------------------------------------------------------------------------------------------------------

    def text_of(self, value: Any) -> str:
        """A value in one line; a function, class or kernel by its label, and its section follows."""
        if id(value) in self._labels:
            return self._labels[id(value)]
        if id(value) in self._open:
            return "..."
        self._open.add(id(value))
        try:
            text = self._describe(value)
        finally:
            self._open.discard(id(value))
        return text if len(text) <= MAX_CHARS else f"<{len(text)} characters, {digest(text)[:12]}>"

    def _describe(self, value: Any) -> str:
        kind = type(value)
        if kind in PLAIN:
            return repr(value)
        if issubclass(kind, enum.Enum):
            return f"{kind.__qualname__}.{value._name_}"
        if kind.__name__ == "constexpr":
            return self.text_of(value.value)
        if (tuned := tuned_by(value)) is not None:
            return self._label(value, tuned.name)
        if is_kernel(value) or is_wrapper(value):
            return self._kernel(value)
        if kind is functools.partial:
            given = [self.text_of(v) for v in (value.func, *value.args)]
            return f"partial({', '.join([*given, *(f'{n}={self.text_of(v)}' for n, v in value.keywords.items())])})"
        if issubclass(kind, types.MethodType):
            return f"{self.text_of(value.__self__)}.{self.text_of(value.__func__)}"
        if issubclass(kind, types.FunctionType):
            return self._label(value, value.__name__) if self.ownership.is_own(value) else self._library(value)
        if issubclass(kind, type):
            return self._class(value)
        if issubclass(kind, types.ModuleType):
            return self.ownership.name_of(value.__name__, "")
        if (contained := self._container(value)) is not None:
            return contained
        return self._object(value)

    def _container(self, value: Any) -> str | None:
        kind = type(value)
        name = "" if kind in (list, tuple, dict, set, frozenset) else kind.__qualname__
        if issubclass(kind, (dict, types.MappingProxyType)):
            mapping = [*dict.items(value)] if issubclass(kind, dict) else [*value.items()]
            pairs = (f"{self.text_of(k)}: {self.text_of(v)}" for k, v in mapping[:MAX_ITEMS])
            return f"{name}{{{', '.join(pairs)}}}"
        if issubclass(kind, (set, frozenset)):
            return f"{name}{{{', '.join(sorted(self.text_of(v) for v in value))}}}"
        if issubclass(kind, (list, collections.deque)):
            return f"{name}[{', '.join(self.text_of(v) for v in list(value)[:MAX_ITEMS])}]"
        if issubclass(kind, tuple):
            return f"{name}({', '.join(self.text_of(v) for v in tuple.__iter__(value))})"
        return None

    def _object(self, value: Any) -> str:
        kind = type(value)
        if kind.__module__.partition(".")[0] in ("torch", "numpy", "triton") and (text := toolchain_text(value)):
            return text
        if issubclass(kind, types.BuiltinFunctionType):
            return self.ownership.name_of(value.__module__ or "builtins", value.__qualname__)
        if issubclass(kind, (staticmethod, classmethod)):
            return self.text_of(value.__func__)
        if issubclass(kind, property):
            return f"property({', '.join(self.text_of(f) for f in (value.fget, value.fset, value.fdel) if f)})"
        if scripted_text(value) is not None:
            return self._label(value, "scripted")
        held = dict(attributes_of(value))
        if self.ownership.is_own(kind) or is_torch_module(value):
            own = self.ownership.is_own(kind)
            texts = {n: self.text_of(v) for n, v in held.items() if not (own and is_state(v, n, kind.__module__))}
        else:  # of a library's object, the code that it was given
            texts = {n: self.text_of(v) for n, v in held.items() if self.is_code(v)}
        array = [] if (text := array_text(value)) is None else [text]
        return f"{self._class(kind)}({', '.join([*array, *(f'{n}={text}' for n, text in texts.items())])})"

    def _class(self, kind: type) -> str:
        if self.ownership.is_own(kind):
            return self._label(kind, kind.__name__)
        return self.ownership.name_of(kind.__module__, kind.__qualname__)

    def _library(self, function: types.FunctionType) -> str:
        """A library's function by name, with the program's own code that it was made around."""
        held = [*closure_of(function).values(), *(function.__defaults__ or ()), *vars(function).values()]
        around = dict.fromkeys(self.text_of(v) for v in held if self.is_code(v))
        code = function.__code__
        name = self.ownership.name_of(module_of_file(code.co_filename) or function.__module__ or "", code.co_name)
        return f"{name}({', '.join(around)})" if around else name

    def is_code(self, value: Any) -> bool:
        """Whether a value is a tuner, a kernel, or a function or class of the program's own."""
        kind = type(value)
        if issubclass(kind, types.MethodType):
            return self.is_code(value.__func__)
        return (
            tuned_by(value) is not None
            or is_kernel(value)
            or is_wrapper(value)
            or (issubclass(kind, (types.FunctionType, type)) and self.ownership.is_own(value))
        )

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
            if len(self._sections) < MAX_SECTIONS:
                self._sections.append("\n".join(section_lines(self, label, value)))

    def _kernel(self, value: Any) -> str:
        """A kernel's label; of one below tuners and heuristics, with the functions that these call around it."""
        if is_wrapper(value):
            if hasattr(value, "run_under"):
                self.tuners.append(value)
            inner = self._labels[id(value)] = self.text_of(value.fn)
            self._held.append(value)
            # Hooks may refer to the tuner that calls them, so it has its label by now.
            around = dict.fromkeys(f"{n} = {self.text_of(v)}" for n, v in called_around(value))
            if around:
                self._sections.append("\n".join(f"# {inner}: {line}" for line in around))
            return inner
        function = getattr(value, "fn", None) or getattr(value, "__func__", value)
        if str(getattr(function, "__module__", "")).startswith("triton."):
            return self.ownership.name_of(function.__module__, function.__qualname__)  # the toolchain's
        return self._label(value, str(getattr(function, "__name__", "kernel")))


def digest_of(value: Any) -> str:
    """A digest of the text of one function, kernel or object."""
    return digest(CodeText([value]).text)
