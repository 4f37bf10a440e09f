"""Inductor's candidates for one product as configs of a space, and the product as a job.

A candidate is a template of Inductor's with its parameters, or a function of the vendor's library, which has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch._inductor.virtualized import V

from ...core.config import Config
from ...core.hardware import Hardware, Toolchain
from ...core.job import Job
from ...core.space import Space
from ...core.workload import Program, Workload
from ...features.launch_features import buffers, describe_call, launch_features, work_of
from ...measure.probe import detect_hardware
from .request import PREFIX

LIBRARIES = "aten::"
"""Before the name of a library's function, what its candidate is called."""

DEPENDENT = ("EVEN_K", "ACC_TYPE", "USE_FAST_ACCUM", "hint_override")
"""Parameters that the operation, its dtypes and the tiles decide, or that are none here."""

OPERANDS = {
    "mm": ("a", "b"),
    "bmm": ("a", "b"),
    "addmm": ("bias", "a", "b"),
    "baddbmm": ("bias", "a", "b"),
    "mm_plus_mm": ("a", "b", "c", "d"),
    "scaled_mm": ("a", "b", "a_scale", "b_scale", "bias"),
}
FORESEEN = ("mm", "bmm", "addmm", "baddbmm", "scaled_mm")  # operations that are one product
# Of tf32 and of sums of few the library is slower than forecast, up to half as fast (H200).
FORESEEN_ITEMSIZE, LONG_ROW = 2, 130  # bytes of an element; bytes that are multiplied for one of the results
# Bytes of the elements of products that a model decides where nothing can be measured: none was fitted on int8, and of fp8
# the library alone is as good as what its model chooses (`calibration fit-products --fp8`).
FITTED = (2, 4)
LAUNCH_US = 2.0  # of next to nothing, by the profiler (H200)
WIDEST = 16  # bytes of one access
SMALL_SIDE, MANY_WAVES = 64, 32  # of a tile, two sides of which make a small one; programs for each unit of the device
LEAST_SIDE = 16  # of a tile
TILES = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
SCALED_IN_LOOP = "TILE_SIZE_A"  # a parameter of the template that scales block by block: nothing that is described


@dataclass(frozen=True)
class Operand:
    """A tensor of a product by its sizes, as far as they are known: hints of those that may change."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def key(self) -> dict[str, object]:
        """It as a part of a workload's key."""
        name = str(self.dtype).removeprefix("torch.")
        return {"shape": list(self.shape), "stride": list(self.strides), "dtype": name}


