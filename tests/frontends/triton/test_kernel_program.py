# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""What a kernel's program is: its text, that of what it calls, and the constants it reads."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forecast_autotune as fa
from forecast_autotune.core.job import Job
from forecast_autotune.core.space import Space
from forecast_autotune.store.queries import StoreFile
from forecast_autotune.store.sqlite import SqliteStore

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from forecast_autotune.frontends.triton.kernel_program import plain_value, program_of  # noqa: E402

SAMPLES = Path(__file__).parents[2] / "stores"
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


def test_kernels_of_one_name_differ_by_source_and_not_by_position() -> None:
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


KERNEL = """
import triton, triton.language as tl
{imports}
{above}
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    {body}
    tl.store(x + i, v, mask=i < n)
"""
JIT = "import triton, triton.language as tl\n@triton.jit\ndef f(v): return v * @\n"
EDITS: dict[str, dict[str, str]] = {
    "its own line": {"body": "v = v * @"},
    "a helper": {"lib.py": JIT, "imports": "from lib import f", "body": "v = f(v)"},
    "a helper under another name": {"lib.py": JIT, "imports": "from lib import f as g", "body": "v = g(v)"},
    "a helper in a package": {
        "pkg/__init__.py": "",
        "pkg/ops.py": JIT,
        "imports": "import pkg.ops",
        "body": "v = pkg.ops.f(v)",
    },
    "a helper that a helper calls": {
        "lib.py": JIT + "@triton.jit\ndef g(v): return f(v)\n",
        "imports": "import lib",
        "body": "v = lib.g(v)",
    },
    "which of two helpers": {
        "lib.py": JIT + "@triton.jit\ndef f2(v): return v\ng = (None, f, f2)[@]\n",
        "imports": "from lib import g",
        "body": "v = g(v)",
    },
    "a function of constants": {
        "lib.py": "import triton\n@triton.constexpr_function\ndef f(v): return v * @\n",
        "imports": "from lib import f",
        "body": "v = v * f(2)",
    },
    "a dtype": {"above": "ACC = tl.constexpr([None, tl.float32, tl.float16][@])", "body": "v = v.to(ACC)"},
    "a tuple": {"above": "PAIR = tl.constexpr((@, 2))", "body": "v = v * PAIR[0]"},
    "a number": {"above": "FACTOR = tl.constexpr(@)", "body": "v = v * FACTOR"},
    "a helper that a class holds": {
        "lib.py": "import triton\nimport plain\nclass A:\n    f = triton.jit(plain.f)\n",
        "plain.py": "def f(v):\n    return v * @\n",
        "imports": "from lib import A",
        "body": "v = A.f(v)",
    },
    "a helper's inlining": {
        "lib.py": "import triton\n@triton.jit(noinline=@ == 2)\ndef f(v): return v\n",
        "imports": "from lib import f",
        "body": "v = f(v)",
    },
}
NO_EDITS: dict[str, dict[str, str]] = {
    "a global named like a local": {"above": "i = v = n = @"},
    "a global that nothing reads": {"above": "UNREAD = tl.constexpr(@)"},
    "an attribute named like a global": {"above": "load = program_id = @"},
    "a helper that nothing calls": {"lib.py": JIT, "imports": "import lib"},
}


def versions(folder: Path, patch: pytest.MonkeyPatch, parts: Mapping[str, str]) -> list[Any]:
    """A kernel whose files hold 1 for each @, and the same with 2."""
    kernels = []
    for version in ("1", "2"):
        text = KERNEL.format(**{"imports": "", "above": "", "body": "", **parts})
        files = {"kern.py": text, **{name: part for name, part in parts.items() if name.endswith(".py")}}
        for name, part in files.items():
            (folder / version / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / version / name).write_text(re.sub("@(?!triton)", version, part))
        with patch.context() as own:
            own.syspath_prepend(folder / version)
            before = set(sys.modules)
            kernels.append(importlib.import_module("kern").kernel)
            for name in set(sys.modules) - before:
                del sys.modules[name]
    return kernels


