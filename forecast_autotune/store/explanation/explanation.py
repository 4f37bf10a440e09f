"""Explanation: why a kernel runs the config that it runs, as text, as HTML and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ...core.layout import Block, Emphasis, as_html, as_is, as_text, bold, terminal_width
from ..details import DecisionDetail
from .as_json import json_of
from .content import blocks_of


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What was chosen for a key, why, against what, and what had been forecast of each config.

    `print` it, end a notebook's cell with it, or hand it to rich: each shows what `forecast-autotune show` prints.

    Args:
        details: one for each power limit that the key is decided under; most often one alone.
    """

    details: tuple[DecisionDetail, ...]

    def as_json(self) -> dict[str, object] | list[dict[str, object]]:
        """What `forecast-autotune show --json` prints: an object, or a list of them where there are several."""
        made = [json_of(detail) for detail in self.details]
        return made[0] if len(made) == 1 else made

    def as_text(self, *, width: int | None = None, verbose: bool = False, emphasize: Emphasis = as_is) -> str:
        """Facts and tables as text.

        Args:
            width: characters of a line; None for lines as long as they come.
            verbose: with who forecast what, each failure's message, and the run that measured.
            emphasize: what headings pass through.
        """
        return as_text(self._blocks(verbose=verbose), width=width, emphasize=emphasize)

    def __str__(self) -> str:
        """As `forecast-autotune show` prints it: as wide as the terminal, and elsewhere in whole lines."""
        return self.as_text(width=terminal_width(sys.stdout))

    __repr__ = __str__

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """For rich: the text in the console's width."""
        from rich.text import Text

        yield Text.from_ansi(self.as_text(width=options.max_width, emphasize=bold))

    def _repr_html_(self) -> str:
        """For notebooks: tables."""
        return as_html(self._blocks())

    def _blocks(self, *, verbose: bool = False) -> list[Block]:
        return list(chain.from_iterable(blocks_of(detail, verbose=verbose) for detail in self.details))
