"""SearchTask: what is searched for, with inputs to try it on and a reference that says what is right."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from ..compilers.cpp_recipe import SOURCE_KNOB, Recipe, with_headers
from ..core.cached_property import cached_property
from ..core.digest import canonical_json, digest
from ..core.space import Space
from ..core.text import error_text, shown
from ..core.workload import Work
from ..errors import InvalidInputError
from ..measure.probe import nvcc_path
from .candidate import HAND_WRITTEN, SEED, Candidate, normalised

MAX_SEARCHED = 2  # sizes a candidate is timed at, where the caller does not say; the others are held out

OF_FILE = ("cpp_sources", "inputs", "reference", "sizes")
_OF_BUILD = ("extra_cflags", "extra_cuda_cflags", "extra_ldflags", "extra_include_paths", "no_implicit_headers")
MAY_OF_FILE = ("space", *_OF_BUILD, "work", "held_out", "corners", "outputs", "tolerances")
"""What the module beside a C++ or CUDA file says, and may say."""

CUDA_SUFFIX = ".cu"

OF_INPUTS = "of sizes, a seed and a device that returns a tuple of a call's arguments"

Sizes = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class SearchTask:
    """A function to find faster programs for.

    Args:
        name: of the function that is called.
        language: `c++` or `cuda` (a function of `fa.load_inline` with kernel_sources or cuda_sources), or `triton` (a
            Python module).
        source: the text that may be rewritten.
        spaces: the configs of each variant, by the variant's name; of C++, one by an empty name; of CUDA, one for each of
            the sources given by name.
        sizes: by name, what a candidate is timed at.
        held_out: by name, what the winner alone is timed at.
        corners: by name, small sizes, on which every candidate must be right.
        make_inputs: from sizes, a seed and a device to the arguments of a call, the last ones the outputs. Where some
            require gradients, all are inputs: a call returns its outputs, gradients are compared too, and it is timed with
            its backward pass.
        reference: takes the same arguments, and returns what each output should hold; by operations that autograd follows
            where inputs require gradients.
        outputs: how many of the last arguments are outputs, where none requires a gradient.
        work: takes the same arguments, and says what a call has to do at least.
        tolerances: of each output, how far it may be from the reference: relative, and absolute.
        recipe: of C++ and CUDA, how the extension is built.
        module: of Triton, the module whose text `source` is.
        entries: of Triton, the function of the module that is called for each variant.
        texts: of CUDA sources given by name, the text of each variant; `source` is the first one's.
    """

    name: str
    language: str
    source: str = field(repr=False)
    spaces: Mapping[str, Space]
    sizes: Mapping[str, Sizes]
    held_out: Mapping[str, Sizes]
    corners: Mapping[str, Sizes]
    make_inputs: Callable[[Sizes, int, str], tuple[Any, ...]]
    reference: Callable[..., Any]
    outputs: int = 1
    work: Callable[..., Work] | None = None
    tolerances: Sequence[tuple[float, float]] = ((1e-4, 1e-4),)
    device: str = "cpu"
    recipe: Recipe | None = field(default=None, repr=False)
    module: str = ""
    entries: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Check what people write.

        Raises:
            InvalidInputError: a field is not of its form; the message shows the form.
        """
        for name in ("sizes", "held_out", "corners"):
            self._refuse(name, _are_sizes, "give numbers by name, for each size by its name, as {'large': {'n': 4096}}")
        self._refuse("sizes", bool, "give one at least, as {'large': {'n': 4096}}")
        self._refuse(
            "tolerances", _are_tolerances, "give a relative and an absolute one of each output, as [(1e-4, 1e-4)]"
        )
        self._refuse("make_inputs", _takes_three, f"give a function {OF_INPUTS}")
        self._refuse("reference", callable, "give a function of a call's arguments that returns what each output holds")
        self._refuse(
            "work", lambda work: work is None or callable(work), "give a function of a call's arguments, or None"
        )

    def _refuse(self, name: str, is_right: Callable[[Any], bool], form: str) -> None:
        if not is_right(value := getattr(self, name)):
            raise InvalidInputError(f"{name} of {self.name}: {shown(value)}: {form}")

    def text_of(self, variant: str) -> str:
        """The text that a variant comes of."""
        return self.texts.get(variant, self.source)

    @cached_property
    def seed(self) -> Candidate:
        """The task's own source under its default config: what candidates are compared with."""
        variant = next(iter(self.spaces))
        return Candidate(
            source=self.source,
            language=self.language,
            variant=variant,
            config=self.spaces[variant].default,
            proposer=SEED,
            by_rules=True,
        )

    @cached_property
    def hand_written(self) -> tuple[Candidate, ...]:
        """What a person wrote beside the seed: the default config of each further variant, of each algorithm of a space."""
        found = []
        for variant, space in self.spaces.items():
            knob = next((name for name, role in space.roles.items() if role == "algorithm"), None)
            firsts = {config[knob] if knob else None: config for config in reversed(space)}
            firsts[space.default[knob] if knob else None] = space.default
            for config in firsts.values():
                made = Candidate(
                    source=self.text_of(variant),
                    language=self.language,
                    variant=variant,
                    config=config,
                    proposer=HAND_WRITTEN,
                    by_rules=True,
                )
                if made.digest != self.seed.digest:
                    found.append(made)
        return tuple(found)

    @cached_property
    def digest(self) -> str:
        """Changes with what is timed and with what it is checked by; 32 hex digits."""
        spaces = {name: space.digest for name, space in self.spaces.items()}
        texts = [normalised(text, self.language) for text in (self.source, *self.texts.values())]
        if self.recipe is not None:
            texts += [normalised(self.recipe.sources_text, self.language), self.recipe.headers]
        texts += [_text_of(function) for function in (self.make_inputs, self.reference, self.work)]
        sizes = [{name: dict(size) for name, size in of.items()} for of in (self.sizes, self.held_out, self.corners)]
        tolerances = [list(each) for each in self.tolerances]
        return digest(self.name, self.language, *texts, canonical_json([spaces, sizes, self.outputs, tolerances]))


