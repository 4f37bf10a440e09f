"""A program's source as a reader of one candidate needs it: the variant's own functions, shortened at their borders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.config import Config
from ..core.workload import Program
from ..features.knob_roles import VARIANT_KNOBS

NAMES_CHARS = 60  # of names in one line
MARGIN = 4  # columns by which source is indented

_MARK = re.compile(r"^// source = (\S+)$", re.MULTILINE)
_NAMED = re.compile(r"^(?:async )?(?:def|class) (\w+)", re.MULTILINE)
_ASSIGNED = re.compile(r"^(\w+) = ", re.MULTILINE)
_CALLED = re.compile(r"\b(?!if\b|for\b|while\b|__launch_bounds__)(\w+)\(")
_DEVICE = re.compile(r"__global__|__device__|\btl\.|#pragma omp|\bfor \(")
_NAMESPACE = re.compile(r"namespace \w* ?\{|\}\s*// namespace.*")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of source that is kept or left out as a whole: a function, a class, a constant, a block of C++."""

    name: str
    text: str


def variant_of(config: Config) -> str | None:
    """Which text a config runs; None where all run one."""
    for knob in VARIANT_KNOBS:
        if isinstance(name := config.knobs.get(knob), str):
            return name
    return None


def sections_of(program: Program, variant: str | None) -> list[Section]:
    """The pieces of a program that one variant consists of, nearest first; all of them if that cannot be told."""
    text = program.source
    if variant is not None and (marks := list(_MARK.finditer(text))):
        for mark, following in zip(marks, [*marks[1:], None], strict=True):
            if mark.group(1) == variant:
                text = text[mark.end() : following.start() if following else len(text)]
                break
    python = program.language not in ("c++", "cuda")
    sections = list(dict.fromkeys(_python_sections(text) if python else _brace_sections(text)))
    return _reached(sections, variant) if python and variant is not None else sections


def shortened(
    sections: Sequence[Section], most_chars: int, known: Sequence[Section] = ()
) -> tuple[str, tuple[Section, ...]]:
    """As many whole sections as fit, in their order, and which those are; what is left out, or was `known`, is named.

    What runs on the device goes before what only calls it.
    """
    again = [s for s in sections if s in known]
    fresh = [s for s in sections if s not in known]
    fits: set[Section] = set()
    room = most_chars
    for section in sorted(fresh, key=lambda s: not _DEVICE.search(s.text)):
        length = len(section.text) + (MARGIN + 1) * (section.text.count("\n") + 1)
        if length <= room:
            fits.add(section)
            room -= length
    kept = [s for s in fresh if s in fits]
    lines = [s.text for s in kept]
    if again:
        lines.append(f"(as in the reference: {_names(again)})")
    if len(kept) < len(fresh):
        lines.append(f"(left out for length: {_names([s for s in fresh if s not in fits])})")
    return "\n".join(lines), tuple(kept)


def _names(sections: Sequence[Section]) -> str:
    names = list(dict.fromkeys(s.name for s in sections))
    text = ", ".join(names[:4])
    more = f", {len(names) - 4} more" if len(names) > 4 else ""
    return (text if len(text) <= NAMES_CHARS else f"{text[: NAMES_CHARS - 1]}…") + more


def _python_sections(text: str) -> list[Section]:
    """Pieces that begin in the first column: functions with their decorators and comments above, classes, constants."""
    lines = text.splitlines()
    pieces: list[list[str]] = [[]]
    opened = False  # the piece has its first statement; what comes in the first column now begins another
    for line in lines:
        outside = bool(line) and not line[0].isspace() and line[0] not in ")]}"
        if outside and opened:
            pieces.append([])
            opened = False
        if outside and not line.startswith(("#", "@")):
            opened = True
        pieces[-1].append(line)
    return _named(pieces)


def _brace_sections(text: str) -> list[Section]:
    """Pieces between blank lines outside all braces; includes are left out, they say nothing of speed."""
    pieces: list[list[str]] = [[]]
    depth = 0
    for line in text.splitlines():
        if not line.strip() and depth <= 0:
            pieces.append([])
            continue
        if _NAMESPACE.fullmatch(line):  # what stands in it is as good as outside
            continue
        if not line.startswith("#include"):
            pieces[-1].append(line)
        depth += line.count("{") - line.count("}")
    return _named(pieces)


def _named(pieces: Sequence[Sequence[str]]) -> list[Section]:
    sections = []
    for piece in pieces:
        text = "\n".join(line.rstrip() for line in piece if line.strip())
        if not text:
            continue
        match = _NAMED.search(text) or _ASSIGNED.search(text) or _CALLED.search(text)
        sections.append(Section(match.group(1) if match else text.splitlines()[0][:40], text))
    return sections


def _reached(sections: Sequence[Section], variant: str) -> list[Section]:
    """What a variant calls, directly or not, nearest first; everything where the variant is not among the sections."""
    by_name: dict[str, list[Section]] = {}
    for section in sections:
        by_name.setdefault(section.name, []).append(section)
    wanted = [name for name in (variant, variant.rpartition(".")[2], variant.rstrip("0123456789")) if name in by_name]
    if not wanted:
        return list(sections)
    reached: list[Section] = []
    names = wanted[:1]
    for name in names:  # grows while it is walked
        for section in by_name[name]:
            reached.append(section)
            names += [w for w in dict.fromkeys(_WORD.findall(section.text)) if w in by_name and w not in names]
    return reached
