"""Compiling ahead of a start what the keys that are known will run first: all side by side, and nothing is launched."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import itertools
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compilers.cpp_side_by_side import Build, build_side_by_side
from ..core.config import Config
from ..core.job import Job
from ..core.outcome import Evidence, Failure
from ..core.text import error_text
from ..core.workload import Program
from ..errors import AutotuneError
from ..features.hardware_sheets import device_properties
from ..measure.probe import detect_hardware
from ..remote.fleet_store import open_store
from ..store.rows import TuningKey
from . import dispatch
from .deciding import launched_first
from .dispatch import Dispatcher

if TYPE_CHECKING:
    from ..compilers.triton_compile import TritonCompiler
    from ..compilers.triton_source import Source
    from .load_inline.tuned_function import TunedFunction
    from .variants.tuned_variants import TunedVariants

MAIN = "__main__"

BY_FIRST_CALL = "what fa.variants runs is compiled by its first call"


class LaunchRefusedError(AutotuneError):
    """A kernel was to be launched where nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """What became of one config of a key.

    Attributes:
        config: None where it could not be told which one the key runs.
        result: `compiled`, `there` (it was built before), `failed`, or `left` to the first launch.
        why: why it failed or was left.
        seconds: that compiling took.
    """

    tuning_key: TuningKey
    config: Config | None
    result: str
    why: str = ""
    seconds: float = 0.0


