"""What the fork server of describing workers imports once for all of them: torch's tensors without data take a second, what
reads CUDA a tenth."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..compilers import triton_launches
from ..features.cuda_features import CudaText
from ..frontends.triton import simulated_driver  # noqa: F401
from ..processes import boxed_imports  # noqa: F401

with FakeTensorMode():  # what torch imports when it is first asked
    triton_launches.launches(lambda x: torch.empty_like(x) + x, [torch.empty(1)], {})

CudaText(["__global__ void kernel() {} void call() { kernel<<<1, 1>>>(); }"], ()).features("call", [], {}, None)
