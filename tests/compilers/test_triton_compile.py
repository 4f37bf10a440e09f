# ruff: noqa: N803  # Triton kernels write their meta-parameters in capitals
"""Compiling Triton kernels in workers: the launch's own cache entry, honest evidence, and what happens when it fails."""

from __future__ import annotations

import contextlib
import linecache
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from contracts.compiler_contract import CompilerContract

from forecast_autotune.core.config import Config
from forecast_autotune.core.outcome import Evidence, Failure
from forecast_autotune.errors import InvalidInputError
from forecast_autotune.features.hardware_sheets import device_properties, sheet_for
from forecast_autotune.frontends.triton.simulated_driver import rehearsal

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from plain_calls import plain_call  # noqa: E402
from process_ids import is_running  # noqa: E402

from forecast_autotune.compilers import (  # noqa: E402
    triton_compile,
    triton_pool,
    triton_source,
)
from forecast_autotune.compilers.triton_compile import SourceCompiler, TritonCompiler  # noqa: E402

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
REPOSITORY = Path(__file__).parents[2]


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a = a_ptr + rows[:, None] * k + inner[None, :]
    b = b_ptr + inner[:, None] * n + columns[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        total += tl.dot(tl.load(a), tl.load(b))
        a += BK
        b += BK * n
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.jit
def copy_tiles(x_ptr, y_ptr, m, n, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(y_ptr, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([row, column], source.load([row, column]))


@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * 2, mask=offsets < n)


@triton.jit
def refused(x_ptr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= 64, "too small a block")
    tl.store(x_ptr + tl.arange(0, BLOCK), 0)


def half(*shape: int, device: str = "meta") -> Any:
    return torch.empty(*shape, dtype=torch.float16, device=device)


def matmul_args(device: str = "meta", size: int = 512) -> tuple[Any, ...]:
    return (*(half(size, size, device=device) for _ in range(3)), size, size, size)


def tile(bm: int = 64, bn: int = 64, bk: int = 32, warps: int = 4, stages: int = 2) -> Config:
    return Config({"BM": bm, "BN": bn, "BK": bk, "num_warps": warps, "num_stages": stages})


def compiler(kernel: Any, args: Any, target: str = "cuda:90", **kwargs: Any) -> TritonCompiler:
    kwargs.setdefault("properties", device_properties(sheet_for(target)))
    return TritonCompiler(kernel, plain_call(*args), target=target, **kwargs)


def only(results: Iterator[tuple[Config, Evidence | Failure]]) -> Any:
    ((_, result),) = list(results)
    return result


@pytest.fixture(scope="module", autouse=True)
def pool_closed(own_cache: Path) -> Iterator[None]:
    yield
    triton_pool.shared_pool().close()


class TestTritonCompiler(CompilerContract):
    def make_compiler(self) -> TritonCompiler:
        return compiler(refused, (half(1024),))

    def good(self) -> list[Config]:
        return [Config({"BLOCK": block, "num_warps": 4}) for block in (64, 128)]

    def unbuildable(self) -> Config:
        return Config({"BLOCK": 32, "num_warps": 4})


class TestSourceCompiler(TestTritonCompiler):
    """The same, given the source of each config in the place of a kernel and its arguments."""

    def make_compiler(self) -> SourceCompiler:
        limits = device_properties(sheet_for("cuda:90"))
        return SourceCompiler(super().make_compiler().source, properties=limits)


# The launch's own cache entry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_launch_finds_what_the_worker_compiled(target: str, device: str) -> None:
    args, config = matmul_args(device), tile()
    compiling = compiler(matmul, args, target)
    assert isinstance(only(compiling.compile([config])), Evidence)
    with rehearsal(target) as on:
        kernel = matmul.warmup(*args, grid=(1,), **config.knobs)
    assert kernel.hash == compiling.source(config).hash
    assert not on.compiles
    assert on.cache_hits == {"matmul": 1}


def test_a_worker_writes_the_very_bytes_the_launch_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, config = compiler(matmul, matmul_args()), tile(stages=3)
    only(compiling.compile([config]))
    made = compiling.source(config)
    by_worker = triton_source.found_in_cache(made)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert triton_source.found_in_cache(made) is None
    here = triton_source.compile_here(made)
    assert here.hash == by_worker.hash
    assert here.asm["cubin"] == by_worker.asm["cubin"]


def test_what_the_cache_holds_is_answered_without_a_worker() -> None:
    compiling, config = compiler(matmul, matmul_args()), tile(stages=4)
    first = only(compiling.compile([config]))
    started = compiling.pool.started
    again = only(compiling.compile([config]))
    assert again.registers == first.registers
    assert again.instructions == first.instructions
    assert compiling.pool.started == started


def test_configs_that_mean_the_same_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    configs = [Config({"BLOCK": 256, "maxnreg": None}), Config({"BLOCK": 256, "num_warps": 4})]
    results = dict(compiler(scale, (half(1000), 1000)).compile(configs))
    assert set(results) == set(configs)
    assert len(list(tmp_path.glob("*/scale.cubin"))) == 1


def test_knobs_set_in_the_program_reach_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs, "propagate_env", False)
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path / "by-knob")
        assert isinstance(only(compiler(scale, (half(1000), 1000)).compile([Config({"BLOCK": 512})])), Evidence)
    assert list((tmp_path / "by-knob").glob("*/scale.cubin"))


