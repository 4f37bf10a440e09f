"""Kernels of a folder of Python files, read without importing one of them: their source, names they find, plausible calls.

A module's names are looked up when they are asked for: functions under `jit`, literals, other modules of the same folder,
and Triton itself. Nothing of the folder is executed.
"""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forecast_autotune.core.cached_property import cached_property
from forecast_autotune.features.kernel_walk.symbols import last_name

_ACCESSES = frozenset(["load", "store", "make_block_ptr", "make_tensor_descriptor", "advance"])
_ADDITIVE = (ast.Add, ast.Sub)


class StaticKernel:
    """A function under `jit`, as what describes a kernel reads it.

    Attributes:
        src: its source, decorators included.
        fn: carries the names that its code finds outside, as a function's `__globals__`.
        file: where it stands; `path` says so from the folder on.
        language: triton or gluon.
        configs: knobs of its tuner's configs, as far as they are literals.
    """

    def __init__(self, module: Module, node: ast.FunctionDef) -> None:
        self.definition = node
        self.src = _source(module.text, node)
        self.fn = SimpleNamespace(__globals__=module, __name__=node.name)
        self.__name__ = node.name
        self.__module__ = module.dotted
        self.file = module.path
        self.path = module.path.relative_to(module.folder.root).as_posix()
        self.language = _language(node)
        self.configs = _configs(node)


