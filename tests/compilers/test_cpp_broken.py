from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import forecast_autotune as fa
from forecast_autotune.compilers import cpp_compile
from forecast_autotune.compilers.cpp_broken import BrokenSources
from forecast_autotune.compilers.cpp_errors import complete_log, failure_reason, first_errors, macros_in_headers
from forecast_autotune.compilers.cpp_recipe import Recipe
from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Failure
from forecast_autotune.errors import BuildError

MISSING = "/builds/slot-0/main.cpp:8:62: error: expected ';' before '}' token (log: /builds/a/build.log)"


def failed(message: str = MISSING, **more: Any) -> Failure:
    return Failure(stage="compile", message=message, **more)


def broken(text: str = "int f() { return LANES }", **more: Any) -> BrokenSources:
    return BrokenSources(Recipe(name="m", cpp_sources=(text,), **more))


ONE, TWO = Config({"LANES": 1}), Config({"LANES": 2})


def test_two_variants_with_one_error_are_enough() -> None:
    sources = broken()
    assert not sources.breaks_all(ONE, failed())
    assert not sources.breaks_all(ONE, failed()), "the same variant again"
    assert sources.breaks_all(TWO, failed(MISSING.replace("slot-0", "slot-1").replace("/a/", "/b/")))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (failed(), failed(MISSING.replace("8:62", "9:1"))),
        (failed("main.cpp:8:1: error: size '-1' of array"), failed("main.cpp:8:1: error: size '-2' of array")),
        (failed("main.cpp:8:1: error: LANES is no type"),) * 2,
        (failed("main.cpp:8:1: error: static assertion failed: too wide"),) * 2,
        (failed("main.cpp:9:58: error: \u2018load\u2019 is not a member of \u2018Unit\u2019 {aka \u2018Scalar\u2019}"),)
        * 2,
        (failed("main.cpp:9:5: error: no matching function for call to \u2018f()\u2019"),) * 2,
        (failed(transient=True),) * 2,
        (Failure(stage="load", message="undefined symbol"), failed()),
        (Failure(stage="resources", message="too large"),) * 2,
        (Failure(stage="timeout", message="300 s"),) * 2,
    ],
)
def test_a_failure_that_a_knob_or_the_machine_may_cause_condemns_no_other(first: Failure, second: Failure) -> None:
    sources = broken()
    assert not sources.breaks_all(ONE, first)
    assert not sources.breaks_all(TWO, second)


def test_nothing_is_condemned_once_a_variant_was_built() -> None:
    sources = broken()
    sources.works()
    assert not sources.breaks_all(ONE, failed())
    assert not sources.breaks_all(TWO, failed())


@pytest.mark.parametrize(
    ("text", "condemned"),
    [
        ("#if LANES == 4\nint f();\n#else\noops\n#endif", False),
        ("#define WIDE (LANES * 2)\n#define VERY \\\n  WIDE\n#if 1\n#elif VERY > 8\n#endif", False),
        ("#ifndef LANES\n#define LANES 1\n#endif\n#if !defined(LANES) || __GNUC__ > 3\n#endif", True),
        ("#define WIDE (LANES * 2)\nint f() { return WIDE }", True),
    ],
)
def test_conditions_that_ask_for_a_knob_let_every_variant_be_tried(text: str, condemned: bool) -> None:
    sources = broken(text)
    sources.breaks_all(ONE, failed())
    assert sources.breaks_all(TWO, failed()) == condemned


def test_a_condition_in_a_header_counts(tmp_path: Path) -> None:
    (tmp_path / "wide.h").write_text("#if LANES > 1\n#endif\n")
    sources = broken('#include "wide.h"\n', arguments={"extra_include_paths": [str(tmp_path)]})
    sources.breaks_all(ONE, failed())
    assert not sources.breaks_all(TWO, failed())


def test_a_binding_without_knobs_is_condemned_by_one_variant() -> None:
    apart = {"kernel_sources": ("float f() { return LANES; }",)}
    assert broken("oops", **apart).breaks_all(ONE, failed())
    assert not broken("oops LANES", **apart).breaks_all(ONE, failed()), "the binding has a knob"
    assert not broken("oops", **apart).breaks_all(ONE, failed("kernel_0.cpp:1:2: error: oops")), "the kernel fails"
    assert not broken("oops").breaks_all(ONE, failed()), "there is no kernel apart"


def test_of_several_sources_two_have_to_fail() -> None:
    recipe = Recipe(name="m", cpp_sources={"a": "oops", "b": "int f();"})
    sources = BrokenSources(recipe)
    a1, a2, b1 = (Config({"source": s, "LANES": n}) for s, n in (("a", 1), ("a", 2), ("b", 1)))
    assert not sources.breaks_all(a1, failed())
    assert not sources.breaks_all(a2, failed())
    assert sources.breaks_all(b1, failed())


