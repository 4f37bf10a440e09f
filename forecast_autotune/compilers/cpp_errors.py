"""Why a C++ or CUDA build failed: read from the compilers' log."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..processes.endings import blames_the_machine

_ERROR = re.compile(r"\b(fatal )?error\b\s*:|undefined reference|ld: ")
_OF_THE_SOURCE = re.compile(r"[:(]\d+\)?: (?:fatal )?error: ")  # a front end's, with the line that it is about
_OF_A_HEADER = re.compile(r"(/\S*/include/\S+?)[:(]\d+.*\berror\b")
_QUOTED_LINE = re.compile(r"^\s*\d*\s*\| ")  # source, as GCC and Clang show it below an error
_QUOTED_WORDS = re.compile(r"\u2018[^\u2019]*\u2019|'[^']*'|\"[^\"]*\"")


MAX_ERRORS = 3  # that are shown of a log


def first_errors(build_log: Path, message: str) -> str:
    """The first errors of a build with the lines of source that its compiler quotes; `message` where there are none."""
    try:
        lines = build_log.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    errors = [i for i, line in enumerate(lines) if _OF_THE_SOURCE.search(line)]
    shown: list[str] = []
    for first in errors[:MAX_ERRORS]:
        quoted = itertools.takewhile(_QUOTED_LINE.match, lines[first + 1 : first + 4])
        shown += [lines[first].rpartition("/")[2] if lines[first].startswith("/") else lines[first], *quoted]
    more = [f"and {len(errors) - MAX_ERRORS} more errors"] if len(errors) > MAX_ERRORS else []
    return "\n".join([*shown, *more, f"log: {build_log}"]) if errors else message


def macros_in_headers(build_log: Path, macros: Iterable[str], own: Sequence[str] = ()) -> list[str]:
    """Those macros that stand in a line of an installed header which the compiler quotes below an error there.

    A knob is a macro in all that is included: one named `K` is put in the place of every template's parameter `K`.

    Args:
        own: folders of the user's own headers, which may well name knobs.
    """
    try:
        lines = build_log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = ((i, _OF_A_HEADER.match(line)) for i, line in enumerate(lines))
    in_headers = (i for i, match in found if match and not any(Path(match[1]).is_relative_to(folder) for folder in own))
    quoted = "\n".join(
        line for i in in_headers for line in itertools.takewhile(_QUOTED_LINE.match, lines[i + 1 : i + 4])
    )
    return [macro for macro in macros if re.search(rf"\b{re.escape(macro)}\b", quoted)]


def complete_log(build_log: Path, message: str) -> None:
    """Add what a worker raised to its log, if no error of the source stands there: it may be gone before it wrote that."""
    with contextlib.suppress(OSError), build_log.open("a+", errors="replace") as log:
        log.seek(0)
        if not _OF_THE_SOURCE.search(log.read()):
            log.write(f"\n{message}\n")


def failure_reason(build_log: Path, message: str) -> tuple[str, bool]:
    """Why a build failed, with where the whole log is, and whether that is the variant's own doing.

    The reason is the first error in the source; else the first line about a full disk or a signal; else the first error of
    any tool; else the worker's own message. Without an error, or with one of the machine's, another try may succeed.
    """
    try:
        text = build_log.read_text(errors="replace")
    except OSError:
        text = ""
    lines, more = ([line.strip() for line in t.splitlines() if not _QUOTED_LINE.match(line)] for t in (text, message))
    errors = [line for line in lines if _ERROR.search(line)]
    in_source = [e for e in errors if _OF_THE_SOURCE.search(e) and not blames_the_machine(_QUOTED_WORDS.sub("", e))]
    blames = [line for line in (*lines, *more) if blames_the_machine(line)]
    reason = next(iter([*in_source, *blames, *errors]), message)
    return f"{reason[:500]} (log: {build_log})", bool(in_source) or (bool(errors) and not blames)
