"""Generated launch code: the function between `kernel[grid](…)` and the launch once a key is decided.

Each form of call (so many positional arguments, these keywords) gets a function, generated once. It makes the key from the
arguments, looks the config up and launches with the config's keywords. It formats no text and merges no dictionary, and it
keeps nothing but `best_config` between calls, so that threads cannot mix.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.runtime.driver import driver

from .target import current_device

_FILE = f"{__file__}:generated"  # in this package's folder, whose files Dynamo does not trace


class Launch(NamedTuple):
    """A config with the keywords that it adds to a launch.

    Triton lets programs change a decided config. One whose attributes differ from `state` is read once more.
    """

    config: Any
    keywords: dict[str, Any]
    state: dict[str, Any]
    hooked: bool

    @classmethod
    def of(cls, config: Any) -> Launch:
        """The launch under a `triton.Config` as it is now."""
        return cls(
            config, config.all_kwargs(), {**vars(config), "kwargs": dict(config.kwargs)}, config.pre_hook is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The code for calls of one form: so many positional arguments, and these keywords in this order."""

    launch: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    key: Callable[[tuple[Any, ...], dict[str, Any]], Hashable]
    table: dict[Hashable, Launch]  # its own: the same values under other names are another key
    tensors: frozenset[str]  # arguments that had a dtype when it was made
    mixed: frozenset[str]  # and those that have one in some calls only
    single: bool  # whether there was one config alone, and so nothing to look up


def call_form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The form of a call: its number of positional arguments, then its keywords in their order."""
    return (len(args), *kwargs)


class Shortcuts:
    """The generated launch code of one tuner, by form of call; a tuner's `run` looks into `launches` first.

    Args:
        tuner: see `make_form`; also read for `arg_names`, `keys` and `buckets`.
    """

    def __init__(self, tuner: Any) -> None:
        self.launches: dict[tuple[Any, ...], Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {}
        self._tuner = tuner
        self._forms: dict[tuple[Any, ...], Form | None] = {}
        self._by_config: dict[int, Launch] = {}  # the tuner's configs, by identity

    def remember(self, config: Any, call: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have the next call of this form and key go straight to the launch, which sets no `nargs` for a grid to read.

        Args:
            config: decided for the call's key.
            call: the kernel's arguments by name.
            args, kwargs: the call as it was made.
        """
        if _reads_nargs(kwargs.get("grid")):
            return
        name = call_form(args, kwargs)
        tensors = frozenset(n for n, value in call.items() if hasattr(value, "dtype"))
        form = self._forms.get(name)
        changed = form is not None and (tensors ^ form.tensors) - form.mixed
        single = len(self._tuner._configs) == 1  # now: a program may change the list in place
        if name not in self._forms or (form and (changed or form.single != single)):
            form = self._forms[name] = make_form(
                self._tuner,
                name,
                arg_names=self._tuner.arg_names,
                tensors=tensors,
                mixed=form.mixed | changed if form and changed else frozenset(),
                key_names=frozenset(self._tuner.keys or ()),
                buckets=self._tuner.buckets,
                on_device=current_device() is not None,
            )
        if form is not None:
            form.table[form.key(args, kwargs)] = self._launch_of(config)
            self.launches[name] = form.launch

    def _launch_of(self, config: Any) -> Launch:
        """A config's launch, one for all the keys that it was decided for."""
        launch = self._by_config.get(id(config))
        if launch is None or vars(config) != launch.state:
            launch = Launch.of(config)
            if any(config is each for each in self._tuner.configs):
                self._by_config[id(config)] = launch
        return launch

    def forget(self) -> None:
        """Have every next call look its decision up in the table."""
        self.launches.clear()
        for form in filter(None, self._forms.values()):
            form.table.clear()  # its functions refer to each other: their entries would stay until a full collection
        self._forms.clear()
        self._by_config.clear()