def test_a_value_of_a_knob_in_the_error_lets_every_variant_be_tried() -> None:
    sources, error = broken(), failed("c++: error: unrecognized command-line option '-fodd'")
    configs = [Config({"OPT": flag, "LANES": n}) for n, flag in enumerate(("-fodd", "-fodd -O2"))]
    assert [sources.breaks_all(config, error) for config in configs] == [False, False]


def test_the_first_errors_are_shown_with_the_lines_that_are_quoted(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    quoted = "    5 |   return s\n      |           ^\n      |           ;\n"
    error = "{}main.cpp:5:11: error: expected ';'\n" + quoted
    log.write_text("c++ -c main.cpp\n" + error.format("/builds/slot-0/") + "note: nothing\n" + error.format("") * 4)
    assert first_errors(log, "no") == error.format("") * 3 + f"and 2 more errors\nlog: {log}"
    assert first_errors(tmp_path / "none.log", "what the worker said") == "what the worker said"


def test_a_knob_that_a_header_has_as_a_name_of_its_own_is_named(tmp_path: Path) -> None:
    installed = tmp_path / "include" / "pair.h"
    installed.parent.mkdir()
    installed.write_text("template <typename K, typename V>\nstruct Pair { K first; V second; };\n")
    source, log = tmp_path / "main.cpp", tmp_path / "build.log"
    for text, named in (("Pair<int, float> p;", ["K"]), ("int f( { return K; }", [])):
        source.write_text(f"#include <pair.h>\n{text}\n" if named else text)
        done = subprocess.run(
            ["c++", "-c", f"-isystem{installed.parent}", "-DK=4", "-DLANES=2", str(source), "-o", str(tmp_path / "o")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode
        log.write_text(done.stderr)
        assert macros_in_headers(log, ["K", "LANES"]) == named
    assert macros_in_headers(tmp_path / "none.log", ["K"]) == []


def test_a_users_own_header_and_a_warning_are_no_installed_headers_error(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    quoted = "    5 |   int unused = BLOCK;\n"
    log.write_text(
        f"/usr/include/sum.h:5:7: warning: unused variable\n{quoted}/me/include/sum.h:5:7: error: oops\n{quoted}"
    )
    assert macros_in_headers(log, ["BLOCK"], own=["/me/include"]) == []
    assert macros_in_headers(log, ["BLOCK"], own=["/you/include"]) == ["BLOCK"]


def test_what_a_worker_had_no_time_to_log_is_added_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("c++ -c main.cpp\n")
    for _ in range(2):
        complete_log(log, "Error building extension 'm'\n/x/main.cpp:5:11: error: oops")
    assert log.read_text().count("error: oops") == 1
    assert failure_reason(log, "no")[1], "the variant's own doing, so it is not built once more"
    complete_log(tmp_path / "no" / "folder", "nothing")


COMPILER = """#!/bin/sh
case "$*" in
*--version*) echo fake 1.0; exit;;
*main.cpp*) echo main >> {calls}; echo "$PWD/main.cpp:3:1: error: expected a type" >&2; echo "    3 | oops" >&2; exit 1;;
*) echo other >> {calls}; while [ "$1" != -o ]; do shift; done; : > "$2"; : > "${{2%.o}}.d";;
esac
"""


@pytest.mark.parametrize("kernel_sources", [None, "float f() { return LANES; }"])
def test_a_broken_module_raises_at_its_first_call_after_two_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_sources: str | None
) -> None:
    calls, compiler = tmp_path / "calls", tmp_path / "compiler"
    compiler.write_text(COMPILER.format(calls=calls))
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("FORECAST_AUTOTUNE_DIR", str(tmp_path / "store"))
    monkeypatch.setattr(cpp_compile, "workers_that_fit", lambda size: 2)
    space = [{"LANES": n} for n in range(1, 9)]
    module = fa.load_inline("broken", "int f() { oops }", functions="f", space=space, kernel_sources=kernel_sources)
    with pytest.raises(RuntimeError) as raised:  # as torch's own
        module.f()
    assert isinstance(raised.value, BuildError)
    said, error = str(raised.value), "main.cpp:3:1: error: expected a type\n    3 | oops\nlog: "
    assert said.startswith(f"broken builds with no config, for no knob touches why:\n{error}")
    assert calls.read_text().count("main") <= 4, "of eight: two, and what two workers began until both were read"
    monkeypatch.setenv("FORECAST_AUTOTUNE_MODE", "first")
    again = fa.load_inline("broken", "int f() { oops }", functions="f", space=space)
    with pytest.raises(BuildError, match=f"broken does not build with LANES=1:\n{error}"):
        again.f()