@dataclass(frozen=True)
class Lowered:
    """A product that Inductor lowers, and what it lists for it: two that are equal are decided alike.

    Attributes:
        op: the operation, as Inductor calls it.
        sizes: m, n, k.
        is_dynamic: whether a size may change.
        epilogue: whether all that is done with the result is pointwise, which a template may take in.
        fast_accum: whether sums of fp8 may be held with fewer bits.
        listed: the parameters of Inductor's own candidates, in its order, each with its template.
    """

    op: str
    operands: tuple[Operand, ...]
    sizes: tuple[int, int, int]
    out_dtype: torch.dtype
    device: torch.device
    is_dynamic: bool
    epilogue: bool
    tf32: bool
    fast_accum: bool
    listed: tuple[str, ...]

    @classmethod
    def of(cls, listed: Sequence[Any], kernel_inputs: Any, op: str) -> Lowered:
        shapes, strides, dtypes = kernel_inputs.shapes_hinted(), kernel_inputs.strides_hinted(), kernel_inputs.dtypes()
        operands = tuple(Operand(tuple(s), tuple(t), d) for s, t, d in zip(shapes, strides, dtypes, strict=True))
        in_tf32 = any(candidate.extra_kwargs.get("ALLOW_TF32") for candidate in listed)
        return cls(
            op=op,
            operands=operands,
            sizes=tuple(kernel_inputs.mnk_hinted()),
            out_dtype=kernel_inputs.out_dtype(),
            device=kernel_inputs.device(),
            is_dynamic=not all(is_number(size) for sizes in kernel_inputs.shapes_symbolic() for size in sizes),
            epilogue=_has_epilogue(),
            tf32=in_tf32 and any(operand.dtype == torch.float32 for operand in operands),
            fast_accum=any(candidate.params.to_kwargs().get("USE_FAST_ACCUM") for candidate in listed),
            listed=tuple(Config(_knobs(candidate)).text for candidate in listed),
        )

    @property
    def key(self) -> dict[str, object]:
        """It as a workload's key."""
        names = OPERANDS.get(self.op, ())
        if len(names) < len(self.operands):
            names = tuple(f"operand{i}" for i in range(len(self.operands)))
        key: dict[str, object] = {name: operand.key for name, operand in zip(names, self.operands, strict=False)}
        if self.out_dtype != self.operands[-1].dtype:
            key["out"] = str(self.out_dtype).removeprefix("torch.")
        flags = {
            "tf32": self.tf32,
            "fast_accum": self.fast_accum,
            "dynamic": self.is_dynamic,
            "epilogue": self.epilogue,
        }
        return {**key, **{name: True for name, holds in flags.items() if holds}}

    @property
    def product(self) -> Product:
        """What is to be multiplied."""
        m, n, k = self.sizes
        matrices = [operand for operand in self.operands if len(operand.shape) >= 2]
        a = next((o for o in matrices if o.shape[-2:] == (m, k)), self.operands[0])
        b = next((o for o in matrices if o is not a and o.shape[-2:] == (k, n)), self.operands[-1])
        return Product(
            batch=math.prod(a.shape[:-2]),
            m=m,
            n=n,
            k=k * (2 if self.op == "mm_plus_mm" else 1),
            a_by_rows=a.strides[-1] == 1,
            b_by_rows=b.strides[-1] == 1,
            itemsize=a.dtype.itemsize,
            out_itemsize=self.out_dtype.itemsize,
            tf32=self.tf32,
            fp8=self.op == "scaled_mm" and self._is_as_recorded(a, b),
            fast_accum=self.fast_accum,
        )

    def _is_as_recorded(self, a: Operand, b: Operand) -> bool:
        """Whether a product of fp8 is one as the model was fitted on, library and all."""
        are_e4m3 = a.dtype == b.dtype == torch.float8_e4m3fn
        scales = [each for each in self.operands if each is not a and each is not b]
        are_single = len(scales) == 2 and all(math.prod(scale.shape) == 1 for scale in scales)
        return bool(are_e4m3 and self.out_dtype.itemsize == 2 and are_single)


def is_fp8(dtype: torch.dtype) -> bool:
    """Whether elements are fp8."""
    return bool(dtype.is_floating_point and dtype.itemsize == 1)


def library_is_foreseen(product: Product) -> bool:
    """Whether forecasts are to be believed where they say that nothing beats the library."""
    is_known = product.fp8 or product.itemsize == FORESEEN_ITEMSIZE
    return is_known and product.k * product.itemsize >= LONG_ROW