@contextlib.contextmanager
def nothing_launched() -> Iterator[None]:
    """Have every launch of a Triton kernel, and every call that would be tuned, raise `LaunchRefusedError`."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise LaunchRefusedError("a kernel is launched, and here nothing is")

    jit = importlib.import_module("triton.runtime.jit").JITFunction if importlib.util.find_spec("triton") else None
    before, run = dispatch.refusing, getattr(jit, "run", None)
    dispatch.refusing = refuse
    if jit is not None:
        jit.run = refuse
    try:
        yield
    finally:
        dispatch.refusing = before
        if jit is not None:
            jit.run = run


def import_kernels_of(keys: Iterable[TuningKey]) -> dict[str, str]:
    """Import the modules whose Triton kernels the keys name; returns, by module, why one was not.

    A name out of a store is not enough: the file that Python would import must define a function of the kernel's name, in a
    text that speaks of Triton.
    """
    why: dict[str, str] = {}
    for name in dict.fromkeys(key.workload.program.name for key in keys if key.workload.program.language == "triton"):
        module, _, function = name.rpartition(".")
        if module == MAIN:
            why[module] = "it stands in a script: name the script"
        elif module in sys.modules:
            continue
        elif not _defines(module, function):
            why[module] = f"there is no module {module or name} with a kernel {function} on Python's path here"
        else:
            try:
                importlib.import_module(module)
                why.pop(module, None)
            except (Exception, SystemExit) as err:  # whatever the user's own module does
                why[module] = f"{module} cannot be imported: {type(err).__name__}: {error_text(err)}"
    return why


def _defines(module: str, function: str) -> bool:
    """Whether the file of a module defines a function and speaks of Triton; nothing is imported, no parent either."""
    folders: Sequence[str] | None = None
    place, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}".strip(".")
        place = importlib.machinery.PathFinder.find_spec(name, folders)
        if place is None:
            return False
        folders = place.submodule_search_locations
    if place is None or place.origin is None or not place.origin.endswith(".py"):
        return False
    text = Path(place.origin).read_text(encoding="utf-8", errors="replace")
    return "triton" in text and re.search(rf"^\s*def {re.escape(function)}\(", text, re.MULTILINE) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedKey:
    """A key with one of the tuned kernels of this process that it is of."""

    key: TuningKey
    kernel: Any  # a `ForecastAutotuner` or a `TunedFunction`


def count_kernels() -> int:
    """How many tuned kernels live in this process: of Triton, functions of `load_inline`, and those of `fa.variants`."""
    return sum(map(len, (*_tuners_by_name().values(), *_functions_by_name().values(), _living_variants())))


def find_kernels(keys: Iterable[TuningKey], *, script: str = "") -> tuple[list[MatchedKey], list[TuningKey]]:
    """The keys with their kernels, which live in this process, and those whose kernel does not.

    Args:
        script: the name under which a script was imported, whose kernels are of `__main__` when it runs.
    """
    tuners, functions = _tuners_by_name(), _functions_by_name()
    found: list[MatchedKey] = []
    unknown: list[TuningKey] = []
    for key in keys:
        program = key.workload.program
        module, _, function = program.name.rpartition(".")
        if module == MAIN:  # of this script or of another one
            kernels = _of_source(tuners.get(f"{script}.{function}", ()), program)
        else:
            named = tuners.get(program.name, [])
            kernels = _of_source(named, program) or named  # it may have changed since
        kernels = [*kernels, *functions.get(program.name, ())]
        found += [MatchedKey(key=key, kernel=kernel) for kernel in kernels]
        if not kernels:
            unknown.append(key)
    return found, unknown


def of_variants(keys: Iterable[TuningKey], *, script: str) -> list[TuningKey]:
    """The keys of `fa.variants` functions that live in this process.

    Args:
        script: as in `find_kernels`.
    """
    names = {each.full_name for each in _living_variants()}
    names |= {f"{MAIN}.{name.removeprefix(f'{script}.')}" for name in names if name.startswith(f"{script}.")}
    return [key for key in keys if key.workload.program.name in names]


def _living_variants() -> list[TunedVariants]:
    module = sys.modules.get(f"{__package__}.variants.tuned_variants")
    return list(module.living) if module is not None else []


def warm(found: Sequence[MatchedKey]) -> Iterator[Warmed]:
    """Compile what the first call of each key runs, yielding each config as it is done.

    That is what is stored or forecast, by the settings as they are now. Where it was not measured under this toolchain the
    default is compiled too, which is timed first. Closing the iterator keeps what is done.
    """
    cpp = [each for each in found if each.key.workload.program.language in ("c++", "cuda")]
    yield from _warm_triton([each for each in found if each not in cpp])
    yield from _warm_cpp(cpp)


def why_unknown(key: TuningKey, not_imported: Mapping[str, str]) -> str:
    """Why there is no kernel for a key in this process.

    Args:
        not_imported: by module, why it was not.
    """
    program = key.workload.program
    if why := not_imported.get(program.name.rpartition(".")[0]):
        return why
    if program.language in ("c++", "cuda"):
        return "no load_inline of this name was called here: name the script that calls it"
    return f"there is no tuned Triton kernel of this name: {BY_FIRST_CALL}"


def _first_configs(job: Job, dispatcher: Dispatcher) -> list[Config]:
    """What the first call of a key runs; with the default, where measuring would begin with that."""
    request = dispatcher.request()
    if request.settings.mode == "first":
        return [job.space.default]
    decision = launched_first(job, request, open_store(request.settings))
    return list(dict.fromkeys([decision.config, *([] if decision.rests_on_outcomes else [job.space.default])]))


# Triton -----------------------------------------------------------------------------------------------------------------


def _tuners_by_name() -> dict[str, list[Any]]:
    """The tuners that live in this process by the name of their kernel, one of Triton's as one of ours."""
    if "triton.runtime.autotuner" not in sys.modules:
        return {}
    from .triton.installed import living_tuners
    from .triton.kernel_program import kernel_name
    from .triton.offline_forecast import as_forecast_autotuner

    by_name: dict[str, list[Any]] = {}
    for tuner in living_tuners():
        with contextlib.suppress(Exception):  # one that is half made, or has no JIT function under it
            by_name.setdefault(kernel_name(tuner), []).append(as_forecast_autotuner(tuner))
    return by_name


def _of_source(tuners: Sequence[Any], program: Program) -> list[Any]:
    """The tuners of kernels with this very text."""
    from .triton.kernel_program import program_of

    return [tuner for tuner in tuners if program_of(tuner.spec).source == program.source]


def _warm_triton(found: Sequence[MatchedKey]) -> Iterator[Warmed]:
    by_hardware: dict[str, list[MatchedKey]] = {}
    for each in found:
        by_hardware.setdefault(each.key.hardware.digest, []).append(each)
    for alike in by_hardware.values():
        yield from _warm_alike(alike)


