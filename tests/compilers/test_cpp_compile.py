"""Building variants with real compilers."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch
import torch.utils.cpp_extension
from contracts.compiler_contract import CompilerContract
from toy import GOOD, KERNEL, Toy

import forecast_autotune as fa
from forecast_autotune.compilers import cpp_builds
from forecast_autotune.compilers.cpp_build import BEGUN, _arguments_of_torch, _drop_what_was_cut_off
from forecast_autotune.compilers.cpp_compile import CppCompiler
from forecast_autotune.compilers.cpp_errors import failure_reason
from forecast_autotune.compilers.cpp_headers import changed, drop_outdated_objects, header_digests, keep_headers
from forecast_autotune.compilers.cpp_recipe import Recipe
from forecast_autotune.compilers.private_folders import own_root
from forecast_autotune.core.config import Config
from forecast_autotune.core.hardware import Hardware
from forecast_autotune.core.outcome import Evidence, Failure
from forecast_autotune.core.space import Space
from forecast_autotune.errors import BuildError, InvalidInputError
from forecast_autotune.measure.probe import detect_cpp_toolchain, detect_hardware
from forecast_autotune.processes.extension import Extension
from forecast_autotune.processes.worker import Worker

CPU = Hardware(kind="cpu", name="x")

ANSWER = 'extern "C" int answer() { return ANSWER; }'

OPERATORS = r"""
#include <torch/library.h>
#include <ATen/core/Tensor.h>
int64_t knob(const at::Tensor& x) { return KNOB; }
TORCH_LIBRARY(toy_operators, m) { m.def("knob(Tensor x) -> int"); m.impl("knob", c10::kCPU, &knob); }
"""


class TestCppCompiler(CompilerContract):
    @pytest.fixture(autouse=True)
    def _toy(self, toy: Toy) -> None:
        self.toy = toy

    def make_compiler(self) -> CppCompiler:
        return self.toy.compiler()

    def good(self) -> list[Config]:
        return [self.toy.config("plain"), self.toy.config("slow")]

    def unbuildable(self) -> Config:
        return self.toy.config("does_not_compile")

    @pytest.mark.thorough  # an abandoned binding is compiled once more: half a minute
    def test_the_rest_can_be_abandoned_and_built_later(self) -> None:
        super().test_the_rest_can_be_abandoned_and_built_later()


def test_variants_are_built_side_by_side_and_only_once(toy: Toy) -> None:
    compiler = toy.compiler()
    configs = [toy.config(mode) for mode in GOOD]
    first = dict(compiler.compile(configs))
    assert set(first) == set(configs)
    assert all(isinstance(e, Evidence) and e.code_bytes and e.compile_s > 0 for e in first.values())
    again = dict(toy.compiler().compile(configs))
    assert again == first, "a second compiler finds the builds of the first, with the seconds that they took"


def test_a_second_variant_compiles_its_kernel_alone(toy: Toy) -> None:
    list(toy.compiler().compile([toy.config("plain")]))
    slot = next(toy.builds.glob("toy/slot-*"))
    binding = (slot / "main.o").stat().st_mtime_ns
    ((_, evidence),) = toy.compiler().compile([Config({"MODE": "plain", "UNUSED": time.time_ns()})])
    assert isinstance(evidence, Evidence)
    assert (slot / "main.o").stat().st_mtime_ns == binding


def test_an_edited_kernel_is_linked_to_the_binding_that_is_there(toy: Toy) -> None:
    first = toy.compiler()
    list(first.compile([toy.config("plain")]))
    binding = (first.builds.slot(0) / "main.o").stat().st_mtime_ns
    edited = replace(first.recipe, kernel_sources=(f"{KERNEL}\n// edited at {time.time_ns()}\n",))
    compiler = CppCompiler(edited, first.toolchain, first.hardware, toy.builds)
    ((_, evidence),) = compiler.compile([toy.config("plain")])
    assert isinstance(evidence, Evidence)
    assert compiler.extension(toy.config("plain")).path != first.extension(toy.config("plain")).path
    assert (compiler.builds.slot(0) / "main.o").stat().st_mtime_ns == binding


def test_a_variant_that_does_not_compile_reports_the_error_and_the_log(toy: Toy) -> None:
    ((_, failure),) = toy.compiler().compile([toy.config("does_not_compile")])
    assert isinstance(failure, Failure)
    assert failure.stage == "compile"
    assert "error: " in failure.message
    log = Path(failure.message.partition("(log: ")[2].rstrip(")"))
    assert "this is no C++" in log.read_text()


def test_a_build_that_takes_too_long_is_killed_with_its_compiler(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    compiler = tmp_path / "slow_compiler"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) echo slow 1.0;; *) echo $$ > {pid_file}; exec sleep 300;; esac\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    for timeout_s in (1.0, 5.0, 25.0):  # on a busy machine a second may be over before the compiler is called
        ((_, failure),) = toy.compiler(timeout_s=timeout_s).compile([toy.config("plain")])
        assert isinstance(failure, Failure)
        assert failure.stage == "timeout"
        if pid_file.exists():
            break
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_abandoning_the_iterator_stops_the_builds(toy: Toy) -> None:
    compiler = toy.compiler()
    configs = [Config({"MODE": "plain", "NUMBER": time.time_ns() + i}) for i in range(40)]
    building = compiler.compile(configs)
    next(building)
    building.close()
    assert sum(compiler.is_built(config) for config in configs) < 10


def test_a_build_stands_still_while_something_is_timed_and_goes_on_after(toy: Toy) -> None:
    compiler = toy.compiler()
    config = Config({"MODE": "plain", "NUMBER": time.time_ns()})
    with compiler.paused():
        until = time.monotonic() + 1.0
        began = list(compiler.compile([config], on_wait=lambda _waited_s: max(0.0, until - time.monotonic())))
        assert not began, "nothing is begun either"
        assert not compiler.is_built(config)
    assert isinstance(dict(compiler.compile([config]))[config], Evidence)


def test_a_lock_that_torch_left_behind_does_not_hang_the_next_build(toy: Toy) -> None:
    list(toy.compiler().compile([toy.config("plain")]))
    (next(toy.builds.glob("toy/slot-*")) / "lock").touch()
    ((_, evidence),) = toy.compiler().compile([Config({"MODE": "plain", "NUMBER": time.time_ns()})])
    assert isinstance(evidence, Evidence)


def test_leftovers_of_a_killed_build_are_not_taken_for_a_result(tmp_path: Path) -> None:
    (tmp_path / "main.o").write_text("whole")
    _drop_what_was_cut_off(tmp_path)
    (tmp_path / "cuda.o").write_text("cut sh")  # and here it is killed
    _drop_what_was_cut_off(tmp_path)
    assert (tmp_path / "main.o").exists()
    assert not (tmp_path / "cuda.o").exists()
    (tmp_path / "main.o").write_text("another variant's")
    _drop_what_was_cut_off(tmp_path)
    assert not (tmp_path / "main.o").exists()
    (tmp_path / "main.o").write_text("whole")
    (tmp_path / BEGUN).write_text('{"main.o": [1')  # killed while this was written
    _drop_what_was_cut_off(tmp_path)
    assert not (tmp_path / "main.o").exists()
    (tmp_path / BEGUN).unlink()  # it came to its end
    (tmp_path / "main.o").write_text("whole")
    _drop_what_was_cut_off(tmp_path)
    assert (tmp_path / "main.o").exists()


def test_a_build_killed_half_way_is_built_again(toy: Toy) -> None:
    number = time.time_ns()
    script = f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
        from pathlib import Path
        from forecast_autotune.core.config import Config
        from toy import Toy
        print("ready", flush=True)
        list(Toy(Path({str(toy.builds)!r})).compiler().compile([Config({{"MODE": "plain", "NUMBER": {number}}})]))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == b"ready\n"
        folder_count = len(list(toy.builds.glob("toy/*")))
        for _ in range(400):
            if len(list(toy.builds.glob("toy/*"))) > folder_count:
                break
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    compiler = toy.compiler()
    config = Config({"MODE": "plain", "NUMBER": number})
    ((_, evidence),) = compiler.compile([config])
    assert isinstance(evidence, Evidence)
    assert compiler.extension(config).function("mode")() == 0


def test_a_library_that_others_may_write_to_is_built_again(toy: Toy) -> None:
    compiler = toy.compiler()
    config = Config({"MODE": "plain", "NUMBER": time.time_ns()})
    library = Path(compiler.extension(config).path)
    before = library.stat().st_ino
    library.chmod(0o777)
    assert Path(compiler.extension(config).path).stat().st_ino != before


@pytest.mark.parametrize(("mode", "used"), [(0o775, True), (0o757, False)])
def test_a_group_writable_build_folder_is_closed_to_the_group_and_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, used: bool
) -> None:
    tmp_path.chmod(mode)
    assert (own_root(tmp_path, "build_directory") == tmp_path) == used
    assert tmp_path.stat().st_mode & 0o777 == (0o755 if used else mode)
    assert ("let build_directory name another folder" in caplog.text) != used


def test_where_files_cannot_be_locked_it_is_built_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network filesystem mounted without locks: there is no telling who else builds there."""
    lock, refused = fcntl.flock, tmp_path / "builds"

    def flock(file: int, operation: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{file}")).is_relative_to(refused):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    root = own_root(refused / "toy", "FORECAST_AUTOTUNE_DIR")
    assert not root.is_relative_to(refused)
    assert root.stat().st_mode & 0o777 == 0o700
    assert "locks no files (Function not implemented)" in caplog.text
    shutil.rmtree(root)


def test_where_nothing_may_be_written_it_is_built_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path.mkdir

    def mkdir(self: Path, *arguments: Any, **more: Any) -> None:
        if self.is_relative_to(tmp_path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        made(self, *arguments, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    root = own_root(tmp_path / "home" / "toy", "FORECAST_AUTOTUNE_DIR")
    assert not root.is_relative_to(tmp_path)
    assert "may not write there (Permission denied)" in caplog.text
    assert "let FORECAST_AUTOTUNE_DIR name another folder" in caplog.text
    shutil.rmtree(root)


def without_headers(folder: Path) -> CppCompiler:
    """What is compiled in a second, binding and all."""
    arguments = {"no_implicit_headers": True, "build_directory": str(folder)}
    sources = ('extern "C" int knob() { return KNOB; }',)
    recipe = Recipe(name="plain", cpp_sources=sources, arguments=arguments, is_python_module=False)
    return CppCompiler(recipe, detect_cpp_toolchain(recipe.flags), detect_hardware(), folder)


def test_who_has_builds_paused_builds_nothing_and_waits_for_nothing(tmp_path: Path) -> None:
    compiler, broken = without_headers(tmp_path), Config({"KNOB": "no_such_name"})
    with compiler.paused(), pytest.raises(BuildError, match="is not built with KNOB=1 any more"):
        compiler.extension(Config({"KNOB": 1}))
    for _, result in compiler.compile([broken]):
        assert isinstance(result, Failure)
        with compiler.paused(), pytest.raises(BuildError, match=r"no_such_name.* was not declared"):
            compiler.extension(broken)
    assert Path(compiler.extension(Config({"KNOB": 1})).path).exists()


def test_flags_may_hold_several_words_as_torch_takes_them(tmp_path: Path) -> None:
    given = without_headers(tmp_path)
    kernel = 'extern "C" const char* answer() { static_assert(ONE + KNOB == 3); return TEXT; }'
    arguments = {**given.recipe.arguments, "extra_cflags": ["-O2 -DONE=1", "-DTEXT='\"a b\"'"]}
    given.recipe = replace(given.recipe, cpp_sources=("",), kernel_sources=(kernel,), arguments=arguments)
    answer = ctypes.CDLL(given.extension(Config({"KNOB": 2})).path).answer
    answer.restype = ctypes.c_char_p
    assert answer() == b"a b"


def test_what_the_group_may_have_put_into_a_slot_is_not_built_with(tmp_path: Path) -> None:
    compiler = without_headers(tmp_path)
    assert Path(compiler.extension(Config({"KNOB": 1})).path).name == "plain.so"
    slot = compiler.builds.slot(0)
    objects = {path.name for path in slot.iterdir()}
    (slot / "planted.so").write_bytes(b"theirs")
    slot.chmod(0o775)
    built = Path(compiler.extension(Config({"KNOB": 2})).path)
    assert built.name == "plain.so"
    assert {path.name for path in slot.iterdir()} == objects
    assert slot.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="files of two users can be made by root alone")
def test_nothing_is_built_in_somebody_elses_slot(tmp_path: Path) -> None:
    compiler = without_headers(tmp_path)
    compiler.builds.slot(0).mkdir(parents=True)
    os.chown(compiler.builds.slot(0), 65534, -1)
    ((_, found),) = compiler.compile([Config({"KNOB": 1})])
    assert isinstance(found, Failure)
    assert found.transient
    assert f"others may write to {compiler.builds.slot(0)}" in found.message
    assert list(compiler.builds.slot(0).iterdir()) == []


@pytest.mark.parametrize(
    ("told", "its_own"),
    [
        ("a.cpp:3:24: error: 'g' was not declared\n    3 | catch (const std::bad_alloc&) {}\n", True),
        ("a.cpp:3:24: error: 'std::bad_alloc' was not declared\n", True),
        ("    3 | catch (const std::bad_alloc&) {}\ncollect2: error: ld returned 1 exit status\n", True),
        ("a.cpp:3: fatal error: error writing to a.s: No space left on device\n", False),
        ("c++: fatal error: Killed signal terminated program cc1plus\n", False),
        ("a.cu(3): error: x is undefined\nc++: fatal error: Killed signal terminated program cc1plus\n", True),
    ],
)
def test_what_the_source_says_of_memory_or_a_disk_is_not_the_machines_word(
    tmp_path: Path, told: str, its_own: bool
) -> None:
    (tmp_path / "log").write_text(told)
    assert failure_reason(tmp_path / "log", "ninja failed")[1] == its_own


def test_what_is_built_is_this_users_alone(toy: Toy) -> None:
    config = Config({"MODE": "plain", "NUMBER": time.time_ns()})
    folder = Path(toy.compiler().extension(config).path).parent
    assert folder.stat().st_mode & 0o077 == 0
    assert [p.name for p in folder.iterdir() if p.stat().st_mode & 0o077] == []


def test_operators_of_two_variants_do_not_collide_in_one_process(own_settings: Path) -> None:
    module = fa.load_inline(
        "toy_operators",
        OPERATORS,
        functions=None,
        no_implicit_headers=True,
        is_python_module=False,
        space=[{"KNOB": 1}, {"KNOB": 2}],
        check=None,
        budget=2,
    )
    x = torch.ones(1)
    assert module.knob(x) in (1, 2), "which of them is the faster is chance"
    compiler = module._compiler("cpu")
    assert [compiler.extension(Config({"KNOB": knob})).function("knob")(x) for knob in (1, 2)] == [1, 2]


REGISTERS = """
TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, m) { m.def("f(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m) { m.impl("f", &f); }
TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("relu", &f); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}
"""


def test_what_a_variant_defines_has_a_name_of_its_own_and_nothing_else() -> None:
    recipe = Recipe(name="mine", cpp_sources=(REGISTERS,), is_python_module=False)
    variant = recipe.variant(Config({"N": 1}), detect_cpp_toolchain(()), CPU)
    own = f"mine_{variant.digest[:8]}"
    assert variant.namespace == own
    assert re.findall(r"\((\w+),", variant.cpp[0].replace("impl(", "")) == [own, own, "aten", "TORCH_EXTENSION_NAME"]


@pytest.mark.parametrize("before", ["", "// ", "#define BOUND "])
def test_operators_that_a_header_registers_are_told_of(tmp_path: Path, before: str) -> None:
    (tmp_path / "operators.h").write_text(f"{before}TORCH_LIBRARY(mine, m) {{}}\n")
    arguments = {"extra_include_paths": [str(tmp_path)]}
    recipe = Recipe(name="mine", cpp_sources=('#include "operators.h"',), arguments=arguments)
    assert ("register them in cpp_sources" in recipe.why_not_side_by_side()) == (not before)


def test_the_headers_of_torch_register_nothing() -> None:
    arguments = {"extra_include_paths": [torch.utils.cpp_extension.include_paths()[0]]}
    recipe = Recipe(name="mine", cpp_sources=("#include <torch/library.h>",), arguments=arguments)
    assert recipe.headers
    assert recipe.why_not_side_by_side() == ""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("TORCH_LIBRARY_IMPL(aten, CPU, m) {}", "TORCH_LIBRARY_IMPL for aten holds for the whole process"),
        ("STABLE_TORCH_LIBRARY_IMPL(aten, CPU, m) {}", "TORCH_LIBRARY_IMPL for aten holds for the whole process"),
        ("// TORCH_LIBRARY(host, m)\nTORCH_LIBRARY_IMPL(host, CPU, m) {}", "TORCH_LIBRARY_IMPL for host holds"),
        ('static auto made = torch::RegisterOperators("mine::work", &work);', "use TORCH_LIBRARY"),
        ("TORCH_LIBRARY(mine, m) {} TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m) {}", ""),
        ('const char* text = "TORCH_LIBRARY_IMPL(aten, CPU, m)";', ""),
    ],
)
def test_what_would_hold_for_the_whole_process_is_told_of(source: str, told: str) -> None:
    why = Recipe(name="mine", cpp_sources=(source,)).why_not_side_by_side()
    assert told in why
    assert bool(told) == bool(why)


