"""Describe anew what was recorded of a package's kernel: its source is read where it is installed, and stays there."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.store import encoding

from . import programs
from .kernel_calls import decode_argument, named_object, origin_of
from .program_worker import LAUNCH_OPTIONS, as_ours, over_warps_and_stages
from .programs.dry_run import pretended_gpu

MISSING = "by a heuristic"  # a knob of a recorded config that the config does not set

log = logging.getLogger(__name__)


class NotThereError(Exception):
    """What was recorded cannot be described here; says why."""


def package_descriptions(
    recorded: Mapping[str, object], configs: Sequence[Config], default: Config, hardware: Hardware
) -> list[Mapping[str, float]]:
    """Static features of each config of a recorded call, by the installed package.

    Args:
        recorded: the trace's field of that name.
    Raises:
        NotThereError: the package is not installed in that version, its kernel is another now, or the call cannot be made
            again.
        InvalidInputError: the field is not as recording writes it.
    """
    with _gpu():
        return _descriptions(recorded, configs, default, hardware)


def _descriptions(
    recorded: Mapping[str, object], configs: Sequence[Config], default: Config, hardware: Hardware
) -> list[Mapping[str, float]]:
    from forecast_autotune.frontends.triton.call import TritonCall
    from forecast_autotune.frontends.triton.kernel_program import program_of

    package, version = encoding.text_field(recorded, "package", "it"), encoding.text_field(recorded, "version", "it")
    module, qualname = encoding.text_field(recorded, "module", "it"), encoding.text_field(recorded, "qualname", "it")
    if "call" not in recorded:
        raise NotThereError("an argument of its call could not be kept")
    call = encoding.fields(recorded["call"], "call")
    _prepare(encoding.text_field(recorded, "script", "it"))
    try:
        kernel = _kernel(module, qualname)
        named = {n: decode_argument(v) for n, v in encoding.fields(call.get("kwargs"), "kwargs").items()}
        args = tuple(decode_argument(value) for value in encoding.list_field(call, "args", "call"))
    except InvalidInputError as err:
        raise NotThereError(f"{package} {version} is not there: {err}") from None
    origin = origin_of(kernel)
    if origin.package == package and origin.version != version:
        raise NotThereError(f"{package} is installed in version {origin.version}, and {version} was recorded")
    if recorded.get("tuned", True):
        theirs = _tuner_of(kernel, module)
        if theirs is None:
            raise NotThereError(f"{module} has no tuner of {qualname}")
        tuner = as_ours(theirs)
    else:
        options = {name: default[name] for name in LAUNCH_OPTIONS if default[name] is not None}
        tuner = over_warps_and_stages(kernel, {**dict(zip(kernel.arg_names, args, strict=False)), **named}, options)
    if program_of(tuner.spec).digest != recorded.get("digest"):
        raise NotThereError(f"{qualname} of {package} is another kernel than was recorded")
    grid = _grid(encoding.list_field(call, "grids", "call"), configs)
    try:
        candidates = _candidates(tuner.configs, configs)
        job = TritonCall(tuner.spec, candidates, args, {**named, "grid": grid}, hardware=hardware).job
    except Exception as err:  # a heuristic that needs data, say
        raise NotThereError(f"its call cannot be made again: {type(err).__name__}: {err}") from None
    told = {config: features for config, features in zip(job.space, job.static_features, strict=True) if features}
    return [told.get(config, {}) for config in configs]


@contextlib.contextmanager
def _gpu() -> Iterator[None]:
    """The GPU that packages ask for as they are imported; one that is pretended where there is none."""
    import torch

    if torch.cuda.is_available():
        yield
    else:
        with pretended_gpu():
            yield


@functools.cache
def _prepare(script: str) -> None:
    """Import the program that launched the kernels, if it is one of ours: it says where its package lies.

    What goes wrong shows when the package is imported.
    """
    name = f"{programs.__name__}.{script}"
    if not script.isidentifier() or importlib.util.find_spec(name) is None:
        return
    try:
        importlib.import_module(name)
    except Exception as err:
        log.info("%s is not imported: %s: %s", name, type(err).__name__, err)


def _kernel(module: str, qualname: str) -> Any:
    """The JIT function that a module calls by a name, whatever stands around it."""
    from forecast_autotune.compilers.triton_source import jit_function

    kernel = jit_function(named_object(module, qualname))
    if kernel is None:
        raise InvalidInputError(f"{module}.{qualname} is no kernel")
    return kernel


def _tuner_of(kernel: Any, module: str) -> Any:
    """The tuner of a kernel, among what its module names."""
    from triton.runtime.autotuner import Autotuner

    from forecast_autotune.compilers.triton_source import jit_function

    for value in vars(importlib.import_module(module)).values():
        if not hasattr(value, "fn") or jit_function(value) is not kernel:
            continue
        while value is not kernel:
            if isinstance(value, Autotuner):
                return value
            value = value.fn  # from what is launched down to the kernel
    return None


def _candidates(theirs: Sequence[Any], configs: Sequence[Config]) -> list[Any]:
    """Each config as Triton's: that of the kernel's list, with its hook, or one made of its knobs if the list has none.

    A list may depend on the device, or on the version of Triton.
    """
    import triton

    from forecast_autotune.features.knob_roles import TRITON_OPTIONS
    from forecast_autotune.frontends.triton.kernel_program import plain_value

    def set_of(values: Mapping[str, Any]) -> Config:
        return Config({n: plain_value(v) for n, v in values.items() if v is not None and v != MISSING})

    listed = {
        set_of({**c.kwargs, **{name: getattr(c, name, None) for name in TRITON_OPTIONS}}): c for c in reversed(theirs)
    }
    candidates = []
    for config in configs:
        knobs = set_of(config.knobs).knobs
        options = {n: v for n, v in knobs.items() if n in TRITON_OPTIONS}
        made = triton.Config({n: v for n, v in knobs.items() if n not in TRITON_OPTIONS}, **options)
        candidates.append(listed.get(Config(knobs), made))
    return candidates


def _grid(shapes: Sequence[Any], configs: Sequence[Config]) -> Callable[[Mapping[str, Any]], tuple[int, ...]]:
    """The grid that was recorded, by config where it differs.

    Raises:
        InvalidInputError: it is none, or not one for each config.
    """
    from forecast_autotune.frontends.triton.kernel_program import plain_value

    if not all(isinstance(shape, list) and all(isinstance(n, int) for n in shape) for shape in shapes):
        raise InvalidInputError(f"grids are {str(shapes)[:100]}: they must be lists of numbers")
    if len(shapes) not in (1, len(configs)):
        raise InvalidInputError(f"there are {len(shapes)} grids for {len(configs)} configs")

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        if len(shapes) == 1:
            return tuple(shapes[0])
        for config, shape in zip(configs, shapes, strict=True):
            if all(plain_value(meta[name]) == value for name, value in config.knobs.items() if name in meta):
                return tuple(shape)
        raise LookupError("no such config was recorded")

    return grid
