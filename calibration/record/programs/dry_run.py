"""Run a program without a GPU: `python -m calibration.record.programs.dry_run PROGRAM` tells which kernels it launches.

Tensors have shapes and no data; kernels are noted, not launched. What a program decides by data (`.item()`) fails here.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from forecast_autotune.frontends.triton.simulated_driver import rehearsal


@dataclass(slots=True)
class Launches:
    """What a program would launch.

    Attributes:
        keys: by kernel (its file and name), the keys of its calls.
        configs: by kernel, how many configs it chooses among; 1 where it has no tuner.
        tuning: the tuners that are at work now, the innermost last, each with the key of its call.
        jits: by kernel, its function.
        failures: by kernel, the error with which its first call did not compile.
        compile: compiles a kernel for its first call; None to compile nothing.
    """

    keys: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    configs: dict[str, int] = field(default_factory=dict)
    tuning: list[tuple[Any, str]] = field(default_factory=list)
    jits: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    compile: Any = None


class _Compiled:
    """Stands for a compiled kernel."""

    n_regs, n_spills, metadata = 32, 0, SimpleNamespace(shared=0, num_warps=4)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_, **__: None


def _name(kernel: Any) -> str:
    function = kernel.fn
    return f"{getattr(function, '__module__', '?')}.{kernel.__name__}"


def _launch(launches: Launches, kernel: Any, *args: Any, grid: Any, **named: Any) -> _Compiled:
    """In place of `JITFunction.run`: check the grid, note the call."""
    named.pop("warmup", None)
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
    shape = grid(values) if callable(grid) else grid
    if not all(int(extent) >= 0 for extent in shape):
        raise ValueError(f"a grid of {shape}")
    name = _name(kernel)
    launches.jits[name] = kernel
    launches.configs.setdefault(name, 1)
    tuned = next(((tuner, key) for tuner, key in launches.tuning[::-1] if _jit_of(tuner) is kernel), None)
    key = tuned[1] if tuned else str([(k, _shown(v)) for k, v in values.items()])
    new = key not in launches.keys[name]
    launches.keys[name].add(key)
    if tuned:
        launches.configs[name] = max(launches.configs[name], len(tuned[0].configs))
    if new and launches.compile is not None and len(launches.keys[name]) == 1:
        try:
            launches.compile(kernel, *args, grid=grid, warmup=True, **named)
        except Exception as err:
            launches.failures[name] = f"{type(err).__name__}: {str(err)[-300:]}"
            raise
    return _Compiled()


def _jit_of(tuner: Any) -> Any:
    while not hasattr(tuner, "arg_names") or hasattr(tuner.fn, "arg_names"):
        tuner = tuner.fn
    return tuner


def _shown(value: Any) -> str:
    return f"{value.dtype}{tuple(value.shape)}" if hasattr(value, "shape") and hasattr(value, "dtype") else str(value)


def _tune(launches: Launches, tuner: Any, *args: Any, **named: Any) -> Any:
    """In place of `Autotuner.run`: launch the first config that the kernel's own pruning leaves."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    configs = tuner.prune_configs(named) if len(tuner.configs) > 1 else tuner.configs
    config = tuner.best_config = configs[0]
    values = {**tuner.nargs, **named, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook(values)
    key = str(
        [_shown(values.get(k)) for k in tuner.keys] + [str(v.dtype) for v in values.values() if hasattr(v, "dtype")]
    )
    launches.tuning.append((tuner, key))
    try:
        return tuner.fn.run(*args, **{**named, **config.all_kwargs()})
    finally:
        launches.tuning.pop()
        tuner.nargs = None


PROPERTIES = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150 << 30, warp_size=32,
    max_threads_per_multi_processor=2048, shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472, regs_per_multiprocessor=65536, L2_cache_size=60 << 20, gcnArchName="",
)  # fmt: skip


_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace { C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>) }
"""


@functools.cache
def _register_device_guard() -> None:
    """Let a torch without CUDA have tensors of a CUDA device: what would switch devices does nothing."""
    import torch

    root = Path(torch.__path__[0])
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "guard.cpp"), Path(folder, "guard.so")
        source.write_text(_GUARD)
        command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{root}/include", str(source), "-o", str(library)]
        subprocess.run([*command, f"-L{root}/lib", "-lc10"], check=True, capture_output=True)
        ctypes.CDLL(str(library))


def _others(node: Any, place: int) -> list[None]:
    """Nothing for each of a Python function's outputs behind a place, which `_backward` counts as the forward pass ran."""
    return [None] * (len(getattr(node, "_input_metadata", [None])) - place - 1)