def refuse_what_raises(task: SearchTask) -> None:
    """Make the inputs of the first size, the reference's outputs and the work once.

    Raises:
        InvalidInputError: a function raises, or the inputs are no tuple.
    """

    def called(name: str, size: str, *arguments: Any) -> Any:
        try:
            return getattr(task, name)(*arguments)
        except Exception as err:  # whatever the user's own function does
            why = f"{type(err).__name__}: {error_text(err)}"
            raise InvalidInputError(
                f"{name} of {task.name}, given {len(arguments)} arguments for the size {size!r}, raises {why}"
            ) from err

    size, sizes = next(iter(task.sizes.items()))
    inputs = called("make_inputs", size, sizes, 0, task.device)
    if not isinstance(inputs, (tuple, list)):
        raise InvalidInputError(
            f"make_inputs of {task.name} returns a {type(inputs).__name__}: give a function {OF_INPUTS}"
        )
    called("reference", size, *inputs)
    if task.work is not None:
        called("work", size, *inputs)


def _are_sizes(value: object) -> bool:
    """Whether it holds numbers by name, by the names of sizes."""
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(sizes, Mapping) and all(isinstance(each, str) for each in sizes)
        for name, sizes in value.items()
    )


def _are_tolerances(value: object) -> bool:
    """Whether it holds pairs of numbers."""
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(
            isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(each, (int, float)) for each in pair)
            for pair in value
        )
    )


def _takes_three(value: object) -> bool:
    """Whether it can be called with sizes, a seed and a device."""
    if not callable(value):
        return False
    try:
        inspect.signature(value, follow_wrapped=False).bind({}, 0, "cpu")
    except TypeError:
        return False
    except ValueError:  # a builtin that tells no signature
        return True
    return True


def _text_of(function: Callable[..., Any] | None) -> str:
    """A function's source, else its name."""
    try:
        return inspect.getsource(function) if function is not None else ""
    except (OSError, TypeError):
        return getattr(function, "__qualname__", type(function).__qualname__)


def task_of(
    target: Any,
    *,
    inputs: Callable[[Sizes, int, str], tuple[Any, ...]] | None = None,
    reference: Callable[..., Any] | None = None,
    sizes: Mapping[str, Sizes] | None = None,
    held_out: Mapping[str, Sizes] | None = None,
    device: str | None = None,
) -> SearchTask:
    """The task that a target stands for: a `SearchTask`, a kernel of the suite's kind, or a function of `fa.load_inline`.

    Raises:
        InvalidInputError: it is none of these, or has no reference or inputs and none are given.
    """
    if isinstance(target, SearchTask):
        return target
    if hasattr(target, "sources") and hasattr(target, "load"):
        return _of_extension_kernel(target, sizes, held_out)
    if hasattr(target, "variants") and hasattr(target, "cases"):
        return _of_variants(target, sizes, held_out, device)
    if hasattr(target, "recipe") and hasattr(target, "space"):
        if inputs is None or reference is None or not sizes:
            raise InvalidInputError(
                f"{target.name} has no reference: a search needs inputs= (from sizes, a seed and a device to the arguments "
                "of a call), reference= (from those to what each output should hold) and sizes= ({'large': {'n': 4096}})"
            )
        return _of_function(target, inputs, reference, sizes, held_out or {})
    raise InvalidInputError(
        f"an object of type {type(target).__name__} cannot be searched: give a fa.SearchTask, a function of "
        "fa.load_inline with kernel_sources or cuda_sources, or a kernel of the suite's kind"
    )


