"""Why a C++ or CUDA build failed: read from the compilers' log."""

from __future__ import annotations

import re
from pathlib import Path

from ..processes.endings import blames_the_machine

_ERROR = re.compile(r"\b(fatal )?error\b\s*:|undefined reference|ld: ")
_OF_THE_SOURCE = re.compile(r"[:(]\d+\)?: (?:fatal )?error: ")  # a front end's, with the line that it is about
_QUOTED_LINE = re.compile(r"^\s*\d*\s*\| ")  # source, as GCC and Clang show it below an error
_QUOTED_WORDS = re.compile(r"\u2018[^\u2019]*\u2019|'[^']*'|\"[^\"]*\"")


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