def _backward(output: Any, gradient: Any = None, **_: Any) -> None:
    """In place of `Tensor.backward`, whose engine asks for the device: call the nodes of the graph one by one."""
    import torch

    waiting = [(output.grad_fn, output.output_nr, torch.ones_like(output) if gradient is None else gradient)]
    while waiting:
        node, place, given = waiting.pop()
        if type(node).__name__ == "AccumulateGrad":
            continue
        with torch.no_grad():
            made = getattr(node, "apply", node)(*[None] * place, given, *_others(node, place))
        for (following, at), gradient in zip(
            node.next_functions, made if isinstance(made, tuple) else (made,), strict=False
        ):
            if following is not None and gradient is not None:
                waiting.append((following, at, gradient))


@contextlib.contextmanager
def pretended_cuda() -> Iterator[None]:
    """What torch says of its GPU, as on an H200 that is not there."""
    import torch

    answers: Mapping[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": (9, 0),
        "get_device_properties": PROPERTIES, "get_device_name": "NVIDIA H200", "synchronize": None, "set_device": None,
        "is_bf16_supported": True, "is_current_stream_capturing": False, "empty_cache": None, "_lazy_init": None,
        "mem_get_info": (140 << 30, 150 << 30),
    }  # fmt: skip
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None, wait_stream=lambda _: None)
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, return_value=answer))
        stack.enter_context(mock.patch.object(torch.cuda, "current_stream", return_value=stream))
        stack.enter_context(mock.patch.object(torch.cuda, "device", return_value=contextlib.nullcontext()))
        stack.enter_context(mock.patch.object(torch.version, "cuda", "12.9"))
        stack.enter_context(mock.patch.object(torch, "get_device_module", return_value=torch.cuda))
        yield


@contextlib.contextmanager
def pretended_gpu(*, compiled: bool = False) -> Iterator[Launches]:
    """An H200 that is not there: torch's tensors have no data, Triton's launches are noted."""
    import torch
    import torch._library.custom_ops as operators
    import torch._subclasses.fake_tensor as without_data
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    _register_device_guard()
    tensors = without_data.FakeTensorMode(allow_non_fake_inputs=True)
    launches = Launches(compile=JITFunction.run if compiled else None)

    def tune(tuner: Any, *args: Any, **named: Any) -> Any:
        return _tune(launches, tuner, *args, **named)

    begin = Autotuner.__init__

    def made(tuner: Any, fn: Any, names: Any, configs: Any, key: Any, *args: Any, **named: Any) -> None:
        # Tritons before 3.9 pass over a key that is no argument.
        begin(tuner, fn, names, configs, [k for k in key if k in names], *args, **named)

    def derived(tuner: Any) -> None:
        if "run" in vars(tuner):
            tuner.run = tune

    with contextlib.ExitStack() as stack:
        stack.enter_context(pretended_cuda())
        stack.enter_context(mock.patch.object(torch.Tensor, "backward", _backward))
        # An operator of a library would answer with its own shapes, and launch nothing.
        stack.enter_context(
            mock.patch.object(operators.CustomOpDef, "__call__", lambda op, *a, **n: op._init_fn(*a, **n))
        )
        stack.enter_context(mock.patch.object(JITFunction, "run", lambda k, *a, **n: _launch(launches, k, *a, **n)))
        stack.enter_context(mock.patch.object(Autotuner, "__init__", made))
        stack.enter_context(mock.patch.object(Autotuner, "run", tune))
        stack.enter_context(mock.patch.object(Autotuner, "__init_subclass__", classmethod(derived)))
        stack.enter_context(rehearsal("H200"))
        # Or `torch.tensor([1], device="cuda")` asks for the device.
        stack.enter_context(mock.patch.object(without_data.FakeTensorMode, "avoid_device_init", True))
        stack.enter_context(tensors)
        yield launches


def main(words: list[str] | None = None) -> int:
    """Run a program and print the kernels it would launch."""
    parser = argparse.ArgumentParser(prog="dry_run", description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument(
        "--compile", action="store_true", help="compile each kernel once for sm_90, which takes a second each"
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the program's own words")
    chosen = parser.parse_args(words)
    warnings.filterwarnings("ignore")
    with pretended_gpu(compiled=chosen.compile) as launches:
        sys.argv = [str(chosen.program), *chosen.words]
        runpy.run_path(str(chosen.program), run_name="__main__")
    for name in sorted(launches.keys):
        keys, configs, failure = len(launches.keys[name]), launches.configs[name], launches.failures.get(name, "")
        print(f"{keys:4} keys {configs:4} configs  {name}  {failure}")
    tuned = {name: len(keys) for name, keys in launches.keys.items() if launches.configs[name] > 1}
    configs = sum(keys * launches.configs[name] for name, keys in tuned.items())
    others = len(launches.keys) - len(tuned)
    print(f"{len(tuned)} tuned kernels, {sum(tuned.values())} keys, {configs} configs; {others} others")
    return 0


if __name__ == "__main__":
    sys.exit(main())
