"""Candidates that Inductor has rendered but not compiled, as configs of a space: convolutions and flex attention.

Inductor asks for their parameters before it says which operation they are for. So they are taken when all are rendered,
which costs milliseconds; compiling and timing cost seconds. A candidate is its template's name and the parameters in its
description, or a function of the vendor's library.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

from ...core.config import Config
from ...core.hardware import Hardware
from ...core.job import Job
from ...core.space import Space
from ...core.workload import Workload
from ...features.launch_features import describe_call, launch_features
from ...measure.probe import detect_hardware
from .candidates import Candidates, program_of, toolchain_of
from .lowered import Operand
from .product import Product, Sized, product_features

CONVOLUTIONS = (
    "convolution2d",
    "convolution3d",
    "depthwise_conv1d",
    "convolution2d_bwd_weight",
    "convolution2d_bwd_input",
)
ATTENTION = ("flex_attention", "flex_attention_backward", "flex_decoding")
TUNED = re.compile(r"BLOCK_\w+|num_\w+|USE_TMA|kpack|matrix_instr_nonkdim|waves_per_eu|SPLIT_KV")
"""Parameters that make a config, also where all candidates have the same; others that all share belong to the operation."""

NAMED = re.compile(r"triton_(\w+)_\d+")
PARAMETER = re.compile(r"(\w+)=(.*)")


def operation_of(listed: Sequence[Any]) -> str:
    """The template that all candidates but the library's are of; empty where they are not known here, or are of several."""
    templates = {_template(choice) for choice in listed if not isinstance(choice, ExternKernelCaller)}
    (template,) = templates if len(templates) == 1 else ("",)
    return template if template in CONVOLUTIONS + ATTENTION else ""


def _template(choice: Any) -> str:
    named = NAMED.fullmatch(choice.name) if isinstance(choice, TritonTemplateCaller) else None
    return named[1] if named else ""


class RenderedCandidates(Candidates):
    """What Inductor has rendered for one operation; whatever is fused is fused with all of them.

    Attributes:
        places: by config, where it is in the list.

    Args:
        operation: the template's name, see `operation_of`.
        listed: all candidates, of which those of the library become the first.
    Raises:
        ValueError: a candidate is not described as it is known here.
    """

    may_go_on_whole = True

    def __init__(self, operation: str, listed: Sequence[Any]) -> None:
        ordered = sorted(listed, key=lambda choice: not isinstance(choice, ExternKernelCaller))
        own = {id(choice): _parameters(choice) for choice in ordered if isinstance(choice, TritonTemplateCaller)}
        first = next(choice for choice in ordered if id(choice) in own)
        shared = {
            name: value
            for name, value in own[id(first)].items()
            if not TUNED.fullmatch(name) and all(each.get(name) == value for each in own.values())
        }
        names = dict.fromkeys(name for each in own.values() for name in each if name not in shared)
        self.places: dict[Config, int] = {}
        for choice in ordered:
            parameters = own.get(id(choice), {})
            template = operation if id(choice) in own else choice.choice.uid
            knobs = {"template": template, **{name: parameters.get(name) for name in names}}
            self.places.setdefault(Config(knobs), listed.index(choice))
        self.parameters = dict.fromkeys(self.places, ("", None))
        operands = [_operand(node.get_size(), node.get_stride(), node.get_dtype()) for node in first.input_nodes]
        out = _operand(first.layout.size, first.layout.stride, first.layout.dtype)
        key: dict[str, object] = {f"operand{i}": operand.key for i, operand in enumerate(operands)}
        key |= {"out": out.key, "parameters": {name: str(value) for name, value in shared.items()}}
        if operation in ATTENTION:  # what scores are changed and masked by is written into the source alone
            key["source"] = str(first.bmreq.module_cache_key)
        self.job_without_features = Job(
            workload=Workload(program=program_of(operation), key=key, timing="inductor"),
            space=Space(list(self.places)),
            hardware=detect_hardware(str(first.layout.device)),
            toolchain=toolchain_of(first.layout.device.type),
        )
        self._features = partial(_features, operation, shared, operands, out)

    def _static_features(self, configs: Sequence[Config], hardware: Hardware) -> tuple[Mapping[str, float], ...]:
        return self._features(configs, hardware)

    @property
    def unmeasured_job(self) -> Job:
        """The job where nothing can be measured: no model was fitted on these, so forecasts of one decide nothing."""
        return self.job_without_features


def _parameters(choice: Any) -> dict[str, Any]:
    """What a template was rendered with, as the candidate's description has it."""
    parameters: dict[str, Any] = {}
    for part in choice.description.split(", "):
        if named := PARAMETER.fullmatch(part):
            try:
                value = ast.literal_eval(named[2])
            except (ValueError, SyntaxError):  # an expression, or one with a sign in it
                value = named[2]
            parameters[named[1]] = value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
    if not {"num_stages", "num_warps"} <= parameters.keys():
        raise ValueError(f"a candidate of torch's is described as {choice.description!r}: num_warps was expected there")
    return parameters