_TEMPLATE = """
def key(__args, __kwargs):
    {unpacked}
    return {key}

def launch(__args, __kwargs):
    {unpacked}
    try:
        __launch = __get({key})
    except (AttributeError, TypeError):
        __launch = None
    if __launch is None:
        return __tuner._miss(__args, __kwargs)
    __config, __keywords, __state, __hooked = __launch
    if __config.__dict__ != __state{other_configs}:
        return __tuner._miss(__args, __kwargs)
    __tuner.best_config = __config
    if __hooked:
        return __tuner._launch(__config, __args, __kwargs)
    return __tuner.fn.run(*__args, **__kwargs, **__keywords)
"""


def make_form(
    tuner: Any,
    form: tuple[Any, ...],
    *,
    arg_names: Sequence[str],
    tensors: frozenset[str],
    mixed: frozenset[str] = frozenset(),
    key_names: frozenset[str],
    buckets: Mapping[str, Callable[[Any], Any]],
    on_device: bool,
) -> Form | None:
    """Generate the function for calls of one form; None if a name in it cannot be written.

    An argument in `tensors` counts by its dtype, one in `key_names` by its value (by its bucket where it has one), every
    other by its class: that decides whether it has a dtype, so a call with a tensor where there was none has another key.
    A tuner with one config has nothing to look up, and its calls no key.

    Args:
        tuner: read for `fn`, `_configs`, `_miss` and `_launch`, written to at `best_config`.
        form: see `call_form`.
        mixed: arguments that have a dtype in some calls only.
        on_device: whether the current device is part of the key.
    """
    count, keywords = form[0], form[1:]
    positional = arg_names[:count]
    names = (*positional, *keywords)
    if count > len(arg_names) or len(set(names)) < len(names) or not all(map(_can_be_written, names)):
        return None
    single = len(tuner._configs) == 1
    parts = [] if single else _key_parts([n for n in names if n in arg_names], tensors, mixed, key_names, buckets)
    if on_device and not single:
        parts.insert(0, "__driver.active.get_current_device()")
    # Of a call's arguments, those that its key is made of; all are handed on as they came.
    lines = [f"{''.join(f'{n}, ' for n in positional)}= __args"] if positional and not single else []
    lines += [f"{n} = __kwargs[{n!r}]" for n in keywords if n in arg_names and not single]
    text = _TEMPLATE.format(
        unpacked="\n    ".join(lines),
        key=f"({''.join(f'{part}, ' for part in parts)})",
        other_configs=" or [__config] != __tuner._configs" if single else "",
    )
    table: dict[Hashable, Launch] = {}
    scope: dict[str, Any] = {f"__bucket_{name}": bucket for name, bucket in buckets.items()}
    scope.update(__name__=__name__, __tuner=tuner, __get=table.get, __driver=driver)
    # The text above holds nothing but identifiers checked here.
    exec(compile(text, _FILE, "exec"), scope)  # noqa: S102
    return Form(launch=scope["launch"], key=scope["key"], table=table, tensors=tensors, mixed=mixed, single=single)


def _reads_nargs(grid: Any) -> bool:
    return "nargs" in getattr(getattr(grid, "__code__", None), "co_names", ())


def _can_be_written(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name[:2] != "__"


def _key_parts(
    names: Sequence[str],
    tensors: frozenset[str],
    mixed: frozenset[str],
    key_names: frozenset[str],
    buckets: Mapping[str, Callable[[Any], Any]],
) -> list[str]:
    """Expressions for the parts of a key, for the arguments of a call in their order."""
    parts: list[str] = []
    for name in names:
        if name in key_names:
            parts.append(f"__bucket_{name}({name})" if name in buckets else name)
        if name in mixed:
            parts.append(f"getattr({name}, 'dtype', {name}.__class__)")
        elif name in tensors:
            parts.append(f"{name}.dtype")
        elif name not in key_names or name in buckets:
            parts.append(f"{name}.__class__")
    return parts
