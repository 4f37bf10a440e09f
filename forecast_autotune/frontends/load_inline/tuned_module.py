"""fa.load_inline: torch's own, with a space of variants; and the module that it returns."""

from __future__ import annotations

import inspect
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...compilers.cpp_compile import CppCompiler
from ...compilers.cpp_recipe import Recipe, as_sources
from ...core.config import Config
from ...core.digest import Value
from ...core.fork_safe_lock import fork_safe_lock
from ...core.hardware import Hardware
from ...core.outcome import Evidence, Failure
from ...core.space import Space
from ...core.user_warnings import warn_user
from ...errors import InvalidInputError, TuningWarning
from ...features.hardware_sheets import sheet_for
from ...measure.checks import Check
from ...measure.probe import detect_cpp_toolchain, detect_hardware, nvcc_path
from ...protocols import Surrogate
from ...settings import Mode, Settings
from ..keys import device_of, parse_signature
from .tuned_function import TunedFunction


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str] | Mapping[str, str],
    *torch_args: Any,
    space: Space | Sequence[Config | Mapping[str, Value]] | None = None,
    kernel_sources: str | Sequence[str] | Mapping[str, str] | None = None,
    signature: str | Sequence[str] | Mapping[str, Any] | None = None,
    key: Sequence[str] | Callable[..., Any] | Mapping[str, Any] | None = None,
    work: Callable[..., Any] | Mapping[str, Any] | None = None,
    check: Check | Mapping[str, Any] = "allclose",
    budget: str | int | Mapping[str, Any] | None = None,
    mode: Mode | Mapping[str, Any] | None = None,
    surrogate: str | Surrogate | Mapping[str, Any] | None = None,
    **torch_kwargs: Any,
) -> types.ModuleType:
    """Build a C++ or CUDA extension from text; with a space, choose among its variants at each key's first call.

    Takes every argument of `torch.utils.cpp_extension.load_inline`, by position or name, and without `space` is that
    function. With it, a function of the module builds and times variants at the first call of a key; later calls of the
    key run the variant decided for it.

    Each variant is a library with C++ variables of its own, so functions must not share state in them: pass it as arguments.

    From `signature` on, each argument may be a mapping from function names.

    Args:
        space: configs, or `Space.grid(...)`. A knob becomes `-DNAME=VALUE`; one with the role `flag` is a compiler flag;
            the knob `source` picks among sources given by name (`{"tiled": "…", "packed": "…"}`).
        kernel_sources: plain C++ that is compiled by itself with the knobs. `cpp_sources`, which binds it to torch, is
            then compiled once for all variants, unless it registers operators: a second variant costs a second instead of
            half a minute.
        signature: names of the functions' arguments, `"a, b, out"`; bound C++ functions carry none.
        key: names of arguments, or a callable of the arguments that returns a hashable value; by default dtype, shape
            and strides of tensors and the values of all else.
        work: callable of the arguments that returns `Work(flops=…, bytes=…)`, for the roofline.
        check: how a variant's outputs must agree with the default's: `"allclose"`, `"bitexact"`, a callable of (outputs,
            the default's), or None.
        budget: as FORECAST_AUTOTUNE_BUDGET, which overrides it; by default at most 16 configs for each key.
        mode: as FORECAST_AUTOTUNE_MODE, which overrides it.
        surrogate: a name as in FORECAST_AUTOTUNE_SURROGATE, which overrides it, or a Surrogate.
    Raises:
        InvalidInputError: an argument does not fit; the message names the value and what is accepted.
    """
    options = {
        "signature": signature, "key": key, "work": work, "check": check, "budget": budget, "mode": mode,
        "surrogate": surrogate,
    }  # fmt: skip
    if space is None:
        return _without_space(name, cpp_sources, torch_args, torch_kwargs, kernel_sources, options)
    return _with_space(name, cpp_sources, torch_args, torch_kwargs, kernel_sources, options, space)


def _without_space(
    name: str, cpp_sources: Any, torch_args: Any, torch_kwargs: Any, kernel_sources: Any, options: Mapping[str, Any]
) -> types.ModuleType:
    import torch.utils.cpp_extension as cpp_extension

    defaults = {"check": "allclose"}
    given = {"kernel_sources": kernel_sources, **options}
    if named := [n for n, value in given.items() if value is not None and value != defaults.get(n)]:
        raise InvalidInputError(f"{', '.join(named)} of {name}: these describe a space of variants; add space=")
    module: types.ModuleType = cpp_extension.load_inline(name, cpp_sources, *torch_args, **torch_kwargs)
    return module


