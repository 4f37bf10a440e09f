"""What the fork server of boxed workers imports once for all of them: no candidate may import it from where it likes."""

from __future__ import annotations

import contextlib

import torch  # noqa: F401

with contextlib.suppress(ImportError):
    import triton  # noqa: F401

with contextlib.suppress(ImportError):  # 3.4 has it elsewhere
    from triton.runtime.cache import triton_key

    triton_key()  # reads all of Triton, 0.3 s, and is kept: no worker does it again
