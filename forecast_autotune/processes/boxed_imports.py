"""What the fork server of boxed workers imports once for all of them: no candidate may import it from where it likes."""

from __future__ import annotations

import contextlib

import torch  # noqa: F401

with contextlib.suppress(ImportError):
    import triton  # noqa: F401
