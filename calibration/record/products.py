"""Verb `record-products`: time matrix products as Inductor's templates make them, and as the vendor's library does.

One Triton kernel stands for the templates of mm, addmm and bmm. Sizes are arguments of it, so one compiled config serves
hundreds of shapes; Inductor writes them into the code. Configs are drawn from its exhaustive list, its short one first.
Processes compile side by side, and this one times what is built, on cold caches. Every time is a line of JSON at once, in
FILE.part, so a recording that is killed keeps what it has. At the end FILE has a line for each product.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton

from forecast_autotune.frontends.inductor.template_kernels import GROUP_M, product

from ..tiles import FP8, FP8_FAST, Tile, is_fp8, itemsize, short_list

SHARED_BYTES = 227 << 10  # of one block on sm_90
MAX_PRODUCTS = 255  # 32-bit registers of a thread that sums may take
SEED = 7

# Beside Inductor's short list: BLOCK_M, BLOCK_N, BLOCK_K, num_stages, num_warps.
LIKELY = (
    (64, 64, 128, 3, 4), (128, 64, 64, 3, 8), (128, 64, 128, 4, 8), (128, 128, 32, 4, 4), (128, 128, 64, 3, 8),
    (128, 128, 64, 5, 4), (128, 256, 64, 3, 8), (128, 128, 128, 3, 8), (128, 128, 64, 4, 8), (256, 128, 64, 3, 8),
    (256, 128, 64, 4, 8), (128, 256, 64, 4, 8), (64, 256, 64, 3, 4), (64, 256, 64, 4, 8), (256, 64, 64, 4, 8),
    (16, 64, 128, 4, 4), (16, 128, 128, 4, 4), (16, 64, 256, 3, 4), (16, 32, 256, 4, 2), (16, 64, 64, 5, 2),
    (32, 64, 128, 4, 4), (32, 128, 64, 4, 4), (16, 128, 64, 5, 4), (64, 128, 64, 4, 4), (16, 256, 64, 4, 8),
    (128, 64, 64, 4, 4), (64, 64, 64, 4, 4), (32, 256, 64, 4, 8), (64, 32, 64, 4, 2), (32, 32, 64, 5, 2),
)  # fmt: skip

# What is recorded --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """A product of a model: `batch` times (m, k) by (k, n). `layout`: of A and B, whether by rows (n) or columns (t)."""

    dtype: str  # bf16, fp16, fp32, tf32, fp8, fp8-fast
    layout: str  # "nt": a layer's weight; "nn": its gradient of inputs; "tn": of weights
    batch: int
    m: int
    n: int
    k: int


# (n, k) of layers, by model as published in its configuration.
LAYERS = (
    (768, 768), (2304, 768), (3072, 768), (768, 3072),  # GPT-2, BERT base, ViT-B
    (1024, 1024), (3072, 1024), (4096, 1024), (1024, 4096),  # BERT large, ViT-L
    (1280, 1280), (5120, 1280), (1280, 5120),  # Whisper large, ViT-H
    (1536, 1536), (8960, 1536), (1536, 8960),  # Qwen2-1.5B
    (2048, 2048), (8192, 2048), (2048, 8192), (512, 2048),  # Llama-3.2-1B
    (4096, 4096), (6144, 4096), (28672, 4096), (14336, 4096), (4096, 14336), (1024, 4096),  # Llama-3-8B
    (11008, 4096), (4096, 11008), (12288, 4096), (22016, 4096),  # Llama-2-7B
    (3584, 3584), (18944, 3584), (3584, 18944), (4608, 3584),  # Qwen2.5-7B
    (5120, 5120), (13824, 5120), (5120, 13824),  # Llama-2-13B
    (8192, 8192), (10240, 8192), (8192, 28672), (3584, 8192), (1280, 8192), (8192, 1024), (8192, 3584),  # 70B, in 8 parts
    (320, 320), (640, 640), (2560, 320), (1280, 640), (320, 1280), (5120, 640),  # Stable Diffusion's blocks
    (1408, 2048), (2048, 1408), (1536, 7168), (7168, 2048), (2112, 7168), (768, 2048), (2048, 768),  # experts
    (256, 512), (512, 256), (128, 1024), (64, 256), (1024, 128), (256, 4096), (160, 5120), (64, 2048),  # heads, adapters
    (32, 4096), (4096, 16), (16, 4096), (4096, 64),
    (50257, 768), (32000, 4096), (128256, 2048), (30522, 768), (1000, 2048), (10, 512),  # vocabularies, classes
    (1000, 1024), (100, 300), (333, 777), (513, 1025), (769, 2049),  # odd ones
)  # fmt: skip
TOKENS = (1, 4, 8, 16, 32, 64, 77, 128, 197, 256, 512, 577, 1024, 1500, 2048, 4096, 8192, 16384)
BATCHED = (  # batch, m, n, k: attention by hand, and experts
    (12, 512, 512, 64), (16, 384, 384, 64), (32, 1024, 1024, 128), (32, 1024, 128, 1024), (16, 4096, 4096, 64),
    (8, 4096, 40, 4096), (128, 128, 128, 64), (192, 197, 197, 64), (192, 197, 64, 197), (64, 64, 64, 64), (256, 32, 32, 128),
    (8, 512, 2048, 512), (8, 64, 14336, 4096), (64, 16, 1408, 2048), (64, 128, 1408, 2048), (8, 256, 4096, 4096),
    (32, 1, 1024, 128), (32, 1, 128, 4096), (48, 77, 77, 64), (24, 256, 256, 256), (4, 2048, 2048, 2048), (96, 49, 49, 32),
)  # fmt: skip
MAX_FLOPS = {"bf16": 3e12, "fp16": 3e12, "tf32": 6e11, "fp32": 1e11, FP8: 6e12, FP8_FAST: 6e12}
SHARES = {  # of kinds: dtype, and layout or "batched"
    ("bf16", "nt"): 0.42, ("bf16", "nn"): 0.13, ("bf16", "tn"): 0.12, ("fp16", "nt"): 0.08, ("tf32", "nt"): 0.07,
    ("fp32", "nt"): 0.08, ("bf16", "batched"): 0.1,
}  # fmt: skip
SHARES_OF_FP8 = {(FP8, "nt"): 0.5, (FP8_FAST, "nt"): 0.5}  # the library takes no other layout
MAX_ELEMENTS = 1 << 28


def shapes(count: int, shares: Mapping[tuple[str, str], float] = SHARES) -> list[Shape]:
    """A seeded sample of products, ordered so that any beginning of it is a fair part of all."""
    draw = random.Random(SEED)
    chosen: dict[Shape, None] = {}
    kinds, weights = list(shares), list(shares.values())
    while len(chosen) < count:
        dtype, layout = draw.choices(kinds, weights)[0]
        if layout == "batched":
            batch, m, n, k = draw.choice(BATCHED)
            shape = Shape(dtype, draw.choice(("nt", "nn")), batch, m, n, k)
        else:
            (n, k), m = draw.choice(LAYERS), draw.choice(TOKENS)
            m, n, k = {"nt": (m, n, k), "nn": (m, k, n), "tn": (n, k, m)}[layout]
            shape = Shape(dtype, layout, 1, m, n, k)
        elements = max(shape.m * shape.k, shape.k * shape.n, shape.m * shape.n) * shape.batch
        if is_fp8(dtype) and (n % 16 or k % 16):  # the library takes none
            continue
        if 2.0 * shape.batch * m * n * k <= MAX_FLOPS[dtype] and elements <= MAX_ELEMENTS:
            chosen[shape] = None
    return list(chosen)


def tiles(dtype: str) -> list[Tile]:
    """The configs to draw from: Inductor's short list, likely ones, then the rest of its exhaustive list, shuffled."""
    every: list[Tile] = [
        (m, n, k, stages, min(warps, m * n // 256))  # as Inductor has it
        for m, n, k in itertools.product((16, 32, 64, 128, 256), repeat=3)
        if not is_fp8(dtype) or k >= 32
        for stages in (1, 2, 3, 4, 5)
        for warps in (2, 4, 8)
    ]
    random.Random(SEED).shuffle(every)
    ordered = dict.fromkeys([*short_list(dtype), *LIKELY, *every])
    return [tile for tile in ordered if _fits(tile, itemsize(dtype))]


def _fits(tile: Tile, size: int) -> bool:
    block_m, block_n, block_k, stages, warps = tile
    shared = (block_m + block_n) * block_k * size * max(1, stages)
    return shared <= SHARED_BYTES and block_m * block_n <= MAX_PRODUCTS * 32 * warps


def suits(tile: Tile, shape: Shape) -> bool:
    """Whether Inductor would try it: no block beyond its side, rounded up to a power of two of at least 16."""
    sides = zip(tile, (shape.m, shape.n, shape.k), strict=False)
    if any(block > max(16, 1 << (side - 1).bit_length()) for block, side in sides):
        return False
    close_m = shape.layout[0] == "n" or shape.m >= tile[0]  # else the hint that rows lie close does not hold
    return close_m and (shape.layout[1] == "t" or shape.n >= tile[1])


@dataclass(frozen=True, slots=True)
class Build:
    """One thing to compile: a config for shapes of one kind, told apart by what Triton specializes on."""

    dtype: str
    layout: str
    tile: Tile
    even_k: bool
    n_by_16: bool
    k_by_16: bool
    m_by_16: bool  # of a stride, in layout "tn"; else True

    @classmethod
    def of(cls, tile: Tile, shape: Shape) -> Build:
        m_by_16 = shape.m % 16 == 0 or shape.layout[0] == "n"
        return cls(
            shape.dtype, shape.layout, tile, shape.k % tile[2] == 0, shape.n % 16 == 0, shape.k % 16 == 0, m_by_16
        )


def arguments(shape: Shape) -> tuple[int, ...]:
    """m, n, k and the strides."""
    m, n, k = shape.m, shape.n, shape.k
    a = (k, 1) if shape.layout[0] == "n" else (1, m)
    b = (n, 1) if shape.layout[1] == "n" else (1, k)
    return (m, n, k, *a, *b, *((m * k, k * n) if shape.batch > 1 else (0, 0)))


def constants(build: Build) -> dict[str, Any]:
    block_m, block_n, block_k, stages, warps = build.tile
    return {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "EVEN_K": build.even_k, "GROUP_M": GROUP_M,
        "A_BY_ROWS": build.layout[0] == "n", "B_BY_ROWS": build.layout[1] == "n", "ALLOW_TF32": build.dtype == "tf32",
        "FAST_ACCUM": build.dtype == FP8_FAST,
        "num_stages": stages, "num_warps": warps,
    }  # fmt: skip


def compile_one(build: Build, shape: Shape) -> float:
    """Compile into Triton's cache; seconds. Runs in a process of its own."""
    began = time.monotonic()
    operand, result = torch_dtypes(build.dtype)
    product.warmup(operand, operand, result, *arguments(shape), grid=(1,), **constants(build))
    return time.monotonic() - began


def torch_dtypes(name: str) -> tuple[Any, Any]:
    """Of the operands, and of the result."""
    import torch

    if is_fp8(name):
        return torch.float8_e4m3fn, torch.bfloat16
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
    return dtype, dtype


# Timing ------------------------------------------------------------------------------------------------------------------


class Device:
    """Tensors of any shape out of one piece of memory, and times on cold caches."""

    def __init__(self) -> None:
        import torch

        from forecast_autotune.measure.clocks import EventClock

        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        cache = torch.empty(2 * properties.L2_cache_size, dtype=torch.int8, device="cuda")
        cycles = 1.7e9
        self._clock = EventClock(
            torch.cuda, flush=cache.zero_, spin=lambda seconds: torch.cuda._sleep(int(seconds * cycles))
        )
        self._memory: dict[Any, tuple[Any, Any, Any]] = {}

    def tensors(self, shape: Shape) -> tuple[Any, Any, Any]:
        torch, (operand, result) = self.torch, torch_dtypes(shape.dtype)
        if operand not in self._memory:
            drawn_as = torch.bfloat16 if is_fp8(shape.dtype) else operand
            self._memory[operand] = (
                torch.randn(MAX_ELEMENTS, dtype=drawn_as, device="cuda").to(operand),
                torch.randn(MAX_ELEMENTS, dtype=drawn_as, device="cuda").to(operand),
                torch.empty(MAX_ELEMENTS, dtype=result, device="cuda"),
            )
        m, n, k, *strides = arguments(shape)
        a, b, c = self._memory[operand]
        size = (lambda *of: (shape.batch, *of)) if shape.batch > 1 else (lambda *of: of)
        batches = (m * k, k * n, m * n) if shape.batch > 1 else ()
        return (
            torch.as_strided(a, size(m, k), (*batches[:1], *strides[0:2])),
            torch.as_strided(b, size(k, n), (*batches[1:2], *strides[2:4])),
            torch.as_strided(c, size(m, n), (*batches[2:], n, 1)),
        )

    def time_us(self, call: Any, slow_us: float = math.inf) -> float:
        """The median of a few launches; of one that is far slower than `slow_us`, of two."""
        from forecast_autotune.measure.clocks import Launch

        launch = Launch(call=call)
        call()
        (first,) = self._clock.time_batch(launch, 1)
        if first > slow_us:
            return first
        count = max(3, min(9, int(1.5e4 / first)))
        return statistics.median(self._clock.time_batch(launch, count))


def record(given: argparse.Namespace) -> None:
    """Compile and time until the time is over, then write what was timed by product."""
    part = given.to.with_name(given.to.name + ".part")
    try:
        _record_times(given, part)
    finally:
        with part.open(encoding="utf-8") as lines, gzip.open(given.to, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(product) + "\n" for product in by_product(map(json.loads, lines)))
    part.unlink()


def by_product(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Times by product, in the order in which products came; what failed is left out."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        if "us" in line:
            of_product = found.setdefault(json.dumps(line["shape"]), {"shape": line["shape"], "times_us": []})
            of_product["times_us"].append([line["config"], line["us"]])
    return list(found.values())


def _record_times(given: argparse.Namespace, part: Path) -> None:
    until = time.monotonic() + given.seconds
    listed = shapes(given.shapes, SHARES_OF_FP8 if given.fp8 else SHARES)
    draw = random.Random(SEED)
    waiting: dict[Build, list[Shape]] = {}
    for shape in listed:
        suited = [tile for tile in tiles(shape.dtype) if suits(tile, shape)]
        for tile in suited[: given.configs]:
            waiting.setdefault(Build.of(tile, shape), []).append(shape)
    # First what many shapes wait for.
    order = sorted(
        waiting, key=lambda b: (-len(waiting[b]) * (1.5 if b.tile in short_list(b.dtype) else 1.0), draw.random())
    )
    print(f"{len(listed)} shapes, {len(order)} builds, {sum(map(len, waiting.values()))} times", file=sys.stderr)
    with (
        part.open("w", encoding="utf-8") as file,
        ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool,
    ):
        builds: dict[Future[float], Build] = {}
        coming = iter(order)
        for build in itertools.islice(coming, 3 * given.workers):
            builds[pool.submit(compile_one, build, waiting[build][0])] = build
        device = Device()
        best = _libraries(device, listed, file)
        counted = 0
        while builds and time.monotonic() < until:
            done, _ = wait(builds, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                build = builds.pop(future)
                if (another := next(coming, None)) is not None:
                    builds[pool.submit(compile_one, another, waiting[another][0])] = another
                for line in _timed(device, build, waiting[build], future, best):
                    file.write(json.dumps(line) + "\n")
                    counted += 1
                    if time.monotonic() > until:
                        break
                file.flush()
        print(f"{counted} times", file=sys.stderr)
        file.flush()
        os.fsync(file.fileno())
        for process in list(pool._processes.values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def _line(shape: Shape, config: Sequence[int] | str, **more: Any) -> dict[str, Any]:
    return {"shape": [shape.dtype, shape.layout, shape.batch, shape.m, shape.n, shape.k], "config": config, **more}


def _libraries(device: Device, listed: Sequence[Shape], file: Any) -> dict[Shape, float]:
    """What the vendor's library takes, of each shape; and with a bias, as of addmm."""
    torch, best = device.torch, {}
    one = torch.ones((), device="cuda")  # what products of fp8 are scaled by
    for shape in listed:
        torch.backends.cuda.matmul.allow_tf32 = shape.dtype == "tf32"
        a, b, c = device.tensors(shape)
        multiply = torch._scaled_mm if is_fp8(shape.dtype) else torch.bmm if shape.batch > 1 else torch.mm
        call = partial(multiply, a, b, out=c)
        if is_fp8(shape.dtype):
            fast = shape.dtype == FP8_FAST
            call = partial(multiply, a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)
        best[shape] = device.time_us(call)
        file.write(json.dumps(_line(shape, multiply.__name__, us=round(best[shape], 3))) + "\n")
        if shape.batch == 1 and shape.layout == "nt" and not is_fp8(shape.dtype):
            bias = torch.randn(shape.n, dtype=a.dtype, device="cuda")
            us = device.time_us(lambda: torch.addmm(bias, a, b))  # noqa: B023  # called at once
            file.write(json.dumps(_line(shape, "addmm", us=round(us, 3))) + "\n")
    file.flush()
    return best


def _timed(
    device: Device, build: Build, some: Sequence[Shape], built: Future[float], best: dict[Shape, float]
) -> Iterator[dict[str, Any]]:
    """The time of one build at each of its shapes."""
    if (err := built.exception()) is not None:
        yield _line(some[0], build.tile, failed=f"{type(err).__name__}: {err}"[:200], shapes=len(some))
        return
    for shape in some:
        a, b, c = device.tensors(shape)
        grid = (triton.cdiv(shape.m, build.tile[0]) * triton.cdiv(shape.n, build.tile[1]), shape.batch)
        call = partial(product[grid], a, b, c, *arguments(shape), **constants(build))
        try:
            us = device.time_us(call, 4 * best[shape])
        except Exception as err:
            yield _line(shape, build.tile, failed=f"{type(err).__name__}: {err}"[:200])
            if "OutOfResources" in type(err).__name__:
                return
            device.torch.cuda.synchronize()
            continue
        yield _line(shape, build.tile, us=round(us, 3), compile_s=round(built.result(), 2))


def main(words: Sequence[str] | None = None) -> int:
    """Record, into a compressed file of JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m calibration record-products", description=__doc__)
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="FILE",
        help="to be fitted: products.NVIDIA_H200.jsonl.gz, by the GPU's name",
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="default: %(default)s")
    parser.add_argument("--shapes", type=int, default=300, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--configs", type=int, default=160, metavar="N", help="of a shape, at most; default: %(default)s"
    )
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), metavar="N")
    parser.add_argument("--fp8", action="store_true", help="fp8 products only")
    record(parser.parse_args(words))
    return 0


if __name__ == "__main__":
    sys.exit(main())
