"""The language model that a setting names."""

from __future__ import annotations

from ..core.model_names import parse_model_name
from .in_transformers import TransformersModel
from .in_vllm import VllmModel
from .model import LanguageModel
from .server import ServedModel


def named(text: str) -> LanguageModel:
    """`http://HOST:PORT[/#MODEL]`, `vllm:MODEL` or `hf:MODEL[@DEVICE]`, not opened yet.

    Raises:
        InvalidInputError: it is none of these; says which forms are accepted.
    """
    name = parse_model_name(text)
    if name.runs == "server":
        return ServedModel(name.url, model=name.model)
    if name.runs == "vllm":
        return VllmModel(name.model)
    return TransformersModel(name.model, device=name.device)
