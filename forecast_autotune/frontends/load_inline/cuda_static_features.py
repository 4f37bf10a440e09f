"""Static features of the variants of a CUDA extension: what its sources say of each config, before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...compilers.cpp_recipe import SOURCE_KNOB, Recipe, picked
from ...core.config import Config
from ...core.hardware import Hardware
from ...features.cuda_features import Argument, CudaText, argument


class CudaSourceTexts:
    """The sources of a recipe as texts to describe; each alternative is read once."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._texts: dict[tuple[str, ...], CudaText] = {}

    def of_call(
        self, function: str, args: Sequence[Any], hardware: Hardware
    ) -> Callable[[Config], Mapping[str, float] | None]:
        """From a config to what it does in a call; see `CudaText.features`. Keeps no tensor of the call's.

        Args:
            args: of the call; tensors may hold no data.
        """
        arguments = [argument(str(number), value) for number, value in enumerate(args)]
        return lambda config: self._features(function, arguments, config, hardware)

    def _features(
        self, function: str, arguments: Sequence[Argument], config: Config, hardware: Hardware
    ) -> Mapping[str, float] | None:
        recipe = self._recipe
        chosen = config.knobs.get(SOURCE_KNOB)
        texts = (*picked(recipe.cpp_sources, chosen), *picked(recipe.cuda_sources, chosen))
        if texts not in self._texts:
            self._texts[texts] = CudaText(texts, recipe.include_folders)
        return self._texts[texts].features(function, arguments, recipe.macros(config), hardware)
