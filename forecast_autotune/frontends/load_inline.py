"""load_inline: torch's own, with a space of variants."""

from __future__ import annotations

import inspect
import logging
import os
import re
import threading
import types
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ..compilers.cpp_compile import CppCompiler
from ..compilers.cpp_recipe import Recipe, as_sources
from ..core.budget import Budget
from ..core.config import Config
from ..core.decision import Decision
from ..core.digest import Value
from ..core.hardware import Hardware
from ..core.job import Job
from ..core.outcome import Evidence, Failure, Outcome
from ..core.space import Space
from ..core.workload import Program, Work, Workload
from ..errors import AutotuneError, CacheMissError, InvalidInputError, NoWorkingConfigError, TuningWarning
from ..hardware_sheets import sheet_for
from ..measure.checks import Check, check_name, validate
from ..measure.in_process import InProcess
from ..measure.isolated import Isolated, extension_trials
from ..probe import detect_cpp_toolchain, detect_hardware, nvcc_path
from ..settings import Settings
from .deciding import deciding
from .engine import decide, make_store, request, takes_time
from .joint import here, in_use
from .keys import as_names, device_of, features_of, key_as_json, make_key_function, parse_signature
from .pending import holds_unmeasured, is_unmeasured

log = logging.getLogger(__name__)

DEFAULT_BUDGET = "16"
_EXTRAS = ("kernel_sources", "signature", "key", "work", "check", "budget")


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
    **torch_kwargs: Any,
) -> Any:
    """Build a C++ or CUDA extension from text; with a space, choose among its variants at each key's first call.

    Every argument of `torch.utils.cpp_extension.load_inline` is taken, by position or name, and handed on. Without
    `space` this is that function. With it, the module returned builds and times variants when one of its functions
    meets a key for the first time, and dispatches to the variant decided for it from then on.

    Args:
        space: configs, or `Space.grid(...)`. A knob becomes `-DNAME=VALUE`; one with the role `flag` is a compiler flag;
            the knob `source` picks among sources given by name (`{"tiled": "…", "packed": "…"}`).
        kernel_sources: plain C++ that is compiled by itself with the knobs. `cpp_sources`, which binds it to torch, is
            then compiled once for all variants: a second variant costs a second instead of half a minute.
        signature: names of the functions' arguments, `"a, b, out"`; bound C++ functions carry none.
        key: names of arguments, or a callable of the arguments that returns a hashable value; by default dtype, shape
            and strides of tensors and the values of all else.
        work: callable of the arguments that returns `Work(flops=…, bytes=…)`, for the roofline.
        check: how a variant's outputs must agree with the default's: `"allclose"`, `"bitexact"`, a callable of (outputs,
            the default's), or None.
        budget: as FORECAST_AUTOTUNE_BUDGET, which overrides it.

    `signature`, `key`, `work`, `check` and `budget` may be given per function, as mappings from function names.

    Raises:
        InvalidInputError: an argument does not fit; the message names the value and what is accepted.
    """
    import torch.utils.cpp_extension as cpp_extension

    if space is None:
        given = (kernel_sources, signature, key, work, None if check == "allclose" else check, budget)
        if named := [n for n, value in zip(_EXTRAS, given, strict=True) if value is not None]:
            raise InvalidInputError(f"{', '.join(named)} of {name}: these describe a space of variants; add space=")
        return cpp_extension.load_inline(name, cpp_sources, *torch_args, **torch_kwargs)
    bound = inspect.signature(cpp_extension.load_inline).bind(name, cpp_sources, *torch_args, **torch_kwargs)
    arguments = {name: _without_paths(value) for name, value in bound.arguments.items()}
    if arguments.pop("sycl_sources", None):
        raise InvalidInputError(f"{name} has sycl_sources: a space of variants takes C++ and CUDA sources")
    functions = _functions(arguments.pop("functions", None))
    options = {"signature": signature, "key": key, "work": work, "check": check, "budget": budget}
    for option, value in options.items():
        for function in value if isinstance(value, Mapping) else ():
            if functions is not None and function not in functions:
                raise InvalidInputError(
                    f"{option} names the function {function!r}: the functions of {name} are {', '.join(functions)}"
                )
    chosen = space if isinstance(space, Space) else Space(space)
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
    return TunedModule(recipe, chosen, options)


