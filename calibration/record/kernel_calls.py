"""Where a kernel comes from, and how it was called, as values that a file can hold: no source text, no data of tensors."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from forecast_autotune.errors import InvalidInputError
from forecast_autotune.store.encoding import Json

_NOT_THE_PACKAGE = frozenset({"torch", "triton", "forecast-autotune"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a kernel's code lies: a package and its version, the path within it, the module, the function's name.

    `path` is empty where the file is not the package's own: one that it generated. `package` is empty where no package has
    called the kernel, `version` where the package does not say.
    """

    package: str
    version: str
    path: str
    module: str
    qualname: str


def origin_of(function: Any) -> Origin:
    """Where a JIT function comes from; that of a generated file belongs to the package that called it last."""
    plain = getattr(function, "fn", function)
    file = Path(plain.__code__.co_filename)
    package, version, path = _owner(str(file))
    if not package:
        package, version, path = _module_of(file.resolve())
    if not package:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not package:
            package, version, _ = _owner(frame.f_code.co_filename)
            package = "" if package in _NOT_THE_PACKAGE else package
            frame = frame.f_back
    return Origin(
        package=package,
        version=version if package else "",
        path=path,
        module=str(getattr(plain, "__module__", "")),
        qualname=str(getattr(plain, "__qualname__", "")),
    )


@functools.lru_cache(maxsize=4096)
def _owner(file: str) -> tuple[str, str, str]:
    """The distribution that a file belongs to, its version, and the path within it; empty texts where there is none."""
    folders = [folder for folder in map(Path, sys.path) if str(folder) and folder.is_dir()]
    for folder in folders:
        try:
            path = Path(file).relative_to(folder.resolve())
        except ValueError:
            continue
        owners = _distributions(str(folder.resolve()))
        distribution = owners.get(path.parts[0].removesuffix(".py")) or owners.get("")
        if distribution is not None:
            return *distribution, path.as_posix()
    return "", "", ""


def _module_of(file: Path) -> tuple[str, str, str]:
    """As `_owner`, of a package without a distribution, as one that was only unpacked: by its module's name and version."""
    for module in [m for name, m in sys.modules.items() if "." not in name and hasattr(m, "__path__")]:
        for folder in map(Path, module.__path__):
            if folder.resolve() in file.parents:
                path = file.relative_to(folder.resolve().parent).as_posix()
                return module.__name__, str(getattr(module, "__version__", "")), path
    return "", "", ""


@functools.cache
def _distributions(folder: str) -> dict[str, tuple[str, str]]:
    """By what lies at the top of a folder: the distribution it belongs to, and its version.

    Under the empty name stands the folder's only distribution if it does not say what belongs to it: an unpacked wheel.
    """
    owners: dict[str, tuple[str, str]] = {}
    found = list(importlib.metadata.distributions(path=[folder]))
    for distribution in found:
        name = distribution.metadata["Name"].lower().replace("_", "-")
        tops = {file.parts[0].removesuffix(".py") for file in distribution.files or () if ".." not in file.parts}
        tops |= set((distribution.read_text("top_level.txt") or "").split())
        for top in tops or ({""} if len(found) == 1 else {name.replace("-", "_")}):
            owners.setdefault(top, (name, distribution.version))
    return owners


# Arguments ---------------------------------------------------------------------------------------------------------------


def encode_argument(value: Any) -> Any:
    """A call's argument as JSON: plain values as they are, all others as an object that says what it is.

    Raises:
        InvalidInputError: it is of a kind that cannot be made again from a file.
    """
    import torch
    import triton.language as tl

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": dtype, "shape": list(value.shape), "stride": list(value.stride())}
    if isinstance(value, torch.dtype):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, tl.dtype):
        return {"triton": value.name}
    if isinstance(value, tl.constexpr):
        return {"constexpr": encode_argument(value.value)}
    if isinstance(value, (tuple, list)):
        return {"tuple": [encode_argument(item) for item in value]}
    if callable(value) and getattr(plain := getattr(value, "fn", value), "__qualname__", None):
        return {"function": [plain.__module__, plain.__qualname__]}
    raise InvalidInputError(f"an argument is a {type(value).__name__}, which no file can hold")


def decode_argument(value: Any) -> Any:
    """The argument again, tensors on the meta device.

    Raises:
        InvalidInputError: it is none that `encode_argument` makes, or names what is not there.
    """
    import torch
    import triton.language as tl

    if not isinstance(value, Mapping):
        return value
    try:
        if "tensor" in value:
            dtype = getattr(torch, value["tensor"])
            return torch.empty_strided(value["shape"], value["stride"], dtype=dtype, device="meta")
        if "torch" in value:
            return getattr(torch, value["torch"])
        if "triton" in value:
            return tl.dtype(value["triton"])
        if "constexpr" in value:
            return tl.constexpr(decode_argument(value["constexpr"]))
        if "tuple" in value:
            return tuple(decode_argument(item) for item in value["tuple"])
        if "float" in value:
            return float(value["float"])
        return named_object(*value["function"])
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as err:
        raise InvalidInputError(f"no argument can be made of {str(value)[:100]}: {err}") from None


def named_object(module: str, qualname: str) -> Any:
    """What a module calls by a name.

    Raises:
        InvalidInputError: the module cannot be imported, or has no such name.
    """
    if not all(name.isidentifier() for name in module.split(".")):
        raise InvalidInputError(f"{module[:100]!r} is no module's name")
    try:
        found = importlib.import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
    except Exception as err:  # whatever a package raises when it is imported
        raise InvalidInputError(f"{module}.{qualname} cannot be reached: {type(err).__name__}: {err}") from None
    return found


def encode_call(args: Sequence[Any], kwargs: Mapping[str, Any], grids: Sequence[Sequence[int]]) -> Json:
    """A launch as JSON: its arguments by position and by name, and its grid under each config, once where all agree.

    Raises:
        InvalidInputError: an argument cannot be made again from a file.
    """
    shapes = [[int(extent) for extent in grid] for grid in grids]
    return {
        "args": [encode_argument(value) for value in args],
        "kwargs": {n: encode_argument(v) for n, v in kwargs.items() if n not in ("grid", "warmup")},
        "grids": shapes[:1] if all(shape == shapes[0] for shape in shapes) else shapes,
    }