class Folder:
    """A folder of Python files: a package, or what lies around several."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[Path, Module | None] = {}

    def files(self) -> Iterator[Path]:
        """Every Python file, sorted."""
        yield from sorted(self.root.rglob("*.py"))

    def module(self, path: Path) -> Module | None:
        """The module of a file; None for one that cannot be read."""
        if path not in self._modules:
            try:
                self._modules[path] = Module(self, path, path.read_text(encoding="utf-8", errors="replace"))
            except (OSError, SyntaxError, ValueError, RecursionError):
                self._modules[path] = None
        return self._modules[path]

    def named(self, dotted: str) -> Module | None:
        """The module of that name, whether the folder is the package itself or what it lies in."""
        parts = dotted.split(".")
        for base in (self.root, self.root.parent):
            for path in (base.joinpath(*parts).with_suffix(".py"), base.joinpath(*parts, "__init__.py")):
                if path.is_file() and path.is_relative_to(self.root):
                    return self.module(path)
        return None


class Module(Mapping[str, Any]):
    """A module's names, looked up when they are asked for; also the attributes of what stands for the module itself."""

    def __init__(self, folder: Folder, path: Path, text: str) -> None:
        self.folder, self.path, self.text = folder, path, text
        self.tree = ast.parse(text)
        self._found: dict[str, Any] = {}
        self._looking: set[str] = set()

    @cached_property
    def dotted(self) -> str:
        """Its name, from the folder on."""
        parts = self.path.relative_to(self.folder.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def kernels(self) -> dict[str, StaticKernel]:
        """Its functions under `jit`, nested ones too; of one name the last."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef))
        return {node.name: StaticKernel(self, node) for node in nodes if _language(node)}

    @cached_property
    def _bindings(self) -> dict[str, ast.AST]:
        """What sets each of its names: imports, and assignments outside of functions."""
        found: dict[str, ast.AST] = {}
        for node in ast.walk(self.tree):  # a kernel within a function finds what that has imported
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name.partition(".")[0], node)
        for node in _outside_of_functions(self.tree):
            if isinstance(node, ast.Assign):
                found.update((target.id, node) for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = node
        return found

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            if name in self._looking:  # modules that import one another
                raise KeyError(name)
            self._looking.add(name)
            try:
                self._found[name] = self._look_up(name)
            finally:
                self._looking.discard(name)
        found = self._found[name]
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter({**self.kernels, **self._bindings})

    def __len__(self) -> int:
        return len({**self.kernels, **self._bindings})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("src", "value", "fn"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def _look_up(self, name: str) -> Any:
        if name in self.kernels:
            return self.kernels[name]
        node = self._bindings.get(name)
        if isinstance(node, ast.Import):
            alias = next(a for a in node.names if (a.asname or a.name.partition(".")[0]) == name)
            return self._imported(alias.name if alias.asname else alias.name.partition(".")[0])
        if isinstance(node, ast.ImportFrom):
            return self._imported_from(node, name)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            return self._value(node.value)
        return self._starred(name) if node is None else None

    def _imported(self, dotted: str) -> Any:
        if dotted.partition(".")[0] in ("triton", "math"):
            try:
                return importlib.import_module(dotted)
            except Exception:  # of another version
                return None
        return self.folder.named(dotted)

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.dotted.split(".")
        if self.path.name != "__init__.py":
            package.pop()
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, node.module] if node.module else package)

    def _imported_from(self, node: ast.ImportFrom, name: str) -> Any:
        wanted = next(a.name for a in node.names if (a.asname or a.name) == name)
        origin = self._origin(node)
        if wanted in ("tl", "triton") and not origin.startswith("triton"):  # by way of a module of the package's own
            return importlib.import_module("triton.language" if wanted == "tl" else "triton")
        module = self._imported(origin)
        found = getattr(module, wanted, None)
        return found if found is not None else self._imported(f"{origin}.{wanted}")

    def _starred(self, name: str) -> Any:
        for node in _outside_of_functions(self.tree):
            if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
                found = getattr(self._imported(self._origin(node)), name, None)
                if found is not None:
                    return found
        return None

    def reached(self, node: ast.expr) -> Any:
        """What a name, or a name of a module, stands for; None where that is not known."""
        if isinstance(node, ast.Attribute):
            return getattr(self.reached(node.value), node.attr, None) if node.attr.isidentifier() else None
        return self.get(node.id) if isinstance(node, ast.Name) else None

    def _value(self, node: ast.expr) -> Any:
        """A literal, one within `tl.constexpr(…)`, another name, or an attribute of one."""
        if isinstance(node, ast.Call) and last_name(node.func) == "constexpr" and node.args:
            return self._value(node.args[0])
        return self.reached(node) if isinstance(node, (ast.Name, ast.Attribute)) else _literal(node)


# Calls --------------------------------------------------------------------------------------------------------------------


class PlausibleTensor:
    """Memory that an argument may point to: so many elements of two bytes."""

    def element_size(self) -> int:
        """Bytes of an element."""
        return 2

    def numel(self) -> int:
        """How many elements there are."""
        return 1 << 24


class PlausibleDescriptor:
    """A tensor descriptor that the caller made."""

    base = PlausibleTensor()

    def __init__(self, rank: int) -> None:
        self.block_shape = [64] * rank


GRID = (32, 4, 2)  # all programs find work: 32 blocks of 64 are half of a length
SIZE, BLOCK, STRIDE, FEW = 4096, 64, 4096, 4
_FEW = re.compile(
    r"_per_|^per_|batch|heads?$|^h[qkv]?$|groups?$|splits?$|ratio|repeat|top_?k|experts?$|bits?$|^e$|_h$|channels$|num_seqs"
)
_FLOAT = re.compile(
    r"(^|_)(eps|epsilon|scale|alpha|beta|lr|decay|momentum|softcap|cap|prob|p|lambd|rate|factor|limit)$"
)
_DTYPE = re.compile(r"dtype(_?\d+)?$|_type$|^ty$")


def few(name: str) -> int:
    """How many there are of what is few, such that shares of it are whole: 32 heads, 4 groups, 1 for each program."""
    return 1 if "per_" in name else 8 * FEW if "head" in name else FEW


def launches(folder: Folder) -> Mapping[tuple[Path, str], dict[str, Any]]:
    """The kernels that a host function launches, `NAME[grid](…)`: by file and name, the literals that it gives by name."""
    found: dict[tuple[Path, str], dict[str, Any]] = {}
    for path in folder.files():
        module = folder.module(path)
        if module is None:
            continue
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
                continue
            given = {k.arg: value for k in node.keywords if k.arg and (value := _literal(k.value)) is not None}
            for inner in ast.walk(node.func.value):
                kernel = module.reached(inner) if isinstance(inner, (ast.Name, ast.Attribute)) else None
                if isinstance(kernel, StaticKernel):
                    place = kernel.file, kernel.__name__
                    found[place] = {**given, **found.get(place, {})}
    return found


def plausible_call(kernel: StaticKernel, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that a kernel might get, by name: what its launches and its first config say, else by use and by name."""
    arguments = kernel.definition.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    defaults = dict(zip([p.arg for p in parameters][::-1], arguments.defaults[::-1], strict=False))
    told = {**given, **(kernel.configs[0] if kernel.configs else {})}
    uses = _Uses(kernel.definition, [p.arg for p in parameters])
    call: dict[str, Any] = {}
    for parameter in parameters:
        name = parameter.arg
        default = defaults.get(name)
        constant = parameter.annotation is not None and "constexpr" in ast.unparse(parameter.annotation)
        if name in told:
            call[name] = told[name]
        elif constant:
            value = _literal(default) if default is not None else None
            call[name] = uses.constant(name) if value is None else value
        else:
            call[name] = uses.argument(name)
    return call


class _Uses:
    """How a kernel uses its parameters."""

    def __init__(self, definition: ast.FunctionDef, parameters: list[str]) -> None:
        self._roots: dict[str, set[str]] = {name: {name} for name in parameters}
        self.pointers: set[str] = set()
        self.descriptors: dict[str, int] = {}
        self.numbers: set[str] = set()
        self.shapes: set[str] = set()
        self.passed: set[str] = set()  # to functions that are not Triton's
        self.dtypes: set[str] = set()
        self.texts: dict[str, str] = {}
        for _ in range(2):  # what is set at the end of a loop is used at its start
            for node in ast.walk(definition):
                self._see(node)
        self.pointers -= self.numbers

    def _see(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._roots.setdefault(target.id, set()).update(self._of(node.value))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and isinstance(node.op, _ADDITIVE):
            self._roots.setdefault(node.target.id, set()).update(self._of(node.value))
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, _ADDITIVE):
            self.numbers.update(_names(node.left, node.right))
        elif isinstance(node, ast.Compare):
            for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
                if isinstance(one, ast.Name) and isinstance(other, ast.Constant) and isinstance(other.value, str):
                    self.texts.setdefault(one.id, other.value)
            if not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
                self.numbers.update(_names(node.left, *node.comparators))
        elif isinstance(node, ast.Call):
            self._see_call(node)

    def _see_call(self, node: ast.Call) -> None:
        name = last_name(node.func)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if (
            name in ("load", "store", "gather", "atomic_add")
            and isinstance(owner, ast.Name)
            and owner.id in self._roots
        ):
            first = node.args[0] if node.args else None
            rank = len(first.elts) if isinstance(first, (ast.List, ast.Tuple)) else 2
            self.descriptors.update(dict.fromkeys(self._roots[owner.id], rank))
        elif (name in _ACCESSES or name.startswith("atomic_")) and node.args:
            roots = self._of(node.args[0])
            self.pointers |= {root for root in roots if "ptr" in root.lower()} or roots
        elif name == "arange":
            self.shapes.update(n.id for a in node.args for n in ast.walk(a) if isinstance(n, ast.Name))
        elif name in ("range", "static_range", "cdiv", "min", "max", "minimum", "maximum"):
            self.numbers.update(_names(*node.args))
        elif name in ("zeros", "full") and node.args:
            self.shapes.update(n.id for n in ast.walk(node.args[0]) if isinstance(n, ast.Name))
        if isinstance(node.func, ast.Name) and name not in ("range", "min", "max", "float", "int"):
            self.passed.update(_names(*node.args, *(k.value for k in node.keywords)))
        for keyword in node.keywords:
            if keyword.arg and "dtype" in keyword.arg and isinstance(keyword.value, ast.Name):
                self.dtypes.add(keyword.value.id)
        if name == "to" and node.args and isinstance(node.args[0], ast.Name):
            self.dtypes.add(node.args[0].id)

    def _of(self, node: ast.expr) -> set[str]:
        """The parameters that an address is made from by adding to them."""
        if isinstance(node, ast.Name):
            return set(self._roots.get(node.id, ()))
        if isinstance(node, ast.BinOp) and isinstance(node.op, _ADDITIVE):
            return self._of(node.left) | self._of(node.right)
        if isinstance(node, ast.IfExp):
            return self._of(node.body) | self._of(node.orelse)
        if isinstance(node, ast.Subscript):
            return self._of(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("to", "reshape", "view", "trans"):
                return self._of(node.func.value)
            return self._of(node.args[0]) if node.args else set()
        return set()

    def argument(self, name: str) -> Any:
        """What a parameter that is no constexpr may be."""
        if name in self.descriptors and name not in self.pointers:
            return PlausibleDescriptor(self.descriptors[name])
        lower = name.lower()
        if "stride" in lower:
            return STRIDE
        if name in self.pointers or "ptr" in lower or "pointer" in lower:
            return PlausibleTensor()
        if _FLOAT.search(lower):
            return 0.5
        if name in self.passed and name not in self.numbers and name not in self.shapes:
            return PlausibleTensor()
        return few(lower) if _FEW.search(lower) else SIZE

    def constant(self, name: str) -> Any:
        """What a constexpr may be."""
        import triton.language as tl

        lower = name.lower()
        if name in self.texts:
            return self.texts[name]
        if name in self.dtypes or _DTYPE.search(lower):
            return tl.float32
        if _FLOAT.search(lower) or re.search(r"dtype_(min|max)", lower):
            return 0.5
        if "stage" in lower:
            return 2
        if "warp" in lower or lower in ("num_ctas", "unroll") or (_FEW.search(lower) and name not in self.shapes):
            return few(lower)
        if "stride" in lower:
            return STRIDE
        if (
            re.search(r"block|tile|chunk|page|size|dim|_pow2|width|pad|^b[a-z]?$|^d[a-z]?$|head", lower)
            or name in self.shapes
        ):
            return BLOCK
        return SIZE if name in self.numbers and not lower.startswith(("is_", "has_", "use_", "do_")) else True


# Reading ------------------------------------------------------------------------------------------------------------------


def _language(node: ast.FunctionDef) -> str:
    """Of which language a function's `jit` is; empty without one."""
    for decorator in node.decorator_list:
        text = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if text in ("gluon.jit", "gl.jit"):
            return "gluon"
        if text in ("jit", "triton.jit", "tl.jit", "triton.runtime.jit", "triton_jit"):
            return "triton"
    return ""


def _configs(node: ast.FunctionDef) -> list[dict[str, Any]]:
    """The literal knobs of the `Config`s that a decorator lists."""
    found = []
    for decorator in node.decorator_list:
        for call in ast.walk(decorator):
            if (
                isinstance(call, ast.Call)
                and last_name(call.func) == "Config"
                and call.args
                and isinstance(call.args[0], ast.Dict)
            ):
                pairs = zip(call.args[0].keys, call.args[0].values, strict=True)
                knobs = {_literal(k): _literal(v) for k, v in pairs if k is not None}
                knobs.update((k.arg, _literal(k.value)) for k in call.keywords if k.arg in ("num_warps", "num_stages"))
                found.append({str(k): v for k, v in knobs.items() if k is not None and v is not None})
    return found


def _source(text: str, node: ast.FunctionDef) -> str:
    lines = text.splitlines(keepends=True)
    return textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))


def _outside_of_functions(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, those within `if`, `try` and `with` too."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            waiting[:0] = list(ast.iter_child_nodes(node))


def _literal(node: ast.expr | None) -> Any:
    """The value of a literal; None for anything else."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, (bool, int, float, str)) else None


def _names(*nodes: ast.expr) -> list[str]:
    return [node.id for node in nodes if isinstance(node, ast.Name)]
