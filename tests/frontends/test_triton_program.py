# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What a kernel's program is: its text, that of what it calls, and the constants it reads."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from forecast_autotune.frontends.triton_program import program_of  # noqa: E402

FACTOR: tl.constexpr = tl.constexpr(3)


@triton.jit
def twice(x):
    return x + x


@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, twice(tl.load(x_ptr + at)) * FACTOR, mask=at < tl.cdiv(n, 2))


def of(body: str) -> Any:
    """A kernel defined elsewhere, by another body."""
    import linecache

    text = f"import triton, triton.language as tl\n\n@triton.jit\ndef f(x_ptr, n, BLOCK: tl.constexpr):\n{body}"
    name = f"<kernel {hash(body)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "made"}
    exec(compile(text, name, "exec"), scope)  # noqa: S102
    return scope["f"]


def test_it_holds_the_kernel_what_it_calls_and_the_constants_it_reads() -> None:
    program = program_of(kernel)
    assert program.language == "triton"
    assert program.name.endswith(".kernel")
    assert "FACTOR = 3" in program.source
    assert "def twice(x)" in program.source
    assert "def kernel(" in program.source
    assert "def cdiv" not in program.source, "Triton's own belongs to the toolchain"


def test_its_digest_changes_with_the_code_it_calls_and_the_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program_of(kernel).digest
    assert program_of(kernel).digest == before
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "FACTOR", tl.constexpr(4))
        assert program_of(kernel).digest != before

    @triton.jit
    def twice(x):
        return 2 * x

    monkeypatch.setitem(globals(), "twice", twice)
    assert program_of(kernel).digest != before


def test_two_kernels_of_one_name_are_two_programs_and_where_they_stand_does_not_matter() -> None:
    one, other = of("    tl.store(x_ptr, n)\n"), of("    tl.store(x_ptr, n + 1)\n")
    moved = of("\n\n    tl.store(x_ptr, n)\n")
    assert program_of(one).name == program_of(other).name
    assert program_of(one).digest != program_of(other).digest
    assert program_of(one).digest == program_of(moved).digest


def test_a_kernel_in_the_interpreter_and_a_foreign_one_are_programs_too() -> None:
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True

        @triton.jit
        def interpreted(x_ptr, BLOCK: tl.constexpr):
            tl.store(x_ptr, BLOCK)

    assert "tl.store(x_ptr, BLOCK)" in program_of(interpreted).source

    class Foreign:
        """Runs, and says no more of itself."""

    assert "Foreign" in program_of(Foreign()).name