def test_a_compiler_stage_of_the_callers_own_is_run_in_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(triton.knobs.runtime, "add_stages_inspection_hook"):
        pytest.skip("this Triton has no such hook")
    seen = []

    def hook(*given: Any) -> tuple[str, str]:
        seen.append(given)
        return "key", "hash"

    monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", hook)
    assert isinstance(only(compiler(scale, (half(1000), 1000)).compile([Config({"BLOCK": 128})])), Evidence)
    assert any(seen)


SCRIPT = """
import os, sys
import torch, triton, triton.language as tl
from forecast_autotune.compilers.triton_compile import TritonCompiler
from forecast_autotune.core.config import Config
from forecast_autotune.frontends.triton.simulated_driver import rehearsal

with open(sys.argv[1], "a") as f:
    f.write("ran\\n")

STEP = tl.constexpr(3)

@triton.jit
def helper(x):
    return x + STEP

def made(times):
    factor = tl.constexpr(times)

    @triton.jit
    def kernel(x_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, helper(tl.load(x_ptr + offsets)) * factor, mask=offsets < n)

    return kernel

for times in (2, 5):
    kernel, args = made(times), (torch.empty(4096), 4096)
    config = Config({"BLOCK": 128, "num_warps": 4})
    ((_, found),) = TritonCompiler(kernel, lambda c: (args, c.knobs), target="cuda:90", properties={}).compile([config])
    with rehearsal("cuda:90") as on:
        kernel.warmup(*args, grid=(1,), **config.knobs)
    print(found.registers, dict(on.compiles), dict(on.cache_hits))
"""


def test_kernels_of_main_are_compiled_without_running_main_again(
    tmp_path: Path,
) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("{} {'kernel': 1}") for line in lines)
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_kernel_typed_into_a_notebook_is_compiled() -> None:
    source = textwrap.dedent(
        """
        @triton.jit
        def cell(x_ptr, BLOCK: tl.constexpr):
            tl.store(x_ptr + tl.arange(0, BLOCK), 1)
        """
    )
    name = "<ipython-input-1>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"triton": triton, "tl": tl, "__name__": "__main__"}
    exec(compile(source, name, "exec"), space)  # noqa: S102  # what a notebook does
    assert isinstance(only(compiler(space["cell"], (half(64),)).compile([Config({"BLOCK": 64})])), Evidence)


# Evidence -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "instruction"),
    [("cuda:80", "mma"), ("cuda:90", "wgmma"), ("cuda:100", "tcgen05_mma"), ("hip:gfx942", "mfma")],
)
def test_evidence_names_the_matrix_instruction_of_each_target(target: str, instruction: str) -> None:
    found = only(compiler(matmul, matmul_args(), target).compile([tile(128, 128, 32, stages=3)]))
    assert found.instructions[instruction] > 0
    assert found.registers > 32
    assert found.shared_bytes > 0
    assert found.code_bytes > 1000
    if target.startswith("cuda"):
        assert found.instructions["cp_async"] > 0
        assert found.instructions["cp_async_128"] == found.instructions["cp_async"]
    widest = {name for name in found.instructions if name.startswith("st_global_")}
    assert widest == {"st_global_64"} if target.startswith("hip") else {"st_global_128"}


