"""The surrogates that a setting names."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ..core.model_names import is_language_model
from ..language.model import LanguageModel
from ..language.named import named
from ..protocols import Surrogate
from ..settings import SURROGATES, Answer
from .blend import Blend
from .history import History
from .language_model import LanguageModelSurrogate
from .learned import Learned
from .prior import Prior
from .roofline import Roofline


def make_surrogate(
    name: str, *, prior: Prior | None = None, answer: Answer | None = None, model: str | None = None
) -> Surrogate:
    """The surrogate a setting names, a language model beside all the others.

    Args:
        prior: stands in for the shipped model.
        model: as setting `MODEL` has it; `prior` goes first.
    """
    fitted = model if prior is None else prior
    if name == "learned":
        return Learned(fitted)
    if place := SURROGATES.get(name):
        module, _, class_name = place.partition(".")
        made: Surrogate = getattr(import_module(f".{module}", __package__), class_name)()
        return made
    members: list[Surrogate] = [History(), Learned(fitted), Roofline()]
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
