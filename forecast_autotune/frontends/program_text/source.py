"""The source of a function, without line numbers; where there is none, a digest of its bytecode."""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import textwrap
import types

from ...core.digest import digest


@functools.lru_cache(maxsize=4096)
def source_of(code: types.CodeType) -> str:
    """A function's text, without its indentation; where there is none, its name and a digest of its bytecode.

    Of a lambda it is the lambda alone, whatever else its line holds.
    """
    try:
        lines = lines_of(code.co_filename)
        if code.co_name == "<lambda>":
            return _lambda_source(code, lines)
        # `inspect.getsource` would look for the module among all that are loaded, which loads lazy ones.
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
        return textwrap.dedent("".join(block)).rstrip()
    except (LookupError, SyntaxError):
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
