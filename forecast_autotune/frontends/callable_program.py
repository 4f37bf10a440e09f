"""Python callables as a Program: their sources with what they call, Triton kernels and extensions included."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ..core.workload import Program
from .joint import Nested
from .triton_program import names_in, program_of


class Reading:
    """The text of some callables, and what was met in it: tuners that they may call, the languages of their kernels.

    Followed are functions and classes of a callable's own package, kernels and tuned functions wherever they are from.
    """

    def __init__(self, callables: Iterable[Any]) -> None:
        self.texts: dict[int, str] = {}
        self.constants: dict[str, str] = {}
        self.tuners: list[Nested] = []
        self.languages: set[str] = set()
        self._held: list[Any] = []  # so that no identity is given away while texts are kept by it
        for each in callables:
            self._package = (getattr(each, "__module__", None) or "").partition(".")[0]
            self._add(each)

    def program(self, name: str) -> Program:
        """All of it as one program."""
        language = next((known for known in ("triton", "cuda", "c++") if known in self.languages), "python")
        texts = [*(f"{name} = {value}" for name, value in sorted(self.constants.items())), *self.texts.values()]
        return Program(name=name, language=language, source="\n\n".join(texts))

    def _add(self, value: Any) -> None:
        if id(value) in self.texts:
            return
        self._held.append(value)
        if (tuned := _tuned(value)) is not None:
            self.tuners.append(tuned)
            self._keep(value, tuned.program)
        elif (kernel := _kernel(value)) is not None:
            if hasattr(value, "run_under"):
                self.tuners.append(value)
            self._keep(value, program_of(kernel))
        elif isinstance(value, functools.partial):
            self.texts[id(value)] = f"partial{value.args}{value.keywords}" if _plain(value) else "partial"
            self._add(value.func)
            self._add_parts([*value.args, *value.keywords.values()])
        elif inspect.isroutine(value) or inspect.isclass(value):
            self._read(value)
            if inspect.ismethod(value):
                self._add_parts([value.__self__, *getattr(value.__self__, "__dict__", {}).values()])
        else:
            self.texts[id(value)] = f"{type(value).__module__}.{type(value).__qualname__}"
            self._read(type(value))
            self._add_parts(getattr(value, "__dict__", {}).values())

    def _keep(self, value: Any, program: Program) -> None:
        self.texts[id(value)] = f"# {program.name}\n{program.source}"
        self.languages.add(program.language)

    def _read(self, value: Any) -> None:
        """A function's or a class's text, and what is named in it."""
        function = inspect.unwrap(value)
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):  # built in, or typed in
            self.texts[id(value)] = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
            return
        self.texts[id(value)] = source
        function = getattr(function, "__func__", function)
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        scope = dict(getattr(function, "__globals__", None) or vars(module or object))
        if inspect.isfunction(function):
            scope.update(inspect.getclosurevars(function).nonlocals)
        code = getattr(function, "__code__", None)
        # The text of a lambda may be a piece of a statement.
        for name in names_in(source) or (() if code is None else (*code.co_names, *code.co_freevars)):
            owner, _, attribute = name.partition(".")
            found = scope.get(owner)
            if attribute:
                found = getattr(found, attribute, None) if inspect.ismodule(found) else None
            if isinstance(found, (bool, int, float, str)):
                self.constants[name] = repr(found)
            else:
                self._add_parts([found])

    def _add_parts(self, values: Iterable[Any]) -> None:
        for value in values:
            own = (getattr(value, "__module__", None) or "").partition(".")[0] == self._package
            if (
                _tuned(value) is not None
                or _kernel(value) is not None
                or ((inspect.isfunction(value) or inspect.ismethod(value) or inspect.isclass(value)) and own)
            ):
                self._add(value)


def _plain(value: functools.partial[Any]) -> bool:
    return all(isinstance(v, (bool, int, float, str, type(None))) for v in (*value.args, *value.keywords.values()))


def _tuned(value: Any) -> Any:
    """What decides for a function that `load_inline` or `variants` made; None for any other."""
    tuned = getattr(value, "tuned", None) if inspect.isfunction(value) else None
    return tuned if hasattr(tuned, "run_under") else None


def _kernel(value: Any) -> Any:
    """The JIT function in a kernel, below its tuners and heuristics; None for what is none."""
    while value is not None and not isinstance(value, (type, Mapping)):
        if type(value).__name__ in ("JITFunction", "InterpretedFunction", "GluonJITFunction"):
            return value
        if type(value).__module__.partition(".")[0] not in ("triton", "forecast_autotune"):
            return None
        value = getattr(value, "fn", None)
    return None