def _with_space(
    name: str,
    cpp_sources: Any,
    torch_args: Any,
    torch_kwargs: Any,
    kernel_sources: Any,
    options: Mapping[str, Any],
    space: Any,
) -> TunedModule:
    import torch.utils.cpp_extension as cpp_extension

    bound = inspect.signature(cpp_extension.load_inline).bind(name, cpp_sources, *torch_args, **torch_kwargs)
    arguments = {name: _without_paths(value) for name, value in bound.arguments.items()}
    # The program may work in another folder at the first call; torch's load_inline builds at once.
    arguments["extra_include_paths"] = [*map(os.path.abspath, arguments.get("extra_include_paths") or ())]
    if arguments.get("build_directory"):
        arguments["build_directory"] = os.path.abspath(arguments["build_directory"])
    if arguments.pop("sycl_sources", None):
        raise InvalidInputError(f"{name} has sycl_sources: a space of variants takes C++ and CUDA sources")
    functions = _functions(arguments.pop("functions", None))
    for option, value in options.items():
        for function in value if isinstance(value, Mapping) else ():
            if functions is not None and function not in functions:
                raise InvalidInputError(
                    f"{option} names the function {function!r}: the functions of {name} are {', '.join(functions)}"
                )
    chosen = _space_of(name, space)
    recipe = Recipe(
        name=arguments.pop("name"),
        cpp_sources=as_sources(arguments.pop("cpp_sources"), "cpp_sources"),
        cuda_sources=as_sources(arguments.pop("cuda_sources", None), "cuda_sources"),
        kernel_sources=as_sources(kernel_sources, "kernel_sources"),
        functions=functions,
        roles=chosen.roles,
        is_python_module=arguments.pop("is_python_module", True),
        arguments=arguments,
    )
    recipe.validate(chosen)
    if len(chosen) > 1 and (why := recipe.why_not_side_by_side()):
        warn_user(f"{name}: {why}", TuningWarning)
    return TunedModule(recipe, chosen, options)


def _space_of(name: str, space: Any) -> Space:
    try:
        return space if isinstance(space, Space) else Space(space)
    except InvalidInputError as err:
        raise InvalidInputError(f"space of {name}: {err}") from None


def _without_paths(value: Any) -> Any:
    """The argument with paths as text, which can be kept and sent to other processes."""
    if isinstance(value, (list, tuple)):
        return [_without_paths(v) for v in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _functions(functions: object) -> dict[str, str] | None:
    """Function names to docstrings, as torch takes them: one name, a list, or a mapping."""
    if functions is None:
        return None
    if isinstance(functions, Mapping):
        return {str(f): str(doc) for f, doc in functions.items()}
    return {f: f for f in ([functions] if isinstance(functions, str) else list(functions))}  # type: ignore[call-overload]


class TunedModule(types.ModuleType):
    """An extension whose functions dispatch to the variant decided for each key.

    Each function has an attribute `decisions`: from key to the `Decision` made or recalled in this process. Where the
    sources bring their own binding (no `functions=`), a missing function shows at its first call.
    """

    def __init__(self, recipe: Recipe, space: Space, options: Mapping[str, Any]) -> None:
        super().__init__(recipe.name, f"Variants of {recipe.name}: {len(space)} configs over {', '.join(space.knobs)}")
        self._recipe = recipe
        self._space = space
        self._options = dict(options)
        self._compilers: dict[str, CppCompiler] = {}
        self._lock = fork_safe_lock()
        for function in recipe.functions or ():
            self._add(function)

    def __getattr__(self, function: str) -> Any:
        if function.startswith("_") or self._recipe.functions is not None:
            names = ", ".join(self._recipe.functions or {})
            raise AttributeError(f"module {self.__name__!r} has no function {function!r}; it has {names}")
        return self._add(function)

    def report(self, config: Config | Mapping[str, Value]) -> Evidence | Failure | None:
        """Registers, spills and shared memory of a CUDA variant's kernels, from nvcc, before anything is built.

        Without a GPU, the report is for the first capability in TORCH_CUDA_ARCH_LIST, else for 9.0.

        Returns:
            `Evidence`; a `Failure` at stage `resources` where the GPU cannot run it; None for plain C++ or without nvcc.
        """
        chosen = config if isinstance(config, Config) else Config(config)
        return self._compiler(device_of(())).report(chosen)

    def _add(self, function: str) -> Callable[..., Any]:
        def option(name: str, default: Any = None) -> Any:
            value = self._options[name]
            return value.get(function, default) if isinstance(value, Mapping) else value

        names = option("signature")
        tuned = TunedFunction(
            self._recipe,
            self._space,
            self._compiler,
            function,
            names=None if names is None else parse_signature(names, function),
            key=option("key"),
            work=option("work"),
            check=option("check", "allclose"),
            budget=option("budget"),
            mode=option("mode"),
            surrogate=option("surrogate"),
        )
        setattr(self, function, tuned)
        return tuned

    def _compiler(self, device: str) -> CppCompiler:
        """The compiler for a device, made at its first use."""
        with self._lock:
            if device not in self._compilers:
                recipe = self._recipe
                self._compilers[device] = CppCompiler(
                    recipe,
                    detect_cpp_toolchain(recipe.flags, cuda=recipe.is_cuda),
                    _named_gpu() if recipe.is_cuda and device == "cpu" else detect_hardware(device),
                    Settings.from_environment().dir,
                    nvcc=nvcc_path() if recipe.is_cuda else None,
                )
            return self._compilers[device]


def _named_gpu() -> Hardware:
    """The GPU for a report, which has no tensors to say which."""
    import torch

    if torch.cuda.is_available():
        return detect_hardware("cuda")
    named = re.search(r"\d+\.\d", os.environ.get("TORCH_CUDA_ARCH_LIST", ""))
    return sheet_for("cuda:" + (named[0] if named else "9.0").replace(".", ""))
