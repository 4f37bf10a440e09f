"""CUDA variants compiled for the CPU with `cuda_on_cpu.h`: what they compute is tested without a GPU."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
from kernel_suite import Kernel

from forecast_autotune.core.config import Config

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
# The sanitizers report an index out of its array and a misaligned load on stderr, as a "runtime error". Without unique
# symbols, each library has shared memory of its own.
FLAGS = ("-O1", "-fno-gnu-unique", "-fsanitize=bounds,alignment")

_LAUNCH = re.compile(r"(\w+(?:<[^<>;]*>)?)<<<(.*?)>>>\((.*?)\);", re.DOTALL)
_DYNAMIC = re.compile(r"extern __shared__ float (\w+)\[\];")

# Sizes that precede the pointers in a kernel's parameters.
SIZES: dict[str, Callable[..., tuple[int, ...]]] = {
    "cuda_reduction": lambda x, _out: (x.numel(),),
    "cuda_transpose": lambda x, _out: tuple(x.shape),
    "cuda_softmax": lambda x, _out: tuple(x.shape),
    "cuda_gemm": lambda a, b, _out: (a.shape[0], b.shape[1], a.shape[1]),
    "cuda_conv2d": lambda image, weight, _out: (*image.shape, weight.shape[0], *weight.shape[2:]),
}


def drawn(kernel: Kernel, seed: int, *, more: int = 0) -> list[Config]:
    """The default config and one of each other source, drawn at random; then `more` of every source."""
    draw = random.Random(seed)
    chosen = [kernel.space.default]
    for source in dict.fromkeys(config["source"] for config in kernel.space):
        those = [config for config in kernel.space[1:] if config["source"] == source]
        wanted = more + (source != kernel.space.default["source"])
        chosen += draw.sample(those, min(wanted, len(those)))
    return chosen


def knobs(config: Config, kernel: Kernel) -> list[str]:
    """The macros of a config, as a compiler takes them."""
    roles = kernel.space.roles
    return [f"-D{name}={value}" for name, value in config.knobs.items() if name != "source" and roles[name] != "flag"]


def on_cpu(text: str) -> str:
    """A CUDA source as C++: each launch becomes a call of the emulation."""
    text = _DYNAMIC.sub(r"float* const \1 = on_cpu::dynamic.data();", text)
    text = re.sub(r"#include <cuda_\w+\.h>", "", text)
    return f'#include "{HEADER}"\n' + _LAUNCH.sub(r"on_cpu::launch(\2, [&] { \1(\3); });", text)


def emulated(kernel: Kernel, config: Config, folder: Path, text: str | None = None) -> Callable[..., None]:
    """One variant, or `text` in place of its source, as a function of CPU tensors; a launch that fails raises."""
    source, library = (folder / f"{kernel.name}_{config.digest}{ending}" for ending in (".cpp", ".so"))
    source.write_text(on_cpu(text or kernel.sources[str(config["source"])].read_text()))
    includes = f"-I{kernel.sources['binding'].parent}"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", *FLAGS, includes, *knobs(config, kernel), str(source)]
    command += ["-o", str(library)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, f"{kernel.name} {config}:\n{built.stderr}"
    return caller(kernel, ctypes.CDLL(str(library)))


def caller(kernel: Kernel, library: ctypes.CDLL) -> Callable[..., None]:
    """A variant's C interface as a function of tensors, on the current stream."""

    def call(*tensors: torch.Tensor) -> None:
        sizes = [ctypes.c_int64(n) for n in SIZES[kernel.name](*tensors)]
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        if hasattr(library, f"{kernel.name}_scratch"):
            floats = getattr(library, f"{kernel.name}_scratch")
            floats.restype = ctypes.c_int64
            scratch = torch.full((floats(*sizes),), torch.nan, device=tensors[-1].device)
            pointers.append(ctypes.c_void_p(scratch.data_ptr()))
        stream = torch.cuda.current_stream().cuda_stream if tensors[-1].is_cuda else 0
        error = getattr(library, f"{kernel.name}_kernel")(*sizes, *pointers, ctypes.c_void_p(stream))
        assert error == 0, f"CUDA error {error}"

    return call
