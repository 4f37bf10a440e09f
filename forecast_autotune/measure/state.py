"""What callables reach beside their arguments, through closures, modules, globals and attributes: tensors and slots."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import logging
import sys
import types
from collections import Counter, deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..core.signal_handlers import raised_by_signal_handler
from .copies import kind_without_copy
from .process_state import generator_kinds, is_only_thread
from .slots import PLAIN, Slots, Whole, label

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_MOST = 1_000_000  # objects looked at; a mixture of experts of 20,000 modules has 200,000
# But for these and classes derived from them: schedulers and gradient scalers, too
_OPTIMIZERS = ("torch.optim.", "torch.amp.", "torch.cuda.amp.")
# Packages whose objects hold no state of a variant
_OTHERS = ("torch", "triton", "numpy", "forecast_autotune", "builtins")
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_OF_MODULES = ("_parameters", "_buffers", "_modules")  # dicts; of a TorchScript module, objects of torch's own kinds
# Objects of the standard library hold slots of their own (a logger's cache, a queue), but for those that programs fill
_SLOTS_OF_THEIR_OWN = sys.stdlib_module_names - {"argparse", "builtins", "collections", "functools", "types"}
_STORES_GLOBALS = frozenset(dis.opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL"))
_STORES_CELLS = frozenset(dis.opmap[name] for name in ("STORE_DEREF", "DELETE_DEREF"))


def tensors_reached(values: Iterable[Any]) -> dict[str, torch.Tensor]:
    """Dense tensors that some callables and objects hold, by where each was met, with those in their `.grad`.

    These are followed:

    * closures, bound objects and containers;
    * globals that a function names. Of modules and classes of the program's own, also the attributes that it names;
    * attributes of `torch.nn.Module`s, and of objects whose classes are the program's own.

    What is reached by name at run time only is not seen.
    """
    import torch

    tensors: dict[str, torch.Tensor] = {}
    counts: Counter[str] = Counter()
    for name, value in _reached(values):
        if isinstance(value, torch.Tensor) and kind_without_copy(value) is None:
            tensors[_unlike(name, tensors, counts)] = value
    return tensors


def state_reached(values: Iterable[Any]) -> dict[str, Any]:
    """What `CopiedArguments` is to put back beside arguments: tensors, generators of random numbers, and slots."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    generators: list[Any] = []
    kinds = (
        generator_kinds() if is_only_thread() else (torch.Generator,)
    )  # Python's and NumPy's may be another thread's, too
    seen: dict[int, Any] = {}

    def look_below(value: Any) -> Iterator[torch.Tensor]:
        met = (v for _, v in _reached([value], known=seen))
        return (v for v in met if isinstance(v, torch.Tensor) and kind_without_copy(v) is None)

    slots, counts = Slots(look_below), Counter[str]()
    for name, value in _reached(values, slots, seen=seen):
        if isinstance(value, kinds):
            generators.append(value)
        elif isinstance(value, torch.Tensor) and kind_without_copy(value) is None:
            tensors[_unlike(name, tensors, counts)] = value
    return {"state": tensors, "generators": generators, "slots": slots}


def weights_reached(values: Iterable[Any]) -> tuple[dict[str, torch.nn.Module], dict[str, torch.Tensor]]:
    """The modules that some callables hold, and the leaves beside their parameters that autograd may follow, now or later.

    By where each was met, with a number where two were met under one name. Buffers count if they require gradients now.
    What only an optimizer holds is left out: autograd follows none of it from a result.
    """
    import torch

    modules: dict[str, torch.nn.Module] = {}
    tensors: dict[str, torch.Tensor] = {}
    counts: Counter[str] = Counter()
    for name, value in _reached(values, optimizers=False):
        if isinstance(value, torch.nn.Module):
            modules[_unlike(name, modules, counts)] = value
        elif isinstance(value, torch.Tensor) and value.is_leaf and (value.is_floating_point() or value.is_complex()):
            tensors[_unlike(name, tensors, counts)] = value
    parameters = {id(t) for m in modules.values() for t in m._parameters.values()}
    gradients = {id(t.grad) for t in tensors.values()}
    buffers = {id(t) for m in modules.values() for t in m._buffers.values() if t is not None and not t.requires_grad}
    others = parameters | gradients | buffers
    return modules, {name: tensor for name, tensor in tensors.items() if id(tensor) not in others}


def _unlike(name: str, taken: Container[str], counts: Counter[str]) -> str:
    """The name, with a number if it is taken; `counts` of those that were asked for."""
    made = name
    while made in taken:
        counts[name] += 1
        made = f"{name}{counts[name] + 1}"
    return made