def task_of_file(path: Path, beside: ModuleType) -> SearchTask:
    """The task of a C++ or CUDA file, by what the module beside it says under the names of `fa.load_inline` and `fa.search`.

    The function that is called has the file's name without its suffix.

    Raises:
        InvalidInputError: a name is missing, or what it says does not fit.
    """
    from ..frontends.load_inline.tuned_module import load_inline

    given = {name: getattr(beside, name) for name in (*OF_FILE, *MAY_OF_FILE) if hasattr(beside, name)}
    if missing := [name for name in OF_FILE if name not in given]:
        raise InvalidInputError(
            f"{beside.__file__} has no {missing[0]}: beside {path.name} it must say {', '.join(OF_FILE)}, and may say "
            f"{', '.join(MAY_OF_FILE)}"
        )
    name, space = path.stem, given.get("space", [{}])
    build = {name: given[name] for name in _OF_BUILD if name in given}
    if path.suffix == CUDA_SUFFIX:
        beside_it = str(path.parent.resolve())  # headers that stand there
        build["extra_include_paths"] = [beside_it, *build.get("extra_include_paths", ())]
    sources: dict[str, Any] = {"cuda_sources" if path.suffix == CUDA_SUFFIX else "kernel_sources": path.read_text()}
    module = load_inline(
        name,
        given["cpp_sources"],
        **sources,
        functions=[name],
        space=Space.grid(space) if isinstance(space, Mapping) else space,
        work=given.get("work"),
        **build,
    )
    arguments = {name: given[name] for name in ("inputs", "reference", "sizes", "held_out") if name in given}
    task = task_of(getattr(module, name), **arguments)
    return replace(task, **{name: given[name] for name in ("corners", "outputs", "tolerances") if name in given})


def _of_extension_kernel(
    kernel: Any, sizes: Mapping[str, Sizes] | None, held_out: Mapping[str, Sizes] | None
) -> SearchTask:
    function = getattr(kernel.load(), kernel.name)
    cases = {case.name: case for case in (*kernel.cases, *kernel.corners)}
    searched, kept = _split({case.name: dict(case.sizes) for case in kernel.cases}, sizes, held_out)

    @wraps(kernel.make_inputs)
    def make_inputs(sizes: Sizes, seed: int, device: str) -> tuple[Any, ...]:  # noqa: ARG001
        case = next(case for case in cases.values() if dict(case.sizes) == dict(sizes))
        return tuple(kernel.make_inputs(case, seed))

    return SearchTask(
        name=kernel.name,
        **_of_recipe(function.recipe, kernel.space),
        sizes=searched,
        held_out=kept,
        corners={case.name: dict(case.sizes) for case in kernel.corners},
        make_inputs=make_inputs,
        reference=kernel.reference,
        work=kernel.work,
        tolerances=((kernel.rtol, kernel.atol),),
    )


def _of_function(
    function: Any,
    inputs: Callable[[Sizes, int, str], tuple[Any, ...]],
    reference: Callable[..., Any],
    sizes: Mapping[str, Sizes],
    held_out: Mapping[str, Sizes],
) -> SearchTask:
    return SearchTask(
        name=function.name,
        **_of_recipe(function.recipe, function.space),
        sizes=sizes,
        held_out=held_out,
        corners={},
        make_inputs=inputs,
        reference=reference,
        work=function.work,
    )


def _of_recipe(recipe: Recipe, space: Space) -> dict[str, Any]:
    """What of a task follows from how an extension is built: its language, device, texts and spaces."""
    if not recipe.is_cuda:
        return {
            "language": "c++",
            "recipe": recipe,
            "source": _only_text(recipe, "kernel_sources"),
            "spaces": {"": space},
        }
    if lacks := _cuda_lacks():
        raise InvalidInputError(f"{recipe.name} has cuda_sources, and {lacks}")
    texts = cuda_texts(recipe)
    spaces = {"": space} if list(texts) == [""] else by_source(space, texts)
    texts = {variant: texts[variant] for variant in spaces}
    return {
        "language": "cuda",
        "device": "cuda",
        "recipe": recipe,
        "source": next(iter(texts.values())),
        "spaces": spaces,
        "texts": texts if len(texts) > 1 else {},
    }