def test_evidence_sees_tensor_memory_accelerator_copies() -> None:
    found = only(
        compiler(copy_tiles, (half(512, 512), half(512, 512), 512, 512)).compile([Config({"BM": 64, "BN": 64})])
    )
    assert found.instructions["tma_load"] == 1
    assert found.instructions["tma_store"] == 1


def test_loads_are_counted_by_width() -> None:
    narrow = only(compiler(scale, (half(1001), 1001)).compile([Config({"BLOCK": 1024, "num_warps": 4})]))
    wide = only(compiler(scale, (half(1024), 1024)).compile([Config({"BLOCK": 1024, "num_warps": 4})]))
    assert narrow.instructions["ld_global_16"] == 8
    assert wide.instructions["ld_global_128"] == 1


@pytest.mark.skipif(not (TOOLS / "cuobjdump").exists(), reason="this Triton brings no cuobjdump")
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_registers_and_stack_are_what_cuobjdump_and_ptxas_say(target: str, tmp_path: Path) -> None:
    compiling = compiler(matmul, matmul_args(), target)
    for config in (tile(), tile(128, 256, 64, 4)):
        found = next(
            r for c, r in TritonCompiler(matmul, compiling.bind, target=target, properties={}).compile([config])
        )
        kernel = triton_source.found_in_cache(compiling.source(config))
        binary = tmp_path / "kernel.cubin"
        binary.write_bytes(kernel.asm["cubin"])
        told = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", binary], capture_output=True, text=True, check=True
        ).stdout
        registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", told).groups()  # type: ignore[union-attr]
        assert (found.registers, found.stack_bytes) == (int(registers), int(stack))
        assert (found.spill_bytes is None) or (found.spill_bytes > 0) == (found.stack_bytes > 0)


def test_bytes_that_are_no_cubin_give_no_facts() -> None:
    from forecast_autotune.compilers.triton_evidence import cubin_facts

    assert cubin_facts(b"") == {}
    assert cubin_facts(b"\x7fELF" + b"\xff" * 200) == {}


# Resources ------------------------------------------------------------------------------------------------------------


def test_too_much_shared_memory_is_a_failure_in_the_launchs_own_words() -> None:
    config = tile(128, 256, 64, 8, stages=6)
    failure = only(compiler(matmul, matmul_args()).compile([config]))
    assert failure.stage == "resources"
    assert not failure.crashed
    with rehearsal("cuda:90", times=1.0), pytest.raises(triton.runtime.errors.OutOfResources) as refusal:
        matmul[(1,)](*matmul_args(), **config.knobs)
    assert failure.message == str(refusal.value)
    assert "Hardware limit: 232448" in failure.message


def test_the_limits_are_those_of_the_properties_given() -> None:
    config = tile(128, 128, 32, stages=3)
    assert isinstance(only(compiler(matmul, matmul_args()).compile([config])), Evidence)
    smaller = only(compiler(matmul, matmul_args(), properties={"max_shared_mem": 16384}).compile([config]))
    assert smaller.stage == "resources"
    assert "Hardware limit: 16384" in smaller.message
    fewer = only(compiler(matmul, matmul_args(), properties={"max_threads": 64}).compile([config]))
    assert "threads, Required: 128, Hardware limit: 64" in fewer.message
    registers = only(compiler(matmul, matmul_args(), properties={"max_num_regs": 8192}).compile([config]))
    assert "threads, Required: 128" in registers.message


# What goes wrong ------------------------------------------------------------------------------------------------------


