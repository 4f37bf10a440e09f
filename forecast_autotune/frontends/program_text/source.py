"""The source of a function, without line numbers; where there is none, a digest of its bytecode."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
import textwrap
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...core.digest import digest
from ...core.syntax import parsed


@functools.lru_cache(maxsize=4096)
def source_of(code: types.CodeType) -> str:
    """A function's text, without its indentation; where there is none, its name and a digest of its bytecode.

    It is the text of the code that runs: a file may have been saved since it was loaded. Of a lambda it is the lambda
    alone, whatever else its line holds.
    """
    try:
        lines = lines_of(code.co_filename)
        if may_have_changed(code.co_filename):
            code = _in_file(code, lines)
        if code.co_name == "<lambda>":
            return _lambda_source(code, lines)
        # `inspect.getsource` would look for the module among all that are loaded, which loads lazy ones.
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
        return textwrap.dedent("".join(block)).rstrip()
    except (LookupError, SyntaxError, ValueError):
        parameters = ", ".join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        return f"def {code.co_name}({parameters}): ...  # bytecode {_bytecode_digest(code)[:12]}"


def lines_of(file: str) -> list[str]:
    """A file's lines as they are now.

    Raises:
        LookupError: there are none.
    """
    linecache.checkcache(file)
    if not (lines := linecache.getlines(file)):
        raise LookupError(f"{file} has no text")
    return lines


def _process_began_at() -> float:
    """Seconds since the epoch; where the system does not tell, when this module was loaded."""
    try:
        ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        age_s = 0.0
    return time.time() - age_s


# Once a process, and the child of a fork has its parent's: it runs code that the parent loaded.
PROCESS_BEGAN_AT = _process_began_at()


def may_have_changed(file: str) -> bool:
    """Whether a file may be another than the one that this process loaded its code from.

    A module's is not, if nobody has written it since the process began. Then its text is believed without compiling it:
    pytest's assertions and other import hooks compile something else than the text.
    """
    entry = linecache.cache.get(file, ())
    try:
        stat = os.stat(str(entry[3]) if len(entry) == 4 else file)
    except OSError:
        return False  # typed into a notebook, or from an archive
    # A file that is copied with its own time has the time of the copying as that of its last change.
    written_at = max(stat.st_mtime, stat.st_ctime)
    return written_at > PROCESS_BEGAN_AT or not _is_of_a_module(file)


@functools.lru_cache(maxsize=4096)
def _is_of_a_module(file: str) -> bool:
    """Whether a module was loaded from a file: code may also have been sent here by another process."""
    modules = [module for module in list(sys.modules.values()) if issubclass(type(module), types.ModuleType)]
    return any(vars(module).get("__file__") == file for module in modules)


def _in_file(code: types.CodeType, lines: Sequence[str]) -> types.CodeType:
    """The same code as the lines of its file compile to, wherever it now stands in them.

    Raises:
        LookupError: they do not compile to it.
        SyntaxError, ValueError: they do not compile.
    """
    wanted = _without_lines(code)
    same = [found for stripped, found in _codes_in("".join(lines)) if stripped == wanted]
    if not same:
        raise LookupError(f"{code.co_filename} no longer holds {code.co_name}")
    return min(same, key=lambda found: abs(found.co_firstlineno - code.co_firstlineno))


@functools.lru_cache(maxsize=16)
def _codes_in(text: str) -> list[tuple[types.CodeType, types.CodeType]]:
    """The code of each function in a file's text, without and with its lines."""
    module = parsed(lambda: compile(text, "<text>", "exec", dont_inherit=True))
    return [(_without_lines(code), code) for code in _nested(module)]


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _without_lines(code: types.CodeType) -> types.CodeType:
    """Code that is equal to other code if both do the same, wherever they stand."""
    constants = (_without_lines(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    flags = code.co_flags & 0xFFFF  # above are those of `from __future__`, which `exec` inherits
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_flags=flags, co_consts=tuple(constants))


def _lambda_source(code: types.CodeType, lines: list[str]) -> str:
    where = code.co_positions() if hasattr(code, "co_positions") else ()  # from Python 3.11 on
    spots = [spot for spot in where if None not in spot and spot[2:] != (0, 0)]
    if not spots:
        raise LookupError("it is not known where in its line it stands")
    (first, start), (last, end) = min((s[0], s[2]) for s in spots), max((s[1], s[3]) for s in spots)
    body = [line.encode() for line in lines[first - 1 : last]]
    body[-1] = body[-1][:end]
    body[0] = body[0][start:]
    text = " ".join(line.decode().strip() for line in body)
    return f"lambda {', '.join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])}: {text}"


def _bytecode_digest(code: types.CodeType) -> str:
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            constants.append(_bytecode_digest(constant))
        elif isinstance(constant, frozenset):  # whose order differs from process to process
            constants.append(str(sorted(map(repr, constant))))
        else:
            constants.append(repr(constant))
    names = (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    return digest(code.co_name, code.co_code.hex(), str(names), *constants)


@functools.lru_cache(maxsize=4096)
def compiled_source(source: str) -> types.CodeType | None:
    """The code of a function by its text: a kernel's text may have been exchanged."""
    try:
        module = compile(source, "<kernel>", "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return next((c for c in module.co_consts if isinstance(c, types.CodeType)), None)


def without_decorators(source: str) -> str:
    """A function's text from its `def` on."""
    start = re.search(r"^def\s", source, re.MULTILINE)
    return source[start.start() :] if start else source
