"""A call of a Triton kernel made again from what the store keeps of it: to compile, not to launch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
import triton.language as tl

from ...compilers.triton_source import heuristic_names
from ...core.hardware import Hardware
from ...core.workload import Workload
from ...errors import AutotuneError
from .autotuner import ForecastAutotuner
from .call import TritonCall
from .offline_forecast import OfflineCall
from .stand_ins import StandIn


class NotStoredError(AutotuneError):
    """What the store keeps of a call does not say how its kernel is compiled; the message says what is missing."""


def stored_call(tuner: ForecastAutotuner, workload: Workload, hardware: Hardware) -> TritonCall:
    """A call that the compiler cannot tell from the newest one of a stored key.

    Args:
        workload: the key, and the call's features beside it.
        hardware: compiled for this, which need not be present.
    Raises:
        NotStoredError: an argument is of a kind that is not kept, or was not kept by the version that met it.
        InvalidInputError: the arguments do not fit the kernel as it is now.
    """
    named = _arguments(tuner, workload)
    call = OfflineCall(tuner, named, hardware=hardware).call
    if dict(call.job.workload.key) != dict(workload.key):
        raise NotStoredError(f"its key comes out as {call.job.workload}: its key= or key_buckets= have changed")
    return call


def _arguments(tuner: ForecastAutotuner, workload: Workload) -> dict[str, Any]:
    """The arguments by name, tensors without data; those that configs set, or that had their default, are left out."""
    dtypes = workload.key.get("dtypes")
    types: Mapping[str, object] = dtypes if isinstance(dtypes, Mapping) else {}
    set_elsewhere = {name for config in tuner.configs for name in config.all_kwargs()} | heuristic_names(tuner.fn)
    parameters = inspect.signature(tuner.base_fn).parameters
    holding = {
        re.split(r"[.\[]", label)[0] for label in workload.constexprs if not label.isidentifier()
    }  # `xs[0]`: a dtype
    named: dict[str, Any] = {}
    for name in tuner.arg_names:
        if name in types:
            named[name] = _tensor(name, str(types[name]), workload)
        elif name in workload.features:
            named[name] = _value(workload.features[name])
        elif name in holding or (
            name in parameters and parameters[name].default is parameters[name].empty and name not in set_elsewhere
        ):
            raise NotStoredError(f"the store does not say what its argument {name} was")
    return named


def _tensor(name: str, dtype: str, workload: Workload) -> torch.Tensor:
    torch_dtype = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(torch_dtype, torch.dtype):
        raise NotStoredError(f"its argument {name} was of {dtype}, which is no dtype of torch")
    shape: list[int] = []
    while isinstance(size := workload.features.get(f"{name}_{len(shape)}"), int):
        shape.append(size)
    made = torch.empty(shape, dtype=torch_dtype, device="meta").as_subclass(StandIn)
    made.address = workload.features.get(f"{name} alignment", 0)
    return made


def _value(feature: Any) -> Any:
    return tl.dtype(feature.removeprefix("tl.")) if isinstance(feature, str) and feature.startswith("tl.") else feature
