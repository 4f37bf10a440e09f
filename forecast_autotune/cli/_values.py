"""Arguments of a kernel call as a person types them. Nothing typed is ever executed."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidInputError

ACCEPTED = "4096, 1e-5, true, none, text, tl.float16, or a tensor: float16[4096,4096], with strides float16[64,32]:1,64"

_DTYPES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2", "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
}  # fmt: skip
_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max}
_MAX_TEXT = 1000  # characters of a grid or a number: longer ones, and deeper nesting, are nobody's launch


def read_arguments(texts: list[str]) -> dict[str, Any]:
    """`NAME=VALUE` texts as a call's arguments; tensors on the meta device.

    Raises:
        InvalidInputError: one does not parse, or names an argument again.
    """
    named: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise InvalidInputError(f"--arg {text}: give NAME=VALUE; values are {ACCEPTED}")
        if name in named:
            raise InvalidInputError(f"--arg {text}: {name} is given twice")
        named[name] = read_value(value.strip(), name)
    return named


def read_value(text: str, name: str) -> Any:
    """One value: a number, a truth value, None, a dtype of Triton's, a tensor; anything else is text.

    Raises:
        InvalidInputError: it looks like a tensor or a dtype and is none.
    """
    if match := re.fullmatch(r"(\w+)\s*\[([\d,\s]*)\](?::([\d,\s]+))?", text):
        return _tensor(match[1], match[2], match[3], f"{name}={text}")
    if match := re.fullmatch(r"[+-]?(?:\d+|(0[xX][0-9a-fA-F]+))", text):
        if len(text) > _MAX_TEXT:
            raise InvalidInputError(f"--arg {name}={text[:40]}… has {len(text)} digits: give a number of 64 bits")
        return int(text, 16 if match[1] else 10)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return float(text)
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    if match := re.fullmatch(r"tl\.(\w+)", text):
        return _triton_dtype(match[1], f"{name}={text}")
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if not text or "[" in text:
        raise InvalidInputError(f"--arg {name}={text} does not parse: accepted are {ACCEPTED}")
    return text


def read_grid(text: str) -> Callable[[Mapping[str, Any]], tuple[int, ...]]:
    """A launch grid: up to three whole numbers, computed from arguments and knobs by + - * // %, cdiv, min and max.

    Raises:
        InvalidInputError: there is anything else in it.
    """
    try:
        if len(text) > _MAX_TEXT:
            raise ValueError(f"{len(text)} characters")
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise InvalidInputError(f"--grid {text[:80]!r} does not parse ({err}): {_GRID}") from None
    extents = body.elts if isinstance(body, ast.Tuple) else [body]
    if not 1 <= len(extents) <= 3:
        raise InvalidInputError(f"--grid {text!r} has {len(extents)} numbers: a grid has one to three")

    def grid(values: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(_number(node, values, text) for node in extents)

    return grid


_GRID = (
    "give one to three numbers, such as 128,1,1 or 'cdiv(M,BLOCK_M)*cdiv(N,BLOCK_N)', of arguments and knobs with "
    "+ - * // %, cdiv, min and max"
)


def _number(node: ast.expr, values: Mapping[str, Any], text: str) -> int:
    def refuse(what: str) -> InvalidInputError:
        return InvalidInputError(f"--grid {text!r}: {what}; {_GRID}")

    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        value = values.get(node.id)
        if type(value) is not int:
            raise refuse(f"{node.id} is {'not there' if node.id not in values else f'no whole number but {value!r}'}")
        return value
    if isinstance(node, ast.BinOp) and (compute := _OPERATORS.get(type(node.op))) is not None:
        left, right = _number(node.left, values, text), _number(node.right, values, text)
        try:
            return compute(left, right)
        except ZeroDivisionError:
            raise refuse("it divides by 0") from None
    if isinstance(node, ast.Call) and not node.keywords:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(node.func, "value", None)
        plain = owner is None or (isinstance(owner, ast.Name) and owner.id in ("triton", "tl"))
        if plain and called in _FUNCTIONS and (len(node.args) == 2 or (called != "cdiv" and node.args)):
            given = [_number(argument, values, text) for argument in node.args]
            if called == "cdiv" and given[1] == 0:
                raise refuse("it divides by 0")
            return _FUNCTIONS[called](*given) if len(given) > 1 else given[0]
    raise refuse(f"{ast.unparse(node)} is not accepted")


def _counts(text: str) -> list[int]:
    return [int(n) for n in re.split(r"[\s,]+", text.strip()) if n]


_LARGEST = "give sizes and strides of 64 bits, for a tensor of fewer than 2**63 bytes"


def _tensor(dtype: str, sizes: str, steps: str | None, text: str) -> Any:
    import torch

    if len(text) > _MAX_TEXT:
        raise InvalidInputError(f"--arg {text[:80]}… has {len(text)} characters: {_LARGEST}")
    shape, strides = _counts(sizes), None if steps is None else _counts(steps)
    torch_dtype = getattr(torch, _DTYPES.get(dtype, dtype), None)
    if not isinstance(torch_dtype, torch.dtype):
        raise InvalidInputError(
            f"--arg {text}: {dtype} is no dtype of torch; such are float16, bfloat16, float32, int32"
        )
    if strides is not None and len(strides) != len(shape):
        raise InvalidInputError(f"--arg {text}: {len(strides)} strides for {len(shape)} dimensions")
    try:
        if strides is None:
            return torch.empty(shape, dtype=torch_dtype, device="meta")
        return torch.empty_strided(shape, strides, dtype=torch_dtype, device="meta")
    except (TypeError, RuntimeError, OverflowError) as err:  # torch's own words name the line in C++ too
        raise InvalidInputError(f"--arg {text}: torch refuses it ({str(err).splitlines()[0]}): {_LARGEST}") from None


def _triton_dtype(name: str, text: str) -> Any:
    import triton.language as tl

    dtype = getattr(tl, name, None)
    if not isinstance(dtype, tl.dtype):
        raise InvalidInputError(f"--arg {text}: tl.{name} is no dtype of Triton; such are tl.float16, tl.int32")
    return dtype