def _cuda_lacks() -> str:
    """What this machine lacks to build and run CUDA; empty where it lacks nothing."""
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU here: candidates are run on one"
    return (
        ""
        if nvcc_path()
        else "there is no nvcc to build candidates by: put it on PATH, or name its folder in CUDA_HOME"
    )


def cuda_texts(recipe: Recipe) -> dict[str, str]:
    """The texts of a recipe in CUDA that may be rewritten, by their names; one without a name by an empty one.

    Headers from the caller's own folders stand in them, so that they may be rewritten too.
    """
    sources = recipe.cuda_sources
    named = sources if isinstance(sources, Mapping) else {"": _only_text(recipe, "cuda_sources")}
    return {name: with_headers(text, recipe.include_folders) for name, text in named.items()}


def by_source(space: Space, names: Collection[str]) -> dict[str, Space]:
    """A space parted by which source a config picks, the default's first; by default each is set as much as the default."""
    usual = space.default
    spaces = {}
    for name in sorted(names, key=lambda name: name != usual[SOURCE_KNOB]):
        if configs := [config for config in space if config[SOURCE_KNOB] == name]:
            alike = max(configs, key=lambda config: sum(config[knob] == usual[knob] for knob in space.knobs))
            spaces[name] = Space(configs, default=alike, roles=space.roles)
    return spaces


def _only_text(recipe: Recipe, argument: str) -> str:
    """The one text that may be rewritten."""
    sources = getattr(recipe, argument)
    if isinstance(sources, Mapping) or len(sources) != 1 or recipe.functions is None:
        raise InvalidInputError(
            f"{recipe.name} must have one text of {argument} and name its functions: that text is what a search rewrites, "
            "and it is compiled apart from what binds it to torch"
        )
    return str(sources[0])


def _of_variants(
    kernel: Any, sizes: Mapping[str, Sizes] | None, held_out: Mapping[str, Sizes] | None, device: str | None
) -> SearchTask:
    module = sys.modules[kernel.variants[0].launch.__module__]
    cases = (*kernel.cases, *kernel.corners)
    here = [v for v in kernel.variants if v.launch.__module__ == module.__name__]
    searched, kept = _split({case.name: dict(case.sizes) for case in kernel.cases}, sizes, held_out)

    @wraps(kernel.make_inputs)
    def make_inputs(sizes: Sizes, seed: int, device: str) -> tuple[Any, ...]:
        case = next(case for case in cases if dict(case.sizes) == dict(sizes))
        return tuple(kernel.make_inputs(case, seed, device))

    return SearchTask(
        name=kernel.name,
        language="triton",
        source=source_of(module),
        spaces={variant.name: variant.space for variant in here},
        sizes=searched,
        held_out=kept,
        corners={case.name: dict(case.sizes) for case in kernel.corners},
        make_inputs=make_inputs,
        reference=kernel.reference,
        outputs=len(kernel.outputs),
        work=kernel.work,
        tolerances=tuple((output.rtol, output.atol) for output in kernel.outputs),
        device=device or _device(),
        module=module.__name__,
        entries={variant.name: variant.launch.__name__ for variant in here},
    )


def source_of(module: ModuleType) -> str:
    """The text of a module.

    Raises:
        InvalidInputError: it has none.
    """
    try:
        return Path(inspect.getsourcefile(module) or "").read_text()
    except (OSError, TypeError) as err:
        raise InvalidInputError(f"{module.__name__} has no source file to rewrite: {err}") from None


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _split(
    cases: Mapping[str, Sizes], sizes: Mapping[str, Sizes] | None, held_out: Mapping[str, Sizes] | None
) -> tuple[dict[str, Sizes], dict[str, Sizes]]:
    """Which sizes candidates are timed at, and which are kept for the winner."""
    searched = dict(sizes or list(cases.items())[:MAX_SEARCHED])
    return searched, dict({n: s for n, s in cases.items() if n not in searched} if held_out is None else held_out)


def named(sizes: Sequence[str], task: SearchTask) -> SearchTask:
    """The task at these of its sizes, by name; all others are held out.

    Raises:
        InvalidInputError: it has no such size.
    """
    known = {**task.sizes, **task.held_out}
    if unknown := [name for name in sizes if name not in known]:
        raise InvalidInputError(f"{task.name} has no size {unknown[0]!r}: it has {', '.join(known)}")
    chosen = {name: known[name] for name in sizes}
    return replace(task, sizes=chosen, held_out={n: s for n, s in known.items() if n not in chosen})
