"""Where nothing is compiled ahead."""

from __future__ import annotations

from contracts.compiler_contract import CompilerContract

from forecast_autotune.compilers.no_compile import NoCompiler
from forecast_autotune.core.config import Config


class TestNoCompiler(CompilerContract):
    def make_compiler(self) -> NoCompiler:
        return NoCompiler()

    def good(self) -> list[Config]:
        return [Config({"BLOCK": 64}), Config({"BLOCK": 128})]

    def unbuildable(self) -> None:
        """It builds nothing, so that every config counts as built."""