def fake_ptxas(folder: Path, monkeypatch: pytest.MonkeyPatch, act: str) -> Path:
    """A ptxas that tells the real one's version, and instead of compiling does something else."""
    tools = [name for name in ("ptxas", "ptxas_blackwell") if hasattr(triton.knobs.nvidia, name)]
    real = {name: getattr(triton.knobs.nvidia, name).path for name in tools}
    for name, path in real.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\ncase "$*" in *--version*) exec {path} --version;; esac\n{act}\n')
        script.chmod(0o755)
        monkeypatch.setenv(f"TRITON_{name.upper()}_PATH", str(script))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "cache"))  # another test may have compiled the same
    return folder


def test_a_compile_that_takes_too_long_is_killed_with_the_tools_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ptxas(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/part\nmv {tmp_path}/part {tmp_path}/pid\nexec sleep 300")
    for timeout_s in (3.0, 9.0, 27.0):  # on a busy machine three seconds may be over before ptxas is called
        failure = only(compiler(scale, (half(900), 900), timeout_s=timeout_s).compile([Config({"BLOCK": 64})]))
        assert failure.stage == "timeout"
        assert failure.crashed
        assert f"{timeout_s:.0f} s" in failure.message
        assert failure.cost_s >= timeout_s
        if (tmp_path / "pid").exists():
            break
    deadline = time.monotonic() + 60
    while is_running(int((tmp_path / "pid").read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(("signal_name", "block"), [("ABRT", 64), ("SEGV", 128), ("KILL", 256)])
def test_a_compiler_that_is_brought_down_takes_only_its_worker_along(
    tmp_path: Path, signal_name: str, block: int
) -> None:
    config = Config({"BLOCK": block, "num_warps": 1})
    with pytest.MonkeyPatch.context() as patch:
        fake_ptxas(tmp_path, patch, f"echo 'LLVM ERROR: out of luck' >&2\nkill -{signal_name} $PPID\nsleep 5")
        failure = only(compiler(scale, (half(800), 800)).compile([config]))
    assert failure.stage == "compile"
    assert (failure.crashed, failure.transient) == (signal_name != "KILL", signal_name == "KILL")
    assert f"SIG{signal_name}" in failure.message
    again = only(compiler(scale, (half(800), 800)).compile([config]))
    assert isinstance(again, Evidence)


def test_what_is_abandoned_is_killed_with_the_tools_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ptxas(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/part\nmv {tmp_path}/part {tmp_path}/pid\nexec sleep 300")

    def has_begun(waited_s: float) -> float:
        while not (tmp_path / "pid").exists():
            time.sleep(0.05)
        return max(0.0, 0.1 - waited_s)

    compiling = compiler(scale, (half(900), 900)).compile([Config({"BLOCK": 64})], on_wait=has_begun)
    assert next(compiling, None) is None
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    monkeypatch.undo()
    assert isinstance(only(compiler(scale, (half(900), 900)).compile([Config({"BLOCK": 64})])), Evidence)


def test_what_waits_for_a_worker_tries_nobodys_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ptxas(
        tmp_path, monkeypatch, f"[ -e {tmp_path}/second ] && exec sleep 300\ntouch {tmp_path}/second; sleep 1; exit 1"
    )
    pool, waited = triton_pool.WorkerPool(1), list[float]()

    def half_a_second(waited_s: float) -> float:
        waited.append(waited_s)
        return max(0.0, 0.5 - waited_s) if (tmp_path / "second").exists() else 60.0

    configs = [Config({"BLOCK": 64}), Config({"BLOCK": 128})]
    try:
        done = dict(compiler(scale, (half(900), 900), pool=pool).compile(configs, workers=2, on_wait=half_a_second))
    finally:
        pool.close()
    assert list(done) == configs[:1], (
        "the second is left behind once it was begun, for as long as it was being compiled"
    )
    assert waited[0] == 0.0


def test_a_compile_killed_from_outside_twice_is_a_transient_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ptxas(tmp_path, monkeypatch, f"touch {tmp_path}/began-$PPID\nexec sleep 300")
    pool = triton_pool.WorkerPool(1)

    def strike() -> None:
        deadline = time.monotonic() + 60
        for times in (1, 2):
            while len(list(tmp_path.glob("began-*"))) < times and time.monotonic() < deadline:
                time.sleep(0.02)
            for pid in pool.processes():
                os.kill(pid, 9)

    thread = threading.Thread(target=strike)
    thread.start()
    failure = only(compiler(scale, (half(800), 800), pool=pool).compile([Config({"BLOCK": 128, "num_warps": 8})]))
    thread.join()
    pool.close()
    assert failure.stage == "compile"
    assert "SIGKILL" in failure.message
    assert failure.transient


def test_a_kernel_the_front_end_refuses_is_a_failure_that_says_why() -> None:
    results = dict(compiler(refused, (half(64),)).compile([Config({"BLOCK": 32}), Config({"BLOCK": 64})]))
    failure = results[Config({"BLOCK": 32})]
    assert isinstance(failure, Failure)
    assert failure.stage == "compile"
    assert "too small a block" in failure.message
    assert not failure.crashed
    assert isinstance(results[Config({"BLOCK": 64})], Evidence)


def test_a_knob_the_kernel_does_not_take_is_a_failure_that_names_it() -> None:
    failure = only(compiler(scale, (half(64), 64)).compile([Config({"BLOCK": 64, "BLOK": 1})]))
    assert failure.stage == "compile"
    assert "BLOK" in failure.message


def test_an_assembler_error_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ptxas(tmp_path, monkeypatch, "echo 'ptxas fatal: no' >&2\nexit 1")
    failure = only(compiler(scale, (half(700), 700)).compile([Config({"BLOCK": 64, "num_warps": 2})]))
    assert failure.stage == "compile"
    assert "PTXASError" in failure.message
    assert not failure.crashed


def test_without_workers_configs_are_compiled_in_the_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(triton_compile, "_warned", False)
    pool = triton_pool.WorkerPool(2)
    with caplog.at_level(logging.WARNING):
        results = dict(
            compiler(scale, (half(600), 600), pool=pool).compile([Config({"BLOCK": b}) for b in (64, 128, 256)])
        )
    assert all(isinstance(r, Evidence) for r in results.values())
    assert len(caplog.records) == 1
    assert "/nowhere/python" in caplog.text
    pool.close()


def test_closing_the_iterator_abandons_what_has_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pool = triton_pool.WorkerPool(1)
    run, closed = pool._run, threading.Event()

    def run_one(*given: Any) -> Any:
        assert not pool.started or closed.wait(60)
        return run(*given)

    monkeypatch.setattr(pool, "_run", run_one)
    configs = [Config({"BLOCK": 2**i}) for i in range(5, 11)]
    results = compiler(scale, (half(500), 500), pool=pool).compile(configs, workers=4)  # three wait for the one worker
    next(results)
    results.close()  # type: ignore[attr-defined]
    closed.set()
    # After all that was handed over.
    only(compiler(scale, (half(500), 500), pool=pool).compile([Config({"BLOCK": 16})]))
    pool.close()
    assert len(list(tmp_path.glob("*/scale.cubin"))) == 2


def test_nothing_is_compiled_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = compiler(scale, (half(400), 400))
    only(compiling.compile([Config({"BLOCK": 32, "num_warps": 1})]))  # a worker stands ready
    wait, asked = compiling.pool._pausing.wait, threading.Event()
    begun: list[float] = []

    def noted() -> None:
        asked.set()
        wait()
        begun.append(time.monotonic())

    monkeypatch.setattr(compiling.pool._pausing, "wait", noted)
    with compiling.paused():
        thread = threading.Thread(target=lambda: only(compiling.compile([Config({"BLOCK": 32, "num_warps": 2})])))
        thread.start()
        assert asked.wait(60)
        time.sleep(0.3)
        assert not begun
        resumed = time.monotonic()
    thread.join()
    assert begun[0] >= resumed


def test_what_a_worker_holds_is_closed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """By two at once, the second would close what a third has just opened."""
    closed = []
    close = triton_pool._Compiler.close

    def noted(compiler: triton_pool._Compiler) -> None:
        closed.append((compiler, threading.current_thread()))
        close(compiler)

    monkeypatch.setattr(triton_pool._Compiler, "close", noted)
    pool = triton_pool.WorkerPool(2)
    configs = [Config({"BLOCK": block, "num_warps": 2}) for block in (32, 64, 128, 256)]
    list(compiler(scale, (half(300), 300), pool=pool).compile(configs))
    assert len(pool.processes()) == 2
    threads = list(pool._threads)
    pool.close()
    assert len({compiler for compiler, _ in closed}) == 2
    assert all(closing in threads for _, closing in closed)
    assert not any(thread.is_alive() for thread in threads)
    assert pool.processes() == ()


def test_the_workers_server_starts_while_the_first_task_is_made(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, first_ir, running = triton_pool.WorkerPool(1), triton_compile.front_end.first_ir, list[bool]()

    def noted(made: Any) -> str:
        running.append(pool._server.pid is not None)
        return first_ir(made)

    monkeypatch.setattr(triton_compile.front_end, "first_ir", noted)
    only(compiler(scale, (half(310), 310), pool=pool).compile([Config({"BLOCK": 2048, "num_warps": 16})]))
    assert running == [True]
    pool.close()


def test_a_server_that_gets_no_task_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_pool, "IDLE_S", 0.05)
    pool = triton_pool.WorkerPool(1)
    pool.prepare()
    server = pool._server.pid
    assert server is not None
    while is_running(server):
        time.sleep(0.02)
    pool.close()


def test_a_server_is_not_ended_while_a_worker_is_being_started(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_pool, "IDLE_S", 0.01)
    pool = triton_pool.WorkerPool(2)
    stop, busy = pool._server.stop, list[int]()

    def counted() -> None:
        busy.append(len(pool._threads) - pool._idle)
        stop()

    monkeypatch.setattr(pool._server, "stop", counted)
    for block in (64, 128, 64, 128):  # one thread has it, the other is idle
        configs = [Config({"BLOCK": block}), Config({"BLOCK": 2 * block})]
        built = list(compiler(scale, (half(320), 320), pool=pool).compile(configs, workers=2))
        assert not [result for _, result in built if isinstance(result, Failure)]
    pool.close()
    assert not any(busy[:-1])


def test_finished_builds_are_handed_over_before_patience_is_asked_for(own_cache: Path) -> None:
    pool, asked = triton_pool.WorkerPool(2), list[float]()

    def on_wait(waited_s: float) -> float:
        asked.append(waited_s)
        return 60.0

    compiling = compiler(scale, (half(320), 320), pool=pool).compile(
        [Config({"BLOCK": b}) for b in (64, 128)], workers=2, on_wait=on_wait
    )
    next(compiling)
    while pool._idle < len(pool._threads):
        time.sleep(0.02)
    asked.clear()
    next(compiling)
    assert asked in ([], [0.0]), "of a build, only of its launcher"
    pool.close()


def test_where_no_thread_can_be_started_configs_are_compiled_here(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = triton_pool.WorkerPool(2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        config = Config({"BLOCK": 2048, "num_warps": 2})
        built = only(compiler(scale, (half(330), 330), pool=pool).compile([config]))
    assert isinstance(built, Evidence)
    assert pool._server.pid is None
    pool.close()


@pytest.mark.parametrize("why", ["closed", "paused"])
def test_no_server_is_started_for_a_pool_that_starts_no_workers(why: str) -> None:
    pool = triton_pool.WorkerPool(1)
    with contextlib.ExitStack() as held:
        if why == "paused":
            held.enter_context(pool.paused())
        else:
            pool.close()
        pool.prepare()
        assert pool._server.pid is None
    pool.close()


def test_a_forked_child_gets_a_pool_of_its_own_though_a_lock_was_held() -> None:
    ours = triton_pool.shared_pool()
    only(compiler(scale, (half(310), 310)).compile([Config({"BLOCK": 64, "num_warps": 1})]))
    with triton_pool._shared_lock, ours._lock:
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(60)
            theirs = triton_pool.shared_pool()
            config = Config({"BLOCK": 128, "num_warps": 1})
            compiled = only(compiler(scale, (half(310), 310)).compile([config]))
            status = 0 if theirs is not ours and theirs.started == 1 and isinstance(compiled, Evidence) else 2
            theirs.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert isinstance(
        only(compiler(scale, (half(310), 310)).compile([Config({"BLOCK": 256, "num_warps": 1})])), Evidence
    )


# Targets --------------------------------------------------------------------------------------------------------------


def test_an_unknown_target_is_refused_by_name() -> None:
    for target in ("sm_90", "cuda", "hip:942", "metal:3"):
        with pytest.raises(InvalidInputError, match="accepted are cuda:"):
            triton_source.gpu_target(target)


def test_targets_are_read_as_people_write_them() -> None:
    assert triton_source.gpu_target("cuda:90a").arch == 90
    assert triton_source.gpu_target("cuda:sm_100").arch == 100
    assert triton_source.gpu_target("hip:gfx90a").warp_size == 64
    assert triton_source.gpu_target("hip:gfx1100").warp_size == 32


def test_heuristics_are_applied_before_compiling() -> None:
    wrapped = triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["n"])})(scale)
    assert triton_source.jit_function(wrapped) is scale
    assert triton_source.apply_heuristics(wrapped, (half(100), 100), {"num_warps": 2}) == {"num_warps": 2, "BLOCK": 128}
    assert triton_source.jit_function(lambda: None) is None


def test_what_fails_before_anything_is_compiled_may_be_the_calls_fault() -> None:
    def failures(configs: Sequence[Config]) -> list[bool]:
        compiling = compiler(refused, (half(1024),)).compile(configs, workers=1)
        return [result.transient for _, result in compiling if isinstance(result, Failure)]

    small, large = ([Config({"BLOCK": b, "num_warps": 4}) for b in blocks] for blocks in ((16, 32), (64,)))
    assert failures(small) == [True, True]
    assert failures([*large, *small]) == [False, False]
    assert failures([*small, *large]) == [False, False], "held back until one is built"


# The front end -----------------------------------------------------------------------------------------------------------


@triton.jit
def knows_its_warps(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.extra.cuda.num_threads())


class Lowerings:
    """How often Triton's front end runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from triton.compiler import ASTSource

        self.runs = 0
        lower = ASTSource.make_ir

        def counted(source: Any, target: Any, options: Any, codegen_fns: Any, module_map: Any, context: Any) -> Any:
            self.runs += 1
            return lower(source, target, options, codegen_fns, module_map, context)

        monkeypatch.setattr(ASTSource, "make_ir", counted)


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_configs_that_the_front_end_cannot_tell_apart_share_one_run_of_it(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    configs = [tile(bm=bm, warps=warps, stages=stages) for bm in (32, 64) for warps in (4, 8) for stages in (2, 3)]
    source = compiler(matmul, matmul_args(), target).source
    sources = [source(config) for config in configs]
    alone = [triton_source.FrontEnd().first_ir(made) for made in sources]
    lowerings, front_end = Lowerings(monkeypatch), triton_source.FrontEnd()
    assert [front_end.first_ir(made) for made in sources] == alone
    assert lowerings.runs == len(set(alone)) == 2


def test_keys_that_the_front_end_cannot_tell_apart_share_one_run_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton_compile, "front_end", triton_source.FrontEnd())
    lowerings = Lowerings(monkeypatch)
    for n, warps in ((1001, 4), (1003, 8), (1024, 2)):
        keys = compiler(scale, (half(4096), n))
        (built,) = (built for _, built in keys.compile([Config({"BLOCK": 64, "num_warps": warps})]))
        assert isinstance(built, Evidence)
    assert lowerings.runs == 2  # for numbers that 16 divides, and for others


def test_a_config_that_changes_what_the_front_end_reads_has_its_own_run() -> None:
    source = compiler(knows_its_warps, (torch.empty(64, dtype=torch.int32, device="meta"),)).source
    front_end = triton_source.FrontEnd()
    texts = [front_end.first_ir(source(Config({"BLOCK": 64, "num_warps": warps}))) for warps in (1, 2, 4, 2)]
    assert len(set(texts)) == 3
    assert texts[1] == texts[3]


def test_the_front_end_keeps_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_source, "MAX_LOWERED", 2)
    source = compiler(scale, (half(4096), 4096)).source
    front_end = triton_source.FrontEnd()
    for block in (64, 128, 256, 512, 1024):
        front_end.first_ir(source(Config({"BLOCK": block})))
        assert len(front_end._lowered) <= 2
