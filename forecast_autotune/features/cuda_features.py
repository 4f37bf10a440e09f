"""Launch features of CUDA texts: what each config of `load_inline` does, before anything is compiled.

The text is read once, its launches are worked out for each config in a few milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.hardware import Hardware
from .launch_features import combine_launches

log = logging.getLogger(__name__)

_UNDEFINED = object()  # in place of a knob's value, where a config does not set it


@dataclass(frozen=True, slots=True)
class Argument:
    """What counts of an argument of a call: a number, or a tensor's layout. Of what is neither, nothing is known."""

    name: str
    number: int | float | None = None
    layout: tuple[tuple[int, ...], tuple[int, ...], str] | None = None  # shape, strides, dtype


def argument(name: str, value: Any) -> Argument:
    """An argument of a call as `CudaText` takes it; it does not hold the value."""
    if isinstance(value, (bool, int, float)):
        return Argument(name, int(value) if isinstance(value, bool) else value)
    try:
        dtype = str(value.dtype).removeprefix("torch.")
        return Argument(name, layout=(tuple(map(int, value.shape)), tuple(map(int, value.stride())), dtype))
    except Exception:  # no tensor, or one of a kind that does not say
        log.debug("argument %s, a %s, is not described", name, type(value).__name__)
        return Argument(name)


class CudaText:
    """Texts of one extension, each with the folders of its headers, read as often as knobs change what is left of them.

    Args:
        texts: C++ and CUDA, as they are compiled together.
        folders: where headers in quotes lie.
    """

    def __init__(self, texts: Sequence[str], folders: Sequence[str]) -> None:
        self._texts, self._folders = tuple(texts), tuple(folders)
        # Names that conditions asked for with what they were, and what was read or failed.
        self._read: list[tuple[dict[str, Any], Any]] = []

    def features(
        self, function: str, arguments: Sequence[Argument], knobs: Mapping[str, Any], hardware: Hardware | None
    ) -> dict[str, float] | None:
        """The features of a call under a config, in the names of `launch_features`. Never raises.

        Empty where the text refuses the config and launches nothing; None where it uses what the walk does not know.

        Args:
            function: as Python calls it.
            arguments: as `argument` makes them.
            knobs: macros by name.
        """
        import numpy as np

        from .cuda_walk.columns import columns_of
        from .cuda_walk.values import RefusedError
        from .cuda_walk.world import World

        try:
            with np.errstate(all="ignore"):
                world = World(self._declared(knobs), knobs, hardware.units if hardware is not None else 0)
                launches = world.run(function, [_known(each) for each in arguments])
                return combine_launches([columns_of(launch, hardware) for launch in launches])
        except RefusedError as err:
            log.debug("%s launches nothing under %s: %r", function, dict(knobs), err)
            return {}
        except Exception as err:  # the text is the user's own, and may say anything
            log.debug("launches of %s under %s are not described: %r", function, dict(knobs), err)
            return None

    def _declared(self, knobs: Mapping[str, Any]) -> Any:
        from .cuda_walk.preprocessor import Preprocessor
        from .cuda_walk.text import Declared, read_text
        from .cuda_walk.values import AbstainError

        for asked, found in self._read:
            if all(knobs.get(name, _UNDEFINED) == value for name, value in asked.items()):
                if isinstance(found, AbstainError):
                    raise found
                return found
        declared, asked = Declared(), {}
        result: Any = declared
        try:
            for text in self._texts:
                preprocessor = Preprocessor(knobs, self._folders, _evaluate)
                try:
                    read_text(preprocessor.run(text), declared)
                finally:
                    asked.update({name: knobs.get(name, _UNDEFINED) for name in preprocessor.conditions})
        except AbstainError as err:
            result = err
        except Exception as err:  # brackets within brackets without end, or a parser that is not installed
            result = AbstainError(repr(err))
        self._read.append((asked, result))
        if isinstance(result, AbstainError):
            raise result
        return declared


def _known(given: Argument) -> Any:
    """What the walk knows of an argument."""
    from .cuda_walk.library import tensor_of
    from .cuda_walk.values import DTYPES, UNKNOWN

    if given.layout is not None and given.layout[2] in DTYPES:
        return tensor_of(given.name, *given.layout)
    return UNKNOWN if given.number is None else given.number


def _evaluate(expression: str) -> int:
    from .cuda_walk.machine import Machine
    from .cuda_walk.text import Declared, read_expression
    from .cuda_walk.world import World

    return int(read_expression(expression)(Machine(World(Declared(), {}))))
