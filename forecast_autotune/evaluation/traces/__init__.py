"""Recorded runs as files: our own form, read and written, and the forms of other tuners, read only."""

from __future__ import annotations

from .jsonl import read_recorded, write_trace
from .reader import read_trace

__all__ = ["read_recorded", "read_trace", "write_trace"]
