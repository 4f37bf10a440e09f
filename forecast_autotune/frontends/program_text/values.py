"""What kind a value is and what it holds, found without running its code."""

from __future__ import annotations

import contextlib
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

from ...core.signal_handlers import raised_by_signal_handler
from ..tuned_callable import TunedCallable

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_KERNELS = {"JITCallable", "JITFunction", "InterpretedFunction", "GluonJITFunction", "BoundConstexprFunction"}
_WRAPPERS = {
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
    ("forecast_autotune.frontends.triton.kernel_spec", "KernelSpec"),
}


def tuned_by(value: Any) -> Any:
    """The value itself if `load_inline` or `variants` made it, for it tunes itself; None for anything else."""
    return value if issubclass(type(value), TunedCallable) else None


def is_kernel(value: Any) -> bool:
    """Whether it is a function for Triton's compiler or its interpreter."""
    return any(c.__name__ in _KERNELS and c.__module__.startswith("triton.") for c in type(value).__mro__)


def is_wrapper(value: Any) -> bool:
    """Whether it wraps a kernel: an autotuner (Triton's or ours), a `KernelSpec`, or `@triton.heuristics`."""
    return any((c.__module__, c.__name__) in _WRAPPERS for c in type(value).__mro__)


def called_around(wrapper: Any) -> Iterator[tuple[str, Any]]:
    """Functions that an autotuner or heuristics call around a launch, each with what it is; their work is timed too."""
    for name, heuristic in getattr(wrapper, "values", {}).items():
        yield f"heuristic {name}", heuristic
    for name in ("pre_hook", "post_hook"):
        if getattr(wrapper, f"user_defined_{name}", False):
            yield name, getattr(wrapper, name)
    hooks = {id(c.pre_hook): c.pre_hook for c in getattr(wrapper, "configs", ()) if c.pre_hook is not None}
    for hook in sorted(hooks.values(), key=_own_code):  # whatever the order of the configs
        yield "pre_hook of configs", hook


def _own_code(function: Any) -> tuple[str, bytes]:
    code = getattr(function, "__code__", None)
    return str(getattr(function, "__qualname__", type(function).__qualname__)), code.co_code if code else b""


def held_by(value: Any, name: str) -> Any:
    """An attribute as it lies in an object or its class; properties and `__getattr__` do not run."""
    held = inspect.getattr_static(value, name, None)
    return None if issubclass(type(held), (property, types.GetSetDescriptorType)) else held


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds in its dictionary and slots; of a torch module not what every module holds."""
    try:
        held = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        held = {}
    if is_torch_module(value):
        import torch

        kept = ("training", "_parameters", "_buffers", "_modules")
        empty = vars(torch.nn.Module())
        held = {n: v for n, v in held.items() if n in kept or n not in empty or (v and "forward" in n)}
    yield from held.items()
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType) and name != "__dict__":
                with contextlib.suppress(AttributeError):  # not assigned yet
                    yield name, slot.__get__(value)


def is_torch_module(value: Any) -> bool:
    """Whether it is a `torch.nn.Module`, asked without importing torch."""
    return any(c.__name__ == "Module" and c.__module__ == "torch.nn.modules.module" for c in type(value).__mro__)


def scripted_text(value: Any) -> str | None:
    """TorchScript's own text of what was scripted or traced; None of anything else."""
    kind = type(value)
    if kind.__name__ in ("ScriptFunction", "ScriptMethod") and kind.__module__.startswith("torch"):
        text = value.inlined_graph.str(False)
    elif any(c.__name__ == "ScriptModule" and c.__module__ == "torch.jit._script" for c in kind.__mro__):
        text = value._c.dump_to_str(True, True, False)
    else:
        return None
    return re.sub(r"___torch_mangle_\d+\.", "", str(text))  # counts what was scripted before in this process


def toolchain_text(value: Any) -> str | None:
    """A value of torch's, NumPy's or Triton's: a dtype, a device by its name, a tensor by dtype and shape."""
    kind = type(value)
    if kind.__name__ in ("dtype", "device", "layout", "memory_format", "pointer_type", "block_type"):
        return str(value)
    if (array := array_text(value)) is not None:
        name = kind.__name__
        if name == "FakeTensor":  # torch.export puts these in the place of weights: the program is the same
            name = "Parameter" if "_is_param" in vars(value) else "Tensor"
        return f"{name}({array})"
    if any((c.__module__, c.__name__) == ("numpy", "generic") for c in kind.__mro__):
        return repr(value.item())
    return None


def array_text(value: Any) -> str | None:
    """The dtype and shape of a tensor or a NumPy array, of a DTensor also how it is spread; None of anything else.

    A nested tensor stands by dtype, number of dimensions and layout, and so does any other that cannot say its shape. No
    device is waited for.
    """
    bases: dict[str, Any] = {f"{c.__module__}.{c.__name__}": c for c in type(value).__mro__}
    if (array := bases.get("numpy.ndarray")) is not None:
        return f"{array.dtype.__get__(value)}, {array.shape.__get__(value)}"
    if (tensor := bases.get("torch.Tensor")) is None:
        return None
    import torch

    with torch._C.DisableTorchFunction():
        text = _tensor_text(tensor, value)
    if "torch.distributed.tensor.DTensor" in bases:
        text += f", {value.placements} on a mesh of {tuple(value.device_mesh.shape)}"
    return text


def _tensor_text(base: Any, value: Any) -> str:
    """What the base class knows, whatever a derived one says."""
    dtype, layout = base.dtype.__get__(value), base.layout.__get__(value)
    # Sizes of a nested tensor, where it has any, are symbols that count those made before in this process.
    if not base.is_nested.__get__(value) and (shape := _known(base.shape, value)) is not None:
        return f"{dtype}, {tuple(shape)}"
    return f"{dtype}, {_known(base.ndim, value)} dimensions, {layout}"


def _known(attribute: Any, value: Any) -> Any:
    """An attribute of a tensor; None where it cannot say: torch may ask a derived class for its sizes."""
    try:
        return attribute.__get__(value)
    except Exception as err:
        if raised_by_signal_handler(err):
            raise
        return None
