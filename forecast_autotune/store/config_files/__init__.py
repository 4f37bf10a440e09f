"""Decisions in the files that other programs read, and those files as configs to try first."""

from __future__ import annotations

from .base import ConfigFormat
from .fla_kernels import FLA
from .fused_moe import SGLANG, VLLM

FORMATS: dict[str, ConfigFormat] = {known.name: known for known in (VLLM, SGLANG, FLA)}
"""The formats by the name that the command knows them by."""
