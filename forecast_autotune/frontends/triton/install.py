"""How `install()` reaches Triton's own tuners: they decide by this package, whoever made them and when."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from ...compilers.triton_hash import begin_hashing
from ...core.fork_safe_lock import fork_safe_lock
from ...core.module_names import module_name
from ...core.text import shown
from ...core.user_warnings import SEE_TRACEBACK, warn_user
from ...errors import InvalidInputError, MissingExtraError, SettingError, TuningWarning
from .torch_capture.capture_patches import patch_capture

if TYPE_CHECKING:
    from .autotuner import ForecastAutotuner

log = logging.getLogger(__name__)

ATTRIBUTE = "_forecast_autotuner"
"""Where a tuner of Triton's holds the `ReachedTuner` that decides for it, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The packages whose kernels `install()` reaches: a name stands for a module and all below it."""

    only: tuple[str, ...] | None
    skip: tuple[str, ...]

    def why_not(self, module: str) -> str:
        """Why kernels of a module are left to Triton; empty where they are not."""
        if any(map(functools.partial(_is_within, module), self.skip)):
            return f"install(skip=…) leaves out {module}"
        if self.only is not None and not any(map(functools.partial(_is_within, module), self.only)):
            return f"install(only=…) does not name {module}"
        return ""


class Exchange(NamedTuple):
    """A method of Triton's class that is replaced, or a property that it gets."""

    name: str
    ours: Any
    theirs: Any  # None: the class inherited it, or had none


@dataclass(frozen=True, slots=True)
class NotReached:
    """Stands in the place of a `ReachedTuner` where there is to be none, or none could be made."""

    why: str
    packages: Packages  # with others it says nothing, as one that came with a copy of a kernel may
    kernel = None


lock = fork_safe_lock()
"""Held while a kernel is reached or given back."""

_packages: Packages | None = None  # None: nothing is installed
_exchanged: list[Exchange] = []
reached: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Kernels that have our attribute, by identity."""

after_first_launch: list[Callable[[], None]] = []
"""Called when a kernel was launched under our decision for the first time."""


def reach_tuners(only: str | Iterable[str] | None = None, skip: str | Iterable[str] = ()) -> None:
    """`fa.install`, of kernels alone: its arguments and its errors."""
    global _packages
    chosen = Packages(only=None if only is None else _module_names("only", only), skip=_module_names("skip", skip))
    try:
        importlib.import_module("triton")
    except ImportError as err:
        raise MissingExtraError("Triton is not installed, so there is no tuner to reach: pip install triton") from err
    begin_hashing()
    kind = autotuner_class()
    with lock:
        _packages = chosen
        for kernel in list(reached.values()):
            if isinstance(vars(kernel).get(ATTRIBUTE), NotReached) or chosen.why_not(module_of(kernel)):
                _give_back(kernel)
        for name, make in (("run", _run), ("prune_configs", _prune_configs), ("__hash__", _hash), ("nargs", _nargs)):
            theirs = vars(kind).get(name)
            if not any(theirs is each.ours for each in _exchanged):
                found: Any = getattr(kind, name, None)
                ours = make(found)
                _exchanged.append(Exchange(name, ours, theirs))
                setattr(kind, name, ours)


def give_tuners_back() -> None:
    """`fa.uninstall`, of kernels alone."""
    global _packages
    with lock:
        _packages = None
        for kernel in list(reached.values()):
            _give_back(kernel)
        while _exchanged:
            exchange = _exchanged.pop()
            kind = autotuner_class()
            if vars(kind).get(exchange.name) is not exchange.ours:
                continue
            if exchange.theirs is None:
                delattr(kind, exchange.name)
            else:
                setattr(kind, exchange.name, exchange.theirs)


def tuner_of(kernel: Any) -> ForecastAutotuner | None:
    """The tuner of ours that decides for a kernel: the kernel itself if it is one, or the one behind it after `install()`.

    It has `decisions`, `explain()` and `best_config`. None where the kernel is left to Triton; `installed()` says why.
    """
    from .kernel_spec import is_forecast_tuner

    if is_forecast_tuner(kernel):
        return kernel  # type: ignore[no-any-return]
    if not isinstance(kernel, autotuner_class()):
        return None
    if _packages is None:
        return None
    tuner = vars(kernel).get(ATTRIBUTE)
    if isinstance(tuner, NotReached) and tuner.packages is _packages:
        return None
    if tuner is None or tuner.kernel is not kernel:  # one that was copied from another kernel
        tuner = _reach(kernel)
    return tuner  # type: ignore[no-any-return]


def why_left(kernel: Any) -> str:
    """Why a tuner of Triton's is left to Triton whenever it is launched; empty where it is not, as far as is known."""
    if _packages is None:
        return "install() was not called"
    if why := _packages.why_not(module_of(kernel)):
        return why
    tuner = vars(kernel).get(ATTRIBUTE)
    return tuner.why if isinstance(tuner, NotReached) else ""


def autotuner_class() -> Any:
    """Triton's class; importing this module imports no Triton."""
    return importlib.import_module("triton.runtime.autotuner").Autotuner


