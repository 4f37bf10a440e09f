"""Static features of the variants of a CUDA extension: what its sources say of each config, before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...compilers.cpp_recipe import SOURCE_KNOB, Recipe
from ...core.config import Config
from ...core.hardware import Hardware
from ...features.cuda_features import Argument, CudaText, argument


class DescribedSources:
    """The sources of a recipe as texts to describe; each alternative is read once."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._texts: dict[object, CudaText] = {}

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
        sources = (recipe.cpp_sources, recipe.cuda_sources)
        chosen = config.knobs.get(SOURCE_KNOB) if any(isinstance(s, Mapping) for s in sources) else None
        if chosen not in self._texts:
            texts = [text for s in sources for text in ([s[str(chosen)]] if isinstance(s, Mapping) else s)]
            self._texts[chosen] = CudaText(texts, recipe.include_folders)
        knobs = {
            name: value
            for name, value in config.knobs.items()
            if recipe.roles.get(name) != "flag" and not (name == SOURCE_KNOB and chosen is not None)
        }
        return self._texts[chosen].features(function, arguments, knobs, hardware)
