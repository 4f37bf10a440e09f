"""The surrogates that a setting names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from ..core.model_names import is_language_model
from ..language.model import LanguageModel
from ..language.named import named
from ..protocols import Surrogate
from ..settings import Answer
from .blend import Blend
from .history import History
from .language_model import LanguageModelSurrogate
from .learned import Learned
from .prior import Prior
from .roofline import Roofline

SINGLE: Mapping[str, Callable[[Prior | str | None], Surrogate]] = {
    "history": lambda _: History(),
    "learned": Learned,
    "roofline": lambda _: Roofline(),
}
"""Name to surrogate, made from a fitted model or its version; `auto` blends them all."""


def make_surrogate(name: str, *, answer: Answer | None = None, model: Prior | str | None = None) -> Surrogate:
    """The surrogate a setting names, a language model beside all the others.

    Args:
        answer: how a language model answers, where one is named.
        model: the fitted one, or what setting `MODEL` names; the shipped one if not given.
    """
    if name in SINGLE:
        return SINGLE[name](model)
    members = [make(model) for make in SINGLE.values()]
    if is_language_model(name):
        members.append(_language_model(name, Answer() if answer is None else answer))
    return Blend(members)


@cache
def _language_model(name: str, answer: Answer) -> LanguageModelSurrogate:
    """One for all kernels of a process: it is loaded once, and warned of once."""
    return LanguageModelSurrogate(_model(name), answer=answer.form, seconds=answer.seconds)


@cache
def _model(name: str) -> LanguageModel:
    return named(name)