@pytest.mark.parametrize(
    "source",
    [
        "TORCH_LIBRARY(/* a namespace */ ops, m) {}",
        "TORCH_LIBRARY // mine\n(ops, m) {}",
        "STABLE_TORCH_LIBRARY_FRAGMENT(ops, m) {}",
        "#define MINE TORCH_LIBRARY(ops, m)\nMINE {}",
    ],
)
def test_a_name_of_operators_is_found_however_it_is_written(source: str) -> None:
    variant = Recipe(name="mine", cpp_sources=(source,), is_python_module=False).variant(
        Config({"N": 1}), detect_cpp_toolchain(()), CPU
    )
    assert variant.namespace == f"ops_{variant.digest[:8]}"
    assert variant.cpp == (source.replace("ops,", f"{variant.namespace},"),)


@pytest.mark.parametrize(
    ("name", "is_python_module", "is_valid"),
    [
        ("", True, False),
        ("../up", True, False),
        ("a-b", True, False),
        ("2d_conv", True, True),
        ("", False, False),
        ("..", False, False),
        ("a b", False, False),
        ("x\n", False, False),
        ("my-ops", False, True),
    ],
)
def test_a_name_that_no_extension_can_have_is_refused(name: str, is_python_module: bool, is_valid: bool) -> None:
    recipe = Recipe(name=name, cpp_sources=("",), is_python_module=is_python_module)
    refused = pytest.raises(InvalidInputError, match="an extension's name is letters, digits and _ only")
    with contextlib.nullcontext() if is_valid else refused:
        recipe.validate(Space([{"KNOB": 1}]))