def _without_paths(value: Any) -> Any:
    """The same argument with paths as text: it is kept, and handed to other processes."""
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

    Each function has an attribute `decisions`: from key to `Decision`, those made or recalled in this process. Where the
    sources bring a binding of their own (no `functions=`), what they offer shows when it is first called.
    """

    def __init__(self, recipe: Recipe, space: Space, options: Mapping[str, Any]) -> None:
        super().__init__(recipe.name, f"Variants of {recipe.name}: {len(space)} configs over {', '.join(space.knobs)}")
        self._recipe = recipe
        self._space = space
        self._options = dict(options)
        self._compilers: dict[str, CppCompiler] = {}
        self._lock = threading.RLock()
        for function in recipe.functions or ():
            self._add(function)

    def __getattr__(self, function: str) -> Any:
        if function.startswith("_") or self._recipe.functions is not None:
            there = ", ".join(self._recipe.functions or {})
            raise AttributeError(f"module {self.__name__!r} has no function {function!r}; it has {there}")
        return self._add(function)

    def report(self, config: Config | Mapping[str, Value]) -> Evidence | Failure | None:
        """What nvcc says of a CUDA variant's kernels before anything is built: registers, spills, shared memory.

        A variant that the GPU cannot run is a `Failure` at stage `resources`; None where nothing can be said. Without a
        GPU here, the first one that TORCH_CUDA_ARCH_LIST names is meant, else one of capability 9.0.
        """
        chosen = config if isinstance(config, Config) else Config(config)
        return self._compiler(device_of(())).report(chosen)

    def _add(self, function: str) -> Callable[..., Any]:
        def option(name: str, default: Any = None) -> Any:
            value = self._options[name]
            return value.get(function, default) if isinstance(value, Mapping) else value

        names = option("signature")
        tuned = TunedFunction(
            self,
            function,
            names=None if names is None else parse_signature(names, function),
            key=option("key"),
            work=option("work"),
            check=option("check", "allclose"),
            budget=option("budget"),
        )
        call = tuned.dispatcher()
        call.__name__ = call.__qualname__ = function
        call.__doc__ = (self._recipe.functions or {}).get(function)
        call.decisions = tuned.decisions  # type: ignore[attr-defined]
        call.tuned = tuned  # type: ignore[attr-defined]
        setattr(self, function, call)
        return call

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


class TunedFunction:
    """One function of a module: its decisions by key, and how a missing one is made."""

    def __init__(
        self,
        module: TunedModule,
        name: str,
        *,
        names: tuple[str, ...] | None,
        key: Any,
        work: Callable[..., Any] | None,
        check: Check,
        budget: str | int | None,
    ) -> None:
        validate(check)
        if budget is not None:
            Budget(budget)
        self._module = module
        self._recipe = module._recipe
        self._space = module._space
        self._name = name
        self._names = names
        self._key = make_key_function(key, names, name)
        self._key_names: tuple[str, ...] | None = None if callable(key) else as_names(key)
        self._work = work
        self._check = check
        self._budget = budget
        self._table: dict[Hashable, Callable[..., Any]] = {}
        self.decisions: dict[Hashable, Decision] = {}
        self._unmeasured: set[Hashable] = set()
        self._loaded: dict[tuple[str, Config], Callable[..., Any]] = {}
        self._program = Program(
            name=f"{self._recipe.name}.{name}",
            language="cuda" if self._recipe.is_cuda else "c++",
            source=self._recipe.text,
        )

    def dispatcher(self) -> Callable[..., Any]:
        """The function that stands in the module. A hit makes the key, looks it up and calls: nothing else."""
        found = self._table.get
        key, miss, positional = self._key, self._miss, self._positional
        tuned = self
        if self._recipe.is_cuda:
            base = key

            def key(*args: Any) -> Hashable:  # each device of a process has decisions of its own
                return (device_of(args), base(*args))

        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                args = positional(args, kwargs)
            if in_use and (joint := here.joint) is not None and joint.takes(tuned):
                return joint.run(tuned, args, {})
            wanted = key(*args)
            try:
                variant = found(wanted)
            except TypeError:
                raise InvalidInputError(
                    f"the key of {self._name} is {wanted!r}, which cannot be looked up: return a tuple of numbers, text, "
                    "dtypes and shapes"
                ) from None
            return miss(wanted, args)(*args) if variant is None else variant(*args)

        return call

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The call's arguments in the signature's order."""
        if self._names is None:
            raise InvalidInputError(
                f"{self._name} was called with {', '.join(kwargs)} by name: add signature= to load_inline, or give "
                "arguments by position"
            )
        rest = self._names[len(args) :]
        unknown = [n for n in kwargs if n not in rest]
        if unknown or any(n not in kwargs for n in rest[: len(kwargs)]):
            raise TypeError(
                f"{self._name}({', '.join(self._names)}) was called with {len(args)} by position and {kwargs}"
            )
        return (*args, *(kwargs[n] for n in rest[: len(kwargs)]))

    # Within a variant -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    @property
    def program(self) -> Program:
        return self._program

    def candidates(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[Config, Any]:  # noqa: ARG002
        """See `Nested`."""
        return {config: config for config in self._space}

    def run_under(self, chosen: Config, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """See `Nested`; what is not built yet is built now, in this thread."""
        return self._load(chosen, device_of(args))(*args)

    # A miss ---------------------------------------------------------------------------------------------------------

    def _miss(self, wanted: Hashable, args: tuple[Any, ...]) -> Callable[..., Any]:
        """Decide for a key that is met for the first time, and return the variant to call.

        While another thread is busy measuring, that is the default, and the key stays open.
        """
        with deciding.unless_measuring() as our_turn:
            if (found := self._table.get(wanted)) is None:
                if not our_turn:
                    return self._variant(self._space.default, device_of(args))
                found = self._table[wanted] = self._variant(self._decide(wanted, args), device_of(args))
                if is_unmeasured(self.decisions.get(wanted)):
                    self._unmeasured.add(wanted)
                    holds_unmeasured(self)
            return found

    def forget_unmeasured(self) -> None:
        """Decide again, when they are next met, keys whose decision measuring had no say in."""
        with deciding:
            for wanted in self._unmeasured:
                self.decisions.pop(wanted, None)
                self._table.pop(wanted, None)
            self._unmeasured.clear()

    def _decide(self, wanted: Hashable, args: tuple[Any, ...]) -> Config:
        how = request(self._budget, default_budget=DEFAULT_BUDGET)
        if self._recipe.is_cuda and device_of(args) == "cpu":
            raise NoWorkingConfigError(_no_gpu(self._recipe.name))
        job = self.job(args)
        compiler = self._module._compiler(device_of(args))
        if how.settings.mode == "first":
            return self._space.default
        try:
            with (
                self._measurer(compiler, args, how.settings.isolate != "0") as measurer,
                deciding.measuring(takes_time(how)),
            ):
                store = make_store(how.settings)
                decision = decide(job, how, compiler=compiler, measurer=measurer, store=store)
                self.decisions[wanted] = decision
                return decision.config
        except (CacheMissError, InvalidInputError, NoWorkingConfigError):
            raise
        except Exception as err:
            log.debug("tuning failed", exc_info=True)
            warnings.warn(
                f"{job.workload} is not tuned, its default config is run: {type(err).__name__}: {err}",
                TuningWarning,
                stacklevel=4,
            )
            return self._space.default

    def job(self, args: tuple[Any, ...]) -> Job:
        """What there is to decide for a call: its workload and space, on the device its arguments are on."""
        compiler = self._module._compiler(device_of(args))
        return Job(
            workload=Workload(
                program=self._program,
                key=key_as_json(self._key(*args), args, self._names, self._key_names),
                features=features_of(args),
                check=check_name(self._check),
            ),
            space=self._space,
            hardware=compiler.hardware,
            toolchain=compiler.toolchain,
            work=self._work_of(args),
        )

    def outcomes(self, args: tuple[Any, ...]) -> Mapping[Config, Outcome]:
        """What is known of each config for a call's key, from the store."""
        return make_store(Settings.from_environment()).outcomes(self.job(args))

    def _measurer(self, compiler: CppCompiler, args: tuple[Any, ...], isolate: bool) -> Isolated | InProcess:
        common: dict[str, Any] = {
            "name": self._program.name,
            "default": self._space.default,
            "check": self._check,
            "arguments": args,
        }
        if not isolate:
            return InProcess(function=lambda config: compiler.extension(config).function(self._name), **common)

        def described(config: Config, _: object) -> dict[str, Any]:
            return {"extension": compiler.extension(config).as_json(), "function": self._name}

        return Isolated(
            job=extension_trials, describe=described, log=compiler.root / "trials.log", one_each=True, **common
        )

    def _variant(self, config: Config, device: str) -> Callable[..., Any]:
        """The function of a decided variant, loaded into this process; the default's where it cannot be had."""
        try:
            return self._load(config, device)
        except InvalidInputError:
            raise  # the module has no such function, whatever the variant
        except (AutotuneError, ImportError, OSError) as err:
            if config == self._space.default:
                raise
            warnings.warn(f"{self._program.name}: the default is run: {err}", TuningWarning, stacklevel=4)
            return self._load(self._space.default, device)

    def _load(self, config: Config, device: str) -> Callable[..., Any]:
        if (device, config) not in self._loaded:
            extension = self._module._compiler(device).extension(config)
            self._loaded[device, config] = extension.function(self._name)
        return self._loaded[device, config]

    def _work_of(self, args: tuple[Any, ...]) -> Work | None:
        if self._work is None:
            return None
        try:
            told = self._work(*args)
            return told if isinstance(told, Work) else Work(flops=float(told[0]), bytes=float(told[1]))
        except Exception as err:
            warnings.warn(f"work= of {self._name} failed ({err!r}): forecast without it", TuningWarning, stacklevel=5)
            return None


def _named_gpu() -> Hardware:
    """The GPU that a report is made for where none is meant by a tensor."""
    import torch

    if torch.cuda.is_available():
        return detect_hardware("cuda")
    named = re.search(r"\d+\.\d", os.environ.get("TORCH_CUDA_ARCH_LIST", ""))
    return sheet_for("cuda:" + (named[0] if named else "9.0").replace(".", ""))


def _no_gpu(name: str) -> str:
    import torch

    if torch.cuda.is_available():
        return f"{name} has cuda_sources, and no argument of this call is a CUDA tensor: move them with .cuda()"
    built = "built without CUDA" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
    return (
        f"{name} has cuda_sources, and torch {torch.__version__} ({built}) finds no GPU here: nothing can be launched. "
        "module.report(config) tells registers and shared memory without one; 'forecast-autotune doctor' tells more"
    )