def _warm_alike(found: Sequence[MatchedKey]) -> Iterator[Warmed]:
    """Compile all keys of one hardware side by side. Calls are made again while workers compile."""
    from ..compilers.triton_compile import SourceCompiler
    from ..compilers.triton_source import NotAheadError, files_in_cache

    parts: dict[Config, tuple[Warmed, Callable[[], Source]]] = {}
    left: deque[Warmed] = deque()
    numbers = itertools.count()

    def source(part: Config) -> Source:
        row, make = parts[part]
        try:
            made = make()
        except NotAheadError as err:
            parts[part] = replace(row, result="left", why=str(err)), make
            raise
        if files_in_cache(made) is not None:
            parts[part] = replace(row, result="there"), make
        return made

    def begun() -> Iterator[Config]:
        for each in found:
            key = each.key
            try:
                compiler, configs = _called_again(each.kernel, key)
            except Exception as err:  # the user's own pruning and heuristics run in it
                why = str(err) if isinstance(err, AutotuneError) else f"{type(err).__name__}: {err}"
                left.append(Warmed(tuning_key=key, config=None, result="left", why=why))
                continue
            for config in configs:
                part = Config({"part": next(numbers)})
                row = Warmed(tuning_key=key, config=config, result="compiled")
                parts[part] = row, functools.partial(compiler.source, config)
                yield part

    limits = device_properties(found[0].key.hardware)
    with contextlib.closing(SourceCompiler(source, properties=limits).compile(begun())) as compiling:
        for part, built in compiling:
            while left:
                yield left.popleft()
            yield _outcome(parts.pop(part)[0], built)
    yield from left


def _called_again(tuner: Any, key: TuningKey) -> tuple[TritonCompiler, list[Config]]:
    """The compiler for a stored call that is made again, and the configs that its key runs first.

    Raises:
        AutotuneError: what is stored of the call does not tell how its kernel is compiled.
    """
    from ..compilers.triton_compile import TritonCompiler
    from .triton.stored_call import stored_call

    call = stored_call(tuner, key.workload, key.hardware)
    if not isinstance(call.compiler, TritonCompiler):
        raise AutotuneError("nothing is compiled in Triton's interpreter")
    workload = call.job.workload
    named = replace(workload, program=replace(workload.program, name=key.workload.program.name))
    return call.compiler, _first_configs(replace(call.job, workload=named), tuner.dispatcher)


# C++ and CUDA -----------------------------------------------------------------------------------------------------------


def _functions_by_name() -> dict[str, list[TunedFunction]]:
    """The functions of `load_inline` that live in this process, by the names of their programs."""
    module = sys.modules.get(f"{__package__}.load_inline.tuned_function")
    by_name: dict[str, list[TunedFunction]] = {}
    for each in list(module.living) if module is not None else ():
        by_name.setdefault(each.program.name, []).append(each)
    return by_name


def _warm_cpp(found: Sequence[MatchedKey]) -> Iterator[Warmed]:
    """Build the variants of all keys side by side; several keys may run one variant."""
    if not found:
        return
    present = hardware_present()
    waiting: dict[tuple[int, Config], list[Warmed]] = {}
    builds: list[Build] = []
    for each in found:
        key, function = each.key, each.kernel
        device = present.get(key.hardware.digest)
        if device is None:
            yield Warmed(
                tuning_key=key, config=None, result="left", why="an extension is built on the machine that runs it"
            )
            continue
        compiler = function.compiler(device)
        job = Job(
            workload=replace(key.workload, program=function.program),
            space=function.space,
            hardware=compiler.hardware,
            toolchain=compiler.toolchain,
        )
        for config in _first_configs(job, function.dispatcher):
            row = Warmed(tuning_key=key, config=config, result="compiled")
            if compiler.is_built(config):
                yield replace(row, result="there")
            elif (same := waiting.get((id(compiler), config))) is not None:
                same.append(row)
            else:
                waiting[id(compiler), config] = [row]
                builds.append(Build.of(compiler, config))
    rows = list(waiting.values())
    for place, built in build_side_by_side(builds):
        for row in rows[place]:
            yield _outcome(row, built)


def hardware_present() -> dict[str, str]:
    """The hardware here, by digest, each with the name of its first device; a rehearsal's too while there is one."""
    import torch

    present = {detect_hardware("cpu").digest: "cpu"}
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        present.setdefault(detect_hardware(f"cuda:{index}").digest, f"cuda:{index}")
    if importlib.util.find_spec("triton") is not None:
        from .triton.simulated_driver import current_rehearsal

        if (simulated := current_rehearsal()) is not None:
            present[simulated.hardware.digest] = "cpu"
    return present


def _outcome(row: Warmed, built: Evidence | Failure) -> Warmed:
    if isinstance(built, Failure):
        return replace(row, result="failed", why=f"{built.stage}: {built.message}", seconds=built.cost_s)
    return row if row.result != "compiled" else replace(row, seconds=built.compile_s)