@pytest.mark.parametrize("edited", EDITS)
def test_its_digest_changes_when_tritons_cache_key_does(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = versions(tmp_path, monkeypatch, EDITS[edited])
    assert program_of(one).digest != program_of(other).digest
    assert program_of(one).digest == program_of(one).digest
    assert one.cache_key != other.cache_key


@pytest.mark.parametrize("edited", NO_EDITS)
def test_its_digest_stays_while_tritons_cache_key_does(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = versions(tmp_path, monkeypatch, NO_EDITS[edited])
    assert program_of(one).digest == program_of(other).digest
    assert one.cache_key == other.cache_key


def test_a_line_above_changes_tritons_cache_key_but_not_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = versions(tmp_path / "one", monkeypatch, EDITS["a helper"])
    parts = {**EDITS["a helper"], "above": "# a line", "lib.py": f"\n# another\n{JIT}"}
    moved, _ = versions(tmp_path / "moved", monkeypatch, parts)
    assert program_of(one).digest == program_of(moved).digest
    assert one.cache_key != moved.cache_key


def test_reading_a_kernel_does_not_freeze_the_globals_of_its_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, _ = versions(tmp_path, monkeypatch, EDITS["a number"])
    before = program_of(kernel).digest
    assert (kernel.hash, kernel.used_global_vals) == (None, {})
    kernel.fn.__globals__["FACTOR"] = tl.constexpr(7)
    assert program_of(kernel).digest != before


def under_heuristics(rows: int, hook: Any = None) -> Any:
    @fa.autotune(configs=[triton.Config({}, num_warps=w, pre_hook=hook) for w in (1, 2)], key=["n"])
    @triton.heuristics({"BLOCK": lambda arguments: rows})
    @triton.jit
    def under(x_ptr, n, BLOCK: tl.constexpr):
        tl.store(x_ptr, n)

    return under


def test_heuristics_and_hooks_are_part_of_the_program() -> None:
    def hook(named: dict[str, Any]) -> None:
        named["x_ptr"].zero_()

    digests = [program_of(under_heuristics(*made)).digest for made in ((64,), (128,), (64, hook))]
    assert len(set(digests)) == 3
    assert program_of(under_heuristics(64)).digest == digests[0]
    assert "lambda arguments: rows" in program_of(under_heuristics(64)).source


def test_functions_as_knobs_and_keys_go_by_their_code() -> None:
    def around(g: Any) -> Any:
        @triton.jit
        def f(v):
            return g(v)

        return f

    @triton.jit
    def once(v):
        return v

    first, same, other = plain_value(around(twice)), plain_value(around(twice)), plain_value(around(once))
    assert first == same != other
    assert str(first).partition(" ")[0] == str(other).partition(" ")[0]
    assert plain_value((around(twice), 1)) == plain_value((around(twice), 1)) != plain_value((around(once), 1))
    assert plain_value(partial(around(twice), x=1)) == plain_value(partial(around(twice), x=1))
    assert len({plain_value(partial(made, x=x)) for made in (around(twice), around(once)) for x in (1, 2)}) == 4
    assert (plain_value((1, "a")), plain_value([1.5])) == ("(1, 'a')", "[1.5]")
    assert (plain_value(tl.float16), plain_value(torch.float16)) == ("fp16", "torch.float16")


def test_an_object_without_a_text_goes_by_its_contents_not_its_address() -> None:
    class Rounding:
        def __init__(self, digits: int) -> None:
            self.digits = digits

    one, same, other = plain_value(Rounding(1)), plain_value((Rounding(1),)), plain_value(Rounding(2))
    assert same == f"('{one}',)"
    assert one != other
    assert "Rounding" in str(one)


@dataclass(frozen=True)
class Options:
    activation: Any
    n: int = 3


def test_dataclasses_and_containers_have_the_same_text_in_every_process() -> None:
    def made(factor: int) -> Any:
        return lambda v: v * factor

    assert plain_value(Options("relu")) == "Options(activation='relu', n=3)"
    assert plain_value(Options(made(2))) == plain_value(Options(made(2))) != plain_value(Options(made(3)))
    assert plain_value({"a": made(2)}) == plain_value({"a": made(2)}) != plain_value({"a": made(3)})
    assert plain_value(frozenset({"c", "a", "b"})) == "frozenset({'a', 'b', 'c'})"
    assert plain_value({"a": 1, "b": (2, "c")}) == """{'a': 1, 'b': "(2, 'c')"}"""


def test_what_an_older_version_decided_of_another_digest_is_a_prior(own_settings: Path, tmp_path: Path) -> None:
    from rehearsed import own_triton_cache
    from stores.older_program import doubled, tune

    own_settings.mkdir()
    shutil.copy(SAMPLES / "programs" / "older_program.sqlite3", own_settings / "store.sqlite3")
    with SqliteStore(own_settings) as store, own_triton_cache(tmp_path):
        (older,) = StoreFile(own_settings).decisions()
        made = tune()
        (now,) = (d for d in StoreFile(own_settings).decisions() if d.decision.run == made.run)
        assert now.tuning_key.workload.program.name == older.tuning_key.workload.program.name
        assert now.tuning_key.workload.program.digest != older.tuning_key.workload.program.digest
        assert made.run != older.decision.run, "decided again"
        assert made.tried == len(doubled.configs)
        job = Job(
            workload=now.tuning_key.workload,
            space=Space([made.config]),
            hardware=now.tuning_key.hardware,
            toolchain=now.tuning_key.toolchain,
        )
        (recording,) = store.related_recordings(job)
        assert recording.workload == older.tuning_key.workload
        assert len(recording.outcomes) == 3
