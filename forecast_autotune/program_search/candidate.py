"""Candidate: one program with its knobs, where it came from, and what became of it."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ..core.cached_property import cached_property
from ..core.config import Config
from ..core.digest import digest
from ..core.forecast import Forecast
from ..core.outcome import Measurement, Outcome

_CPP_TOKENS = re.compile(
    # A comment or string without end ends with the text or line: else each would be looked for to the end, in square time.
    r"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*(?:\"|$|\\?\Z)|'(?:\\.|[^'\\\n]){0,16}'|^[ \t]*#(?:\\\n|[^\n])*|\s+",
    re.DOTALL | re.MULTILINE,
)

SEED = "seed"  # who proposed the task's own source, and why it was tried
HAND_WRITTEN = "hand-written"  # who proposed what a person wrote beside it
PROMISE, RANDOM, REPAIR = "promise", "random", "repair"  # why others were tried


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A program to try: its text, which of its variants is called, and the knobs it is called with.

    `steps` are labels of what was done to the task's own source, one after the other, back to the seed; `steps.py` reads
    them. `parents` are digests. `by_rules` says that no model wrote any of it: rewrites made it of what a person wrote.
    """

    source: str = field(repr=False)
    language: str  # "c++", "cuda" or "triton"
    variant: str
    config: Config
    proposer: str
    parents: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    by_rules: bool = False

    @cached_property
    def digest(self) -> str:
        """The same for programs that differ in comments, blank space or line breaks alone; 32 hex digits."""
        return digest(normalised(self.source, self.language), self.variant, self.config.text)

    @property
    def source_digest(self) -> str:
        """The same for all configs of one text."""
        return digest(normalised(self.source, self.language))[:8]

    @property
    def last_step(self) -> str:
        """What was done last, in a line."""
        return self.steps[-1].splitlines()[0] if self.steps else "the task's own source"


@lru_cache(maxsize=512)
def normalised(source: str, language: str) -> str:
    """A program's text without what does not change it: comments, blank space, and docstrings of Python."""
    if language == "triton":
        return _normalised_python(source)
    parts, at = [""], 0

    def add(text: str, *, line: bool = False) -> None:
        if line or (text == " " and not parts[-1].endswith((" ", "\n"))) or text.strip():
            parts.append(text)

    for match in _CPP_TOKENS.finditer(source):
        add(source[at : match.start()])
        at, text = match.end(), match[0]
        if text.startswith(("//", "/*")) or text.isspace():
            add(" ")
        elif text.lstrip().startswith("#"):  # a line of the preprocessor stays a line
            add("\n" + " ".join(re.sub(r"//.*|/\*.*?\*/", " ", text.replace("\\\n", " ")).split()) + "\n", line=True)
        else:
            add(text)
    add(source[at:])
    return "".join(parts).strip()


def _normalised_python(source: str) -> str:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return source
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


@dataclass(frozen=True, kw_only=True)
class TriedCandidate:
    """A candidate with its outcome, as the archive keeps it.

    `chosen` says why it was tried: `SEED`, `PROMISE`, `RANDOM`, `REPAIR`. `times_us` holds the median of
    each size, by its name. `code` is a digest of what it was compiled to; empty where that is not known.
    """

    candidate: Candidate
    outcome: Outcome
    forecast: Forecast | None  # of log2 speed-up against the seed, made before it was tried
    chosen: str
    times_us: Mapping[str, float] = field(default_factory=dict)
    code: str = ""

    @property
    def time_us(self) -> float | None:
        """The geometric mean over its sizes, by which an examiner tells what is the fastest; None where it failed."""
        if not isinstance(self.outcome, Measurement):
            return None
        return statistics.geometric_mean(self.times_us.values() or [self.outcome.median_us])


def fastest_first(tried: Sequence[TriedCandidate]) -> list[TriedCandidate]:
    """What ran, the fastest first."""
    return sorted((t for t in tried if t.time_us is not None), key=lambda t: t.time_us or 0.0)


def incumbent(tried: Sequence[TriedCandidate]) -> TriedCandidate | None:
    """The fastest so far; None where nothing ran."""
    return next(iter(fastest_first(tried)), None)