class Candidates:
    """What Inductor lists for a product, and more of the same templates, as the space of a job.

    Attributes:
        parameters: by config, its template and what that is given.
        undescribed_job: what is to be decided, as far as a store needs it.
        epilogue_us: what a template saves, against the library, by taking in what is done with the result.
        may_go_on_whole: whether all may be timed where nothing is forecast.
        library_is_foreseen: whether the forecasts know how good the library is beside the templates.

    Args:
        lowered: the product.
        listed: Inductor's own candidates; the first is the default that others are compared with.
        more: further ones; those of a template that is not in Inductor's own list, and those that do not fit, are left out.
        small: whether those whose tiles are far too small stay in.
    """

    may_go_on_whole = False

    def __init__(self, lowered: Lowered, listed: Sequence[Any], more: Sequence[Any], *, small: bool = True) -> None:
        own = {candidate.template.uid for candidate in listed}
        hardware, product = detect_hardware(str(lowered.device)), lowered.product
        every = [(candidate, _knobs(candidate)) for candidate in listed]
        further = ((candidate, _knobs(candidate)) for candidate in more if candidate.template.uid in own)
        every += [
            (candidate, knobs)
            for candidate, knobs in further
            if fits(product, knobs, hardware) and (small or not is_too_small(product, knobs, hardware))
        ]
        names = tuple(dict.fromkeys(name for _, knobs in every for name in knobs))
        self.parameters: dict[Config, tuple[str, Any]] = {}
        for candidate, knobs in every:
            config = Config({name: knobs.get(name) for name in names})
            self.parameters.setdefault(config, (candidate.template.uid, candidate.params))
        self.undescribed_job = Job(
            workload=Workload(program=program_of(lowered.op), key=lowered.key, timing="inductor"),
            space=Space(list(self.parameters)),
            hardware=hardware,
            toolchain=toolchain_of(lowered.device.type),
        )
        self.epilogue_us = _epilogue_us(lowered, hardware)
        self._product = product
        self.library_is_foreseen = lowered.op in FORESEEN and library_is_foreseen(self._product)

    @cached_property
    def job(self) -> Job:
        """What is to be decided, with what forecasts need; that takes half of the time of a product that is decided."""
        job = self.undescribed_job
        return with_features(job, described(self._product, [config.knobs for config in job.space], job.hardware))

    @property
    def unmeasured_job(self) -> Job:
        """The job where nothing can be measured: the model decides nothing on elements that it was not fitted on."""
        return self.job if self._product.itemsize in FITTED else self.undescribed_job

    @property
    def externs(self) -> tuple[Config, ...]:
        """Functions of libraries, which need no compiling."""
        return tuple(config for config in self.undescribed_job.space if is_library(config))


def with_features(job: Job, features: tuple[Mapping[str, float], ...]) -> Job:
    """A job whose configs are described, by mappings that are empty for those that nothing is known of."""
    return replace(job, work=work_of([each for each in features if "programs" in each]), static_features=features)


def as_listed(parameters: tuple[str, Any], listed: Sequence[Any]) -> Any:
    """A candidate of given parameters for the product that Inductor lowers now.

    It is the library's own, or one like those that Inductor lists of the same template.
    """
    uid, params = parameters
    mate = next(candidate for candidate in listed if candidate.template.uid == uid)
    if is_extern(mate):
        return mate
    return type(mate)(mate.template, params, mate.extra_kwargs, mate.layout, mate.inputs)


