"""Python's parser beside another thread that parses, which CPython 3.11 may refuse."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from forecast_autotune.core.syntax import parsed

TEXT = "\n".join(f"x{n} = f(a[{n}], {n} * (b + {n}))" for n in range(200))

mixes = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="a fault of CPython 3.11")


@contextmanager
def parsed_in_between(times: int) -> Iterator[None]:
    """Within so many of the parses that follow something else is parsed, as by a thread that a collection lets in."""
    left = times

    def parse_another(phase: str, _: object) -> None:
        nonlocal left
        if phase == "stop" and left and sys._getframe(1).f_code is ast.parse.__code__:
            left -= 1
            gc.set_threshold(0)  # once in a parse
            ast.parse("y = 1")

    before = gc.get_threshold()
    gc.callbacks.append(parse_another)
    try:
        gc.set_threshold(10)
        yield
    finally:
        gc.callbacks.remove(parse_another)
        gc.set_threshold(*before)


@mixes
def test_cpython_refuses_a_parse_that_another_interrupts() -> None:
    with pytest.raises(SystemError, match="recursion depth mismatch"), parsed_in_between(1):
        ast.parse(TEXT)


def test_a_parse_that_another_interrupts_is_tried_again() -> None:
    with parsed_in_between(1):
        assert len(parsed(lambda: ast.parse(TEXT)).body) == 200


def test_a_parse_that_is_always_refused_is_the_callers() -> None:
    tries = []

    def refused() -> None:
        tries.append(1)
        raise SystemError("AST constructor recursion depth mismatch (before=18, after=9)")

    with pytest.raises(SystemError, match="recursion depth mismatch"):
        parsed(refused, tries=4)
    assert len(tries) == 4


def test_what_is_no_program_is_tried_once() -> None:
    tries = []

    def wrong() -> ast.Module:
        tries.append(1)
        return ast.parse("x =")

    with pytest.raises(SyntaxError):
        parsed(wrong)
    assert tries == [1]


def test_another_error_of_the_system_is_the_callers() -> None:
    def broken() -> None:
        raise SystemError("bad argument to internal function")

    with pytest.raises(SystemError, match="bad argument"):
        parsed(broken)


def halved(n: int) -> int:
    return n // 2


@mixes
def test_triton_parses_a_kernel_that_another_parse_interrupts() -> None:
    import triton
    from rehearsed import scale

    from forecast_autotune.frontends.triton import autotuner  # noqa: F401  (it is what mends Triton's parse)

    for function in (scale, triton.constexpr_function(halved)):
        with pytest.raises(SystemError, match="recursion depth mismatch"), parsed_in_between(1):
            type(function).parse.__wrapped__(function)
        with parsed_in_between(1):
            assert function.parse().body[0].name in ("scale", "halved")