def taken_by_another(name: str) -> str:
    """What somebody put in the place of one of our methods after `install()`, by its name; empty if ours is still called."""
    now = vars(autotuner_class()).get(name)
    function = now
    while function is not None:  # it may wrap ours
        if any(function is each.ours for each in _exchanged):
            return ""
        function = getattr(function, "__wrapped__", None)
    return f"{getattr(now, '__module__', '?')}.{getattr(now, '__qualname__', now)}"


def module_of(kernel: Any) -> str:
    """The module in which the function of a kernel is defined."""
    return module_name(getattr(kernel, "base_fn", None))


def _reach(kernel: Any) -> Any:
    """Make the tuner that decides for a kernel; None where it is left to Triton, with a warning if none can be made."""
    from .reached_tuner import ReachedTuner
    from .recompilation import EPOCH

    if (packages := _packages) is None:
        return None
    why = packages.why_not(module_of(kernel))
    try:
        tuner: Any = NotReached(why, packages) if why else ReachedTuner(kernel)
    except SettingError:
        raise  # the user's to mend
    except Exception as err:
        tuner = NotReached(f"it cannot be tuned here: {type(err).__name__}: {err}", packages)
        name = getattr(getattr(kernel, "base_fn", None), "__qualname__", repr(kernel))
        log.debug("kernel %s cannot be tuned", name, exc_info=True)
        warn_user(
            f"kernel {name} is left to Triton's own tuner: {type(err).__name__}: {err}; {SEE_TRACEBACK}", TuningWarning
        )
    with lock:
        if _packages is not packages:  # chosen anew meanwhile: the next launch asks again
            return None
        present = vars(kernel).get(ATTRIBUTE)
        if getattr(present, "kernel", None) is kernel:  # another thread was quicker
            return present
        vars(kernel)[ATTRIBUTE] = tuner
        if not isinstance(tuner, NotReached):
            vars(kernel)[EPOCH] = "0"
        reached[id(kernel)] = kernel
    return None if isinstance(tuner, NotReached) else tuner


def _give_back(kernel: Any) -> None:
    tuner = vars(kernel).get(ATTRIBUTE)
    if getattr(tuner, "kernel", None) is kernel:
        tuner.give_back()
    for name in [name for name in vars(kernel) if name.startswith(ATTRIBUTE)]:
        del vars(kernel)[name]
    reached.pop(id(kernel), None)


# The methods ------------------------------------------------------------------------------------------------------------


def _run(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """A launch, of Triton's tuners and of those whose class hands it on."""

    @functools.wraps(theirs)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        tuner = self.__dict__.get(ATTRIBUTE)
        if tuner.__class__ is NotReached and tuner.packages is _packages:
            return theirs(self, *args, **kwargs)
        if (
            tuner is None
            or tuner.kernel is not self
            or self.cache is not tuner.cache_given_out
            or self.configs is not tuner.configs_followed
            or self.keys is not tuner.keys_followed
        ):
            tuner = tuner_of(self)
            if tuner is None or tuner is self or not tuner.follow():
                return theirs(self, *args, **kwargs)
        return tuner.run(*args, **kwargs)

    return run


def _prune_configs(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """The list to choose from; for a class whose own `run` asks for it, the config that we decide for."""

    @functools.wraps(theirs)
    def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
        pruned = theirs(self, kwargs)
        if len(pruned) > 1 and _is_own_run(self, sys._getframe(1).f_code) and (tuner := tuner_of(self)) is not None:
            config = tuner.config_for_own_run(kwargs)
            return pruned if config is None else [config]
        return pruned

    return prune_configs


def _hash(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Torch hashes a kernel before it captures a call of it, and is patched then, so that it captures the decided config."""

    @functools.wraps(theirs)
    def __hash__(self: Any) -> int:  # noqa: N807  # the method of that name
        if _packages is not None:
            patch_capture()
        return int(theirs(self))

    return __hash__


def _nargs(_: None) -> property:
    """The arguments of the call that a thread decides for or launches, which hooks and pruning read; else Triton's own.

    Triton's is None once a call has ended, and before the first one there is none.
    """

    def read(self: Any) -> Any:
        tuner = vars(self).get(ATTRIBUTE)
        named = tuner.nargs if getattr(tuner, "kernel", None) is self else None
        if tuner is None and "nargs" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'nargs'", name="nargs", obj=self)
        return vars(self).get("nargs") if named is None else named

    def write(self: Any, named: Any) -> None:
        vars(self)["nargs"] = named

    return property(read, write)


def runs_of_its_own(kind: type[Any]) -> list[Any]:
    """The functions called `run` of a class derived from Triton's, down to Triton's; the outermost first."""
    derived = kind.__mro__[: kind.__mro__.index(autotuner_class())]
    return [inspect.unwrap(run) for each in derived if callable(run := vars(each).get("run"))]


def _is_own_run(kernel: Any, code: CodeType) -> bool:
    """Whether some code is the `run` of a kernel's own class, which is about to time what it gets."""
    return any(getattr(run, "__code__", None) is code for run in runs_of_its_own(type(kernel)))


# Names ------------------------------------------------------------------------------------------------------------------


def _module_names(parameter: str, given: str | Iterable[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise InvalidInputError(
                f"{parameter}={shown(given)} of install(): {shown(name)} is no module's name; give names as they are "
                'imported, such as "fla" for flash-linear-attention'
            )
    return names


def _is_within(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")