def is_library(config: Config) -> bool:
    """Whether a config is a function of a library."""
    return str(config.knobs["template"]).startswith(LIBRARIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A batch of products, (m, k) by (k, n), each operand by rows or by columns; sizes of elements in bytes.

    Attributes:
        fp8: whether it is one of fp8 as was recorded: e4m3, each operand with one scale, no bias, a result of two bytes. Who
            scales by rows calls another function of the library's.
    """

    batch: int
    m: int
    n: int
    k: int
    a_by_rows: bool
    b_by_rows: bool
    itemsize: int
    out_itemsize: int
    tf32: bool = False
    fp8: bool = False
    fast_accum: bool = False


def is_extern(candidate: Any) -> bool:
    """Whether a candidate is a function of a library."""
    from torch._inductor.select_algorithm import ExternKernelChoice

    return isinstance(candidate.template, ExternKernelChoice)


def program_of(op: str) -> Program:
    """An operation as a program: the same in all versions of torch, whose templates differ by the toolchain."""
    return Program(name=PREFIX + op, language="triton", source=f"torch._inductor's candidates for {op}")


def _knobs(candidate: Any) -> dict[str, Any]:
    """The parameters of a candidate that make it differ from others, and the template that they are of."""
    kwargs = {name: value for name, value in candidate.params.to_kwargs().items() if name not in DEPENDENT}
    simple = (bool, int, float, str, type(None))
    return {
        "template": candidate.template.uid.rpartition("::")[2] if not is_extern(candidate) else candidate.template.uid,
        **{name: value if isinstance(value, simple) else str(value) for name, value in kwargs.items()},
    }


def _has_epilogue() -> bool:
    """Whether what Inductor lowers now is used by pointwise operations alone, up to the graph's results or further products.

    Not where the result itself is needed too, and not where a reduction follows: that would take the operations in, and a
    template saves little by it.
    """
    node = getattr(V.graph, "current_node", None)
    ahead = [(user, False) for user in getattr(node, "users", ())]
    seen = set(ahead)
    while ahead:
        user, is_changed = ahead.pop()
        if user.op == "output" or getattr(user.target, "_opname", "").lstrip("_") in OPERANDS:
            if not is_changed:
                return False
            continue
        is_pointwise = torch.Tag.pointwise in getattr(user.target, "tags", ())
        if not is_pointwise and not getattr(user.target, "is_view", False):
            return False
        users = {(each, is_changed or is_pointwise) for each in user.users} - seen
        seen |= users
        ahead += users
    return bool(seen)


def _epilogue_us(lowered: Lowered, hardware: Hardware) -> float:
    """What an epilogue saves that a template takes in: a launch, and the result is not written and read once more."""
    if not lowered.epilogue or hardware.bandwidth_gb_per_s <= 0:
        return 0.0
    product = lowered.product
    result = product.batch * product.m * product.n * product.out_itemsize
    return LAUNCH_US + 2.0 * result / hardware.bandwidth_gb_per_s / 1e3


def is_number(size: Any) -> bool:
    """Whether a size of a tensor can never change."""
    return isinstance(size, int) or bool(getattr(size, "is_number", False))


@lru_cache(maxsize=8)
def toolchain_of(device_type: str) -> Toolchain:
    """What compiles for a kind of device."""
    if device_type != "cpu":
        from ..triton.target import current_toolchain

        return current_toolchain()
    return Toolchain(versions={"torch": str(torch.__version__)})


def described(
    product: Product, configs: Sequence[Mapping[str, Any]], hardware: Hardware
) -> tuple[Mapping[str, float], ...]:
    """The features of configs of a product, in the names of `launch_features`.

    Args:
        configs: knobs; one without tiles is a function of a library, or a template that nothing is known of.
    """
    from .template_kernels import GROUP_M
    from .template_kernels import product as kernel

    p = product
    a = ((p.k, 1) if p.a_by_rows else (1, p.m), (p.m, p.k), p.itemsize)
    b = ((p.n, 1) if p.b_by_rows else (1, p.k), (p.k, p.n), p.itemsize)
    c = ((p.n, 1), (p.m, p.n), p.out_itemsize)
    a_ptr, b_ptr, c_ptr = (
        Sized((p.batch, *shape), (math.prod(shape), *strides), size) for strides, shape, size in (a, b, c)
    )
    arguments = {
        "a_ptr": a_ptr, "b_ptr": b_ptr, "c_ptr": c_ptr, "m": p.m, "n": p.n, "k": p.k,
        "a_row": a[0][0], "a_column": a[0][1], "b_row": b[0][0], "b_column": b[0][1],
        "a_batch": p.m * p.k, "b_batch": p.k * p.n,
        "A_BY_ROWS": p.a_by_rows, "B_BY_ROWS": p.b_by_rows, "ALLOW_TF32": p.tf32, "FAST_ACCUM": p.fast_accum,
    }  # fmt: skip

    def grid(meta: Mapping[str, Any]) -> tuple[int, int]:
        return -(-p.m // meta["BLOCK_M"]) * -(-p.n // meta["BLOCK_N"]), p.batch

    with_tiles = [
        all(isinstance(knobs.get(name), int) for name in TILES) and knobs.get(SCALED_IN_LOOP) is None
        for knobs in configs
    ]
    tiles = [
        {"GROUP_M": GROUP_M, **_stated(knobs), "EVEN_K": p.k % int(knobs["BLOCK_K"]) == 0}
        for knobs, has in zip(configs, with_tiles, strict=True)
        if has
    ]
    features = launch_features(kernel, describe_call(arguments), tiles, grid=grid, hardware=hardware)
    if p.itemsize == 4 and not p.tf32 and hardware.peak_gflops:  # products in full float32 use no matrix units
        slower = tensor_share(hardware)
        features = [{**f, "us_flops": f["us_flops"] * slower} if "us_flops" in f else f for f in features]
    of_tiles = iter(features)
    library = _library(features, p)
    return tuple(
        next(of_tiles) if has else library if str(knobs.get("template", "")).startswith(LIBRARIES) else {}
        for knobs, has in zip(configs, with_tiles, strict=True)
    )


def fits(product: Product, knobs: Mapping[str, Any], hardware: Hardware) -> bool:
    """Whether a template's tiles fit in what memory a block may share; true where that is not known.

    With elements of two bytes each stage holds a tile of both operands: 256 x 128 x 64 in five stages asks for 245,760 bytes
    (H100, Triton 3.6). Before sm_90 the last stage holds none.
    """
    m, n, k, stages = (knobs.get(name) for name in (*TILES, "num_stages"))
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int) and isinstance(stages, int)):
        return True
    is_pipelined = -(-product.k // k) >= stages
    is_known = hardware.warp_size > 1 and hardware.shared_bytes > 0 and product.itemsize == 2
    if not is_known or not is_pipelined:
        return True
    return buffers(stages, hardware) * (m + n) * k * product.itemsize <= hardware.shared_bytes


def is_too_small(product: Product, knobs: Mapping[str, Any], hardware: Hardware) -> bool:
    """Whether a template's tiles are so small that the device would run through many waves of them for nothing.

    Not where the result itself is as narrow. By none of 471 recorded products is such a tile the best. Of the exhaustive
    list for a large product it is half, and each candidate costs 0.2 ms to look at.
    """
    m, n = (knobs.get(name) for name in TILES[:2])
    if not (isinstance(m, int) and isinstance(n, int) and hardware.units):
        return False
    small_m, small_n = (
        min(SMALL_SIDE, max(LEAST_SIDE, 1 << (size - 1).bit_length())) for size in (product.m, product.n)
    )
    programs = product.batch * -(-product.m // m) * -(-product.n // n)
    return m * n < small_m * small_n and programs > MANY_WAVES * hardware.units


def tensor_share(hardware: Hardware) -> float:
    """How many times longer products of float32 take on the units for single numbers than on those for matrices."""
    return max(1.0, 0.5 * hardware.peak_tensor_gflops / hardware.peak_gflops)


def _stated(knobs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in knobs.items() if value is not None}


_LEAST = ("us_flops", "us_memory", "us_bound", "unique_bytes", "least_flops", "least_bytes")


def _library(of_tiles: Sequence[Mapping[str, float]], product: Product) -> dict[str, float]:
    """A library's function: it moves and computes at least what any config must.

    Its `waste` is how much narrower its accesses are than 16 bytes, by where rows begin: 3 to 6 times the time is seen where
    they begin at odd places (cuBLAS 13, H200, the output of a vocabulary of 50,257).
    """
    least = {name: min(values) for name in _LEAST if (values := [f[name] for f in of_tiles if name in f])}
    if "unique_bytes" in least:
        least["traffic_bytes"] = least["unique_bytes"]
    if "least_flops" in least:
        least["flops"] = least["least_flops"]
    p = product
    pitches = (p.k if p.a_by_rows else p.m, p.n if p.b_by_rows else p.k)
    bytes_apart = [pitch * p.itemsize for pitch in pitches] + [p.n * p.out_itemsize]
    return {**least, "waste": WIDEST / math.gcd(WIDEST, *bytes_apart)}


@dataclass(frozen=True, slots=True)
class Sized:
    """A tensor as `describe_call` asks of one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def element_size(self) -> int:
        return self.itemsize
