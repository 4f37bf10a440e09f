"""Python callables as a Program: their sources with what they call, Triton kernels and extensions included."""

from __future__ import annotations

from ..core.workload import Program
from .code_text import CodeText


class Reading(CodeText):
    """The text of some callables, and what was met in it: tuners that they may call, the languages of their kernels."""

    def program(self, name: str) -> Program:
        """All of it as one program."""
        language = next((known for known in ("triton", "cuda", "c++") if known in self.languages), "python")
        return Program(name=name, language=language, source=self.text)
