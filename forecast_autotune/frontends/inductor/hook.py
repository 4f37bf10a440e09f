"""Where our choices enter Inductor, which need not be imported yet. Importing this module imports no torch.

Inductor asks the factory in its configuration for what chooses, once in each thread, and asks what that is called for the
keys of its caches. From torch 2.15 on, factories can be registered beside that one, and the first with a method of its own
answers for it. Whoever was there before chooses on; ours only narrows what comes from it.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from typing import Any

from ...core.fork_safe_lock import fork_safe_lock
from ..torch_modules import is_imported
from .assembler import share_assembler, unshare_assembler

CONFIG, VIRTUALIZED = "torch._inductor.config", "torch._inductor.virtualized"
CHOICES = "torch._inductor.choices"
AWAITED = ("torch._inductor.codecache", "torch._inductor.compile_fx", CHOICES)
"""Modules of torch after whose import its configuration is there; no key of a cache is made before."""

KEY = "forecast_autotune"  # what our factory is registered as
TABLE = "autotune_lookup_table"  # Inductor's setting that tells configs of kernels which it generates

_lock = fork_safe_lock()
_wanted = False
_before: Any = None  # the factory that ours took the place of
_theirs: Any = None  # the factory whose choices ours narrows
_registered = False  # whether ours is beside that place, from torch 2.15 on
_tag = ""  # what we added to torch's tag of cache keys, where our choices' name is no part of them


class _WhenInductorIsImported:
    """A finder that finds nothing itself: it has `_enter` follow the import of one of the awaited modules."""

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        if name not in AWAITED or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.now = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_enter(module: Any) -> None:
            run(module)
            _enter()

        spec.loader.exec_module = run_and_enter  # type: ignore[method-assign]
        return spec


_finder = _WhenInductorIsImported()


def install() -> None:
    """Have Inductor's candidates narrowed in this process, from now on or from when it is imported."""
    global _wanted
    with _lock:
        _wanted = True
        share_assembler()
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        if any(is_imported(name) for name in AWAITED):
            _enter()


def uninstall() -> None:
    """Undo `install()`. A factory that somebody else has put in its place since stays."""
    global _wanted, _before, _theirs, _tag, _registered
    with _lock:
        _wanted = False
        unshare_assembler()
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        config: Any = sys.modules.get(CONFIG)
        module: Any = sys.modules.get(CHOICES) if is_imported(CHOICES) and VIRTUALIZED in sys.modules else None
        handler = None if module is None else sys.modules[VIRTUALIZED].V.choices
        was_made = handler is not None and _is_made(handler, module, config)
        if config is not None and getattr(config, "inductor_choices_class", None) is make_choices:
            config.inductor_choices_class = _before
            _give_other_threads(config, "inductor_choices_class", None)
        if config is not None:
            _give_table_back(config)
        if _registered:
            module.unregister_inductor_choices(KEY)
        if _tag:
            compiler: Any = sys.modules["torch.compiler.config"]
            compiler.cache_key_tag = compiler.cache_key_tag.replace(_tag, "")
            _give_other_threads(compiler, "cache_key_tag", compiler.cache_key_tag)
        _before, _theirs, _tag, _registered = None, None, "", False
        if handler is not None:
            from .choices import without_ours

            left = module.create_inductor_choices(config.inductor_choices_class) if was_made else without_ours(handler)
            sys.modules[VIRTUALIZED].V.set_choices_handler(left)


def is_wanted() -> bool:
    """Whether `install()` holds."""
    return _wanted


def why_not_in() -> str:
    """Why Inductor does not ask us in this thread, though it is wanted; empty where it does, or is not imported yet."""
    config = sys.modules.get(CONFIG)
    if not _wanted or config is None or not any(is_imported(name) for name in AWAITED):
        return ""
    if not _registered and config.inductor_choices_class is not make_choices:
        return (
            f"{config.inductor_choices_class!r} took the place of ours in torch._inductor.config.inductor_choices_class"
        )
    from .choices import is_ours, listing_handler
    from .request import stood_aside

    handler = listing_handler(sys.modules[VIRTUALIZED].V.choices)
    if not is_ours(handler) and not stood_aside():
        return f"a {type(handler).__qualname__} took the place of ours"
    return stood_aside()


def counts() -> Any:
    """What was done in this process, as `narrowing.Counts`; None while Inductor has asked nothing."""
    choices = sys.modules.get(f"{__package__}.choices")
    return None if choices is None else choices.narrowing.counts