def with_modes(modules: Mapping[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Those that may do something else in training mode: without what is of `torch.nn`, inside others, and names no mode."""
    inner = {id(child) for module in modules.values() for _, child in module._modules.items()}
    with_mode = {kind for kind in set(map(type, modules.values())) if _names_its_mode(kind)}
    return {n: m for n, m in modules.items() if id(m) not in inner or type(m) in with_mode}


def _names_its_mode(kind: type) -> bool:
    import torch

    own = [base for base in kind.__mro__ if base not in (torch.nn.Module, object)]
    codes = [
        code for base in own for held in vars(base).values() if (code := getattr(held, "__code__", None)) is not None
    ]
    of_torch = all(base.__module__.startswith("torch.nn.modules.") for base in own)
    return not of_torch or any("training" in code.co_names for code in codes)


def _reached(
    values: Iterable[Any],
    slots: Slots | None = None,
    *,
    optimizers: bool = True,
    seen: dict[int, Any] | None = None,
    known: Container[int] = (),
) -> Iterator[tuple[str, Any]]:
    """The tensors, modules and generators that some values hold, by where each was met; of a tensor, also its `.grad`.

    The nearest come first. Objects are told apart by their types alone: a proxy that stands for nothing yet raises when it
    is asked for more, and what an object holds that raises is not seen.

    Args:
        slots: to note what is met on the way.
        optimizers: whether those are followed, too.
        seen: to keep what is met in, by identity: as long as it is kept, none is given away.
        known: identities of objects that are not followed.
    """
    import torch

    kinds = (torch.nn.Module, torch.Tensor, *generator_kinds())
    seen = {} if seen is None else seen
    waiting: deque[tuple[str, Any, Slots | None, bool]] = deque()
    for value in values:
        with _whatever_it_raises():
            waiting.append((_name(value), value, slots, False))
    while waiting:
        name, value, noted_in, whole = waiting.popleft()
        if id(value) in seen or id(value) in known or (not optimizers and _is_optimizer(type(value))):
            continue
        if len(seen) == _MOST:
            log.warning("what %s reaches is followed for %d objects, and no further", name, _MOST)
            return
        seen[id(value)] = value
        if issubclass(type(value), kinds):
            yield name, value
        with _whatever_it_raises():
            if _package(type(value)) in _SLOTS_OF_THEIR_OWN:
                noted_in = None
            # Of what an optimizer holds, other objects than containers are state by themselves, or not.
            whole = _is_optimizer(type(value)) or (whole and issubclass(type(value), _CONTAINERS))
            if noted_in is not None:
                _note_slots(name, value, noted_in, whole=whole)
            for inner, part in _parts(name, value):
                if type(part) not in PLAIN and id(part) not in seen:
                    waiting.append((inner, part, noted_in, whole))


@contextlib.contextmanager
def _whatever_it_raises() -> Iterator[None]:
    try:
        yield
    except Exception as err:
        if raised_by_signal_handler(err):
            raise


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", None) or type(value).__name__)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, by name."""
    import torch

    kind = type(value)
    if issubclass(kind, torch.Tensor):
        if kind_without_copy(value) is None and value.is_leaf and value.grad is not None:
            yield f"{name}.grad", value.grad
    elif issubclass(kind, functools.partial):
        yield from ((name, v) for v in (value.func, *value.args, *value.keywords.values()))
    elif issubclass(kind, types.MethodType):
        yield from ((_name(value.__self__), value.__self__), (name, value.__func__))
    elif issubclass(kind, types.FunctionType):
        if _is_of_program(value):
            yield from _of_function(name, value)
    elif issubclass(kind, dict):
        if not _all_plain(value.values()):
            entries = enumerate(list(value.items()))
            yield from ((f"{name}.{label(key, i)}", v) for i, (key, v) in entries if type(v) not in PLAIN)
    elif issubclass(kind, _CONTAINERS):
        if not _all_plain(value):
            yield from ((f"{name}[{i}]", v) for i, v in enumerate(list(value)))
    elif issubclass(kind, torch.nn.Module):
        for held in _OF_MODULES:
            yield from ((f"{name}.{key}", v) for key, v in getattr(value, held).items())
        yield from _attributes(name, value)
    elif _has_attributes(kind):
        yield from _attributes(name, value)


def _note_slots(name: str, value: Any, slots: Slots, *, whole: bool) -> None:
    """Note the slots of one object; `whole`: an optimizer's, or of a container in it.

    Of a class derived from an optimizer's numbers are state, and no flags and handles: these tell of what is done once.
    """
    import torch

    kind = type(value)
    of_attributes: Whole = "numbers" if whole and _is_of_program(kind) else whole
    if issubclass(kind, dict):
        slots.note_entries(name, value, whole=whole)
    elif issubclass(kind, (list, set, deque)):
        slots.note_items(name, value, whole=whole)
    elif issubclass(kind, types.FunctionType):
        if _is_of_program(value):
            _note_variables(name, value, slots)
    elif issubclass(kind, torch.nn.Module) or _has_attributes(kind):
        slots.note_entries(name, getattr(value, "__dict__", None), owner=value, whole=of_attributes)
        if issubclass(kind, torch.nn.Module):
            for held in _OF_MODULES:
                slots.note_entries(name, getattr(value, held), owner=value, compared=held == "_buffers")
        if members := _members_of(kind):
            slots.note_members(name, value, members)


def _note_variables(name: str, function: types.FunctionType, slots: Slots) -> None:
    """Note the variables that a function, or one inside it, assigns to and does not own."""
    for code in (codes := _codes(function)):
        if not _STORES_GLOBALS.isdisjoint(code.co_code[::2]):
            slots.note_globals(code.co_names, function.__globals__)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    if cells and not all(_STORES_CELLS.isdisjoint(code.co_code[::2]) for code in codes):
        slots.note_cells(name, cells)


def _all_plain(values: Collection[Any]) -> bool:
    """Whether no value holds anything: in a vocabulary of 100,000 entries this takes 2 ms, a look at each 50."""
    return set(map(type, values)) <= PLAIN


def _has_attributes(kind: type) -> bool:
    """Whether objects of a class, of none above, may hold state of a variant in their attributes."""
    is_state = _is_of_program(kind) or _is_optimizer(kind)
    return is_state and not issubclass(kind, (type, types.ModuleType))


def _is_optimizer(kind: type) -> bool:
    return any(str(base.__module__).startswith(_OPTIMIZERS) for base in kind.__mro__)


@functools.cache
def _of_all_modules() -> frozenset[str]:
    """Attributes that every module has: a dozen dicts of hooks, empty in most."""
    import torch

    return frozenset(vars(torch.nn.Module()))


def _attributes(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """An object's attributes: its own, and in the classes of the program slots and what is no function."""
    import torch

    own = list(getattr(value, "__dict__", {}).items())
    if issubclass(type(value), torch.nn.Module):
        own = [(key, v) for key, v in own if key not in _OF_MODULES and (key not in _of_all_modules() or v)]
    yield from ((f"{name}.{key}", v) for key, v in own)
    for key, member in _members_of(type(value)).items():
        with contextlib.suppress(AttributeError):  # a slot that holds nothing
            yield f"{name}.{key}", member.__get__(value)
    for base in type(value).__mro__:
        if not _is_of_program(base):
            continue
        for key, held in list(vars(base).items()):
            if not key.startswith("__") and type(held) not in (types.MemberDescriptorType, types.FunctionType):
                yield f"{name}.{key}", held


def _of_function(name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not bound yet
            yield variable, cell.cell_contents
    for code in _codes(function):
        yield from _named(code.co_names, function.__globals__)
    for v in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), function.__dict__):
        yield name, v


def _codes(function: types.FunctionType) -> list[types.CodeType]:
    """A function's code, and that of those inside it."""
    codes = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if inspect.iscode(c)]
    return codes


def _named(names: Collection[str], variables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The globals that code names; of modules and classes of the program's, what they hold under names in it.

    No function that they hold: through those of a library, all that it keeps of the program would be reached.
    """
    scopes: list[tuple[str, Any]] = [("", variables)]
    entered: set[int] = set()
    for prefix, scope in scopes:
        for name in names:
            value = scope.get(name)
            if not issubclass(type(value), (type, types.ModuleType)):
                if not (prefix and type(value) is types.FunctionType):
                    yield prefix + name, value
            elif id(value) not in entered and _is_of_program(value):
                entered.add(id(value))
                bases = value.__mro__ if issubclass(type(value), type) else (value,)
                scopes += [(f"{prefix}{name}.", vars(base)) for base in bases if _is_of_program(base)]


def _members_of(kind: type) -> dict[str, types.MemberDescriptorType]:
    """What `__slots__` of a class name, where the class that names it is the program's own."""
    bases = [base for base in kind.__mro__ if _is_of_program(base)]
    return {k: v for base in bases for k, v in list(vars(base).items()) if type(v) is types.MemberDescriptorType}


def _is_of_program(value: Any) -> bool:
    """Whether a class, a function or a module is none of a package whose objects hold no state of a variant."""
    return _package(value) not in _OTHERS


def _package(value: Any) -> str:
    """Where a class, a function or a module comes from."""
    name = value.__name__ if issubclass(type(value), types.ModuleType) else getattr(value, "__module__", None)
    return (name or "builtins").partition(".")[0]