def test_what_an_image_holds_is_used_and_the_rest_built_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Path(without_headers(tmp_path / "image").extension(Config({"KNOB": 1})).path)
    asked: list[Path] = []

    def own_root(root: Path, _: str) -> Path:
        asked.append(root)
        return tmp_path / "own" / root.name

    monkeypatch.setattr(cpp_builds, "own_root", own_root)
    compiler = without_headers(tmp_path / "image")
    assert Path(compiler.extension(Config({"KNOB": 1})).path) == there
    assert asked == [], "nothing is made, or told of, where nothing is to be built"
    assert Path(compiler.extension(Config({"KNOB": 2})).path).is_relative_to(tmp_path / "own")
    there.chmod(0o777)
    assert Path(compiler.extension(Config({"KNOB": 1})).path).is_relative_to(tmp_path / "own")


def test_what_nvcc_compiles_for_the_host_shares_no_variables_either(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    plan = {
        "cuda": ["k"],
        "cpp": [""],
        "compiler": "c++",
        "binding_has_knobs": False,
        "defines": ["-DN=1"],
        "flags": [],
    }

    def flags(*given: str) -> list[str]:
        return list(_arguments_of_torch({**plan, "arguments": {"extra_cuda_cflags": given}}, [])["extra_cuda_cflags"])

    assert flags("-O2") == ["-Xcompiler", "-fno-gnu-unique", "-O2", "-DN=1"]
    assert flags("-ccbin=g++ -O2")[:2] == ["-Xcompiler", "-fno-gnu-unique"]
    assert flags("-ccbin /opt") == ["-ccbin /opt", "-DN=1"], "nobody knows which compiler is there"
    monkeypatch.setenv("NVCC_CCBIN", "/opt")
    assert flags("-O2") == ["-O2", "-DN=1"]
    monkeypatch.setenv("CC", "g++")  # torch tells nvcc of this one
    assert flags("-O2")[:2] == ["-Xcompiler", "-fno-gnu-unique"]


def variant_digest(
    arguments: dict[str, object] | None = None, *, source: str = "a", hardware: Hardware = CPU, **more: Any
) -> str:
    knobs = {name: value for name, value in more.items() if name == "N"}
    recipe = Recipe(name="r", cpp_sources=(source,), arguments=arguments or {}, cuda_sources=more.get("cuda", ()))
    return recipe.variant(Config(knobs), detect_cpp_toolchain(recipe.flags), hardware).digest


def test_the_folder_of_a_variant_is_named_by_all_that_goes_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    base = variant_digest(N=1)
    assert variant_digest(N=1) == base
    assert (
        len(
            {base, variant_digest(N=2), variant_digest(source="b", N=1), variant_digest({"extra_cflags": ["-O3"]}, N=1)}
        )
        == 4
    )
    other = Hardware(kind="cpu", name="another")
    assert variant_digest(N=1, hardware=other) == base, "portable code is shared between CPUs"
    native: dict[str, object] = {"extra_cflags": ["-march=native"]}
    assert variant_digest(native, N=1, hardware=other) != variant_digest(native, N=1)
    ampere, hopper = (Hardware(kind="cuda", name="GPU", capability=c) for c in ("8.0", "9.0"))
    assert variant_digest(cuda=("k",), hardware=ampere) != variant_digest(cuda=("k",), hardware=hopper)
    monkeypatch.setenv("CXX", "gcc")
    assert variant_digest(N=1) != base


@pytest.mark.parametrize(
    ("flags", "defined"),
    [
        (['-DT="unsigned char"'], {"T": "unsigned char"}),
        (["'-DT=unsigned char'", "-D", "N=4"], {"T": "unsigned char", "N": "4"}),
        (["-DN=4 -DM", "-DN=5"], {"N": "5", "M": 1}),
        (["-DN=4", "-DM=1", "-UN", "-U M"], {}),
        (["--define-macro=N=4", "--define-macro", "M"], {"N": "4", "M": 1}),
        (["-DN=4", '-DOPEN="'], {"N": "4", "OPEN": '"'}),
        (["-O3", "-DF(x)=x", "-lineinfo"], {}),
    ],
)
def test_texts_find_defined_what_the_shell_hands_on_of_flags(flags: list[str], defined: dict[str, object]) -> None:
    arguments = {"extra_cflags": ["-DOF_THE_BINDING"], "extra_cuda_cflags": flags}
    cuda = Recipe(name="r", cpp_sources=("",), cuda_sources=("k",), arguments=arguments)
    assert cuda.macros(Config({})) == defined
    assert cuda.macros(Config({"M": 7})) == {**defined, "M": 7}
    by_knob = Recipe(name="r", cpp_sources=("",), cuda_sources=("k",), roles={"how": "flag"})
    assert by_knob.macros(Config({"how": " ".join(flags)})) == defined


def test_an_edited_header_makes_another_variant(tmp_path: Path) -> None:
    (tmp_path / "outer.h").write_text('#include "inner.h"')
    (tmp_path / "inner.h").write_text("#define STEP 1")
    (tmp_path / "unused.h").write_text("")
    arguments: dict[str, object] = {"extra_include_paths": [str(tmp_path)]}
    source = '#include "outer.h"'
    before = variant_digest(arguments, source=source)
    (tmp_path / "unused.h").write_text("#define OTHER 1")
    assert variant_digest(arguments, source=source) == before
    (tmp_path / "inner.h").write_text("#define STEP 2")
    assert variant_digest(arguments, source=source) != before


@pytest.mark.parametrize("how", ["extra_include_paths", "-I", "-I ", "-isystem "])
@pytest.mark.parametrize("source", ['#include "sub/outer.h"', "#define OUTER <sub/outer.h>\n#include OUTER"])
def test_an_edited_header_beside_its_includer_makes_another_variant(tmp_path: Path, how: str, source: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "outer.h").write_text('#include "inner.h"')
    arguments: dict[str, object] = {"extra_cflags": ["-O2", f"{how}{tmp_path}"]}
    if how == "extra_include_paths":
        arguments = {how: [str(tmp_path)]}
    recipes = []
    for step in (1, 2):
        (tmp_path / "sub" / "inner.h").write_text(f"#define STEP {step}")
        recipes.append(Recipe(name="r", cpp_sources=(source,), arguments=arguments))
        recipes[-1].text  # noqa: B018  # read now
    assert recipes[0].text != recipes[1].text, "another program"
    assert recipes[0].flags == recipes[1].flags
    toolchain = detect_cpp_toolchain(recipes[0].flags)
    assert len({r.variant(Config({}), toolchain, CPU).digest for r in recipes}) == 2


def test_a_variant_is_rebuilt_when_a_header_it_includes_changes(toy: Toy, tmp_path: Path) -> None:
    header = tmp_path / "mode.h"
    config = Config({"WITH": f"-include {header}"})

    def built(mode: str) -> tuple[str, int]:
        """Its number as a new process sees it, and the library's, of a header that looks as old as before."""
        header.write_text(f"#define MODE {mode}\n")
        os.utime(header, (1, 1))
        compiler = toy.compiler()
        compiler.recipe = replace(compiler.recipe, roles={"WITH": "flag"})
        extension = compiler.extension(config)
        shown = f"import torch; from {Extension.__module__} import Extension; print({extension!r}.function('mode')())"
        run = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
        return run.stdout, Path(extension.path).stat().st_ino

    plain = built("plain")
    assert built("plain") == plain, "not built again"
    assert built("slow")[0] != plain[0]


def test_objects_of_a_header_that_was_put_back_are_compiled_again(tmp_path: Path) -> None:
    header = tmp_path / "a.h"
    header.write_text("1")
    headers = header_digests([str(header)], not_in=[], folders=[], began_ns=time.time_ns() + 10**9)
    keep_headers(tmp_path, headers, "reached")
    (tmp_path / "main.o").touch()
    drop_outdated_objects(tmp_path, "reached")
    assert (tmp_path / "main.o").exists()
    header.write_text("one")
    os.utime(header, (1, 1))
    drop_outdated_objects(tmp_path, "reached")
    assert not (tmp_path / "main.o").exists()


def test_objects_go_whose_headers_an_older_version_noted(tmp_path: Path) -> None:
    (tmp_path / "headers.json").write_text("{}")
    (tmp_path / "main.o").touch()
    drop_outdated_objects(tmp_path, "")
    assert not (tmp_path / "main.o").exists()


def test_a_header_that_shadows_another_is_compiled_with_until_it_is_gone(tmp_path: Path) -> None:
    folders = [tmp_path / "override", tmp_path / "base"]
    for folder in folders:
        folder.mkdir()
    (tmp_path / "base" / "answer.h").write_text("#define ANSWER 1\n")
    shadow = tmp_path / "override" / "answer.h"
    before = without_headers(tmp_path).recipe

    def answer(build: int) -> int:
        arguments = {**before.arguments, "extra_include_paths": [str(folder) for folder in folders]}
        recipe = replace(before, cpp_sources=(f'#include "answer.h"\n{ANSWER}',), arguments=arguments)
        compiler = CppCompiler(recipe, detect_cpp_toolchain(recipe.flags), detect_hardware(), tmp_path)
        shutil.rmtree(compiler.builds.folder(compiler._variant(Config({}))), ignore_errors=True)
        library = shutil.copy(compiler.extension(Config({})).path, tmp_path / f"{build}.so")
        return int(ctypes.CDLL(str(library)).answer())

    first = answer(1)
    shadow.write_text("#define ANSWER 2\n")
    second = answer(2)
    shadow.unlink()
    assert (first, second, answer(3)) == (1, 2, 1)


def test_a_header_that_is_edited_while_it_is_compiled_counts_as_changed(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("1")
    headers = header_digests([str(tmp_path / "a.h")], not_in=[], folders=[], began_ns=0)
    assert changed(headers) == str(tmp_path / "a.h")


def test_the_toolchains_headers_are_not_looked_at_unless_they_are_named(tmp_path: Path) -> None:
    read = ["/usr/include/stdio.h", str(tmp_path / "main.cpp")]
    asked = {"not_in": [tmp_path], "began_ns": time.time_ns() + 10**9}
    assert header_digests(read, folders=[], **asked) == {}  # type: ignore[arg-type]
    assert list(header_digests(read, folders=["/usr/include"], **asked)) == read[:1]  # type: ignore[arg-type]


def test_the_same_headers_elsewhere_make_the_same_variant(tmp_path: Path) -> None:
    digests = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "step.h").write_text("#define STEP 1")
        arguments: dict[str, object] = {"extra_include_paths": [str(tmp_path / folder)]}
        digests.append(variant_digest(arguments, source='#include "step.h"'))
    assert digests[0] == digests[1] != variant_digest(source='#include "step.h"')


def test_an_error_nobody_thought_of_reaches_the_caller_and_hangs_nobody(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = toy.compiler()
    monkeypatch.setattr(compiler, "_build", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(compiler.compile([Config({"MODE": "plain", "NUMBER": time.time_ns()})]))


def test_waiting_for_another_build_is_not_building(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    limits_s: list[float] = []
    waits = threading.Event()
    receive = Worker.receive

    def noted(worker: Worker, timeout_s: float, watch: Any = None) -> Any:
        limits_s.append(timeout_s)
        if timeout_s == math.inf:
            waits.set()
        return receive(worker, timeout_s, watch)

    def release() -> None:
        waits.wait(60)
        lock.release()

    list(toy.compiler().compile([toy.config("plain")]))
    lock = filelock.FileLock(next(toy.builds.glob("toy/slot-*")) / "slot.lock", thread_local=False)
    lock.acquire()
    monkeypatch.setattr(Worker, "receive", noted)
    releasing = threading.Thread(target=release)
    releasing.start()
    ((_, built),) = toy.compiler(timeout_s=201.0).compile([Config({"MODE": "plain", "NUMBER": time.time_ns()})])
    releasing.join()
    assert isinstance(built, Evidence), built
    assert waits.is_set()
    assert limits_s[limits_s.index(math.inf) + 1] == 201.0, "once it builds, the time counts"


def test_builds_share_the_machine_with_the_other_ranks(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert CppCompiler(toy.compiler().recipe, toy.compiler().toolchain, detect_hardware(), Path()).workers == 1