def make_choices() -> Any:
    """What Inductor asks in one thread: what it would ask without us, and ours over it where that can be."""
    if _theirs is None:
        from torch._inductor.choices import InductorChoices  # not loaded yet where a warm cache is looked into

        theirs = InductorChoices()
    else:
        theirs = _theirs()
    try:
        from .choices import with_ours

        return with_ours(theirs)
    except Exception as err:
        from .request import stand_aside

        stand_aside(err)
        return theirs


def _enter() -> None:
    global _tag
    with _lock:
        config: Any = sys.modules.get(CONFIG)
        if not _wanted or config is None or not is_imported(CONFIG):
            return
        try:
            _answer_table(config)
            module = sys.modules.get(CHOICES)
            if hasattr(module, "register_inductor_choices"):
                _register(config, module)
            else:
                _take_place(config, config.inductor_choices_class)
                if VIRTUALIZED in sys.modules and is_imported(CHOICES):
                    from .choices import with_ours

                    V = sys.modules[VIRTUALIZED].V  # noqa: N806  # torch's name for it
                    V.set_choices_handler(with_ours(V.choices))  # a thread that has compiled asks the factory no more
            if not _tag and not _names_choices_in_keys():
                import torch.compiler.config as compiler

                from .request import uuid

                _tag = f" {uuid()}"
                compiler.cache_key_tag += _tag
                _give_other_threads(compiler, "cache_key_tag", compiler.cache_key_tag)
        except Exception as err:
            from .request import stand_aside

            stand_aside(err)


def _answer_table(config: Any) -> None:
    """Have what is stored answer for configs of kernels that Inductor generates, where its table holds none."""
    from .generated import LookupTable, kernels

    theirs = getattr(config, TABLE, None)
    if isinstance(theirs, dict) and not isinstance(theirs, LookupTable):
        setattr(config, TABLE, LookupTable(theirs, kernels.stored_for_compiling))
        _give_other_threads(config, TABLE, LookupTable({}, kernels.stored_for_compiling))


def _give_table_back(config: Any) -> None:
    from .generated import LookupTable

    _give_other_threads(config, TABLE, {})
    if isinstance(table := getattr(config, TABLE, None), LookupTable):
        setattr(config, TABLE, dict(table.items()))


def _register(config: Any, module: Any) -> None:
    """Be one of the factories that torch 2.15 asks in turn; in the place of one, where it would answer before ours."""
    global _registered
    from .choices import lists_itself, with_ours

    V = sys.modules[VIRTUALIZED].V  # noqa: N806  # torch's name for it
    handler, was_made = V.choices, _is_made(V.choices, module, config)
    # Set before Inductor's choices were imported.
    if config.inductor_choices_class is make_choices and _theirs is None:
        config.inductor_choices_class = None
        _give_other_threads(config, "inductor_choices_class", None)
    others = (factory for key, factory in module.registered_inductor_choices() if key != KEY)
    ahead = config.inductor_choices_class or next((each for each in others if lists_itself(each())), None)
    if ahead is not None:
        _take_place(config, ahead)
    elif not _registered:
        module.register_inductor_choices(KEY, make_choices)
        _registered = True
    V.set_choices_handler(
        module.create_inductor_choices(config.inductor_choices_class) if was_made else with_ours(handler)
    )


def _is_made(handler: Any, module: Any, config: Any) -> bool:
    """Whether Inductor has made what chooses out of its factories, rather than been given it, from torch 2.15 on."""
    make = getattr(module, "create_inductor_choices", None)
    return make is not None and type(handler) is type(make(config.inductor_choices_class))


def _take_place(config: Any, theirs: Any) -> None:
    global _before, _theirs
    if config.inductor_choices_class is not make_choices:
        _before, _theirs = config.inductor_choices_class, theirs
        config.inductor_choices_class = make_choices
        _give_other_threads(config, "inductor_choices_class", make_choices)


def _give_other_threads(config: Any, name: str, value: Any) -> None:
    """Have threads that set nothing themselves see a value: what is assigned in torch's configuration, one thread sees."""
    entry: Any = getattr(config, "_config", {}).get(name)
    if hasattr(entry, "default"):
        entry.default = value


def _names_choices_in_keys() -> bool:
    """Whether the choices' own name is part of the keys of Inductor's caches: from torch 2.12 on."""
    import torch

    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 12)