def sizes_of(listed: Sequence[Any]) -> list[Any]:
    """All sizes and strides that an operation is about, also those that may change."""
    first = next(choice for choice in listed if isinstance(choice, TritonTemplateCaller))
    of_operands = [each for node in first.input_nodes for each in (*node.get_size(), *node.get_stride())]
    return [*of_operands, *first.layout.size, *first.layout.stride]


def _operand(sizes: Sequence[Any], strides: Sequence[Any], dtype: Any) -> Operand:
    return Operand(tuple(map(int, sizes)), tuple(map(int, strides)), dtype)


def _features(
    operation: str,
    shared: Mapping[str, Any],
    operands: Sequence[Operand],
    out: Operand,
    configs: Sequence[Config],
    hardware: Hardware,
) -> tuple[Mapping[str, float], ...]:
    """What can be told of configs ahead; empty mappings for what is not described."""
    knobs = [config.knobs for config in configs]
    if operation in ("convolution2d", "convolution3d"):
        return product_features(implicit_product(operands[0], operands[1], out, shared), knobs, hardware)
    if operation == "flex_attention":
        return attention_features(operands[0], operands[1], operands[2], knobs, hardware)
    if operation == "flex_attention_backward":
        return backward_features(operands[0], operands[1], operands[2], knobs, hardware)
    return tuple({} for _ in configs)


def implicit_product(x: Operand, weight: Operand, out: Operand, shared: Mapping[str, Any]) -> Product:
    """A convolution as the products that its template makes of it: places of the result by channels, for each group."""
    groups = int(shared.get("GROUPS", 1))
    batch, channels, *places = out.shape
    per_channel = 1
    for size in weight.shape[1:]:  # channels of a group, and the sides of the kernel
        per_channel *= size
    m = batch
    for size in places:
        m *= size
    return Product(
        batch=groups,
        m=m,
        n=channels // groups,
        k=per_channel,
        a_by_rows=x.strides[1] == 1,
        b_by_rows=weight.strides[0] == 1,
        itemsize=x.dtype.itemsize,
        out_itemsize=out.dtype.itemsize,
        tf32=bool(shared.get("ALLOW_TF32")) and x.dtype.itemsize == 4,
    )


def attention_features(
    query: Operand, keys: Operand, values: Operand, configs: Sequence[Mapping[str, Any]], hardware: Hardware
) -> tuple[Mapping[str, float], ...]:
    """The features of configs of flex attention, as though every query met every key: what masks leave out is unknown."""
    from .template_kernels import attention as kernel

    arguments = _arguments(query, keys, values)
    m, heads = query.shape[2], query.shape[0] * query.shape[1]
    arguments["out_ptr"] = _rows(heads * m, values.shape[3], query.dtype.itemsize)

    def grid(meta: Mapping[str, Any]) -> tuple[int, int]:
        return -(-m // meta["BLOCK_M"]), heads

    return tuple(launch_features(kernel, describe_call(arguments), configs, grid=grid, hardware=hardware))


def backward_features(
    query: Operand, keys: Operand, values: Operand, configs: Sequence[Mapping[str, Any]], hardware: Hardware
) -> tuple[Mapping[str, float], ...]:
    """The features of configs of the gradient of flex attention, as `attention_features`."""
    from .template_kernels import attention_backward as kernel

    arguments = _arguments(query, keys, values)
    m, n, heads, size = query.shape[2], keys.shape[2], query.shape[0] * query.shape[1], query.dtype.itemsize
    arguments |= {
        "dout_ptr": _rows(heads * m, values.shape[3], size),
        "dk_ptr": _rows(heads * n, keys.shape[3], size),
        "dv_ptr": _rows(heads * n, values.shape[3], size),
    }

    def grid(meta: Mapping[str, Any]) -> tuple[int, int]:
        return -(-n // meta["BLOCK_N1"]), heads

    return tuple(launch_features(kernel, describe_call(arguments), configs, grid=grid, hardware=hardware))


def _arguments(query: Operand, keys: Operand, values: Operand) -> dict[str, Any]:
    """What both kernels of attention are given."""
    batch, heads, m, qk_dim = query.shape
    _, key_heads, n, v_dim = values.shape
    size = query.dtype.itemsize
    return {
        "q_ptr": _rows(batch * heads * m, qk_dim, size),
        "k_ptr": _rows(keys.shape[0] * key_heads * n, qk_dim, size),
        "v_ptr": _rows(values.shape[0] * key_heads * n, v_dim, size),
        "m": m, "n": n, "shared_heads": heads // key_heads, "QK_DIM": qk_dim, "V_DIM": v_dim,
    }  # fmt: skip


def _rows(count: int, width: int, itemsize: int) -> Sized:
    return Sized((count, width), (width, 1), itemsize)
